//! How it ends: the exit codes, and what is said when it does not do what it was asked for.

use std::process::ExitCode;

/// The exit codes; `--help` lists them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    /// A path is proven to work, and none failed its trial.
    Works = 0,
    /// No path that was tried works.
    NothingWorks = 1,
    /// A path gave other bytes back than were written.
    WrongBytes = 2,
    /// Nothing was tried, because no scratch area was given.
    Untried = 3,
    /// The device is in use, or not one to be handed over.
    Refused = 4,
    /// The operating system refused.
    Failed = 5,
    /// The command line makes no sense (`EX_USAGE`).
    Usage = 64,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit as u8)
    }
}

/// It did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// The exit code.
    pub exit: Exit,
    /// What was wrong, and where.
    pub message: String,
    /// What to do about it; may be empty.
    pub help: String,
}

impl Failure {
    /// With what to do about it.
    pub fn new(exit: Exit, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { exit, message: message.into(), help: help.into() }
    }
}
