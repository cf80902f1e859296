//! Outcome of a command that failed, and the exit code with it.

use tidelog_command_line::DoctorExit;

/// Failure of a command.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct DoctorFailure {
    /// The exit code.
    pub exit: DoctorExit,
    /// Description of the error, and its place.
    pub message: String,
    /// Advice; may be empty.
    pub help: String,
}

impl DoctorFailure {
    /// Makes a failure with advice.
    pub fn new(exit: DoctorExit, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { exit, message: message.into(), help: help.into() }
    }
}
