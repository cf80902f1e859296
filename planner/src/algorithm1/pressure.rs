//! Pressure on memory: the ops over capacity, for how long they are, and the effect of an eviction.

use super::ranges::{Ranges, signed};
use crate::cost::{Fenwick, Timeline};
use crate::units::{Bytes, Nanos};

/// The memory `M'` that each op needs under the rows chosen so far, against the capacity.
pub(super) struct Pressure {
    ops: u32,
    /// `M'` minus the capacity of each op that is still over it.
    over: Ranges,
    /// Durations of ops that are still over capacity, each plus one nanosecond (an op without a
    /// duration is worth relieving too), else 0.
    times: Fenwick,
    /// Number of ops that are still over capacity.
    count: u32,
}

impl Pressure {
    pub(super) fn new(memory: &[Bytes], capacity: Bytes, timeline: &Timeline) -> Self {
        let ops = memory.len() as u32;
        let over: Vec<i64> = memory.iter().map(|m| signed(*m) - signed(capacity)).collect();
        let time = |op: u32| timeline.begin(op + 1).0 - timeline.begin(op).0 + 1;
        let mut pressure = Self {
            ops,
            over: Ranges::new(&over),
            times: Fenwick::new((0..ops).map(time).collect()),
            count: ops,
        };
        pressure.settle();
        pressure
    }

    /// Returns whether every op fits.
    pub(super) fn relieved(&self) -> bool {
        self.count == 0
    }

    /// Returns the number of ops that do not fit.
    pub(super) fn ops_over(&self) -> u32 {
        self.count
    }

    /// Returns the bytes by which the worst op does not fit.
    pub(super) fn worst(&mut self) -> Bytes {
        Bytes(u64::try_from(self.over.maximum(0, self.ops)).unwrap_or(0))
    }

    /// The time of the ops of the unrolled range that are over capacity; 0 if none is.
    pub(super) fn time_over(&self, from: u32, to: u32) -> Nanos {
        let parts = rounds(self.ops, from, to).into_iter().filter(|(from, to)| from < to);
        let sum = |op: u32| self.times.before(op as usize);
        Nanos(parts.map(|(from, to)| sum(to) - sum(from)).sum())
    }

    /// Takes `size` from the ops of the unrolled range.
    pub(super) fn relieve(&mut self, from: u32, to: u32, size: Bytes) {
        for (from, to) in rounds(self.ops, from, to) {
            self.over.add(from, to, -signed(size));
        }
        self.settle();
    }

    fn settle(&mut self) {
        let (times, count) = (&mut self.times, &mut self.count);
        self.over.take_settled(|op| {
            times.subtract(op, times.get(op));
            *count -= 1;
        });
    }
}

/// An unrolled range (`from` below `2 K`, at most `K` long) as up to two ranges of one iteration.
pub(super) fn rounds(ops: u32, from: u32, to: u32) -> [(u32, u32); 2] {
    let (from, to) = if from >= ops { (from - ops, to - ops) } else { (from, to) };
    [(from, to.min(ops)), (0, to.saturating_sub(ops).min(from))]
}
