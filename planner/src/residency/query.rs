//! Queries of the machine. Nothing here changes a decision.

use super::machine::Residency;
use super::stats::Stats;
use super::storage::{BytesPlace, ResidentStorage, TransferKind};
use super::types::{CopyInLog, StorageId, StorageState};
use crate::migration::Target;
use crate::trace::PlanStorage;
use crate::units::Bytes;

impl Residency {
    /// All memory there may be.
    pub fn budget(&self) -> Bytes {
        self.config.budget
    }

    /// The part of the budget that storages may take: all but staging, and what is others'. While
    /// it is paused, what cannot leave.
    pub fn limit(&self) -> Bytes {
        if self.paused.is_some() {
            return Bytes(self.sums.fixed);
        }
        let others = self.config.staging.0.saturating_add(self.for_others);
        Bytes(self.config.budget.0.saturating_sub(others))
    }

    /// Memory that storages and transfers on them take now.
    pub fn committed(&self) -> Bytes {
        Bytes(self.sums.committed)
    }

    /// The part of it that holds storages' bytes: all but what is being filled.
    pub fn resident(&self) -> Bytes {
        Bytes(self.sums.committed - self.sums.fetching)
    }

    /// The part of it that goes when transfers in flight complete.
    pub fn departing(&self) -> Bytes {
        Bytes(self.sums.departing)
    }

    /// Bytes that are out: in the log or in host memory only.
    pub fn evicted(&self) -> Bytes {
        Bytes(self.sums.evicted)
    }

    /// The most host memory that copies may take.
    pub fn host_memory(&self) -> Bytes {
        self.config.host_memory
    }

    /// Host memory that copies take now.
    pub fn hosted(&self) -> Bytes {
        Bytes(self.sums.hosted)
    }

    /// The most host memory that copies ever took.
    pub fn host_peak(&self) -> Bytes {
        Bytes(self.host_peak)
    }

    /// The most that was ever committed, or since [`Self::reset_peak`].
    pub fn peak(&self) -> Bytes {
        Bytes(self.peak)
    }

    /// Measures the peak anew from now on.
    pub fn reset_peak(&mut self) {
        self.peak = self.sums.committed;
    }

    /// Returns the statistics.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// Bytes that could leave memory, were it not for asynchronous uses.
    pub fn async_used(&self) -> Bytes {
        Bytes(self.sums.async_used)
    }

    /// Returns whether nothing has memory but what cannot leave: see [`Self::pause`].
    pub fn is_paused(&self) -> bool {
        self.paused.is_some()
    }

    /// Returns the number of transfers in flight.
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Returns the state of a storage; `None` if it is not known or died.
    pub fn state(&self, id: StorageId) -> Option<StorageState> {
        self.alive(id).map(ResidentStorage::state)
    }

    /// Returns the state of a storage's copy in the log.
    pub fn copy_in_log(&self, id: StorageId) -> CopyInLog {
        let Some(storage) = self.alive(id) else { return CopyInLog::Not };
        let copy = storage.copy && storage.target == Target::Ssd;
        // Whoever has an address in it may change it unseen, and then there would be checksums
        // alone to tell. An op that runs or goes on may be changing it now.
        let quiet = storage.may_leave() && storage.used_by != self.op.serial;
        match storage.place {
            BytesPlace::Out if copy => CopyInLog::Out,
            BytesPlace::Resident if quiet && copy => CopyInLog::InMemory,
            BytesPlace::Resident if quiet && !storage.copy => CopyInLog::NotYet,
            // The bytes of a fetch are those of its copy; what is written anew has none yet.
            BytesPlace::Moving(flight)
                if copy && flight.kind == TransferKind::Fetch && !flight.stale =>
            {
                CopyInLog::Out
            }
            _ => CopyInLog::Not,
        }
    }

    /// Returns whether a storage is in memory, no transfer touches it, and nothing keeps it there:
    /// neither the op that runs, nor one that has ended, nor a pin.
    pub fn rests(&self, id: StorageId) -> bool {
        self.alive(id).is_some_and(|storage| {
            matches!(storage.place, BytesPlace::Resident)
                && storage.may_leave()
                && storage.used_by != self.op.serial
        })
    }

    /// Returns the storage of the schedule that it is; `None`: none.
    pub fn planned_as(&self, id: StorageId) -> Option<PlanStorage> {
        self.alive(id)?.plan.map(|(plan, _)| plan)
    }

    /// The size of a storage; `None` if it is not known or died.
    pub fn size(&self, id: StorageId) -> Option<Bytes> {
        self.alive(id).map(|storage| Bytes(storage.size))
    }

    /// Returns whether this number is taken, if only by a storage that died with a transfer in
    /// flight.
    pub fn knows(&self, id: StorageId) -> bool {
        self.get(id).is_some()
    }

    /// Every storage that is alive, by number, with its size.
    pub fn storages(&self) -> impl Iterator<Item = (StorageId, Bytes, StorageState)> + '_ {
        self.storages.iter().enumerate().filter_map(|(index, storage)| {
            let storage = storage.as_ref().filter(|storage| !storage.dead)?;
            Some((StorageId(index as u32), Bytes(storage.size), storage.state()))
        })
    }
}
