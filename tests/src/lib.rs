//! What proves the engine: a reference model, seeded scripts of work and faults, and their replay; callers of
//! the C ABI; and what fuzzing runs.

pub mod abi;
pub mod fuzzing;
pub mod sim;
