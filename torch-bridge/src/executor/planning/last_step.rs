//! The last step, as what the next one is expected to be until there is a plan.

use std::sync::Arc;

use tidelog_planner::plan::{PlanError, without_moves};
use tidelog_planner::residency::{Residency, Schedule, StorageId};
use tidelog_planner::trace::Trace;

use super::profile::Profiled;
use crate::executor::parts::{Bindings, StorageParts};

/// Ops that may be left out between two that come: more are another step.
const LEFT_OUT_MAX: usize = 7;

/// A step that has ended: its ops, what they use, and who of its storages is still there.
pub(super) struct LastStep {
    /// None: it was as expected, so that nothing else is expected of the next.
    expects: Option<(Arc<Trace>, Schedule)>,
    bindings: Bindings,
    /// True if a plan is being made for such steps.
    is_planned_for: bool,
}

impl LastStep {
    /// `was_expected`: the machine has followed another one like it to its end.
    pub(super) fn of(profiled: &Profiled, was_expected: bool) -> Result<Self, PlanError> {
        let Profiled { trace, bindings, kept, differs } = profiled;
        let expects = if was_expected {
            None
        } else {
            Some((Arc::clone(trace), without_moves(trace, kept)?))
        };
        Ok(Self { expects, bindings: bindings.clone(), is_planned_for: differs.is_none() })
    }

    /// Records the death of a storage, whose number may come to mean another one before the next
    /// begins.
    pub(super) fn died(&mut self, storage: StorageId) {
        self.bindings.retain(|(_, bound)| *bound != storage);
    }

    pub(super) fn is_planned_for(&self) -> bool {
        self.is_planned_for
    }

    /// Returns the bindings in steps that a plan is being made for.
    pub(super) fn planned_bindings(&self) -> Option<&Bindings> {
        self.is_planned_for.then_some(&self.bindings)
    }

    /// The next step is expected to use the same in the same order. `None`: it is already.
    pub(super) fn expect_again(
        self,
        machine: &mut Residency,
        parts: &StorageParts,
    ) -> Option<ExpectedStep> {
        let (trace, schedule) = self.expects?;
        machine.load_schedule(Arc::new(schedule));
        parts.bind_as_they_are(machine, &self.bindings);
        Some(ExpectedStep { trace, skipped: 0 })
    }
}

/// A step that another one was like, op for op, so far.
pub(super) struct ExpectedStep {
    trace: Arc<Trace>,
    /// Number of its ops that did not come.
    skipped: u32,
}

impl ExpectedStep {
    /// The last step told nothing new: another one is expected to be like this one.
    pub(super) fn step_begins(&mut self) {
        self.skipped = 0;
    }

    /// The op at `index` begins. Ops that make nothing may have been left out before it: the first
    /// call of what a program has compiled makes views that later ones do not.
    pub(super) fn op_begins(&mut self, index: u32, fingerprint: u64) {
        let from = index.saturating_add(self.skipped) as usize;
        let ops = self.trace.ops.get(from..).unwrap_or_default();
        for (skipped, op) in ops.iter().take(LEFT_OUT_MAX + 1).enumerate() {
            if op.fingerprint == fingerprint {
                self.skipped += skipped as u32;
                return;
            }
            if !op.births.is_empty() {
                return;
            }
        }
    }

    pub(super) fn skipped(&self) -> u32 {
        self.skipped
    }
}

#[cfg(test)]
#[path = "last_step_tests.rs"]
mod tests;
