//! Clocks of a step: what a GPU did, what the program's thread did, and why the GPU computed
//! nothing: every nanosecond of a step has a cause. A simulated step and a measured one have the
//! same causes.

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

    /// Returns the word of files and figures.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kernels => "kernels",
            Self::Checksums => "checksums",
            Self::Rechecks => "rechecks",
            Self::CopiesOut => "copies_out",
            Self::CopiesIn => "copies_in",
            Self::WakeUps => "wake_ups",
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

    /// Returns the cause of a wait for a copy.
    pub const fn of_copy(direction: MigrationDirection) -> Self {
        match direction {
            MigrationDirection::Out => Self::CopiesOut,
            MigrationDirection::In => Self::CopiesIn,
        }
    }
}

/// Span of a clock in a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CauseSpan {
    /// Time at which it begins.
    pub begin: Nanos,
    /// Time at which it ends.
    pub end: Nanos,
    /// Cause of the time.
    pub cause: TimeCause,
}

impl CauseSpan {
    /// Returns how long it is.
    pub fn length(&self) -> Nanos {
        Nanos(self.end.0.saturating_sub(self.begin.0))
    }

    /// The part of it from `begin` to `end`.
    fn within(&self, begin: Nanos, end: Nanos) -> Self {
        Self { begin: self.begin.max(begin), end: self.end.min(end), ..*self }
    }
}

/// Spans of a step's clocks, by time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepClocks {
    /// Clock of the GPU. Empty where tensors are the host's: the thread computes.
    pub gpu: Vec<CauseSpan>,
    /// Clock of the program's thread.
    pub thread: Vec<CauseSpan>,
}

impl StepClocks {
    /// Makes the clocks of a step from what the GPU did, by time, and from what the thread did.
    /// Where nothing was launched (`None`), what the thread did then is the cause.
    pub fn explained(
        gpu: impl IntoIterator<Item = (Nanos, Nanos, Option<TimeCause>)>,
        thread: Vec<CauseSpan>,
    ) -> Self {
        let mut explained = Vec::new();
        for (begin, end, cause) in gpu {
            if let Some(cause) = cause {
                push(&mut explained, CauseSpan { begin, end, cause });
                continue;
            }
            let first = thread.partition_point(|span| span.end <= begin);
            let spans = thread[first..].iter().take_while(|span| span.begin < end);
            spans.for_each(|span| push(&mut explained, span.within(begin, end)));
        }
        Self { gpu: explained, thread }
    }

    /// Returns the time of each cause, in the order of [`TimeCause::ALL`]: of the GPU's clock, or
    /// of the thread's where that computes.
    pub fn causes(&self) -> [Nanos; TimeCause::ALL.len()] {
        let mut causes = [Nanos(0); TimeCause::ALL.len()];
        let computes = if self.gpu.is_empty() { &self.thread } else { &self.gpu };
        for span in computes {
            causes[span.cause as usize].0 += span.length().0;
        }
        causes
    }

    /// Returns the time that the thread waited for transfers, whether the GPU computed or not.
    pub fn thread_waited(&self) -> Nanos {
        let waits = self.thread.iter().filter(|span| span.cause.is_wait());
        Nanos(waits.map(|span| span.length().0).sum())
    }
}

/// Returns a clock that shows `over` and, where that has nothing, `under`: spans by the time at
/// which they begin. Outside of `under` there is nothing.
pub fn laid_over(under: &[CauseSpan], over: &[CauseSpan]) -> Vec<CauseSpan> {
    let mut clock = Vec::new();
    let mut rest = over.iter().peekable();
    for span in under {
        let mut from = span.begin;
        while let Some(next) = rest.peek() {
            if next.begin >= span.end {
                break;
            }
            push(&mut clock, span.within(from, next.begin));
            push(&mut clock, next.within(from, span.end));
            from = from.max(next.end);
            if next.end > span.end {
                break;
            }
            rest.next();
        }
        push(&mut clock, span.within(from, span.end));
    }
    clock
}

/// Adds a span behind the others, unless it is empty.
fn push(clock: &mut Vec<CauseSpan>, span: CauseSpan) {
    match clock.last_mut() {
        _ if span.begin >= span.end => {}
        Some(last) if last.cause == span.cause && last.end == span.begin => last.end = span.end,
        _ => clock.push(span),
    }
}

#[cfg(test)]
mod tests {
    use super::TimeCause::{Allocator, CopiesIn, Dispatch, Kernels, Requests};
    use super::*;

    fn spans(of: &[(u64, u64, TimeCause)]) -> Vec<CauseSpan> {
        let span = |&(begin, end, cause)| CauseSpan { begin: Nanos(begin), end: Nanos(end), cause };
        of.iter().map(span).collect()
    }

    #[test]
    fn what_lies_over_a_clock_hides_what_is_below() {
        let under = spans(&[(0, 10, Dispatch), (10, 30, Requests), (30, 50, Dispatch)]);
        let over = spans(&[(2, 4, Allocator), (8, 12, Allocator), (20, 40, CopiesIn)]);
        let expected = [
            (0, 2, Dispatch),
            (2, 4, Allocator),
            (4, 8, Dispatch),
            (8, 12, Allocator),
            (12, 20, Requests),
            (20, 40, CopiesIn),
            (40, 50, Dispatch),
        ];
        assert_eq!(laid_over(&under, &over), spans(&expected));
        assert_eq!(laid_over(&under, &[]), under);
        let longer = spans(&[(5, 90, CopiesIn)]);
        let expected = [(0, 5, Dispatch), (5, 50, CopiesIn)];
        assert_eq!(laid_over(&under, &longer), spans(&expected));
        // What overlaps in itself is cut.
        let twice = spans(&[(0, 8, Allocator), (4, 6, CopiesIn), (7, 9, CopiesIn)]);
        let expected = [(0, 8, Allocator), (8, 9, CopiesIn), (9, 10, Dispatch)];
        assert_eq!(laid_over(&under[..1], &twice), spans(&expected));
    }

    #[test]
    fn where_nothing_was_launched_the_thread_is_the_cause() {
        let thread = spans(&[(0, 10, Dispatch), (10, 40, CopiesIn), (40, 100, Dispatch)]);
        let (kernels, idle) = (Some(Kernels), None);
        let gpu = [(0, 5, kernels), (5, 45, idle), (45, 90, kernels), (90, 100, Some(CopiesIn))];
        let gpu = gpu.map(|(begin, end, cause)| (Nanos(begin), Nanos(end), cause));
        let clocks = StepClocks::explained(gpu, thread);
        let expected = [
            (0, 5, Kernels),
            (5, 10, Dispatch),
            (10, 40, CopiesIn),
            (40, 45, Dispatch),
            (45, 90, Kernels),
            (90, 100, CopiesIn),
        ];
        assert_eq!(clocks.gpu, spans(&expected));
        let sum: u64 = clocks.causes().iter().map(|cause| cause.0).sum();
        assert_eq!((sum, clocks.thread_waited()), (100, Nanos(30)));
    }
}
