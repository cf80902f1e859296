//! What a search does, in which order: what is good most of the time first.

use super::maker::Maker;
use super::rounding::{LineOptions, RoundingLine};
use super::search::Search;
use super::variant::{FIRST, VARIANTS};
use super::{Goal, Idea, TidelogOptions};
use crate::algorithm1::Score;
use crate::bound::Effort;
use crate::trace::Trace;
use crate::units::Bandwidth;
use std::collections::VecDeque;

/// Enough to tell who should leave.
const EFFORT: Effort = Effort { instants: 75, steps: 150 };

/// What a byte written may cost on top, in the time that writing it takes. The first leads to short
/// iterations; which of the others leads to few bytes differs from model to model.
pub(super) const WRITE_PENALTIES: [f64; 3] = [1.0, 8.0, 32.0];

/// How slowly SSDs write on the machines that plans of few bytes are made for, in percent of what
/// the fastest plan writes on average. The first lets a plan write in bursts.
const SLOWER_PERCENT: [u64; 7] = [300, 150, 100, 70, 50, 35, 25];

/// A piece of work. Those that are limited are done as far as [`TidelogOptions::planned`] goes.
pub(super) enum SearchJob {
    /// The next plan of a variant, unless it has made `most`.
    Sweep { maker: usize, variant: usize, most: u32, is_limited: bool },
    /// The published algorithm's plan.
    Published(Score),
    /// Prices are searched, and plans are rounded from them.
    Prices { maker: usize, line: LineOptions, is_limited: bool },
    /// The same under way.
    Round { maker: usize, line: Box<RoundingLine>, is_limited: bool },
    /// Plans for another machine: its jobs come next.
    Altered(Altered),
    /// The fastest plan is improved by trial.
    Trials,
}

/// How a machine that plans are made for differs from the real one.
#[derive(Clone, Copy, Debug)]
pub(super) enum Altered {
    /// Its SSDs write at so many percent of the rate at which the fastest plan's do on average.
    SlowerWrites(u64),
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
        }
        machine.check_for(search.trace).ok()?;
        Some(Maker::of(search.trace, machine))
    }
}

/// Everything that a search does.
pub(super) fn jobs(trace: &Trace, options: TidelogOptions) -> VecDeque<SearchJob> {
    let TidelogOptions { published, goal, without, rounds, .. } = options;
    let mut jobs = VecDeque::new();
    let sweep =
        |variant, most, is_limited| SearchJob::Sweep { maker: 0, variant, most, is_limited };
    jobs.extend(FIRST.map(|variant| sweep(variant, rounds, false)));
    if trace.ops.len() as u64 <= published || (goal == Goal::Wear && published > 0) {
        jobs.extend(Score::ALL.map(SearchJob::Published));
    }
    let prices = |write_penalty, effort, spares_bytes, is_limited| {
        let line = LineOptions { effort, write_penalty, rounds, spares_bytes };
        SearchJob::Prices { maker: 0, line, is_limited }
    };
    let rounds_prices = without != Some(Idea::Rounding);
    if rounds_prices {
        jobs.push_back(prices(WRITE_PENALTIES[0], EFFORT, false, false));
    }
    for round in 1..=rounds {
        jobs.extend((0..VARIANTS.len()).map(|variant| sweep(variant, round, true)));
    }
    if rounds_prices {
        jobs.extend(WRITE_PENALTIES.map(|penalty| prices(penalty, EFFORT, true, true)));
    }
    jobs.extend(SLOWER_PERCENT.map(|percent| SearchJob::Altered(Altered::SlowerWrites(percent))));
    jobs.push_back(SearchJob::Trials);
    jobs
}

/// What is done for a machine that differs.
pub(super) fn jobs_of(maker: usize, options: TidelogOptions) -> Vec<SearchJob> {
    let TidelogOptions { rounds, without, .. } = options;
    let sweep = |variant| SearchJob::Sweep { maker, variant, most: rounds, is_limited: true };
    let mut jobs: Vec<SearchJob> = FIRST.map(sweep).into();
    if without != Some(Idea::Rounding) {
        let write_penalty = WRITE_PENALTIES[0];
        let line = LineOptions { effort: EFFORT, write_penalty, rounds, spares_bytes: false };
        jobs.push(SearchJob::Prices { maker, line, is_limited: true });
    }
    jobs
}
