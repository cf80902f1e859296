//! A search that can be stopped and goes on: the best plan so far, and the work that is left.
//!
//! Work is a list of jobs in a fixed order, each done in small steps. What has been found after so
//! many steps depends on nothing else: no clock is read here.

use super::agenda::{self, Altered, SearchJob};
use super::candidates::{Candidate, Candidates};
use super::cleaning::{CleaningLine, CleaningStep};
use super::in_parts::Joining;
use super::maker::Maker;
use super::pieces::Whole;
use super::price::PlanPrice;
use super::rounding::{Advance, RoundingLine};
use super::sweep::{Sweep, SweepCase};
use super::trials::{self, Trials};
use super::variant::{Guess, STALLED, STALLED_LIKE, VARIANTS};
use super::{Goal, Idea, POLICY, TidelogOptions};
use crate::algorithm1::{self, Score};
use crate::cost::Machine;
use crate::migration::{Migration, Target};
use crate::plan::{Expectation, Plan};
use crate::simulate::{SimulateError, Simulation, Simulator};
use crate::trace::Trace;
use std::collections::VecDeque;

/// Tiers for storages; where there is no host memory, the first alone.
const TARGETS: [Target; 2] = [Target::Ssd, Target::Host];

/// Number of plans that take about as long to make as searching prices.
const PRICES_TAKE: u64 = 5;

/// Looks for better and better plans, step by step.
///
/// ```
/// # use tidelog_planner::{instances::deep_network, units::*};
/// # use tidelog_planner::cost::{Machine, SsdLink};
/// use tidelog_planner::tidelog::{Search, TidelogOptions};
/// # let trace = deep_network(8);
/// # let rate = Bandwidth(16_000_000_000);
/// # let ssd = SsdLink { read: rate, write: rate, latency: Nanos(0) };
/// # let budget = Bytes(20_000_000);
/// # let machine = Machine { budget, staging: Bytes(0), ssd, host: None, verify: rate };
/// let mut search = Search::new(&trace, &machine, TidelogOptions::thorough())?;
/// search.advance(1)?;
/// let (at_once, _) = search.best().expect("one step is enough for a plan");
/// while search.advance(10)? {}
/// let (best, _) = search.best().expect("there is one already");
/// # assert!(best.expects.time <= at_once.expects.time);
/// # Ok::<(), tidelog_planner::simulate::SimulateError>(())
/// ```
pub struct Search<'a> {
    pub(super) trace: &'a Trace,
    pub(super) machine: &'a Machine,
    pub(super) options: TidelogOptions,
    simulator: Simulator<'a>,
    /// Joining of parts, where the trace is one in parts: what makes plans of few parts of its
    /// plans.
    joining: Option<Joining<'a>>,
    /// Makers of plans: the first for the trace and the machine as they are.
    pub(super) makers: Vec<Maker<'a>>,
    agenda: VecDeque<SearchJob>,
    pub(super) found: Candidates,
    steps: u64,
    /// Work that the options limit, counted in plans.
    planned: u64,
}

impl<'a> Search<'a> {
    /// A search that has not begun: its first step makes a plan.
    ///
    /// # Errors
    /// The machine cannot be, or not for this trace.
    pub fn new(
        trace: &'a Trace,
        machine: &'a Machine,
        options: TidelogOptions,
    ) -> Result<Self, SimulateError> {
        let simulator = Simulator::new(options.carrier(), trace, machine)?;
        let makers = vec![Maker::of(trace, *machine)];
        let agenda = agenda::jobs(trace, options);
        let found = Candidates::default();
        let joining = None;
        Ok(Self {
            trace,
            machine,
            options,
            simulator,
            joining,
            makers,
            agenda,
            found,
            steps: 0,
            planned: 0,
        })
    }

    /// A search for the same step in parts, which begins with all that this one has found.
    pub(super) fn in_parts<'b>(
        &'b self,
        joining: Joining<'b>,
    ) -> Result<Search<'b>, SimulateError> {
        // The published algorithm has been tried: it takes longest of all where storages are many.
        let options = TidelogOptions { published: 0, ..self.options };
        let step = joining.step;
        let mut search = Search::new(&step.trace, self.machine, options)?;
        search.agenda.retain(|job| !matches!(job, SearchJob::Altered(Altered::Wholes)));
        search.joining = Some(joining);
        search.found = self.found.map(|rows| step.rows(rows));
        Ok(search)
    }

    /// Goes on for `steps` steps. Returns whether there is more to do.
    ///
    /// # Errors
    /// If the trace's step cannot be simulated on the machine.
    pub fn advance(&mut self, steps: u64) -> Result<bool, SimulateError> {
        let until = self.steps.saturating_add(steps);
        self.run(|steps| steps < until)
    }

    /// Goes on as long as `go_on` says, which is asked before each step and told how many are done.
    /// The first step is done whatever it says: there always is a plan then. Returns whether there
    /// is more to do.
    ///
    /// # Errors
    /// If the trace's step cannot be simulated on the machine.
    pub fn run(&mut self, mut go_on: impl FnMut(u64) -> bool) -> Result<bool, SimulateError> {
        while self.steps == 0 || go_on(self.steps) {
            if !self.step()? {
                return Ok(false);
            }
        }
        Ok(!self.agenda.is_empty())
    }

    /// Takes a plan that is known already for one that was found, so that the best is no worse.
    ///
    /// # Errors
    /// If the trace's step cannot be simulated with these rows.
    pub fn offer(&mut self, rows: &[Migration]) -> Result<(), SimulateError> {
        self.try_rows(rows.to_vec()).map(|_| ())
    }

    /// Returns the number of steps that are done.
    pub fn steps(&self) -> u64 {
        self.steps
    }

    /// The best plan so far; none before the first step.
    pub fn best(&self) -> Option<(Plan, Simulation)> {
        self.best_for(self.options.goal)
    }

    /// The best plan so far by another goal. What is looked for does not depend on the goal, except
    /// that all plans are made for [`Goal::Wear`], whatever the options allow.
    pub fn best_for(&self, goal: Goal) -> Option<(Plan, Simulation)> {
        let best = self.found.best(goal)?;
        Some(best.clone().into_plan(self.trace, self.machine))
    }

    /// The plans so far that no other one beats in both time and bytes written, fastest first.
    pub fn frontier(&self) -> Vec<(Plan, Simulation)> {
        let found = self.found.fastest_first();
        found.into_iter().map(|one| one.clone().into_plan(self.trace, self.machine)).collect()
    }

    /// Returns the costs of those plans.
    pub fn prices(&self) -> Vec<PlanPrice> {
        let best = self.found.best(self.options.goal);
        let price = |one: &Candidate| PlanPrice {
            time: one.simulation.time,
            written: one.simulation.bytes.ssd_written,
            chosen: best.is_some_and(|best| std::ptr::eq(best, one)),
        };
        self.found.fastest_first().into_iter().map(price).collect()
    }

    /// One step of the next job that there is something to do for. Returns whether there was any.
    fn step(&mut self) -> Result<bool, SimulateError> {
        while let Some(job) = self.agenda.pop_front() {
            if self.is_over() {
                self.agenda.clear();
                return Ok(false);
            }
            if self.carry_out(job)? {
                self.steps += 1;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns whether nothing can be better than what is found.
    fn is_over(&self) -> bool {
        self.found.best(Goal::Wear).is_some_and(|best| {
            best.simulation.stalls.is_empty() && best.simulation.bytes.ssd_written.0 == 0
        })
    }

    /// Returns whether one more plan of those that the options limit may be made.
    fn affords(&self, is_limited: bool) -> bool {
        let planned = match self.options.goal {
            Goal::Wear => u64::MAX,
            // What writes less is worth looking for where a pause would be longer.
            Goal::Budget(budget) if self.found.is_beyond(budget) => u64::MAX,
            Goal::Balanced | Goal::Time | Goal::Budget(_) => self.options.planned,
        };
        let ops = self.trace.ops.len() as u64;
        !is_limited || (self.planned + 1).saturating_mul(ops) <= planned
    }

    fn carry_out(&mut self, job: SearchJob) -> Result<bool, SimulateError> {
        match job {
            SearchJob::Sweep { maker, variant, most, is_limited } => {
                self.sweep(maker, variant, most, is_limited)
            }
            SearchJob::Published(score) => {
                self.publish(score)?;
                Ok(true)
            }
            SearchJob::Prices { maker, line, is_limited } => {
                if !self.affords(is_limited) {
                    return Ok(false);
                }
                self.planned += if is_limited { PRICES_TAKE } else { 0 };
                let line = RoundingLine::new(self.makers[maker].case(), line)?;
                self.round(maker, line, is_limited)
            }
            SearchJob::Round { maker, line, is_limited } => self.round(maker, *line, is_limited),
            SearchJob::Altered(altered) => {
                if !matches!(altered, Altered::HostAlone) && !self.affords(true) {
                    return Ok(false);
                }
                let Some(maker) = altered.of(self) else { return Ok(false) };
                self.makers.push(maker);
                let jobs = agenda::jobs_of(self.makers.len() - 1, altered, self.options);
                for job in jobs.into_iter().rev() {
                    self.agenda.push_front(job);
                }
                Ok(false)
            }
            SearchJob::Clean => {
                let Some(best) = self.found.best(Goal::Time) else { return Ok(false) };
                if best.simulation.stalls.is_empty() {
                    return Ok(false);
                }
                let line = CleaningLine::new(self.trace, best.rows.clone(), &best.simulation);
                self.clean(line)
            }
            SearchJob::Cleaning(line) => self.clean(*line),
            SearchJob::Trials => self.improve(),
        }
    }

    /// Tries the next writes of what stays.
    fn clean(&mut self, mut line: CleaningLine) -> Result<bool, SimulateError> {
        let CleaningStep::Try(rows) = line.next() else { return Ok(false) };
        let simulation = self.simulated(&rows)?;
        line.learn(self.trace, rows.clone(), &simulation);
        self.found.offer(Candidate { rows, expects: Expectation::default(), simulation });
        self.agenda.push_front(SearchJob::Cleaning(Box::new(line)));
        Ok(true)
    }

    fn simulated(&self, rows: &[Migration]) -> Result<Simulation, SimulateError> {
        match &self.joining {
            Some(joining) => Ok(joining.simulate(rows)?.simulation),
            None => self.simulator.simulate(POLICY, rows),
        }
    }

    fn publish(&mut self, score: Score) -> Result<(), SimulateError> {
        let options = algorithm1::Algorithm1Options { score, ..Default::default() };
        let lifetimes = &self.makers[0].lifetimes;
        let (rows, expects) = algorithm1::migrations(self.trace, self.machine, options, lifetimes);
        let simulation = self.simulator.simulate(POLICY, &rows)?;
        self.found.offer_published(Candidate { rows, expects, simulation });
        Ok(())
    }

    /// The next plan of a variant, for the stalls of its last one.
    fn sweep(
        &mut self,
        maker: usize,
        variant: usize,
        most: u32,
        is_limited: bool,
    ) -> Result<bool, SimulateError> {
        let of = &self.makers[maker];
        let rounds = self.rounds();
        let made = &of.guesses[variant];
        let is_enough = made.len() >= most.min(rounds) as usize;
        let guess = match made.last() {
            _ if is_enough || !self.affords(is_limited) => return Ok(false),
            Some(last) if last.never_waits(self.trace) => return Ok(false),
            Some(last) => last.clone(),
            None if STALLED.contains(&variant) && rounds > 1 => {
                let like = of.guesses[STALLED_LIKE].first();
                like.cloned().unwrap_or_else(|| Guess::without_waits(self.trace))
            }
            None => Guess::without_waits(self.trace),
        };
        let of = &self.makers[maker];
        let without = self.options.without;
        let (trace, machine) = (of.trace(), &of.machine);
        let assignment = of.assignment.as_ref();
        let case = SweepCase { trace, machine, lifetimes: &of.lifetimes, assignment };
        let pass = Sweep::new(case, &guess, VARIANTS[variant], without);
        let rows = of.rows(pass.run());
        let guess = self.try_rows(rows)?;
        self.makers[maker].guesses[variant].push(guess);
        self.planned += 1;
        Ok(true)
    }

    fn round(
        &mut self,
        maker: usize,
        mut line: RoundingLine,
        is_limited: bool,
    ) -> Result<bool, SimulateError> {
        if !self.affords(is_limited) {
            return Ok(false);
        }
        match line.advance(self.makers[maker].case()) {
            Advance::Over => return Ok(false),
            Advance::Searched => {}
            Advance::Planned(rows) => {
                let rows = self.makers[maker].rows(rows);
                line.learn(self.try_rows(rows)?);
                self.planned += u64::from(is_limited);
            }
        }
        self.agenda.push_front(SearchJob::Round { maker, line: Box::new(line), is_limited });
        Ok(true)
    }

    /// Improves the fastest plans by trial where that is cheap.
    fn improve(&mut self) -> Result<bool, SimulateError> {
        let ops = self.trace.ops.len() as u32;
        if !trials::are_cheap(ops, self.options.trials) {
            return Ok(false);
        }
        // Of a search in parts the plans for whole storages are there.
        if trials::are_plenty(ops, self.options.trials) && self.joining.is_none() {
            for rows in self.narrower() {
                self.try_rows(rows)?;
            }
        }
        let has_host = self.machine.host.is_some_and(|host| host.memory.0 > 0);
        let targets = if has_host { &TARGETS[..] } else { &TARGETS[..1] };
        let wholes = self.makers.iter().filter(|maker| maker.is_of_wholes());
        let makers: Vec<&Maker<'_>> = wholes.chain([&self.makers[0]]).collect();
        let shape = (ops, self.trace.duration());
        let mut trials = Trials::new(&self.simulator, targets, shape, self.options.trials);
        let found = self.found.fastest_first();
        let rows = trials.improve(&makers, found.iter().map(|one| one.rows.as_slice()))?;
        self.try_rows(rows)?;
        Ok(true)
    }

    /// The plans for less freedom, which are possible here, as a search of its own finds them. None
    /// where the step cannot run with less.
    fn narrower(&self) -> Vec<Vec<Migration>> {
        let found = |trace: &Trace, machine: &Machine| -> Vec<Vec<Migration>> {
            let Ok(search) = searched(trace, machine, self.options) else { return Vec::new() };
            search.found.fastest_first().into_iter().map(|one| one.rows.clone()).collect()
        };
        if let Some(whole) = Whole::of(self.trace) {
            let plans = found(&whole.trace, self.machine);
            return plans.iter().map(|rows| whole.rows(rows)).collect();
        }
        match self.machine.host {
            Some(_) => found(self.trace, &Machine { host: None, ..*self.machine }),
            None => Vec::new(),
        }
    }

    pub(super) fn rounds(&self) -> u32 {
        let replans = self.options.without != Some(Idea::Replanning);
        if replans { self.options.rounds.max(1) } else { 1 }
    }

    /// Offers the plan of these rows, and returns when its ops run.
    fn try_rows(&mut self, rows: Vec<Migration>) -> Result<Guess, SimulateError> {
        let simulation = self.simulated(&rows)?;
        let guess = Guess::of(self.trace, &simulation);
        self.found.offer(Candidate { rows, expects: Expectation::default(), simulation });
        Ok(guess)
    }
}

/// Returns the makers of plans for a trace on a machine, with what the options say.
pub(super) fn searched<'a>(
    trace: &'a Trace,
    machine: &'a Machine,
    options: TidelogOptions,
) -> Result<Search<'a>, SimulateError> {
    let mut search = Search::new(trace, machine, options)?;
    search.run(|_| true)?;
    Ok(search)
}
