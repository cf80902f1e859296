//! Files and runs of the tool, for its tests.

#![allow(dead_code, reason = "each test program takes what it needs")]

use std::path::PathBuf;
use std::process::{Command, Output};

pub(crate) const TRACE: &str = r#"{"format": "tidelog-trace", "version": 1, "name": "two weights", "storages": [
  {"identity": {"name": "a"}, "size": 1000000, "kind": "parameter", "movable": true},
  {"identity": {"name": "b"}, "size": 1000000, "kind": "parameter", "movable": true}],
 "ops": [
  {"name": "one", "duration_ns": 1000, "fingerprint": "01", "uses": [{"storage": 0, "access": "read"}]},
  {"name": "two", "duration_ns": 1000, "fingerprint": "02", "uses": [{"storage": 1, "access": "read"}]}]}"#;

pub(crate) const MACHINE: &str = r#"{"budget": 1000000, "staging": 0, "verify": 1000000000000,
 "ssd": {"read": 1000000000, "write": 1000000000, "latency_ns": 0}}"#;

pub(crate) fn file(name: &str, text: &str) -> String {
    let directory = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("commands");
    std::fs::create_dir_all(&directory).unwrap();
    let path = directory.join(name);
    std::fs::write(&path, text).unwrap();
    path.into_os_string().into_string().unwrap()
}

pub(crate) fn run(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_tidelog-plan")).args(arguments).output().unwrap()
}

/// Returns the output of a run that succeeded.
pub(crate) fn text(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// Returns the output as JSON.
pub(crate) fn json(output: &Output) -> serde_json::Value {
    serde_json::from_str(&text(output)).unwrap()
}

pub(crate) const RACK: &str = r#"{"gpus": 2, "memory": 1000000, "verify": 1000000000000,
 "drives": {"model": "PM1743 7.68TB", "count": 4, "shared": true},
 "pcie": {"read": 55000000000, "write": 55000000000}}"#;

/// Two devices: 8 GB/s read, 5 GB/s written, 3 and 2 at once.
pub(crate) const BENCH: &str = r#"{"fio version": "x", "global options": {"filename": "/dev/a:/dev/b"}, "jobs": [
 {"jobname": "r", "groupid": 0, "error": 0, "job options": {"rw": "read"},
  "read": {"bw_bytes": 8000000000}, "write": {"bw_bytes": 0}},
 {"jobname": "w", "groupid": 1, "error": 0, "job options": {"rw": "write"},
  "read": {"bw_bytes": 0}, "write": {"bw_bytes": 5000000000}},
 {"jobname": "m", "groupid": 2, "error": 0, "job options": {"rw": "rw"},
  "read": {"bw_bytes": 3000000000}, "write": {"bw_bytes": 2000000000}}]}"#;
