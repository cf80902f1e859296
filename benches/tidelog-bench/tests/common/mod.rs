//! What the tests share: running the tool, files to run it on, skipping out loud.
#![allow(dead_code, reason = "each test program uses its part")]

use std::process::Command;

use tidelog_tests::machine::{Directory, Ran};

/// A directory that goes when the test ends.
pub(crate) fn temporary(name: &str) -> Directory {
    Directory::new(&format!("bench-{name}")).unwrap()
}

/// Runs the tool with the options of a small job and these.
pub(crate) fn bench(options: &[&str]) -> Ran {
    Ran::of(Command::new(env!("CARGO_BIN_EXE_tidelog-bench")).args(options))
}
