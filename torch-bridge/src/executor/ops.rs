//! The op that runs, or waits to: what it uses, and what its caller has not heard yet.

use std::time::Instant;

use tidelog_planner::residency::{BudgetRefusal, OpProgress, OpUse, Residency, StorageId};
use tidelog_planner::units::Bytes;

use crate::error::{Failure, FailureKind};

/// An op that is about to run.
pub(crate) struct OpCall<'a> {
    /// Its place in the step; `None`: outside of a step.
    pub(crate) index: Option<u32>,
    pub(crate) fingerprint: u64,
    pub(crate) name: &'a str,
    /// Bytes of its outputs.
    pub(crate) needs: u64,
}

/// An op as reports name it, and its place in the step.
pub(super) type OpName<'a> = (&'a str, Option<u32>);

/// The op that was begun last.
#[derive(Default)]
pub(super) struct Ops {
    name: String,
    index: Option<u32>,
    uses: Vec<OpUse>,
    /// Begun, and not ended yet.
    open: bool,
    running_since: Option<Instant>,
    /// Pinned until the next op, because the caller could not let them go.
    declined: Vec<StorageId>,
    /// An error of the machine that waits until the caller's requests are done.
    held: Option<OpProgress>,
}

impl Ops {
    pub(super) fn begins(&mut self, op: &OpCall<'_>, uses: impl Iterator<Item = OpUse>) {
        self.name.clear();
        self.name.push_str(op.name);
        self.index = op.index;
        self.uses.clear();
        self.uses.extend(uses);
        self.open = true;
        self.running_since = None;
        self.held = None;
    }

    /// What the op uses.
    pub(super) fn uses(&self) -> &[OpUse] {
        &self.uses
    }

    /// The op may run.
    pub(super) fn runs(&mut self, now: Instant) {
        if self.open {
            self.running_since.get_or_insert(now);
        }
    }

    /// The op has ended. Returns which one, and since when it ran, if it did.
    pub(super) fn ends(&mut self) -> Option<(OpName<'_>, Instant)> {
        self.open = false;
        self.running_since.take().map(|since| ((self.name.as_str(), self.index), since))
    }

    /// A step begins: no op of it has.
    pub(super) fn step_begins(&mut self) {
        self.name.clear();
        self.index = None;
        self.open = false;
        self.running_since = None;
    }

    /// The op that was begun last, if any was in this step.
    pub(super) fn last(&self) -> Option<OpName<'_>> {
        (!self.name.is_empty()).then_some((self.name.as_str(), self.index))
    }

    /// The first storage of the op that is begun which is not in memory.
    pub(super) fn missing(&self, is_away: impl Fn(StorageId) -> bool) -> Option<StorageId> {
        let mut uses = self.uses.iter().filter(|_| self.open);
        uses.find(|used| is_away(used.storage)).map(|used| used.storage)
    }

    /// Keeps an error until the caller's requests are done.
    pub(super) fn hold(&mut self, error: OpProgress) {
        self.held = Some(error);
    }

    pub(super) fn take_held(&mut self) -> Option<OpProgress> {
        self.held.take()
    }

    /// The caller could not let the storage go: it stays, until the next op at least. Asked again
    /// at once, it would be declined again.
    pub(super) fn decline(&mut self, storage: StorageId, machine: &mut Residency) {
        machine.pin(storage);
        self.declined.push(storage);
    }

    /// What the caller could not let go may be movable by now.
    pub(super) fn retry_declined(&mut self, machine: &mut Residency) {
        for storage in self.declined.drain(..) {
            machine.unpin(storage);
        }
    }

    pub(super) fn died(&mut self, storage: StorageId) {
        self.declined.retain(|&each| each != storage);
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
        let largest: Vec<String> =
            refusal.largest.iter().map(|part| named(part.size, part.storage)).collect();
        Failure::new(
            FailureKind::BudgetExceeded,
            format!(
                "{} does not fit the budget: {} must be in memory at once, but the budget is {}: \
                 {} that it uses, {} of outputs, {} pinned or not movable, {}{} of staging; \
                 the largest: {}. The smallest budget that would do is {} bytes: raise memory= to it, \
                 or make the op smaller (a smaller batch, fewer tensors at once)",
                self.name,
                refusal.smallest_budget,
                refusal.budget,
                refusal.uses,
                refusal.outputs,
                refusal.unmovable,
                asynchronous,
                refusal.staging,
                largest.join(", "),
                refusal.smallest_budget.0,
            ),
        )
    }
}
