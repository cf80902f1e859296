//! The start of a device, up to the shares' metadata: whether what stands there is the pool's or
//! somebody else's.
//!
//! The second superblock outlives much that is made over a pool: a file system that is smaller than
//! its device, or on a device that is larger than the pool's smallest. Alone it is no reason to
//! write the first one again: the device may have been given away. So where the first one is gone,
//! and not only damaged, everything around it must be the pool's.

use super::error::OpenError;
use super::members::{Member, Members};
use crate::layout::{
    BLOCK_BYTES, HOLDERS_OFFSET, Holder, METADATA_OFFSET, OWNER_OFFSET, Owner, SUPERBLOCK_OFFSET,
    Superblock, is_protective_mbr,
};

/// What others write at the start of a device, for the message to say it by name: where it stands,
/// its bytes, its name. Those in block 0 and in the place of the first superblock may leave all
/// other blocks as they are.
const SIGNATURES: &[(u64, &[u8], &str)] = &[
    (512, b"EFI PART", "a partition table (GPT)"),
    (SUPERBLOCK_OFFSET, b"EFI PART", "a partition table (GPT)"),
    (SUPERBLOCK_OFFSET, &[0xFC, 0x4E, 0x2B, 0xA9], "a RAID superblock (md)"),
    (SUPERBLOCK_OFFSET + 24, &[0xC6, 0x85, 0x73, 0xF6], "a superblock of bcache or bcachefs"),
    (4086, b"SWAPSPACE2", "swap space"),
    (0, b"XFSB", "a file system (xfs)"),
    (0, b"LUKS\xBA\xBE", "an encrypted volume (LUKS)"),
    (512, b"LABELONE", "a volume of LVM"),
    (1080, &[0x53, 0xEF], "a file system (ext2, ext3 or ext4)"),
    (65_600, b"_BHRfS_M", "a file system (btrfs)"),
];

/// What stands at the start of a device that was given away after it was a pool's, and where.
pub(super) fn overwritten(member: &Member) -> Option<String> {
    if read(member, SUPERBLOCK_OFFSET).is_some_and(|block| Superblock::is_marked(&block)) {
        // Partition tables and swap space leave it as it is.
        return read(member, 0).and_then(|block| named(0, &block));
    }
    let foreign = places().find_map(|offset| foreign(member, offset));
    let is_cleared = || {
        let zero = |offset| read(member, offset).is_some_and(|block| is_zero(&block));
        member.is_block_device() && zero(0) && zero(SUPERBLOCK_OFFSET)
    };
    foreign.or_else(|| {
        is_cleared().then(|| {
            format!("zeroes in block 0 and at byte {SUPERBLOCK_OFFSET}, where the protective MBR and a superblock were")
        })
    })
}

/// Whether anything but zeroes that is not the pool's stands in the blocks around the first
/// superblock.
pub(super) fn holds_other_data(member: &Member) -> bool {
    places().any(|offset| foreign(member, offset).is_some())
}

/// Refuses devices that were given away.
pub(super) fn refuse_overwritten(members: &Members) -> Result<(), OpenError> {
    let found = members.0.iter().find_map(|member| Some((member.name(), overwritten(member)?)));
    found.map_or(Ok(()), |(device, found)| Err(OpenError::OverwrittenStart { device, found }))
}

/// The blocks of the start.
pub(super) fn places() -> impl Iterator<Item = u64> {
    (0..METADATA_OFFSET).step_by(BLOCK_BYTES as usize)
}

/// What stands in a block that is not the pool's. In the place of the first superblock that is only
/// what has a name: the rest may be a superblock that has rotted.
pub(super) fn foreign(member: &Member, offset: u64) -> Option<String> {
    // A block that cannot be read says nothing of whose it is.
    let block = read(member, offset)?;
    if is_ours(offset, &block) {
        return None;
    }
    let unnamed = || {
        let at = offset + block.iter().position(|byte| *byte != 0)? as u64;
        (offset != SUPERBLOCK_OFFSET).then(|| format!("data at byte {at} that is not the pool's"))
    };
    named(offset, &block).or_else(unnamed)
}

fn is_ours(offset: u64, block: &[u8]) -> bool {
    let is_marked = match offset {
        0 => is_protective_mbr(block),
        SUPERBLOCK_OFFSET => Superblock::is_marked(block),
        HOLDERS_OFFSET..OWNER_OFFSET => Holder::is_marked(block),
        OWNER_OFFSET => Owner::is_marked(block),
        _ => false,
    };
    is_marked || is_zero(block)
}

/// What others have in the block at `offset`, by its name.
fn named(offset: u64, block: &[u8]) -> Option<String> {
    let stands = |(at, bytes, _): &&(u64, &[u8], &str)| {
        let within = at.checked_sub(offset).and_then(|within| block.get(within as usize..));
        within.is_some_and(|rest| rest.starts_with(bytes))
    };
    let signature = SIGNATURES.iter().find(stands);
    let found = signature.map(|(at, _, name)| format!("{name} at byte {at}"));
    found.or_else(|| {
        (offset == 0 && has_partitions(block)).then(|| "a partition table (MBR) in block 0".into())
    })
}

/// Whether block 0 has a partition table with another partition than the protective one, which rot
/// alone does not make.
fn has_partitions(block: &[u8]) -> bool {
    const TABLE: usize = 446;
    const PROTECTIVE: u8 = 0xEE;
    let is_other =
        |entry: &[u8]| !matches!(entry[4], 0 | PROTECTIVE) && entry[8..12] != 1_u32.to_le_bytes();
    block[510..512] == [0x55, 0xAA] && block[TABLE..510].chunks_exact(16).any(is_other)
}

fn read(member: &Member, offset: u64) -> Option<Vec<u8>> {
    member.read(offset, BLOCK_BYTES as usize).ok()
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}
