//! The plan's simulation at the pace of the step that followed it last: what it says beside what
//! was measured.

use serde_json::{Value, json};
use tidelog_planner::simulate::{self, SimulateError, Simulation, simulate_under};
use tidelog_planner::units::Nanos;

use super::{Planned, at_pace, runtime, scaled};
use crate::executor::history::History;

/// Figures of a simulated step under the plan, as JSON; null without one.
pub(super) fn figures(planned: Option<&Planned>, history: &History) -> Value {
    match planned.map(|planned| simulate(planned, history)) {
        None => Value::Null,
        Some(Err(error)) => json!({ "why_not": error.to_string() }),
        Some(Ok(step)) => json!({
            "time_ns": step.time.0,
            "stall_ns": step.stall_time().0,
            "stalls": step.stalls.len(),
            "bytes_written": step.bytes.ssd_written.0,
            "bytes_read": step.bytes.ssd_read.0,
        }),
    }
}

/// Ops take what the last step took without its waits and without what the caller did for
/// transfers: which op took how much of it is as in the step that was profiled.
fn simulate(planned: &Planned, history: &History) -> Result<Simulation, SimulateError> {
    let (pace, handling) =
        (history.counters().last_pace(), history.counters().last_step().handling_ns);
    let ops = pace.compute.map(|took| Nanos(took.0.saturating_sub(handling)));
    let trace = scaled(planned.moved(), Some(planned.trace.duration()), ops);
    let machine = at_pace(planned.machine, pace);
    simulate_under(runtime(history), &trace, &machine, simulate::Policy::Planned(&planned.plan))
}
