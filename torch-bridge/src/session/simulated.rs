//! The plan's simulation at the pace of the step that followed it last: what it says beside what was measured.

use serde_json::{Value, json};
use tidelog_planner::simulate::{Policy, SimulateError, Simulation, simulate_under};
use tidelog_planner::trace::Trace;
use tidelog_planner::units::Nanos;

use super::planned::Planned;
use super::planning::{at_pace, scaled};
use super::{Session, State};

impl Session {
    /// Figures of a simulated step at the pace of the last one, as JSON; null where that followed no plan to its end.
    pub(crate) fn simulated_json(&self) -> String {
        self.lock().simulated().to_string()
    }
}

impl State {
    fn simulated(&self) -> Value {
        let followed = self.planned.as_ref().filter(|_| self.last_followed);
        match followed.map(|planned| self.simulate(planned)) {
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

    /// Ops take what the last step took without its waits and without what the caller did for transfers: which op took
    /// how much of it is as in the step that was profiled.
    fn simulate(&self, planned: &Planned) -> Result<Simulation, SimulateError> {
        let (pace, step) = (self.figures.last_pace, self.figures.last_step);
        let ops = pace.compute.map(|took| Nanos(took.0.saturating_sub(step.handling_ns)));
        let trace: Trace = scaled(&planned.trace, Some(planned.trace.duration()), ops);
        let machine = at_pace(planned.machine, pace);
        simulate_under(self.runtime(), &trace, &machine, Policy::Planned(&planned.plan))
    }
}
