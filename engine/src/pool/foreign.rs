//! Signatures of other software on a device: file systems, RAIDs, volume managers, partition
//! tables.
//!
//! Marks at the start stand where a pool has no byte of a tensor, so they are somebody else's
//! wherever they are. Marks at the end stand where tensors may lie, and a tensor may be an image of
//! anything: they count where the pool has nothing, or has lost its second superblock.

use super::members::Member;
use crate::layout::{BLOCK_BYTES, METADATA_OFFSET, SUPERBLOCK_OFFSET, Superblock};

const BLOCK: usize = BLOCK_BYTES as usize;
const KIB: u64 = 1 << 10;

/// A label of ZFS: two at the start of a device, two at its end.
const ZFS_LABEL: u64 = 256 * KIB;
/// Offset of the configuration of a ZFS label, as XDR; and the first name in that.
const ZFS_CONFIG: u64 = 16 * KIB;
const ZFS_FIRST_NAME: (usize, &[u8]) = (20, b"\0\0\0\x07version");
/// Offset of the uberblocks of a ZFS label, one in each KiB or in each multiple of it.
const ZFS_UBERBLOCKS: u64 = 128 * KIB;
const ZFS_UBERBLOCK: [&[u8]; 2] =
    [&[0x0C, 0xB1, 0xBA, 0, 0, 0, 0, 0], &[0, 0, 0, 0, 0, 0xBA, 0xB1, 0x0C]];
const ZFS: &str = "a label of ZFS";

const MD: [u8; 4] = [0xFC, 0x4E, 0x2B, 0xA9];

/// Marks at the start of a device: where each may stand, the bytes, the name.
const AT_START: &[(&[u64], &[u8], &str)] = &[
    (&[512, SUPERBLOCK_OFFSET], b"EFI PART", "a partition table (GPT)"),
    (&[SUPERBLOCK_OFFSET], b"UNFINISH", "the mark of an unfinished format"),
    (&[0, SUPERBLOCK_OFFSET], &MD, "a RAID superblock (md)"),
    (&[SUPERBLOCK_OFFSET + 24], &[0xC6, 0x85, 0x73, 0xF6], "a superblock of bcache or bcachefs"),
    // At the end of the first page, which has 4 to 64 KiB.
    (&[4086, 8182, 16_374, 65_526], b"SWAPSPACE2", "swap space"),
    (&[0], b"XFSB", "a file system (xfs)"),
    (&[0], b"LUKS\xBA\xBE", "an encrypted volume (LUKS)"),
    // The second header of LUKS2.
    (&[16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB], b"SKUL\xBA\xBE", "an encrypted volume (LUKS)"),
    (&[3], b"-FVE-FS-", "an encrypted volume (BitLocker)"),
    // In one of the first four sectors.
    (&[0, 512, 1024, 1536], b"LABELONE", "a volume of LVM"),
    (&[516], b"!Stra0tis\x86\xFF\x02^\x41rh", "a pool of Stratis"),
    (&[0], b"dmvdo001", "a volume of VDO"),
    (&[0], b"bluestore block device", "a device of Ceph"),
    (&[1080], &[0x53, 0xEF], "a file system (ext2, ext3 or ext4)"),
    (&[1024], &[0x10, 0x20, 0xF5, 0xF2], "a file system (f2fs)"),
    (&[1024], &[0xE2, 0xE1, 0xF5, 0xE0], "a file system (erofs)"),
    (&[1024], b"H+\0\x04", "a file system (HFS+)"),
    (&[1030], &[0x34, 0x34], "a file system (nilfs2)"),
    (&[3], b"NTFS    ", "a file system (NTFS)"),
    (&[3], b"EXFAT   ", "a file system (exFAT)"),
    (&[54], b"FAT1", "a file system (FAT)"),
    (&[82], b"FAT32   ", "a file system (FAT)"),
    (&[32], b"NXSB", "a container of APFS"),
    (&[0], b"hsqs", "a file system (squashfs)"),
    (&[32 * KIB], b"JFS1", "a file system (jfs)"),
    (&[32_769], b"CD001", "a file system (ISO 9660)"),
    (&[32_769], b"BEA01", "a file system (UDF)"),
    (&[64 * KIB], &[0x01, 0x16, 0x19, 0x70], "a file system (gfs2)"),
    (&[65_588], b"ReIsEr", "a file system (reiserfs)"),
    (&[65_600], b"_BHRfS_M", "a file system (btrfs)"),
    (&[4 * KIB, 8 * KIB], b"OCFSV2", "a file system (ocfs2)"),
];

/// A mark at the end of a device: a unit down to which the size is rounded, how far before that it
/// is, the bytes, the name.
const AT_END: &[(u64, u64, &[u8], &str)] = &[
    (512, 512, b"EFI PART", "a partition table (GPT)"),
    (4 * KIB, 4 * KIB, b"EFI PART", "a partition table (GPT)"),
    // With the number of their format.
    (4 * KIB, 8 * KIB, &[0xFC, 0x4E, 0x2B, 0xA9, 1, 0, 0, 0], "a RAID superblock (md)"),
    (
        64 * KIB,
        64 * KIB,
        &[0xFC, 0x4E, 0x2B, 0xA9, 0, 0, 0, 0, 90, 0, 0, 0],
        "a RAID superblock (md)",
    ),
    (512, 1024, b"Intel Raid ISM Cfg Sig. ", "a RAID superblock (Intel)"),
    (4 * KIB, 8 * KIB, b"Intel Raid ISM Cfg Sig. ", "a RAID superblock (Intel)"),
    (512, 512, &[0xDE, 0x11, 0xDE, 0x11], "a RAID superblock (DDF)"),
    (4 * KIB, 4 * KIB - 60, &[0x83, 0x74, 0x02, 0x6B], "metadata of DRBD"),
    (4 * KIB, 4 * KIB - 60, &[0x83, 0x74, 0x02, 0x6C], "metadata of DRBD"),
    (4 * KIB, 4 * KIB - 60, &[0x83, 0x74, 0x02, 0x6D], "metadata of DRBD"),
];

/// A mark that was found.
pub(super) struct Foreign {
    /// The block that has it.
    pub(super) block: u64,
    /// Description of the data, and its place.
    pub(super) what: String,
}

/// Names the data of others in a block at the start of a device.
pub(super) fn at_start(offset: u64, block: &[u8]) -> Option<String> {
    let mark = AT_START.iter().find_map(|(places, bytes, name)| {
        let at = places.iter().find(|at| has(offset, block, **at, bytes))?;
        Some(format!("{name} at byte {at}"))
    });
    mark.or_else(|| zfs_at_start(offset, block)).or_else(|| {
        (offset == 0 && has_partitions(block)).then(|| "a partition table (MBR) in block 0".into())
    })
}

/// The marks of others behind the start of a device that is this one of a pool.
pub(super) fn beyond_start(member: &Member, superblock: &Superblock) -> Vec<Foreign> {
    let second = superblock.geometry.second_superblock_offset();
    let is_whole = read(member, second).is_some_and(|block| Superblock::is_marked(&block));
    // Behind what the pool has, or anywhere where something has taken its second superblock.
    let ours = if is_whole { second + BLOCK_BYTES } else { METADATA_OFFSET };
    let size = member.size().0;
    let end = size / ZFS_LABEL * ZFS_LABEL;
    let at_end = [2, 1].into_iter().filter_map(|label| end.checked_sub(label * ZFS_LABEL));
    // Where the second label has its mark is the index, and nothing of a tensor.
    let labels = [ZFS_LABEL].into_iter().chain(at_end.filter(|label| *label >= ours));
    let labels = labels.filter_map(|label| zfs_config(member, label));
    let marks = AT_END.iter().filter_map(|(unit, before, bytes, name)| {
        let at = (size / unit * unit).checked_sub(*before).filter(|at| *at >= ours)?;
        let block = at / BLOCK_BYTES * BLOCK_BYTES;
        let found = read(member, block).is_some_and(|it| has(block, &it, at, bytes));
        found.then(|| Foreign { block, what: format!("{name} at byte {at}") })
    });
    labels.chain(marks).collect()
}

fn zfs_config(member: &Member, label: u64) -> Option<Foreign> {
    let block = label + ZFS_CONFIG;
    let found = read(member, block).is_some_and(|it| is_zfs_config(&it));
    found.then(|| Foreign { block, what: format!("{ZFS} at byte {label}") })
}

fn is_zfs_config(block: &[u8]) -> bool {
    let (at, name) = ZFS_FIRST_NAME;
    block.first() == Some(&1) && block.get(at..).is_some_and(|rest| rest.starts_with(name))
}

fn zfs_at_start(offset: u64, block: &[u8]) -> Option<String> {
    let in_ring = (ZFS_UBERBLOCKS..ZFS_LABEL).contains(&offset);
    let is_uberblock = |slot: &[u8]| ZFS_UBERBLOCK.iter().any(|mark| slot.starts_with(mark));
    let slot = block.chunks(KIB as usize).position(is_uberblock).filter(|_| in_ring);
    let config = (offset == ZFS_CONFIG && is_zfs_config(block)).then_some(offset);
    let at = config.or_else(|| Some(offset + slot? as u64 * KIB))?;
    Some(format!("{ZFS} at byte {at}"))
}

fn has(offset: u64, block: &[u8], at: u64, bytes: &[u8]) -> bool {
    let within = at.checked_sub(offset).and_then(|within| block.get(within as usize..));
    within.is_some_and(|rest| rest.starts_with(bytes))
}

/// Returns whether block 0 has a partition table with another partition than the protective one,
/// which rot alone does not make.
fn has_partitions(block: &[u8]) -> bool {
    const TABLE: usize = 446;
    const PROTECTIVE: u8 = 0xEE;
    let is_other =
        |entry: &[u8]| !matches!(entry[4], 0 | PROTECTIVE) && entry[8..12] != 1_u32.to_le_bytes();
    block[510..512] == [0x55, 0xAA] && block[TABLE..510].chunks_exact(16).any(is_other)
}

fn read(member: &Member, offset: u64) -> Option<Vec<u8>> {
    member.read(offset, BLOCK).ok()
}
