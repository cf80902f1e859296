//! Step of a simulated GPU: where its time went, and what was done.

use super::clocks::{CauseSpan, StepClocks, TimeCause};
use super::gpu::{GpuActivity, GpuSpan};
use crate::migration::MigrationDirection;
use crate::units::Nanos;
use serde::Serialize;

/// Counts of the program's thread and the allocator in a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct StepCounts {
    /// Times the thread waited until the GPU had nothing left to do.
    pub drains: u32,
    /// Number of times that the host waited for a transfer.
    pub host_waits: u32,
    /// Number of requests of the session: to evict, to fetch, to release.
    pub requests: u32,
    /// Calls of `cudaMalloc`.
    pub allocations: u32,
    /// Calls of `cudaFree`.
    pub releases: u32,
    /// Granules of 2 MiB that were mapped at another address.
    pub remapped: u32,
    /// Allocations for which there was room, but in pieces that were too small.
    pub misfits: u32,
}

/// A step on a GPU.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GpuStep {
    /// Time of each cause, in the order of [`TimeCause::ALL`]. The sum is the step's time.
    pub causes: [Nanos; TimeCause::ALL.len()],
    /// Time that the program's thread waited for transfers, whether the GPU computed or not.
    pub thread_waited: Nanos,
    /// Counts of the step.
    pub counts: StepCounts,
    /// The two clocks, from the step's beginning.
    pub clocks: StepClocks,
}

impl GpuStep {
    /// Returns the time of a cause.
    pub fn of(&self, cause: TimeCause) -> Nanos {
        self.causes[cause as usize]
    }

    /// The step's parts on the GPU, by cause, from `began` on.
    pub(super) fn explained(
        began: u64,
        spans: &[GpuSpan],
        thread: &[CauseSpan],
        counts: StepCounts,
    ) -> Self {
        let since = |at: u64| Nanos(at.saturating_sub(began));
        let thread = thread.iter().map(|span| CauseSpan {
            begin: since(span.begin.0),
            end: since(span.end.0),
            ..*span
        });
        let gpu = spans.iter().map(|span| {
            let cause = match span.activity {
                GpuActivity::Kernel => Some(TimeCause::Kernels),
                GpuActivity::Checksum => Some(TimeCause::Checksums),
                GpuActivity::Waited(direction) => Some(TimeCause::of_copy(direction)),
                GpuActivity::Unlaunched => None,
            };
            (since(span.begin), since(span.end), cause)
        });
        let clocks = StepClocks::explained(gpu, thread.collect());
        Self { causes: clocks.causes(), thread_waited: clocks.thread_waited(), counts, clocks }
    }
}

/// Returns the reason why a thread waited from `begin` to `end`, by the stages of the transfer
/// whose end it saw then.
pub(super) fn waited_for_transfer(
    [begin, end]: [u64; 2],
    [copied, complete]: [u64; 2],
    direction: MigrationDirection,
    is_recheck: bool,
) -> [CauseSpan; 3] {
    let checked = if is_recheck { TimeCause::Rechecks } else { TimeCause::Checksums };
    let copy = if is_recheck { checked } else { TimeCause::of_copy(direction) };
    let copied = copied.clamp(begin, end);
    let complete = complete.clamp(copied, end);
    let span = |begin, end, cause| CauseSpan { begin: Nanos(begin), end: Nanos(end), cause };
    [
        span(begin, copied, copy),
        span(copied, complete, checked),
        span(complete, end, TimeCause::WakeUps),
    ]
}
