//! One self-contained HTML page: memory over time against the budget, the migrations under it,
//! the bandwidth they used and the stalls they caused; then the figures.
//!
//! The page needs no network and no script to show its picture; the script adds hover and zoom. It
//! is made from a plain [`Report`], which a simulation fills as well as a measured run: the same
//! picture for what was promised and for what happened.

mod chart;
mod data;
mod page;
pub(crate) mod sample;
mod simulated;
pub mod text;

use crate::migration::{Ending, MemorySample, MigrationDirection, Target};
use crate::simulate::StepClocks;
use crate::tidelog::PlanPrice;
use crate::trace::StorageKind;
use crate::units::{Bandwidth, Bytes, Nanos};

pub use simulated::simulated;

/// Data of the page. Times are counted from the beginning of the shown step.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Name of the training: `byte-level GPT, 12 layers`.
    pub title: String,
    /// Kind of the report: `simulated, algorithm1` or `measured, step 14`.
    pub subtitle: String,
    /// The length of the step.
    pub duration: Nanos,
    /// The length of the same step without a budget, if known.
    pub unlimited: Option<Nanos>,
    /// The most that tensors and staging may take.
    pub budget: Bytes,
    /// The part of the budget that staging takes.
    pub staging: Bytes,
    /// Memory over time, by time. Each sample holds until the next.
    pub memory: Vec<MemorySample>,
    /// The ops, by time.
    pub ops: Vec<OpSpan>,
    /// Every migration that was under way in the step.
    pub transfers: Vec<TransferSpan>,
    /// Every wait of an op for a migration.
    pub stalls: Vec<Stall>,
    /// Clocks of the GPU and of the program's thread, if known.
    pub clocks: StepClocks,
    /// Read rate of the SSDs, if known.
    pub read_limit: Option<Bandwidth>,
    /// Write rate of the SSDs, if known.
    pub write_limit: Option<Bandwidth>,
    /// Bytes written in the step by what they were.
    pub written: Vec<(StorageKind, Bytes)>,
    /// Evictions in the step that cost no write, because the copy was still good.
    pub clean_evictions: u64,
    /// The bytes of those.
    pub clean_bytes: Bytes,
    /// Storages whose memory cannot be taken away.
    pub unmovable: Vec<Unmovable>,
    /// Figures in words besides: name and value.
    pub figures: Vec<(String, String)>,
    /// Notices for the reader, each of them once.
    pub notices: Vec<String>,
    /// The shortest step that any policy could reach, if it was computed.
    pub bound: Option<Nanos>,
    /// Cost of smaller and smaller write budgets, the largest first; empty if nobody asked.
    pub budgets: Vec<BudgetPoint>,
    /// Costs of the step's plan and the others that were found, the fastest first; empty if nobody
    /// searched.
    pub prices: Vec<PlanPrice>,
}

/// A write budget and what it costs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetPoint {
    /// Bytes that may be written in a day.
    pub per_day: Bytes,
    /// The step that keeps to it.
    pub step: Nanos,
    /// Part of it that is a pause, to keep to the budget.
    pub pause: Nanos,
    /// Life of a drive, in words.
    pub lasts: String,
}

/// Span of an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpSpan {
    /// `aten.mm`.
    pub name: String,
    /// Time at which it began to run, its stall over.
    pub begin: Nanos,
    /// Time at which it was done.
    pub end: Nanos,
}

/// One migration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransferSpan {
    /// The storage's name.
    pub name: String,
    /// Kind of its contents.
    pub kind: StorageKind,
    /// The size.
    pub bytes: Bytes,
    /// Direction of the transfer.
    pub direction: MigrationDirection,
    /// Tier of the other end.
    pub target: Target,
    /// Time of the request.
    pub begin: Nanos,
    /// Time at which the first byte moved: before that it waited for its turn.
    pub moved: Nanos,
    /// Time of its completion.
    pub end: Nanos,
    /// Number of its bytes that moved in the step, from `moved` to `end`: fewer than all where it
    /// began before the step or goes on after it.
    pub in_step: Bytes,
    /// True if an op was waiting for it.
    pub urgent: bool,
    /// Ending of the transfer.
    pub ending: Ending,
}

/// A wait of an op.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stall {
    /// The op that waited: `aten.mm (op 17)`.
    pub op: String,
    /// Time at which it could have begun.
    pub begin: Nanos,
    /// Time at which it began.
    pub end: Nanos,
    /// Object of the wait: `blocks.0.weight`, or memory.
    pub waited_for: String,
}

/// A storage that stays where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unmovable {
    /// The name.
    pub name: String,
    /// The size.
    pub bytes: Bytes,
    /// The reason why it cannot move.
    pub why: String,
}

impl TransferSpan {
    /// Returns whether bytes took the way that it names: a copy that was still good, or a transfer
    /// that was called off, needs none.
    pub(crate) fn carries_bytes(&self) -> bool {
        matches!(self.ending, Ending::Moved | Ending::UnderWay)
    }
}

impl Report {
    /// The page. The same report gives the same bytes.
    pub fn to_html(&self) -> String {
        page::render(self)
    }

    /// The time in which an op waited.
    pub fn stall_time(&self) -> Nanos {
        Nanos(self.stalls.iter().map(|stall| stall.end.0.saturating_sub(stall.begin.0)).sum())
    }

    /// The most that tensors and staging took at once.
    pub fn peak(&self) -> Bytes {
        let held = self.memory.iter().map(|sample| sample.resident.0 + sample.moving.0);
        Bytes(held.max().unwrap_or(0) + self.staging.0)
    }

    /// The most that tensors and staging would have taken without a budget.
    pub fn wanted(&self) -> Bytes {
        Bytes(self.memory.iter().map(|sample| sample.wanted.0).max().unwrap_or(0))
    }

    /// Bytes that the step's transfers moved in one direction, over one target.
    pub fn moved(&self, direction: MigrationDirection, target: Target) -> Bytes {
        let counted = |t: &&TransferSpan| {
            t.direction == direction && t.target == target && t.ending == Ending::Moved
        };
        Bytes(self.transfers.iter().filter(counted).map(|t| t.bytes.0).sum())
    }
}

#[cfg(test)]
mod tests;
