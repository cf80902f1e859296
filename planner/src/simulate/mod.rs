//! Simulation of an iteration: the residency machine itself, on simulated links and one clock.
//!
//! The simulator only moves the clock. Which storage leaves when, what is fetched, who waits: all
//! of that is [`crate::residency`], the same code that runs under a training loop. It is told of
//! ops as the bridge tells it, and of completions when the bridge would see them: at op boundaries,
//! or while an op waits. Iterations are run until everything that wraps around the iteration has
//! settled: until one takes as long as the one before. It is reported.
//!
//! Where tensors are a GPU's there are two clocks ([`GpuRuntime`]): the program's thread launches
//! ahead of the GPU, and each waits for the other where streams, events and the allocator make it.

mod arena;
mod caching;
mod clocks;
mod departing;
mod engines;
mod event;
mod gpu;
mod gpu_runtime;
mod gpu_step;
mod link;
mod links;
mod run;
mod thread;
mod two_clocks;
mod world;

use crate::cost::{Machine, MachineError};
use crate::migration::{Ending, MemorySample, Migration, MigrationDirection, Target};
use crate::plan::{Compiler, Expectation, Plan, PlanError, PlannedBytes};
use crate::residency::{BudgetRefusal, Stats, TransferFailure};
use crate::trace::{PlanStorage, Trace};
use crate::units::{Bytes, Nanos, OpIndex};
pub use clocks::{CauseSpan, StepClocks, TimeCause, laid_over};
pub use gpu_runtime::{
    ChecksumStream, CompletionRule, CopyRates, EvictionAfter, GpuAllocator, GpuBehaviour, GpuCosts,
    GpuRuntime,
};
pub use gpu_step::{GpuStep, StepCounts};
use run::SimulationRun;
use std::sync::Arc;

/// Iterations before the first that may be reported.
const WARM_UP: u32 = 2;

/// Limit of iterations that may be run until they settle. Under some plans iterations alternate for
/// ever: then it goes on to one as long as the longest, which is reported.
const SETTLING: u32 = 6;

/// Times that differ by less than this part are taken to be the same.
const SAME_PARTS: u64 = 1000;

/// Policy that decides what moves.
#[derive(Clone, Copy, Debug)]
pub enum Policy<'a> {
    /// Memory without end: nothing moves.
    Ideal,
    /// No plan: what is touched comes back first, the least recently used leaves.
    Lru,
    /// A plan, and the machine's own choice where it says nothing.
    Planned(&'a Plan),
}

impl Policy<'_> {
    /// Returns the name in files and reports.
    pub fn name(&self) -> &str {
        match self {
            Self::Ideal => "ideal",
            Self::Lru => "lru",
            Self::Planned(plan) => &plan.policy,
        }
    }
}

/// Runtime that carries a plan out beside the links. By default it takes no time and does nothing
/// of its own: figures are then the plan's own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Runtime {
    /// Number of ops ahead for which storages are fetched, and room is made, whatever the plan's
    /// moves do ([`crate::residency::Config::lookahead`]).
    pub lookahead: u32,
    /// Time of one transfer on the thread that runs the ops, in which none of them runs: memory is
    /// given up or asked for, the transfer is handed over, its end is processed.
    pub handling: Nanos,
}

/// Carrier of a plan: a thread whose clock the ops share, or one with a GPU.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Carrier {
    Thread(Runtime),
    Gpu(GpuRuntime),
}

impl Carrier {
    fn lookahead(&self) -> u32 {
        match self {
            Self::Thread(runtime) => runtime.lookahead,
            Self::Gpu(runtime) => runtime.lookahead,
        }
    }

    fn rechecks(&self) -> bool {
        matches!(self, Self::Gpu(runtime) if runtime.behaviour.recheck)
    }
}

/// One iteration in the steady state. Times count from its beginning.
#[derive(Clone, Debug, Default)]
pub struct Simulation {
    /// The policy's name.
    pub policy: String,
    /// The length of the iteration.
    pub time: Nanos,
    /// Time at which each op began to run.
    pub begins: Vec<Nanos>,
    /// The waits, in order.
    pub stalls: Vec<OpStall>,
    /// Memory over time.
    pub memory: Vec<MemorySample>,
    /// The most bytes held at once in any iteration, staging apart.
    pub peak: Bytes,
    /// The transfers that ended or were under way in the iteration.
    pub transfers: Vec<SimulatedTransfer>,
    /// The bytes moved by transfers that completed in the iteration.
    pub bytes: PlannedBytes,
    /// The residency machine's counters over all iterations.
    pub stats: Stats,
    /// Causes of the time, where tensors are a GPU's. Ops begin and stall by its clock then; what
    /// memory holds is by the clock of the program's thread.
    pub gpu: Option<GpuStep>,
}

/// A wait of an op.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpStall {
    /// Index of the op.
    pub op: OpIndex,
    /// Time at which it could have begun.
    pub begin: Nanos,
    /// Time that it waited.
    pub length: Nanos,
    /// The first storage that was not there; `None` if it waited for room.
    pub waited_for: Option<PlanStorage>,
}

/// A transfer in a simulated iteration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SimulatedTransfer {
    /// Storage of the bytes.
    pub storage: PlanStorage,
    /// Direction of the transfer.
    pub direction: MigrationDirection,
    /// Tier of the other end.
    pub target: Target,
    /// Time at which the machine asked for it.
    pub begin: Nanos,
    /// Time at which its first byte moved.
    pub moved: Nanos,
    /// Time of its completion.
    pub end: Nanos,
    /// Number of its bytes that moved in the iteration: fewer than all where it began before or
    /// goes on after.
    pub in_step: Bytes,
    /// True if an op waited for it.
    pub urgent: bool,
    /// True if the transfer made a copy of a storage that stayed in memory.
    pub stays: bool,
    /// Ending of the transfer.
    pub ending: Ending,
}

impl SimulatedTransfer {
    /// Returns whether a storage's memory went by it.
    pub fn leaves(&self) -> bool {
        self.direction == MigrationDirection::Out && !self.stays
    }
}

/// The reason why an iteration cannot be simulated.
#[derive(Debug, thiserror::Error)]
pub enum SimulateError {
    /// The plan does not belong to the trace.
    #[error(transparent)]
    Plan(#[from] PlanError),
    /// The machine cannot be, or not for this trace.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// The budget is too small for an op, whatever is evicted.
    #[error("{what} does not fit: {told}")]
    Refused {
        /// The op, or the storage that was to be made.
        what: String,
        /// The figures.
        refusal: Box<BudgetRefusal>,
        /// The figures in words, with the trace's names.
        told: String,
    },
    /// The residency machine reports a failed transfer; the simulator makes none fail.
    #[error("{what}: {failure}")]
    Failed {
        /// The op, or the storage that was to be made.
        what: String,
        /// The failure.
        failure: Box<TransferFailure>,
    },
    /// The residency machine waits although nothing is under way.
    #[error("{what} waits for a transfer, but none is under way: please report this")]
    Stuck {
        /// The op, or the storage that was to be made.
        what: String,
    },
}

/// Runs iterations of `trace` on `machine` until they are in the steady state, and reports one.
///
/// # Panics
/// If the residency machine holds more than the budget: that would be a bug in it.
pub fn simulate(
    trace: &Trace,
    machine: &Machine,
    policy: Policy<'_>,
) -> Result<Simulation, SimulateError> {
    simulate_under(Runtime::default(), trace, machine, policy)
}

/// [`simulate`] with what the runtime that carries it out does and takes.
///
/// # Panics
/// As [`simulate`].
pub fn simulate_under(
    runtime: Runtime,
    trace: &Trace,
    machine: &Machine,
    policy: Policy<'_>,
) -> Result<Simulation, SimulateError> {
    let carrier = Carrier::Thread(runtime);
    steady(SimulationRun::begin(carrier, trace, machine, policy)?, policy.name())
}

/// [`simulate`] on a GPU: with two clocks, and with what the bridge takes.
///
/// # Panics
/// As [`simulate`].
pub fn simulate_on_gpu(
    runtime: GpuRuntime,
    trace: &Trace,
    machine: &Machine,
    policy: Policy<'_>,
) -> Result<Simulation, SimulateError> {
    let carrier = Carrier::Gpu(runtime);
    steady(SimulationRun::begin(carrier, trace, machine, policy)?, policy.name())
}

/// Simulates plan after plan for one trace: what follows from the trace alone is made once.
pub(crate) struct Simulator<'a> {
    carrier: Carrier,
    trace: &'a Trace,
    machine: &'a Machine,
    compiler: Compiler<'a>,
}

impl<'a> Simulator<'a> {
    pub(crate) fn new(
        carrier: Carrier,
        trace: &'a Trace,
        machine: &'a Machine,
    ) -> Result<Self, SimulateError> {
        machine.check_for(trace)?;
        Ok(Self { carrier, trace, machine, compiler: Compiler::new(trace)? })
    }

    /// One iteration under a plan of `policy` with these rows, which are in any order.
    pub(crate) fn simulate(
        &self,
        policy: &str,
        rows: &[Migration],
    ) -> Result<Simulation, SimulateError> {
        let schedule = Arc::new(self.compiler.compile(rows)?);
        steady(SimulationRun::new(self.carrier, self.trace, self.machine, Some(&schedule))?, policy)
    }
}

/// Runs iterations until they are in the steady state, and reports one.
fn steady(mut run: SimulationRun<'_>, policy: &str) -> Result<Simulation, SimulateError> {
    for _ in 1..WARM_UP {
        run.iteration()?;
    }
    let is_same = |one: u64, other: u64| one.abs_diff(other) <= one / SAME_PARTS;
    let mut before = run.timed_iteration()?.0;
    run.record();
    let mut longest = 0;
    for settling in 1..=2 * SETTLING {
        let time = run.timed_iteration()?.0;
        longest = longest.max(time);
        let is_long = settling >= SETTLING && is_same(longest, time);
        if is_same(before, time) || is_long {
            break;
        }
        before = time;
    }
    Ok(run.into_simulation(policy))
}

/// Runs `iterations` iterations from a beginning with all globals made and nothing in flight, and
/// returns their time and counts. What a policy gains by what it leaves to later iterations shows
/// here.
///
/// # Panics
/// As [`simulate`].
pub fn run_many(
    trace: &Trace,
    machine: &Machine,
    policy: Policy<'_>,
    iterations: u32,
) -> Result<(Nanos, Stats), SimulateError> {
    let mut run =
        SimulationRun::begin(Carrier::Thread(Runtime::default()), trace, machine, policy)?;
    for _ in 0..iterations {
        run.iteration()?;
    }
    Ok((run.now(), run.stats()))
}

impl Simulation {
    /// The time in which an op waited.
    pub fn stall_time(&self) -> Nanos {
        Nanos(self.stalls.iter().map(|stall| stall.length.0).sum())
    }

    /// Returns the expectation of a plan of which this is the simulation. What it leaves over
    /// capacity is the planner's to say, and is kept.
    pub fn expectation(&self, planned: &Expectation) -> Expectation {
        Expectation {
            simulated: true,
            time: self.time,
            stall: self.stall_time(),
            stalled_ops: self.stalls.len() as u32,
            peak: self.peak,
            bytes: self.bytes,
            ops_over_capacity: planned.ops_over_capacity,
            over_capacity: planned.over_capacity,
            ..Expectation::default()
        }
        .with_rates()
    }
}

/// Simulates a plan and writes what came out into its expectations.
pub fn with_expectations(
    plan: Plan,
    trace: &Trace,
    machine: &Machine,
) -> Result<(Plan, Simulation), SimulateError> {
    with_expectations_under(Runtime::default(), plan, trace, machine)
}

/// [`with_expectations`] with what the runtime that carries it out does and takes.
pub fn with_expectations_under(
    runtime: Runtime,
    mut plan: Plan,
    trace: &Trace,
    machine: &Machine,
) -> Result<(Plan, Simulation), SimulateError> {
    let simulation = simulate_under(runtime, trace, machine, Policy::Planned(&plan))?;
    plan.expects = simulation.expectation(&plan.expects);
    Ok((plan, simulation))
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod two_clocks_tests;
