//! Orders of a step's ops in which every op reads the same bytes as in the program's own.
//!
//! Where a step is limited by what it moves, the order decides how often a storage has to come in.
//! Two choices are independent of each other:
//! - *when a parameter is updated* ([`Updates`]): where the program does it; as soon as its
//!   gradient is complete, so that gradients never leave; or just before the parameter is used
//!   again, in the next iteration's forward pass, so that its state comes in while compute runs;
//! - *how micro-batches pass through the model* ([`MicroBatches`]): one after the other, or all of
//!   them through a block of layers before the next block, so that parameters come in once a pass.
//!
//! An order is a trace of its own, planned, bounded and simulated like any other. What makes it
//! lawful is `check`: it follows which op wrote what each op reads, in both orders.
//!
//! Random numbers are not storages of a trace: whoever runs ops in another order has to give each
//! op that draws some the generator's state that it had in the program's order.

mod blocks;
mod check;
mod host_updates;
mod on_host;
mod rebuild;
mod split;
mod updates;

use crate::trace::{Trace, TraceError};
use serde::Serialize;
use std::fmt;

pub use check::{BrokenDependence, check};
pub(crate) use check::{Instance, written_by};
pub use host_updates::{HostChoice, HostUpdates};
pub use on_host::{HostProcessor, HostStep, on_host};

/// Time at which a parameter is updated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Updates {
    /// Program's own: where the program does it.
    #[default]
    Own,
    /// Early: as soon as its gradient is complete.
    Early,
    /// Lazy: just before the parameter, its gradient or its state is used again.
    Lazy,
}

/// Path of micro-batches through the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum MicroBatches {
    /// Program's own: one after the other.
    #[default]
    Own,
    /// Layer by layer: all of them pass a block before the next block.
    LayerWise,
}

/// An order of a step's ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize)]
pub struct OpOrder {
    /// Path of micro-batches through the model.
    pub micro_batches: MicroBatches,
    /// Time at which a parameter is updated.
    pub updates: Updates,
}

impl OpOrder {
    /// The program's own.
    pub const OWN: Self = Self { micro_batches: MicroBatches::Own, updates: Updates::Own };

    /// Every order, the program's own first.
    pub const ALL: [Self; 6] = {
        use MicroBatches::{LayerWise, Own};
        const fn order(micro_batches: MicroBatches, updates: Updates) -> OpOrder {
            OpOrder { micro_batches, updates }
        }
        [
            Self::OWN,
            order(Own, Updates::Lazy),
            order(Own, Updates::Early),
            order(LayerWise, Updates::Own),
            order(LayerWise, Updates::Lazy),
            order(LayerWise, Updates::Early),
        ]
    };

    /// Returns the name on command lines and in tables.
    pub const fn name(self) -> &'static str {
        match (self.micro_batches, self.updates) {
            (MicroBatches::Own, Updates::Own) => "own",
            (MicroBatches::Own, Updates::Lazy) => "lazy",
            (MicroBatches::Own, Updates::Early) => "early",
            (MicroBatches::LayerWise, Updates::Own) => "layer-wise",
            (MicroBatches::LayerWise, Updates::Lazy) => "layer-wise-lazy",
            (MicroBatches::LayerWise, Updates::Early) => "layer-wise-early",
        }
    }

    /// Returns a description, in a few words.
    pub const fn words(self) -> &'static str {
        match (self.micro_batches, self.updates) {
            (MicroBatches::Own, Updates::Own) => "as the program runs",
            (MicroBatches::Own, Updates::Lazy) => "updates run in the next forward pass",
            (MicroBatches::Own, Updates::Early) => "updates run when gradients are complete",
            (MicroBatches::LayerWise, Updates::Own) => "all micro-batches pass a block at once",
            (MicroBatches::LayerWise, Updates::Lazy) => "both: layer-wise, and lazy updates",
            (MicroBatches::LayerWise, Updates::Early) => "both: layer-wise, and early updates",
        }
    }

    /// The step in this order. The program's own order gives the trace as it is.
    ///
    /// # Errors
    /// Where the trace has no such order, or it would change what an op reads.
    pub fn of(self, trace: &Trace) -> Result<Reordered, OrderError> {
        if self == Self::OWN {
            let schedule = (0..trace.ops.len() as u32).map(Placed::in_place).collect();
            return Ok(Reordered { base: trace.clone(), trace: trace.clone(), schedule });
        }
        // An update of many parameters at once would wait for the last gradient of all.
        let base = match self.updates {
            Updates::Own => trace.clone(),
            Updates::Early | Updates::Lazy => split::by_parameter(trace),
        };
        let updates = updates::of(&base);
        let mut order: Vec<u32> = (0..base.ops.len() as u32).collect();
        if self.micro_batches == MicroBatches::LayerWise {
            order = blocks::layer_wise(&base, &updates)?;
        }
        let schedule = match self.updates {
            Updates::Own => order.into_iter().map(Placed::in_place).collect(),
            _ if !updates.contains(&true) => return Err(OrderError::NoOptimizer),
            Updates::Early => updates::early(&base, &order, &updates),
            Updates::Lazy => updates::lazy(&base, &order, &updates),
        };
        let moved = if self.updates == Updates::Own { vec![false; updates.len()] } else { updates };
        let mut trace = rebuild::rebuild(&base, &schedule, &moved)?;
        trace.name = format!("{}, order {}", trace.name, self.name());
        let reordered = Reordered { base, trace, schedule };
        check(&reordered)?;
        Ok(reordered)
    }

    /// The order in which a trace of this fingerprint runs the ops of `trace`, if there is one:
    /// plans say by the fingerprint what they were made for.
    pub fn with_fingerprint(trace: &Trace, fingerprint: u64) -> Option<(Self, Trace)> {
        Self::ALL.into_iter().find_map(|order| {
            let reordered = order.of(trace).ok()?.trace;
            (reordered.fingerprint() == fingerprint).then_some((order, reordered))
        })
    }
}

impl fmt::Display for OpOrder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.pad(self.name())
    }
}

/// Place of an op of the program in the order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placed {
    /// The op.
    pub op: u32,
    /// True if the op runs one iteration late: op 5 of iteration 7 in iteration 8.
    pub late: bool,
}

impl Placed {
    const fn in_place(op: u32) -> Self {
        Self { op, late: false }
    }
}

/// A step in another order.
#[derive(Clone, Debug)]
pub struct Reordered {
    /// The step in the program's order. Updates of many parameters at once are one op for each.
    pub base: Trace,
    /// The step in the new order.
    pub trace: Trace,
    /// Place in `base` of each op of `trace`.
    pub schedule: Vec<Placed>,
}

/// The reason why a trace has no such order.
#[derive(Debug, thiserror::Error)]
pub enum OrderError {
    /// The step has no optimizer: nothing to move.
    #[error("no op of the trace uses optimizer state, so no update can move")]
    NoOptimizer,
    /// One micro-batch, or several that are not alike.
    #[error(
        "the trace has no micro-batches one after the other that use the same parameters in the \
         same order, so none can pass layer by layer"
    )]
    NoMicroBatches,
    /// The optimizer runs between micro-batches.
    #[error("op {op} updates parameters before the last micro-batch is over")]
    UpdatesInside {
        /// The first such op.
        op: u32,
    },
    /// An op would read something else.
    #[error(transparent)]
    Dependence(#[from] BrokenDependence),
    /// Updates that wait for the next iteration.
    #[error(
        "updates that wait for the next iteration do not run on a host: there they follow gradients"
    )]
    LateOnHost,
    /// The new order is no trace.
    #[error("the order contradicts itself: {0}")]
    Trace(#[from] TraceError),
}

#[cfg(test)]
mod property_tests;
#[cfg(test)]
mod tests;
