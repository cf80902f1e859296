//! Plans: what a step does is recorded, planned for, and followed.
//!
//! Plans are looked for on a thread of their own, while steps go on: first once two steps were
//! alike, again when what the plan was made with has changed. The first plan comes soon, a better
//! one whenever it is found. A new plan is taken over when a step begins, so that no step follows
//! two plans. Until there is one a step is expected to be like the last.

mod drift;
mod held_back;
mod last_step;
mod links;
mod pace;
mod planned;
mod profile;
#[cfg(test)]
mod profile_tests;
mod rates;
mod regions;
mod remade;
mod search;
mod simulated;

use std::sync::Arc;
use std::time::Instant;

use serde_json::Value;
use tidelog_planner::cost::{HostLink, Machine, SsdLink};
use tidelog_planner::endurance::WriteBudget;
use tidelog_planner::gpu_step::session_runtime;
use tidelog_planner::recompute::{CheckpointedRegion, SameWrites};
use tidelog_planner::residency::{OpUse, Residency, Schedule, StorageId};
use tidelog_planner::simulate::{GpuRuntime, Runtime};
use tidelog_planner::tidelog::Goal;
use tidelog_planner::trace::Trace;
use tidelog_planner::units::{Bytes, Nanos, OpIndex};

use super::history::History;
use super::parts::{Bindings, Divisible, StorageParts};
use super::step_rate::StepRate;
use super::storages::Storages;
use super::write_budget::rated;
use crate::memory::{MemoryPlace, has_gpu_arena};
use drift::{Drift, difference};
use held_back::HeldBack;
use last_step::{ExpectedStep, LastStep};
use profile::{Profile, Profiled};
use regions::{ChoiceTask, RegionChoice};
use remade::FillPlace;
use search::{Attempt, Occasion, PlanSearch, PlanTask};

pub(super) use links::LinkRates;
pub(super) use planned::Planned;
pub(crate) use planned::PlannerPolicy;
pub(super) use rates::{Rate, SessionRates};

/// Ops ahead whose storages are brought back and get their room, whatever the plan's moves do:
/// enough for a transfer of some MiB to be through in time, few enough that what comes back early
/// takes little room.
pub(super) const LOOKAHEAD_OPS: u32 = 32;
/// Prefix of a session's notice of another plan.
const NOTICE: &str = "planned again";

/// Plans of a session, one after the other.
pub(super) struct Planning {
    policy: PlannerPolicy,
    /// Storages of which plans may move parts.
    moves_parts: Divisible,
    /// Bytes of the pool's staging memory, which a plan leaves free.
    staging: Bytes,
    /// Memory of the tensors.
    place: MemoryPlace,
    links: LinkRates,
    /// Bytes that storages may write a day.
    write_budget: Option<Bytes>,
    profile: Profile,
    held_back: HeldBack,
    /// The plan that steps follow.
    planned: Option<Planned>,
    /// True if the last step followed the plan to its end.
    last_followed: bool,
    drift: Drift,
    under_way: Option<Attempt>,
    /// Choice of regions, if somebody has asked.
    choice: Option<RegionChoice>,
    /// Ops of the step that the plan is for that write the same bytes, for the next choice.
    same_writes: Vec<SameWrites>,
    /// The step that has just ended, if it was recorded.
    last_step: Option<LastStep>,
    /// The place at which what was empty is filled.
    fill_place: FillPlace,
    /// Expected steps until there is a plan.
    expected: Option<ExpectedStep>,
    /// The first plan is not taken over yet, though it is ready.
    holds_first: bool,
    /// Plans that took another's place, since what that was made with had changed.
    replans: u64,
    /// Plans that took another's place, since they are better.
    improvements: u64,
    /// Notices on plans for the user.
    notices: Vec<String>,
}

impl Planning {
    /// Plans by that policy, or never.
    pub(super) fn new(
        policy: PlannerPolicy,
        reactive: bool,
        staging: Bytes,
        (place, links): (MemoryPlace, LinkRates),
    ) -> Self {
        Self {
            policy,
            moves_parts: Divisible::None,
            staging,
            place,
            links,
            write_budget: None,
            profile: Profile::new(!reactive),
            held_back: HeldBack::default(),
            planned: None,
            last_followed: false,
            drift: Drift::default(),
            under_way: None,
            choice: None,
            same_writes: Vec::new(),
            last_step: None,
            fill_place: FillPlace::default(),
            expected: None,
            holds_first: false,
            replans: 0,
            improvements: 0,
            notices: Vec::new(),
        }
    }

    /// Lets plans move parts of these storages.
    pub(super) fn move_parts(&mut self, of: Divisible) {
        self.moves_parts = of;
        if self.policy == PlannerPolicy::Algorithm1 {
            self.notices.push("no parts: the published algorithm moves whole storages".to_owned());
        }
    }

    /// Has plans keep to another write budget, as far as any can. Steps that are planned
    /// for are planned for again.
    pub(super) fn set_write_budget(
        &mut self,
        per_day: Option<Bytes>,
        machine: &Residency,
        history: &History,
    ) {
        if self.write_budget == per_day {
            return;
        }
        self.write_budget = per_day;
        let is_first = |attempt: &mut Attempt| matches!(attempt.occasion, Occasion::First { .. });
        if self.under_way.take_if(is_first).is_none() {
            self.plan_again(
                Occasion::WriteBudget(per_day),
                self.drift.assumed(),
                (machine, history),
            );
        }
    }

    /// Sets the part of the write budget that storages may write, as devices write more than these
    /// have.
    pub(super) fn storages_may_write(&mut self, per_day: Bytes) {
        self.write_budget = Some(per_day);
    }

    pub(super) fn born(&mut self, storage: StorageId, size: u64, place: Option<(OpIndex, u16)>) {
        self.profile.born(storage, size, place);
    }

    /// A storage has another size. Returns the place at which it is filled, if it was empty.
    pub(super) fn resized(
        &mut self,
        storage: StorageId,
        was_empty: bool,
        size: u64,
    ) -> Option<(OpIndex, u16)> {
        let place = if was_empty && size != 0 { self.fill_place.next() } else { None };
        self.profile.resized(storage, was_empty, size, place);
        place
    }

    pub(super) fn died(&mut self, storage: StorageId) {
        self.profile.died(storage);
        if let Some(last) = &mut self.last_step {
            last.died(storage);
        }
    }

    /// A step begins: a plan that has become ready is taken over. Without one the step is expected
    /// to be like the last.
    pub(super) fn step_begins(
        &mut self,
        machine: &mut Residency,
        parts: &mut StorageParts,
        step: u64,
    ) {
        self.profile.step_begins();
        self.fill_place = FillPlace::default();
        let last_step = self.last_step.take();
        if self.planned.is_none() {
            machine.desync(); // a step that was expected was not planned: nobody has to be told
        }
        self.take_new_plan(machine, parts, step, last_step.as_ref());
        if self.planned.is_none() {
            match (last_step.and_then(|last| last.expect_again(machine, parts)), &mut self.expected)
            {
                (Some(new), expected) => *expected = Some(new),
                (None, Some(expected)) => expected.step_begins(),
                (None, None) => {}
            }
        }
        parts.cut_waiting(machine);
    }

    /// A step ends, and may be a reason to make a plan.
    pub(super) fn step_ends(
        &mut self,
        complete: bool,
        machine: &Residency,
        storages: &Storages,
        history: &History,
    ) {
        match self.profile.step_ends(complete, storages) {
            Some(Ok(profiled)) => self.recorded(profiled, machine, history),
            Some(Err(why)) => self.hold_back(&why),
            None => {}
        }
        self.last_followed = complete && self.planned.is_some() && machine.in_sync();
        if self.last_followed {
            self.watch_drift(machine, history);
        }
    }

    /// An op of a step begins. What the step is expected to be is guarded op by op: from the first
    /// that differs on, the rest of the step is reactive. Returns which op it is to the machine.
    pub(super) fn op_begins(
        &mut self,
        machine: &mut Residency,
        index: u32,
        fingerprint: u64,
        (name, uses): (&str, &[OpUse]),
    ) -> OpIndex {
        self.profile.op_begins(index, name, fingerprint, uses);
        self.fill_place.op_begins(index);
        if let Some(expected) = &mut self.expected {
            expected.op_begins(index, fingerprint);
        }
        let index = self.expected_at(OpIndex(index));
        if !machine.expect(index, fingerprint)
            && let Some(reason) = machine.desync()
            && self.planned.is_some()
        {
            let text = format!(
                "a step left the plan: {reason}. The rest of that step had no plan: what was out came in only when \
                 an op asked for it, and the op waited. Other steps that leave the plan are not named"
            );
            self.notice_once("left the plan", &text);
        }
        index
    }

    /// Returns the op's place in the step that the machine follows.
    pub(super) fn expected_at(&self, op: OpIndex) -> OpIndex {
        OpIndex(op.0.saturating_add(self.expected.as_ref().map_or(0, ExpectedStep::skipped)))
    }

    /// The op's storages are there.
    pub(super) fn op_runs(&mut self, now: Instant) {
        self.profile.op_runs(now);
    }

    pub(super) fn op_ends(&mut self, now: Instant) {
        self.profile.op_ends(now);
    }

    /// Records the real times of the step's ops.
    pub(super) fn took(&mut self, nanoseconds: &[u64]) {
        self.profile.took(nanoseconds);
    }

    /// The plan that steps follow.
    pub(super) fn planned(&self) -> Option<&Planned> {
        self.planned.as_ref()
    }

    /// Returns whether a plan is being made that steps wait for. One that is ready waits for a step
    /// to begin; the search for a better one is not waited for.
    pub(super) fn is_under_way(&self) -> bool {
        self.awaited().is_some_and(|attempt| !attempt.search.is_ready())
    }

    /// Returns whether a better plan is looked for, and likely to be found. Steps do not wait for
    /// it.
    pub(super) fn is_improving(&self) -> bool {
        self.under_way.as_ref().is_some_and(|attempt| attempt.search.gains())
    }

    /// Returns whether the first plan, once it is ready, waits until this is called with `false`.
    /// Returns whether it is ready: the next step could follow it.
    pub(super) fn hold_first(&mut self, hold: bool) -> bool {
        self.holds_first = hold;
        let first = |attempt: &Attempt| matches!(attempt.occasion, Occasion::First { .. });
        self.last_step.as_ref().is_some_and(LastStep::is_planned_for)
            && self.under_way.as_ref().is_some_and(|it| first(it) && it.search.is_ready())
    }

    /// Returns the number of plans that replaced another because its figures had changed.
    pub(super) fn replans(&self) -> u64 {
        self.replans
    }

    /// Returns the number of plans that replaced a worse one.
    pub(super) fn improvements(&self) -> u64 {
        self.improvements
    }

    pub(super) fn staging(&self) -> Bytes {
        self.staging
    }

    /// Returns the notices on plans for the user.
    pub(super) fn notices(&self) -> &[String] {
        &self.notices
    }

    /// Keeps a message for the user.
    pub(super) fn notice(&mut self, text: String) {
        self.notices.push(text);
    }

    /// Steps that were recorded and gave no plan yet, each with why, in words.
    pub(super) fn held_back(&self) -> &[String] {
        self.held_back.steps()
    }

    /// The links that the kernel's tables describe, in words.
    pub(super) fn links(&self) -> &[String] {
        &self.links.descriptions
    }

    /// Returns the rates that a plan made now takes for transfers.
    pub(super) fn rates(&self, machine: &Residency, history: &History) -> SessionRates {
        SessionRates::now(&self.links, machine, history)
    }

    /// Returns the plan's expectation in the words of a report.
    pub(super) fn expected(&self) -> Vec<(String, String)> {
        match &self.planned {
            Some(planned) => planned.expected(self.replans, self.improvements),
            None => vec![("plan".to_owned(), "none: the session reacts to each op".to_owned())],
        }
    }

    /// Figures of a simulated step at the pace of the last one; null where that followed no plan to
    /// its end.
    pub(super) fn simulated(&self, history: &History) -> serde_json::Value {
        let followed = self.planned.as_ref().filter(|_| self.last_followed);
        simulated::figures(followed, history)
    }

    /// Chooses which of these regions of the step that the plan is for are better run once: looked
    /// for from here on, at the pace of the steps that followed it. `room`: the pool's.
    ///
    /// # Errors
    /// Where there is no plan, or no thread.
    pub(super) fn choose_regions(
        &mut self,
        (regions, room): (Vec<CheckpointedRegion>, Bytes),
        machine: &Residency,
        history: &History,
    ) -> Result<(), String> {
        let Some(planned) = &self.planned else {
            return Err("there is no plan yet".to_owned());
        };
        let took = self.drift.assumed().compute.or(history.counters().last_pace().compute);
        let took = took
            .map(|took| Nanos(took.0.saturating_sub(history.counters().last_step().handling_ns)));
        let rates = self.rates(machine, history);
        let (machine, runtime) = (rates.machine(machine, self.staging), runtime(history));
        let (trace, same) = (Arc::clone(&planned.trace), std::mem::take(&mut self.same_writes));
        self.choice = Some(RegionChoice::begin(move || {
            let trace = scaled(&trace, Some(trace.duration()), took);
            ChoiceTask { trace, machine, runtime, regions, same, room }
        })?);
        Ok(())
    }

    /// Names ops of the step that the plan is for that write the same bytes, for the next choice of
    /// regions. It compares what their runs read by the storages.
    pub(super) fn same_writes(&mut self, same: Vec<SameWrites>) {
        self.profile.keep_storages();
        self.same_writes = same;
    }

    /// The choice that was asked for, as JSON; null while it is being made.
    pub(super) fn chosen_regions(&self) -> Value {
        self.choice.as_ref().map_or(Value::Null, RegionChoice::made)
    }

    /// Steps are others from here on: they are recorded and planned for as the first ones were.
    pub(super) fn learn_again(&mut self, machine: &mut Residency) {
        machine.clear_schedule("steps are others from here on");
        machine.desync(); // which nobody has to be told
        (self.planned, self.under_way, self.choice, self.last_step) = (None, None, None, None);
        (self.last_followed, self.holds_first, self.expected) = (false, false, None);
        self.drift = Drift::default();
        self.profile.resume();
    }

    /// A step was recorded: if it was like the one before, there will be a plan for such steps.
    fn recorded(&mut self, profiled: Profiled, machine: &Residency, history: &History) {
        let all_came = self.expected.as_ref().is_some_and(|expected| expected.skipped() == 0);
        let was_expected = all_came && machine.in_sync();
        match (LastStep::of(&profiled, was_expected), &profiled.differs) {
            (Ok(last), differs) => {
                self.last_step = Some(last);
                match differs {
                    Some(why) => self.hold_back(why),
                    None => self.plan_for(profiled.trace, machine, history),
                }
            }
            (Err(error), _) => self.hold_back(&error.to_string()),
        }
    }

    /// Plans for such steps, unless that is under way already.
    fn plan_for(&mut self, trace: Arc<Trace>, machine: &Residency, history: &History) {
        let fingerprint = trace.fingerprint();
        if self.is_for(fingerprint) {
            return self.hold_back("a plan for such steps is being made, or is ready for the next");
        }
        self.hold_back("it is like the one before: from here on a plan for such steps is made");
        let rates = self.rates(machine, history);
        let compute = history.counters().last_pace().compute;
        let goal = self.goal(compute, trace.duration(), history);
        // With a budget the plan is chosen by it, so drift is judged from there; without one, by
        // the first steps under the plan.
        let compute = compute.filter(|_| self.write_budget.is_some());
        let (policy, moves_parts) = (self.policy, self.moves_parts);
        let (machine, runtime) = (rates.machine(machine, self.staging), runtime(history));
        let gpu = self.gpu_runtime(&machine, runtime);
        let known = None;
        let task =
            move || PlanTask { policy, goal, moves_parts, trace, machine, runtime, gpu, known };
        if let Err(why) = self.begin(Occasion::First { fingerprint, compute }, task) {
            self.stay_reactive(&why);
        }
    }

    /// A step followed the plan to its end: plans again if such steps have drifted from what the
    /// plan expects.
    fn watch_drift(&mut self, machine: &Residency, history: &History) {
        if self.awaited().is_some() {
            return;
        }
        if let Some(pace) = self.drift.step_ends(history.counters().last_pace()) {
            self.plan_again(Occasion::Drift(pace), pace, (machine, history));
        }
    }

    /// Plans again for steps that are planned for, as they go at that pace.
    fn plan_again(
        &mut self,
        occasion: Occasion,
        pace: StepRate,
        (machine, history): (&Residency, &History),
    ) {
        let Some(planned) = &self.planned else { return };
        let before = self.drift.assumed();
        let (policy, moves_parts) = (self.policy, self.moves_parts);
        let (runtime, trace) = (runtime(history), Arc::clone(&planned.trace));
        let machine = Machine { budget: machine.budget(), ..at_pace(planned.machine, pace) };
        let gpu = self.gpu_runtime(&machine, runtime);
        let known = planned.parts.is_none().then(|| planned.plan.rows.clone());
        let ops = scaled_time(trace.duration(), before.compute, pace.compute);
        let goal = self.goal(pace.compute, ops, history);
        let task = move || {
            let trace = Arc::new(scaled(&trace, before.compute, pace.compute));
            PlanTask { policy, goal, moves_parts, trace, machine, runtime, gpu, known }
        };
        if let Err(why) = self.begin(occasion, task) {
            self.stay_with_the_plan(&why);
        }
    }

    /// Returns the runtime with two clocks for plans of a machine: where tensors are a GPU's, and
    /// leave for host memory.
    fn gpu_runtime(&self, machine: &Machine, runtime: Runtime) -> Option<GpuRuntime> {
        let MemoryPlace::Gpu(ordinal) = self.place else { return None };
        machine.host?;
        // A transfer is two requests: one for its memory, one to let go of it.
        let request = Some(Nanos(runtime.handling.0 / 2)).filter(|request| request.0 > 0);
        Some(session_runtime(has_gpu_arena(ordinal), request))
    }

    /// Returns what makes a plan the best, for steps that take `compute` without waits, and their
    /// ops `ops`.
    fn goal(&self, compute: Option<Nanos>, ops: Nanos, history: &History) -> Goal {
        let Some(per_day) = self.write_budget else { return Goal::default() };
        let counters = history.counters();
        let simulated = Nanos(ops.0.saturating_add(counters.last_step().handling_ns));
        let in_step = compute.map_or(0, |compute| compute.0.saturating_sub(simulated.0));
        let beside = Nanos(in_step.saturating_add(counters.between().0));
        Goal::Budget(WriteBudget { per_day, beside })
    }

    /// The search whose plan steps wait for.
    fn awaited(&self) -> Option<&Attempt> {
        self.under_way.as_ref().filter(|attempt| attempt.is_awaited())
    }

    fn hold_back(&mut self, why: &str) {
        self.held_back.note(self.profile.step(), why);
    }

    /// Begins a search; one that is under way ends.
    fn begin(
        &mut self,
        occasion: Occasion,
        task: impl FnOnce() -> PlanTask + Send + 'static,
    ) -> Result<(), String> {
        self.under_way = Some(Attempt { occasion, search: PlanSearch::begin(task)? });
        Ok(())
    }

    fn is_for(&self, wanted: u64) -> bool {
        self.under_way.as_ref().is_some_and(|attempt| {
            matches!(attempt.occasion, Occasion::First { fingerprint, .. } if fingerprint == wanted)
        })
    }

    /// Takes a plan over that has become ready. The first one needs the bindings of its
    /// names, so it waits until a step like those that it was made for ends.
    fn take_new_plan(
        &mut self,
        machine: &mut Residency,
        parts: &mut StorageParts,
        step: u64,
        last_step: Option<&LastStep>,
    ) {
        let bindings = last_step.and_then(LastStep::planned_bindings);
        let ready = self.under_way.take_if(|attempt| {
            let usable = match attempt.occasion {
                Occasion::First { .. } => bindings.is_some() && !self.holds_first,
                Occasion::Drift(_) | Occasion::WriteBudget(_) | Occasion::Improvement => true,
            };
            usable && attempt.search.is_ready()
        });
        let Some(Attempt { occasion, search }) = ready else { return };
        let made = search.take().map(|made| made.map_err(|error| error.to_string()));
        // A thread that ended without a plan, where steps wait for one, has panicked.
        let made = made.unwrap_or_else(|| Err("internal error (please report it)".to_owned()));
        match (occasion, made) {
            (Occasion::First { compute, .. }, Ok(new)) => {
                let bindings = bindings.cloned().unwrap_or_default();
                self.follow_first((machine, parts), (new, compute), bindings);
            }
            (Occasion::First { .. }, Err(why)) => return self.stay_reactive(&why),
            (Occasion::Drift(pace), Ok(new)) => {
                let why = difference(self.drift.assumed(), pace);
                self.follow_another((machine, parts), new, (pace, step), &why);
            }
            (Occasion::WriteBudget(per_day), Ok(new)) => {
                let why = per_day.map_or_else(
                    || "there is no write budget any more".to_owned(),
                    |per_day| format!("the write budget is {} a day", rated(per_day)),
                );
                self.follow_another((machine, parts), new, (self.drift.assumed(), step), &why);
            }
            (Occasion::Drift(_) | Occasion::WriteBudget(_), Err(why)) => {
                return self.stay_with_the_plan(&why);
            }
            (Occasion::Improvement, Ok(new)) => self.follow_better((machine, parts), new),
            // The search is over.
            (Occasion::Improvement, Err(_)) => return,
        }
        self.under_way = Some(Attempt { occasion: Occasion::Improvement, search });
    }

    fn follow_first(
        &mut self,
        (machine, parts): (&mut Residency, &mut StorageParts),
        ((planned, schedule), compute): ((Planned, Schedule), Option<Nanos>),
        bindings: Bindings,
    ) {
        self.profile.stop();
        self.expected = None;
        machine.load_schedule(Arc::new(schedule));
        parts.follow(machine, &planned.trace, planned.parts.as_ref(), bindings);
        self.drift.planned_with(pace_of(&planned.machine, compute));
        self.planned = Some(planned);
    }

    fn follow_another(
        &mut self,
        rooms: (&mut Residency, &mut StorageParts),
        (planned, schedule): (Planned, Schedule),
        (pace, step): (StepRate, u64),
        why: &str,
    ) {
        if !self.exchange(rooms, &planned, schedule) {
            return self.stay_with_the_plan("it is a plan for another step");
        }
        self.drift.planned_with(pace);
        self.replans += 1;
        self.planned = Some(planned);
        self.notice_anew(NOTICE, &format!("before step {step}: {why}"));
    }

    fn follow_better(
        &mut self,
        rooms: (&mut Residency, &mut StorageParts),
        (planned, schedule): (Planned, Schedule),
    ) {
        if self.exchange(rooms, &planned, schedule) {
            self.improvements += 1;
            self.planned = Some(planned);
        }
    }

    /// Exchanges the plan for another one for the same steps. Who is who stays, but where the two
    /// do not move the same parts.
    fn exchange(
        &self,
        (machine, parts): (&mut Residency, &mut StorageParts),
        new: &Planned,
        schedule: Schedule,
    ) -> bool {
        let of_parts = |planned: &Planned| planned.parts.is_some();
        if !of_parts(new) && !self.planned.as_ref().is_some_and(of_parts) {
            return machine.exchange_schedule(Arc::new(schedule));
        }
        let bindings = parts.bindings(machine);
        machine.load_schedule(Arc::new(schedule));
        parts.follow(machine, &new.trace, new.parts.as_ref(), bindings);
        true
    }

    fn stay_reactive(&mut self, why: &str) {
        self.profile.stop();
        self.notices.push(format!(
            "there is no plan: {why}. What is out comes in only when an op asks for it, and the op waits"
        ));
    }

    fn stay_with_the_plan(&mut self, why: &str) {
        self.drift.rest();
        self.notice_anew(NOTICE, &format!("in vain, the plan stays: {why}"));
    }

    /// Keeps a message for the user; of those about one thing only the first.
    fn notice_once(&mut self, about: &str, text: &str) {
        if !self.notices.iter().any(|notice| notice.contains(about)) {
            self.notices.push(text.to_owned());
        }
    }

    /// Keeps the last message about one thing.
    fn notice_anew(&mut self, about: &str, text: &str) {
        self.notices.retain(|notice| !notice.starts_with(about));
        self.notices.push(format!("{about}, {text}"));
    }
}

/// Returns the runtime for plans: the lookahead, and the time of transfers on the thread that runs
/// the ops.
fn runtime(history: &History) -> Runtime {
    Runtime { lookahead: LOOKAHEAD_OPS, handling: history.counters().handling() }
}

/// The rates that a plan for a machine assumes.
fn pace_of(machine: &Machine, compute: Option<Nanos>) -> StepRate {
    let (ssd, host) = (machine.ssd, machine.host);
    StepRate {
        compute,
        read: Some(ssd.read),
        write: Some(ssd.write),
        host_read: host.map(|host| host.read),
        host_write: host.map(|host| host.write),
    }
}

/// The machine with the bandwidths that were measured.
fn at_pace(machine: Machine, pace: StepRate) -> Machine {
    let SsdLink { read, write, latency } = machine.ssd;
    let (read, write) = (pace.read.unwrap_or(read), pace.write.unwrap_or(write));
    let host = machine.host.map(|host| HostLink {
        read: pace.host_read.unwrap_or(host.read),
        write: pace.host_write.unwrap_or(host.write),
        ..host
    });
    Machine { ssd: SsdLink { read, write, latency }, host, ..machine }
}

/// The trace with all ops as much slower or faster as the whole step: under a plan most ops run
/// unseen.
fn scaled(trace: &Trace, before: Option<Nanos>, now: Option<Nanos>) -> Trace {
    let mut scaled = trace.clone();
    for op in &mut scaled.ops {
        op.duration = scaled_time(op.duration, before, now);
    }
    scaled
}

fn scaled_time(time: Nanos, before: Option<Nanos>, now: Option<Nanos>) -> Nanos {
    let (Some(before), Some(now)) = (before, now) else { return time };
    Nanos((u128::from(time.0) * u128::from(now.0) / u128::from(before.0.max(1))) as u64)
}
