//! Policies of other systems, as published, for comparison.

mod common;
mod flashneuron;
mod greedysnake;
mod zero;

pub use common::DoesNotFit;
pub use flashneuron::flashneuron;
pub use greedysnake::{SnakeStep, greedysnake};
pub use zero::{ZeroError, ZeroStep, zero_infinity, zero_offload};
