//! What the tests share: running the tool, files to run it on, skipping out loud.
#![allow(dead_code, reason = "each test program uses its part")]

use std::fs;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde_json::Value;

/// A directory that goes when the test ends. `/var/tmp` is on a disk where `/tmp` may be memory.
pub(crate) struct Directory(pub(crate) PathBuf);

impl Directory {
    pub(crate) fn new(name: &str) -> Self {
        let path = PathBuf::from(format!("/var/tmp/tidelog-bench-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    pub(crate) fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
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
    #[track_caller]
    pub(crate) fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "exit {}\n{}{}", self.code, self.out, self.err);
        self
    }

    #[track_caller]
    pub(crate) fn says(self, what: &str) -> Self {
        assert!(self.err.contains(what), "{what:?} is not in: {}", self.err);
        self
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {}", self.out))
    }
}

/// Runs the tool with the options of a small job and these.
pub(crate) fn bench(options: &[&str]) -> Ran {
    run(Command::new(env!("CARGO_BIN_EXE_tidelog-bench")).args(options))
}

pub(crate) fn run(command: &mut Command) -> Ran {
    let output = command.stdin(Stdio::null()).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran {
        code: output.status.code().expect("the tool was killed by a signal"),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

/// Says that a test shows nothing here. Not by `eprintln`, which the harness hides.
pub(crate) fn skip(test: &str, why: &str) {
    let _ = writeln!(std::io::stderr(), "SKIPPED {test}: {why}");
}
