//! Following a schedule: which step and op it is, which moves are due, whether it still holds.

use super::schedule::Schedule;
use super::step_table::StepTable;
use super::types::{Desync, StorageId};
use crate::migration::Migration;
use crate::trace::PlanStorage;
use crate::units::OpIndex;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A prefetch whose start has come and that waits for room.
#[derive(Clone, Copy, Debug)]
pub(super) struct Due {
    pub(super) storage: PlanStorage,
    /// True if the move was begun once and had to yield to an op: next time only with room for the
    /// ops ahead.
    pub(super) cautious: bool,
}

#[derive(Debug)]
pub(super) struct Follow {
    schedule: Arc<Schedule>,
    /// The schedule's, which is asked at every op.
    pub(super) table: Arc<StepTable>,
    bindings: Vec<Option<StorageId>>,
    /// The time of op 0 of this step. The first step is step 1, so that no time is 0.
    step: u64,
    /// The time of the op that began last, or just before op 0.
    now: u64,
    next_move: usize,
    /// Number of ops of this step that were compared, and how many began.
    compared: u32,
    begun: u32,
    in_step: bool,
    in_sync: bool,
    /// Time up to which all that ops use is in memory or on its way (see `lookahead`).
    pub(super) looked: u64,
    /// Moves by deadline, then in the order they came.
    due: BTreeMap<(u64, u64), Due>,
    due_count: u64,
    /// Evictions that ops wait for, each with its deadline.
    awaited: Vec<(u64, StorageId)>,
}

impl Follow {
    pub(super) fn new(schedule: Arc<Schedule>) -> Self {
        let table = Arc::clone(schedule.step());
        Self {
            bindings: vec![None; table.storages() as usize],
            schedule,
            table,
            step: 0,
            now: 0,
            next_move: 0,
            compared: 0,
            begun: 0,
            in_step: false,
            in_sync: false,
            looked: 0,
            due: BTreeMap::new(),
            due_count: 0,
            awaited: Vec::new(),
        }
    }

    /// Exchanges the moves for the same ops and storages, from the next step on.
    pub(super) fn exchange(&mut self, schedule: Arc<Schedule>) -> bool {
        let alike = self.table.same_steps(schedule.step());
        if alike {
            self.table = Arc::clone(schedule.step());
            self.schedule = schedule;
            self.next_move = 0;
        }
        alike
    }

    pub(super) fn in_sync(&self) -> bool {
        self.in_sync
    }

    pub(super) fn host_bytes(&self) -> u64 {
        self.schedule.host_bytes().0
    }

    pub(super) fn now(&self) -> u64 {
        self.now
    }

    /// The time of op 0 of this step: how an instance that is born in it counts its uses.
    pub(super) fn step(&self) -> u64 {
        self.step
    }

    pub(super) fn step_begin(&mut self) {
        self.step += u64::from(self.table.ops());
        self.now = self.step - 1;
        self.next_move = 0;
        self.compared = 0;
        self.begun = 0;
        self.in_step = true;
        self.in_sync = true;
    }

    /// Ends the step; tells if it was shorter than planned, which puts the machine out of sync.
    pub(super) fn step_end(&mut self) -> Option<Desync> {
        let (ops, planned) = (self.compared.max(self.begun), self.table.ops());
        let was_followed = std::mem::take(&mut self.in_step) && self.in_sync;
        if !was_followed || ops >= planned {
            return None;
        }
        self.leave();
        Some(Desync::Shorter { ops, planned })
    }

    /// Compares an op of this step with the schedule's. Not every op needs to be compared.
    pub(super) fn expect(&mut self, op: OpIndex, found: u64) -> Option<Desync> {
        if !self.in_step || !self.in_sync {
            return None;
        }
        let reason = match self.table.fingerprint(op) {
            Some(expected) if expected == found => {
                self.compared = self.compared.max(op.0 + 1);
                return None;
            }
            Some(expected) => Desync::OtherOp { op, expected, found },
            None => Desync::Longer { planned: self.table.ops() },
        };
        self.leave();
        Some(reason)
    }

    /// The op at `index` begins: time goes on, never back. Tells if the schedule has no such op.
    pub(super) fn op_begins(&mut self, index: OpIndex) -> Option<Desync> {
        if !self.in_step || !self.in_sync {
            return None;
        }
        if index.0 >= self.table.ops() {
            self.leave();
            return Some(Desync::Longer { planned: self.table.ops() });
        }
        self.begun = self.begun.max(index.0 + 1);
        self.now = self.now.max(self.step + u64::from(index.0));
        None
    }

    /// The next move that has started by now, if any is left.
    pub(super) fn next_started(&mut self) -> Option<Migration> {
        if !self.in_step || !self.in_sync {
            return None;
        }
        let row = *self.schedule.moves().get(self.next_move)?;
        if self.step + u64::from(row.start.0) > self.now {
            return None;
        }
        self.next_move += 1;
        Some(row)
    }

    /// The deadline of a move of this step as a time.
    pub(super) fn deadline(&self, row: &Migration) -> u64 {
        let wraps = row.deadline < row.start;
        let wrap = if wraps { u64::from(self.table.ops()) } else { 0 };
        self.step + u64::from(row.deadline.0) + wrap
    }

    pub(super) fn put_off(&mut self, deadline: u64, due: Due) {
        self.due.insert((deadline, self.due_count), due);
        self.due_count += 1;
    }

    /// The prefetch with the earliest deadline that is not past.
    pub(super) fn first_due(&mut self) -> Option<(u64, Due)> {
        while let Some(entry) = self.due.first_entry() {
            let deadline = entry.key().0;
            if deadline >= self.now {
                return Some((deadline, *entry.get()));
            }
            entry.remove();
        }
        None
    }

    pub(super) fn drop_first_due(&mut self) {
        self.due.pop_first();
    }

    /// Returns whether a prefetch waits for room.
    pub(super) fn has_due(&self) -> bool {
        !self.due.is_empty()
    }

    pub(super) fn await_eviction(&mut self, deadline: u64, storage: StorageId) {
        self.awaited.push((deadline, storage));
    }

    /// Iterates over the storages for which the op that wants to begin waits for.
    pub(super) fn awaited(&self) -> impl Iterator<Item = StorageId> + '_ {
        let due = self.awaited.iter().filter(|(deadline, _)| *deadline <= self.now);
        due.map(|(_, storage)| *storage)
    }

    /// Forgets the awaited moves: that op begins.
    pub(super) fn drop_awaited(&mut self) {
        let now = self.now;
        self.awaited.retain(|(deadline, _)| *deadline > now);
    }

    pub(super) fn bind(&mut self, storage: PlanStorage, to: StorageId) -> bool {
        let Some(binding) = self.bindings.get_mut(storage.0 as usize) else { return false };
        *binding = Some(to);
        true
    }

    pub(super) fn unbind(&mut self, storage: PlanStorage, from: StorageId) {
        if let Some(binding) = self.bindings.get_mut(storage.0 as usize)
            && *binding == Some(from)
        {
            *binding = None;
        }
    }

    pub(super) fn bound(&self, storage: PlanStorage) -> Option<StorageId> {
        self.bindings.get(storage.0 as usize).copied().flatten()
    }

    /// The largest outputs of the ops that come soon.
    pub(super) fn needs_ahead(&self) -> u64 {
        const OPS_AHEAD: u64 = 32;
        self.needs_until(self.now + OPS_AHEAD.min(u64::from(self.table.ops())))
    }

    /// The largest outputs of the ops from the next one to that at `time`.
    pub(super) fn needs_until(&self, time: u64) -> u64 {
        let ops = u64::from(self.table.ops());
        let ahead = (self.now + 1..=time).map(|time| OpIndex((time % ops) as u32));
        ahead.map(|op| self.table.needs(op).0).max().unwrap_or(0)
    }

    /// Leaves the schedule until the next step.
    pub(super) fn leave(&mut self) {
        self.in_sync = false;
        self.looked = 0;
        self.due.clear();
        self.awaited.clear();
    }
}
