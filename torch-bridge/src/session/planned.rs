//! Steps, and the plan that they follow; `planning` says when one is made.

use std::sync::Arc;
use std::time::Instant;

use tidelog_planner::algorithm1::{self, algorithm1};
use tidelog_planner::cost::{HostLink, Machine, SsdLink};
use tidelog_planner::plan::{Plan, Target, compile};
use tidelog_planner::residency::{Progress, Schedule};
use tidelog_planner::simulate::{Runtime, SimulateError, with_expectations_under};
use tidelog_planner::tidelog::{self, tidelog};
use tidelog_planner::trace::{Kind, Trace};
use tidelog_planner::units::{Bandwidth, Nanos, OpIndex};

use super::open::LOOKAHEAD_OPS;
use super::{CurrentOp, Session, State};
use crate::abi::{Failure, Status};

/// Assumed of a pool until enough has moved to measure it.
const SSD_BANDWIDTH_DEFAULT: Bandwidth = Bandwidth(1_000_000_000);
/// Assumed of the link to host memory until then: half of what 16 lanes of PCI Express 4 carry.
const HOST_BANDWIDTH_DEFAULT: Bandwidth = Bandwidth(16_000_000_000);
/// What one transfer costs beyond its bytes: two boundary calls and a trip through the reactor, or the tier's thread.
const TRANSFER_LATENCY: Nanos = Nanos(200_000);
/// One core comparing checksums.
const VERIFY_BANDWIDTH: Bandwidth = Bandwidth(8_000_000_000);

/// Who makes the plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    /// TERAIO's algorithm, with clean drops.
    Algorithm1,
    /// The planner's own, simulated on what the devices and the runtime were measured to do.
    #[default]
    Tidelog,
}

impl Policy {
    /// What the ABI's number means.
    pub(crate) fn numbered(number: u8) -> Result<Self, Failure> {
        match number {
            0 => Ok(Self::default()),
            1 => Ok(Self::Algorithm1),
            2 => Ok(Self::Tidelog),
            _ => Err(Failure::invalid(format!("policy {number}: expected 0, 1 or 2"))),
        }
    }

    fn plan(
        self,
        trace: &Trace,
        machine: &Machine,
        runtime: Runtime,
    ) -> Result<Plan, SimulateError> {
        match self {
            Self::Algorithm1 => {
                let options =
                    algorithm1::Options { clean_drop: true, unused: true, ..Default::default() };
                let plan = algorithm1(trace, machine, options);
                // One that cannot be simulated serves all the same; it only promises less.
                let simulated = with_expectations_under(runtime, plan.clone(), trace, machine);
                Ok(simulated.map_or(plan, |(plan, _)| plan))
            }
            Self::Tidelog => {
                let options = tidelog::Options { runtime, ..Default::default() };
                Ok(tidelog(trace, machine, options)?.0)
            }
        }
    }
}

/// The plan that the session follows.
pub(super) struct Planned {
    pub(super) trace: Arc<Trace>,
    pub(super) machine: Machine,
    pub(super) plan: Plan,
    /// Per op, 1 where a migration begins: the caller must come by there.
    pub(super) due: Vec<u8>,
}

impl Session {
    /// A step begins (1), ends (0), or ends early because of an exception (2).
    pub(crate) fn step(&self, mark: i32) -> Result<i32, Failure> {
        match mark {
            1 => self.advance(|state| {
                state.figures.step_begins();
                state.ask_declined_again();
                state.op = CurrentOp::default();
                state.history.step_begins(Instant::now());
                state.sample();
                state.profile.step_begins();
                state.take_new_plan();
                state.machine.step_begin();
                state.machine.settle()
            }),
            0 | 2 => self.advance(|state| state.step_ends(mark == 0)),
            _ => Err(Failure::invalid(format!("step mark {mark}: expected 0, 1 or 2"))),
        }
    }

    /// The step follows the plan no longer.
    pub(crate) fn leave_plan(&self) -> i32 {
        self.lock().machine.leave_schedule();
        Status::Ready as i32
    }

    /// Which ops have a migration beginning, one byte each; empty without a plan. Stays where it is
    /// until the next step begins.
    pub(crate) fn due(&self) -> (*const u8, u64) {
        let state = self.lock();
        state.planned.as_ref().map_or((std::ptr::null(), 0), |planned| {
            (planned.due.as_ptr(), planned.due.len() as u64)
        })
    }
}

impl State {
    fn step_ends(&mut self, complete: bool) -> Progress {
        self.machine.step_end();
        let known = &self.known;
        let profiled = self.profile.step_ends(complete, |storage| {
            known.get(&storage).map_or((None, Kind::Activation, true), |known| {
                (known.name.as_deref().map(str::to_owned), known.kind, known.movable)
            })
        });
        if let Some(profiled) = profiled {
            self.plan_for(profiled);
        }
        self.figures.step_ends();
        self.last_followed = complete && self.machine.in_sync();
        if self.last_followed {
            self.watch_drift();
        }
        self.end_history(complete);
        self.machine.settle()
    }

    /// The plan's step is guarded op by op: from the first that differs on, the rest of the step is reactive.
    pub(super) fn follow(&mut self, index: u32, fingerprint: u64) {
        if self.planned.is_some()
            && !self.machine.expect(OpIndex(index), fingerprint)
            && let Some(reason) = self.machine.desync()
        {
            let text = format!("a step left the plan: {reason}; it went on reactively");
            self.notice_once("left the plan", &text);
        }
    }

    /// Keeps a message for the user; of those about one thing only the first.
    fn notice_once(&mut self, about: &str, text: &str) {
        if !self.notices.iter().any(|notice| notice.contains(about)) {
            self.notices.push(format!("{text} (said once)"));
        }
    }

    /// What a plan is made for, as far as transfers have shown it.
    pub(super) fn measured_machine(&self) -> Machine {
        let (read, write) = self.figures.bandwidths(Target::Ssd);
        Machine {
            budget: self.machine.budget(),
            staging: self.staging,
            ssd: SsdLink {
                read: read.unwrap_or(SSD_BANDWIDTH_DEFAULT),
                write: write.unwrap_or(SSD_BANDWIDTH_DEFAULT),
                latency: TRANSFER_LATENCY,
            },
            host: self.host_link(),
            verify: VERIFY_BANDWIDTH,
        }
    }

    /// What this session adds to a plan's moves, and what transfers take of the thread that runs the ops.
    pub(super) fn runtime(&self) -> Runtime {
        Runtime { lookahead: LOOKAHEAD_OPS, handling: self.figures.handling() }
    }
}

impl State {
    /// Host memory as the planner sees it, where there is any for copies.
    fn host_link(&self) -> Option<HostLink> {
        let memory = self.machine.host_memory();
        let (read, write) = self.figures.bandwidths(Target::Host);
        (memory.0 > 0).then(|| HostLink {
            read: read.unwrap_or(HOST_BANDWIDTH_DEFAULT),
            write: write.unwrap_or(HOST_BANDWIDTH_DEFAULT),
            latency: TRANSFER_LATENCY,
            memory,
        })
    }
}

impl Planned {
    /// Plans the trace's step on this machine: the plan, and what the residency machine follows of it.
    pub(super) fn make(
        policy: Policy,
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
        Ok((Self { trace: Arc::new(trace), machine, plan, due }, schedule))
    }
}
