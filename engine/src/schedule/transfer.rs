//! Requests to the reactor, and their results.

use std::time::Duration;

use super::subject::{About, Subject};
use crate::memory::{Destination, GpuError, Source};
use crate::path::{DeviceCapabilities, DeviceError, Extent, PlacementHandle, Refusal};
use crate::units::{ByteCount, DeviceIndex};

/// A run of a tensor's bytes on one device. On the device it takes its length rounded up to 4 KiB;
/// a write fills the rest with zeroes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The device.
    pub device: DeviceIndex,
    /// Offset on the device; a multiple of 4 KiB.
    pub offset: ByteCount,
    /// Offset of its bytes in the source or destination: its first byte, or the first byte of its
    /// window if it has one.
    pub tensor_offset: u64,
    /// Number of its bytes: at least 1, at most the reactor's chunk.
    pub length: u32,
    /// The CRC32C that these bytes should have, for reads (`None`: not checked) and for
    /// verification (which needs it).
    pub checksum: Option<u32>,
    /// Range of the piece that a read wants. The checksum still covers all of them.
    pub window: Option<WantedRange>,
    /// Placement of a write, on a device that can tell.
    pub placement: Option<PlacementHandle>,
    /// Second copy. A write goes there once the first is written; a read does if the first cannot
    /// be read or does not match.
    pub mirror: Option<Mirror>,
}

/// The second copy of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mirror {
    /// The device.
    pub device: DeviceIndex,
    /// Offset on the device; a multiple of 4 KiB.
    pub offset: ByteCount,
    /// True if a read that had to go there writes the first copy again, once the second's checksum
    /// has matched.
    pub heals: bool,
}

/// The wanted part of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WantedRange {
    /// Bytes of the piece before it.
    pub skip: u32,
    /// The length in bytes.
    pub take: u32,
}

impl Piece {
    /// A piece without checksum, wanted whole.
    pub const fn new(
        device: DeviceIndex,
        offset: ByteCount,
        tensor_offset: u64,
        length: u32,
    ) -> Self {
        let (checksum, window, placement, mirror) = (None, None, None, None);
        Self { device, offset, tensor_offset, length, checksum, window, placement, mirror }
    }

    /// Adds a second copy.
    #[must_use]
    pub const fn mirrored(self, device: DeviceIndex, offset: ByteCount) -> Self {
        Self { mirror: Some(Mirror { device, offset, heals: false }), ..self }
    }

    /// Has reads that need the second copy write the first one again, if `heals`.
    #[must_use]
    pub fn healing(self, heals: bool) -> Self {
        Self { mirror: self.mirror.map(|mirror| Mirror { heals, ..mirror }), ..self }
    }

    /// Exchanges the copies: the second one is what is read first.
    #[must_use]
    pub fn swapped(self) -> Option<Self> {
        let mirror = self.mirror?;
        let second = Mirror { device: self.device, offset: self.offset, ..mirror };
        Some(Self { mirror: Some(second), ..self.on(mirror) })
    }

    /// Leaves the second copy out.
    #[must_use]
    pub const fn alone(self) -> Self {
        Self { mirror: None, ..self }
    }

    /// Returns the piece as it lies in a second copy.
    pub(super) fn on(self, Mirror { device, offset, .. }: Mirror) -> Self {
        Self { device, offset, ..self }
    }

    /// Adds the checksum that its bytes should have.
    #[must_use]
    pub const fn expecting(self, checksum: u32) -> Self {
        Self { checksum: Some(checksum), ..self }
    }

    /// Adds a placement handle.
    #[must_use]
    pub const fn placed(self, placement: Option<PlacementHandle>) -> Self {
        Self { placement, ..self }
    }

    /// Limits a read to `take` bytes from byte `skip` on.
    #[must_use]
    pub const fn window(self, skip: u32, take: u32) -> Self {
        Self { window: Some(WantedRange { skip, take }), ..self }
    }

    /// Returns the error of the piece if it has this checksum and should have another one.
    pub(super) fn unexpected(&self, found: u32) -> Option<Box<TransferError>> {
        let Self { device, offset, tensor_offset, length, checksum, .. } = *self;
        let expected = checksum.filter(|expected| *expected != found)?;
        Some(Box::new(TransferError::Checksum {
            device,
            offset,
            length: ByteCount(u64::from(length)),
            tensor_offset,
            expected,
            found,
            about: Box::default(),
        }))
    }

    /// The bytes of the piece that go to or come from memory.
    pub(super) fn wanted(&self) -> WantedRange {
        self.window.unwrap_or(WantedRange { skip: 0, take: self.length })
    }

    /// Returns whether all of its bytes go to or come from memory.
    pub(super) fn is_wanted_whole(&self) -> bool {
        self.window.is_none()
    }

    /// The bytes of the device that it takes up.
    pub(super) fn extent(&self) -> Extent {
        let length = ByteCount(u64::from(self.length));
        Extent { offset: self.offset, length: length.round_up(ByteCount::kib(4)) }
    }
}

/// Bytes to move or to check.
#[derive(Debug)]
pub enum Transfer {
    /// Memory to devices. The CRC32C of every piece is taken on the way.
    Write {
        /// The memory.
        source: Source,
        /// Destination pieces.
        pieces: Vec<Piece>,
    },
    /// Devices to memory.
    Read {
        /// The memory.
        destination: Destination,
        /// Source pieces.
        pieces: Vec<Piece>,
    },
    /// Compares memory with checksums; no device is touched.
    Verify {
        /// The memory.
        source: Source,
        /// The expected checksums, by piece. Device and offset serve only as names.
        pieces: Vec<Piece>,
    },
}

impl Transfer {
    /// Returns whether the memory is a GPU's.
    pub(super) fn is_on_gpu(&self) -> bool {
        match self {
            Self::Write { source, .. } | Self::Verify { source, .. } => source.on_gpu(),
            Self::Read { destination, .. } => destination.on_gpu(),
        }
        .is_some()
    }
}

/// Urgency of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Urgency {
    /// A caller waits.
    Urgent,
    /// Asked for ahead of time; makes way for urgent pieces.
    Ahead,
    /// Work that nobody waits for; makes way for all other pieces, and leaves devices to those who
    /// wait.
    Idle,
}

impl Urgency {
    /// Every urgency, the highest first.
    pub const ALL: [Self; 3] = [Self::Urgent, Self::Ahead, Self::Idle];
}

/// The end of a transfer, in full.
#[derive(Clone, Debug)]
pub struct TransferResult<'a> {
    /// Result, or the first failure.
    pub outcome: Result<TransferDone<'a>, TransferError>,
    /// Bytes of memory that were moved or checked, on failure too.
    pub bytes: u64,
}

/// A transfer that ended well.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TransferDone<'a> {
    /// Checksums of a write: the CRC32C of each piece's bytes, in the order of the pieces. Else
    /// empty.
    pub checksums: &'a [u32],
    /// True if a verification found every checksum to match, and for all other transfers. Else
    /// true.
    pub matched: bool,
}

/// The end of a transfer, for those who hold its ticket.
pub type TransferOutcome = Result<Done, TransferError>;

/// A transfer that ended well, in short.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Done {
    /// Bytes moved or checked.
    pub bytes: u64,
    /// True if a verification found every checksum to match, and for all other transfers. Else
    /// true.
    pub matched: bool,
    /// Time for which nothing of it was begun, because its bytes on the GPU were not there yet.
    pub waited: Duration,
    /// Pieces that were read from the second copy, and written again to the first.
    pub healed: u32,
}

/// A transfer that did not end well.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// A device gave back other bytes than were written, twice.
    #[error(
        "the bytes of {length} at byte {} on {} ({}) have CRC32C {found:#010x} where \
         {expected:#010x} was written; the medium is damaged there",
        offset.0, about.on(*device), about.byte(*tensor_offset)
    )]
    Checksum {
        /// The device.
        device: DeviceIndex,
        /// Offset on the device.
        offset: ByteCount,
        /// Number of bytes that the checksum covers.
        length: ByteCount,
        /// Offset in the tensor.
        tensor_offset: u64,
        /// The checksum of what was written.
        expected: u32,
        /// The checksum of what was read.
        found: u32,
        /// The tensor and the device in words.
        about: Box<About>,
    },
    /// A device failed an operation.
    #[error(
        "{} of {} failed on {}: {} ({})",
        error.kind, error.extent, about.on(error.device), error.status, about.byte(*tensor_offset)
    )]
    Device {
        /// Offset in the tensor.
        tensor_offset: u64,
        /// Error of the device.
        error: DeviceError,
        /// The tensor and the device in words.
        about: Box<About>,
    },
    /// A device had failed before and refuses until it is opened again.
    #[error(
        "{} refuses byte {} ({}) until the pool is opened again, because of an earlier failure: {cause}",
        about.on(*device), offset.0, about.byte(*tensor_offset)
    )]
    Latched {
        /// The device.
        device: DeviceIndex,
        /// Offset on the device.
        offset: ByteCount,
        /// Offset in the tensor.
        tensor_offset: u64,
        /// Failure that came before.
        cause: DeviceError,
        /// The tensor and the device in words.
        about: Box<About>,
    },
    /// The data path does not do what was asked, on this device.
    #[error(
        "{} refuses byte {} ({}): {reason}",
        about.on(*device), offset.0, about.byte(*tensor_offset)
    )]
    Refused {
        /// The device.
        device: DeviceIndex,
        /// Offset on the device.
        offset: ByteCount,
        /// Offset in the tensor.
        tensor_offset: u64,
        /// Reason of the failure.
        reason: &'static str,
        /// The tensor and the device in words.
        about: Box<About>,
    },
    /// A copy from or to the GPU failed.
    #[error("{} could not be copied between the GPU and staging memory: {reason}", about.byte(*tensor_offset))]
    Gpu {
        /// Offset in the tensor.
        tensor_offset: u64,
        /// Error of the GPU's driver.
        reason: String,
        /// The tensor in words.
        about: Box<About>,
    },
    /// A transfer that is not the reactor's, between a GPU and host memory, failed.
    #[error("{reason}")]
    HostMemory {
        /// Description of the failure, and the bytes.
        reason: String,
    },
    /// The ticket was cancelled in time.
    #[error("the transfer was cancelled")]
    Cancelled,
    /// The reactor stopped before the transfer was done.
    #[error("the engine stopped before the transfer was done: {reason}")]
    Stopped {
        /// The reason why it stopped.
        reason: String,
    },
    /// The transfer belongs to the process that this one was forked from.
    #[error(
        "the transfer belongs to the process that this one was forked from; open the pool here"
    )]
    Forked,
}

impl TransferError {
    /// Returns the reason why a path refused a piece; `None` if it was only full.
    pub(super) fn refused(reason: Refusal, piece: Piece) -> Option<Box<Self>> {
        let Piece { device, offset, tensor_offset, .. } = piece;
        let about = Box::default;
        Some(Box::new(match reason {
            Refusal::Full => return None,
            Refusal::Invalid(reason) => {
                Self::Refused { device, offset, tensor_offset, reason, about: about() }
            }
            Refusal::Latched(cause) => {
                Self::Latched { device, offset, tensor_offset, cause, about: about() }
            }
        }))
    }

    /// No staging memory is left.
    pub(super) fn without_staging() -> Self {
        let reason =
            "all staging memory was left to a device, or a GPU, that does not answer".into();
        Self::Stopped { reason }
    }

    /// The GPU's driver failed a copy of the piece that begins there.
    pub(super) fn of_gpu(GpuError(reason): GpuError, tensor_offset: u64) -> Self {
        Self::Gpu { tensor_offset, reason, about: Box::default() }
    }

    /// Completes the error of a transfer of this to or from one of these devices: says which tensor
    /// and which path, and where in the tensor, not in the transfer's memory.
    pub(super) fn named(mut self, subject: &Subject, devices: &[DeviceCapabilities]) -> Self {
        let (device, tensor_offset, about) = match &mut self {
            Self::Checksum { device, tensor_offset, about, .. }
            | Self::Latched { device, tensor_offset, about, .. }
            | Self::Refused { device, tensor_offset, about, .. } => (*device, tensor_offset, about),
            Self::Device { error, tensor_offset, about } => (error.device, tensor_offset, about),
            Self::Gpu { tensor_offset, about, .. } => {
                *tensor_offset += subject.first_byte();
                **about = About::new(subject, None);
                return self;
            }
            Self::HostMemory { .. } | Self::Cancelled | Self::Stopped { .. } | Self::Forked => {
                return self;
            }
        };
        *tensor_offset += subject.first_byte();
        let device = devices.get(usize::from(device.0));
        **about = About::new(subject, device.map(|device| &*device.name));
        self
    }

    /// Returns whether a copy on another device may still be whole.
    pub(super) fn is_of_a_copy(&self) -> bool {
        matches!(self, Self::Checksum { .. } | Self::Device { .. } | Self::Latched { .. })
    }

    /// The device that is the cause, if one is.
    pub fn device(&self) -> Option<DeviceIndex> {
        match self {
            Self::Checksum { device, .. }
            | Self::Latched { device, .. }
            | Self::Refused { device, .. } => Some(*device),
            Self::Device { error, .. } => Some(error.device),
            Self::Gpu { .. }
            | Self::HostMemory { .. }
            | Self::Cancelled
            | Self::Stopped { .. }
            | Self::Forked => None,
        }
    }
}
