//! Other people's policies, as published, for comparison.

mod flashneuron;

pub use flashneuron::{DoesNotFit, flashneuron};
