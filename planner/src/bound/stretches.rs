//! The stretches that lives are made of: single steps, and runs of idle intervals.
//!
//! Any run is one or two stretches: for every power of two the intervals are cut into blocks of
//! that many, and from the middle of each block stretches reach back and forth by any length.

use super::costs::{Cost, Matrix, Warm, matrix, product};
use super::states::{IntervalPrices, IntervalStep};

/// Names a stretch: a single step in an interval (by its place in [`Step::KINDS`]), or an idle run.
pub(super) type StretchId = u32;

/// Layout of stretches of `count` intervals.
#[derive(Clone, Copy, Debug)]
pub(super) struct Layout {
    pub(super) count: usize,
}

impl Layout {
    pub(super) fn step(self, step: IntervalStep, interval: usize) -> StretchId {
        let kind = IntervalStep::KINDS.iter().position(|kind| *kind == step);
        (kind.expect("every step is of a kind") * self.count + interval) as StretchId
    }

    /// The stretches of the idle run through these intervals.
    pub(super) fn run(self, from: usize, last: usize) -> impl Iterator<Item = StretchId> {
        let level = (from ^ last).checked_ilog2().unwrap_or(0) as usize;
        let both = [self.reaching(level, from), self.reaching(level, last)];
        both.into_iter().take(if from == last { 1 } else { 2 })
    }

    /// The stretch from an interval to the middle of its block of `2 << level`, or from there to
    /// it.
    fn reaching(self, level: usize, interval: usize) -> StretchId {
        let (within, half) = (interval % (2 << level), 1 << level);
        let row = if within == half || within + 1 == half {
            0
        } else {
            IntervalStep::KINDS.len() + level - 1
        };
        (row * self.count + interval) as StretchId
    }

    fn levels(self) -> usize {
        self.count.next_power_of_two().ilog2() as usize
    }

    pub(super) fn stretches(self) -> usize {
        (IntervalStep::KINDS.len() + self.levels().saturating_sub(1)) * self.count
    }

    /// The runs of more than an interval, each after those that it is made of.
    fn runs(self) -> Vec<Run> {
        let mut runs = Vec::new();
        for level in 1..self.levels() {
            let half = 1 << level;
            for middle in (half..self.count).step_by(2 * half) {
                for at in (middle - half..middle - 1).rev() {
                    let (first, second) = (self.reaching(0, at), self.reaching(level, at + 1));
                    runs.push(Run { of: self.reaching(level, at), first, second });
                }
                for at in middle + 1..self.count.min(middle + half) {
                    let (first, second) = (self.reaching(level, at - 1), self.reaching(0, at));
                    runs.push(Run { of: self.reaching(level, at), first, second });
                }
            }
        }
        runs
    }
}

/// A run put together from two stretches.
#[derive(Clone, Copy, Debug)]
struct Run {
    of: StretchId,
    first: StretchId,
    second: StretchId,
}

/// Costs of every stretch at some prices.
pub(super) struct Stretches<C, const S: usize> {
    pub(super) layout: Layout,
    runs: Vec<Run>,
    costs: Vec<Matrix<C, S>>,
}

impl<C: Cost, const S: usize> Stretches<C, S> {
    pub(super) fn new(layout: Layout) -> Self {
        let costs = vec![[[C::FORBIDDEN; S]; S]; layout.stretches()];
        Self { layout, runs: layout.runs(), costs }
    }

    /// `rates`: of each interval.
    pub(super) fn price(&mut self, rates: &[IntervalPrices<C>]) {
        for (kind, step) in IntervalStep::KINDS.into_iter().enumerate() {
            for (interval, rates) in rates.iter().enumerate() {
                self.costs[kind * self.layout.count + interval] = matrix(step, rates);
            }
        }
        for run in &self.runs {
            let [first, second] = [run.first, run.second].map(|part| &self.costs[part as usize]);
            self.costs[run.of as usize] = product(first, second);
        }
    }

    pub(super) fn cost(&self, stretch: StretchId) -> &Matrix<C, S> {
        &self.costs[stretch as usize]
    }
}

impl<const S: usize> Stretches<Warm, S> {
    /// `bytes` went each way of each stretch: where they went on each of the single steps.
    pub(super) fn resolve(&self, bytes: &mut [Matrix<f64, S>]) {
        for run in self.runs.iter().rev() {
            let through = std::mem::replace(&mut bytes[run.of as usize], [[0.0; S]; S]);
            let (all, first, second) =
                (self.cost(run.of), self.cost(run.first), self.cost(run.second));
            for (from, to) in (0..S * S).map(|way| (way / S, way % S)) {
                if through[from][to] == 0.0 {
                    continue;
                }
                for by in 0..S {
                    let share = first[from][by].plus(second[by][to]).share(all[from][to]);
                    bytes[run.first as usize][from][by] += share * through[from][to];
                    bytes[run.second as usize][by][to] += share * through[from][to];
                }
            }
        }
    }
}
