//! One storage as the machine sees it, and the sums over all storages that decide whether there
//! is room.

use super::types::{StorageState, TransferId};
use crate::migration::Target;
use crate::trace::PlanStorage;

/// Kind of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TransferKind {
    Write,
    Verify,
    Recheck,
    Fetch,
}

/// A transfer in flight.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each with its own event")]
pub(super) struct TransferInFlight {
    pub(super) transfer: TransferId,
    pub(super) kind: TransferKind,
    /// Fetches only: an op waits for it.
    pub(super) urgent: bool,
    /// True if the transfer was asked to stop.
    pub(super) cancelled: bool,
    /// True if the memory is to go when it completes. A reader takes this back without stopping the
    /// transfer.
    pub(super) leaving: bool,
    /// The memory changed since it began: what it copies is worthless.
    pub(super) stale: bool,
    /// The batch of actions that it began in.
    pub(super) batch: u64,
}

/// Place of the bytes.
#[derive(Clone, Copy, Debug)]
pub(super) enum BytesPlace {
    Resident,
    Out,
    Moving(TransferInFlight),
}

#[derive(Clone, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each with its own event")]
pub(super) struct ResidentStorage {
    pub(super) size: u64,
    pub(super) place: BytesPlace,
    /// True if a valid copy exists.
    pub(super) copy: bool,
    /// The caller is writing one, and nobody has changed the bytes since that began.
    pub(super) copying: bool,
    /// True if the storage was written out at least once.
    pub(super) written: bool,
    /// Tier of that copy.
    pub(super) target: Target,
    /// Host memory that its copy takes, or will take when it is complete.
    pub(super) hosted: u64,
    /// The transfer that was begun last.
    pub(super) last_transfer: TransferId,
    pub(super) movable: bool,
    pub(super) pins: u32,
    /// An op that has ended uses it still: a collective, say, until its `Work` is complete.
    pub(super) async_use: bool,
    /// The last write failed; not written again before a retry.
    pub(super) unwritable: bool,
    /// The caller is in the middle of something with its memory: for now that goes nowhere.
    pub(super) in_hand: bool,
    /// True if the storage died while a transfer was in flight; known until that completes.
    pub(super) dead: bool,
    /// The op that uses it, by serial number: protected while that is the current one.
    pub(super) used_by: u64,
    /// Place in that op's list of uses.
    pub(super) use_slot: u32,
    /// Time of the last use: in grants, and in ops of the schedule's time.
    pub(super) last_use: u64,
    pub(super) last_op: u64,
    /// Storage of the schedule that it is, and the time of op 0 of the step of its birth.
    pub(super) plan: Option<(PlanStorage, u64)>,
    /// The priority under which the victim queue knows it; 0 if it does not.
    pub(super) queued: u64,
    /// The batch of actions that released its memory last.
    pub(super) released_in: u64,
}

/// Sums over storages, or what one storage adds to them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Sums {
    /// Memory that is taken.
    pub(super) committed: u64,
    /// The part of it that goes when transfers in flight complete.
    pub(super) departing: u64,
    /// The part of it that cannot go: pinned, not movable, not writable.
    pub(super) fixed: u64,
    /// The part of it that could go, were it not for asynchronous uses.
    pub(super) async_used: u64,
    /// The part of it that is being filled.
    pub(super) fetching: u64,
    /// Bytes that memory has not.
    pub(super) evicted: u64,
    /// Host memory that copies take.
    pub(super) hosted: u64,
    /// The part of it that could be given up: the copies of storages that are in memory.
    pub(super) spare: u64,
}

impl ResidentStorage {
    pub(super) fn born(size: u64, movable: bool) -> Self {
        Self {
            size,
            place: BytesPlace::Resident,
            copy: false,
            copying: false,
            written: false,
            target: Target::Ssd,
            hosted: 0,
            last_transfer: TransferId(0),
            movable,
            pins: 0,
            async_use: false,
            unwritable: false,
            in_hand: false,
            dead: false,
            used_by: 0,
            use_slot: 0,
            last_use: 0,
            last_op: 0,
            plan: None,
            queued: 0,
            released_in: 0,
        }
    }

    pub(super) fn sums(&self) -> Sums {
        let (has_memory, leaves) = match self.place {
            BytesPlace::Resident => (true, false),
            BytesPlace::Out => (false, false),
            BytesPlace::Moving(flight) => (true, (self.dead || flight.leaving) && !self.in_hand),
        };
        let count = |holds: bool| if holds { self.size } else { 0 };
        Sums {
            committed: count(has_memory),
            departing: count(has_memory && leaves),
            fixed: count(has_memory && !leaves && self.stays()),
            async_used: count(has_memory && !leaves && !self.stays() && self.async_use),
            fetching: count(self.state() == StorageState::Fetching),
            evicted: count(!has_memory),
            hosted: self.hosted,
            spare: if self.is_spare() { self.hosted } else { 0 },
        }
    }

    /// Returns whether a copy in host memory could go: the storage itself is in memory, and nothing
    /// uses the copy.
    pub(super) fn is_spare(&self) -> bool {
        self.hosted > 0 && self.copy && matches!(self.place, BytesPlace::Resident)
    }

    /// Keeps a storage that is being evicted; its copy is completed all the same.
    pub(super) fn keep(&mut self) {
        if let BytesPlace::Moving(flight) = &mut self.place
            && flight.kind != TransferKind::Fetch
        {
            flight.leaving = false;
        }
    }

    /// Returns whether nothing can make it leave.
    pub(super) fn stays(&self) -> bool {
        !self.movable || self.pins > 0 || self.unwritable
    }

    /// Returns whether the memory could be asked to leave, protection by an op apart.
    pub(super) fn may_leave(&self) -> bool {
        let here = match self.place {
            BytesPlace::Resident => true,
            BytesPlace::Out => false,
            BytesPlace::Moving(flight) => !flight.leaving,
        };
        let is_free = !self.dead && !self.in_hand && !self.async_use;
        here && is_free && self.size > 0 && !self.stays()
    }

    pub(super) fn state(&self) -> StorageState {
        match self.place {
            BytesPlace::Resident => StorageState::Resident { clean: self.copy },
            BytesPlace::Out => StorageState::Evicted,
            BytesPlace::Moving(TransferInFlight { kind: TransferKind::Fetch, .. }) => {
                StorageState::Fetching
            }
            BytesPlace::Moving(_) => StorageState::Evicting,
        }
    }
}

impl Sums {
    /// Replaces what a storage added `before` by what it adds now.
    pub(super) fn exchange(&mut self, before: Self, now: Self) {
        self.committed = self.committed - before.committed + now.committed;
        self.departing = self.departing - before.departing + now.departing;
        self.fixed = self.fixed - before.fixed + now.fixed;
        self.async_used = self.async_used - before.async_used + now.async_used;
        self.fetching = self.fetching - before.fetching + now.fetching;
        self.evicted = self.evicted - before.evicted + now.evicted;
        self.hosted = self.hosted - before.hosted + now.hosted;
        self.spare = self.spare - before.spare + now.spare;
    }
}
