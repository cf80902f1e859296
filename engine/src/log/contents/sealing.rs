//! Making seals, reading what they hold, and giving them up.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::checkpoint::IndexShort;
use super::seals::{Coming, Left, SealEnd, SealUse};
use super::{Contents, EndedVersion};
use crate::layout::{BLOCK_BYTES, Change, HeldVersion, Run, Seal, TensorEntry, TensorId};
use crate::log::change_log::IndexFull;
use crate::log::space::{Durability, Full};
use crate::log::version::{OwnChange, Reservation, ReservationKey, Version};
use crate::units::ByteCount;

/// A seal that is being committed. Ends in exactly one of [`Contents::apply_seal`],
/// [`Contents::abandon_seal`] and [`Contents::leave_seal_in_doubt`].
#[derive(Debug)]
pub struct ComingSeal {
    key: u64,
}

/// Number by which seals of its own batch refer to an uncommitted put, and how many of them hold
/// it.
pub(super) type HeldPut = Option<(u64, u32)>;

/// Object that a seal is to hold.
enum Sealable {
    /// A version that can be read.
    Version(Arc<Version>),
    /// A put of the seal's own batch.
    Put(ReservationKey),
}

/// The reason why a seal cannot begin; nothing was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SealRefusal {
    /// The id has no tensor.
    Unknown(TensorId),
    /// The seal from which it is to be made does not exist.
    NoSeal(Box<str>),
    /// The tensor is named twice.
    Twice(TensorId),
    /// The index has no room for it, and may not grow.
    IndexFull(IndexFull),
    /// The index has to grow, and there is no space for it.
    Full(Full),
}

impl Contents {
    /// Begins a seal of what another one, if one is named, holds under these ids, or else what its
    /// `own` batch puts, or else stands under them now: from now on that stays, whatever happens to
    /// the tensors. Takes the room that the seal needs in the index.
    ///
    /// # Errors
    /// See [`SealRefusal`].
    pub fn begin_seal(
        &mut self,
        (name, sealed_at): (&str, u64),
        ids: &[TensorId],
        from: Option<&str>,
        own: &HashMap<TensorId, OwnChange>,
    ) -> Result<ComingSeal, SealRefusal> {
        let mut held = HashMap::new();
        if let Some(from) = from {
            let seal = self.seal(from).ok_or_else(|| SealRefusal::NoSeal(from.into()))?;
            held.extend(self.sealed(seal).map(|version| (version.entry.id, version)));
        }
        let mut seen = HashSet::with_capacity(ids.len());
        let mut versions = Vec::with_capacity(ids.len());
        for id in ids {
            let version = match (held.get(id), own.get(id)) {
                (None, Some(OwnChange::Put(put))) => {
                    self.pending.contains_key(&put.0).then_some(Sealable::Put(*put))
                }
                (None, Some(OwnChange::Delete)) => None,
                (held, _) => {
                    let version = held.copied().or_else(|| self.current(*id));
                    version.map(|version| Sealable::Version(Arc::clone(version)))
                }
            };
            let version = version.ok_or(SealRefusal::Unknown(*id))?;
            if !seen.insert(*id) {
                return Err(SealRefusal::Twice(*id));
            }
            versions.push(version);
        }
        let index_bytes = self.seal_bytes(name, &versions);
        if let Err(short) = self.reserve_index(index_bytes) {
            return Err(match short {
                IndexShort::Bound(full) => SealRefusal::IndexFull(full),
                IndexShort::Segments { needed, available } => {
                    SealRefusal::Full(self.segments_lacking(needed, available))
                }
            });
        }
        let key = self.next_serial();
        let mut puts = Vec::new();
        let mut number_of = |version: &Sealable| match version {
            Sealable::Version(version) => self.seals.hold(version),
            Sealable::Put(put) => {
                let number = self.hold_put(*put);
                puts.push((*put, number));
                number
            }
        };
        let versions: Vec<u64> = versions.iter().map(&mut number_of).collect();
        let seal = Seal { name: name.into(), sealed_at, order: 0, versions };
        self.seals.coming.insert(key, Coming { seal, puts, index_bytes, in_doubt: false });
        Ok(ComingSeal { key })
    }

    /// A seal holds what its own batch puts, once that is committed; returns its number.
    fn hold_put(&mut self, put: ReservationKey) -> u64 {
        let fresh = || (self.seals.next_number(), 0);
        match self.pending.get_mut(&put.0) {
            Some(pending) => {
                let (number, seals) = pending.held.get_or_insert_with(fresh);
                *seals += 1;
                *number
            }
            None => self.seals.next_number(),
        }
    }

    /// Returns the growth of the index by a seal of these versions, at most.
    fn seal_bytes(&self, name: &str, versions: &[Sealable]) -> u64 {
        let new = versions.iter().filter_map(|version| match version {
            Sealable::Put(put) => Some(&self.pending.get(&put.0)?.version.entry),
            Sealable::Version(version) => {
                let number = self.seals.number_of(version);
                let held = number.and_then(|it| self.seals.held(it));
                held.is_none_or(|held| !held.is_recorded()).then_some(&version.entry)
            }
        });
        let holds: u64 = new.map(|entry| self.room.bytes_of(entry)).sum();
        holds + Seal::bytes_for(versions.len(), name.len()) as u64
    }

    /// Returns the changes that a seal's commit records: the versions that the index does not have,
    /// but those that the same record has `named` already, then the seal. What its own batch `puts`
    /// is held by [`Self::held_put`]. `order` is its place among the commits of seals.
    pub fn seal_changes(
        &self,
        coming: &ComingSeal,
        named: &HashSet<u64>,
        order: u64,
    ) -> Vec<Change> {
        let Some(Coming { seal, .. }) = self.seals.coming.get(&coming.key) else {
            return Vec::new();
        };
        let new = seal.versions.iter().filter_map(|&number| {
            let held = self.seals.held(number)?;
            let is_new = !held.is_recorded() && !named.contains(&number);
            is_new.then(|| HeldVersion { number, entry: held.version.entry.clone() })
        });
        let seal = Seal { order, ..seal.clone() };
        new.map(Change::Hold).chain([Change::Seal(seal)]).collect()
    }

    /// The place of the last seal that was committed, among all of them.
    pub fn last_seal_order(&self) -> u64 {
        self.seals.last_order()
    }

    /// Returns the change that a put's commit records for the seals of its batch that hold it.
    pub fn held_put(&self, put: &Reservation, entry: &TensorEntry) -> Option<Change> {
        let (number, _) = self.pending.get(&put.serial)?.held.filter(|(_, seals)| *seals > 0)?;
        Some(Change::Hold(HeldVersion { number, entry: entry.clone() }))
    }

    /// A put is on media that stands under its id for nobody, because its batch has changed it
    /// again: seals of that batch hold it.
    pub fn apply_apart(&mut self, put: &Reservation, checksums: &[u32]) {
        let Some(EndedVersion { version, held, .. }) = self.end(put) else { return };
        let Some((number, seals)) = held.filter(|(_, seals)| *seals > 0) else {
            self.space.abandon(&version.entry.runs);
            return self.spares.keep(version);
        };
        let serial = self.next_serial();
        if let Some(version) = self.complete(version, serial, checksums) {
            self.seals.adopt_coming(number, version, seals);
        }
    }

    /// A put is on media and stands under its id: seals of its batch may hold it.
    pub(super) fn adopt_held_put(&mut self, id: TensorId, held: HeldPut) {
        let Some((number, seals)) = held.filter(|(_, seals)| *seals > 0) else { return };
        if let Some(version) = self.current.get(id) {
            self.seals.adopt_coming(number, Arc::clone(version), seals);
        }
    }

    /// The runs of a seal's versions that no commit has had flushed.
    pub fn unflushed_runs(&self, coming: &ComingSeal) -> impl Iterator<Item = &[Run]> {
        let seal = self.seals.coming.get(&coming.key).map(|coming| &coming.seal);
        let versions = seal.into_iter().flat_map(|seal| &seal.versions);
        let held = versions.filter_map(|number| self.seals.held(*number));
        let held =
            held.filter(|it| !it.is_recorded() && it.version.durability == Durability::Scratch);
        held.map(|held| &*held.version.entry.runs)
    }

    /// A seal is on media: it can be found, and takes the place of an older one of its name.
    /// Returns how many tensors it holds.
    pub fn apply_seal(&mut self, coming: &ComingSeal) -> usize {
        let Some(Coming { mut seal, index_bytes, .. }) = self.seals.coming.remove(&coming.key)
        else {
            return 0;
        };
        // Commits are applied in the order in which they are recorded.
        seal.order = self.seals.last_order() + 1;
        self.room.end(index_bytes);
        for number in &seal.versions {
            if let Some(entry) = self.seals.commit(*number) {
                self.room.insert(entry);
            }
        }
        self.room.insert_bytes(seal.encoded_bytes() as u64);
        let tensors = seal.versions.len();
        if let Some(before) = self.seals.insert(seal) {
            self.end_seal(&before);
        }
        tensors
    }

    /// A seal was given up: what it alone held is free.
    pub fn abandon_seal(&mut self, coming: &ComingSeal) {
        if self.seals.coming.get(&coming.key).is_none_or(|coming| coming.in_doubt) {
            return;
        }
        if let Some(Coming { seal, puts, index_bytes, .. }) = self.seals.coming.remove(&coming.key)
        {
            self.room.end(index_bytes);
            for (put, _) in puts {
                let pending = self.pending.get_mut(&put.0);
                if let Some((_, seals)) = pending.and_then(|it| it.held.as_mut()) {
                    *seals -= 1;
                }
            }
            self.release_held(&seal, SealEnd::Abandoned);
        }
    }

    /// The commit of a seal failed half way: what it holds stays until the pool is opened again.
    pub fn leave_seal_in_doubt(&mut self, coming: &ComingSeal) {
        if let Some(coming) = self.seals.coming.get_mut(&coming.key) {
            coming.in_doubt = true;
        }
    }

    /// The end of a seal is on media.
    pub fn drop_seal(&mut self, name: &str) -> bool {
        let seal = self.seals.remove(name);
        if let Some(seal) = &seal {
            self.end_seal(seal);
        }
        seal.is_some()
    }

    fn end_seal(&mut self, seal: &Seal) {
        self.room.remove_bytes(seal.encoded_bytes() as u64);
        self.release_held(seal, SealEnd::Dropped);
    }

    fn release_held(&mut self, seal: &Seal, end: SealEnd) {
        for &number in &seal.versions {
            let entry_bytes = self.held(number).map_or(0, |it| self.room.bytes_of(&it.entry));
            let left = self.seals.release(number, end);
            if end == SealEnd::Dropped && !matches!(left, Left::Same) {
                self.room.remove_bytes(entry_bytes);
            }
            match left {
                Left::Same => (),
                // A seal that is being committed now has to bring it.
                Left::Unrecorded => self.reserve_for_coming(number, entry_bytes),
                Left::Nothing(held) if self.is_standing(&held.version) => (),
                Left::Nothing(held) => self.release_unless_held(held.version),
            }
        }
    }

    /// Reserves growth of the index for seals that are being committed.
    pub(super) fn reserve_for_coming(&mut self, number: u64, bytes: u64) {
        for coming in self.seals.coming_with(number) {
            coming.index_bytes += bytes;
            self.room.begin(bytes);
        }
    }

    /// Returns whether this version stands under its id.
    pub fn is_standing(&self, version: &Version) -> bool {
        self.current(version.entry.id).is_some_and(|it| it.serial == version.serial)
    }

    /// The seals, in the order of their names.
    pub fn seals(&self) -> impl Iterator<Item = &Seal> {
        self.seals.all()
    }

    /// The seal of this name.
    pub fn seal(&self, name: &str) -> Option<&Seal> {
        self.seals.named(name)
    }

    /// Iterates over the versions of a seal, in the order in which it was given.
    pub fn sealed<'a>(&'a self, seal: &'a Seal) -> impl Iterator<Item = &'a Arc<Version>> {
        let held = seal.versions.iter().filter_map(|number| self.seals.held(*number));
        held.map(|held| &held.version)
    }

    /// Returns the version that a seal holds under an id.
    pub fn sealed_version(&self, seal: &Seal, id: TensorId) -> Option<&Arc<Version>> {
        let mut held = self.seals.versions_of(id);
        held.find(|(number, _)| seal.versions.contains(number)).map(|(_, version)| version)
    }

    /// Space that a seal alone holds: what would be free without it.
    pub fn bytes_of_seal_alone(&self, seal: &Seal) -> ByteCount {
        let held = seal.versions.iter().filter_map(|number| self.seals.held(*number));
        let alone = held.filter(|held| held.seals() == 1 && !self.is_standing(&held.version));
        blocks(alone.map(|held| &held.version.entry))
    }

    /// The numbers of held versions that stand under no id, for a scrub.
    pub fn held_alone(&self) -> impl Iterator<Item = u64> {
        let all = self.seals.all_held();
        all.filter(|(_, held)| !self.is_standing(&held.version)).map(|(number, _)| number)
    }

    /// The version that has this number.
    pub fn held(&self, number: u64) -> Option<&Arc<Version>> {
        self.seals.held(number).map(|held| &held.version)
    }

    /// Returns the number by which seals refer to a version, if one holds it.
    pub fn number_of(&self, version: &Version) -> Option<u64> {
        self.seals.number_of(version)
    }

    /// The names of the seals that hold the version of this number.
    pub fn seals_with(&self, number: u64) -> Vec<String> {
        let with = self.seals.all().filter(|seal| seal.versions.contains(&number));
        with.map(|seal| seal.name.to_string()).collect()
    }

    /// Returns the use of space by seals.
    pub fn seal_use(&self) -> SealUse {
        SealUse {
            seals: self.seals.all().count(),
            versions: self.seals.all_held().count(),
            alone: self.bytes_held_alone(),
        }
    }

    pub(super) fn bytes_held_alone(&self) -> ByteCount {
        let all = self.seals.all_held().map(|(_, held)| &held.version);
        blocks(all.filter(|version| !self.is_standing(version)).map(|version| &version.entry))
    }
}

fn blocks<'a>(entries: impl Iterator<Item = &'a TensorEntry>) -> ByteCount {
    let runs = entries.flat_map(|entry| &entry.runs);
    ByteCount(runs.map(|run| u64::from(run.blocks) * BLOCK_BYTES).sum())
}
