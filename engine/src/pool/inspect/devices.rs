//! Checks of each device: its superblocks, its protective MBR, and whether something else was made
//! there.

use super::damage::{Damage, Unsettled};
use super::view::has_protective_mbr;
use crate::layout::Superblock;
use crate::pool::arrangement::Damaged;
use crate::pool::members::Members;
use crate::pool::start;
use crate::pool::superblock_copies::{CopyFault, DamagedCopy};

pub(super) fn damage(
    members: &Members,
    superblocks: &[Superblock],
    damaged: &[Damaged],
) -> Vec<Damage> {
    let mut damage = Vec::new();
    for (place, member) in members.present() {
        let superblock = &superblocks[usize::from(place)];
        let device = || member.name();
        let overwritten = start::overwritten(member, superblock);
        let is_overwritten = overwritten.is_some();
        damage
            .extend(overwritten.map(|found| Damage::OverwrittenStart { device: device(), found }));
        // What is overwritten has no damage besides.
        let copies = damaged.iter().filter(|(at, _)| *at == place).map(|(_, copy)| copy);
        let copies = copies.filter(|_| !is_overwritten);
        damage.extend(copies.filter_map(|DamagedCopy { copy, why }| {
            let other = match why {
                CopyFault::Damaged => None,
                CopyFault::Foreign(other) => Some(other.whose()),
                CopyFault::Behind => return None,
            };
            Some(Damage::Superblock { device: device(), copy: *copy, other })
        }));
        if !is_overwritten && member.is_block_device() && !has_protective_mbr(member) {
            damage.push(Damage::ProtectiveMbr { device: device() });
        }
    }
    damage
}

/// The first superblocks that the next open writes.
pub(super) fn unsettled(members: &Members, damaged: &[Damaged]) -> Vec<Unsettled> {
    let behind = damaged.iter().filter(|(_, copy)| matches!(copy.why, CopyFault::Behind));
    let name = |place: u8| members.0[usize::from(place)].name();
    behind.map(|(place, _)| Unsettled::Superblock { device: name(*place) }).collect()
}
