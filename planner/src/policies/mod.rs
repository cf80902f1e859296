//! Other people's policies, as published, for comparison.

mod common;
mod flashneuron;
mod zero;

pub use common::DoesNotFit;
pub use flashneuron::flashneuron;
pub use zero::{ZeroError, ZeroStep, zero_infinity, zero_offload};
