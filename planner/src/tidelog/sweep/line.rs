//! The line of ops ahead, if nothing more is decided: how much memory each op would meet, and how
//! early bytes must begin to move so that no op waits.

use super::super::tree::RangeMaximum;
use super::{ITERATIONS, signed};
use crate::cost::Machine;
use crate::units::{Bandwidth, Bytes};

pub(super) struct SweepLine {
    pub(super) ops: u32,
    /// Time at which each op would begin by the guess.
    begins: Vec<u64>,
    /// Worth of being away until an op, summed up: its time, or a part of it where all fits.
    worth: Vec<u64>,
    /// Bytes per op, if what is out comes back for its next use.
    memory: RangeMaximum,
    /// Range maximum of the time on the way out, less the time until the op.
    out: RangeMaximum,
    /// Time that what is out and used by an op takes on the way in, less the time until the op.
    back: RangeMaximum,
    out_rate: Bandwidth,
    back_rate: Bandwidth,
}

impl SweepLine {
    pub(super) fn new(
        machine: &Machine,
        alive: &[Bytes],
        durations: &[u64],
        rates: [Bandwidth; 2],
    ) -> Self {
        let ops = alive.len();
        let length = (ITERATIONS + 1) as usize * ops;
        let mut begins = vec![0; length + 1];
        let mut worth = vec![0; length + 1];
        let capacity = machine.capacity().0;
        for op in 0..length {
            let duration = durations[op % ops];
            begins[op + 1] = begins[op] + duration;
            let is_short = alive[op % ops].0 > capacity;
            let counted = if is_short { duration } else { duration / WHERE_ALL_FITS_PARTS };
            worth[op + 1] = worth[op] + counted;
        }
        // In the first iteration nothing is left of one before it: close enough, it is not kept.
        let [out_rate, back_rate] = rates;
        let memory: Vec<i64> = (0..length).map(|op| signed(alive[op % ops].0)).collect();
        let time_out = |bytes: i64| signed(out_rate.time_for(Bytes(bytes.unsigned_abs())).0);
        let free = time_out(signed(capacity));
        let over = |op: usize| time_out(memory[op]) - free - signed(begins[op]);
        let out: Vec<i64> = (0..length).map(over).collect();
        let back: Vec<i64> = begins[..length].iter().map(|begin| -signed(*begin)).collect();
        Self {
            ops: ops as u32,
            memory: RangeMaximum::new(&memory),
            out: RangeMaximum::new(&out),
            back: RangeMaximum::new(&back),
            begins,
            worth,
            out_rate,
            back_rate,
        }
    }

    /// One op beyond the line.
    pub(super) fn end(&self) -> u32 {
        (ITERATIONS + 1) * self.ops
    }

    /// The guessed time from one op to a later one.
    pub(super) fn time(&self, from: u32, to: u32) -> u64 {
        self.begins[to.min(self.end()) as usize] - self.begins[from.min(self.end()) as usize]
    }

    pub(super) fn worth(&self, from: u32, to: u32) -> u64 {
        self.worth[to.min(self.end()) as usize] - self.worth[from as usize]
    }

    /// Returns the time of a storage's way out and back.
    pub(super) fn round_trip(&self, size: u64) -> u64 {
        self.out_rate.time_for(Bytes(size)).0 + self.back_rate.time_for(Bytes(size)).0
    }

    /// The most bytes that an op of the range would meet.
    pub(super) fn most(&self, from: u32, to: u32) -> i64 {
        self.memory.maximum(from as usize, to as usize)
    }

    /// Returns the time for which nothing needs to leave yet.
    pub(super) fn slack_out(&self, at: u32) -> i64 {
        self.slack(&self.out, at)
    }

    /// Returns the time for which nothing needs to come yet.
    pub(super) fn slack_in(&self, at: u32) -> i64 {
        self.slack(&self.back, at)
    }

    fn slack(&self, pressure: &RangeMaximum, at: u32) -> i64 {
        let end = (at + self.ops).min(self.end());
        -(pressure.maximum(at as usize, end as usize) + signed(self.begins[at as usize]))
    }

    /// Notes that a storage is out until `next` (or, with sign -1, that it is not any more).
    /// `leaves`: whether it takes time on the way out that was not expected to be saved; `returns`:
    /// whether it has to come back.
    pub(super) fn project(&mut self, at: u32, next: u32, size: i64, leaves: bool, returns: bool) {
        let (from, to, end) = (at as usize, next.min(self.end()) as usize, self.end() as usize);
        let bytes = Bytes(size.unsigned_abs());
        self.memory.add(from, to, -size);
        if leaves {
            self.out.add(from, to, -size.signum() * signed(self.out_rate.time_for(bytes).0));
        }
        if returns {
            self.back.add(to, end, size.signum() * signed(self.back_rate.time_for(bytes).0));
        }
    }

    /// Expects that bytes of these ops can go without a write when they must.
    pub(super) fn expect_drop(&mut self, from: u32, to: u32, size: u64) {
        let end = self.end();
        let time = signed(self.out_rate.time_for(Bytes(size)).0);
        self.out.add(from.min(end) as usize, to.min(end) as usize, -time);
    }

    /// The first op within an iteration from `at` that begins this long after it, or later.
    pub(super) fn op_after(&self, at: u32, time: u64) -> u32 {
        let begin = self.begins[at as usize] + time;
        let after = self.begins[at as usize..].partition_point(|at| *at < begin) as u32;
        (at + after).min(at + self.ops - 1)
    }
}

/// Part of its time, 1 / this, that being away is worth where everything fits: only enough to tell
/// who goes first.
const WHERE_ALL_FITS_PARTS: u64 = 16;
