//! Gain by another machine: planned again, simulated again.

use crate::cost::Machine;
use crate::plan::PlannedBytes;
use crate::simulate::{SimulateError, Simulation};
use crate::trace::Trace;
use crate::units::{Bandwidth, Bytes, Nanos};
use serde::Serialize;

/// Plans and simulates: the same way for the machine as it is and as it might be.
pub type SimulateFn<'a> = &'a dyn Fn(&Trace, &Machine) -> Result<Simulation, SimulateError>;

/// A change of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum MachineChange {
    /// SSDs more than there are.
    Ssds {
        /// Number that the machine has.
        present: u32,
        /// Number that it would have.
        wanted: u32,
    },
    /// Memory more on the GPU.
    Memory(Bytes),
    /// Host memory more for evicted tensors; needs a host link.
    HostMemory(Bytes),
}

/// Result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WhatIf {
    /// The change.
    pub change: MachineChange,
    /// The length of the step; `None` if it cannot run.
    #[serde(rename = "time_ns")]
    pub time: Option<Nanos>,
    /// The part of it in which an op waits.
    #[serde(rename = "stall_ns")]
    pub stall: Option<Nanos>,
    /// The bytes that move.
    pub bytes: Option<PlannedBytes>,
}

impl MachineChange {
    /// The machine with the change; `None` where there is nothing to change.
    pub fn apply(self, machine: &Machine) -> Option<Machine> {
        let mut changed = *machine;
        match self {
            Self::Ssds { present, wanted } => {
                let scaled = |rate: Bandwidth| {
                    let all = u128::from(rate.0) * u128::from(wanted);
                    Bandwidth((all / u128::from(present.max(1))) as u64)
                };
                changed.ssd.read = scaled(machine.ssd.read);
                changed.ssd.write = scaled(machine.ssd.write);
            }
            Self::Memory(more) => changed.budget.0 += more.0,
            Self::HostMemory(more) => changed.host.as_mut()?.memory.0 += more.0,
        }
        Some(changed)
    }
}

/// Plans and simulates each change that the machine allows.
///
/// # Errors
/// If a step cannot be simulated for another reason than a lack of memory.
pub fn what_if(
    trace: &Trace,
    machine: &Machine,
    changes: &[MachineChange],
    simulator: SimulateFn<'_>,
) -> Result<Vec<WhatIf>, SimulateError> {
    let possible = changes.iter().filter_map(|change| Some((*change, change.apply(machine)?)));
    possible
        .map(|(change, changed)| match simulator(trace, &changed) {
            Ok(simulation) => Ok(WhatIf {
                change,
                time: Some(simulation.time),
                stall: Some(simulation.stall_time()),
                bytes: Some(simulation.bytes),
            }),
            Err(SimulateError::Refused { .. } | SimulateError::Machine(_)) => {
                Ok(WhatIf { change, time: None, stall: None, bytes: None })
            }
            Err(other) => Err(other),
        })
        .collect()
}
