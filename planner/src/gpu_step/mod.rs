//! Time of a step on a GPU, and its causes: the model that `make gpu-step` prints.
//!
//! A step is a trace of kernels and a part of its peak as memory. The bridge behaves in one of
//! several ways ([`Bridge`]), each with a plan of its own; [`crate::simulate`] runs the two clocks.
//! The step is compared with its true bound: kernel times alone against what the links can carry,
//! without any gap between launches. Every figure that the model takes for given is in a table
//! with its range and its source ([`Constants`]).

mod bridge;
mod constants;

use crate::bound::{Effort, lower_bound, with_both_ways};
use crate::cost::{Machine, MachineError};
use crate::lifetime::Lifetimes;
use crate::plan::{Plan, PlannedBytes};
use crate::simulate::{GpuStep, Policy, SimulateError, Simulation, simulate_on_gpu};
use crate::trace::Trace;
use crate::units::{Bytes, Nanos};
use bridge::machine;
pub use bridge::{Bridge, session_runtime};
pub use constants::{Constant, ConstantSource, Constants, OpsIn, RangeEnd};

/// Effort of the search for a step's bound: a quarter of the steps prove up to a fifteenth less,
/// more instants nothing more.
const EFFORT: Effort = Effort { instants: 300, steps: 2000 };

/// A step that was measured, with the code of that day: a GPT's on an H200, medians of four steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MeasuredStep {
    /// The trace of its step.
    pub trace: &'static str,
    /// The memory, in hundredths of the step's peak.
    pub percent: u32,
    /// Time that it took.
    pub time: Nanos,
}

/// Measured steps (`docs/measurements.md`, "On a GPU"): all that the model can be held against.
pub const MEASURED: [MeasuredStep; 2] = [
    MeasuredStep { trace: "gpt-8", percent: 50, time: Nanos(505_000_000) },
    MeasuredStep { trace: "gpt-8", percent: 33, time: Nanos(561_000_000) },
];

/// A step under a limit: what is the same however the bridge behaves.
#[derive(Debug)]
pub struct LimitedStep {
    /// The trace with the times that kernels take.
    trace: Trace,
    constants: Constants,
    budget: Bytes,
}

/// Figures of a step.
#[derive(Clone, Debug)]
pub struct StepFigures {
    /// Time from one step's end to the next one's.
    pub time: Nanos,
    /// Causes of the time, and what was done.
    pub step: GpuStep,
    /// Bytes that moved.
    pub bytes: PlannedBytes,
}

impl LimitedStep {
    /// Makes a step of a trace whose times are a roofline's, in hundredths of its peak.
    pub fn new(trace: &Trace, constants: Constants, percent: u32) -> Self {
        let trace = constants.kernels_of(trace);
        let peak = u128::from(Lifetimes::of(&trace).peak().0);
        let budget = Bytes((peak * u128::from(percent) / 100) as u64);
        Self { trace, constants, budget }
    }

    /// The memory that there is.
    pub fn budget(&self) -> Bytes {
        self.budget
    }

    /// Returns the time of the kernels.
    pub fn kernels(&self) -> Nanos {
        self.trace.duration()
    }

    /// The step without a limit and without a bridge.
    pub fn plain(&self) -> Result<StepFigures, SimulateError> {
        let (runtime, machine) = (bridge::plain(&self.constants), self.machine());
        Ok(simulate_on_gpu(runtime, &self.trace, &machine, Policy::Ideal)?.into())
    }

    /// Returns the lower bound for any bridge and plan: kernels without gaps, and a link without
    /// latency, with the rates that it has when bytes go one way, and both ways at once.
    pub fn bound(&self) -> Result<Nanos, MachineError> {
        let (trace, machine) = (&self.trace, self.machine());
        let bound = match self.constants.costs(OpsIn::Native).both_ways {
            Some(rates) => with_both_ways(trace, &machine, EFFORT, rates),
            None => lower_bound(trace, &machine, EFFORT),
        };
        Ok(bound?.time)
    }

    /// Returns the lower bound if both ways of the link had their full rates at once, as no such
    /// link has.
    pub fn bound_of_full_rates(&self) -> Result<Nanos, MachineError> {
        Ok(lower_bound(&self.trace, &self.machine(), EFFORT)?.time)
    }

    /// The plan that a bridge follows.
    pub fn plan(&self, bridge: Bridge) -> Result<Plan, SimulateError> {
        bridge.plan(&self.constants, &self.trace, self.budget)
    }

    /// Simulates the step with a bridge under a plan.
    pub fn simulate(&self, bridge: Bridge, plan: &Plan) -> Result<StepFigures, SimulateError> {
        let (runtime, machine) = (bridge.runtime(&self.constants), self.machine());
        Ok(simulate_on_gpu(runtime, &self.trace, &machine, Policy::Planned(plan))?.into())
    }

    fn machine(&self) -> Machine {
        machine(&self.constants, self.budget)
    }
}

impl From<Simulation> for StepFigures {
    fn from(simulation: Simulation) -> Self {
        let Simulation { time, bytes, gpu, .. } = simulation;
        Self { time, bytes, step: gpu.unwrap_or_default() }
    }
}

#[cfg(test)]
mod tests;
