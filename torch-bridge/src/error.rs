//! Why a call failed. What each kind is called in C is for the ABI to say.

use std::fmt::Display;

/// What kind of failure it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// An argument was wrong; nothing happened.
    InvalidArgument,
    /// The pool cannot be formatted, opened, read or written, or has no such tensor.
    Pool,
    /// A transfer ended without having moved its bytes.
    Transfer,
    /// The storages of one op exceed the budget.
    BudgetExceeded,
    /// The handle belongs to the parent of this forked process.
    Forked,
    /// No such handle.
    StaleHandle,
    /// A bug of this library.
    Internal,
}

/// An error on its way to the caller.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    kind: FailureKind,
    text: String,
    storage: Option<u32>,
}

impl Failure {
    /// An error of the given kind.
    pub(crate) fn new(kind: FailureKind, text: impl Into<String>) -> Self {
        Self { kind, text: text.into(), storage: None }
    }

    /// A wrong argument.
    pub(crate) fn invalid(text: impl Into<String>) -> Self {
        Self::new(FailureKind::InvalidArgument, text)
    }

    /// What the pool reported.
    pub(crate) fn pool(error: impl Display) -> Self {
        Self::new(FailureKind::Pool, error.to_string())
    }

    /// A bug of this library.
    pub(crate) fn internal(text: impl Display) -> Self {
        Self::new(FailureKind::Internal, format!("internal error (please report it): {text}"))
    }

    /// Names the storage that the error is about.
    #[must_use]
    pub(crate) fn about(mut self, storage: u32) -> Self {
        self.storage = Some(storage);
        self
    }

    pub(crate) fn kind(&self) -> FailureKind {
        self.kind
    }

    pub(crate) fn text(&self) -> &str {
        &self.text
    }

    /// The storage that the error is about, if it is about one.
    pub(crate) fn storage(&self) -> Option<u32> {
        self.storage
    }
}
