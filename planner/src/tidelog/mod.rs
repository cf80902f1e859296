//! Tidelog's own policy: see `sweep` for how one plan is made, and here how it gets better.
//!
//! A plan is made for times at which ops would run; where its simulation stalls they run later, and
//! the next plan is made for those. Each variant takes a few rounds, and the best plan is kept.

mod agenda;
mod assignment;
mod candidates;
mod cleaning;
mod in_parts;
mod maker;
mod pieces;
mod price;
mod rounding;
mod search;
mod sweep;
mod tree;
mod trials;
mod variant;

use crate::cost::Machine;
use crate::endurance::WriteBudget;
use crate::plan::Plan;
use crate::simulate::{Carrier, GpuRuntime, Runtime, SimulateError, Simulation};
use crate::trace::Trace;
use crate::units::{Bytes, Nanos};
pub use in_parts::{PartedPlan, in_parts, in_parts_of};
pub use price::PlanPrice;
pub use search::Search;

/// Number of ops that the plans of a thorough search may have together.
const THOROUGH: u64 = 4_000_000;

/// Number of steps of a search that are enough to compare steps of a program with each other.
pub const QUICK_STEPS: u64 = 4;

/// The name in the policy's plans.
const POLICY: &str = "tidelog";

/// Options of the search; the defaults are those of every published figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TidelogOptions {
    /// Number of plans that each variant makes, each for the stalls of the one before.
    pub rounds: u32,
    /// Number of ops that all plans beyond the first few may have together; those are made whatever
    /// they have. With [`Goal::Wear`] all are made.
    pub planned: u64,
    /// Limit of ops of traces for which the published algorithm's plans are tried, too; for longer
    /// ones they take far longer than all others together. Where kernels hide everything its
    /// slower, exact ledgers may fit a transfer in that a pass begins one op too late.
    /// [`Goal::Wear`] needs them for a trace of any length, unless this is 0.
    pub published: u64,
    /// Goal by which the best of the plans is chosen.
    pub goal: Goal,
    /// Number of ops that may be simulated to improve the plan by trial. Only short traces profit:
    /// a long one is left as it is where this is not enough to look at each of its ops.
    pub trials: u64,
    /// Runtime that carries the plan out. A session tells what it has measured, so that a plan that
    /// moves more has to be worth it.
    pub runtime: Runtime,
    /// Runtime that carries it out where tensors are a GPU's, in place of `runtime`.
    pub gpu: Option<GpuRuntime>,
    /// An idea to leave out, to see what it brings.
    pub without: Option<Idea>,
}

impl Default for TidelogOptions {
    fn default() -> Self {
        Self {
            rounds: 3,
            planned: 80_000,
            published: 100_000,
            goal: Goal::default(),
            trials: 200_000,
            runtime: Runtime::default(),
            gpu: None,
            without: None,
        }
    }
}

impl TidelogOptions {
    /// Looks for far longer, as whoever waits for the plan alone can: of steps with tens of
    /// thousands of ops for seconds.
    pub fn thorough() -> Self {
        Self { planned: THOROUGH, ..Self::default() }
    }

    fn carrier(&self) -> Carrier {
        self.gpu.map_or(Carrier::Thread(self.runtime), Carrier::Gpu)
    }
}

/// Criterion of the best plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Goal {
    /// The fewest bytes written to SSDs in a time within a hundredth of the shortest one found, and
    /// no longer than the published algorithm's best.
    #[default]
    Balanced,
    /// The shortest iteration; among those that are hardly longer, the fewest bytes written to
    /// SSDs.
    Time,
    /// The fewest bytes written to SSDs, in a time no longer than the published algorithm's best.
    Wear,
    /// Balanced plans where one keeps to the budget; else the shortest iteration with the pause
    /// that keeps to it, and of a hundredth of that the fewest bytes.
    Budget(WriteBudget),
}

impl Goal {
    /// The length of such a step, with the pause that the goal asks for.
    pub fn length(self, time: Nanos, written: Bytes) -> Nanos {
        match self {
            Self::Balanced | Self::Time | Self::Wear => time,
            Self::Budget(budget) => budget.paced(time, written),
        }
    }
}

/// The ideas of the policy that can be left out one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Idea {
    /// Evictions begin as early as the peak needs them to.
    BeforeThePeak,
    /// Free memory is filled with what comes next, early or not.
    FillingFreeMemory,
    /// Variant in which storages stay that would come back before it could have gone stays.
    OnlyWhatPays,
    /// A write counts against the victim, shared by the periods that its copy serves.
    CountingWrites,
    /// Variant in which storages with a copy are expected to be dropped at the peak, so that
    /// evictions begin later.
    ExpectedDrops,
    /// The next plan is made for the times at which the last one's ops ran.
    Replanning,
    /// Plans rounded from the lower bound's prices are tried, too.
    Rounding,
    /// Plans are tried, too, for host memory alone, where that takes all that leaves.
    HostAlone,
    /// Plans are tried, too, in which links that are idle write what stays in memory, so that it
    /// leaves later without a write.
    Cleaning,
    /// Plans are tried, too, in which the SSDs have a part of what leaves in every stretch of the
    /// step, and host memory the rest.
    AssigningTiers,
}

impl Idea {
    /// List of all variants.
    pub const ALL: [Self; 10] = [
        Self::BeforeThePeak,
        Self::FillingFreeMemory,
        Self::OnlyWhatPays,
        Self::CountingWrites,
        Self::ExpectedDrops,
        Self::Replanning,
        Self::Rounding,
        Self::AssigningTiers,
        Self::HostAlone,
        Self::Cleaning,
    ];
}

/// Plans one iteration, simulates it, and returns the best plan found with its expectations.
///
/// # Errors
/// If the trace's step cannot be simulated on the machine.
///
/// # Panics
/// If the residency machine holds more than the budget: that would be a bug in it.
pub fn tidelog(
    trace: &Trace,
    machine: &Machine,
    options: TidelogOptions,
) -> Result<(Plan, Simulation), SimulateError> {
    let search = search::searched(trace, machine, options)?;
    Ok(search.best().expect("the first step of a search makes a plan"))
}

/// Returns time and written bytes of the best plan that a search of `steps` steps finds. Nothing
/// where the trace's step cannot run on the machine.
///
/// # Errors
/// If the trace's step cannot be simulated for another reason than a lack of memory.
pub fn step_cost(
    trace: &Trace,
    machine: &Machine,
    options: TidelogOptions,
    steps: u64,
) -> Result<Option<(Nanos, Bytes)>, SimulateError> {
    let found = Search::new(trace, machine, options).and_then(|mut search| {
        search.advance(steps)?;
        Ok(search.best())
    });
    match found {
        Err(SimulateError::Refused { .. }) => Ok(None),
        found => Ok(found?.map(|(_, best)| (best.time, best.bytes.ssd_written))),
    }
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
    let options = TidelogOptions { goal: Goal::Wear, ..options };
    Ok(search::searched(trace, machine, options)?.frontier())
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod assignment_tests;

#[cfg(test)]
mod cleaning_tests;

#[cfg(test)]
mod exhaustive_tests;

#[cfg(test)]
mod in_parts_tests;

#[cfg(test)]
mod same_bytes_tests;

#[cfg(test)]
mod search_tests;

#[cfg(test)]
mod freedom_tests;
