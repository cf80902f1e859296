//! Formatting that is interrupted, by Ctrl-C or a kill: what it leaves is taken by the next.

mod common;

use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Loop, format_of, overwrite_of, temporary, tool};
use tidelog_tests::machine::Directory;

const MIB: u64 = 1 << 20;

/// Begins to format, and ends that by a signal after so long. Returns whether it had not ended.
fn interrupt(arguments: &[&str], after: Duration, signal: &str) -> bool {
    let mut running = Command::new(env!("CARGO_BIN_EXE_tidelog-format"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    std::thread::sleep(after);
    let goes_on = running.try_wait().unwrap().is_none();
    if goes_on {
        let sent = Command::new("kill").args([signal, &running.id().to_string()]).status();
        assert!(sent.unwrap().success());
    }
    running.wait().unwrap();
    goes_on
}

/// Interrupts the formatting of this device at different times.
fn is_taken_by_the_next(device: &str, size: &[&str]) {
    let mut measured = 0;
    for (number, after) in
        [5, 30, 80, 200, 500, 900].map(Duration::from_millis).into_iter().enumerate()
    {
        let signal = if number % 2 == 0 { "-KILL" } else { "-INT" };
        let arguments = [&["format", "--calibrate", "--yes", device], size].concat();
        assert!(interrupt(&arguments, after, signal), "it has ended after {after:?}");
        // Where it came so far that anything stands there, that is no reason to refuse it.
        let next = tool(&[&["format", "--dry-run", "--output", "json", device], size].concat());
        assert_eq!(next.code, 0, "after {after:?}: {next}");
        let text = std::fs::read(device).unwrap_or_default();
        measured += usize::from(text.windows(16).any(|it| it == b"TIDELOG MEASURES"));
    }
    assert!(measured > 0, "none was interrupted while it measured");
    tool(&[&["format", "--yes", device], size].concat()).expect(0);
    tool(&["check", device]).expect(0);
    assert_eq!(format_of(device).refusals(), ["tidelog-pool"]);
}

#[test]
fn a_file_of_a_format_that_was_interrupted_is_taken_by_the_next() {
    let directory: Directory = temporary("interrupted");
    is_taken_by_the_next(&directory.at("pool"), &["--size", "64MiB"]);
}

#[test]
fn a_block_device_of_a_format_that_was_interrupted_is_taken_by_the_next() {
    let Some(device) = Loop::new("interrupted-block", 64 * MIB) else { return };
    is_taken_by_the_next(device.node(), &[]);
    assert_eq!(overwrite_of(device.node()).code, 0);
}
