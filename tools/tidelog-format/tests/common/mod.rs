//! Helpers that the tests share: running the tool, files and loop devices to run it on, skipping
//! out loud.
#![allow(dead_code, reason = "each test program uses its part")]

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::inspect;
use tidelog_engine::pool::{OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::Urgency;
use tidelog_tests::machine::{Directory, LoopDevice, LoopOptions, Ran, skip};

/// A directory that goes when the test ends.
pub(crate) fn temporary(name: &str) -> Directory {
    Directory::new(&format!("format-{name}")).unwrap()
}

/// A sparse file.
pub(crate) fn sparse(directory: &Directory, name: &str, bytes: u64) -> String {
    directory.sparse_file(name, bytes).unwrap();
    directory.at(name)
}

/// Runs the tool without a terminal.
pub(crate) fn tool(arguments: &[&str]) -> Ran {
    Ran::of(Command::new(env!("CARGO_BIN_EXE_tidelog-format")).args(arguments))
}

/// Returns the result of formatting this device, named once.
pub(crate) fn format_of(device: &str) -> Ran {
    tool(&["format", device, "--dry-run", "--output", "json"])
}

/// Returns the result of formatting with overwriting this device, named twice.
pub(crate) fn overwrite_of(device: &str) -> Ran {
    tool(&["format", device, "--overwrite", device, "--dry-run", "--output", "json"])
}

/// A pool of one file, with a durable tensor of these names each.
pub(crate) fn pool(directory: &Directory, name: &str, tensors: &[&str]) -> String {
    let device = directory.at(name);
    tool(&["format", &device, "--size", "16MiB", "--yes"]).expect(0);
    put(&[&device], tensors);
    device
}

/// Puts durable tensors of 100 kB.
pub(crate) fn put(devices: &[&str], tensors: &[&str]) {
    let held = open(devices);
    for name in tensors {
        let mut batch = held.pool.batch();
        batch.put(*name, Source::from(vec![7; 100_000]), PutOptions::default()).unwrap();
        batch.commit().unwrap();
    }
}

/// Number of durable tensors of a filled pool, and their bytes.
const FILLED: usize = 20;
const FILLED_BYTES: usize = 200_000;

/// Puts durable tensors, each full of its number.
pub(crate) fn fill(pool: &Pool) {
    for nth in 0..FILLED {
        let mut batch = pool.batch();
        let source = Source::from(vec![nth as u8; FILLED_BYTES]);
        batch.put(format!("t{nth}").as_str(), source, PutOptions::default()).unwrap();
        batch.commit().unwrap();
    }
}

/// Checks that a filled pool has all that was put.
pub(crate) fn compare(pool: &Pool) {
    for nth in 0..FILLED {
        let name = format!("t{nth}");
        let (range, memory) = (0..FILLED_BYTES as u64, Destination::buffer(FILLED_BYTES));
        let read = pool.get(name.as_str(), range, memory, Urgency::Urgent, None).unwrap();
        read.wait().unwrap();
        assert!(read.take_bytes().unwrap() == vec![nth as u8; FILLED_BYTES], "{name}");
    }
}

/// A pool that is open. Once dropped, it is open nowhere any more.
pub(crate) struct Held {
    pub(crate) pool: Pool,
    specs: Vec<DeviceSpec>,
}

pub(crate) fn open(devices: &[&str]) -> Held {
    let specs: Vec<DeviceSpec> = devices.iter().map(DeviceSpec::new).collect();
    let options = OpenOptions { huge_pages: false, ..OpenOptions::default() };
    Held { pool: Pool::open(&specs, &options).unwrap(), specs }
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.pool.close();
        // A tool that another test starts just now has our descriptors, and locks, until it
        // executes.
        for _ in 0..1000 {
            let view = inspect(&self.specs).unwrap();
            if view.shares.iter().all(|share| !share.held) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        panic!("the pool is still held");
    }
}

/// Runs a program that the test needs; `None`, said out loud, where it is not there.
pub(crate) fn program(test: &str, name: &str, arguments: &[&str]) -> Option<()> {
    let found = ["/usr/sbin", "/sbin", "/usr/bin", "/bin"]
        .iter()
        .map(|directory| Path::new(directory).join(name))
        .find(|path| path.exists());
    let Some(path) = found else {
        skip(test, &format!("{name} is not installed (scripts/setup.sh names its package)"));
        return None;
    };
    let output = Command::new(path).args(arguments).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{name} {arguments:?}: {said}");
    Some(())
}

/// A loop device over a sparse file.
pub(crate) struct Loop {
    device: LoopDevice,
    /// Kept until the device is detached.
    _directory: Directory,
}

impl Loop {
    /// A device of `bytes`; `None`, said out loud, where this machine has none to give.
    pub(crate) fn new(test: &str, bytes: u64) -> Option<Self> {
        Self::with(test, bytes, LoopOptions::default())
    }

    pub(crate) fn with(test: &str, bytes: u64, options: LoopOptions) -> Option<Self> {
        let directory = temporary(test);
        let file = directory.sparse_file("backing", bytes).unwrap();
        match LoopDevice::attach(&file, options) {
            Ok(device) => Some(Self { device, _directory: directory }),
            Err(why) => {
                skip(test, &why);
                None
            }
        }
    }
}

impl std::ops::Deref for Loop {
    type Target = LoopDevice;

    fn deref(&self) -> &LoopDevice {
        &self.device
    }
}

/// Ends what a test began, however the test ends.
pub(crate) struct Finally(pub(crate) Vec<String>);

impl Drop for Finally {
    fn drop(&mut self) {
        let _ = Command::new(&self.0[0]).args(&self.0[1..]).status();
    }
}
