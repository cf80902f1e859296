//! The start of a device, up to the shares' metadata: whether what stands there is the pool's or
//! somebody else's.
//!
//! The second superblock outlives much that is made over a pool: a file system that is smaller than
//! its device, or on a device that is larger than the pool's smallest. Alone it is no reason to
//! write the first one again: the device may have been given away. So where the first one is gone,
//! and not only damaged, everything around it must be the pool's.

use super::error::OpenError;
use super::foreign;
use super::members::{Member, Members};
use crate::layout::{
    BLOCK_BYTES, HOLDERS_OFFSET, Holder, METADATA_OFFSET, OWNER_OFFSET, Owner, SUPERBLOCK_OFFSET,
    Superblock, SuperblockError, UnfinishedFormat, is_protective_mbr, is_zero,
};

/// Returns the later data of others on a device of a pool, and where. A superblock that stands at
/// the start says that whatever is unnamed there is a damaged block; what has a name is somebody's.
pub(super) fn overwritten(member: &Member, superblock: &Superblock) -> Option<String> {
    let start = Start::read(member);
    let beyond = || foreign::beyond_start(member, superblock).into_iter().map(|it| it.what).next();
    if start.block(SUPERBLOCK_OFFSET).is_some_and(Superblock::is_marked) {
        return start.named().or_else(beyond);
    }
    let foreign = places().find_map(|offset| foreign_in(offset, start.block(offset)?));
    let is_cleared = || {
        let zero = |offset| start.block(offset).is_some_and(is_zero);
        member.is_block_device() && zero(0) && zero(SUPERBLOCK_OFFSET)
    };
    let cleared = || {
        is_cleared().then(|| {
            format!("zeroes in block 0 and at byte {SUPERBLOCK_OFFSET}, where the protective MBR and a superblock were")
        })
    };
    foreign.or_else(cleared).or_else(beyond)
}

/// The start of a device, of which blocks may be unreadable.
struct Start(Vec<Option<Vec<u8>>>);

impl Start {
    fn read(member: &Member) -> Self {
        let whole = member.read(0, METADATA_OFFSET as usize);
        let block = |offset: u64| match &whole {
            Ok(whole) => Some(whole[offset as usize..][..BLOCK_BYTES as usize].to_vec()),
            Err(_) => read(member, offset),
        };
        Self(places().map(block).collect())
    }

    fn block(&self, offset: u64) -> Option<&[u8]> {
        self.0[(offset / BLOCK_BYTES) as usize].as_deref()
    }

    /// Returns the description of data that has a name, outside of the pool's blocks.
    fn named(&self) -> Option<String> {
        let others = |offset: &u64| self.block(*offset).is_some_and(|it| !is_ours(*offset, it));
        places().filter(others).find_map(|offset| foreign::at_start(offset, self.block(offset)?))
    }
}

/// Returns whether anything but zeroes that is not the pool's stands in the blocks around the first
/// superblock.
pub(super) fn holds_other_data(member: &Member) -> bool {
    places().any(|offset| foreign_at(member, offset).is_some())
}

/// Refuses devices that were given away, to a format that has not ended or to anybody else.
pub(super) fn refuse_overwritten(
    members: &Members,
    superblocks: &[Superblock],
) -> Result<(), OpenError> {
    for (place, member) in members.present() {
        let (device, superblock) = (member.name(), &superblocks[usize::from(place)]);
        let first = read(member, SUPERBLOCK_OFFSET);
        if first.as_deref().and_then(UnfinishedFormat::decode).is_some() {
            return Err(OpenError::Superblock { device, source: SuperblockError::Unfinished });
        }
        if let Some(found) = overwritten(member, superblock) {
            return Err(OpenError::OverwrittenStart { device, found });
        }
    }
    Ok(())
}

/// The blocks of the start.
pub(super) fn places() -> impl Iterator<Item = u64> {
    (0..METADATA_OFFSET).step_by(BLOCK_BYTES as usize)
}

/// Describes the data of a block of the start that is not the pool's. A block that cannot be read
/// says nothing of whose it is.
pub(super) fn foreign_at(member: &Member, offset: u64) -> Option<String> {
    foreign_in(offset, &read(member, offset)?)
}

/// Describes the data of a block. In the place of the first superblock that is only what has a
/// name: the rest may be a superblock that has rotted.
fn foreign_in(offset: u64, block: &[u8]) -> Option<String> {
    if is_ours(offset, block) {
        return None;
    }
    let unnamed = || {
        let at = offset + block.iter().position(|byte| *byte != 0)? as u64;
        (offset != SUPERBLOCK_OFFSET).then(|| format!("data at byte {at} that is not the pool's"))
    };
    foreign::at_start(offset, block).or_else(unnamed)
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

fn read(member: &Member, offset: u64) -> Option<Vec<u8>> {
    member.read(offset, BLOCK_BYTES as usize).ok()
}
