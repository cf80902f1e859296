//! Tidelog's C ABI and the executor of residency actions.
//!
//! [`abi`] is what C sees and does nothing but translate. [`session`] drives the planner's residency
//! machine and carries out its actions through the engine. [`handles`] turns numbers into objects.

pub mod abi;
mod handles;
mod session;
