//! The reason why an op waits.

use super::{Case, ExplainedTransfer, Named, has_ended};
use crate::migration::{MigrationDirection, Target};
use crate::simulate::{OpStall, SimulatedTransfer};
use crate::trace::PlanStorage;
use crate::units::{Bytes, Nanos, OpIndex};
use serde::Serialize;

/// A link that was this busy had nothing more to give, in per mille of the time.
const BUSY_PER_MILLE: u64 = 950;

/// Explanation of an op's wait.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct OpAnswer {
    /// Index of the op.
    pub op: OpIndex,
    /// The name.
    pub name: String,
    /// Time at which it began to run, from the step's beginning.
    #[serde(rename = "begin_ns")]
    pub begin: Nanos,
    /// Time for which it waited before.
    #[serde(rename = "waited_ns")]
    pub waited: Nanos,
    /// Bytes that it uses, and bytes that it makes.
    pub uses: Bytes,
    /// Bytes that it makes.
    pub makes: Bytes,
    /// The reason why it waited; `None` if it did not.
    pub cause: Option<Cause>,
}

/// The reason why an op waited.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Cause {
    /// The link in had nothing more to give: it moved bytes nearly all the time in which the
    /// storage could have come back.
    Reads {
        /// Object of the wait.
        awaited: WaitTarget,
    },
    /// The storage could not have come earlier, because memory was full.
    Full {
        /// Object of the wait.
        awaited: WaitTarget,
        /// The least room between the time at which it should have been asked for and that at which
        /// it was.
        least_room: Bytes,
    },
    /// The storage could have come earlier: the plan did not ask in time.
    Late {
        /// Object of the wait.
        awaited: WaitTarget,
        /// The least room in that time.
        least_room: Bytes,
    },
    /// Memory was missing for what the op makes or brings back: what left was still being written.
    Room {
        /// Storages that left meanwhile, largest first.
        leaving: Vec<Named>,
        /// Share of the wait in which the link out moved bytes, per mille.
        link_busy_per_mille: u64,
    },
}

/// A storage that an op waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaitTarget {
    /// Storage that was not there.
    pub storage: Named,
    /// Fetch of the storage.
    pub back: Option<ExplainedTransfer>,
    /// True if the plan says that it comes back; otherwise it was asked for when the op needed it.
    pub planned: bool,
    /// Time before the op at which it would have had to be requested on an idle link.
    #[serde(rename = "needs_ns")]
    pub needs: Nanos,
    /// Time before the op at which it was requested.
    #[serde(rename = "asked_before_ns")]
    pub asked_before: Nanos,
    /// Earliest time before the op at which it could have come: out by then, and memory not full
    /// since.
    #[serde(rename = "possible_before_ns")]
    pub possible_before: Nanos,
    /// Share of the time from then until it was there in which the link in moved bytes, per mille.
    pub link_busy_per_mille: u64,
}

/// Waiting time by what it was for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct WaitedTime {
    /// The link in was the limit.
    #[serde(rename = "reads_ns")]
    pub reads: Nanos,
    /// Memory was full.
    #[serde(rename = "full_ns")]
    pub full: Nanos,
    /// The plan asked too late.
    #[serde(rename = "late_ns")]
    pub late: Nanos,
    /// Time in which nothing could be made before something had been written.
    #[serde(rename = "room_ns")]
    pub room: Nanos,
}

impl Case<'_> {
    /// Explains the wait of op `op`, which must be one of the trace.
    pub fn op(&self, op: OpIndex) -> OpAnswer {
        let described = &self.trace.ops[op.0 as usize];
        let stall = self.simulation.stalls.iter().find(|stall| stall.op == op);
        let size = |storage: PlanStorage| self.trace.storage(storage).size.0;
        OpAnswer {
            op,
            name: described.name.clone(),
            begin: self.simulation.begins[op.0 as usize],
            waited: stall.map_or(Nanos(0), |stall| stall.length),
            uses: Bytes(described.uses.iter().map(|used| size(used.storage)).sum()),
            makes: Bytes(described.births.iter().map(|birth| size(birth.storage)).sum()),
            cause: stall.map(|stall| self.cause(stall)),
        }
    }

    /// The ops that waited, longest first.
    pub fn longest_waits(&self) -> Vec<OpIndex> {
        let mut stalls: Vec<&OpStall> = self.simulation.stalls.iter().collect();
        stalls.sort_by_key(|stall| (std::cmp::Reverse(stall.length), stall.op));
        stalls.into_iter().map(|stall| stall.op).collect()
    }

    /// All waiting of the step by its causes.
    pub fn waited(&self) -> WaitedTime {
        let mut sum = WaitedTime::default();
        for stall in &self.simulation.stalls {
            let part = match self.cause(stall) {
                Cause::Reads { .. } => &mut sum.reads,
                Cause::Full { .. } => &mut sum.full,
                Cause::Late { .. } => &mut sum.late,
                Cause::Room { .. } => &mut sum.room,
            };
            part.0 += stall.length.0;
        }
        sum
    }

    fn cause(&self, stall: &OpStall) -> Cause {
        let end = Nanos(stall.begin.0 + stall.length.0);
        // Of several storages that were not there the one that came last held the op up.
        let used = self.trace.ops[stall.op.0 as usize].uses.iter();
        let coming = used
            .filter_map(|used| self.arrival(used.storage, stall.begin, end))
            .max_by_key(|transfer| transfer.end);
        match coming {
            Some(transfer) => self.awaited(transfer, stall),
            None => self.room(stall, end),
        }
    }

    /// The transfer that brought a storage back within a wait.
    fn arrival(&self, storage: PlanStorage, from: Nanos, to: Nanos) -> Option<&SimulatedTransfer> {
        let mut back = self.transfers_of(storage).filter(|t| t.direction == MigrationDirection::In);
        back.find(|t| from < t.end && t.end <= to)
    }

    fn awaited(&self, transfer: &SimulatedTransfer, stall: &OpStall) -> Cause {
        let named = self.named(transfer.storage);
        let needs = self.unloaded(transfer.target, named.size);
        let should_ask = Nanos(stall.begin.0.saturating_sub(needs.0));
        let left = self
            .transfers_of(transfer.storage)
            .filter(|t| t.leaves() && t.end <= transfer.begin)
            .last()
            .map_or(Nanos(0), |t| t.end);
        // It could come once it was out and, after that, once memory was not full any more.
        let full = self.last_full(left, transfer.begin, named.size);
        let possible = full.unwrap_or(left);
        let busy = self.busy(MigrationDirection::In, transfer.target, possible, transfer.end);
        let link_busy_per_mille = busy.0 * 1000 / transfer.end.0.saturating_sub(possible.0).max(1);
        let planned = self.plan.is_some_and(|plan| {
            let mut rows = plan.rows.iter();
            rows.any(|row| {
                row.direction == MigrationDirection::In && row.storage == transfer.storage
            })
        });
        let awaited = WaitTarget {
            storage: named.clone(),
            back: Some(transfer.into()),
            planned,
            needs,
            asked_before: Nanos(stall.begin.0.saturating_sub(transfer.begin.0)),
            possible_before: Nanos(stall.begin.0.saturating_sub(possible.0)),
            link_busy_per_mille,
        };
        let least_room = self.least_room(should_ask.max(left), transfer.begin.max(should_ask));
        if full.is_some_and(|full| full > should_ask) {
            Cause::Full { awaited, least_room }
        } else if link_busy_per_mille >= BUSY_PER_MILLE {
            Cause::Reads { awaited }
        } else {
            Cause::Late { awaited, least_room }
        }
    }

    /// Returns the last moment between two at which there was no space for `size`.
    fn last_full(&self, from: Nanos, to: Nanos, size: Bytes) -> Option<Nanos> {
        let samples = &self.simulation.memory;
        let end = samples.partition_point(|sample| sample.at < to);
        let room = |held: u64| self.machine.capacity().0.saturating_sub(held);
        let full = samples[..end]
            .iter()
            .rposition(|sample| room(sample.resident.0 + sample.moving.0) < size.0)?;
        // A sample holds until the next.
        let until = samples.get(full + 1).map_or(to, |next| next.at.min(to));
        (until > from).then_some(until)
    }

    fn room(&self, stall: &OpStall, end: Nanos) -> Cause {
        let leaving = self
            .simulation
            .transfers
            .iter()
            .filter(|t| t.leaves() && has_ended(t) && stall.begin < t.end && t.end <= end);
        let mut leaving: Vec<&SimulatedTransfer> = leaving.collect();
        let size = |t: &SimulatedTransfer| self.trace.storage(t.storage).size;
        leaving.sort_by_key(|t| (std::cmp::Reverse(size(t)), t.storage));
        let busy = [Target::Ssd, Target::Host]
            .map(|target| self.busy(MigrationDirection::Out, target, stall.begin, end).0)
            .into_iter()
            .max()
            .unwrap_or(0);
        Cause::Room {
            leaving: leaving.into_iter().map(|t| self.named(t.storage)).collect(),
            link_busy_per_mille: busy * 1000 / stall.length.0.max(1),
        }
    }

    fn unloaded(&self, target: Target, bytes: Bytes) -> Nanos {
        let host = self.machine.host.filter(|_| target == Target::Host);
        let (rate, latency) =
            host.map_or((self.machine.ssd.read, self.machine.ssd.latency), |h| (h.read, h.latency));
        Nanos(rate.time_for(bytes).0 + latency.0)
    }
}
