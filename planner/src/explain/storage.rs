//! The reason why a storage leaves memory, and what it would cost if it stayed.

use super::whereabouts::ResidencyHistory;
use super::{Case, ExplainedTransfer};
use crate::lifetime::{Lifetimes, Period, PeriodEnd, uses_by_storage};
use crate::migration::{Ending, MigrationDirection};
use crate::simulate::{Policy, SimulateError, SimulatedTransfer, simulate};
use crate::trace::{Identity, PlanStorage, StorageKind, Trace};
use crate::units::{Bytes, Nanos, OpIndex};
use serde::Serialize;

/// Explanation of a storage's moves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct StorageAnswer {
    /// Name, or the op that made it.
    pub name: String,
    /// Kind of its contents.
    pub kind: StorageKind,
    /// The size.
    pub size: Bytes,
    /// True if the storage can leave at all.
    pub movable: bool,
    /// Number of uses and births of it in a step.
    pub uses: u32,
    /// The longest time in which no op uses it, as the step ran.
    #[serde(rename = "idle_longest_ns")]
    pub idle_longest: Nanos,
    /// The times that it left.
    pub absences: Vec<Absence>,
    /// Writes of it while it stayed, so that it leaves later without one.
    pub cleaned: Vec<ExplainedTransfer>,
    /// Step in which it never left; `None` if it never does.
    pub held: Option<KeptInMemory>,
}

/// A time that a storage left.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Absence {
    /// True if a row of the plan says so; otherwise memory was needed at once.
    pub planned: bool,
    /// The op that used or made it last before.
    pub last_use: Option<OpIndex>,
    /// The op that uses it next; smaller than `last_use` where that is in the next step.
    pub next_use: Option<OpIndex>,
    /// The time between the two, as the step ran.
    #[serde(rename = "idle_ns")]
    pub idle: Nanos,
    /// Eviction of the storage.
    pub out: ExplainedTransfer,
    /// Fetch of the storage.
    pub back: Option<ExplainedTransfer>,
    /// Number of the ops in between that need more memory than there is if nothing ever leaves.
    pub ops_over_capacity: u32,
    /// Bytes by which the worst of them does.
    pub over_capacity: Bytes,
    /// Number of storages in memory at that moment that are used even later.
    pub better_left: u32,
    /// Storages that are used even later, and were out already.
    pub out_already: u32,
}

/// The step with the storage kept in memory, and the rest of the plan as it is: what lacks room
/// then is made room for on demand. Simulated.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct KeptInMemory {
    /// Duration of the step; `None` if an op does not fit at all.
    #[serde(rename = "time_ns")]
    pub time: Option<Nanos>,
    /// Bytes that the step writes to the SSDs.
    pub ssd_written: Option<Bytes>,
    /// Reason why it does not fit.
    pub refused: Option<String>,
}

impl Case<'_> {
    /// Returns the reason why this storage leaves, and what would be if it did not.
    ///
    /// # Errors
    /// If the step cannot be simulated for another reason than a lack of memory.
    pub fn storage(&self, storage: PlanStorage) -> Result<StorageAnswer, SimulateError> {
        let described = self.trace.storage(storage);
        let lifetimes = Lifetimes::of(self.trace);
        let places = ResidencyHistory::of(self);
        let uses: Vec<u32> =
            uses_by_storage(self.trace)[storage.0 as usize].iter().map(|at| at.op).collect();
        let leaving = self.transfers_of(storage).filter(|t| t.leaves());
        let absences: Vec<Absence> =
            leaving.map(|out| self.absence(&lifetimes, &places, &uses, out)).collect();
        let held = if absences.is_empty() { None } else { Some(self.held(storage)?) };
        let cleaned = self.transfers_of(storage).filter(|t| t.stays && t.ending == Ending::Moved);
        let cleaned = cleaned.map(ExplainedTransfer::from).collect();
        let periods = lifetimes.periods.iter().filter(|p| p.storage == storage);
        let idle = periods
            .filter(|period| period.end == PeriodEnd::Use)
            .map(|period| self.span(period.from, period.to))
            .max();
        Ok(StorageAnswer {
            name: self.trace.label(storage),
            kind: described.kind,
            size: described.size,
            movable: described.movable,
            uses: uses.len() as u32,
            idle_longest: idle.unwrap_or_default(),
            absences,
            cleaned,
            held,
        })
    }

    /// The storages that left, by the bytes that this wrote, largest first.
    pub fn most_written(&self) -> Vec<(PlanStorage, Bytes)> {
        let mut written = vec![0u64; self.trace.storages.len()];
        for transfer in &self.simulation.transfers {
            if transfer.direction == MigrationDirection::Out
                && ExplainedTransfer::from(transfer).moved
            {
                written[transfer.storage.0 as usize] += self.trace.storage(transfer.storage).size.0;
            }
        }
        let mut found: Vec<_> =
            (0..).map(PlanStorage).zip(written.into_iter().map(Bytes)).collect();
        found.retain(|(_, bytes)| bytes.0 > 0);
        found.sort_by_key(|(storage, bytes)| (std::cmp::Reverse(*bytes), *storage));
        found
    }

    fn absence(
        &self,
        lifetimes: &Lifetimes,
        places: &ResidencyHistory,
        uses: &[u32],
        out: &SimulatedTransfer,
    ) -> Absence {
        let ops = self.trace.ops.len() as u32;
        let is_global = matches!(self.trace.storage(out.storage).identity, Identity::Name(_));
        let gap = Gap::around(self.op_at(out.begin).0, uses, ops, is_global);
        let capacity = self.machine.capacity().0;
        let over = (gap.from..gap.to.unwrap_or(ops).max(gap.from))
            .map(|op| lifetimes.memory[(op % ops) as usize].0.saturating_sub(capacity));
        let over: Vec<u64> = over.filter(|bytes| *bytes > 0).collect();
        let rivals = used_later(self.trace, lifetimes, out.storage, &gap);
        let out_already = rivals.iter().filter(|rival| places.is_out(**rival, out.begin)).count();
        let returns =
            || self.transfers_of(out.storage).filter(|t| t.direction == MigrationDirection::In);
        // A global that leaves late comes back early in the next step, which is like this one.
        let back = returns().find(|t| t.begin >= out.end);
        let back = back.or_else(|| returns().next().filter(|_| is_global));
        Absence {
            planned: self.is_planned(out.storage, &gap),
            last_use: gap.last.map(|at| OpIndex(at % ops)),
            next_use: gap.to.map(|at| OpIndex(at % ops)),
            idle: self.span(gap.from, gap.to.unwrap_or(ops).max(gap.from)),
            out: out.into(),
            back: back.map(ExplainedTransfer::from),
            ops_over_capacity: over.len() as u32,
            over_capacity: Bytes(over.into_iter().max().unwrap_or(0)),
            better_left: (rivals.len() - out_already) as u32,
            out_already: out_already as u32,
        }
    }

    /// Returns whether the plan says that it leaves between its last use and now.
    fn is_planned(&self, storage: PlanStorage, gap: &Gap) -> bool {
        let ops = self.trace.ops.len() as u32;
        self.plan.is_some_and(|plan| {
            plan.rows.iter().any(|row| {
                row.leaves()
                    && row.storage == storage
                    && (row.start.0 + 2 * ops - gap.from) % ops <= gap.at - gap.from
            })
        })
    }

    fn held(&self, storage: PlanStorage) -> Result<KeptInMemory, SimulateError> {
        let mut trace = self.trace.clone();
        trace.storages[storage.0 as usize].movable = false;
        let mut plan = self.plan.cloned();
        if let Some(plan) = &mut plan {
            plan.rows.retain(|row| row.storage != storage);
            plan.fingerprint = trace.fingerprint();
        }
        let policy = plan.as_ref().map_or(Policy::Lru, Policy::Planned);
        match simulate(&trace, self.machine, policy) {
            Ok(simulation) => Ok(KeptInMemory {
                time: Some(simulation.time),
                ssd_written: Some(simulation.bytes.ssd_written),
                refused: None,
            }),
            Err(refused @ SimulateError::Refused { .. }) => Ok(KeptInMemory {
                time: None,
                ssd_written: None,
                refused: Some(refused.to_string()),
            }),
            Err(other) => Err(other),
        }
    }

    /// The time from the end of op `from - 1` to the beginning of op `to`, unrolled, as the step
    /// ran.
    fn span(&self, from: u32, to: u32) -> Nanos {
        let ops = self.trace.ops.len() as u32;
        let end_before = |op: u32| match op % ops {
            0 => u64::from(op / ops) * self.simulation.time.0,
            at => {
                let before = at as usize - 1;
                let end = self.simulation.begins[before].0 + self.trace.ops[before].duration.0;
                u64::from(op / ops) * self.simulation.time.0 + end
            }
        };
        let begin = |op: u32| {
            let at = self.simulation.begins[(op % ops) as usize].0;
            u64::from(op / ops) * self.simulation.time.0 + at
        };
        Nanos(begin(to).saturating_sub(end_before(from)))
    }
}

/// The time without a use in which a storage leaves, on a line of three iterations.
struct Gap {
    /// The op before which it leaves.
    at: u32,
    last: Option<u32>,
    /// The first op after the last use.
    from: u32,
    /// The next use.
    to: Option<u32>,
}

impl Gap {
    fn around(asked_at: u32, uses: &[u32], ops: u32, is_global: bool) -> Self {
        // Before the first use of a step it is the step before that left the storage waiting.
        let carried = uses.first().is_some_and(|first| *first >= asked_at);
        let at = asked_at + if carried { ops } else { 0 };
        let again = uses.iter().filter(|_| is_global).map(|use_| use_ + ops);
        let mut line: Vec<u32> = uses.iter().copied().chain(again).collect();
        line.sort_unstable();
        let next = line.partition_point(|use_| *use_ < at);
        let last = next.checked_sub(1).map(|last| line[last]);
        let from = last.map_or(at, |last| last + 1);
        Self { at, last, from, to: line.get(next).copied() }
    }
}

/// Movable storages, as large or larger, that wait when the gap's storage leaves, for longer than
/// it will.
fn used_later(
    trace: &Trace,
    lifetimes: &Lifetimes,
    storage: PlanStorage,
    gap: &Gap,
) -> Vec<PlanStorage> {
    let size = trace.storage(storage).size;
    let ops = trace.ops.len() as u32;
    let left = gap.to.map_or(u32::MAX, |to| to - gap.at);
    let waits = |period: &&Period| {
        let here = [gap.at % ops, gap.at % ops + ops];
        let covered = here.into_iter().find(|at| (period.from..period.to).contains(at));
        let later = |at: u32| period.end == PeriodEnd::Unused || period.to - at > left;
        period.storage != storage && period.size >= size && covered.is_some_and(later)
    };
    let mut found: Vec<_> = lifetimes.periods.iter().filter(waits).map(|p| p.storage).collect();
    found.dedup();
    found
}
