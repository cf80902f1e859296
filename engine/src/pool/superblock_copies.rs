//! Looking for superblocks on a member: where they stand, and which of them holds.

use super::members::{Member, Members};
use super::start;
use crate::layout::{BLOCK_BYTES, Geometry, SUPERBLOCK_OFFSET, Superblock, SuperblockError};

impl Member {
    /// What stands at the two places of this device's superblock. The first copy says where the
    /// second is; without it, that is the device's end, or where the rest of the pool has its own.
    /// Zeroes in the place of the first say that the pool was wiped, and then the rest of it does
    /// not count; unless others left them there.
    pub(super) fn superblock_copies(&self, others: Option<&Geometry>) -> SuperblockCopies {
        let read = |offset: u64| match self.read(offset, BLOCK_BYTES as usize) {
            Ok(bytes) => (Superblock::decode(&bytes), is_zero(&bytes)),
            Err(_) => (Err(SuperblockError::Absent), false),
        };
        let (first, is_zero) = read(SUPERBLOCK_OFFSET);
        if let Ok(found) = first {
            let second_offset = found.geometry.second_superblock_offset();
            return SuperblockCopies { first, second: read(second_offset).0, second_offset };
        }
        let copies = |first, second_offset| SuperblockCopies {
            first,
            second: read(second_offset).0,
            second_offset,
        };
        let at_end = copies(first.clone(), self.last_block());
        match others {
            Some(geometry)
                if at_end.second.is_err() && (!is_zero || start::holds_other_data(self)) =>
            {
                copies(first, geometry.second_superblock_offset())
            }
            _ => at_end,
        }
    }

    /// Where the last block begins.
    fn last_block(&self) -> u64 {
        (self.size().0 / BLOCK_BYTES * BLOCK_BYTES).saturating_sub(BLOCK_BYTES)
    }

    /// Every place at which this device has a superblock, whole or damaged, as far as anything
    /// tells: what the first one says, though it be damaged, the device's end, and where the rest
    /// of the pool has its own. The first one, which says where another is, comes last.
    pub(super) fn superblock_marks(&self, others: Option<&Geometry>) -> Vec<u64> {
        let found = |offset: u64| {
            let end = offset.checked_add(BLOCK_BYTES)?;
            let fits = end <= self.size().0 && offset.is_multiple_of(BLOCK_BYTES);
            let bytes = fits.then(|| self.read(offset, BLOCK_BYTES as usize).ok()).flatten()?;
            let decoded = Superblock::decode(&bytes);
            (decoded != Err(SuperblockError::Absent)).then_some((bytes, decoded))
        };
        let is_marked = |offset: &u64| found(*offset).is_some();
        // In the middle of a device anything may stand; unless it is sure, only what is whole is a
        // superblock.
        let is_whole = |offset: &u64| found(*offset).is_some_and(|(_, decoded)| decoded.is_ok());
        let first = found(SUPERBLOCK_OFFSET);
        let (said, is_sure) = match &first {
            Some((bytes, decoded)) => (Superblock::claimed_second_offset(bytes), decoded.is_ok()),
            None => (None, false),
        };
        let said = said.filter(|it| if is_sure { is_marked(it) } else { is_whole(it) });
        let told = others.map(Geometry::second_superblock_offset).filter(is_whole);
        let last = Some(self.last_block()).filter(is_marked);
        let mut places: Vec<u64> = [said, told, last].into_iter().flatten().collect();
        places.retain(|place| *place != SUPERBLOCK_OFFSET);
        places.sort_unstable();
        places.dedup();
        places.extend(first.map(|_| SUPERBLOCK_OFFSET));
        places
    }

    /// Whether zeroes stand in the place of the first superblock, as wiping leaves them.
    pub(super) fn was_wiped(&self) -> bool {
        self.read(SUPERBLOCK_OFFSET, BLOCK_BYTES as usize).is_ok_and(|bytes| is_zero(&bytes))
    }

    /// The newest valid superblock, and which of its copies (`A`, `B`) are damaged.
    pub(super) fn superblock(
        &self,
        others: Option<&Geometry>,
    ) -> Result<(Superblock, Vec<char>), SuperblockError> {
        self.superblock_copies(others).newest()
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// What stands at the two places of a device's superblock.
pub(super) struct SuperblockCopies {
    pub(super) first: Result<Superblock, SuperblockError>,
    pub(super) second: Result<Superblock, SuperblockError>,
    pub(super) second_offset: u64,
}

impl SuperblockCopies {
    /// The copy that holds, and which ones (`A`, `B`) are damaged.
    pub(super) fn newest(&self) -> Result<(Superblock, Vec<char>), SuperblockError> {
        match (&self.first, &self.second) {
            // What a newer version wrote is not written over because the other copy is older.
            (Err(newer), _) | (_, Err(newer)) if newer.is_of_another_version() => {
                Err(newer.clone())
            }
            (Ok(first), Ok(second)) if first == second => Ok((*first, vec![])),
            (Ok(first), Ok(second)) if second.generation > first.generation => {
                Ok((*second, vec!['A']))
            }
            (Ok(first), _) => Ok((*first, vec!['B'])),
            (Err(_), Ok(second)) => Ok((*second, vec!['A'])),
            // What stands at the first place says more than what does not stand at the second.
            (Err(SuperblockError::Absent), Err(second)) => Err(second.clone()),
            (Err(first), Err(_)) => Err(first.clone()),
        }
    }
}

impl Members {
    /// The geometry of the pool, of whichever member has a superblock that holds.
    pub(super) fn known_geometry(&self) -> Option<Geometry> {
        let known = self.0.iter().find_map(|member| member.superblock(None).ok());
        known.map(|(superblock, _)| superblock.geometry)
    }
}
