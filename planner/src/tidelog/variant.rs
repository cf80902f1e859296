//! Variants of the passes of a sweep, and the times that a plan is made for.

use crate::simulate::Simulation;
use crate::trace::{Op, Trace};

/// Preferences of a pass where both ways may be right. Times are those in which the SSDs write a
/// part of the capacity: what matters is how much memory waits for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    /// Bytes leave, or come, once an op ahead would have to wait if they began this part later.
    pub(super) out_parts: u64,
    pub(super) in_parts: u64,
    /// A link is given more when it has less than this part to do beyond the next op.
    pub(super) queue_parts: u64,
    /// Cost of a write, in percent of a read.
    pub(super) write_percent: u32,
    /// True if a write counts as shared by the periods that its copy serves.
    pub(super) shares_writes: bool,
    /// True if the peak is expected to be met by drops as far as there are copies.
    pub(super) expects_drops: bool,
    /// Least time out of memory for which a storage leaves, in percent of its own round trip.
    pub(super) pays_percent: u32,
}

/// Variants of a pass. Where kernels hide most transfers, short queues keep memory for what comes
/// next; where the links are the limit, they must never run dry, and bytes must be few. The last
/// two write least.
pub(super) const VARIANTS: [Variant; 6] = [
    Variant { shares_writes: false, ..variant([16, 16, 128], 900, 100) },
    variant([64, 256, 1024], 0, 400),
    variant([64, 16, 256], 0, 100),
    variant([16, 64, 1024], 100, 100),
    Variant { expects_drops: true, ..variant([64, 64, 128], 900, 100) },
    Variant { expects_drops: true, ..variant([1024, 64, 512], 400, 100) },
];

/// Variants whose plans are made whatever they cost: they are the best ones most of the time.
pub(super) const FIRST: [usize; 4] = [0, 1, 0, 1];

/// Variants whose plans are made, too, where storages are assigned to tiers.
pub(super) const ASSIGNED: [usize; 3] = [4, 2, 5];

/// Begin with the stalls of the first plan of [`STALLED_LIKE`] instead of none at all.
pub(super) const STALLED: [usize; 2] = [2, 3];
pub(super) const STALLED_LIKE: usize = 1;

const fn variant(parts: [u64; 3], write_percent: u32, pays_percent: u32) -> Variant {
    let [out_parts, in_parts, queue_parts] = parts;
    let (shares_writes, expects_drops) = (true, false);
    Variant {
        out_parts,
        in_parts,
        queue_parts,
        write_percent,
        shares_writes,
        expects_drops,
        pays_percent,
    }
}

/// Guess of the times of an iteration's ops.
#[derive(Clone, Debug)]
pub(super) struct Guess {
    /// Each op with the wait before it.
    pub(super) durations: Vec<u64>,
}

impl Guess {
    pub(super) fn without_waits(trace: &Trace) -> Self {
        Self { durations: trace.ops.iter().map(|op| op.duration.0).collect() }
    }

    /// Takes the times of a simulated iteration.
    pub(super) fn of(trace: &Trace, simulation: &Simulation) -> Self {
        let mut guess = Self::without_waits(trace);
        for stall in &simulation.stalls {
            guess.durations[stall.op.0 as usize] += stall.length.0;
        }
        guess
    }

    /// Scales the waits to `percent`.
    pub(super) fn with_waits(&self, trace: &Trace, percent: u64) -> Self {
        let scaled = |(op, taken): (&Op, &u64)| {
            let (runs, taken) = (u128::from(op.duration.0), u128::from(*taken));
            let waits = (taken - runs) * u128::from(percent) / 100;
            u64::try_from(runs + waits).unwrap_or(u64::MAX / 4)
        };
        Self { durations: trace.ops.iter().zip(&self.durations).map(scaled).collect() }
    }

    /// Returns when each op begins, over two iterations, and when the last one ends.
    pub(super) fn begins(&self) -> Vec<u64> {
        let mut begins = vec![0];
        for duration in self.durations.iter().chain(&self.durations) {
            begins.push(begins[begins.len() - 1] + duration);
        }
        begins
    }

    pub(super) fn never_waits(&self, trace: &Trace) -> bool {
        trace.ops.iter().zip(&self.durations).all(|(op, taken)| op.duration.0 == *taken)
    }
}
