//! What proves the engine: a reference model, seeded scripts of work and faults, and their replay; and what
//! fuzzing runs.

pub mod fuzzing;
pub mod sim;
