//! Causes of a GPU's step time: every nanosecond of it has a cause.

use super::gpu::{GpuActivity, GpuSpan};
use crate::migration::MigrationDirection;
use crate::units::Nanos;
use serde::Serialize;

/// Cause of a step's time: kernels, or why the GPU computed none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum TimeCause {
    /// Kernels ran.
    Kernels,
    /// Checksums ran in their place, or the host waited for one.
    Checksums,
    /// Checks of written bytes, for which the host waited.
    Rechecks,
    /// Room, or the next kernel, waited for a copy out.
    CopiesOut,
    /// An op waited for a copy in.
    CopiesIn,
    /// Threads were woken.
    WakeUps,
    /// The program's thread was on its way to the next launch.
    Dispatch,
    /// Requests of the session.
    Requests,
    /// Allocator: the thread was in the GPU's allocator, or waited there for the GPU.
    Allocator,
}

impl TimeCause {
    /// Every cause, in the order of the table.
    pub const ALL: [Self; 9] = [
        Self::Kernels,
        Self::Checksums,
        Self::Rechecks,
        Self::CopiesOut,
        Self::CopiesIn,
        Self::WakeUps,
        Self::Dispatch,
        Self::Requests,
        Self::Allocator,
    ];

    /// Returns the name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Kernels => "kernels",
            Self::Checksums => "checksums",
            Self::Rechecks => "rechecks",
            Self::CopiesOut => "copies out",
            Self::CopiesIn => "copies in",
            Self::WakeUps => "wake-ups",
            Self::Dispatch => "dispatch",
            Self::Requests => "requests",
            Self::Allocator => "allocator",
        }
    }

    /// Returns whether the thread waits for a transfer, or is woken behind it.
    const fn is_wait(self) -> bool {
        use TimeCause::{Checksums, CopiesIn, CopiesOut, Rechecks, WakeUps};
        matches!(self, Checksums | Rechecks | CopiesOut | CopiesIn | WakeUps)
    }

    const fn of_copy(direction: MigrationDirection) -> Self {
        match direction {
            MigrationDirection::Out => Self::CopiesOut,
            MigrationDirection::In => Self::CopiesIn,
        }
    }
}

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
}

impl GpuStep {
    /// Returns the time of a cause.
    pub fn of(&self, cause: TimeCause) -> Nanos {
        self.causes[cause as usize]
    }

    /// The step's parts on the GPU, by cause. Where nothing was launched, what the thread did then
    /// is the cause.
    pub(super) fn explained(spans: &[GpuSpan], thread: &[ThreadSpan], counts: StepCounts) -> Self {
        let waits = thread.iter().filter(|span| span.cause.is_wait());
        let thread_waited = Nanos(waits.map(|span| span.end - span.begin).sum());
        let mut step = Self { thread_waited, counts, ..Self::default() };
        for span in spans {
            let cause = match span.activity {
                GpuActivity::Kernel => TimeCause::Kernels,
                GpuActivity::Checksum => TimeCause::Checksums,
                GpuActivity::Waited(direction) => TimeCause::of_copy(direction),
                GpuActivity::Unlaunched => {
                    step.add_thread(thread, [span.begin, span.end]);
                    continue;
                }
            };
            step.add(cause, span.end - span.begin);
        }
        step
    }

    fn add_thread(&mut self, thread: &[ThreadSpan], [begin, end]: [u64; 2]) {
        let first = thread.partition_point(|span| span.end <= begin);
        for span in &thread[first..] {
            if span.begin >= end {
                break;
            }
            self.add(span.cause, span.end.min(end) - span.begin.max(begin));
        }
    }

    fn add(&mut self, cause: TimeCause, nanos: u64) {
        self.causes[cause as usize].0 += nanos;
    }
}

/// Span of the program's thread in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThreadSpan {
    pub(super) begin: u64,
    pub(super) end: u64,
    pub(super) cause: TimeCause,
}

/// Returns the reason why a thread waited from `begin` to `end`, by the stages of the transfer
/// whose end it saw then.
pub(super) fn waited_for_transfer(
    [begin, end]: [u64; 2],
    [copied, complete]: [u64; 2],
    direction: MigrationDirection,
    is_recheck: bool,
) -> [ThreadSpan; 3] {
    let checked = if is_recheck { TimeCause::Rechecks } else { TimeCause::Checksums };
    let copy = if is_recheck { checked } else { TimeCause::of_copy(direction) };
    let copied = copied.clamp(begin, end);
    let complete = complete.clamp(copied, end);
    [
        ThreadSpan { begin, end: copied, cause: copy },
        ThreadSpan { begin: copied, end: complete, cause: checked },
        ThreadSpan { begin: complete, end, cause: TimeCause::WakeUps },
    ]
}
