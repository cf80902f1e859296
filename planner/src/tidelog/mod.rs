//! Tidelog's own policy: see `sweep` for how one plan is made, and here how it gets better.
//!
//! A plan is made for times at which ops would run; where its simulation stalls they run later, and
//! the next plan is made for those. Two leanings take a few rounds each, and the best plan is kept.

mod sweep;
mod tree;

use crate::algorithm1::{self, Score, algorithm1};
use crate::cost::Machine;
use crate::plan::{Expectation, Plan};
use crate::simulate::{SimulateError, Simulation, with_expectations};
use crate::trace::Trace;
use sweep::Sweep;

/// What may be set; the defaults are those of every published figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many plans each leaning makes, each for the stalls of the one before.
    pub rounds: u32,
    /// Whether the published algorithm's plans are tried too. Where kernels hide everything its slower,
    /// exact ledgers may fit a transfer in that a pass begins one op too late.
    pub published: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { rounds: 3, published: true }
    }
}

/// What a pass prefers where both ways may be right. Times are those in which the SSDs write a part
/// of the capacity: what matters is how much memory waits for how long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Leaning {
    /// Transfers begin once an op ahead would have to wait if they began this part later.
    slack_parts: u64,
    /// A link is given more when it has less than this part to do beyond the next op.
    queue_parts: u64,
    /// The time until a next use counts this many times, in percent, where a valid copy exists and
    /// leaving costs no write.
    kept_percent: u32,
}

/// Where kernels hide most transfers, short queues keep memory for what comes next; where the links
/// are the limit, they must never run dry, and writes must be few.
const LEANINGS: [Leaning; 2] = [
    Leaning { slack_parts: 16, queue_parts: 512, kept_percent: 200 },
    Leaning { slack_parts: 16, queue_parts: 128, kept_percent: 1000 },
];

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
    let mut best = Best::default();
    for leaning in LEANINGS {
        let mut guess = Guess { durations: durations.clone() };
        for _ in 0..options.rounds.max(1) {
            let rows = Sweep::new(trace, machine, &guess, leaning).run();
            let plan = Plan::new("tidelog", trace, machine, rows, Expectation::default());
            let (plan, simulation) = with_expectations(plan, trace, machine)?;
            guess.durations.clone_from(&durations);
            for stall in &simulation.stalls {
                guess.durations[stall.op.0 as usize] += stall.length.0;
            }
            best.offer(plan, simulation);
        }
    }
    for score in SCORES.into_iter().filter(|_| options.published) {
        let mut plan =
            algorithm1(trace, machine, algorithm1::Options { score, ..Default::default() });
        "tidelog".clone_into(&mut plan.policy);
        let (plan, simulation) = with_expectations(plan, trace, machine)?;
        best.offer(plan, simulation);
    }
    Ok(best.0.expect("there is at least one round"))
}

const SCORES: [Score; 3] = [Score::PerTransferTime, Score::PerByte, Score::Benefit];

/// The best plan so far: the shortest iteration, and the fewest bytes written among equals.
#[derive(Default)]
struct Best(Option<(Plan, Simulation)>);

impl Best {
    fn offer(&mut self, plan: Plan, simulation: Simulation) {
        let merit = |one: &Simulation| (one.time, one.bytes.ssd_written);
        if self.0.as_ref().is_none_or(|(_, known)| merit(&simulation) < merit(known)) {
            self.0 = Some((plan, simulation));
        }
    }
}

#[cfg(test)]
mod tests;
