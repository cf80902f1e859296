//! Lateness of a plan's deadlines.

use std::time::Duration;

use hdrhistogram::Histogram;

/// Lateness of the transfers of a replayed plan.
#[derive(Clone, Debug)]
pub struct Lateness {
    /// Iterations that came to their end.
    pub iterations: u64,
    /// The time that all ops took, with the waiting.
    pub time: Duration,
    /// The part of it in which an op waited for a transfer.
    pub stall: Duration,
    /// Number of ops that waited.
    pub stalled_ops: u64,
    /// Transfers whose op was reached.
    pub transfers: u64,
    /// Number of transfers that were not complete then.
    pub missed: u64,
    /// Lateness in nanoseconds; what was in time counts as 0.
    pub histogram: Histogram<u64>,
    /// Time that the plan's maker expects one iteration to take.
    pub expected_time: Duration,
    /// Stall that the plan's maker expects.
    pub expected_stall: Duration,
    /// Rows of all iterations that need no device.
    pub left_out: u64,
}

impl Default for Lateness {
    fn default() -> Self {
        let histogram = Histogram::new_with_bounds(1, 3_600_000_000_000, 3);
        Self {
            iterations: 0,
            time: Duration::ZERO,
            stall: Duration::ZERO,
            stalled_ops: 0,
            transfers: 0,
            missed: 0,
            histogram: histogram.expect("the bounds are valid constants"),
            expected_time: Duration::ZERO,
            expected_stall: Duration::ZERO,
            left_out: 0,
        }
    }
}

impl Lateness {
    /// Counts a transfer that was complete when its op was reached.
    pub fn in_time(&mut self) {
        self.transfers += 1;
        self.histogram.saturating_record(0);
    }

    /// Counts one that was not.
    pub fn late(&mut self, by: Duration) {
        self.transfers += 1;
        self.missed += 1;
        self.histogram.saturating_record(by.as_nanos() as u64);
    }

    /// Counts an op that waited.
    pub fn stalled(&mut self, wait: Duration) {
        self.stalled_ops += 1;
        self.stall += wait;
    }

    /// The time of one iteration.
    pub fn time_each(&self) -> Duration {
        self.time / u32::try_from(self.iterations.max(1)).unwrap_or(u32::MAX)
    }

    /// The waiting in one iteration.
    pub fn stall_each(&self) -> Duration {
        self.stall / u32::try_from(self.iterations.max(1)).unwrap_or(u32::MAX)
    }
}
