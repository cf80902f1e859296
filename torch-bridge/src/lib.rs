//! Tidelog's C ABI and the executor of residency actions.
//!
//! [`abi`] is what C sees and does nothing but translate. `executor` drives the planner's residency
//! machine and carries out its actions through the engine. `pool` opens pools for both. `memory`
//! and `error` are what all of them share: the caller's memory, and why a call failed.

pub mod abi;
mod error;
mod executor;
mod memory;
mod pool;
