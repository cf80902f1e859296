//! Functions of the fuzzer: one function for each target, from any bytes at all.
//!
//! A target returns where the bytes are refused or come to nothing, and panics where a rule is
//! broken. The fuzz crate (`fuzz/`) drives these with libFuzzer, and a plain test replays the
//! committed corpus and mutants of it through them. Decoders look at
//! checksums first, and no fuzzer guesses one: so each target also puts the bytes into frames whose
//! checksums are right.

mod abi;
mod corrupt_device;
mod device;
mod frame;
mod index;
mod mutants;
mod planner;
mod recovery;
mod seeds;
mod superblock;

pub use mutants::{corpus, mutant};
pub use seeds::seeds;

/// One target.
#[derive(Clone, Copy)]
pub struct Target {
    /// Name of its binary and its corpus.
    pub name: &'static str,
    /// Function that runs for each input.
    pub run: fn(&[u8]),
}

/// Every target.
pub const TARGETS: [Target; 9] = [
    Target { name: "superblock", run: superblock::run },
    Target { name: "record", run: index::run_record },
    Target { name: "index", run: index::run_checkpoint },
    Target { name: "recovery", run: recovery::run },
    Target { name: "device", run: device::run },
    Target { name: "trace", run: planner::run_trace },
    Target { name: "plan", run: planner::run_plan },
    Target { name: "machine", run: planner::run_machine },
    Target { name: "abi", run: abi::run },
];

/// Runs one input of the target called `name`.
///
/// # Panics
/// A rule is broken; or there is no such target.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.unwrap_or_else(|| panic!("no fuzz target is called {name}")).run)(bytes);
}
