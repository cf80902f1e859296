//! Versions of tensors: those that can be read, those on their way, and why one cannot begin or
//! end.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use thiserror::Error;

use super::change_log::IndexFull;
use super::space::{Durability, Full, Lane};
use crate::layout::{TensorEntry, TensorId};

/// A version of a tensor that can be, or could be, read.
#[derive(Debug)]
pub struct Version {
    /// The tensor, its place and its checksums.
    pub entry: TensorEntry,
    /// Durability of the version.
    pub durability: Durability,
    /// Number of the version. It keeps it when reclamation moves it: its bytes are the same, some
    /// of its runs are not.
    pub(super) serial: u64,
    readers: Readers,
}

impl Version {
    pub(super) const fn new(entry: TensorEntry, durability: Durability, serial: u64) -> Self {
        Self { entry, durability, serial, readers: Readers(AtomicU32::new(0)) }
    }

    /// Returns the number of the version, which no other one has and moves do not change.
    pub const fn serial(&self) -> u64 {
        self.serial
    }

    /// Reads of the version where it lies now, before its next move.
    pub(super) const fn readers(&self) -> &Readers {
        &self.readers
    }
}

/// Number of reads in progress. Only those who have [`super::Contents`] to themselves change it or
/// look at it, so that it may be in what all share.
#[derive(Debug)]
pub(super) struct Readers(AtomicU32);

impl Readers {
    pub(super) fn count(&self) -> u32 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn begin(&self) {
        self.0.store(self.count() + 1, Ordering::Relaxed);
    }

    /// Ends a read; returns whether it was the last one.
    pub(super) fn end(&self) -> bool {
        debug_assert!(self.count() > 0, "a read ended that never began");
        let left = self.count().saturating_sub(1);
        self.0.store(left, Ordering::Relaxed);
        left == 0
    }
}

/// Writes the tensor's name.
impl fmt::Display for Version {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entry.key().fmt(out)
    }
}

/// A write on its way, as [`super::Contents`] knows it. Ends in exactly one of
/// [`super::Contents::install`], [`super::Contents::abandon`], [`super::Contents::apply`] and
/// [`super::Contents::leave_in_doubt`].
#[derive(Debug)]
pub struct Reservation {
    pub(super) serial: u64,
}

impl Reservation {
    /// Returns the key that distinguishes this reservation from all others.
    pub fn key(&self) -> ReservationKey {
        ReservationKey(self.serial)
    }
}

/// Key of the write that a seal of its own batch holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ReservationKey(pub(super) u64);

/// Change of a tensor by the batch of a seal, before the seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OwnChange {
    /// The batch puts it.
    Put(ReservationKey),
    /// The batch deletes it.
    Delete,
}

/// Request of a caller to write a tensor.
#[derive(Clone, Debug)]
pub struct PutRequest {
    /// Id of the tensor.
    pub id: TensorId,
    /// The name behind the id. It is kept; on media with durable tensors alone.
    pub name: Option<Box<str>>,
    /// The length in bytes.
    pub length: u64,
    /// The lane it goes to.
    pub lane: Lane,
}

/// The reason why a write cannot begin; nothing was changed.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum BeginError {
    /// The share has no space.
    #[error("no space")]
    Full(Full),
    /// The index has no place for one more, and may not grow.
    #[error("no room in the index")]
    IndexFull(IndexFull),
    /// A durable tensor stands, or is about to stand, under this id.
    #[error("a durable tensor stands under this id")]
    IsDurable,
    /// A scratch write to this id is in flight.
    #[error("a scratch write to this id is in flight")]
    ScratchInFlight,
    /// The id belongs to another name.
    #[error("the id already stands for {0:?}")]
    NameCollision(Box<str>),
}

/// The reason why a tensor cannot be deleted; nothing was changed.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum RemoveError {
    /// The tensor does not exist.
    #[error("no tensor stands under this id")]
    Unknown,
    /// The tensor is durable: it disappears by a commit.
    #[error("the tensor is durable")]
    IsDurable,
}
