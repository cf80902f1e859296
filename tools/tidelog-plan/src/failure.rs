//! The reason why nothing came out, and the exit code that says so.

use tidelog_command_line::PlanExit;
use tidelog_planner::cost::MachineError;
use tidelog_planner::hardware::calibrate::CalibrateError;
use tidelog_planner::hardware::{HardwareError, SettleError};
use tidelog_planner::order::OrderError;
use tidelog_planner::plan::PlanError;
use tidelog_planner::recompute::RecomputeError;
use tidelog_planner::simulate::SimulateError;
use tidelog_planner::trace::TraceError;

/// The reason why nothing came out, with the file that is the cause.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PlanFailure {
    #[error("{file}: {source}")]
    Read { file: String, source: std::io::Error },
    #[error("{file}: {source}")]
    Trace { file: String, source: TraceError },
    #[error("{file}: {source}; tidelog-plan --help shows what a machine file looks like")]
    Machine { file: String, source: HardwareError },
    #[error("{file}: {source}")]
    Plan { file: String, source: PlanError },
    #[error("{file}: {source}")]
    Calibrate { file: String, source: CalibrateError },
    #[error(
        "the trace's step cannot run on this machine: {0}; give the machine more memory, or record a smaller step"
    )]
    Memory(SimulateError),
    #[error("{0}")]
    Simulate(SimulateError),
    #[error("{0}")]
    Hardware(#[from] HardwareError),
    #[error("{0}; tidelog-plan explain shows the orders that it has")]
    Order(#[from] OrderError),
    #[error("{0}")]
    Recompute(#[from] RecomputeError),
    #[error("{0}")]
    NotFound(String),
    #[error("{0}")]
    Recorder(String),
    #[error("{0}")]
    Usage(String),
    #[error("{file}: {source}")]
    Write { file: String, source: std::io::Error },
}

impl From<SimulateError> for PlanFailure {
    fn from(error: SimulateError) -> Self {
        match error {
            SimulateError::Refused { .. } => Self::Memory(error),
            other => Self::Simulate(other),
        }
    }
}

impl From<MachineError> for PlanFailure {
    fn from(error: MachineError) -> Self {
        Self::Simulate(error.into())
    }
}

impl From<SettleError> for PlanFailure {
    fn from(error: SettleError) -> Self {
        match error {
            SettleError::Hardware(error) => Self::Hardware(error),
            SettleError::Simulate(error) => error.into(),
        }
    }
}

impl PlanFailure {
    pub(crate) fn exit(&self) -> PlanExit {
        match self {
            Self::Read { .. }
            | Self::Trace { .. }
            | Self::Machine { .. }
            | Self::Plan { .. }
            | Self::Calibrate { .. }
            | Self::Hardware(_)
            | Self::Order(_)
            | Self::Recompute(_)
            | Self::Simulate(SimulateError::Plan(_)) => PlanExit::Unusable,
            Self::Memory(_) | Self::Simulate(_) => PlanExit::DoesNotRun,
            Self::NotFound(_) => PlanExit::NotFound,
            Self::Recorder(_) => PlanExit::Recorder,
            Self::Usage(_) => PlanExit::Usage,
            Self::Write { .. } => PlanExit::Output,
        }
    }
}
