//! The plans that come out of one set of prices, one after the other.

use super::super::variant::Guess;
use super::{Rounding, RoundingCase};
use crate::bound::{Effort, PriceSearch};
use crate::cost::MachineError;
use crate::migration::Migration;
use std::collections::VecDeque;

/// Number of price changes that are made at a time.
const STRIDE: u32 = 50;

/// Stalls where bytes count, in percent of those of a first plan.
const LONGER_PERCENT: [u64; 2] = [200, 800];

/// Share of the links' queues that is counted where bytes count: ops wait for the rest.
const QUEUES_PERCENT: [u64; 3] = [90, 75, 50];

/// Options of a line of plans.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(in crate::tidelog) struct LineOptions {
    /// Work of the search for prices: they need not prove anything here.
    pub(in crate::tidelog) effort: Effort,
    /// Cost of a written byte on top, in the time that writing it takes.
    pub(in crate::tidelog) write_penalty: f64,
    /// Number of times that the plan is made for the stalls of the one before.
    pub(in crate::tidelog) rounds: u32,
    /// True if plans that move fewer bytes in more time are made, too.
    pub(in crate::tidelog) spares_bytes: bool,
}

/// Times for which a plan is made.
#[derive(Clone, Copy, Debug)]
enum Turn {
    /// No op waits.
    First,
    /// Ops begin as they did under the plan before.
    Again { queues_percent: u64 },
    /// Times under the first plan, with longer waits.
    Longer { percent: u64 },
    /// Times under the first plan, while links' queues are taken to be shorter than they are.
    FromFirst { queues_percent: u64 },
}

/// Next action of a line.
pub(in crate::tidelog) enum Advance {
    /// Prices are a little better.
    Searched,
    /// A plan to simulate: what it led to is told to [`RoundingLine::learn`].
    Planned(Vec<Migration>),
    /// The line is over: nothing is left.
    Over,
}

/// Prices, then plan after plan.
pub(in crate::tidelog) struct RoundingLine {
    prices: Option<PriceSearch>,
    rounding: Option<Rounding>,
    turns: VecDeque<Turn>,
    /// Guesses of the first plan, and of the last one.
    first: Option<Guess>,
    last: Option<Guess>,
}

impl RoundingLine {
    pub(in crate::tidelog) fn new(
        case: RoundingCase<'_>,
        options: LineOptions,
    ) -> Result<Self, MachineError> {
        let LineOptions { effort, write_penalty, rounds, spares_bytes } = options;
        #[allow(clippy::cast_precision_loss, reason = "prices are searched in floating point")]
        let write_penalty = write_penalty * 1e9 / case.machine.ssd.write.0.max(1) as f64;
        let prices = PriceSearch::with_toll(case.trace, case.machine, effort, write_penalty)?;
        let mut turns = VecDeque::from([Turn::First]);
        turns.extend((1..rounds).map(|_| Turn::Again { queues_percent: 100 }));
        if spares_bytes {
            turns.extend(LONGER_PERCENT.map(|percent| Turn::Longer { percent }));
            for queues_percent in QUEUES_PERCENT {
                turns.push_back(Turn::FromFirst { queues_percent });
                turns.extend((1..rounds).map(|_| Turn::Again { queues_percent }));
            }
        }
        Ok(Self { prices: Some(prices), rounding: None, turns, first: None, last: None })
    }

    pub(in crate::tidelog) fn advance(&mut self, case: RoundingCase<'_>) -> Advance {
        if let Some(mut prices) = self.prices.take() {
            if prices.advance(case.trace, case.machine, STRIDE) {
                self.prices = Some(prices);
            } else {
                self.rounding = Some(Rounding::new(case, &prices.into_bound()));
            }
            return Advance::Searched;
        }
        let (Some(rounding), Some(turn)) = (&self.rounding, self.turns.pop_front()) else {
            return Advance::Over;
        };
        let none = || Guess::without_waits(case.trace);
        let of = |guess: &Option<Guess>| guess.clone().unwrap_or_else(none);
        let (guess, queues_percent) = match turn {
            Turn::First => (none(), 100),
            Turn::Again { queues_percent } => (of(&self.last), queues_percent),
            Turn::Longer { percent } => (of(&self.first).with_waits(case.trace, percent), 100),
            Turn::FromFirst { queues_percent } => (of(&self.first), queues_percent),
        };
        // The plan before was made for these times already.
        let is_known = matches!(turn, Turn::Again { queues_percent: 100 });
        if is_known && guess.never_waits(case.trace) {
            return Advance::Over;
        }
        Advance::Planned(rounding.rows(case, &guess, queues_percent))
    }

    /// Learns the times at which ops began under the last plan.
    pub(in crate::tidelog) fn learn(&mut self, guess: Guess) {
        self.first.get_or_insert_with(|| guess.clone());
        self.last = Some(guess);
    }
}
