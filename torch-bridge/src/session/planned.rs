//! Steps, and the plan that they follow; `planning` says when one is made.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use tidelog_planner::algorithm1::{self, algorithm1};
use tidelog_planner::cost::{HostLink, Machine, SsdLink};
use tidelog_planner::migration::Target;
use tidelog_planner::plan::{Plan, compile};
use tidelog_planner::residency::{Progress, Schedule};
use tidelog_planner::simulate::{Runtime, SimulateError, with_expectations_under};
use tidelog_planner::tidelog::{self, tidelog};
use tidelog_planner::trace::{Kind, Trace};
use tidelog_planner::units::{Bandwidth, Nanos, OpIndex};

use super::open::LOOKAHEAD_OPS;
use super::{CurrentOp, Session, State};
use crate::abi::{Failure, Status};

/// Assumed of a pool until enough has moved to measure it, where no table tells how fast its links are.
const SSD_BANDWIDTH_DEFAULT: Bandwidth = Bandwidth(1_000_000_000);
/// Assumed of the link to host memory likewise: half of what 16 lanes of PCI Express 4 carry.
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

/// How fast a plan takes one direction to be, and by what.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Rate {
    #[serde(rename = "bytes_per_second")]
    pub(super) rate: Bandwidth,
    pub(super) from: &'static str,
}

impl Rate {
    /// What was measured, whatever a table says; else what the links carry; else what is assumed.
    fn of(measured: Option<Bandwidth>, link: Option<Bandwidth>, assumed: Bandwidth) -> Self {
        match (measured, link) {
            (Some(rate), _) => Self { rate, from: "measured" },
            (None, Some(rate)) => Self { rate, from: "links" },
            (None, None) => Self { rate: assumed, from: "assumed" },
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

    /// What a plan is made for now.
    pub(super) fn machine_now(&self) -> Machine {
        let (read, write) = self.ssd_rates();
        Machine {
            budget: self.machine.budget(),
            staging: self.staging,
            ssd: SsdLink { read: read.rate, write: write.rate, latency: TRANSFER_LATENCY },
            host: self.host_link(),
            verify: VERIFY_BANDWIDTH,
        }
    }

    /// From the pool, and to it.
    pub(super) fn ssd_rates(&self) -> (Rate, Rate) {
        let (read, write) = self.figures.bandwidths(Target::Ssd);
        let known = |measured| Rate::of(measured, self.links.ssd, SSD_BANDWIDTH_DEFAULT);
        (known(read), known(write))
    }

    /// From host memory, and to it, where there is any for copies.
    pub(super) fn host_rates(&self) -> Option<(Rate, Rate)> {
        let (read, write) = self.figures.bandwidths(Target::Host);
        let known = |measured| Rate::of(measured, self.links.gpu, HOST_BANDWIDTH_DEFAULT);
        (self.machine.host_memory().0 > 0).then(|| (known(read), known(write)))
    }

    /// What this session adds to a plan's moves, and what transfers take of the thread that runs the ops.
    pub(super) fn runtime(&self) -> Runtime {
        Runtime { lookahead: LOOKAHEAD_OPS, handling: self.figures.handling() }
    }
}

impl State {
    /// Host memory as the planner sees it.
    fn host_link(&self) -> Option<HostLink> {
        let memory = self.machine.host_memory();
        let link = |(read, write): (Rate, Rate)| HostLink {
            read: read.rate,
            write: write.rate,
            latency: TRANSFER_LATENCY,
            memory,
        };
        self.host_rates().map(link)
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidelog_planner::residency::{Config, Residency};
    use tidelog_planner::units::Bytes;

    use super::super::SessionConfig;
    use super::super::links::Links;
    use super::super::transfers::Direction;
    use super::*;
    use crate::abi::Place;

    fn opened_with(links: Links) -> State {
        let config = SessionConfig {
            devices: "",
            data_path: "",
            budget: 1 << 30,
            staging: 0,
            host_memory: 1 << 20,
            pool_size: 0,
            share: 0,
            buffered: false,
            must_exist: false,
            reactive: false,
            policy: Policy::default(),
            place: Place::Host,
            arena: None,
        };
        let host_memory = Bytes(config.host_memory);
        let config_of_machine = Config { host_memory, ..Config::new(Bytes(1 << 30), Bytes(0)) };
        State::new(Residency::new(config_of_machine), links, &config)
    }

    #[test]
    fn the_first_machine_is_what_the_links_carry() {
        let (ssd, gpu) = (Bandwidth(3), Bandwidth(5));
        let told = Links { ssd: Some(ssd), gpu: Some(gpu), told: Vec::new() };
        let rates = |machine: Machine| {
            let host = machine.host.unwrap();
            [machine.ssd.read, machine.ssd.write, host.read, host.write]
        };
        let mut state = opened_with(told);
        assert_eq!(rates(state.machine_now()), [ssd, ssd, gpu, gpu]);
        let untold = opened_with(Links::default()).machine_now();
        let (one, other) = (SSD_BANDWIDTH_DEFAULT, HOST_BANDWIDTH_DEFAULT);
        assert_eq!(rates(untold), [one, one, other, other]);

        state.figures.started(Direction::In, Target::Ssd);
        let moved = Some((Kind::Parameter, 32 << 20));
        let at = Instant::now() + Duration::from_secs(1);
        state.figures.finished((Direction::In, Target::Ssd), moved, at);
        let [read, write, ..] = rates(state.machine_now());
        assert!(read.0 > 1 << 20, "what was measured is not cut to what a link carries: {read:?}");
        assert_eq!(write, ssd, "nothing was written");
    }

    #[test]
    fn what_was_measured_comes_before_what_a_link_could_and_that_before_what_is_assumed() {
        let [measured, link, assumed] = [9, 7, 1].map(Bandwidth);
        let from = |measured, link| {
            let Rate { rate, from } = Rate::of(measured, link, assumed);
            (rate, from)
        };
        assert_eq!(from(Some(measured), Some(link)), (measured, "measured"), "more than the link");
        assert_eq!(from(Some(measured), None), (measured, "measured"));
        assert_eq!(from(None, Some(link)), (link, "links"));
        assert_eq!(from(None, None), (assumed, "assumed"));
    }
}
