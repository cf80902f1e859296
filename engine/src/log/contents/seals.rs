//! Versions held by seals, and the number of seals that hold each.
//!
//! A version that is held keeps its space, whatever stands under its id. It is counted by the seals
//! that are being committed, too: from the moment that one is begun, an update of its tensors goes
//! elsewhere.

use std::collections::BTreeMap;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

use crate::layout::{Seal, TensorEntry, TensorId};
use crate::log::version::{ReservationKey, Version};
use crate::units::ByteCount;

/// Use of space by seals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SealUse {
    /// Number of seals.
    pub seals: usize,
    /// Number of versions that they hold, each counted once.
    pub versions: usize,
    /// Space that they alone hold: what would be free without them.
    pub alone: ByteCount,
}

/// A version that is held.
#[derive(Debug)]
pub(super) struct CountedVersion {
    pub(super) version: Arc<Version>,
    /// Number of seals on the media that hold the version.
    committed: u32,
    /// Number of seals being committed that hold the version.
    coming: u32,
}

impl CountedVersion {
    /// Returns whether the index on the media has it.
    pub(super) fn is_recorded(&self) -> bool {
        self.committed > 0
    }

    /// Returns the number of seals that hold the version, those that are being committed among
    /// them.
    pub(super) fn seals(&self) -> u32 {
        self.committed + self.coming
    }
}

/// End of a seal.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SealEnd {
    /// The seal was on the media.
    Dropped,
    /// The seal was being committed.
    Abandoned,
}

/// State of a version once one seal fewer holds it.
pub(super) enum Left {
    /// The version is still held.
    Same,
    /// The version is held by uncommitted seals only: the index on the media has it no more.
    Unrecorded,
    /// The version is held by no seal.
    Nothing(CountedVersion),
}

/// A seal that is being committed.
#[derive(Debug)]
pub(super) struct Coming {
    pub(super) seal: Seal,
    /// Puts of the seal's own batch, and their numbers.
    pub(super) puts: Vec<(ReservationKey, u64)>,
    /// Size of the seal in the index, at most.
    pub(super) index_bytes: u64,
    /// The commit failed half way.
    pub(super) in_doubt: bool,
}

/// All seals of a share.
#[derive(Debug, Default)]
pub(super) struct Seals {
    held: BTreeMap<u64, CountedVersion>,
    of_id: FxHashMap<TensorId, SmallVec<[u64; 2]>>,
    named: BTreeMap<Box<str>, Seal>,
    /// Puts by the key of their reservation.
    pub(super) coming: FxHashMap<u64, Coming>,
    last_number: u64,
    last_order: u64,
}

impl Seals {
    /// Recovery found a held version, whose seals it [names](Self::name) afterwards.
    pub(super) fn adopt(&mut self, number: u64, version: Arc<Version>) {
        self.last_number = self.last_number.max(number);
        self.of_id.entry(version.entry.id).or_default().push(number);
        self.held.insert(number, CountedVersion { version, committed: 0, coming: 0 });
    }

    /// Recovery found a seal.
    pub(super) fn name(&mut self, seal: Seal) {
        self.last_order = self.last_order.max(seal.order);
        for number in &seal.versions {
            if let Some(held) = self.held.get_mut(number) {
                held.committed += 1;
            }
        }
        self.named.insert(seal.name.clone(), seal);
    }

    /// The number of a version, if a seal holds it.
    pub(super) fn number_of(&self, version: &Version) -> Option<u64> {
        let mut held = self.versions_of(version.entry.id);
        held.find(|(_, it)| it.serial == version.serial).map(|(number, _)| number)
    }

    pub(super) fn held(&self, number: u64) -> Option<&CountedVersion> {
        self.held.get(&number)
    }

    /// Iterates over all held versions, in the order of their numbers.
    pub(super) fn all_held(&self) -> impl Iterator<Item = (u64, &CountedVersion)> {
        self.held.iter().map(|(number, held)| (*number, held))
    }

    /// The versions of a tensor that are held, by their numbers.
    pub(super) fn versions_of(&self, id: TensorId) -> impl Iterator<Item = (u64, &Arc<Version>)> {
        let numbers = self.of_id.get(&id).into_iter().flatten();
        numbers.map(|number| (*number, &self.held[number].version))
    }

    pub(super) fn named(&self, name: &str) -> Option<&Seal> {
        self.named.get(name)
    }

    /// All seals, in the order of their names.
    pub(super) fn all(&self) -> impl Iterator<Item = &Seal> {
        self.named.values()
    }

    /// A number that no version has.
    pub(super) fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }

    /// Adopts a version that `coming` seals in progress hold under this number.
    pub(super) fn adopt_coming(&mut self, number: u64, version: Arc<Version>, coming: u32) {
        self.of_id.entry(version.entry.id).or_default().push(number);
        self.held.insert(number, CountedVersion { version, committed: 0, coming });
    }

    /// A seal that is being committed holds this version; returns its number.
    pub(super) fn hold(&mut self, version: &Arc<Version>) -> u64 {
        let number = self.number_of(version).unwrap_or_else(|| {
            let number = self.next_number();
            self.adopt_coming(number, Arc::clone(version), 0);
            number
        });
        if let Some(held) = self.held.get_mut(&number) {
            held.coming += 1;
        }
        number
    }

    /// A seal that holds this version is on media; returns it if the index there did not have it.
    pub(super) fn commit(&mut self, number: u64) -> Option<&TensorEntry> {
        let held = self.held.get_mut(&number)?;
        held.coming -= 1;
        held.committed += 1;
        (held.committed == 1).then_some(&held.version.entry)
    }

    /// One seal fewer holds this version.
    pub(super) fn release(&mut self, number: u64, end: SealEnd) -> Left {
        let Some(held) = self.held.get_mut(&number) else { return Left::Same };
        match end {
            SealEnd::Dropped => held.committed -= 1,
            SealEnd::Abandoned => held.coming -= 1,
        }
        if held.seals() > 0 {
            let unrecorded = end == SealEnd::Dropped && !held.is_recorded();
            return if unrecorded { Left::Unrecorded } else { Left::Same };
        }
        let Some(held) = self.held.remove(&number) else { return Left::Same };
        let id = held.version.entry.id;
        if let Some(numbers) = self.of_id.get_mut(&id) {
            numbers.retain(|other| *other != number);
            if numbers.is_empty() {
                self.of_id.remove(&id);
            }
        }
        Left::Nothing(held)
    }

    /// The seals that are being committed and hold this version.
    pub(super) fn coming_with(&mut self, number: u64) -> impl Iterator<Item = &mut Coming> {
        let coming = self.coming.values_mut();
        coming.filter(move |coming| coming.seal.versions.contains(&number))
    }

    /// A held version lies elsewhere from now on.
    pub(super) fn moved(&mut self, number: u64, version: &Arc<Version>) {
        if let Some(held) = self.held.get_mut(&number) {
            held.version = Arc::clone(version);
        }
    }

    /// The highest place that a seal has had among the commits of seals.
    pub(super) fn last_order(&self) -> u64 {
        self.last_order
    }

    /// A seal is on media; returns the one of its name before it.
    pub(super) fn insert(&mut self, seal: Seal) -> Option<Seal> {
        self.last_order = self.last_order.max(seal.order);
        self.named.insert(seal.name.clone(), seal)
    }

    /// A seal is no more. What it holds is [released](Self::release) by the caller.
    pub(super) fn remove(&mut self, name: &str) -> Option<Seal> {
        self.named.remove(name)
    }

    /// Counts again from the ground up, with the puts that seals of their own batches hold: for
    /// each that has not ended, its key, its number and how many hold it.
    ///
    /// # Errors
    /// The first rule that does not hold.
    pub(super) fn audit(&self, puts: &FxHashMap<ReservationKey, (u64, u32)>) -> Result<(), String> {
        let mut counts: BTreeMap<u64, (u32, u32)> = BTreeMap::new();
        for number in self.named.values().flat_map(|seal| &seal.versions) {
            counts.entry(*number).or_default().0 += 1;
        }
        for number in self.coming.values().flat_map(|coming| &coming.seal.versions) {
            counts.entry(*number).or_default().1 += 1;
        }
        for (number, held) in &self.held {
            let (found, counted) = (counts.remove(number), (held.committed, held.coming));
            if found != Some(counted) {
                return Err(format!("version {number} has {found:?} seals and counts {counted:?}"));
            }
            if self.number_of(&held.version) != Some(*number) {
                return Err(format!("version {number} is not found by its tensor's id"));
            }
        }
        for (number, seals) in puts.values() {
            let found = counts.remove(number).unwrap_or_default();
            if found != (0, *seals) {
                return Err(format!("put {number} has {found:?} seals and counts {seals}"));
            }
        }
        // A put that failed is gone before its batch, which will not be committed.
        let of_batches = self.coming.values().flat_map(|coming| &coming.puts);
        for (_, number) in of_batches.filter(|(put, _)| !puts.contains_key(put)) {
            if !self.held.contains_key(number) {
                counts.remove(number);
            }
        }
        if let Some((number, seals)) = counts.pop_first() {
            return Err(format!("{seals:?} seals hold version {number}, which is not there"));
        }
        let listed: usize = self.of_id.values().map(SmallVec::len).sum();
        if listed == self.held.len() {
            Ok(())
        } else {
            Err(format!("{} versions are held, {listed} are found", self.held.len()))
        }
    }
}
