//! What proves the engine: a reference model, seeded scripts of work and faults, and their replay.

pub mod sim;
