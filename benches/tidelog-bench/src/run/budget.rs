//! End of a job, by its budget.

use std::time::{Duration, Instant};

use crate::option::JobOptions;
use crate::stats::Recorder;

/// Remaining work of a job.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// Bytes that it may still begin to move; `None` while only time counts.
    bytes: Option<u64>,
    runtime: Option<Duration>,
    /// Operations that it may still begin.
    operations: Option<u64>,
}

impl Budget {
    /// Makes the budget of a job whose one pass moves `pass` bytes.
    pub(super) fn new(job: &JobOptions, pass: u64) -> Self {
        let bytes = job.io_size.map_or(pass.saturating_mul(job.loops), |size| size.of(pass));
        let operations = job.number_ios;
        Self { bytes: (!job.time_based).then_some(bytes), runtime: job.runtime, operations }
    }

    /// Lets nothing more begin.
    pub(super) fn end(&mut self) {
        self.bytes = Some(0);
    }

    /// Returns whether nothing more may be begun.
    pub(super) fn is_spent(&self, recorder: &Recorder, now: Instant) -> bool {
        self.is_used_up() || self.is_time_up(recorder, now)
    }

    /// Returns whether all bytes were begun.
    pub(super) fn is_used_up(&self) -> bool {
        self.bytes == Some(0) || self.operations == Some(0)
    }

    /// Returns whether the job ran for as long as it may.
    pub(super) fn is_time_up(&self, recorder: &Recorder, now: Instant) -> bool {
        self.runtime.is_some_and(|runtime| recorder.counted_for(now) >= runtime)
    }

    /// Takes one operation of `length` bytes out; the last may be larger than what was left.
    pub(super) fn take(&mut self, length: u64) {
        self.bytes = self.bytes.map(|left| left.saturating_sub(length));
        self.operations = self.operations.map(|left| left.saturating_sub(1));
    }
}
