//! Helpers that the tests share: running the tool, files to run it on, skipping out loud.
#![allow(dead_code, reason = "each test program uses its part")]

use std::path::Path;
use std::process::Command;

use tidelog_tests::machine::{Directory, LoopDevice, LoopOptions, Ran, skip};

/// A directory that goes when the test ends.
pub(crate) fn temporary(name: &str) -> Directory {
    Directory::new(&format!("bench-{name}")).unwrap()
}

/// Runs the tool with the options of a small job and these.
pub(crate) fn bench(options: &[&str]) -> Ran {
    Ran::of(Command::new(env!("CARGO_BIN_EXE_tidelog-bench")).args(options))
}

/// A loop device over the file behind `offset`; `None`, said out loud, where this machine has none
/// to give.
pub(crate) fn over(test: &str, file: &str, offset: u64) -> Option<LoopDevice> {
    let options = LoopOptions { offset, ..LoopOptions::default() };
    LoopDevice::attach(Path::new(file), options).map_err(|why| skip(test, &why)).ok()
}
