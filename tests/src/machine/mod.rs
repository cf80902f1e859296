//! Resources that tests borrow from the machine they run on, and give back however they end:
//! directories, loop devices, mounts, a limit on memory, other processes, a GPU that is none. Where
//! the machine has none, a test says so and skips.

mod directory;
mod fake_gpu;
mod fault;
mod limit;
mod loop_device;
mod mount;
mod process;
mod ran;
mod seccomp;
mod watchdog;

use std::io::Write;
use std::process::{Command, Stdio};

pub use directory::Directory;
pub use fake_gpu::FakeGpu;
pub use fault::read_behind_the_end;
pub use limit::MemoryLimit;
pub use loop_device::{LoopDevice, LoopOptions};
pub use mount::{Frozen, Mount};
pub use process::{Other, told};
pub use ran::Ran;
pub use seccomp::without_io_uring;
pub use watchdog::Watchdog;

/// The reason why the machine lacks something.
pub type Unavailable = String;

/// Says that a test shows nothing here. Not by `eprintln`, which the harness hides.
pub fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

/// Runs a program of the system and returns what it printed.
fn system(program: &str, arguments: &[&str]) -> Result<String, Unavailable> {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).output();
    let output = output.map_err(|error| format!("{program}: {error}"))?;
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
    } else {
        let said = String::from_utf8_lossy(&output.stderr);
        Err(format!("{program} {}: {}", arguments.join(" "), said.trim()))
    }
}
