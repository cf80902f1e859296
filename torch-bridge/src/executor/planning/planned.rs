//! A plan, and who makes it.

use std::sync::Arc;

use tidelog_planner::algorithm1::{self, algorithm1};
use tidelog_planner::cost::Machine;
use tidelog_planner::plan::{Plan, PlannedBytes, compile};
use tidelog_planner::residency::Schedule;
use tidelog_planner::simulate::{Runtime, SimulateError, with_expectations_under};
use tidelog_planner::tidelog::{self, tidelog};
use tidelog_planner::trace::Trace;
use tidelog_planner::units::Bytes;

/// Who makes the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum PlannerPolicy {
    /// TERAIO's algorithm, with clean drops.
    Algorithm1,
    /// The planner's own, simulated on what the devices and the runtime were measured to do.
    #[default]
    Tidelog,
}

impl PlannerPolicy {
    fn plan(
        self,
        trace: &Trace,
        machine: &Machine,
        runtime: Runtime,
    ) -> Result<Plan, SimulateError> {
        match self {
            Self::Algorithm1 => {
                let options = algorithm1::Algorithm1Options {
                    clean_drop: true,
                    unused: true,
                    ..Default::default()
                };
                let plan = algorithm1(trace, machine, options);
                // One that cannot be simulated serves all the same; it only promises less.
                let simulated = with_expectations_under(runtime, plan.clone(), trace, machine);
                Ok(simulated.map_or(plan, |(plan, _)| plan))
            }
            Self::Tidelog => {
                let options = tidelog::TidelogOptions { runtime, ..Default::default() };
                Ok(tidelog(trace, machine, options)?.0)
            }
        }
    }
}

/// The plan that the session follows.
pub(in crate::executor) struct Planned {
    pub(in crate::executor) trace: Arc<Trace>,
    pub(in crate::executor) machine: Machine,
    pub(in crate::executor) plan: Plan,
    /// Per op, 1 where a migration begins: the caller must come by there.
    pub(in crate::executor) due: Arc<[u8]>,
}

impl Planned {
    /// Plans the trace's step on this machine: the plan, and what the residency machine follows of
    /// it.
    pub(super) fn make(
        policy: PlannerPolicy,
        trace: Trace,
        machine: Machine,
        runtime: Runtime,
    ) -> Result<(Self, Schedule), SimulateError> {
        let plan = policy.plan(&trace, &machine, runtime)?;
        let schedule = compile(&plan, &trace)?;
        let mut due = vec![0; trace.ops.len()];
        for row in &plan.rows {
            due[row.start.0 as usize] = 1;
        }
        // The caller always comes by at the end, so that the machine knows how far the step came.
        if let Some(last) = due.last_mut() {
            *last = 1;
        }
        Ok((Self { trace: Arc::new(trace), machine, plan, due: due.into() }, schedule))
    }

    /// What the plan expects, in the words of a report.
    pub(super) fn expected(&self, replans: u64) -> Vec<(String, String)> {
        let (plan, expects) = (&self.plan, &self.plan.expects);
        let time = seconds(expects.time.0);
        let stalls = if expects.simulated {
            format!("{time} a step, {} of it waiting", seconds(expects.stall.0))
        } else {
            format!("{time} a step if no op waits")
        };
        vec![
            ("plan".to_owned(), format!("{}, {} migrations", plan.policy, plan.rows.len())),
            ("planned again".to_owned(), format!("{replans} times")),
            ("the plan expects".to_owned(), stalls),
            ("the plan moves".to_owned(), format!("{} a step", moves(&expects.bytes))),
        ]
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
