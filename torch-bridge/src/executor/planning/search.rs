//! A search for plans on a thread of its own: the first plan soon, better ones as they are found.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use tidelog_planner::algorithm1::{self, algorithm1};
use tidelog_planner::cost::{HostLink, Machine};
use tidelog_planner::migration::Migration;
use tidelog_planner::parts::Cuts;
use tidelog_planner::plan::Plan;
use tidelog_planner::residency::Schedule;
use tidelog_planner::simulate::{GpuRuntime, Runtime, SimulateError, with_expectations_under};
use tidelog_planner::tidelog::{Goal, PartedPlan, PlanPrice, Search, TidelogOptions, in_parts_of};
use tidelog_planner::trace::Trace;
use tidelog_planner::units::{Bytes, Nanos};

use super::pace::{AT_ONCE, SearchPace, TURN};
use super::{Divisible, Planned, PlannerPolicy, StepRate};

/// Steps of the search before its best plan is offered: those that make the plans which are the
/// best most of the time.
const FIRST_STEPS: u64 = 4;

/// Threshold of an exchange, in percent of the plan before: no other one is worth an exchange.
const WORTH_PERCENT: u64 = 98;

/// A plan and what the machine follows of it, or why there is none.
pub(super) type PlanResult = Result<(Planned, Schedule), SimulateError>;

/// A search for plans.
pub(super) struct Attempt {
    pub(super) occasion: Occasion,
    pub(super) search: PlanSearch,
}

/// Occasion of the next plan of a search.
pub(super) enum Occasion {
    /// Two steps with a trace of this fingerprint were alike.
    First {
        fingerprint: u64,
        /// Time of the steps without waits, where it is judged by that whether steps have changed.
        compute: Option<Nanos>,
    },
    /// Steps have come to run like this.
    Drift(StepRate),
    /// A write budget holds that did not before, in bytes a day; `None`: none.
    WriteBudget(Option<Bytes>),
    /// Steps follow a plan of this search already: another one is better.
    Improvement,
}

impl Attempt {
    /// Returns whether steps wait for its plan.
    pub(super) fn is_awaited(&self) -> bool {
        !matches!(self.occasion, Occasion::Improvement)
    }
}

/// Task of a search for plans.
pub(super) struct PlanTask {
    pub(super) policy: PlannerPolicy,
    pub(super) goal: Goal,
    /// Storages of which parts may move.
    pub(super) moves_parts: Divisible,
    pub(super) trace: Arc<Trace>,
    pub(super) machine: Machine,
    pub(super) runtime: Runtime,
    /// Runtime where tensors are a GPU's that leave for host memory, in place of `runtime`.
    pub(super) gpu: Option<GpuRuntime>,
    /// The plan that such steps follow already, if they do: the next one is no worse.
    pub(super) known: Option<Vec<Migration>>,
}

/// A search that is under way, or over. Dropped, it ends soon.
pub(super) struct PlanSearch {
    slot: Arc<PlanSlot>,
    thread: JoinHandle<()>,
}

/// Slot between the thread and the session.
struct PlanSlot {
    began: Instant,
    /// The best plan so far, if it was not taken yet.
    newest: Mutex<Option<PlanResult>>,
    /// Time of the last plan, in microseconds since the search began.
    last: AtomicU64,
    /// True if nobody waits for plans any longer.
    dropped: AtomicBool,
}

impl PlanSearch {
    /// `task` is made on the thread, too: a trace takes a while to copy.
    pub(super) fn begin(task: impl FnOnce() -> PlanTask + Send + 'static) -> Result<Self, String> {
        let slot = Arc::new(PlanSlot::new());
        let of_thread = Arc::clone(&slot);
        let look = move || {
            if let Err(error) = task().look(&of_thread) {
                of_thread.put(Err(error));
            }
        };
        let thread = thread::Builder::new().name("tidelog-plan".to_owned()).spawn(look);
        Ok(Self { slot, thread: thread.map_err(|error| error.to_string())? })
    }

    /// Returns whether there is a plan to take, or none will come.
    pub(super) fn is_ready(&self) -> bool {
        self.is_over() || self.slot.newest().is_some_and(|newest| newest.is_some())
    }

    /// Returns whether better plans are looked for, and come still: not where as much time has
    /// passed since the last one as before it.
    pub(super) fn gains(&self) -> bool {
        !self.is_over() && self.slot.gains()
    }

    pub(super) fn is_over(&self) -> bool {
        self.thread.is_finished()
    }

    /// The best plan so far, once; none where it was taken already.
    pub(super) fn take(&self) -> Option<PlanResult> {
        self.slot.newest()?.take()
    }
}

impl Drop for PlanSearch {
    fn drop(&mut self) {
        self.slot.dropped.store(true, Ordering::Relaxed);
        self.thread.thread().unpark();
    }
}

impl PlanSlot {
    fn new() -> Self {
        let (newest, last) = (Mutex::default(), AtomicU64::default());
        Self { began: Instant::now(), newest, last, dropped: AtomicBool::default() }
    }

    /// None where the thread has it: nobody waits for that.
    fn newest(&self) -> Option<MutexGuard<'_, Option<PlanResult>>> {
        match self.newest.try_lock() {
            Ok(newest) => Some(newest),
            Err(TryLockError::Poisoned(newest)) => Some(newest.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn put(&self, made: PlanResult) {
        let last = u64::try_from(self.began.elapsed().as_micros()).unwrap_or(u64::MAX);
        self.last.store(last, Ordering::Relaxed);
        let old = self.newest.lock().unwrap_or_else(PoisonError::into_inner).replace(made);
        drop(old); // without the lock
    }

    fn gains(&self) -> bool {
        let last = Duration::from_micros(self.last.load(Ordering::Relaxed));
        self.began.elapsed() < last.saturating_mul(2).max(AT_ONCE)
    }

    fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::Relaxed)
    }
}

impl PlanTask {
    fn look(&self, slot: &PlanSlot) -> Result<(), SimulateError> {
        match self.policy {
            PlannerPolicy::Algorithm1 => {
                slot.put(self.planned(self.algorithm1()));
                Ok(())
            }
            PlannerPolicy::Tidelog if self.moves_parts != Divisible::None => {
                self.search_with_parts(slot)
            }
            PlannerPolicy::Tidelog => self.search(slot),
        }
    }

    fn algorithm1(&self) -> Plan {
        let options =
            algorithm1::Algorithm1Options { clean_drop: true, unused: true, ..Default::default() };
        let plan = algorithm1(&self.trace, &self.machine, options);
        // One that cannot be simulated serves all the same; it only promises less.
        let simulated =
            with_expectations_under(self.runtime, plan.clone(), &self.trace, &self.machine);
        simulated.map_or(plan, |(plan, _)| plan)
    }

    /// The machine that the search simulates.
    fn simulated(&self) -> Machine {
        match (self.gpu, self.machine.host) {
            // What a transfer takes beside its bytes is among the GPU's costs.
            (Some(_), Some(host)) => {
                Machine { host: Some(HostLink { latency: Nanos(0), ..host }), ..self.machine }
            }
            _ => self.machine,
        }
    }

    fn new_search<'a>(&'a self, machine: &'a Machine) -> Result<Search<'a>, SimulateError> {
        let (goal, runtime, gpu) = (self.goal, self.runtime, self.gpu);
        let options = TidelogOptions { goal, runtime, gpu, ..Default::default() };
        let mut search = Search::new(&self.trace, machine, options)?;
        if let Some(rows) = &self.known {
            // One that cannot be simulated at this pace is none to keep.
            let _ = search.offer(rows);
        }
        Ok(search)
    }

    fn search(&self, slot: &PlanSlot) -> Result<(), SimulateError> {
        let machine = self.simulated();
        let (mut search, mut pace) = (self.new_search(&machine)?, SearchPace::new());
        let mut goes_on = search.advance(FIRST_STEPS)?;
        let mut given = self.offer_best(&search, slot);
        while goes_on && !slot.is_dropped() {
            let turn = Instant::now();
            goes_on = search.run(|_| turn.elapsed() < TURN)?;
            let is_better = |given| chosen(&search).is_some_and(|new| self.is_worth(new, given));
            if given.is_none_or(is_better) {
                given = self.offer_best(&search, slot);
            }
            pace.step();
        }
        Ok(())
    }

    /// The search for plans that move parts begins with what the one for whole storages has found.
    /// So they take turns, each twice as long as the one before.
    fn search_with_parts(&self, slot: &PlanSlot) -> Result<(), SimulateError> {
        let machine = self.simulated();
        let mut search = self.new_search(&machine)?;
        let cuts = match self.moves_parts {
            Divisible::WhatLivesOn => Cuts::of_what_lives_on(&self.trace, &self.machine),
            _ => Cuts::of(&self.trace, &self.machine),
        };
        let (mut given, mut steps, mut pace) = (None, FIRST_STEPS, SearchPace::new());
        // Who waits for the first plan does not wait for rests.
        let mut is_wanted = |has_plan| {
            if has_plan {
                pace.step();
            }
            !slot.is_dropped()
        };
        loop {
            let until = search.steps() + steps;
            let goes_on = search.run(|done| done < until && is_wanted(given.is_some()))?;
            let mut is_cut_short = false;
            let found = in_parts_of(&search, &cuts, |done| {
                let goes_on = done < steps && is_wanted(given.is_some());
                is_cut_short |= !goes_on;
                goes_on
            })?;
            let price = found.as_ref().map_or_else(|| chosen(&search), chosen_in_parts);
            let is_better = |new: &PlanPrice| given.is_none_or(|given| self.is_worth(*new, given));
            if let Some(price) = price.filter(is_better) {
                match found {
                    Some(PartedPlan { plan, step, .. }) => {
                        slot.put(Ok(Planned::of_parts((plan, step), &self.trace, self.machine)?));
                    }
                    None => drop(self.offer_best(&search, slot)),
                }
                given = Some(price);
            }
            if slot.is_dropped() || !(goes_on || is_cut_short) {
                return Ok(());
            }
            steps *= 2;
        }
    }

    /// Gives the session the best plan so far. Returns its price.
    fn offer_best(&self, search: &Search<'_>, slot: &PlanSlot) -> Option<PlanPrice> {
        let (plan, _) = search.best()?;
        slot.put(self.planned(plan));
        chosen(search)
    }

    fn planned(&self, plan: Plan) -> PlanResult {
        Ok(Planned::of(plan, &self.trace, self.machine)?)
    }

    /// Returns whether a plan is faster, with its pauses, or as fast and writes less, by more than
    /// an exchange of plans and the simulation's error.
    fn is_worth(&self, new: PlanPrice, old: PlanPrice) -> bool {
        let less = |new: u64, old: u64, percent: u64| {
            u128::from(new) * 100 <= u128::from(old) * u128::from(percent)
        };
        let length = |price: PlanPrice| self.goal.length(price.time, price.written).0;
        less(length(new), length(old), WORTH_PERCENT)
            || (less(length(new), length(old), 100)
                && less(new.written.0, old.written.0, WORTH_PERCENT))
    }
}

fn chosen(search: &Search<'_>) -> Option<PlanPrice> {
    search.prices().into_iter().find(|price| price.chosen)
}

fn chosen_in_parts(found: &PartedPlan) -> Option<PlanPrice> {
    found.prices.iter().copied().find(|price| price.chosen)
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use tidelog_planner::cost::SsdLink;
    use tidelog_planner::endurance::WriteBudget;
    use tidelog_planner::instances::deep_network;
    use tidelog_planner::lifetime::Lifetimes;
    use tidelog_planner::plan::Expectation;
    use tidelog_planner::tidelog::tidelog;
    use tidelog_planner::units::Bandwidth;

    use super::*;

    fn task(layers: usize, known: Option<Vec<Migration>>) -> PlanTask {
        let trace = Arc::new(deep_network(layers));
        let rate = Bandwidth(16_000_000_000);
        let machine = Machine {
            budget: Bytes(Lifetimes::of(&trace).peak().0 / 2),
            staging: Bytes(0),
            ssd: SsdLink { read: rate, write: rate, latency: Nanos(10_000) },
            host: None,
            verify: rate,
        };
        let (policy, runtime) = (PlannerPolicy::Tidelog, Runtime::default());
        PlanTask {
            policy,
            goal: Goal::default(),
            moves_parts: Divisible::None,
            trace,
            machine,
            runtime,
            gpu: None,
            known,
        }
    }

    fn until(mut is_so: impl FnMut() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(60), "never came");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_plan_comes_first_and_only_much_better_ones_after_it() {
        let search = PlanSearch::begin(|| task(24, None)).unwrap();
        let mut given: Vec<(u64, u64)> = Vec::new();
        until(|| {
            let over = search.is_over();
            if let Some(made) = search.take() {
                let expects = made.unwrap().0.plan.expects;
                given.push((expects.time.0, expects.bytes.ssd_written.0));
            }
            over
        });
        assert!(!given.is_empty());
        for pair in given.windows(2) {
            let ((old, written), (new, less)) = (pair[0], pair[1]);
            assert!(new * 100 <= old * 98 || (new <= old && less * 100 <= written * 98));
        }
    }

    #[test]
    fn a_search_that_nobody_waits_for_ends_though_it_is_not_through() {
        let search = PlanSearch::begin(|| task(2_000, None)).unwrap();
        until(|| search.is_ready());
        assert!(!search.is_over(), "nothing is left to search");
        let slot = Arc::clone(&search.slot);
        drop(search);
        until(|| Arc::strong_count(&slot) == 1);
    }

    #[test]
    fn under_a_write_budget_a_plan_that_writes_less_is_given_where_pauses_would_be_longer() {
        let last = |goal| {
            let search = PlanSearch::begin(move || PlanTask { goal, ..task(24, None) }).unwrap();
            until(|| search.is_over());
            search.take().unwrap().unwrap().0.plan.expects
        };
        let free = last(Goal::default());
        let day = 86_400 * 1_000_000_000;
        let per_day = Bytes(day / free.time.0 * (free.bytes.ssd_written.0 / 2));
        let goal = Goal::Budget(WriteBudget { per_day, beside: Nanos(0) });
        let under = last(goal);
        let length = |it: &Expectation| goal.length(it.time, it.bytes.ssd_written);
        assert!(under.bytes.ssd_written < free.bytes.ssd_written, "{under:?}");
        assert!(length(&under).0 < length(&free).0 / 100 * 98, "{under:?} {free:?}");
    }

    #[test]
    fn the_plan_that_is_followed_is_given_up_for_a_better_one_only() {
        let of = task(24, None);
        let (plan, simulated) = tidelog(&of.trace, &of.machine, TidelogOptions::default()).unwrap();
        let search = PlanSearch::begin(|| task(24, Some(plan.rows))).unwrap();
        until(|| search.is_ready());
        let first = search.take().unwrap().unwrap().0.plan.expects;
        assert!(first.time.0 * 100 <= simulated.time.0 * 101, "{first:?}");
        assert!(first.bytes.ssd_written <= simulated.bytes.ssd_written, "{first:?}");
    }
}
