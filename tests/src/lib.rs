//! What proves the engine: a reference model, seeded scripts of work and faults and their replay, and load on
//! real files and devices of this machine.

pub mod fixture;
pub mod load;
pub mod machine;
pub mod sim;
