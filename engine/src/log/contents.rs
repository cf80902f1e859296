//! What a share contains: which version of which tensor can be read, who is reading an old one, which
//! writes are on their way, and the space of all of them.
//!
//! Rules: a version is replaced only by one that is complete; a version that is being read keeps its
//! space until the last read has ended; a durable tensor appears and disappears only by [`Contents::apply`],
//! which is called once the commit is on media.

mod audit;
mod readers;
mod relocate;

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

pub use relocate::{Reclamation, Relocation, Stretch};

use super::space::{Durability, Full, Lane, Space, SpaceUse};
use super::version::{BeginError, RemoveError, Request, Reservation, Version};
use crate::layout::{Change, Run, TensorEntry, TensorId};

#[derive(Debug, Default)]
struct Slot {
    current: Option<Arc<Version>>,
    /// Serial of the newest version or deletion: an older write that completes later is not installed.
    newest: u64,
    /// Serial of the last write that began.
    last_begun: u64,
    scratch_writes: u32,
    durable_writes: u32,
    /// The name of durable writes that are not committed yet.
    claimed_name: Option<Box<str>>,
}

impl Slot {
    fn is_unused(&self) -> bool {
        self.current.is_none() && self.scratch_writes == 0 && self.durable_writes == 0
    }
}

#[derive(Debug)]
struct Pending {
    request: Request,
    runs: Arc<[Run]>,
    in_doubt: bool,
}

/// The contents of a share.
#[derive(Debug)]
pub struct Contents {
    space: Space,
    slots: HashMap<TensorId, Slot>,
    pending: HashMap<u64, Pending>,
    /// How many reads each version being read has, by its serial and how often it had been moved.
    readers: BTreeMap<(u64, u32), u32>,
    /// Places, by the serial of their version, that only its readers still know.
    retired: HashMap<u64, Vec<Retired>>,
    /// Which tensor lies where: by segment and first block of a run.
    places: BTreeMap<(u32, u32), TensorId>,
    /// Where reclamation is copying to.
    moving: HashMap<u64, Moving>,
    last_serial: u64,
}

/// Runs of a version that its readers may still read.
#[derive(Debug)]
struct Retired {
    /// Readers that began after this many moves do not know them.
    moves: u32,
    runs: Box<[Run]>,
    durability: Durability,
}

#[derive(Debug)]
struct Moving {
    runs: Vec<Run>,
    durability: Durability,
}

impl Contents {
    /// What recovery found: the durable tensors, in a share with this space.
    pub fn recovered(mut space: Space, tensors: Vec<TensorEntry>) -> Self {
        let mut slots = HashMap::with_capacity(tensors.len());
        let mut last_serial = 0;
        let mut places = BTreeMap::new();
        for entry in tensors {
            space.adopt(&entry.runs, entry.class);
            last_serial += 1;
            let id = entry.id;
            places.extend(entry.runs.iter().map(|run| ((run.segment, run.block), id)));
            let (serial, moves) = (last_serial, 0);
            let version = Version { entry, durability: Durability::Durable, serial, moves };
            let slot =
                Slot { current: Some(Arc::new(version)), newest: last_serial, ..Slot::default() };
            slots.insert(id, slot);
        }
        space.resume();
        Self {
            space,
            slots,
            pending: HashMap::new(),
            readers: BTreeMap::new(),
            retired: HashMap::new(),
            places,
            moving: HashMap::new(),
            last_serial,
        }
    }

    /// Reserves space for a write.
    ///
    /// # Errors
    /// There is no space, or the id is taken by something that this write may not replace.
    pub fn begin(&mut self, request: Request) -> Result<Reservation, BeginError> {
        self.begin_with(request, Space::allocate)
    }

    /// Reserves space for a write where nothing of another lane lies.
    ///
    /// # Errors
    /// As [`Self::begin`], which may still find space.
    pub fn begin_apart(&mut self, request: Request) -> Result<Reservation, BeginError> {
        self.begin_with(request, Space::allocate_apart)
    }

    fn begin_with(
        &mut self,
        request: Request,
        allocate: impl Fn(&mut Space, Lane, u64) -> Result<Vec<Run>, Full>,
    ) -> Result<Reservation, BeginError> {
        if let Some(slot) = self.slots.get(&request.id) {
            Self::check_slot(slot, &request)?;
        }
        let allocated = allocate(&mut self.space, request.lane, request.length);
        let runs: Arc<[Run]> = allocated.map_err(BeginError::Full)?.into();
        let serial = self.next_serial();
        let slot = self.slots.entry(request.id).or_default();
        slot.last_begun = serial;
        match request.lane.durability {
            Durability::Scratch => slot.scratch_writes += 1,
            Durability::Durable => {
                slot.durable_writes += 1;
                if slot.claimed_name.is_none() {
                    slot.claimed_name.clone_from(&request.name);
                }
            }
        }
        let pending = Pending { request, runs: Arc::clone(&runs), in_doubt: false };
        self.pending.insert(serial, pending);
        Ok(Reservation { serial, runs })
    }

    fn check_slot(slot: &Slot, request: &Request) -> Result<(), BeginError> {
        let durable =
            slot.current.as_ref().filter(|version| version.durability == Durability::Durable);
        match request.lane.durability {
            Durability::Scratch if durable.is_some() || slot.durable_writes > 0 => {
                Err(BeginError::IsDurable)
            }
            Durability::Durable if slot.scratch_writes > 0 => Err(BeginError::ScratchInFlight),
            Durability::Scratch => Ok(()),
            Durability::Durable => {
                let stored = durable.and_then(|version| version.entry.name.as_ref());
                match (stored.or(slot.claimed_name.as_ref()), &request.name) {
                    (Some(other), Some(name)) if other != name => {
                        Err(BeginError::NameCollision(other.clone()))
                    }
                    _ => Ok(()),
                }
            }
        }
    }

    /// A scratch write is complete: it can be read from now on, unless a newer one overtook it.
    pub fn install(&mut self, reservation: &Reservation, checksums: Vec<u32>) {
        let Some(pending) = self.end(reservation) else { return };
        let serial = reservation.serial;
        let slot = self.slots.entry(pending.request.id).or_default();
        if slot.newest > serial {
            self.space.abandon(&pending.runs);
            self.forget_if_unused(pending.request.id);
            return;
        }
        slot.newest = serial;
        let version = Arc::new(version(pending, serial, checksums));
        let old = slot.current.replace(Arc::clone(&version));
        self.occupy(version.entry.id, &version.entry.runs);
        if let Some(old) = old {
            self.retire(&old);
        }
    }

    /// A write failed, was cancelled or belongs to a batch that nobody commits: its space comes back.
    pub fn abandon(&mut self, reservation: &Reservation) {
        if let Some(pending) = self.end(reservation) {
            self.space.abandon(&pending.runs);
            self.forget_if_unused(pending.request.id);
        }
    }

    /// A commit failed half way, so that it may or may not be there after the next open: the space of its
    /// writes must not be used until then.
    pub fn leave_in_doubt(&mut self, reservation: &Reservation) {
        if let Some(pending) = self.pending.get_mut(&reservation.serial) {
            pending.in_doubt = true;
        }
    }

    /// The entry that a commit of this durable write records.
    pub fn entry(&self, reservation: &Reservation, checksums: &[u32]) -> Option<TensorEntry> {
        let pending = self.pending.get(&reservation.serial)?;
        Some(TensorEntry {
            id: pending.request.id,
            name: pending.request.name.clone(),
            length: pending.request.length,
            class: pending.request.lane.class,
            runs: pending.runs.iter().copied().collect(),
            checksums: checksums.into(),
        })
    }

    /// Every durable tensor as it will be once `changes` are applied, in the order of ids.
    pub fn durable_after<'a>(&'a self, changes: &'a [Change]) -> Vec<&'a TensorEntry> {
        // The last change of an id decides.
        let mut last: HashMap<TensorId, Option<&TensorEntry>> = HashMap::new();
        for change in changes {
            match change {
                Change::Put(entry) => last.insert(entry.id, Some(entry)),
                Change::Delete(id) => last.insert(*id, None),
            };
        }
        let kept = self.durable().map(|version| &version.entry);
        let kept = kept.filter(|entry| !last.contains_key(&entry.id));
        // With the ids beside them, since sorting would look up each many times.
        let mut tensors: Vec<(TensorId, &TensorEntry)> =
            kept.chain(last.values().flatten().copied()).map(|entry| (entry.id, entry)).collect();
        tensors.sort_unstable_by_key(|(id, _)| *id);
        tensors.into_iter().map(|(_, entry)| entry).collect()
    }

    /// A commit is on media: its tensors appear, the ones they replace and the deleted ones disappear.
    pub fn apply(&mut self, puts: Vec<(Reservation, Vec<u32>)>, deletes: &[TensorId]) {
        for id in deletes {
            let serial = self.next_serial();
            let Some(slot) = self.slots.get_mut(id) else { continue };
            slot.newest = serial;
            if let Some(old) = slot.current.take() {
                self.retire(&old);
            }
            self.forget_if_unused(*id);
        }
        for (reservation, checksums) in puts {
            let Some(pending) = self.end(&reservation) else { continue };
            let serial = self.next_serial();
            let id = pending.request.id;
            let version = Arc::new(version(pending, serial, checksums));
            self.occupy(id, &version.entry.runs);
            let slot = self.slots.entry(id).or_default();
            slot.newest = serial;
            if let Some(old) = slot.current.replace(version) {
                self.retire(&old);
            }
        }
    }

    /// Removes a scratch tensor, and keeps writes to it that are in flight from appearing.
    ///
    /// # Errors
    /// There is none, or it is durable.
    pub fn remove_scratch(&mut self, id: TensorId) -> Result<(), RemoveError> {
        let serial = self.next_serial();
        let slot = self.slots.get_mut(&id).ok_or(RemoveError::Unknown)?;
        match &slot.current {
            Some(version) if version.durability == Durability::Durable => {
                return Err(RemoveError::IsDurable);
            }
            // A write that began after the last deletion may still bring the tensor.
            None if slot.scratch_writes == 0 || slot.last_begun < slot.newest => {
                return Err(RemoveError::Unknown);
            }
            _ => (),
        }
        slot.newest = serial;
        if let Some(old) = slot.current.take() {
            self.retire(&old);
        }
        self.forget_if_unused(id);
        Ok(())
    }

    /// The version that can be read now.
    pub fn current(&self, id: TensorId) -> Option<&Arc<Version>> {
        self.slots.get(&id)?.current.as_ref()
    }

    /// Whether a durable tensor stands, or is about to stand, under this id.
    pub fn is_durable(&self, id: TensorId) -> bool {
        self.slots.get(&id).is_some_and(|slot| {
            slot.durable_writes > 0
                || slot.current.as_ref().is_some_and(|it| it.durability == Durability::Durable)
        })
    }

    /// How the space is used.
    pub fn space_use(&self) -> SpaceUse {
        self.space.space_use()
    }

    /// Durable versions, in no order.
    pub fn durable(&self) -> impl Iterator<Item = &Arc<Version>> {
        let current = self.slots.values().filter_map(|slot| slot.current.as_ref());
        current.filter(|version| version.durability == Durability::Durable)
    }

    /// Ids of everything that can be read, in no order.
    pub fn ids(&self) -> impl Iterator<Item = TensorId> {
        self.slots.iter().filter(|(_, slot)| slot.current.is_some()).map(|(id, _)| *id)
    }

    /// Takes a write off the list, unless a commit in doubt holds it.
    fn end(&mut self, reservation: &Reservation) -> Option<Pending> {
        if self.pending.get(&reservation.serial)?.in_doubt {
            return None;
        }
        let pending = self.pending.remove(&reservation.serial)?;
        if let Some(slot) = self.slots.get_mut(&pending.request.id) {
            match pending.request.lane.durability {
                Durability::Scratch => slot.scratch_writes -= 1,
                Durability::Durable => slot.durable_writes -= 1,
            }
            if slot.durable_writes == 0 {
                slot.claimed_name = None;
            }
        }
        Some(pending)
    }

    /// A tensor can be read in these reserved runs from now on.
    fn occupy(&mut self, id: TensorId, runs: &[Run]) {
        self.space.install(runs);
        self.places.extend(runs.iter().map(|run| ((run.segment, run.block), id)));
    }

    /// Nobody can find this version any more.
    fn retire(&mut self, version: &Version) {
        self.vacate(version, version.entry.runs.clone());
    }

    /// These runs of a version are found no more; they stay while somebody reads the version.
    fn vacate(&mut self, version: &Version, runs: Box<[Run]>) {
        for run in &runs {
            self.places.remove(&(run.segment, run.block));
        }
        let Version { serial, moves, durability, .. } = *version;
        if self.readers.range((serial, 0)..=(serial, moves)).next().is_none() {
            return self.space.remove(&runs);
        }
        self.space.retire(&runs);
        self.retired.entry(serial).or_default().push(Retired { moves, runs, durability });
    }

    fn forget_if_unused(&mut self, id: TensorId) {
        if let Entry::Occupied(slot) = self.slots.entry(id)
            && slot.get().is_unused()
        {
            slot.remove();
        }
    }

    fn next_serial(&mut self) -> u64 {
        self.last_serial += 1;
        self.last_serial
    }
}

fn version(pending: Pending, serial: u64, checksums: Vec<u32>) -> Version {
    let request = pending.request;
    Version {
        entry: TensorEntry {
            id: request.id,
            // Scratch tensors pay for nothing they do not need.
            name: request.name.filter(|_| request.lane.durability == Durability::Durable),
            length: request.length,
            class: request.lane.class,
            runs: pending.runs.iter().copied().collect(),
            checksums: checksums.into(),
        },
        durability: request.lane.durability,
        serial,
        moves: 0,
    }
}

#[cfg(test)]
#[path = "contents_tests.rs"]
mod tests;
