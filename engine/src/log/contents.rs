//! Contents of a share: the readable version of each tensor, readers of old versions, writes in
//! progress, and the space of all of them.
//!
//! Rules: a version is replaced only by one that is complete; a version that is being read keeps
//! its space until the last read has ended; one that a seal holds keeps it until the last such seal
//! is gone; a durable tensor appears and disappears only by [`Contents::apply`], which is called
//! once the commit is on media.

mod after;
mod audit;
mod checkpoint;
mod index;
mod readers;
mod relocate;
mod reverse_map;
mod sealing;
mod seals;
mod spares;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use rustc_hash::FxHashMap;
use smallvec::SmallVec;

pub use relocate::{Reclamation, Relocation, RunGroup};
use sealing::HeldPut;
pub use sealing::{ComingSeal, SealRefusal};
pub use seals::SealUse;

use index::Index;
use reverse_map::ReverseMap;
use seals::Seals;
use spares::SpareVersions;

use super::index_room::IndexRoom;
use super::recovered::RecoveredIndex;
use super::space::{AllocationReach, Durability, Full, Space, SpaceUse};
use super::stripe::StripeMap;
use super::version::{BeginError, PutRequest, RemoveError, Reservation, Version};
use crate::layout::{HeldVersion, Run, Runs, TensorEntry, TensorId, TensorKey};

/// The writes to one tensor that have begun and not ended.
#[derive(Debug, Default)]
struct Writers {
    scratch: u32,
    durable: u32,
    /// Serial of the last that began.
    last_begun: u64,
    /// Serial of the last deletion since the first of them began: an older write does not appear
    /// any more.
    last_deletion: u64,
    /// The name of durable writes that are not committed yet.
    claimed_name: Option<Box<str>>,
}

/// A write on its way.
#[derive(Debug)]
struct Pending {
    /// Version that the write makes, without its checksums; nobody else holds it yet.
    version: Arc<Version>,
    /// Size of its entry in the index, at most.
    index_bytes: u64,
    in_doubt: bool,
    held: HeldPut,
}

/// A write that was taken off the list.
struct EndedVersion {
    version: Arc<Version>,
    /// Serial of the tensor's last deletion since the write began, or before.
    last_deletion: u64,
    held: HeldPut,
}

/// The contents of a share.
#[derive(Debug)]
pub struct Contents {
    space: Space,
    room: IndexRoom,
    current: Index,
    /// Writers of the tensors that are being written.
    writers: FxHashMap<TensorId, Writers>,
    pending: FxHashMap<u64, Pending>,
    /// Places, by the serial of their version, that only its readers still know.
    retired: FxHashMap<u64, SmallVec<[Retired; 1]>>,
    /// Map from places to tensors.
    reverse_map: ReverseMap,
    /// Destinations of reclamation.
    moving: HashMap<u64, Moving>,
    seals: Seals,
    last_serial: u64,
    /// Versions for reuse.
    spares: SpareVersions,
}

/// Runs in which a version cannot be found any more, but may still be read, by those who began
/// before it was moved from there, or went. They stay while anybody is listed here, or in what was
/// retired before.
#[derive(Debug)]
struct Retired {
    /// The version as it was, while it is read.
    read: Option<Arc<Version>>,
    runs: Runs,
    durability: Durability,
}

#[derive(Debug)]
struct Moving {
    runs: Runs,
    durability: Durability,
    /// Growth of the tensor's entry in the index, at most.
    index_bytes: u64,
}

impl Contents {
    /// Builds the contents from what recovery found, in a share with this space and this room for
    /// its index.
    pub fn recovered(mut space: Space, mut room: IndexRoom, index: RecoveredIndex) -> Self {
        let RecoveredIndex { tensors, held, seals: named, runs } = index;
        let mut current = Index::with_capacity(tensors.len());
        let mut last_serial = 0;
        let mut version_of = |entry: TensorEntry| {
            last_serial += 1;
            Arc::new(Version::new(entry, Durability::Durable, last_serial))
        };
        for entry in tensors {
            space.adopt(&entry.runs, entry.class);
            room.insert(&entry);
            current.insert_new(version_of(entry));
        }
        let mut seals = Seals::default();
        for HeldVersion { number, entry } in held {
            room.insert(&entry);
            let stands = current.get(entry.id).filter(|it| entry.is_at(&it.entry));
            let version = if let Some(version) = stands {
                Arc::clone(version)
            } else {
                space.adopt(&entry.runs, entry.class);
                version_of(entry)
            };
            seals.adopt(number, version);
        }
        for seal in named {
            room.insert_bytes(seal.encoded_bytes() as u64);
            seals.name(seal);
        }
        room.all_segments().for_each(|segment| space.adopt_for_index(segment));
        space.resume();
        let mut reverse_map = ReverseMap::default();
        for (run, id) in runs {
            reverse_map.insert(&run, id);
        }
        Self {
            space,
            room,
            current,
            writers: FxHashMap::default(),
            pending: FxHashMap::default(),
            retired: FxHashMap::default(),
            reverse_map,
            moving: HashMap::new(),
            seals,
            last_serial,
            spares: SpareVersions::default(),
        }
    }

    /// Completes a key for errors: what its caller calls it, or the name by which it was put.
    pub fn called(&self, key: TensorKey) -> TensorKey {
        match self.current(key.id) {
            Some(version) => key.or(&version.entry),
            None => key,
        }
    }

    /// Reserves space for a write.
    ///
    /// # Errors
    /// There is no space, or the id is taken by something that this write may not replace.
    pub fn begin(&mut self, request: PutRequest) -> Result<Reservation, BeginError> {
        self.begin_within(request, AllocationReach::Sisters)
    }

    /// Reserves space for a write where nothing of another lane lies.
    ///
    /// # Errors
    /// As [`Self::begin`], which may still find space.
    pub fn begin_apart(&mut self, request: PutRequest) -> Result<Reservation, BeginError> {
        self.begin_within(request, AllocationReach::Lane)
    }

    fn begin_within(
        &mut self,
        request: PutRequest,
        reach: AllocationReach,
    ) -> Result<Reservation, BeginError> {
        self.check(&request)?;
        let serial = self.next_serial();
        let (space, PutRequest { length, lane, .. }) = (&mut self.space, &request);
        let (length, lane) = (*length, *lane);
        let fill = |runs: &mut Runs| space.allocate(lane, length, reach, runs);
        let version = match self.spares.version(serial, &request, fill) {
            Ok(version) => version,
            Err(refused) => {
                let space = self.space_use();
                return Err(BeginError::Full(Full { space, ..refused }));
            }
        };
        let index_bytes = match lane.durability {
            Durability::Scratch => 0,
            Durability::Durable => self.room.bytes_of(&version.entry),
        };
        if let Err(missing) = self.reserve_index(index_bytes) {
            self.space.abandon(&version.entry.runs);
            self.spares.keep(version);
            return Err(self.index_refusal(missing));
        }
        let writers = self.writers.entry(request.id).or_default();
        writers.last_begun = serial;
        match lane.durability {
            Durability::Scratch => writers.scratch += 1,
            Durability::Durable => {
                writers.durable += 1;
                writers.claimed_name = writers.claimed_name.take().or(request.name);
            }
        }
        self.pending.insert(serial, Pending { version, index_bytes, in_doubt: false, held: None });
        Ok(Reservation { serial })
    }

    /// Returns the runs of a write.
    pub fn runs(&self, reservation: &Reservation) -> &[Run] {
        let pending = self.pending.get(&reservation.serial);
        pending.map_or(&[], |pending| &pending.version.entry.runs)
    }

    /// Checks that this write may go on beside what stands under its id and what is being written
    /// to it.
    fn check(&self, request: &PutRequest) -> Result<(), BeginError> {
        let current = self.current(request.id);
        let durable = current.filter(|version| version.durability == Durability::Durable);
        let writers = self.writers.get(&request.id);
        match request.lane.durability {
            Durability::Scratch
                if durable.is_some() || writers.is_some_and(|writers| writers.durable > 0) =>
            {
                Err(BeginError::IsDurable)
            }
            Durability::Durable if writers.is_some_and(|writers| writers.scratch > 0) => {
                Err(BeginError::ScratchInFlight)
            }
            Durability::Scratch => Ok(()),
            Durability::Durable => {
                let stored = durable.and_then(|version| version.entry.name.as_ref());
                let claimed = || writers?.claimed_name.as_ref();
                match (stored.or_else(claimed), &request.name) {
                    (Some(other), Some(name)) if other != name => {
                        Err(BeginError::NameCollision(other.clone()))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// A scratch write is complete: it can be read from now on, unless a newer one overtook it.
    pub fn install(&mut self, reservation: &Reservation, checksums: &[u32]) {
        let serial = reservation.serial;
        let Some(EndedVersion { version, last_deletion, .. }) = self.end(reservation) else {
            return;
        };
        let newer = self.current(version.entry.id).is_some_and(|it| it.serial > serial);
        if newer || last_deletion > serial {
            self.space.abandon(&version.entry.runs);
            self.spares.keep(version);
        } else {
            self.appear(version, serial, checksums);
        }
    }

    /// A write failed, was cancelled or belongs to a batch that nobody commits: its space comes
    /// back.
    pub fn abandon(&mut self, reservation: &Reservation) {
        if let Some(EndedVersion { version, .. }) = self.end(reservation) {
            self.space.abandon(&version.entry.runs);
            self.spares.keep(version);
        }
    }

    /// A commit failed half way, so that it may or may not be there after the next open: the space
    /// of its writes must not be used until then.
    pub fn leave_in_doubt(&mut self, reservation: &Reservation) {
        if let Some(pending) = self.pending.get_mut(&reservation.serial) {
            pending.in_doubt = true;
        }
    }

    /// The entry that a commit of this durable write records.
    pub fn entry(&self, reservation: &Reservation, checksums: &[u32]) -> Option<TensorEntry> {
        let entry = &self.pending.get(&reservation.serial)?.version.entry;
        Some(TensorEntry { checksums: checksums.into(), ..entry.clone() })
    }

    /// A commit is on media: its tensors appear, the ones they replace and the deleted ones
    /// disappear.
    pub fn apply(&mut self, puts: Vec<(Reservation, Vec<u32>)>, deletes: &[TensorId]) {
        for id in deletes {
            self.disappear(*id);
        }
        for (reservation, checksums) in puts {
            let Some(EndedVersion { version, held, .. }) = self.end(&reservation) else { continue };
            let (id, serial) = (version.entry.id, self.next_serial());
            self.appear(version, serial, &checksums);
            self.adopt_held_put(id, held);
        }
    }

    /// Removes a scratch tensor, and keeps writes to it that are in flight from appearing.
    ///
    /// # Errors
    /// There is none, or it is durable.
    pub fn remove_scratch(&mut self, id: TensorId) -> Result<(), RemoveError> {
        // A write that began after the last deletion may still bring the tensor.
        let is_coming =
            |writers: &Writers| writers.scratch > 0 && writers.last_begun > writers.last_deletion;
        match self.current(id) {
            Some(version) if version.durability == Durability::Durable => {
                return Err(RemoveError::IsDurable);
            }
            None if !self.writers.get(&id).is_some_and(is_coming) => {
                return Err(RemoveError::Unknown);
            }
            _ => (),
        }
        self.disappear(id);
        Ok(())
    }

    /// The version that can be read now.
    pub fn current(&self, id: TensorId) -> Option<&Arc<Version>> {
        self.current.get(id)
    }

    /// Returns the use of the space.
    pub fn space_use(&self) -> SpaceUse {
        SpaceUse { sealed: self.bytes_held_alone(), ..self.space.space_use() }
    }

    /// Durable versions, in no order.
    pub fn durable(&self) -> impl Iterator<Item = &Arc<Version>> {
        self.current.iter().filter(|version| version.durability == Durability::Durable)
    }

    /// Versions that are to be kept and have a part on a missing device alone: the durable ones
    /// that stand, and those that seals hold besides.
    pub fn lost(&self, stripes: &StripeMap) -> impl Iterator<Item = &Arc<Version>> {
        let held = self.held_alone().filter_map(|number| self.held(number));
        let (is_any, stripes) = (stripes.is_degraded(), *stripes);
        let kept = self.durable().chain(held).take_while(move |_| is_any);
        kept.filter(move |version| stripes.are_lost(&version.entry.runs))
    }

    /// Versions that are to be kept, durable or held by seals, and were there before this age.
    pub fn kept_before(&self, age: u64) -> impl Iterator<Item = &Arc<Version>> {
        let held = self.held_alone().filter_map(|number| self.held(number));
        self.durable().chain(held).filter(move |version| version.serial < age)
    }

    /// Returns whether anything that the index on the media has, or will have, lies in two copies.
    pub fn has_mirrors(&self) -> bool {
        self.space.has_mirrors()
    }

    /// Ids of everything that can be read, in no order.
    pub fn ids(&self) -> impl Iterator<Item = TensorId> {
        self.current.iter().map(|version| version.entry.id)
    }

    /// Takes a write off the list, unless a commit in doubt holds it.
    fn end(&mut self, reservation: &Reservation) -> Option<EndedVersion> {
        if self.pending.get(&reservation.serial)?.in_doubt {
            return None;
        }
        let Pending { version, index_bytes, held, .. } =
            self.pending.remove(&reservation.serial)?;
        self.room.end(index_bytes);
        let Entry::Occupied(mut entry) = self.writers.entry(version.entry.id) else {
            debug_assert!(false, "a write to {} that never began", version.entry.id);
            return None;
        };
        let writers = entry.get_mut();
        match version.durability {
            Durability::Scratch => writers.scratch -= 1,
            Durability::Durable => writers.durable -= 1,
        }
        if writers.durable == 0 {
            writers.claimed_name = None;
        }
        let last_deletion = writers.last_deletion;
        if writers.scratch == 0 && writers.durable == 0 {
            entry.remove();
        }
        Some(EndedVersion { version, last_deletion, held })
    }

    /// A written tensor can be read from now on, in the place of an older version.
    fn appear(&mut self, version: Arc<Version>, serial: u64, checksums: &[u32]) {
        let Some(version) = self.complete(version, serial, checksums) else { return };
        if version.durability == Durability::Durable {
            self.room.insert(&version.entry);
        }
        if let Some(old) = self.current.insert(version) {
            self.retire(old);
        }
    }

    /// A written tensor, which is to be found in its place from now on.
    fn complete(
        &mut self,
        mut version: Arc<Version>,
        serial: u64,
        checksums: &[u32],
    ) -> Option<Arc<Version>> {
        let Some(whole) = Arc::get_mut(&mut version) else {
            debug_assert!(false, "somebody holds a version that nobody could find");
            return None;
        };
        whole.serial = serial;
        whole.entry.checksums.extend_from_slice(checksums);
        self.occupy(version.entry.id, &version.entry.runs);
        Some(version)
    }

    /// A tensor is found no more, and no write that has begun brings it back.
    fn disappear(&mut self, id: TensorId) {
        let serial = self.next_serial();
        if let Some(writers) = self.writers.get_mut(&id) {
            writers.last_deletion = serial;
        }
        if let Some(old) = self.current.remove(id) {
            self.retire(old);
        }
    }

    /// A tensor can be read in these reserved runs from now on.
    fn occupy(&mut self, id: TensorId, runs: &[Run]) {
        self.space.install(runs);
        for run in runs {
            self.reverse_map.insert(run, id);
        }
    }

    /// Retires a version that is no longer current under its id.
    fn retire(&mut self, version: Arc<Version>) {
        if version.durability == Durability::Durable {
            self.room.remove(&version.entry);
        }
        self.release_unless_held(version);
    }

    /// Releases a version that cannot be found any more, unless it is held by a seal.
    fn release_unless_held(&mut self, version: Arc<Version>) {
        if self.seals.number_of(&version).is_none() {
            self.release_blocks(&version, &version.entry.runs);
            self.spares.keep(version);
        }
    }

    /// Releases runs of a version that are found no more; they stay while somebody reads the
    /// version.
    fn release_blocks(&mut self, version: &Arc<Version>, runs: &[Run]) {
        for run in runs {
            self.reverse_map.remove(run);
        }
        let read = (version.readers().count() > 0).then(|| Arc::clone(version));
        // It may have been moved while it was read, and nobody reads it where it is now.
        let is_read = read.is_some()
            || (!self.retired.is_empty() && self.retired.contains_key(&version.serial));
        if !is_read {
            return self.space.remove(runs);
        }
        self.space.retire(runs);
        let (runs, durability) = (runs.into(), version.durability);
        self.retired.entry(version.serial).or_default().push(Retired { read, runs, durability });
    }

    /// Returns the age of what comes next: all versions of now are older.
    pub fn age(&self) -> u64 {
        self.last_serial + 1
    }

    fn next_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }
}

#[cfg(test)]
#[path = "contents_tests.rs"]
mod tests;
