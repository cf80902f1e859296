//! Improving a plan by trial, where trials are cheap: on short traces every period's other choices
//! are simulated in turn, until none of them helps.

use super::POLICY;
use super::candidates::Candidate;
use crate::lifetime::{ContentVersion, Lifetimes, Period, PeriodEnd};
use crate::migration::Migration;
use crate::plan::Expectation;
use crate::simulate::{SimulateError, Simulator};
use crate::trace::Trace;
use crate::units::{Bytes, Nanos};

/// Iterations that one simulation runs.
const ITERATIONS: u64 = 3;

/// The best plan that `best`, or one that moves nothing, a single period or two, becomes by
/// changing one period after the other, simulating at most `trials` ops: where several storages
/// have to move, moving one alone may be worse than none. A trace too long to look at each period
/// once is left as it is.
pub(super) fn improve(
    trace: &Trace,
    simulator: &Simulator<'_>,
    lifetimes: &Lifetimes,
    best: Candidate,
    trials: u64,
) -> Result<Candidate, SimulateError> {
    let ops = trace.ops.len() as u32;
    let left = trials / (ITERATIONS * u64::from(ops).max(1));
    if left < u64::from(ops) {
        return Ok(best);
    }
    // Of a constant that nothing uses one copy is enough for ever.
    let counts = |period: &&Period| {
        period.end == PeriodEnd::Use || period.version != ContentVersion::Constant
    };
    let periods: Vec<Period> = lifetimes.periods.iter().filter(counts).copied().collect();
    Trials { simulator, periods, ops, left }.improve(best)
}

/// Simulations that may still be made, and what they try.
struct Trials<'a> {
    simulator: &'a Simulator<'a>,
    periods: Vec<Period>,
    ops: u32,
    left: u64,
}

impl Trials<'_> {
    fn improve(mut self, best: Candidate) -> Result<Candidate, SimulateError> {
        let mut best = self.climb(best)?;
        let ops = self.ops;
        let single: Vec<(usize, Vec<Migration>)> = (self.periods.iter().enumerate())
            .flat_map(|(index, period)| {
                period.choices(ops).skip(1).map(move |choice| (index, choice))
            })
            .collect();
        let alone = single.iter().map(|(_, rows)| rows.clone());
        // Where two have to move before a third one helps.
        let pairs = single.iter().enumerate().flat_map(|(number, (index, rows))| {
            let others = single[number + 1..].iter().filter(move |(other, _)| other != index);
            others.map(move |(_, other)| [rows.as_slice(), other].concat())
        });
        for rows in [Vec::new()].into_iter().chain(alone).chain(pairs) {
            if self.is_over(&best) {
                break;
            }
            let start = self.simulate(rows)?;
            let other = self.climb(start)?;
            if merit(&other) < merit(&best) {
                best = other;
            }
        }
        Ok(best)
    }

    /// Changes one period after the other for the better, until no change of one helps.
    fn climb(&mut self, mut best: Candidate) -> Result<Candidate, SimulateError> {
        loop {
            let before = merit(&best);
            for index in 0..self.periods.len() {
                let period = self.periods[index];
                let others = without(&best.rows, self.ops, &period);
                for choice in period.choices(self.ops) {
                    if self.is_over(&best) {
                        return Ok(best);
                    }
                    let tried = self.simulate([others.clone(), choice].concat())?;
                    if merit(&tried) < merit(&best) {
                        best = tried;
                    }
                }
            }
            if merit(&best) == before {
                return Ok(best);
            }
        }
    }

    /// Whether there is nothing left to try with, or to gain.
    fn is_over(&self, best: &Candidate) -> bool {
        self.left == 0 || best.simulation.stalls.is_empty()
    }

    fn simulate(&mut self, rows: Vec<Migration>) -> Result<Candidate, SimulateError> {
        self.left -= 1;
        let simulation = self.simulator.simulate(POLICY, &rows)?;
        Ok(Candidate { rows, expects: Expectation::default(), simulation })
    }
}

fn merit(one: &Candidate) -> (Nanos, Bytes) {
    (one.simulation.time, one.simulation.bytes.ssd_written)
}

/// The rows without those of one period.
fn without(rows: &[Migration], ops: u32, period: &Period) -> Vec<Migration> {
    let inside = |row: &&Migration| {
        let start = row.start.0;
        let unrolled = if start < period.from { start + ops } else { start };
        row.storage == period.storage && unrolled < period.to
    };
    rows.iter().filter(|row| !inside(row)).copied().collect()
}
