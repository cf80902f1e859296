//! Costs of ways between states, and how they are put together.

use super::states::{Instant, IntervalPrices, IntervalStep, out_on};

/// Cost of a byte's life: whole numbers to certify, floating point to search.
pub(super) trait Cost: Copy {
    const NOTHING: Self;
    /// Cost of more than any life costs, and far enough from overflow to be added up.
    const FORBIDDEN: Self;

    fn plus(self, other: Self) -> Self;

    /// Returns the cheapest of the costs.
    fn either<const S: usize>(ways: [Self; S]) -> Self;
}

impl Cost for u64 {
    const NOTHING: Self = 0;
    const FORBIDDEN: Self = 1 << 60;

    /// Adds costs; a sum that is forbidden is lowered to the largest one: true, if not all of the
    /// truth.
    fn plus(self, other: Self) -> Self {
        (self + other).min(Self::FORBIDDEN)
    }

    fn either<const S: usize>(ways: [Self; S]) -> Self {
        ways.into_iter().fold(Self::FORBIDDEN, Self::min)
    }
}

/// A cost in units of a temperature: a byte takes every way, those that cost little more than the
/// cheapest nearly as often. That makes the bound smooth in its prices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Warm(pub(super) f64);

/// Ways that cost this much more than the cheapest are not taken at all.
const NEVER: f64 = 30.0;

impl Warm {
    /// Returns the frequency of a way of this cost where all ways together cost `all`.
    pub(super) fn share(self, all: Self) -> f64 {
        let beyond = self.0 - all.0;
        if beyond < NEVER { (-beyond).exp() } else { 0.0 }
    }
}

impl Cost for Warm {
    const NOTHING: Self = Self(0.0);
    const FORBIDDEN: Self = Self(1e30);

    fn plus(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }

    fn either<const S: usize>(ways: [Self; S]) -> Self {
        let mut least = ways[0].0;
        for way in &ways[1..] {
            least = least.min(way.0);
        }
        let mut sum = 0.0;
        for way in ways {
            sum += way.share(Self(least));
        }
        Self(if sum > 1.0 { least - sum.ln() } else { least })
    }
}

/// Costs from each state to each.
pub(super) type Matrix<C, const S: usize> = [[C; S]; S];

/// Returns the costs of a step at these rates.
pub(super) fn matrix<C: Cost, const S: usize>(
    step: IntervalStep,
    rates: &IntervalPrices<C>,
) -> Matrix<C, S> {
    std::array::from_fn(|from| {
        let at_instant = match (step.instant, out_on(from)) {
            (Instant::Before, _) => C::NOTHING,
            (_, None) => rates.memory,
            (_, Some(tier)) => rates.room[tier],
        };
        std::array::from_fn(|to| {
            let Some(moves) = step.moves(from, to) else { return C::FORBIDDEN };
            let read = moves.read.map_or(C::NOTHING, |tier| rates.read[tier]);
            let written = moves.written.map_or(C::NOTHING, |tier| rates.write[tier]);
            at_instant.plus(read).plus(written)
        })
    })
}

/// One way after the other.
pub(super) fn product<C: Cost, const S: usize>(
    first: &Matrix<C, S>,
    second: &Matrix<C, S>,
) -> Matrix<C, S> {
    std::array::from_fn(|from| after(&first[from], second))
}

/// Returns the costs of reaching each state after one more stretch.
pub(super) fn after<C: Cost, const S: usize>(before: &[C; S], stretch: &Matrix<C, S>) -> [C; S] {
    std::array::from_fn(|to| {
        C::either::<S>(std::array::from_fn(|by| before[by].plus(stretch[by][to])))
    })
}

/// Returns the costs that are still to pay from each state before one more stretch.
pub(super) fn before<C: Cost, const S: usize>(stretch: &Matrix<C, S>, after: &[C; S]) -> [C; S] {
    std::array::from_fn(|from| {
        C::either::<S>(std::array::from_fn(|by| stretch[from][by].plus(after[by])))
    })
}
