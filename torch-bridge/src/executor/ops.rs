//! The ops that run, or wait to, one inside the other: what they use, and what their caller has not
//! heard yet.

use std::time::Instant;

use tidelog_planner::residency::{
    BudgetRefusal, OpProgress, OpUse, Pending, Residency, StorageId, Suspended,
};
use tidelog_planner::units::Bytes;

use crate::error::{Failure, FailureKind};

/// An op that is about to run.
pub(crate) struct OpCall<'a> {
    /// The place in the step; `None`: outside of a step.
    pub(crate) index: Option<u32>,
    pub(crate) fingerprint: u64,
    pub(crate) name: &'a str,
    /// Bytes of its outputs.
    pub(crate) needs: u64,
}

/// An op as reports name it, and its place in the step.
pub(super) type OpName<'a> = (&'a str, Option<u32>);

/// The op that was begun last, where no other is around it or in it.
#[derive(Default)]
struct Op {
    name: String,
    index: Option<u32>,
    uses: Vec<OpUse>,
    needs: u64,
    /// Begun, and not ended yet.
    open: bool,
    running_since: Option<Instant>,
    /// Storages of the op that are pinned since another op began inside it.
    pinned: Vec<StorageId>,
    /// State of the machine when another op began inside it.
    suspended: Suspended,
    /// Storages that were to be evicted then.
    evicting: Vec<StorageId>,
    /// An error that the caller has not heard yet.
    held: Option<HeldError>,
}

/// An error that is told when the caller looks again.
pub(super) enum HeldError {
    /// The machine's: the caller's requests are done first.
    Machine(OpProgress),
    /// Error of a wait, in whose place the caller had its own returned.
    Wait(Failure),
}

/// Work that continues where the ops inside are over.
pub(super) enum GoesOn {
    /// The op around runs, or nothing was under way.
    Nothing,
    /// An error that the caller has not heard yet.
    Held,
    /// The op around waits to run.
    Op,
    /// The budget is to hold.
    Settle,
    /// Eviction of these storages.
    Evict(Vec<StorageId>),
}

/// The op that was begun last, and those around it.
#[derive(Default)]
pub(super) struct Ops {
    current: Op,
    /// The outermost first. They go on once those inside them are over.
    around: Vec<Op>,
    /// Pinned until the next op, because the caller could not let them go.
    declined: Vec<StorageId>,
}

impl Op {
    /// Returns whether the caller has heard that it may run, and has not ended it.
    fn runs(&self) -> bool {
        self.open && self.running_since.is_some()
    }
}

impl Ops {
    pub(super) fn begins(&mut self, op: &OpCall<'_>, uses: impl Iterator<Item = OpUse>) {
        let current = &mut self.current;
        current.name.clear();
        current.name.push_str(op.name);
        current.index = op.index;
        current.uses.clear();
        current.uses.extend(uses);
        current.needs = op.needs;
        current.open = true;
        current.running_since = None;
        current.held = None;
    }

    /// Returns the uses of the op.
    pub(super) fn uses(&self) -> &[OpUse] {
        &self.current.uses
    }

    /// Bytes of its outputs.
    pub(super) fn needs(&self) -> u64 {
        self.current.needs
    }

    /// The op may run.
    pub(super) fn runs(&mut self, now: Instant) {
        if self.current.open {
            self.current.running_since.get_or_insert(now);
        }
    }

    /// The op has ended. Returns which one, and since when it ran, if it did.
    pub(super) fn ends(&mut self) -> Option<(OpName<'_>, Instant)> {
        let Op { name, index, open, running_since, .. } = &mut self.current;
        *open = false;
        running_since.take().map(|since| ((name.as_str(), *index), since))
    }

    /// The op was refused, or has failed, before it ran.
    pub(super) fn gives_up(&mut self) {
        self.current.open = self.current.runs();
    }

    /// A step begins: no op of it has.
    pub(super) fn step_begins(&mut self) {
        self.current = Op::default();
    }

    /// The op that was begun last, if any was in this step.
    pub(super) fn last(&self) -> Option<OpName<'_>> {
        let Op { name, index, .. } = &self.current;
        (!name.is_empty()).then_some((name.as_str(), *index))
    }

    /// The first storage of the op that is begun which is not in memory.
    pub(super) fn missing(&self, is_away: impl Fn(StorageId) -> bool) -> Option<StorageId> {
        self.open_uses().find(|used| is_away(used.storage)).map(|used| used.storage)
    }

    /// Returns the uses of the op, if it has not ended.
    pub(super) fn open_uses(&self) -> impl Iterator<Item = &OpUse> {
        self.current.uses.iter().filter(|_| self.current.open)
    }

    // -- ops inside ops --

    /// Returns the number of ops around the one that was begun last.
    pub(super) fn depth(&self) -> usize {
        self.around.len()
    }

    /// Enters the op that was begun last: later ops are inside it. If that runs, what it uses,
    /// which these are to the machine, stays where it is. What waits goes on later.
    pub(super) fn enter(
        &mut self,
        machine: &mut Residency,
        evicting: Vec<StorageId>,
        uses: impl FnOnce(&[OpUse], &mut Vec<OpUse>),
    ) {
        let mut outer = std::mem::take(&mut self.current);
        outer.suspended = machine.suspend();
        outer.evicting = evicting;
        if outer.runs() {
            let mut to_pin = Vec::new();
            uses(&outer.uses, &mut to_pin);
            for one in to_pin {
                machine.pin(one.storage);
                outer.pinned.push(one.storage);
            }
        }
        self.around.push(outer);
    }

    /// Leaves the op around. Returns what goes on by that.
    pub(super) fn leave(&mut self, machine: &mut Residency) -> GoesOn {
        self.unpin(machine);
        self.current = self.around.pop().unwrap_or_default();
        let Op { suspended, evicting, .. } = &mut self.current;
        let (suspended, mut evicting) = (std::mem::take(suspended), std::mem::take(evicting));
        let runs = self.current.runs();
        machine.go_on(if runs { suspended.reserve } else { Bytes(0) });
        if self.current.held.is_some() {
            return GoesOn::Held;
        }
        if self.current.open && !runs {
            // Also where the machine had granted it: others may have used that room.
            return GoesOn::Op;
        }
        match suspended.pending {
            Pending::Nothing | Pending::Op if evicting.is_empty() => GoesOn::Nothing,
            Pending::Nothing | Pending::Op => GoesOn::Evict(evicting),
            Pending::Settle => GoesOn::Settle,
            Pending::Evict(storage) => {
                evicting.push(storage);
                GoesOn::Evict(evicting)
            }
        }
    }

    /// Room that the ops around were granted for outputs that are not born yet.
    pub(super) fn room_around(&self) -> u64 {
        self.around.iter().filter(|op| op.runs()).map(|op| op.suspended.reserve.0).sum()
    }

    /// Unpins the storages of an op: from here on the machine alone holds them, or the op is over.
    pub(super) fn unpin(&mut self, machine: &mut Residency) {
        for storage in self.current.pinned.drain(..) {
            machine.unpin(storage);
        }
    }

    /// Keeps an error until the caller looks again.
    pub(super) fn hold(&mut self, error: HeldError) {
        self.current.held = Some(error);
    }

    pub(super) fn take_held(&mut self) -> Option<HeldError> {
        self.current.held.take()
    }

    /// The caller could not let the storage go: it stays, until the next op at least. Asked again
    /// at once, it would be declined again.
    pub(super) fn decline(&mut self, storage: StorageId, machine: &mut Residency) {
        machine.pin(storage);
        self.declined.push(storage);
    }

    /// Retries storages that the caller could not let go, and which may be movable by now.
    pub(super) fn retry_declined(&mut self, machine: &mut Residency) {
        for storage in self.declined.drain(..) {
            machine.unpin(storage);
        }
    }

    pub(super) fn died(&mut self, storage: StorageId) {
        self.declined.retain(|&each| each != storage);
        for op in self.around.iter_mut().chain([&mut self.current]) {
            op.pinned.retain(|&each| each != storage);
            op.evicting.retain(|&each| each != storage);
        }
    }

    /// The error where the op does not fit the budget.
    pub(super) fn too_large(
        &self,
        refusal: &BudgetRefusal,
        name: impl Fn(StorageId) -> String,
    ) -> Failure {
        let named = |size: Bytes, storage| format!("{} ({size})", name(storage));
        let asynchronous = match refusal.asynchronous {
            Bytes(0) => String::new(),
            bytes => format!("{bytes} in use by communication that may wait for it, "),
        };
        let others = match refusal.others {
            Bytes(0) => String::new(),
            bytes => format!("{bytes} of an op around it, "),
        };
        let largest: Vec<String> =
            refusal.largest.iter().map(|part| named(part.size, part.storage)).collect();
        Failure::new(
            FailureKind::BudgetExceeded,
            format!(
                "{} does not fit the budget: {} must be in memory at once, but the budget is {}: \
                 {} that it uses, {} of outputs, {} pinned or not movable, {}{}{} of staging; \
                 the largest: {}. The smallest budget that would do is {} bytes: raise memory= to it, \
                 or make the op smaller (a smaller batch, fewer tensors at once)",
                self.current.name,
                refusal.smallest_budget,
                refusal.budget,
                refusal.uses,
                refusal.outputs,
                refusal.unmovable,
                asynchronous,
                others,
                refusal.staging,
                largest.join(", "),
                refusal.smallest_budget.0,
            ),
        )
    }
}
