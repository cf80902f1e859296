//! Makes plans on a thread of their own, while steps go on: the first once two steps were alike, another when what the
//! plan was made with has changed. A new plan is taken over when a step begins, so that none is of two plans.

use std::sync::Arc;
use std::thread::{self, JoinHandle};

use tidelog_planner::cost::{Machine, SsdLink};
use tidelog_planner::residency::{Schedule, StorageId};
use tidelog_planner::simulate::SimulateError;
use tidelog_planner::trace::{PlanStorage, Trace};
use tidelog_planner::units::Nanos;

use super::State;
use super::drift::{Drift, Pace, difference};
use super::planned::Planned;
use super::profile::Profiled;

/// How a session's notice of another plan begins.
const NOTICE: &str = "planned again";

/// Which living storage is meant by each name of a trace.
type Bindings = Vec<(PlanStorage, StorageId)>;

type Made = Result<(Planned, Schedule), SimulateError>;

/// What a session knows of its plans, one after the other.
#[derive(Default)]
pub(super) struct Planning {
    drift: Drift,
    under_way: Option<Attempt>,
    /// Of the step that has just ended, if the first plan is being made for such steps.
    bindings: Option<Bindings>,
    /// Plans that took another's place.
    pub(super) taken_over: u64,
}

/// A plan that is being made.
struct Attempt {
    occasion: Occasion,
    thread: JoinHandle<Made>,
}

/// Why a plan is made.
enum Occasion {
    /// Two steps with a trace of this fingerprint were alike.
    First { fingerprint: u64 },
    /// Steps have come to run like this.
    Drift(Pace),
}

impl Planning {
    /// Whether a plan is being made. One that is ready waits for a step to begin.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way.as_ref().is_some_and(|attempt| !attempt.thread.is_finished())
    }

    /// The storage died between two steps: its number may mean another one when the next begins.
    pub(super) fn died(&mut self, storage: StorageId) {
        if let Some(bindings) = &mut self.bindings {
            bindings.retain(|(_, bound)| *bound != storage);
        }
    }

    fn is_for(&self, wanted: u64) -> bool {
        self.under_way.as_ref().is_some_and(|attempt| {
            matches!(attempt.occasion, Occasion::First { fingerprint } if fingerprint == wanted)
        })
    }

    /// The attempt that has come to an end and can be taken over.
    fn take_ended(&mut self, has_bindings: bool) -> Option<Attempt> {
        self.under_way.take_if(|attempt| {
            let usable = has_bindings || matches!(attempt.occasion, Occasion::Drift(_));
            usable && attempt.thread.is_finished()
        })
    }
}

impl State {
    /// A step was like the one before: plans for such steps, unless that is under way already.
    pub(super) fn plan_for(&mut self, profiled: Profiled) {
        let Profiled { trace, bindings } = profiled;
        let fingerprint = trace.fingerprint();
        self.planning.bindings = Some(bindings);
        if self.planning.is_for(fingerprint) {
            return;
        }
        let (policy, machine, runtime) = (self.policy, self.machine_now(), self.runtime());
        let make = move || Planned::make(policy, trace, machine, runtime);
        if let Err(why) = self.begin_planning(Occasion::First { fingerprint }, make) {
            self.stay_reactive(&why);
        }
    }

    /// A step followed the plan to its end: plans again if such steps have drifted from what the plan expects.
    pub(super) fn watch_drift(&mut self) {
        let (Some(planned), None) = (&self.planned, &self.planning.under_way) else { return };
        let Some(figures) = self.planning.drift.step_ends(self.figures.last_pace) else { return };
        let before = self.planning.drift.assumed();
        let (policy, trace) = (self.policy, Arc::clone(&planned.trace));
        let (budget, runtime) = (self.machine.budget(), self.runtime());
        let machine = Machine { budget, ..at_pace(planned.machine, figures) };
        let make = move || {
            let trace = scaled(&trace, before.compute, figures.compute);
            Planned::make(policy, trace, machine, runtime)
        };
        if let Err(why) = self.begin_planning(Occasion::Drift(figures), make) {
            self.stay_with_the_plan(&why);
        }
    }

    fn begin_planning(
        &mut self,
        occasion: Occasion,
        make: impl FnOnce() -> Made + Send + 'static,
    ) -> Result<(), String> {
        let thread = thread::Builder::new().name("tidelog-plan".to_owned()).spawn(make);
        let thread = thread.map_err(|error| error.to_string())?;
        self.planning.under_way = Some(Attempt { occasion, thread });
        Ok(())
    }

    /// Takes a plan over that has become ready. The first one needs to know who is who; it waits for a step
    /// like those that it was made for to end.
    pub(super) fn take_new_plan(&mut self) {
        let bindings = self.planning.bindings.take();
        let Some(Attempt { occasion, thread }) = self.planning.take_ended(bindings.is_some())
        else {
            return;
        };
        let made = match thread.join() {
            Ok(made) => made.map_err(|error| error.to_string()),
            Err(_) => Err("internal error (please report it)".to_owned()),
        };
        match (occasion, made) {
            (Occasion::First { .. }, Ok((planned, schedule))) => {
                self.follow_first(planned, schedule, bindings.unwrap_or_default());
            }
            (Occasion::First { .. }, Err(why)) => self.stay_reactive(&why),
            (Occasion::Drift(figures), Ok((planned, schedule))) => {
                self.follow_another(planned, schedule, figures);
            }
            (Occasion::Drift(_), Err(why)) => self.stay_with_the_plan(&why),
        }
    }

    fn follow_first(&mut self, planned: Planned, schedule: Schedule, bindings: Bindings) {
        self.profile.recording = false;
        self.machine.load_schedule(Arc::new(schedule));
        for (planned, storage) in bindings {
            self.machine.bind(planned, storage);
        }
        let SsdLink { read, write, .. } = planned.machine.ssd;
        let figures = Pace { compute: None, read: Some(read), write: Some(write) };
        self.planning.drift.planned_with(figures);
        self.planned = Some(planned);
    }

    fn follow_another(&mut self, planned: Planned, schedule: Schedule, figures: Pace) {
        if !self.machine.exchange_schedule(Arc::new(schedule)) {
            return self.stay_with_the_plan("it is a plan for another step");
        }
        let why = difference(self.planning.drift.assumed(), figures);
        self.planning.drift.planned_with(figures);
        self.planning.taken_over += 1;
        self.planned = Some(planned);
        self.notice_anew(NOTICE, &format!("before step {}: {why}", self.history.number()));
    }

    fn stay_reactive(&mut self, why: &str) {
        self.profile.recording = false;
        self.notices.push(format!("no plan: {why}; going on reactively"));
    }

    fn stay_with_the_plan(&mut self, why: &str) {
        self.planning.drift.rest();
        self.notice_anew(NOTICE, &format!("in vain, the plan stays: {why}"));
    }

    /// Keeps the last message about one thing.
    fn notice_anew(&mut self, about: &str, text: &str) {
        self.notices.retain(|notice| !notice.starts_with(about));
        self.notices.push(format!("{about}, {text}"));
    }
}

/// The machine with the bandwidths that were measured.
pub(super) fn at_pace(machine: Machine, figures: Pace) -> Machine {
    let SsdLink { read, write, latency } = machine.ssd;
    let (read, write) = (figures.read.unwrap_or(read), figures.write.unwrap_or(write));
    Machine { ssd: SsdLink { read, write, latency }, ..machine }
}

/// The trace with all ops as much slower or faster as the whole step: under a plan most ops run unseen.
pub(super) fn scaled(trace: &Trace, before: Option<Nanos>, now: Option<Nanos>) -> Trace {
    let mut scaled = trace.clone();
    if let (Some(before), Some(now)) = (before, now) {
        for op in &mut scaled.ops {
            let duration = u128::from(op.duration.0) * u128::from(now.0);
            op.duration = Nanos((duration / u128::from(before.0.max(1))) as u64);
        }
    }
    scaled
}
