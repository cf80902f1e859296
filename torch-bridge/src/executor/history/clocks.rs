//! Clocks of a step: what the program's thread did is seen here, what a GPU did is told by the
//! caller, which has its events.

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tidelog_planner::migration::MigrationDirection;
use tidelog_planner::residency::CopyKind;
use tidelog_planner::simulate::{CauseSpan, StepClocks, TimeCause, laid_over};
use tidelog_planner::units::Nanos;

use super::recorder::RecordedStep;
use crate::executor::transfer::{StorageTransfer, TransferDirection};

/// Span of a step that the caller has seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ToldSpan {
    /// Time at which it began, before it was told.
    pub(crate) began_ago: Duration,
    /// Time at which it ended, before it was told.
    pub(crate) ended_ago: Duration,
    /// Cause of the time; `None`: nothing was launched, and what the thread did then is the cause.
    pub(crate) cause: Option<TimeCause>,
    /// True for the thread's clock, false for the GPU's.
    pub(crate) of_thread: bool,
}

/// Returns the reason why a thread waits that waits for a transfer.
pub(super) fn cause_of(transfer: &StorageTransfer) -> TimeCause {
    match transfer.direction {
        TransferDirection::In => TimeCause::of_copy(MigrationDirection::In),
        TransferDirection::Out(CopyKind::Write) => TimeCause::of_copy(MigrationDirection::Out),
        TransferDirection::Out(CopyKind::Verify) => TimeCause::Checksums,
        TransferDirection::Out(CopyKind::Recheck) => TimeCause::Rechecks,
    }
}

/// Returns the thread's clock of a step of this length, in which it did this, by time; the rest is
/// `otherwise`.
pub(super) fn of_thread(length: Nanos, did: &[CauseSpan], otherwise: TimeCause) -> Vec<CauseSpan> {
    laid_over(&[CauseSpan { begin: Nanos(0), end: length, cause: otherwise }], did)
}

/// Returns the clocks of a step, of whose thread `thread` is known, with what was told now. `None`:
/// it was told of another step.
pub(super) fn with_told(
    step: &RecordedStep,
    thread: &[CauseSpan],
    told: &[ToldSpan],
    now: Instant,
) -> Option<StepClocks> {
    let at = |ago: Duration| step.since_begin(now.checked_sub(ago).unwrap_or(now));
    let first = told.iter().find(|span| !span.of_thread)?;
    let was_before = now.checked_sub(first.began_ago)? < step.began();
    if was_before || at(first.began_ago) > step.duration {
        return None;
    }
    let cut = |span: &ToldSpan| (at(span.began_ago), at(span.ended_ago).min(step.duration));
    let (mut gpu, mut of_thread, mut end) = (Vec::new(), Vec::new(), Nanos(0));
    for span in told {
        let (begin, until) = cut(span);
        match (span.of_thread, span.cause) {
            (true, Some(cause)) => of_thread.push(CauseSpan { begin, end: until, cause }),
            (true, None) => {}
            (false, cause) => {
                // What comes first there is behind what was launched before the step.
                if gpu.is_empty() {
                    gpu.push((Nanos(0), begin, Some(TimeCause::Kernels)));
                }
                gpu.push((begin, until, cause));
                end = end.max(until);
            }
        }
    }
    gpu.push((end, step.duration, None));
    Some(StepClocks::explained(gpu, laid_over(thread, &of_thread)))
}

/// Returns what took a step's time, as JSON.
pub(super) fn figures(step: &RecordedStep) -> Value {
    let clocks = &step.clocks;
    let causes = TimeCause::ALL.iter().zip(clocks.causes());
    let causes = causes.map(|(cause, time)| (cause.word().to_owned(), json!(time.0)));
    json!({
        "step": step.number,
        "clock": if clocks.gpu.is_empty() { "thread" } else { "gpu" },
        "time_ns": step.duration.0,
        "causes_ns": Value::Object(causes.collect::<Map<_, _>>()),
        "thread_waited_ns": clocks.thread_waited().0,
    })
}
