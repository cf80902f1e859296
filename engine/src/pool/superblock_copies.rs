//! Looking for superblocks on a member: where they stand, and which of them holds.

use super::holder::holder_offset;
use super::members::Member;
use super::start;
use crate::layout::{
    BLOCK_BYTES, Events, Geometry, SUPERBLOCK_OFFSET, Superblock, SuperblockError,
    UnfinishedFormat, is_zero,
};

impl Member {
    /// Reads the two places of this device's superblock. The first copy says where the second is;
    /// without it, or where nothing stands there, that is the device's end, or where the rest of
    /// the pool has its own. Zeroes in the place of the first say that the pool was wiped, and then
    /// the rest of it does not count; unless others left them there.
    pub(super) fn superblock_copies(&self, others: &[Geometry]) -> SuperblockCopies {
        let read = |offset: u64| match self.read(offset, BLOCK_BYTES as usize) {
            Ok(bytes) if UnfinishedFormat::decode(&bytes).is_some() => {
                (Err(SuperblockError::Unfinished), false)
            }
            Ok(bytes) => (Superblock::decode(&bytes), is_zero(&bytes)),
            Err(_) => (Err(SuperblockError::Absent), false),
        };
        let (first, is_zero) = read(SUPERBLOCK_OFFSET);
        let said = first.as_ref().ok().map(|it| it.geometry.second_superblock_offset());
        let told = others.iter().map(Geometry::second_superblock_offset);
        let told = told.filter(|_| first.is_ok() || !is_zero || start::holds_other_data(self));
        let mut second_offset = said.unwrap_or_else(|| self.last_block());
        let mut second = read(second_offset).0;
        for place in [self.last_block()].into_iter().chain(told) {
            let is_whole = |copy: &Result<_, SuperblockError>| match copy {
                Ok(_) => true,
                Err(error) => error.is_of_another_version(),
            };
            if is_whole(&second) {
                break;
            }
            let other = read(place).0;
            if is_whole(&other) || first.is_err() {
                (second, second_offset) = (other, place);
            }
        }
        SuperblockCopies { first, second, second_offset }
    }

    /// Returns the offset of the last block.
    fn last_block(&self) -> u64 {
        (self.size().0 / BLOCK_BYTES * BLOCK_BYTES).saturating_sub(BLOCK_BYTES)
    }

    /// Every place at which this device has a superblock, whole or damaged, as far as anything
    /// tells: what the first one says, though it be damaged, the device's end, and where the rest
    /// of the pool has its own. The first one, which says where another is, comes last.
    pub(super) fn superblock_marks(&self, others: &[Geometry]) -> Vec<u64> {
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
        let told = others.iter().map(Geometry::second_superblock_offset).filter(is_whole);
        let last = Some(self.last_block()).filter(is_marked);
        let mut places: Vec<u64> = said.into_iter().chain(told).chain(last).collect();
        places.retain(|place| *place != SUPERBLOCK_OFFSET);
        places.sort_unstable();
        places.dedup();
        places.extend(first.map(|_| SUPERBLOCK_OFFSET));
        places
    }

    /// Returns whether zeroes stand in the place of the first superblock, as wiping leaves them.
    pub(super) fn was_wiped(&self) -> bool {
        self.read(SUPERBLOCK_OFFSET, BLOCK_BYTES as usize).is_ok_and(|bytes| is_zero(&bytes))
    }

    /// Returns the claims of this device's superblocks, as far as it tells by itself. Two claims
    /// are left where a copy is another device's and nothing here says which one.
    pub(super) fn claims(
        &self,
        others: &[Geometry],
    ) -> Result<Vec<SuperblockClaim>, SuperblockError> {
        let mut claims = self.superblock_copies(others).claims()?;
        let fits =
            |claim: &SuperblockClaim| claim.superblock.geometry.device_bytes <= self.size().0;
        if claims.iter().any(fits) {
            claims.retain(fits);
        }
        let confirmed = |claim: &SuperblockClaim| self.has_events_of(&claim.superblock);
        if claims.len() > 1 && claims.iter().filter(|claim| confirmed(claim)).count() == 1 {
            claims.retain(confirmed);
        }
        Ok(claims)
    }

    /// Returns the superblock of this device.
    pub(super) fn superblock(&self) -> Result<Superblock, SuperblockError> {
        self.superblock_beside(&[])
    }

    /// Returns the superblock of this device, which may be larger than the others of its pool: then
    /// their geometry says where its second one is.
    pub(super) fn superblock_beside(
        &self,
        others: &[Geometry],
    ) -> Result<Superblock, SuperblockError> {
        SuperblockClaim::only(self.claims(others)?).map(|claim| claim.superblock)
    }

    /// Returns whether openings of a share of this pool were counted here.
    fn has_events_of(&self, superblock: &Superblock) -> bool {
        (0..superblock.geometry.shares).any(|share| {
            let block = self.read(holder_offset(share), BLOCK_BYTES as usize);
            let events = block.ok().and_then(|it| Events::decode(&it, superblock.pool, share));
            events.is_some_and(|events| events != Events::NONE)
        })
    }
}

/// Copies of a device's superblock.
pub(super) struct SuperblockCopies {
    pub(super) first: Result<Superblock, SuperblockError>,
    pub(super) second: Result<Superblock, SuperblockError>,
    pub(super) second_offset: u64,
}

/// Claim of a device's identity, by one of its superblocks or both.
#[derive(Clone, Debug)]
pub(super) struct SuperblockClaim {
    /// The newest that says so.
    pub(super) superblock: Superblock,
    /// The copies that do not.
    pub(super) damaged: Vec<DamagedCopy>,
}

/// A copy of a superblock that is to be written again.
#[derive(Clone, Debug)]
pub(super) struct DamagedCopy {
    /// `A` or `B`.
    pub(super) copy: char,
    pub(super) why: CopyFault,
}

/// The reason why a copy of a superblock is to be written again.
#[derive(Clone, Debug)]
pub(super) enum CopyFault {
    /// The copy is damaged or absent.
    Damaged,
    /// The copy is of another device.
    Foreign(Box<Superblock>),
    /// The copy is behind: the first one and older than the second, which is written before it: a
    /// process ended between the two.
    Behind,
}

impl SuperblockClaim {
    fn new(superblock: &Superblock, copy: char, why: CopyFault) -> Self {
        Self { superblock: *superblock, damaged: vec![DamagedCopy { copy, why }] }
    }

    /// The one that is left, or why there is more than one.
    pub(super) fn only(mut claims: Vec<Self>) -> Result<Self, SuperblockError> {
        match (claims.pop(), claims.pop()) {
            (Some(claim), None) => Ok(claim),
            (Some(second), Some(first)) => Err(SuperblockError::Disagree {
                first: first.superblock.whose(),
                second: second.superblock.whose(),
            }),
            (None, _) => Err(SuperblockError::Absent),
        }
    }
}

impl SuperblockCopies {
    /// Returns the claims of the copies, the first copy's word first: one thing, or two where both
    /// are whole and one is another device's.
    fn claims(&self) -> Result<Vec<SuperblockClaim>, SuperblockError> {
        match (&self.first, &self.second) {
            // What a newer version wrote is not written over because the other copy is older.
            (Err(newer), _) | (_, Err(newer)) if newer.is_of_another_version() => {
                Err(newer.clone())
            }
            (Ok(first), Ok(second)) if first == second => {
                Ok(vec![SuperblockClaim { superblock: *first, damaged: Vec::new() }])
            }
            (Ok(first), Ok(second)) if !first.is_of_the_same_device(second) => Ok(vec![
                SuperblockClaim::new(first, 'B', CopyFault::Foreign(Box::new(*second))),
                SuperblockClaim::new(second, 'A', CopyFault::Foreign(Box::new(*first))),
            ]),
            (Ok(first), Ok(second)) if second.generation > first.generation => {
                Ok(vec![SuperblockClaim::new(second, 'A', CopyFault::Behind)])
            }
            (Ok(first), _) => Ok(vec![SuperblockClaim::new(first, 'B', CopyFault::Damaged)]),
            (Err(_), Ok(second)) => Ok(vec![SuperblockClaim::new(second, 'A', CopyFault::Damaged)]),
            // What stands at the first place says more than what does not stand at the second.
            (Err(SuperblockError::Absent), Err(second)) => Err(second.clone()),
            (Err(first), Err(_)) => Err(first.clone()),
        }
    }
}

/// The geometries of pools of which members have a superblock that is whole, each once.
pub(super) fn known_geometries<'a>(members: impl Iterator<Item = &'a Member>) -> Vec<Geometry> {
    let mut known: Vec<Geometry> = Vec::new();
    for SuperblockCopies { first, second, .. } in members.map(|it| it.superblock_copies(&[])) {
        for superblock in [first, second].into_iter().flatten() {
            if !known.contains(&superblock.geometry) {
                known.push(superblock.geometry);
            }
        }
    }
    known
}
