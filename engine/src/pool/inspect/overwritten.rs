//! Devices on which something else was made since they were a pool's, while the pool's second
//! superblock stands: taking them back.

use crate::layout::{
    BLOCK_BYTES, Events, HOLDERS_OFFSET, Holder, OWNER_OFFSET, SUPERBLOCK_OFFSET, Superblock,
    protective_mbr,
};
use crate::path::MemberSource;
use crate::pool::arrangement::{Arranged, arrange};
use crate::pool::events::ShareOnDevices;
use crate::pool::foreign::{self, Foreign};
use crate::pool::holder::holder_offset;
use crate::pool::members::{MemberAccess, Members};
use crate::pool::{OpenError, events, owner, start};

/// A device that something else was made on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OverwrittenStart {
    /// The device.
    pub device: String,
    /// Data that was found, and where.
    pub found: String,
}

/// Writes the start of such devices anew, as far as the shares' metadata, and removes the marks of
/// others elsewhere, so that the pool can be opened again; returns which they were. What was made
/// there is lost. Damage behind the start is for a check to find. Nobody may have a share open.
///
/// # Errors
/// The devices cannot be had, are not one pool, or cannot be written.
pub fn accept_overwritten_start<Source: MemberSource>(
    sources: &[Source],
    buffered: bool,
) -> Result<Vec<OverwrittenStart>, OpenError> {
    let members = Members::open(sources, &MemberAccess::alone(buffered))?;
    let Arranged { members, superblocks, .. } = arrange(members)?;
    let each = members.0.iter().zip(&superblocks);
    let found: Vec<Option<String>> =
        each.map(|(member, superblock)| start::overwritten(member, superblock)).collect();
    if found.iter().all(Option::is_none) {
        return Ok(Vec::new());
    }
    let pool = superblocks[0].pool;
    owner::claim(&members, pool)?;
    let mut accepted = Vec::new();
    let written = (0..).zip(found).try_for_each(|(place, found)| {
        let Some(found) = found else { return Ok(()) };
        write_start(&members, place, &superblocks[place])?;
        accepted.push(OverwrittenStart { device: members.0[place].name(), found });
        Ok(())
    });
    owner::release(&members, pool);
    written.map(|()| accepted)
}

/// The superblock comes last: until then the device is still one that was overwritten, unless all
/// else is the pool's again.
fn write_start(members: &Members, place: usize, superblock: &Superblock) -> Result<(), OpenError> {
    let member = &members.0[place];
    let write = |offset: u64, block: &[u8]| {
        member.write(offset, block).map_err(|source| OpenError::System {
            what: format!("cannot write the start of {}", member.name()),
            source,
        })
    };
    let zeroes = vec![0; BLOCK_BYTES as usize];
    // A file system often leaves what it does not use as it is, and would be found there again.
    for offset in start::places().filter(|offset| start::foreign_at(member, *offset).is_some()) {
        if !(HOLDERS_OFFSET..OWNER_OFFSET).contains(&offset) && offset != SUPERBLOCK_OFFSET {
            write(offset, &zeroes)?;
        }
    }
    let each = members.each();
    for share in 0..crate::layout::SHARES_MAX {
        let offset = holder_offset(share);
        let seen = ShareOnDevices { superblock, members: &each, share }.seen().events;
        let is_share = share < superblock.geometry.shares;
        // Zeroes would say that the device was there for no event, which makes it an older copy of
        // itself.
        let is_lost = seen[place].is_none_or(|events| events == Events::NONE);
        let others = seen.iter().enumerate().filter(|(at, _)| *at != place);
        let counted = events::accepted(&others.map(|(_, events)| *events).collect::<Vec<_>>());
        if is_share && is_lost && counted != Events::NONE {
            write(offset, &Holder::nobody().encode(superblock.pool, share, counted))?;
        } else if (is_lost || !is_share) && start::foreign_at(member, offset).is_some() {
            write(offset, &zeroes)?;
        }
    }
    // What stands there has taken the place of what was the pool's, if anything was.
    for Foreign { block, .. } in foreign::beyond_start(member, superblock) {
        write(block, &zeroes)?;
    }
    write(superblock.geometry.second_superblock_offset(), &superblock.encode())?;
    if member.is_block_device() {
        write(0, &protective_mbr(member.size().0))?;
    }
    write(SUPERBLOCK_OFFSET, &superblock.encode())
}
