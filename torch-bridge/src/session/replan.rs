//! Plans again when what the plan was made with has changed: on a thread of its own, while steps go on under the
//! old plan. The new one is taken over when a step begins.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tidelog_planner::cost::{Machine, SsdLink};
use tidelog_planner::residency::Schedule;
use tidelog_planner::simulate::SimulateError;
use tidelog_planner::trace::Trace;
use tidelog_planner::units::Nanos;

use super::State;
use super::drift::{Drift, Pace, difference};
use super::planned::Planned;

/// How a session's notice of a new plan begins.
const NOTICE: &str = "planned again";

/// What a session knows of its plans, one after the other.
#[derive(Default)]
pub(super) struct Replanning {
    drift: Drift,
    under_way: Option<Attempt>,
    /// Plans that took another's place.
    pub(super) taken_over: u64,
}

/// A plan that is being made.
struct Attempt {
    figures: Pace,
    thread: JoinHandle<Result<(Planned, Schedule), SimulateError>>,
}

impl Replanning {
    /// The first plan is followed from here on.
    pub(super) fn planned(&mut self, plan: &Planned) {
        let SsdLink { read, write, .. } = plan.machine.ssd;
        self.drift.planned_with(Pace { compute: None, read: Some(read), write: Some(write) });
    }
}

impl State {
    /// A step followed the plan to its end: plans again if such steps have drifted from what the plan expects.
    pub(super) fn watch_drift(&mut self) {
        let (Some(planned), None) = (&self.planned, &self.replanning.under_way) else { return };
        let Some(figures) = self.replanning.drift.step_ends(self.figures.pace()) else { return };
        let before = self.replanning.drift.assumed();
        let (policy, trace) = (self.policy, Arc::clone(&planned.trace));
        let machine =
            Machine { budget: self.machine.budget(), ..at_pace(planned.machine, figures) };
        let make =
            move || Planned::make(policy, scaled(&trace, before.compute, figures.compute), machine);
        match thread::Builder::new().name("tidelog-plan".to_owned()).spawn(make) {
            Ok(thread) => self.replanning.under_way = Some(Attempt { figures, thread }),
            Err(error) => self.stay_with_the_plan(&error.to_string()),
        }
    }

    /// Takes a plan over that has become ready. Before a step begins, so that none is of two plans.
    pub(super) fn take_new_plan(&mut self) {
        let Some(Attempt { figures, thread }) =
            self.replanning.under_way.take_if(|attempt| attempt.thread.is_finished())
        else {
            return;
        };
        let (planned, schedule) = match thread.join() {
            Ok(Ok(made)) => made,
            Ok(Err(error)) => return self.stay_with_the_plan(&error.to_string()),
            Err(_) => return self.stay_with_the_plan("internal error (please report it)"),
        };
        if !self.machine.exchange_schedule(Arc::new(schedule)) {
            return self.stay_with_the_plan("it is a plan for another step");
        }
        let why = difference(self.replanning.drift.assumed(), figures);
        self.replanning.drift.planned_with(figures);
        self.replanning.taken_over += 1;
        self.planned = Some(planned);
        self.notice_anew(NOTICE, &format!("before step {}: {why}", self.history.number()));
    }

    fn stay_with_the_plan(&mut self, why: &str) {
        self.replanning.drift.rest();
        self.notice_anew(NOTICE, &format!("in vain, the plan stays: {why}"));
    }

    /// Keeps the last message about one thing.
    fn notice_anew(&mut self, about: &str, text: &str) {
        self.notices.retain(|notice| !notice.starts_with(about));
        self.notices.push(format!("{about}, {text}"));
    }
}

/// The machine with the bandwidths that were measured.
fn at_pace(machine: Machine, figures: Pace) -> Machine {
    let SsdLink { read, write, latency } = machine.ssd;
    let (read, write) = (figures.read.unwrap_or(read), figures.write.unwrap_or(write));
    Machine { ssd: SsdLink { read, write, latency }, ..machine }
}

/// The trace with all ops as much slower or faster as the whole step: under a plan most ops run unseen.
fn scaled(trace: &Trace, before: Option<Nanos>, now: Option<Nanos>) -> Trace {
    let mut scaled = trace.clone();
    if let (Some(before), Some(now)) = (before, now) {
        for op in &mut scaled.ops {
            let duration = u128::from(op.duration.0) * u128::from(now.0);
            op.duration = Nanos((duration / u128::from(before.0.max(1))) as u64);
        }
    }
    scaled
}
