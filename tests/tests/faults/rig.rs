//! A pool on files or loop devices, and what must hold at the end of every scenario.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{CloseError, FormatOptions, OpenOptions, Pool};
use tidelog_engine::units::ByteCount;
use tidelog_tests::load::{Failure, Ledger};
use tidelog_tests::machine::{Directory, LoopDevice, LoopOptions, Unavailable, Watchdog};

pub(crate) const DEVICE_BYTES: u64 = 16 << 20;
const DEVICES: usize = 2;
/// No scenario takes a tenth of it.
const LIMIT: Duration = Duration::from_secs(600);
/// Time limit of a load's writes on a machine that others use too.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(10);

/// One scenario at a time, watched: a process that another starts would have this one's
/// descriptors, and with them its locks and mounts, until it executes.
pub(crate) fn watch(test: &'static str) -> (Watchdog, MutexGuard<'static, ()>) {
    static TURN: Mutex<()> = Mutex::new(());
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    (Watchdog::watch(test, LIMIT), turn)
}

/// Kind of the pool's devices.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Kind {
    Files,
    Loops(LoopOptions),
}

/// Two devices and the files behind them.
pub(crate) struct Rig {
    pub(crate) loops: Vec<LoopDevice>,
    pub(crate) files: Vec<PathBuf>,
    pub(crate) specs: Vec<DeviceSpec>,
    // Behind the loop devices, which go first.
    _directory: Directory,
}

impl Rig {
    /// A formatted pool.
    pub(crate) fn new(name: &str, kind: Kind) -> Result<Self, Unavailable> {
        let directory = Directory::new(name).unwrap();
        let files: Vec<PathBuf> = (0..DEVICES)
            .map(|index| directory.sparse_file(&format!("device{index}"), DEVICE_BYTES).unwrap())
            .collect();
        let loops = match kind {
            Kind::Files => Vec::new(),
            Kind::Loops(options) => files
                .iter()
                .map(|file| LoopDevice::attach(file, options))
                .collect::<Result<Vec<_>, _>>()?,
        };
        let nodes: Vec<&Path> = match kind {
            Kind::Files => files.iter().map(PathBuf::as_path).collect(),
            Kind::Loops(_) => loops.iter().map(|it| Path::new(it.node())).collect(),
        };
        let specs: Vec<DeviceSpec> = nodes.into_iter().map(DeviceSpec::new).collect();
        Pool::format(&specs, &format_options()).unwrap();
        Ok(Self { loops, files, specs, _directory: directory })
    }

    pub(crate) fn open(&self) -> Pool {
        Pool::open(&self.specs, &open_options()).unwrap()
    }

    /// Makes the file behind a device this long, whoever uses it.
    pub(crate) fn set_length(&self, device: usize, bytes: u64) {
        File::options().write(true).open(&self.files[device]).unwrap().set_len(bytes).unwrap();
    }
}

/// Closes a pool whose devices have refused writes: a commit may be in doubt, and then closing says
/// so.
pub(crate) fn close_after_faults(pool: &Pool) {
    let in_doubt = pool.stats().unwrap().commits.in_doubt;
    match pool.close() {
        Ok(()) => assert_eq!(in_doubt, None),
        Err(CloseError::InDoubt(why)) => assert_eq!(in_doubt, Some(why)),
        Err(other) => panic!("{other}"),
    }
}

pub(crate) fn format_options() -> FormatOptions {
    FormatOptions {
        stripe_unit: ByteCount::kib(32),
        segment_size: Some(ByteCount::kib(256)),
        ..FormatOptions::default()
    }
}

pub(crate) fn open_options() -> OpenOptions {
    OpenOptions { staging: ByteCount::mib(1), huge_pages: false, ..OpenOptions::default() }
}

/// No answer was wrong, and each error names one of these devices (as the engine does: by its
/// place) or the state that an earlier one brought about. Returns how many there were.
pub(crate) fn only_honest_errors(ledger: &Ledger, devices: &[&str]) -> usize {
    let failures = ledger.record().failures();
    for failure in &failures {
        match failure {
            Failure::Wrong(what) => panic!("{what}"),
            Failure::Refused { what, .. } => {
                let named = devices.iter().any(|device| what.contains(device));
                let tensor = what.contains("tensor") || what.contains("commit");
                assert!(named && tensor, "an error that does not say where: {what}");
            }
        }
    }
    failures.len()
}
