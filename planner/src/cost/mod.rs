//! Costs of moving: the machine's links, and when each op would run if nothing waited.

pub(crate) mod check;
mod fenwick;
mod ledger;

use crate::trace::Trace;
use crate::units::{Bandwidth, Bytes, Nanos};
use serde::{Deserialize, Serialize};

pub use check::MachineError;
pub(crate) use fenwick::Fenwick;
pub use ledger::Ledger;

/// The way to the SSDs, all of a pool taken together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SsdLink {
    /// Bytes per second in.
    pub read: Bandwidth,
    /// Bytes per second out.
    pub write: Bandwidth,
    /// Time of one transfer beyond its bytes.
    #[serde(rename = "latency_ns")]
    pub latency: Nanos,
}

/// The way to host memory, where the tensors live on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HostLink {
    /// Bytes per second from host memory.
    pub read: Bandwidth,
    /// Bytes per second into host memory.
    pub write: Bandwidth,
    /// Time of one transfer beyond its bytes.
    #[serde(rename = "latency_ns")]
    pub latency: Nanos,
    /// The most host memory that evicted tensors may take.
    pub memory: Bytes,
}

/// Machine for which a plan is made. Every figure is the user's or measured; none is guessed here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The most bytes that tensors and staging may take together.
    pub budget: Bytes,
    /// The part of the budget that the engine's staging buffers take.
    pub staging: Bytes,
    /// The pool of SSDs.
    pub ssd: SsdLink,
    /// Host memory as a second target, where there is any to use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostLink>,
    /// Rate at which memory is compared with a copy's checksums (a clean eviction costs that).
    pub verify: Bandwidth,
}

impl Machine {
    /// The bytes that are left for tensors.
    pub fn capacity(&self) -> Bytes {
        Bytes(self.budget.0.saturating_sub(self.staging.0))
    }
}

/// Times at which each op begins and ends if nothing waits, over two iterations.
#[derive(Clone, Debug)]
pub struct Timeline {
    /// Times at which each op of two iterations begins; the last entry is the end of the second.
    begins: Vec<Nanos>,
}

impl Timeline {
    /// The timeline of a valid trace.
    pub fn of(trace: &Trace) -> Self {
        let mut begins = Vec::with_capacity(2 * trace.ops.len() + 1);
        let mut now = 0;
        for op in trace.ops.iter().chain(&trace.ops) {
            begins.push(Nanos(now));
            now += op.duration.0;
        }
        begins.push(Nanos(now));
        Self { begins }
    }

    /// The number of ops in one iteration.
    pub fn ops(&self) -> u32 {
        (self.begins.len() as u32 - 1) / 2
    }

    /// The length of one iteration.
    pub fn period(&self) -> Nanos {
        self.begin(self.ops())
    }

    /// Returns the time at which the unrolled op `op` (up to `2 K`) begins.
    pub fn begin(&self, op: u32) -> Nanos {
        self.begins[op as usize]
    }

    /// The first unrolled op in `from..=to` that begins at `time` or later; `to` if none does.
    pub fn first_beginning_at(&self, time: Nanos, from: u32, to: u32) -> u32 {
        self.partition(from, to, |begin| begin < time)
    }

    /// The last unrolled op in `from..=to` that begins at `time` or earlier; `from` if none does.
    pub fn last_beginning_by(&self, time: Nanos, from: u32, to: u32) -> u32 {
        self.partition(from, to + 1, |begin| begin <= time).saturating_sub(1).max(from)
    }

    /// The first op in `from..to` whose begin fails `before`; `to` if none does.
    fn partition(&self, from: u32, to: u32, before: impl Fn(Nanos) -> bool) -> u32 {
        let (mut low, mut high) = (from, to);
        while low < high {
            let middle = low + (high - low) / 2;
            if before(self.begin(middle)) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }
}

#[cfg(test)]
mod tests;
