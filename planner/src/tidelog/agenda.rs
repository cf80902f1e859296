//! Agenda of a search: what is good most of the time first.

use super::assignment::TierAssignment;
use super::cleaning::CleaningLine;
use super::maker::Maker;
use super::rounding::{LineOptions, RoundingLine};
use super::search::Search;
use super::variant::{ASSIGNED, FIRST, Guess, VARIANTS};
use super::{Goal, Idea, TidelogOptions};
use crate::algorithm1::Score;
use crate::bound::Effort;
use crate::trace::Trace;
use crate::units::{Bandwidth, Nanos};
use std::collections::VecDeque;

/// Effort that is enough to tell who should leave.
const EFFORT: Effort = Effort { instants: 75, steps: 150 };

/// Penalties of a written byte, in the time that writing it takes. The first leads to short
/// iterations; which of the others leads to few bytes differs from model to model.
pub(super) const WRITE_PENALTIES: [f64; 3] = [1.0, 8.0, 32.0];

/// Rates of SSDs on the machines that plans of few bytes are made for, in percent of what the
/// fastest plan writes on average. The first lets a plan write in bursts.
const SLOWER_PERCENT: [u64; 7] = [300, 150, 100, 70, 50, 35, 25];

/// Part of memory, 1 / this, that is spared in plans for less of it.
const SPARED_PARTS: u64 = 20;

/// Bytes that may wait for the SSDs where storages are assigned to tiers: one part in so many of
/// the capacity. Much, where one storage is a large part of it; else little.
const WAITING_PARTS: [u64; 2] = [32, 2];

/// Ops of a step from which on a plan takes so long to make that it matters which comes first.
const LONG_STEP: usize = 1_000;

/// A piece of work. Those that are limited are done as far as [`TidelogOptions::planned`] goes.
pub(super) enum SearchJob {
    /// The next plan of a variant, unless it has made `most`.
    Sweep { maker: usize, variant: usize, most: u32, is_limited: bool },
    /// The published algorithm's plan.
    Published(Score),
    /// Prices are searched, and plans are rounded from them.
    Prices { maker: usize, line: LineOptions, is_limited: bool },
    /// Round in progress.
    Round { maker: usize, line: Box<RoundingLine>, is_limited: bool },
    /// Plans for another machine: its jobs come next.
    Altered(Altered),
    /// The fastest plan writes what stays where its links are idle.
    Clean,
    /// Writes of what stays that are being tried.
    Cleaning(Box<CleaningLine>),
    /// The fastest plan is improved by trial.
    Trials,
}

/// Difference between the real machine, or trace, and the one that plans are made for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Altered {
    /// SSDs that write at this percentage of the rate at which the fastest plan's do on average.
    SlowerWrites(u64),
    /// The pieces of a tensor are one storage.
    Wholes,
    /// Machine with less memory: the plan has some to spare.
    LessMemory,
    /// No host memory.
    WithoutHost,
    /// Host memory takes all that leaves, as it is large enough.
    HostAlone,
    /// Host memory has, in each stretch of the step, as much of what leaves as the SSDs are too
    /// slow for there. So much of the capacity may wait for them, as one part in so many.
    Assigned(u64),
}

impl Altered {
    /// The maker of its plans; none where it changes nothing.
    pub(super) fn of<'a>(self, search: &Search<'a>) -> Option<Maker<'a>> {
        let mut machine = *search.machine;
        match self {
            Self::SlowerWrites(percent) => {
                let best = &search.found.best(Goal::Time)?.simulation;
                let average = u128::from(best.bytes.ssd_written.0) * 1_000_000_000
                    / u128::from(best.time.0.max(1));
                let rate = u64::try_from(average * u128::from(percent) / 100).ok()?.max(1);
                if average == 0 || Bandwidth(rate) >= machine.ssd.write {
                    return None;
                }
                machine.ssd.write = Bandwidth(rate);
            }
            Self::Assigned(parts) => {
                let best = search.found.best(Goal::Time)?;
                let guess = Guess::of(search.trace, &best.simulation);
                let (trace, rows) = (search.trace, &best.rows);
                let assignment = TierAssignment::new(trace, &machine, &guess, rows, parts)?;
                return Some(Maker::assigned(trace, machine, assignment));
            }
            Self::Wholes => return Maker::of_wholes(search.trace, machine),
            Self::HostAlone => return Maker::on_host(search.trace, machine),
            Self::LessMemory => machine.budget.0 -= machine.capacity().0 / SPARED_PARTS,
            Self::WithoutHost => {
                machine.host.take()?;
            }
        }
        machine.check_for(search.trace).ok()?;
        Some(Maker::of(search.trace, machine))
    }
}

/// Returns all jobs of a search.
pub(super) fn jobs(trace: &Trace, options: TidelogOptions) -> VecDeque<SearchJob> {
    let TidelogOptions { published, goal, without, rounds, runtime, .. } = options;
    let mut jobs = VecDeque::new();
    if without != Some(Idea::HostAlone) {
        jobs.push_back(SearchJob::Altered(Altered::HostAlone));
    }
    let sweep =
        |variant, most, is_limited| SearchJob::Sweep { maker: 0, variant, most, is_limited };
    jobs.extend(FIRST.map(|variant| sweep(variant, rounds, false)));
    if trace.ops.len() as u64 <= published || (goal == Goal::Wear && published > 0) {
        jobs.extend(Score::ALL.map(SearchJob::Published));
        // It moves few storages, which is best where each transfer takes its time of the thread.
        if runtime.handling > Nanos(0) && trace.ops.len() >= LONG_STEP {
            jobs.rotate_right(Score::ALL.len());
        }
    }
    if without != Some(Idea::Rounding) {
        let write_penalty = WRITE_PENALTIES[0];
        let line = LineOptions { effort: EFFORT, write_penalty, rounds, spares_bytes: false };
        jobs.push_back(SearchJob::Prices { maker: 0, line, is_limited: false });
    }
    let assigned = || {
        let parts = WAITING_PARTS.into_iter().filter(|_| without != Some(Idea::AssigningTiers));
        parts.map(|parts| SearchJob::Altered(Altered::Assigned(parts)))
    };
    jobs.extend(assigned());
    jobs.push_back(SearchJob::Altered(Altered::Wholes));
    jobs.extend(more(0, options));
    jobs.extend([Altered::LessMemory, Altered::WithoutHost].map(SearchJob::Altered));
    jobs.extend(SLOWER_PERCENT.map(|percent| SearchJob::Altered(Altered::SlowerWrites(percent))));
    // Each begins with the best plan so far, the second with what the first has found.
    jobs.extend(assigned().chain(assigned()));
    if without != Some(Idea::Cleaning) {
        jobs.push_back(SearchJob::Clean);
    }
    jobs.push_back(SearchJob::Trials);
    jobs
}

/// Returns the jobs for a machine or a trace that differs.
pub(super) fn jobs_of(maker: usize, altered: Altered, options: TidelogOptions) -> Vec<SearchJob> {
    let TidelogOptions { rounds, without, .. } = options;
    let is_limited = !matches!(altered, Altered::HostAlone);
    let sweep = |variant| SearchJob::Sweep { maker, variant, most: rounds, is_limited };
    let write_penalty = WRITE_PENALTIES[0];
    let line = LineOptions { effort: EFFORT, write_penalty, rounds, spares_bytes: false };
    let prices = SearchJob::Prices { maker, line, is_limited };
    let prices = Some(prices).filter(|_| without != Some(Idea::Rounding));
    let mut jobs: Vec<SearchJob> = FIRST.map(sweep).into();
    match altered {
        Altered::Wholes => jobs.extend(more(maker, options)),
        Altered::Assigned(_) => jobs.extend(ASSIGNED.map(sweep)),
        Altered::HostAlone => jobs.extend(prices.into_iter().chain(sweeps(maker, rounds))),
        _ => jobs.extend(prices),
    }
    jobs
}

/// All plans of all variants.
fn sweeps(maker: usize, rounds: u32) -> impl Iterator<Item = SearchJob> {
    let sweep = move |(most, variant)| SearchJob::Sweep { maker, variant, most, is_limited: true };
    let turns = (1..=rounds).flat_map(|round| (0..VARIANTS.len()).map(move |one| (round, one)));
    turns.map(sweep)
}

/// All plans of all variants, and all that are rounded from prices.
fn more(maker: usize, options: TidelogOptions) -> Vec<SearchJob> {
    let TidelogOptions { rounds, without, .. } = options;
    let prices = |write_penalty| {
        let line = LineOptions { effort: EFFORT, write_penalty, rounds, spares_bytes: true };
        SearchJob::Prices { maker, line, is_limited: true }
    };
    let rounded = WRITE_PENALTIES.into_iter().filter(|_| without != Some(Idea::Rounding));
    sweeps(maker, rounds).chain(rounded.map(prices)).collect()
}
