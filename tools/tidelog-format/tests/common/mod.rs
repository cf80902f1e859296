//! What the tests share: running the tool, files and loop devices to run it on, skipping out loud.
#![allow(dead_code, reason = "each test program uses its part")]

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::Value;
use tidelog_engine::memory::Source;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::inspect::inspect;
use tidelog_engine::pool::{OpenOptions, Pool, PutOptions};

/// A directory that goes when the test ends. `/var/tmp` is on a disk where `/tmp` may be memory.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/var/tmp/tidelog-format-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }

    /// A sparse file.
    pub(crate) fn file(&self, name: &str, bytes: u64) -> String {
        File::create(self.0.join(name)).unwrap().set_len(bytes).unwrap();
        self.path(name)
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// How a run of the tool ended.
pub(crate) struct Ran {
    pub(crate) code: i32,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ran {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self}"))
    }

    /// The words for the reasons of a refusal, in order.
    pub(crate) fn refusals(&self) -> Vec<String> {
        assert_eq!(self.code, 4, "{self}");
        let json = self.json();
        let refusals = json["refusals"].as_array().unwrap().iter();
        refusals.map(|it| it["kind"].as_str().unwrap().to_owned()).collect()
    }

    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self}");
        self
    }
}

impl std::fmt::Display for Ran {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "exit {}\n{}{}", self.code, self.out, self.err)
    }
}

/// Runs the tool without a terminal.
pub(crate) fn tool(arguments: &[&str]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_tidelog-format"))
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran {
        code: output.status.code().expect("the tool was killed by a signal"),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// What formatting this device, named once, would be answered.
pub(crate) fn format_of(device: &str) -> Ran {
    tool(&["format", device, "--dry-run", "--output", "json"])
}

/// The same, named twice.
pub(crate) fn overwrite_of(device: &str) -> Ran {
    tool(&["format", device, "--overwrite", device, "--dry-run", "--output", "json"])
}

/// A pool of one file, with a durable tensor of these names each.
pub(crate) fn pool(directory: &Directory, name: &str, tensors: &[&str]) -> String {
    let device = directory.path(name);
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

/// A pool that is open. Once dropped, it is open nowhere any more.
pub(crate) struct Held {
    pool: Pool,
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
        // A tool that another test starts just now has our descriptors, and locks, until it executes.
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

/// Says that a test shows nothing here. Not by `eprintln`, which the harness hides.
pub(crate) fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}

/// A loop device over a file.
pub(crate) struct Loop {
    pub(crate) node: String,
    /// Kept until the device is detached.
    file: Option<Directory>,
}

impl Loop {
    /// A device of `bytes`; `None`, said out loud, where this machine has none to give.
    pub(crate) fn new(test: &str, bytes: u64) -> Option<Self> {
        let directory = Directory::new(test);
        let file = directory.file("backing", bytes);
        let mut device = Self::over(test, &file, &[])?;
        device.file = Some(directory);
        Some(device)
    }

    /// A device over a file that exists.
    pub(crate) fn over(test: &str, file: &str, options: &[&str]) -> Option<Self> {
        let output =
            Command::new("losetup").args(options).args(["--find", "--show", file]).output();
        let output = match output {
            Ok(output) if output.status.success() => output,
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr);
                skip(test, &format!("no loop device: {}", why.trim()));
                return None;
            }
            Err(error) => {
                skip(test, &format!("losetup: {error}"));
                return None;
            }
        };
        let node = String::from_utf8(output.stdout).unwrap().trim().to_owned();
        Some(Self { node, file: None })
    }

    /// The file behind it.
    pub(crate) fn backing(&self) -> PathBuf {
        self.file.as_ref().unwrap().0.join("backing")
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        // Partitions that a test made known go with the device.
        let quiet = |program: &str, arguments: &[&str]| {
            let _ = Command::new(program).args(arguments).stderr(Stdio::null()).status();
        };
        quiet("partx", &["--delete", &self.node]);
        quiet("losetup", &["--detach", &self.node]);
    }
}

/// Ends what a test began, however the test ends.
pub(crate) struct Finally(pub(crate) Vec<String>);

impl Drop for Finally {
    fn drop(&mut self) {
        let _ = Command::new(&self.0[0]).args(&self.0[1..]).status();
    }
}
