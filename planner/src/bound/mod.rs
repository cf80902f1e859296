//! Lower bound, certified, on the time of an iteration in the steady state.
//!
//! The machine is relaxed until every storage can be looked at alone: bytes move singly, memory is
//! only looked at when some ops begin (the *instants*), and between two instants only the bytes
//! that moved count. Prices then stand for what storages compete for: a byte in memory at an
//! instant, a byte read or written in an interval. Whatever the prices are, the time of an
//! iteration is at least what `Relaxation::value` computes from them, in whole numbers;
//! `docs/plan.md` has the proof. The prices are the certificate: how they were found (`ascend`, in
//! floating point) does not matter.

mod ascend;
mod costs;
mod line;
mod lives;
mod moved;
mod relax;
mod shared;
mod skips;
mod states;
mod stretches;

use crate::cost::{Machine, MachineError};
use crate::simulate::CopyRates;
use crate::trace::Trace;
use crate::units::Nanos;
use ascend::{Aim, DualAscent};
pub use relax::{BadPrices, Prices, Relaxation};
pub use skips::{MadeTwice, Skippable};

/// The number of instants that the search begins with; each further round doubles it.
const INSTANTS_FIRST: u32 = 75;

/// Cost of a written byte on top of its time, where bytes alone count: so much that an iteration
/// three times as long as its kernels is proved to write hardly less than one without end.
const FLOOR_PENALTY: f64 = 8192.0;

/// Limit of that cost, in ns: prices have an end.
const FLOOR_PENALTY_MAX: f64 = 1024.0;

/// Limit of the work of the search for prices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Effort {
    /// The most instants at which memory is looked at.
    pub instants: u32,
    /// Price changes per round.
    pub steps: u32,
}

impl Default for Effort {
    fn default() -> Self {
        Self { instants: 1200, steps: 1000 }
    }
}

/// One round of the search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Round {
    /// Number of instants of the relaxation.
    pub instants: u32,
    /// The bound that its best prices certify.
    pub time: Nanos,
}

/// A lower bound, its certificate, and how it grew with the number of instants.
#[derive(Clone, Debug)]
pub struct Bound {
    /// No policy's average iteration is shorter.
    pub time: Nanos,
    /// Relaxation by which it is proved.
    pub relaxation: Relaxation,
    /// The certificate: `relaxation.value(&prices)` is `time`.
    pub prices: Prices,
    /// Every round, coarse to fine.
    pub rounds: Vec<Round>,
}

/// Searches prices that prove a large bound.
///
/// # Errors
/// The machine cannot be, or not for this trace.
pub fn lower_bound(
    trace: &Trace,
    machine: &Machine,
    effort: Effort,
) -> Result<Bound, MachineError> {
    with_toll(trace, machine, effort, 0.0)
}

/// Computes the bound with every byte written to SSDs costing this many nanoseconds on top.
///
/// # Errors
/// As [`lower_bound`].
pub fn with_toll(
    trace: &Trace,
    machine: &Machine,
    effort: Effort,
    write_penalty: f64,
) -> Result<Bound, MachineError> {
    search(trace, machine, effort, Aim { write_penalty, bytes: false }, Relaxed::default())
}

/// A bound for a link to host memory that has these rates when bytes go both ways at once, and
/// those of the machine otherwise.
///
/// # Errors
/// As [`lower_bound`].
pub fn with_both_ways(
    trace: &Trace,
    machine: &Machine,
    effort: Effort,
    rates: CopyRates,
) -> Result<Bound, MachineError> {
    let relaxed = Relaxed { both_ways: Some(rates), ..Relaxed::default() };
    search(trace, machine, effort, Aim { write_penalty: 0.0, bytes: false }, relaxed)
}

/// A bound that also holds where iterations leave ops out, whichever of these each likes.
///
/// # Errors
/// As [`lower_bound`].
pub fn with_skips(
    trace: &Trace,
    machine: &Machine,
    effort: Effort,
    groups: &[Skippable],
) -> Result<Bound, MachineError> {
    let relaxed = Relaxed { groups: groups.to_vec(), ..Relaxed::default() };
    search(trace, machine, effort, Aim { write_penalty: 0.0, bytes: false }, relaxed)
}

/// Searches prices that prove how many bytes an iteration must write to SSDs, whatever time it
/// takes within reason: how many says [`Relaxation::written_at_least`].
///
/// # Errors
/// As [`lower_bound`].
pub fn write_floor(
    trace: &Trace,
    machine: &Machine,
    effort: Effort,
) -> Result<Bound, MachineError> {
    #[allow(clippy::cast_precision_loss, reason = "prices are searched in floating point")]
    let writing = 1e9 / machine.ssd.write.0.max(1) as f64;
    let write_penalty = (FLOOR_PENALTY * writing).min(FLOOR_PENALTY_MAX);
    search(trace, machine, effort, Aim { write_penalty, bytes: true }, Relaxed::default())
}

fn search(
    trace: &Trace,
    machine: &Machine,
    effort: Effort,
    aim: Aim,
    relaxed: Relaxed,
) -> Result<Bound, MachineError> {
    let mut search = PriceSearch::new(trace, machine, effort, aim, relaxed)?;
    while search.advance(trace, machine, u32::MAX) {}
    Ok(search.into_bound())
}

/// Freedom and limits of iterations beside the machine's.
#[derive(Clone, Debug, Default)]
struct Relaxed {
    /// Groups of ops that iterations may leave out.
    groups: Vec<Skippable>,
    /// Rates of the link to host memory when bytes go both ways at once.
    both_ways: Option<CopyRates>,
}

impl Relaxed {
    fn at(&self, trace: &Trace, machine: &Machine, instants: u32) -> Relaxation {
        let relaxation = Relaxation::with_skips(trace, machine, instants, &self.groups);
        relaxation.with_both_ways(self.both_ways)
    }

    /// Returns the number of ops that may be left out.
    fn left_out(&self) -> usize {
        self.groups.iter().map(|group| group.ops.len()).sum()
    }
}

/// A search for prices that goes on when it is asked to.
#[derive(Debug)]
pub(crate) struct PriceSearch {
    effort: Effort,
    aim: Aim,
    relaxed: Relaxed,
    /// Number of instants that the round in progress was to have.
    instants: u32,
    under_way: Option<(Relaxation, DualAscent)>,
    rounds: Vec<Round>,
    best: Option<Bound>,
}

impl PriceSearch {
    /// Returns the prices that [`with_toll`] finds.
    pub(crate) fn with_toll(
        trace: &Trace,
        machine: &Machine,
        effort: Effort,
        write_penalty: f64,
    ) -> Result<Self, MachineError> {
        let aim = Aim { write_penalty, bytes: false };
        Self::new(trace, machine, effort, aim, Relaxed::default())
    }

    fn new(
        trace: &Trace,
        machine: &Machine,
        effort: Effort,
        aim: Aim,
        relaxed: Relaxed,
    ) -> Result<Self, MachineError> {
        machine.check_for(trace)?;
        let instants = INSTANTS_FIRST.min(effort.instants).max(1);
        let relaxation = relaxed.at(trace, machine, instants);
        let ascent = DualAscent::new(&relaxation, None, aim);
        let under_way = Some((relaxation, ascent));
        Ok(Self { effort, aim, relaxed, instants, under_way, rounds: Vec::new(), best: None })
    }

    /// Goes on for so many price changes, but not beyond the round that is under way. Returns
    /// whether there is more to do.
    pub(crate) fn advance(&mut self, trace: &Trace, machine: &Machine, steps: u32) -> bool {
        let Some((relaxation, mut ascent)) = self.under_way.take() else { return false };
        if ascent.climb(&relaxation, self.effort.steps, steps) {
            self.under_way = Some((relaxation, ascent));
            return true;
        }
        let (time, prices) = ascent.found();
        let found = relaxation.instants().len();
        self.rounds.push(Round { instants: found as u32, time });
        if self.best.as_ref().is_none_or(|bound| bound.time <= time) {
            self.best = Some(Bound { time, relaxation, prices, rounds: Vec::new() });
        }
        if found >= trace.ops.len() - self.relaxed.left_out()
            || self.instants >= self.effort.instants
        {
            return false;
        }
        self.instants = (2 * self.instants).min(self.effort.instants);
        let finer = self.relaxed.at(trace, machine, self.instants);
        let ascent = DualAscent::new(&finer, Some(&ascent), self.aim);
        self.under_way = Some((finer, ascent));
        true
    }

    /// Returns the bound of the rounds that are over, of which there must be one. The rounds are
    /// those that are over; there must be one.
    pub(crate) fn into_bound(self) -> Bound {
        let mut bound = self.best.expect("a round is over");
        bound.rounds = self.rounds;
        bound
    }
}

#[cfg(test)]
mod lives_tests;

#[cfg(test)]
mod tests;
