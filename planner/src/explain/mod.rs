//! Explains a plan: why a storage leaves, why an op waits, what other hardware would bring.
//!
//! What is said of a step is read off its simulation. What another plan or machine would bring is
//! simulated, nothing is extrapolated.

mod orders;
mod parts;
mod recomputation;
mod storage;
mod text;
mod wait;
mod what_if;
mod whereabouts;

use crate::cost::Machine;
use crate::migration::{Ending, MigrationDirection, Target};
use crate::plan::Plan;
use crate::simulate::{SimulatedTransfer, Simulation};
use crate::trace::{PlanStorage, Trace};
use crate::units::{Bytes, Nanos, OpIndex};
use serde::Serialize;

pub use orders::{OrderAnswer, orders};
pub use parts::PartsAnswer;
pub use recomputation::{RecomputeAnswer, recomputation};
pub use storage::{Absence, KeptInMemory, StorageAnswer};
pub use wait::{Cause, OpAnswer, WaitTarget, WaitedTime};
pub use what_if::{MachineChange, SimulateFn, WhatIf, what_if};

/// A simulated step, and what it was made from.
#[derive(Clone, Copy, Debug)]
pub struct Case<'a> {
    /// The iteration.
    pub trace: &'a Trace,
    /// Machine of the step.
    pub machine: &'a Machine,
    /// Plan of the step; without one the least recently used left on demand.
    pub plan: Option<&'a Plan>,
    /// Simulation of the step.
    pub simulation: &'a Simulation,
}

/// A transfer of the step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ExplainedTransfer {
    /// Tier of the other end.
    pub target: Target,
    /// Time of the request, from the step's beginning.
    #[serde(rename = "asked_ns")]
    pub asked: Nanos,
    /// Time for which it waited for its turn.
    #[serde(rename = "queued_ns")]
    pub queued: Nanos,
    /// Time that its bytes took.
    #[serde(rename = "moving_ns")]
    pub moving: Nanos,
    /// Time of its completion.
    #[serde(rename = "complete_ns")]
    pub complete: Nanos,
    /// True if bytes moved: a valid copy that is still there costs none.
    pub moved: bool,
}

impl From<&SimulatedTransfer> for ExplainedTransfer {
    fn from(transfer: &SimulatedTransfer) -> Self {
        Self {
            target: transfer.target,
            asked: transfer.begin,
            queued: Nanos(transfer.moved.0.saturating_sub(transfer.begin.0)),
            moving: Nanos(transfer.end.0.saturating_sub(transfer.moved.0)),
            complete: transfer.end,
            moved: transfer.ending == Ending::Moved,
        }
    }
}

/// A storage as people find it again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Named {
    /// Name, or the op that made it.
    pub name: String,
    /// The size.
    pub size: Bytes,
}

impl Case<'_> {
    fn named(&self, storage: PlanStorage) -> Named {
        Named { name: self.trace.label(storage), size: self.trace.storage(storage).size }
    }

    /// The transfers of a storage that ended in the step, by time.
    fn transfers_of(&self, storage: PlanStorage) -> impl Iterator<Item = &SimulatedTransfer> {
        let all = self.simulation.transfers.iter();
        all.filter(move |t| t.storage == storage && has_ended(t))
    }

    /// The first op that begins at `time` or later; the last one if none does.
    fn op_at(&self, time: Nanos) -> OpIndex {
        let before = self.simulation.begins.partition_point(|begin| *begin < time);
        OpIndex(before.min(self.trace.ops.len() - 1) as u32)
    }

    /// Returns the time that a link moved bytes between two moments.
    fn busy(&self, direction: MigrationDirection, target: Target, from: Nanos, to: Nanos) -> Nanos {
        let on_the_link =
            self.simulation.transfers.iter().filter(|t| {
                (t.direction, t.target, t.ending) == (direction, target, Ending::Moved)
            });
        let mut until = from.0;
        let mut busy = 0;
        let mut spans: Vec<_> = on_the_link.map(|t| (t.moved.0, t.end.0.min(to.0))).collect();
        spans.sort_unstable();
        // An urgent transfer lies inside the span of the one that it interrupted.
        for (begin, end) in spans {
            busy += end.saturating_sub(begin.max(until));
            until = until.max(end);
        }
        Nanos(busy)
    }

    /// The least room there was between two moments.
    fn least_room(&self, from: Nanos, to: Nanos) -> Bytes {
        let samples = &self.simulation.memory;
        let first = samples.partition_point(|sample| sample.at <= from).saturating_sub(1);
        let held = samples[first..]
            .iter()
            .take_while(|sample| sample.at <= to)
            .map(|sample| sample.resident.0 + sample.moving.0);
        Bytes(self.machine.capacity().0.saturating_sub(held.max().unwrap_or(0)))
    }
}

fn has_ended(transfer: &SimulatedTransfer) -> bool {
    matches!(transfer.ending, Ending::Moved | Ending::Clean)
}

/// Every storage that a text can mean: the one of exactly that name, or all whose name contains it.
pub fn find(trace: &Trace, text: &str) -> Vec<PlanStorage> {
    let all = (0..trace.storages.len() as u32).map(PlanStorage);
    let (exact, contained): (Vec<_>, Vec<_>) = all
        .map(|storage| (storage, trace.label(storage)))
        .filter(|(storage, label)| {
            label.contains(text) || trace.storage(*storage).identity.to_string() == text
        })
        .partition(|(storage, label)| {
            label == text || trace.storage(*storage).identity.to_string() == text
        });
    let found = if exact.is_empty() { contained } else { exact };
    found.into_iter().map(|(storage, _)| storage).collect()
}

#[cfg(test)]
mod tests;
