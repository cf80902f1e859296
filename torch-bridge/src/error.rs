//! The reason why a call failed. What each kind is called in C is for the ABI to say.

use std::fmt::Display;

use tidelog_engine::pool::{
    CommitError, DeleteError, FormatError, GetError, OpenError, PutError, ScrubError, SealError,
    Unusable,
};
use tidelog_engine::schedule::TransferError;

/// Kind of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureKind {
    /// An argument was wrong; nothing happened.
    InvalidArgument,
    /// The pool cannot be formatted, opened, read or written, for none of the reasons below.
    Pool,
    /// The pool has no such tensor.
    NotFound,
    /// The pool is open for reading only.
    ReadOnly,
    /// The pool, or its index, has no room.
    Full,
    /// Share or device that another process or host holds.
    Held,
    /// The range is not within the tensor.
    OutOfRange,
    /// A device failed a transfer.
    Transfer,
    /// A device gave back other bytes than were written.
    Checksum,
    /// A transfer was cancelled before its end.
    Cancelled,
    /// The storages of one op exceed the budget.
    BudgetExceeded,
    /// An op around this one is in the middle of moving what it needs.
    Busy,
    /// The handle belongs to the parent of this forked process.
    Forked,
    /// No such handle.
    StaleHandle,
    /// A callback of the caller's returned this, which is below zero.
    Callback(i32),
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

    /// Makes the failure of a pool's error.
    pub(crate) fn pool(error: impl Display) -> Self {
        Self::new(FailureKind::Pool, error.to_string())
    }

    /// A bug of this library.
    pub(crate) fn internal(text: impl Display) -> Self {
        Self::new(FailureKind::Internal, format!("internal error (please report it): {text}"))
    }

    /// Replaces the words of a failure.
    #[must_use]
    pub(crate) fn saying(mut self, text: impl Into<String>) -> Self {
        self.text = text.into();
        self
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

/// Makes of an error of the engine a failure of the kind that a function gives it.
macro_rules! failures {
    ($($error:ty => $kind:expr;)*) => {
        $(impl From<$error> for Failure {
            fn from(error: $error) -> Self {
                let kind: fn(&$error) -> FailureKind = $kind;
                Self::new(kind(&error), error.to_string())
            }
        })*
    };
}

failures! {
    Unusable => |&error| unusable(error);
    FormatError => |error| match error {
        FormatError::InUse { .. }
        | FormatError::OwnedElsewhere { .. }
        | FormatError::Reserved { .. } => FailureKind::Held,
        _ => FailureKind::Pool,
    };
    OpenError => |error| match error {
        OpenError::ShareHeld { .. }
        | OpenError::OwnedElsewhere { .. }
        | OpenError::Reserved { .. } => FailureKind::Held,
        _ => FailureKind::Pool,
    };
    PutError => |error| match error {
        PutError::PoolFull { .. } | PutError::IndexFull { .. } => FailureKind::Full,
        PutError::ReadOnly(_) => FailureKind::ReadOnly,
        PutError::Unusable(error) => unusable(*error),
        _ => FailureKind::Pool,
    };
    GetError => |error| match error {
        GetError::Unknown(_) | GetError::NoSeal(_) | GetError::NotSealed { .. } => {
            FailureKind::NotFound
        }
        GetError::Range { .. } => FailureKind::OutOfRange,
        GetError::Unusable(error) => unusable(*error),
        _ => FailureKind::Pool,
    };
    DeleteError => |error| match error {
        DeleteError::Unknown(_) => FailureKind::NotFound,
        DeleteError::ReadOnly(_) => FailureKind::ReadOnly,
        DeleteError::Unusable(error) => unusable(*error),
        DeleteError::IsDurable(_) => FailureKind::Pool,
    };
    SealError => |error| match error {
        SealError::Name(_) | SealError::Twice { .. } => FailureKind::InvalidArgument,
        SealError::Absent(_) | SealError::Unknown { .. } => FailureKind::NotFound,
        SealError::IndexFull { .. } | SealError::PoolFull { .. } => FailureKind::Full,
        SealError::ReadOnly(_) => FailureKind::ReadOnly,
        SealError::Unusable(error) => unusable(*error),
        SealError::Announce(_) => FailureKind::Pool,
    };
    CommitError => |error| match error {
        CommitError::IndexFull { .. } => FailureKind::Full,
        CommitError::Write { source, .. } => transfer(source),
        CommitError::Unusable(error) => unusable(*error),
        _ => FailureKind::Pool,
    };
    ScrubError => |error| match error {
        ScrubError::Unknown(_) | ScrubError::NoSeal(_) => FailureKind::NotFound,
        ScrubError::Read { source, .. } => transfer(source),
        ScrubError::Unusable(error) => unusable(*error),
        ScrubError::Submit(_) => FailureKind::Pool,
    };
    TransferError => transfer;
}

fn unusable(error: Unusable) -> FailureKind {
    match error {
        Unusable::Forked { .. } => FailureKind::Forked,
        Unusable::Closed => FailureKind::Pool,
    }
}

fn transfer(error: &TransferError) -> FailureKind {
    match error {
        TransferError::Checksum { .. } => FailureKind::Checksum,
        TransferError::Cancelled => FailureKind::Cancelled,
        TransferError::Forked => FailureKind::Forked,
        _ => FailureKind::Transfer,
    }
}
