//! Formatting that is interrupted, by Ctrl-C or a kill: what it leaves is taken by the next.

mod common;

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use common::{Loop, format_of, overwrite_of, temporary, tool};
use nix::fcntl::{PosixFadviseAdvice, posix_fadvise};
use tidelog_engine::layout::{CALIBRATION_MARK, SUPERBLOCK_OFFSET};
use tidelog_tests::machine::Ran;

const MIB: u64 = 1 << 20;

/// Progress of a format.
#[derive(Clone, Copy, Debug)]
enum Stage {
    Begun,
    Marked,
    Measuring,
    /// Measuring for a while, so that much was written.
    MeasuringOn,
}

impl Stage {
    fn is_reached(self, device: &str) -> bool {
        let stands = |at: u64, length: usize, mark: &[u8]| {
            let mut bytes = vec![0; length];
            let Ok(file) = File::open(device) else { return false };
            // What was read before its direct writes may be kept.
            posix_fadvise(&file, 0, 0, PosixFadviseAdvice::POSIX_FADV_DONTNEED).unwrap();
            let read = file.read_exact_at(&mut bytes, at);
            read.is_ok() && bytes.chunks(512).any(|sector| sector.starts_with(mark))
        };
        match self {
            Self::Begun => true,
            Self::Marked => stands(SUPERBLOCK_OFFSET, 512, b"UNFINISH"),
            Self::Measuring | Self::MeasuringOn => stands(0, 32 << 20, &CALIBRATION_MARK),
        }
    }
}

/// Begins to format, and ends that by a signal once it has come so far.
fn interrupt(arguments: &[&str], device: &str, stage: Stage, signal: &str) {
    let mut running = Command::new(env!("CARGO_BIN_EXE_tidelog-format"))
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    while !stage.is_reached(device) {
        assert!(running.try_wait().unwrap().is_none(), "it has ended before it was {stage:?}");
        std::thread::sleep(Duration::from_millis(2));
    }
    if matches!(stage, Stage::MeasuringOn) {
        std::thread::sleep(Duration::from_millis(300));
    }
    let sent = Command::new("kill").args([signal, &running.id().to_string()]).status();
    assert!(sent.unwrap().success());
    assert!(!running.wait().unwrap().success(), "{stage:?}: it had ended");
}

/// Returns the result of the next format. The kernel closes the files of a ring some time after its
/// process has ended.
fn once_it_is_nobodys(device: &str, size: &[&str]) -> Ran {
    let arguments = [&["format", "--dry-run", "--output", "json", device], size].concat();
    let is_used = |ran: &Ran| {
        let kinds = if ran.code == 4 { ran.refusals() } else { Vec::new() };
        kinds.iter().any(|kind| ["open", "claimed", "locked", "pool-in-use"].contains(&&**kind))
    };
    let mut tries = (0..100).map(|_| tool(&arguments));
    tries.find(|ran| !is_used(ran)).expect("somebody goes on using it")
}

/// Interrupts the formatting of this device again and again.
fn is_taken_by_the_next(device: &str, size: &[&str]) {
    for stage in [Stage::Begun, Stage::Marked, Stage::Measuring, Stage::Marked, Stage::MeasuringOn]
    {
        // As Ctrl-C, which a shell's background jobs ignore.
        for signal in ["-TERM", "-KILL"] {
            let arguments = [&["format", "--calibrate", "--yes", device], size].concat();
            interrupt(&arguments, device, stage, signal);
            let next = once_it_is_nobodys(device, size);
            assert_eq!(next.code, 0, "{stage:?} {signal}: {next}");
        }
    }
    tool(&[&["format", "--yes", device], size].concat()).expect(0);
    tool(&["check", device]).expect(0);
    assert!(format_of(device).refusals().contains(&"tidelog-pool".to_owned()));
}

#[test]
fn a_file_of_a_format_that_was_interrupted_is_taken_by_the_next() {
    let directory = temporary("interrupted");
    is_taken_by_the_next(&directory.at("pool"), &["--size", "64MiB"]);
}

#[test]
fn a_block_device_of_a_format_that_was_interrupted_is_taken_by_the_next() {
    let Some(device) = Loop::new("interrupted-block", 64 * MIB) else { return };
    is_taken_by_the_next(device.node(), &[]);
    assert_eq!(overwrite_of(device.node()).code, 0);
}
