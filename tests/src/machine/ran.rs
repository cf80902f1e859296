use std::fmt;
use std::process::{Command, Stdio};

use serde_json::Value;

/// Result of a run of a tool.
#[derive(Clone, Debug)]
pub struct Ran {
    /// The exit code.
    pub code: i32,
    /// Standard output.
    pub out: String,
    /// Standard error.
    pub err: String,
}

#[expect(
    clippy::return_self_not_must_use,
    reason = "a check that is passed may be all that a test wants"
)]
impl Ran {
    /// Runs the command without a terminal.
    ///
    /// # Panics
    /// It cannot be started, is killed by a signal, or prints what is not text.
    pub fn of(command: &mut Command) -> Self {
        let output = command.stdin(Stdio::null()).output().unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        Self {
            code: output.status.code().expect("the tool was killed by a signal"),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }

    /// Asserts that the run ended with this code.
    ///
    /// # Panics
    /// It did not.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "{self}");
        self
    }

    /// Asserts that the run said this on standard error, or as the error of its JSON.
    ///
    /// # Panics
    /// It did not.
    #[track_caller]
    pub fn says(self, what: &str) -> Self {
        let json = serde_json::from_str::<Value>(&self.out).unwrap_or_default();
        let error = json["error"].as_str().unwrap_or_default();
        assert!(self.err.contains(what) || error.contains(what), "{what:?} is not in: {self}");
        self
    }

    /// The words for the reasons of a refusal, in order.
    ///
    /// # Panics
    /// It refused nothing.
    pub fn refusals(&self) -> Vec<String> {
        assert_eq!(self.code, 4, "{self}");
        let json = self.json();
        let refusals = json["refusals"].as_array().unwrap().iter();
        refusals.map(|it| it["kind"].as_str().unwrap().to_owned()).collect()
    }

    /// Parses the output for programs.
    ///
    /// # Panics
    /// It is not JSON.
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out).unwrap_or_else(|error| panic!("{error} in {self}"))
    }
}

impl fmt::Display for Ran {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "exit {}\n{}{}", self.code, self.out, self.err)
    }
}
