//! Tests of the engine: a reference model, seeded scripts of work and faults, and their replay;
//! lives in which devices are lost and replaced; commands that are killed;
//! load on real files and devices of this machine; many threads at once; what must be so on every
//! data path, and on spdk alone; callers of the C ABI; and what fuzzing runs.

pub mod abi;
pub mod commands;
pub mod conformance;
pub mod fixture;
pub mod fuzzing;
pub mod load;
pub mod loss;
pub mod machine;
pub mod peer;
pub mod power;
pub mod sim;
#[cfg(feature = "spdk")]
pub mod spdk;
pub mod storm;
pub mod victim;
