//! A plan that a session follows, and which policy makes plans.

use std::sync::Arc;

use tidelog_planner::cost::Machine;
use tidelog_planner::parts::PartedStep;
use tidelog_planner::plan::{Plan, PlanError, PlannedBytes, compile, compile_in_parts};
use tidelog_planner::residency::Schedule;
use tidelog_planner::trace::Trace;
use tidelog_planner::units::Bytes;

/// Planner of the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlannerPolicy {
    /// TERAIO's algorithm, with clean drops.
    Algorithm1,
    /// The planner's own, simulated on what the devices and the runtime were measured to do.
    #[default]
    Tidelog,
}

/// The plan that the session follows.
pub(in crate::executor) struct Planned {
    pub(in crate::executor) trace: Arc<Trace>,
    /// The step in the parts that it moves; `None`: it moves whole storages.
    pub(in crate::executor) parts: Option<Arc<PartedStep>>,
    pub(in crate::executor) machine: Machine,
    pub(in crate::executor) plan: Plan,
    /// Ops, each 1 where a migration begins: the caller must come by there.
    pub(in crate::executor) due: Arc<[u8]>,
}

impl Planned {
    /// The plan, and what the residency machine follows of it.
    pub(super) fn of(
        plan: Plan,
        trace: &Arc<Trace>,
        machine: Machine,
    ) -> Result<(Self, Schedule), PlanError> {
        let schedule = compile(&plan, trace)?;
        Ok((Self::with(plan, trace, None, machine), schedule))
    }

    /// Makes the plan that moves parts.
    pub(super) fn of_parts(
        (plan, step): (Plan, PartedStep),
        trace: &Arc<Trace>,
        machine: Machine,
    ) -> Result<(Self, Schedule), PlanError> {
        let schedule = compile_in_parts(&plan, &step)?;
        Ok((Self::with(plan, trace, Some(Arc::new(step)), machine), schedule))
    }

    fn with(
        plan: Plan,
        trace: &Arc<Trace>,
        parts: Option<Arc<PartedStep>>,
        machine: Machine,
    ) -> Self {
        let mut due = vec![0; trace.ops.len()];
        for row in &plan.rows {
            due[row.start.0 as usize] = 1;
        }
        // The caller always comes by at the end, so that the machine knows how far the step came.
        if let Some(last) = due.last_mut() {
            *last = 1;
        }
        Self { trace: Arc::clone(trace), parts, machine, plan, due: due.into() }
    }

    /// The trace whose storages its rows move.
    pub(super) fn moved(&self) -> &Trace {
        self.parts.as_ref().map_or(&self.trace, |step| &step.trace)
    }

    /// Returns the plan's expectation in the words of a report.
    pub(super) fn expected(&self, replans: u64, improvements: u64) -> Vec<(String, String)> {
        let (plan, expects) = (&self.plan, &self.plan.expects);
        let time = seconds(expects.time.0);
        let stalls = if expects.simulated {
            format!("{time} a step, {} of it waiting", seconds(expects.stall.0))
        } else {
            format!("{time} a step if no op waits")
        };
        let parts = self.parts.as_ref().map(|step| {
            let (storages, parts) = step.counts();
            ("parts".to_owned(), format!("{storages} storages move in {parts} parts"))
        });
        let figures = vec![
            ("plan".to_owned(), format!("{}, {} migrations", plan.policy, plan.rows.len())),
            ("planned again".to_owned(), format!("{replans} times")),
            ("better plans found".to_owned(), improvements.to_string()),
            ("the plan expects".to_owned(), stalls),
            ("the plan moves".to_owned(), format!("{} a step", moves(&expects.bytes))),
        ];
        figures.into_iter().chain(parts).collect()
    }
}

fn moves(bytes: &PlannedBytes) -> String {
    let ssd = format!("{} out and {} back", bytes.ssd_written, bytes.ssd_read);
    match (bytes.host_written, bytes.host_read) {
        (Bytes(0), Bytes(0)) => ssd,
        (out, back) => format!("{ssd}, {out} to host memory and {back} from it"),
    }
}

pub(super) fn seconds(nanos: u64) -> String {
    format!("{}.{:03} s", nanos / 1_000_000_000, nanos / 1_000_000 % 1000)
}

#[cfg(test)]
mod tests {
    use super::Planned;
    use std::sync::Arc;
    use tidelog_planner::cost::{Machine, SsdLink};
    use tidelog_planner::instances::{deep_network, magnified};
    use tidelog_planner::lifetime::Lifetimes;
    use tidelog_planner::parts::{Cuts, PartedStep};
    use tidelog_planner::tidelog::{TidelogOptions, tidelog};
    use tidelog_planner::units::{Bandwidth, Bytes, Nanos};

    /// Parts move in a schedule that is compiled for them alone.
    #[test]
    fn a_plan_that_moves_parts_is_refused() {
        let trace = deep_network(4);
        let rate = Bandwidth(16_000_000_000);
        let machine = Machine {
            budget: Bytes(Lifetimes::of(&trace).peak().0 / 2),
            staging: Bytes(0),
            ssd: SsdLink { read: rate, write: rate, latency: Nanos(1000) },
            host: None,
            verify: rate,
        };
        let (trace, machine) = magnified(&trace, &machine, 8);
        let step = PartedStep::of(&trace, &Cuts::into_parts_of(&trace, Bytes(4 << 20)));
        let (plan, _) = tidelog(&step.trace, &machine, TidelogOptions::default()).unwrap();
        assert!(plan.rows_of_parts > 0);
        for followed in [trace, step.trace] {
            let refused = Planned::of(plan.clone(), &Arc::new(followed), machine);
            let told = refused.err().expect("it moves parts").to_string();
            assert!(told.contains("training moves storages whole: plan again without"), "{told}");
        }
    }
}
