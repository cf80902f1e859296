//! Tidelog's own policy: see `sweep` for how one plan is made, and here how it gets better.
//!
//! A plan is made for times at which ops would run; where its simulation stalls they run later, and
//! the next plan is made for those. The best of a few rounds is kept.

mod sweep;
mod tree;

use crate::cost::Machine;
use crate::plan::{Expectation, Plan};
use crate::simulate::{SimulateError, Simulation, with_expectations};
use crate::trace::Trace;
use crate::units::Nanos;
use sweep::Sweep;

/// What may be set; the defaults are those of every published figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many plans are made, each for the stalls of the one before.
    pub rounds: u32,
    /// Bytes leave once an op ahead would be over capacity if they began this much later.
    pub slack_out: Nanos,
    /// Bytes come in, and others leave for them, once they would be late if they began this much later.
    pub slack_in: Nanos,
    /// A link is given more when it has less than this to do beyond the next op.
    pub queue: Nanos,
    /// What has a valid copy leaves before what would have to be written, unless it is used again in
    /// less than the inverse of this share of the other's time.
    pub clean_percent: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            rounds: 3,
            slack_out: Nanos(200_000_000),
            slack_in: Nanos(200_000_000),
            queue: Nanos(10_000_000),
            clean_percent: 200,
        }
    }
}

/// When the ops of an iteration are taken to run.
#[derive(Clone, Debug)]
struct Guess {
    /// Each op with the wait before it.
    durations: Vec<u64>,
}

/// Plans one iteration, simulates it, and answers the best plan found with its expectations.
pub fn tidelog(
    trace: &Trace,
    machine: &Machine,
    options: Options,
) -> Result<(Plan, Simulation), SimulateError> {
    let durations: Vec<u64> = trace.ops.iter().map(|op| op.duration.0).collect();
    let mut guess = Guess { durations: durations.clone() };
    let mut best: Option<(Plan, Simulation)> = None;
    for _ in 0..options.rounds.max(1) {
        let rows = Sweep::new(trace, machine, &guess, options).run();
        let plan = Plan::new("tidelog", trace, machine, rows, Expectation::default());
        let (plan, simulation) = with_expectations(plan, trace, machine)?;
        guess.durations.clone_from(&durations);
        for stall in &simulation.stalls {
            guess.durations[stall.op.0 as usize] += stall.length.0;
        }
        if best.as_ref().is_none_or(|(_, known)| simulation.time < known.time) {
            best = Some((plan, simulation));
        }
    }
    Ok(best.expect("there is at least one round"))
}
