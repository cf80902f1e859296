//! Tensor lifetimes, migration plans and the residency state machine.
//!
//! Pure: no I/O, no clock, no threads. Every decision is made in whole bytes and nanoseconds, so
//! the same input gives the same bytes out on every machine.

pub mod algorithm1;
pub mod arena;
pub mod bound;
pub mod cost;
pub mod endurance;
pub mod explain;
pub mod export;
pub mod gpu_step;
pub mod hardware;
pub mod instances;
pub mod lifetime;
pub mod migration;
pub mod order;
pub mod parts;
pub mod plan;
pub mod policies;
pub mod recompute;
pub mod report;
pub mod residency;
pub mod simulate;
#[cfg(test)]
mod testing;
pub mod tidelog;
pub mod trace;
mod trials;
pub mod units;
