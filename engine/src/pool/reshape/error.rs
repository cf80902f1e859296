//! The reason why the devices of a pool could not be changed.

use thiserror::Error;

use crate::layout::{GeometryError, TensorKey};
use crate::pool::error::{CloseError, FormatError, OpenError, ReclaimError, Unusable};
use crate::schedule::{ControlError, DrainError, StartError, SubmitError, TransferError};
use crate::units::ByteCount;

/// The reason why a pool did not get or give up a device, or get one in the place of another. What
/// was begun is finished by doing the same again.
#[derive(Debug, Error)]
pub enum ReshapeError {
    /// The pool cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new device cannot be had, or holds something.
    #[error(transparent)]
    New(#[from] FormatError),
    /// The pool cannot be laid out over these devices.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// No device is missing beside the others, in whose place another could come.
    #[error(
        "no device is missing beside these: name all devices of the pool but the one that is to be replaced"
    )]
    NoneMissing,
    /// The new device is too small.
    #[error("{device} has {found}, and the pool uses {needed} of each device")]
    TooSmall {
        /// The device.
        device: String,
        /// Size of the device.
        found: ByteCount,
        /// The size that is needed.
        needed: ByteCount,
    },
    /// The pool has no such device.
    #[error("the pool has {devices} place(s), numbered from 0; there is no device {place}")]
    NoPlace {
        /// The place.
        place: u32,
        /// Places of the pool.
        devices: u32,
    },
    /// The device was removed before.
    #[error("device {0} was removed from the pool before")]
    Gone(u32),
    /// The number of devices that would be left is too small.
    #[error("without it {left} device(s) are left, and the pool needs {needed}: add one first")]
    TooFew {
        /// Devices that would be left.
        left: usize,
        /// Devices that the pool needs.
        needed: usize,
    },
    /// The pool has no space for it on the other devices.
    #[error(
        "{needed} must be moved, and segments without the device have {available} left for it: delete tensors, or \
         add a device first"
    )]
    NoSpace {
        /// Bytes that are to be moved, in all copies.
        needed: ByteCount,
        /// Bytes that there is space for.
        available: ByteCount,
    },
    /// The pool has several shares.
    #[error(
        "the pool has {0} shares, each with an owner of its own: a device of it is replaced while nobody has it open"
    )]
    Shares(u32),
    /// The index of a share has no room to be written anew.
    #[error(
        "the index of share {0} must be written anew, and there is no space for it; open the pool, degraded \
         where a device is missing, and delete durable tensors"
    )]
    NoRoom(u32),
    /// Durable tensors have a part that no device has which is there.
    #[error("{}", lost(.0))]
    Lost(Vec<TensorKey>),
    /// The tensors could not be moved.
    #[error(transparent)]
    Move(Box<ReclaimError>),
    /// The data path could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A device failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A device failed while tensors were read or written.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The engine takes nothing.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// A device did not give back what it was asked.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// A superblock could not be read, or a device not be cleared.
    #[error("{0}")]
    Device(String),
    /// A share could not be given back.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// The handle is of no use.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

impl From<ReclaimError> for ReshapeError {
    fn from(error: ReclaimError) -> Self {
        Self::Move(Box::new(error))
    }
}

/// Names the tensors that are lost with a device.
fn lost(tensors: &[TensorKey]) -> String {
    format!(
        "{} durable tensor(s) have a part that no other device has: {}; nothing else is in the way: drop \
         them, or replace the device and go on without that (replace --accept-loss), or save them first if \
         the old device can still be read",
        tensors.len(),
        some_names(tensors)
    )
}

/// Returns the names of tensors, of some of them if there are many.
fn some_names(tensors: &[TensorKey]) -> String {
    const NAMED: usize = 8;
    let names: Vec<String> = tensors.iter().take(NAMED).map(ToString::to_string).collect();
    let more = tensors.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    names.join(", ") + &more
}
