//! Record of a load.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use tidelog_engine::path::Status;
use tidelog_engine::pool::{CommitError, GetError, PutError};
use tidelog_engine::schedule::{ControlError, TransferError};

/// Limit of kept messages.
const KEPT: usize = 1000;

/// The reason why an operation of the load did not go as it should.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The operation was refused, or failed, and said so.
    Refused {
        /// Description in words.
        what: String,
        /// Status of a device, where one returned it.
        status: Option<Status>,
    },
    /// The result is wrong: never excused.
    Wrong(String),
}

impl Failure {
    pub(super) fn refused(error: &(impl fmt::Display + Answered)) -> Self {
        Self::Refused { what: error.to_string(), status: error.status() }
    }

    /// Makes the failure of a tensor that the error does not name.
    pub(super) fn of(tensor: impl fmt::Display, error: &TransferError) -> Self {
        Self::Refused { what: format!("{tensor}: {error}"), status: error.status() }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { what, .. } => write!(out, "failed: {what}"),
            Self::Wrong(what) => write!(out, "WRONG: {what}"),
        }
    }
}

/// An error behind which may be what a device answered.
pub(super) trait Answered {
    fn status(&self) -> Option<Status>;
}

impl Answered for TransferError {
    fn status(&self) -> Option<Status> {
        match self {
            Self::Device { error, .. } => Some(error.status),
            Self::Latched { cause, .. } => Some(cause.status),
            _ => None,
        }
    }
}

impl Answered for CommitError {
    fn status(&self) -> Option<Status> {
        match self {
            Self::Write { source, .. }
            | Self::Flush(ControlError::Transfer(source))
            | Self::InDoubt(ControlError::Transfer(source)) => source.status(),
            _ => None,
        }
    }
}

/// Refusal of a put, before anything is asked of a device.
impl Answered for PutError {
    fn status(&self) -> Option<Status> {
        None
    }
}

impl Answered for GetError {
    fn status(&self) -> Option<Status> {
        None
    }
}

/// Record of the threads of a load.
#[derive(Debug, Default)]
pub struct Record {
    writes: AtomicU64,
    reads: AtomicU64,
    failures: Mutex<Vec<Failure>>,
}

impl Record {
    pub(super) fn wrote(&self) {
        self.writes.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn read(&self) {
        self.reads.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn failed(&self, failure: Failure) {
        let mut failures = self.failures.lock().unwrap_or_else(PoisonError::into_inner);
        if failures.len() < KEPT || matches!(failure, Failure::Wrong(_)) {
            failures.push(failure);
        }
    }

    /// Commits and scratch puts that went well.
    pub fn writes(&self) -> u64 {
        self.writes.load(Ordering::Relaxed)
    }

    /// Reads that went well.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }

    /// Returns the failures, in the order in which it happened.
    pub fn failures(&self) -> Vec<Failure> {
        self.failures.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
