//! Tidelog's own policy: see `sweep` for how one plan is made, and here how it gets better.
//!
//! A plan is made for times at which ops would run; where its simulation stalls they run later, and
//! the next plan is made for those. Each variant takes a few rounds, and the best plan is kept.

mod candidates;
mod rounding;
mod sweep;
mod tree;
mod trials;

use crate::algorithm1::{self, Score};
use crate::cost::Machine;
use crate::lifetime::Lifetimes;
use crate::migration::Migration;
use crate::plan::{Expectation, Plan};
use crate::simulate::{Runtime, SimulateError, Simulation, Simulator};
use crate::trace::{Op, Trace};
use candidates::{Candidate, Candidates};
use rounding::Rounding;
use sweep::Sweep;

/// The name in the policy's plans.
const POLICY: &str = "tidelog";

/// What may be set; the defaults are those of every published figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TidelogOptions {
    /// How many plans each variant makes, each for the stalls of the one before.
    pub rounds: u32,
    /// How many ops the variants' plans may have together; the first few are made whatever they
    /// have. With [`Goal::Wear`] all are.
    pub planned: u64,
    /// The published algorithm's plans are tried too for traces of at most so many ops; for longer
    /// ones they take far longer than all others together. Where kernels hide everything its
    /// slower, exact ledgers may fit a transfer in that a pass begins one op too late.
    /// [`Goal::Wear`] needs them for a trace of any length, unless this is 0.
    pub published: u64,
    /// Which of the plans found is the best.
    pub goal: Goal,
    /// How many ops may be simulated to improve the plan by trial. Only short traces profit: a long
    /// one is left as it is where this is not enough to look at each of its ops.
    pub trials: u64,
    /// What carries the plan out. A session tells what it has measured, so that a plan that moves
    /// more has to be worth it.
    pub runtime: Runtime,
    /// An idea to leave out, to see what it brings.
    pub without: Option<Idea>,
}

impl Default for TidelogOptions {
    fn default() -> Self {
        Self {
            rounds: 3,
            planned: 80_000,
            published: 100_000,
            goal: Goal::Time,
            trials: 100_000,
            runtime: Runtime::default(),
            without: None,
        }
    }
}

/// What makes a plan the best.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// The shortest iteration; among those that are hardly longer, the fewest bytes written to
    /// SSDs.
    #[default]
    Time,
    /// The fewest bytes written to SSDs, in a time no longer than the published algorithm's best.
    Wear,
}

/// The ideas of the policy that can be left out one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idea {
    /// Evictions begin as early as the peak needs them to.
    BeforeThePeak,
    /// Free memory is filled with what comes next, early or not.
    FillingFreeMemory,
    /// What would come back before it could have gone stays.
    OnlyWhatPays,
    /// A write counts against the victim, shared by the periods that its copy serves.
    CountingWrites,
    /// What has a copy is expected to be dropped at the peak, so that evictions begin later.
    ExpectedDrops,
    /// The next plan is made for the times at which the last one's ops ran.
    Replanning,
    /// Plans rounded from the lower bound's prices are tried, too.
    Rounding,
}

impl Idea {
    /// All of them.
    pub const ALL: [Self; 7] = [
        Self::BeforeThePeak,
        Self::FillingFreeMemory,
        Self::OnlyWhatPays,
        Self::CountingWrites,
        Self::ExpectedDrops,
        Self::Replanning,
        Self::Rounding,
    ];
}

/// What a pass prefers where both ways may be right. Times are those in which the SSDs write a part
/// of the capacity: what matters is how much memory waits for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Variant {
    /// Bytes leave, or come, once an op ahead would have to wait if they began this part later.
    out_parts: u64,
    in_parts: u64,
    /// A link is given more when it has less than this part to do beyond the next op.
    queue_parts: u64,
    /// What a write costs, in percent of a read.
    write_percent: u32,
    /// Whether a write counts as shared by the periods that its copy serves.
    shares_writes: bool,
    /// Whether the peak is expected to be met by drops as far as there are copies.
    expects_drops: bool,
    /// How long a storage must stay out to leave, in percent of its own round trip.
    pays_percent: u32,
}

/// Where kernels hide most transfers, short queues keep memory for what comes next; where the links
/// are the limit, they must never run dry, and bytes must be few. The last two write least.
const VARIANTS: [Variant; 6] = [
    Variant { shares_writes: false, ..variant([16, 16, 128], 900, 100) },
    variant([64, 256, 1024], 0, 400),
    variant([64, 16, 256], 0, 100),
    variant([16, 64, 1024], 100, 100),
    Variant { expects_drops: true, ..variant([64, 64, 128], 900, 100) },
    Variant { expects_drops: true, ..variant([1024, 64, 512], 400, 100) },
];

/// Rows for each op of a plan that is still improved by trial: far more than ops use storages.
const ROWS_TRIED: usize = 64;

/// Whose plans are made whatever they cost: they are the best ones most of the time.
const FIRST: [usize; 4] = [0, 1, 0, 1];

/// Begin with the stalls of the first plan of [`STALLED_LIKE`] instead of none at all.
const STALLED: [usize; 2] = [2, 3];
const STALLED_LIKE: usize = 1;

/// How much longer than those of a first plan stalls are taken to be where bytes count.
const LONGER_PERCENT: [u64; 2] = [200, 800];

/// How much of the links' queues is counted where bytes count: ops wait for the rest.
const QUEUES_PERCENT: [u64; 3] = [90, 75, 50];

const fn variant(parts: [u64; 3], write_percent: u32, pays_percent: u32) -> Variant {
    let [out_parts, in_parts, queue_parts] = parts;
    let (shares_writes, expects_drops) = (true, false);
    Variant {
        out_parts,
        in_parts,
        queue_parts,
        write_percent,
        shares_writes,
        expects_drops,
        pays_percent,
    }
}

/// When the ops of an iteration are taken to run.
#[derive(Clone, Debug)]
struct Guess {
    /// Each op with the wait before it.
    durations: Vec<u64>,
}

impl Guess {
    fn without_waits(trace: &Trace) -> Self {
        Self { durations: trace.ops.iter().map(|op| op.duration.0).collect() }
    }

    /// The same with waits of so many percent.
    fn with_waits(&self, trace: &Trace, percent: u64) -> Self {
        let scaled = |(op, taken): (&Op, &u64)| {
            let (runs, taken) = (u128::from(op.duration.0), u128::from(*taken));
            let waits = (taken - runs) * u128::from(percent) / 100;
            u64::try_from(runs + waits).unwrap_or(u64::MAX / 4)
        };
        Self { durations: trace.ops.iter().zip(&self.durations).map(scaled).collect() }
    }

    fn never_waits(&self, trace: &Trace) -> bool {
        trace.ops.iter().zip(&self.durations).all(|(op, taken)| op.duration.0 == *taken)
    }
}

/// Plans one iteration, simulates it, and returns the best plan found with its expectations.
pub fn tidelog(
    trace: &Trace,
    machine: &Machine,
    options: TidelogOptions,
) -> Result<(Plan, Simulation), SimulateError> {
    let simulator = Simulator::new(options.runtime, trace, machine)?;
    let lifetimes = Lifetimes::of(trace);
    let mut best = Search::run(trace, machine, &simulator, &lifetimes, options)?.best(options.goal);
    // A plan that moves so much to and fro, since ops wait for ages, is simulated for long, and no
    // trial saves it.
    let is_restless = best.rows.len() > ROWS_TRIED * trace.ops.len();
    if options.goal == Goal::Time && !is_restless {
        best = trials::improve(trace, &simulator, &lifetimes, best, options.trials)?;
    }
    Ok(best.into_plan(trace, machine))
}

/// The plans that no other one beats in both time and bytes written, fastest first, among all that
/// are made for [`Goal::Wear`]: slower ones that write less, too.
///
/// # Errors
/// As [`tidelog`].
pub fn frontier(
    trace: &Trace,
    machine: &Machine,
    options: TidelogOptions,
) -> Result<Vec<(Plan, Simulation)>, SimulateError> {
    let simulator = Simulator::new(options.runtime, trace, machine)?;
    let options = TidelogOptions { goal: Goal::Wear, ..options };
    let lifetimes = Lifetimes::of(trace);
    let found = Search::run(trace, machine, &simulator, &lifetimes, options)?.fastest_first();
    Ok(found.into_iter().map(|one| one.into_plan(trace, machine)).collect())
}

/// Plans tried one after the other.
struct Search<'a> {
    trace: &'a Trace,
    machine: &'a Machine,
    simulator: &'a Simulator<'a>,
    lifetimes: &'a Lifetimes,
    options: TidelogOptions,
    found: Candidates,
}

impl<'a> Search<'a> {
    /// Every plan that the options ask for.
    fn run(
        trace: &'a Trace,
        machine: &'a Machine,
        simulator: &'a Simulator<'a>,
        lifetimes: &'a Lifetimes,
        options: TidelogOptions,
    ) -> Result<Candidates, SimulateError> {
        let found = Candidates::default();
        let mut search = Self { trace, machine, simulator, lifetimes, options, found };
        if search.tries_published() {
            search.try_published()?;
        }
        search.sweep()?;
        // Prices of host memory's links are not looked at: with it the sweep's plans write little
        // anyway.
        if options.without != Some(Idea::Rounding) && machine.host.is_none() {
            search.round()?;
        }
        Ok(search.found)
    }

    fn tries_published(&self) -> bool {
        let TidelogOptions { published, goal, .. } = self.options;
        self.trace.ops.len() as u64 <= published || (goal == Goal::Wear && published > 0)
    }

    fn try_published(&mut self) -> Result<(), SimulateError> {
        for score in Score::ALL {
            let options = algorithm1::Algorithm1Options { score, ..Default::default() };
            let (rows, expects) =
                algorithm1::migrations(self.trace, self.machine, options, self.lifetimes);
            let simulation = self.simulator.simulate(POLICY, &rows)?;
            self.found.offer_published(Candidate { rows, expects, simulation });
        }
        Ok(())
    }

    /// The variants' plans: the most promising first, then as many rounds of all as may be made.
    fn sweep(&mut self) -> Result<(), SimulateError> {
        let rounds = self.rounds() as usize;
        let ops = self.trace.ops.len() as u64;
        let planned = match self.options.goal {
            Goal::Time => self.options.planned,
            Goal::Wear => u64::MAX,
        };
        // Of each variant the stalls that its plans led to, in the order made.
        let mut guesses: [Vec<Guess>; VARIANTS.len()] = Default::default();
        let rest = (1..=rounds).flat_map(|round| (0..VARIANTS.len()).map(move |one| (one, round)));
        let turns = FIRST.map(|one| (one, rounds)).into_iter().chain(rest);
        for (number, (one, most)) in turns.enumerate() {
            let made = guesses.iter().map(Vec::len).sum::<usize>() as u64;
            if number >= FIRST.len() && (made + 1) * ops > planned {
                break;
            }
            let guess = match guesses[one].last() {
                _ if guesses[one].len() >= most => continue,
                Some(last) if last.never_waits(self.trace) => continue,
                Some(last) => last.clone(),
                None if STALLED.contains(&one) && rounds > 1 => guesses[STALLED_LIKE][0].clone(),
                None => Guess::without_waits(self.trace),
            };
            let without = self.options.without;
            let variant = VARIANTS[one];
            let pass =
                Sweep::new(self.trace, self.machine, self.lifetimes, &guess, variant, without);
            let rows = pass.run();
            guesses[one].push(self.try_rows(rows)?);
        }
        Ok(())
    }

    /// The plans that the relaxation's prices lead to: by the first write penalty, and where bytes
    /// count by all.
    fn round(&mut self) -> Result<(), SimulateError> {
        let write_penalties = match self.options.goal {
            Goal::Time => &rounding::TOLLS[..1],
            Goal::Wear => &rounding::TOLLS[..],
        };
        for write_penalty in write_penalties {
            let rounding = Rounding::new(self.trace, self.machine, self.lifetimes, *write_penalty)?;
            self.replan(|guess, queues_percent| rounding.rows(guess, queues_percent))?;
        }
        Ok(())
    }

    /// A plan for ops that never wait, then for those that begin when the stalls of the last one
    /// let them. Where bytes count, also for longer stalls than the first plan's, and for links
    /// whose queues are taken to be shorter than they are: where there is time, fewer bytes leave.
    fn replan(
        &mut self,
        make: impl Fn(&Guess, u64) -> Vec<Migration>,
    ) -> Result<(), SimulateError> {
        let first = self.try_rows(make(&Guess::without_waits(self.trace), 100))?;
        let mut guess = first.clone();
        for _ in 1..self.rounds() {
            if guess.never_waits(self.trace) {
                return Ok(());
            }
            guess = self.try_rows(make(&guess, 100))?;
        }
        if self.options.goal == Goal::Time {
            return Ok(());
        }
        for percent in LONGER_PERCENT {
            self.try_rows(make(&first.with_waits(self.trace, percent), 100))?;
        }
        for percent in QUEUES_PERCENT {
            let mut guess = first.clone();
            for _ in 0..self.rounds() {
                guess = self.try_rows(make(&guess, percent))?;
            }
        }
        Ok(())
    }

    fn rounds(&self) -> u32 {
        let replans = self.options.without != Some(Idea::Replanning);
        if replans { self.options.rounds.max(1) } else { 1 }
    }

    /// Offers the plan of these rows, and returns when its ops run.
    fn try_rows(&mut self, rows: Vec<Migration>) -> Result<Guess, SimulateError> {
        let simulation = self.simulator.simulate(POLICY, &rows)?;
        let mut guess = Guess::without_waits(self.trace);
        for stall in &simulation.stalls {
            guess.durations[stall.op.0 as usize] += stall.length.0;
        }
        self.found.offer(Candidate { rows, expects: Expectation::default(), simulation });
        Ok(guess)
    }
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod exhaustive_tests;

#[cfg(test)]
mod same_bytes_tests;
