//! Errors of a pool: one enum per kind of call.

use std::io;
use std::path::PathBuf;

use thiserror::Error;

use super::calibrate::CalibrateError;
use super::events::OlderCopy;
use crate::layout::{
    DEVICES_MAX, GeometryError, Holder, NAME_BYTES_MAX, Owner, SuperblockError, TensorId, TensorKey,
};
use crate::log::{BeginError, Full, IndexFull, SealRefusal, SpaceUse};
use crate::path::DeviceOpenError;
use crate::schedule::{ControlError, DrainError, StartError, SubmitError, TransferError};
use crate::units::ByteCount;

/// The pool's handle is of no use any more, whatever is asked of it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum Unusable {
    /// The process was forked from the one that opened the pool.
    #[error("the pool was opened by process {opener}, of which this one is a fork; open it here")]
    Forked {
        /// The process that opened the pool.
        opener: u32,
    },
    /// The pool is closed.
    #[error("the pool is closed")]
    Closed,
}

/// The reason why devices could not be formatted. Unless the error says otherwise nothing on them
/// has changed.
#[derive(Debug, Error)]
pub enum FormatError {
    /// The pool is owned by another host, which writes it.
    #[error("{device} is owned by {owner}")]
    OwnedElsewhere {
        /// The device.
        device: String,
        /// The host.
        owner: Owner,
    },
    /// Device that is reserved for another host, of which its owner block does not tell.
    #[error(
        "{device} is reserved for another host, which alone may write it, and that is no owner of a pool: \
         `nvme resv-report` shows whose it is"
    )]
    Reserved {
        /// The device.
        device: String,
    },
    /// The number of devices is too small or too large.
    #[error("a pool has 1 to {DEVICES_MAX} devices, not {0}")]
    Devices(usize),
    /// One device under two names.
    #[error("{0} and {1} are the same device")]
    SameDevice(String, String),
    /// A file is to be made and no size was given.
    #[error("{0} does not exist yet or is empty: say how large it is to be (device_size)")]
    SizeNeeded(String),
    /// The device belongs to a pool.
    #[error(
        "{device} belongs to Tidelog pool {pool:032x}; overwrite it only if that pool may be lost"
    )]
    HoldsPool {
        /// The device.
        device: String,
        /// The pool.
        pool: u128,
    },
    /// The device holds something else.
    #[error("{device} is not blank ({found}); overwrite it only if that may be lost")]
    HoldsData {
        /// The device.
        device: String,
        /// Data that was found.
        found: String,
    },
    /// A process has a share of the pool on this device open.
    #[error("{path} is in use{}", by(.holder.as_ref()))]
    InUse {
        /// The device.
        path: PathBuf,
        /// The process, if it said its name.
        holder: Option<Holder>,
    },
    /// The devices cannot be divided as asked.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// A device could not be opened or made.
    #[error(transparent)]
    Device(#[from] DeviceOpenError),
    /// The operating system refused something else.
    #[error("{what}: {source}")]
    System {
        /// Action that failed, and its object.
        what: String,
        /// The answer.
        source: io::Error,
    },
    /// The data path could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The devices could not be measured.
    #[error("the devices are no pool, as they could not be calibrated: {0}")]
    Calibrate(#[from] Box<CalibrateError>),
    /// Writing failed half way: the devices are not a pool and may have lost what they held.
    #[error("formatting failed half way, the devices are no pool: {0}")]
    HalfWay(String),
}

/// The reason why a pool could not be opened.
#[derive(Debug, Error)]
pub enum OpenError {
    /// The number of devices is too small or too large.
    #[error("a pool has 1 to {DEVICES_MAX} devices, not {0}")]
    Devices(usize),
    /// The share is held by another process.
    #[error("share {share} of the pool is held{} (lock on {path})", by(.holder.as_ref()))]
    ShareHeld {
        /// The share.
        share: u32,
        /// The device whose lock was refused.
        path: PathBuf,
        /// The process that holds it, if it said its name: process id, command, since when.
        holder: Option<Holder>,
    },
    /// The pool is owned by another host, which writes it.
    #[error("{device} is owned by {}", .owner.as_ref().map_or_else(|| "another host".into(), ToString::to_string))]
    OwnedElsewhere {
        /// The device.
        device: String,
        /// The host, if it said its name.
        owner: Option<Owner>,
    },
    /// Device that is reserved for another host, of which its owner block does not tell.
    #[error(
        "{device} is reserved for another host, which alone may write it, and that is no owner of a pool: \
         `nvme resv-report` shows whose it is"
    )]
    Reserved {
        /// The device.
        device: String,
    },
    /// The share does not exist.
    #[error("the pool has {shares} share(s), numbered from 0; there is no share {share}")]
    NoShare {
        /// The share asked for.
        share: u32,
        /// Shares of the pool.
        shares: u32,
    },
    /// A device carries no superblock that can be used.
    #[error("{device}: {source}")]
    Superblock {
        /// The device.
        device: String,
        /// Error of its superblocks.
        source: SuperblockError,
    },
    /// The devices do not make up one pool.
    #[error("these devices are not one pool: {0}")]
    NotOnePool(String),
    /// Devices of the pool are missing, more than it may be opened without.
    #[error("{}", missing(places, *count, *devices, present, unopened))]
    Missing {
        /// Places of the devices in the pool.
        places: String,
        /// Number of the devices that are missing.
        count: usize,
        /// Devices of the pool.
        devices: u32,
        /// The devices that are there.
        present: String,
        /// Names that stood for nothing.
        unopened: String,
    },
    /// A device that the pool has given up.
    #[error(
        "{device} was removed from the pool, whose device {place} it was; it is never part of it again: leave it \
         out, or give it to the pool as a new one, overwritten"
    )]
    Removed {
        /// The device.
        device: String,
        /// The place that it had.
        place: u32,
    },
    /// A device that the pool was to get, and has not got.
    #[error(
        "{device} was to be added to the pool, and the others know nothing of it: leave it out, or add it again"
    )]
    Unadded {
        /// The device.
        device: String,
    },
    /// The pool has gone on without this device: what it holds is of before.
    #[error(
        "{device} is stale: the pool was opened without it (its device {place}) and has gone on; nothing of it \
         is used. Leave it out and open the pool degraded, or have it take its own place as a new device: \
         tidelog-format replace"
    )]
    Stale {
        /// The device.
        device: String,
        /// Place of the device in the pool.
        place: u32,
    },
    /// The device is a replacement on which not all is that should be.
    #[error(
        "{device} is to replace device {place} of the pool and is not complete; give the same \
         tidelog-format replace again, which finishes it, or open the pool degraded: without it, or, where the \
         pool has one share, with it, which finishes it meanwhile"
    )]
    Unreplaced {
        /// The device.
        device: String,
        /// Place of the device in the pool.
        place: u32,
    },
    /// The share was used without these devices as they are: each is an older copy of itself.
    #[error("{}", older(*share, devices))]
    OlderCopy {
        /// The share.
        share: u32,
        /// The devices.
        devices: Vec<OlderCopy>,
    },
    /// A device is not the pool's any more, though a superblock of the pool stands: something else
    /// was made on it. Nothing was written.
    #[error(
        "{device} was given to something else since it was the pool's: it has {found}; nothing was written"
    )]
    OverwrittenStart {
        /// The device.
        device: String,
        /// Data that was found, and where.
        found: String,
    },
    /// A device has shrunk.
    #[error("{device} has {found}, and the pool was formatted for {needed}")]
    Shrunk {
        /// The device.
        device: String,
        /// The size now.
        found: ByteCount,
        /// The size the pool uses.
        needed: ByteCount,
    },
    /// A device could not be opened.
    #[error(transparent)]
    Device(#[from] DeviceOpenError),
    /// The operating system refused something else.
    #[error("{what}: {source}")]
    System {
        /// Action that failed, and its object.
        what: String,
        /// The answer.
        source: io::Error,
    },
    /// The data path could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The share's index could not be recovered, or not be written again. Nothing was lost by
    /// trying.
    #[error("the index of share {share} could not be recovered: {what}")]
    Recovery {
        /// The share.
        share: u32,
        /// Reason of the refusal.
        what: String,
    },
    /// A device failed.
    #[error(transparent)]
    Control(#[from] ControlError),
}

/// Describes what is missing of a pool, and what to do.
fn missing(places: &str, count: usize, devices: u32, present: &str, unopened: &str) -> String {
    let which = if count > 1 { "devices" } else { "device" };
    let are = if count > 1 { "are" } else { "is" };
    let named =
        if unopened.is_empty() { String::new() } else { format!(" ({unopened} cannot be opened)") };
    let what = if count > 1 {
        "tensors have two copies at most, so it can be opened without one device, not without more; \
         put back what is there of them"
    } else {
        "put it back; or open the pool degraded (--degraded), without it, where durable tensors with two \
         copies are whole; or replace it: tidelog-format replace"
    };
    format!(
        "the pool has {devices} devices, and {which} {places} {are} missing{named}; there are {present}. Do one of \
         these: {what}"
    )
}

/// Describes the devices that are older copies, how that shows, and what to do.
fn older(share: u32, devices: &[OlderCopy]) -> String {
    let each = devices.iter().map(|OlderCopy { device, why }| format!("{device} ({why})"));
    let (each, many) = (each.collect::<Vec<_>>().join(" and "), devices.len() > 1);
    let are = if many { "are older copies of themselves" } else { "is an older copy of itself" };
    format!(
        "{each} {are}: share {share} was used since without it; put back the device that was used last"
    )
}

/// The reason why a tensor could not be put. Nothing has changed; the older version is there as
/// before.
#[derive(Debug, Error)]
pub enum PutError {
    /// The share has no space. The pool stays usable; delete something and retry.
    #[error(
        "{} {needed} and {available} can be had \
         (capacity {}, live {}{}, dead {}, free {}, reserved {}, index {}); delete tensors{}, or make a \
         larger pool",
        what_is_full(.tensor, *.for_index), .space.capacity, .space.live, of_seals(.space),
        .space.dead, .space.free, .space.reserved,
        .space.index, or_drop_seals(.space)
    )]
    PoolFull {
        /// The tensor.
        tensor: TensorKey,
        /// Needed size, in whole blocks, or the segments by which the index must grow for it.
        needed: ByteCount,
        /// Size that a tensor of its durability could have had.
        available: ByteCount,
        /// True if the index must grow.
        for_index: bool,
        /// Use of the share's space.
        space: Box<SpaceUse>,
    },
    /// The index has no room for one more durable tensor, and may not grow into segments, because
    /// the pool was formatted before that could be. Opening it again allows it.
    #[error(
        "the index is full: with {tensor} it needs {needed} and its place has {room}; \
         delete durable tensors, or close the pool and open it again: then its index may grow"
    )]
    IndexFull {
        /// The tensor.
        tensor: TensorKey,
        /// Size that the index would need.
        needed: ByteCount,
        /// Capacity of the index.
        room: ByteCount,
    },
    /// A scratch put to an id under which a durable tensor stands, or is being put.
    #[error("{0} is durable: it is replaced and deleted by a batch")]
    IsDurable(TensorKey),
    /// A durable put to an id with a scratch put in flight.
    #[error("{0} has a scratch put in flight; wait for it first")]
    ScratchInFlight(TensorKey),
    /// Two names share an id. One of them must change.
    #[error("{name:?} has the id of another durable tensor, {other:?}")]
    NameCollision {
        /// The name of this put.
        name: String,
        /// The name that stands under the id.
        other: String,
    },
    /// The pool is open for reading only.
    #[error("{0} cannot be put: the pool is open for reading only")]
    ReadOnly(TensorKey),
    /// The name is longer than the log stores.
    #[error("a name of {0} bytes is too long; {NAME_BYTES_MAX} are stored")]
    NameTooLong(usize),
    /// The pool has no place for second copies.
    #[error("it cannot have two copies in this pool: {0}")]
    Copies(GeometryError),
    /// The superblocks could not be made to say that there are second copies.
    #[error("the superblocks cannot say that tensors have two copies: {0}")]
    Announce(String),
    /// The engine takes nothing.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The handle is of no use.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// The reason why a tensor could not be read or verified. What goes wrong later is in the ticket's
/// outcome.
#[derive(Debug, Error)]
pub enum GetError {
    /// The tensor does not exist.
    #[error("there is no {0}")]
    Unknown(TensorKey),
    /// The seal does not exist.
    #[error("there is no seal {0:?}")]
    NoSeal(String),
    /// The seal does not hold it.
    #[error("the seal {seal:?} holds no {tensor}")]
    NotSealed {
        /// The seal.
        seal: String,
        /// The tensor.
        tensor: TensorKey,
    },
    /// The range reaches past the tensor's end, or is turned around.
    #[error("bytes {start}..{end} are not within {tensor}, which has {length} bytes")]
    Range {
        /// The tensor.
        tensor: TensorKey,
        /// The range's first byte.
        start: u64,
        /// One past the range's last byte.
        end: u64,
        /// The tensor's length.
        length: u64,
    },
    /// The memory is not as long as what it is to hold.
    #[error("the memory has {found} bytes and {needed} bytes of {tensor} are to be there")]
    Memory {
        /// The tensor.
        tensor: TensorKey,
        /// The memory's length.
        found: u64,
        /// The length that was asked for.
        needed: u64,
    },
    /// The engine takes nothing.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The handle is of no use.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// The reason why a tensor could not be deleted.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum DeleteError {
    /// The tensor does not exist.
    #[error("there is no {0}")]
    Unknown(TensorKey),
    /// The tensor is durable.
    #[error("{0} is durable: it is deleted by a batch")]
    IsDurable(TensorKey),
    /// The pool is open for reading only.
    #[error("{0} cannot be deleted: the pool is open for reading only")]
    ReadOnly(TensorKey),
    /// The handle is of no use.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// The reason why there is no seal, or no such seal. Nothing has changed.
#[derive(Clone, Debug, Error)]
pub enum SealError {
    /// No name can be that long, or empty.
    #[error("a seal's name has 1 to {NAME_BYTES_MAX} bytes, not {0}")]
    Name(usize),
    /// The seal does not exist.
    #[error("there is no seal {0:?}")]
    Absent(String),
    /// The tensor does not exist.
    #[error("{seal:?} cannot be sealed: there is no {tensor}")]
    Unknown {
        /// The seal.
        seal: String,
        /// The tensor.
        tensor: TensorKey,
    },
    /// A seal holds each tensor once.
    #[error("{seal:?} cannot be sealed: {tensor} is named twice")]
    Twice {
        /// The seal.
        seal: String,
        /// The tensor.
        tensor: TensorKey,
    },
    /// The index has no room for it and cannot grow.
    #[error(
        "{seal:?} cannot be sealed: the index is full: it needs {needed} and has room for {room}; \
         drop seals or delete durable tensors"
    )]
    IndexFull {
        /// The seal.
        seal: String,
        /// Size that the index needs with it.
        needed: ByteCount,
        /// Capacity of the index.
        room: ByteCount,
    },
    /// The index would have to grow, and there is no space for it.
    #[error(
        "{seal:?} cannot be sealed: the index is full: it must grow by {needed} and {available} are free of {}, \
         of which {} are held by seals alone; drop seals or delete tensors", space.capacity, space.sealed
    )]
    PoolFull {
        /// The seal.
        seal: String,
        /// Size that the index needs.
        needed: ByteCount,
        /// Size that it could have had.
        available: ByteCount,
        /// Use of the space.
        space: SpaceUse,
    },
    /// The superblocks must say that the pool has seals, before it has the first.
    #[error("the superblocks could not be prepared for the pool's first seal: {0}")]
    Announce(String),
    /// The pool is open for reading only.
    #[error("{0:?} cannot be sealed or dropped: the pool is open for reading only")]
    ReadOnly(String),
    /// The handle is of no use.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

impl SealError {
    /// Converts the log's refusal of the seal of this name.
    pub(super) fn from_refusal(
        seal: &str,
        refusal: SealRefusal,
        called: impl Fn(TensorId) -> TensorKey,
    ) -> Self {
        let seal = seal.to_owned();
        match refusal {
            SealRefusal::Unknown(id) => Self::Unknown { seal, tensor: called(id) },
            SealRefusal::Twice(id) => Self::Twice { seal, tensor: called(id) },
            SealRefusal::NoSeal(from) => Self::Absent(from.into()),
            SealRefusal::IndexFull(IndexFull { needed, room }) => {
                Self::IndexFull { seal, needed, room }
            }
            SealRefusal::Full(Full { needed, available, space, .. }) => {
                Self::PoolFull { seal, needed, available, space }
            }
        }
    }
}

/// The reason why a commit did not return.
#[derive(Clone, Debug, Error)]
pub enum CommitError {
    /// One of the writes failed or was cancelled. Nothing has changed, the space is given back.
    #[error("{tensor} could not be written, so nothing of the batch was committed: {source}")]
    Write {
        /// The tensor.
        tensor: TensorKey,
        /// Error of its write.
        source: TransferError,
    },
    /// The data could not be flushed. Nothing has changed, the space is given back.
    #[error("the batch's data could not be flushed, so nothing of it was committed: {0}")]
    Flush(ControlError),
    /// The index has outgrown its place, and there are no free segments that it could grow into.
    /// Nothing has changed, the space is given back. A commit that deletes enough succeeds.
    #[error(
        "the index is full: it needs {needed} and has room for {room}, with no free segments to grow into; \
         delete durable tensors of which the index entries take the difference, in one commit"
    )]
    IndexFull {
        /// Size of the index with this commit.
        needed: ByteCount,
        /// Capacity of the index.
        room: ByteCount,
    },
    /// The change log failed. The batch is there whole or not at all, which shows when the pool is
    /// opened again; until then this handle shows the state before, and takes no commit.
    #[error(
        "the change log failed, and only opening the pool again shows whether the batch is there: {0}"
    )]
    InDoubt(ControlError),
    /// An earlier commit is in doubt.
    #[error("nothing can be committed after an earlier commit failed ({0}); open the pool again")]
    Stopped(String),
    /// The engine takes nothing. Nothing has changed, the space is given back.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The handle is of no use.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// Names the object that has no space, up to the figures.
fn what_is_full(tensor: &TensorKey, for_index: bool) -> String {
    if for_index {
        format!("the index is full: for {tensor} it must grow by")
    } else {
        format!("the pool is full: {tensor} needs")
    }
}

/// The part of the live space that only seals hold.
fn of_seals(space: &SpaceUse) -> String {
    match space.sealed {
        ByteCount(0) => String::new(),
        sealed => format!(" of which seals alone hold {sealed}"),
    }
}

fn or_drop_seals(space: &SpaceUse) -> &'static str {
    if space.sealed.0 > 0 { " or drop seals" } else { "" }
}

impl PutError {
    /// Converts the log's refusal of the put of this tensor.
    pub(super) fn from_begin(tensor: TensorKey, error: BeginError) -> Self {
        match error {
            BeginError::Full(Full { needed, available, for_index, space }) => {
                Self::PoolFull { tensor, needed, available, for_index, space: Box::new(space) }
            }
            BeginError::IndexFull(IndexFull { needed, room }) => {
                Self::IndexFull { tensor, needed, room }
            }
            BeginError::IsDurable => Self::IsDurable(tensor),
            BeginError::ScratchInFlight => Self::ScratchInFlight(tensor),
            BeginError::NameCollision(other) => {
                let name = tensor.name.unwrap_or_default();
                Self::NameCollision { name: name.into(), other: other.into() }
            }
        }
    }
}

/// The reason why a segment was not reclaimed. Every tensor is where it was.
#[derive(Debug, Error)]
pub enum ReclaimError {
    /// A tensor in the segment cannot be read, and stays there: the segment is not chosen again.
    /// Other segments can be reclaimed.
    #[error("{tensor} cannot be moved: {source}")]
    Unreadable {
        /// The tensor.
        tensor: TensorKey,
        /// Error of its read.
        source: TransferError,
    },
    /// A tensor could not be written at its new place.
    #[error("{tensor} could not be copied: {source}")]
    Write {
        /// The tensor.
        tensor: TensorKey,
        /// Error of its write.
        source: TransferError,
    },
    /// The new places of durable tensors could not be committed. After [`CommitError::InDoubt`] the
    /// tensors can be read, and nothing can be committed until the pool is opened again.
    #[error("the new places could not be committed: {0}")]
    Commit(CommitError),
    /// The engine takes nothing.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The handle is of no use.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// The reason why a scrub did not go on. Damage is not among it: that is what a scrub reports.
#[derive(Debug, Error)]
pub enum ScrubError {
    /// The tensor does not exist.
    #[error("there is no {0}")]
    Unknown(TensorKey),
    /// The seal does not exist.
    #[error("there is no seal {0:?}")]
    NoSeal(String),
    /// A read ended without an answer from the medium.
    #[error("{tensor} was not scrubbed: {source}")]
    Read {
        /// The tensor.
        tensor: TensorKey,
        /// Error of its read.
        source: TransferError,
    },
    /// The engine takes nothing.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The handle is of no use.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// The reason why devices were not told that a segment is free. Nothing is lost by it.
#[derive(Debug, Error)]
pub enum DiscardError {
    /// A device did not do it.
    #[error(transparent)]
    Transfer(#[from] TransferError),
    /// The engine takes nothing.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The handle is of no use.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// The reason why closing did not end well.
#[derive(Debug, Error)]
pub enum CloseError {
    /// Operations never came back. Their memory is leaked and the share stays locked by this
    /// process, because they may still reach the devices.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// The share is given back, and a commit had failed half way, perhaps one that nobody followed.
    #[error(
        "the pool is closed, and only opening it again shows whether the last commits are there: \
         the change log had failed ({0})"
    )]
    InDoubt(String),
    /// The handle is of no use.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

/// Describes the holder, as in "by process 12 (python train.py) since 2026-01-31 12:00:00 UTC", or
/// that nothing is known.
fn by(holder: Option<&Holder>) -> String {
    holder.map_or_else(
        || " by a process that left no name".to_owned(),
        |holder| format!(" by {holder}"),
    )
}
