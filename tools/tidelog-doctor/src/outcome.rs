//! What is said when it does not do what it was asked for, and the exit code with it.

use tidelog_command_line::DoctorExit;

/// It did not do what it was asked for.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
pub struct DoctorFailure {
    /// The exit code.
    pub exit: DoctorExit,
    /// What was wrong, and where.
    pub message: String,
    /// What to do about it; may be empty.
    pub help: String,
}

impl DoctorFailure {
    /// With what to do about it.
    pub fn new(exit: DoctorExit, message: impl Into<String>, help: impl Into<String>) -> Self {
        Self { exit, message: message.into(), help: help.into() }
    }
}
