//! Operations on a device, and their completions.

use std::fmt;

use super::priority::IoPriority;
use crate::library::ErrorLibrary;
use crate::memory::{ALIGNMENT, CopyError, DmaBuffer, Memory};
use crate::units::{ByteCount, DeviceIndex};

/// A run of bytes on one device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// The first byte, counted from the device's start.
    pub offset: ByteCount,
    /// Number of bytes.
    pub length: ByteCount,
}

impl Extent {
    /// No bytes; what a flush refers to.
    pub const NOTHING: Self = Self { offset: ByteCount::ZERO, length: ByteCount::ZERO };

    /// `length` bytes from `offset` on.
    pub const fn new(offset: u64, length: u64) -> Self {
        Self { offset: ByteCount(offset), length: ByteCount(length) }
    }

    /// Returns whether both ends lie on 4 KiB boundaries and within `size` bytes.
    pub(crate) fn fits(self, size: ByteCount) -> bool {
        let unit = ALIGNMENT as u64;
        self.offset.0.is_multiple_of(unit)
            && self.length.0.is_multiple_of(unit)
            && self.offset.0.checked_add(self.length.0).is_some_and(|end| end <= size.0)
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} at byte {}", self.length, self.offset.0)
    }
}

/// One request to one device.
#[derive(Debug)]
pub struct Operation {
    /// The caller's name for it; comes back in the completion. `u64::MAX` is not allowed.
    pub tag: u64,
    /// The device.
    pub device: DeviceIndex,
    /// The bytes on the device: multiples of 4 KiB, and [`Extent::NOTHING`] for a flush.
    pub extent: Extent,
    /// Action on the bytes.
    pub action: Action,
    /// Placement of a write, on a device that can tell.
    pub placement: Option<PlacementHandle>,
    /// Priority of a read or write in the kernel: for `io_uring` alone.
    pub priority: Option<IoPriority>,
}

impl Operation {
    /// Makes an operation of this action on this extent, wherever the device puts it, and as urgent
    /// as the thread is.
    pub fn new(tag: u64, device: DeviceIndex, extent: Extent, action: Action) -> Self {
        Self { tag, device, extent, action, placement: None, priority: None }
    }
}

/// One of a device's placement handles (NVMe Flexible Data Placement), by its place in the
/// namespace's list: what is written by one handle lies in reclaim units of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PlacementHandle(pub u16);

/// Action of an operation. Memory is at least as long as the extent and used from its start; a
/// GPU's says itself which bytes of the extent it holds.
#[derive(Debug)]
pub enum Action {
    /// Fills the memory from the extent.
    Read(Memory),
    /// Writes the memory to the extent.
    Write {
        /// The bytes.
        memory: Memory,
        /// True if the bytes are on the medium, past any volatile cache, when this completes.
        fua: bool,
    },
    /// Makes the extent read as zeroes.
    WriteZeroes,
    /// Puts every write that completed before this was submitted on the medium.
    Flush,
    /// Tells the device that nobody needs the extent's bytes any more; they read as anything after.
    Deallocate,
}

impl Action {
    /// Reads into `memory`.
    pub fn read(memory: impl Into<Memory>) -> Self {
        Self::Read(memory.into())
    }

    /// Writes `memory`; see [`Action::Write`] for `fua`.
    pub fn write(memory: impl Into<Memory>, fua: bool) -> Self {
        Self::Write { memory: memory.into(), fua }
    }

    /// The kind, without the memory.
    pub fn kind(&self) -> OperationKind {
        match self {
            Self::Read(_) => OperationKind::Read,
            Self::Write { .. } => OperationKind::Write,
            Self::WriteZeroes => OperationKind::WriteZeroes,
            Self::Flush => OperationKind::Flush,
            Self::Deallocate => OperationKind::Deallocate,
        }
    }

    /// The memory that it reads or writes.
    pub fn memory(&self) -> Option<&Memory> {
        match self {
            Self::Read(memory) | Self::Write { memory, .. } => Some(memory),
            Self::WriteZeroes | Self::Flush | Self::Deallocate => None,
        }
    }

    /// Gives the memory out.
    pub fn into_memory(self) -> Option<Memory> {
        match self {
            Self::Read(memory) | Self::Write { memory, .. } => Some(memory),
            Self::WriteZeroes | Self::Flush | Self::Deallocate => None,
        }
    }

    /// Gives the buffer out, if there is one in the host's memory.
    pub fn into_buffer(self) -> Option<DmaBuffer> {
        self.into_memory()?.into_host()
    }
}

/// The kinds of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OperationKind {
    /// Device to memory.
    Read,
    /// Memory to device.
    Write,
    /// Zeroes to device.
    WriteZeroes,
    /// Volatile cache to medium.
    Flush,
    /// TRIM.
    Deallocate,
}

impl fmt::Display for OperationKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::WriteZeroes => "write zeroes",
            Self::Flush => "flush",
            Self::Deallocate => "deallocate",
        })
    }
}

/// The end of an operation.
#[derive(Debug)]
pub struct Completion {
    /// The operation's tag.
    pub tag: u64,
    /// The operation's memory.
    pub memory: Option<Memory>,
    /// The CRC32C of the bytes, where they are in a GPU's memory and were moved.
    pub checksum: Option<u32>,
    /// Result for the whole extent.
    pub result: Result<(), DeviceError>,
}

impl Completion {
    /// Gives the buffer out, if there is one in the host's memory.
    pub fn into_buffer(self) -> Option<DmaBuffer> {
        self.memory?.into_host()
    }
}

/// The device answered that an operation failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{kind} of {extent} failed on {device}: {status}")]
pub struct DeviceError {
    /// The device.
    pub device: DeviceIndex,
    /// Kind of the operation.
    pub kind: OperationKind,
    /// The bytes on it.
    pub extent: Extent,
    /// Status that was returned.
    pub status: Status,
}

/// Status as the device or the kernel returned it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Status {
    /// The kernel's error number.
    Errno(i32),
    /// The status of an NVMe completion.
    Nvme {
        /// The status code type (SCT).
        code_type: u8,
        /// The status code (SC).
        code: u8,
        /// True if the same command would fail again (DNR).
        do_not_retry: bool,
    },
    /// The transfer moved fewer bytes than asked for.
    Short {
        /// Number of bytes that were moved.
        moved: u32,
    },
    /// An error of a library between us and the kernel.
    ErrorLibrary {
        /// The library.
        library: &'static ErrorLibrary,
        /// The number.
        code: i32,
    },
}

impl Status {
    /// Returns whether the status means that the device is removed.
    pub fn is_removal(self) -> bool {
        matches!(self, Self::Errno(libc::ENODEV | libc::ENXIO | libc::ENOMEDIUM | libc::ESHUTDOWN))
    }

    /// Returns whether the status means that the device does not know the operation, so that
    /// nothing happened.
    pub fn is_unsupported(self) -> bool {
        const INVALID_OPCODE: (u8, u8) = (0, 0x01);
        match self {
            Self::Errno(errno) => [libc::EOPNOTSUPP, libc::ENOTTY, libc::ENOSYS].contains(&errno),
            Self::Nvme { code_type, code, .. } => (code_type, code) == INVALID_OPCODE,
            Self::Short { .. } | Self::ErrorLibrary { .. } => false,
        }
    }

    /// Returns whether the status means that there is no room for what was to be written, so that
    /// all else on the device is as it was.
    pub fn is_lack_of_room(self) -> bool {
        const CAPACITY_EXCEEDED: (u8, u8) = (0, 0x81);
        match self {
            Self::Errno(errno) => [libc::ENOSPC, libc::EDQUOT, libc::EFBIG].contains(&errno),
            Self::Nvme { code_type, code, .. } => (code_type, code) == CAPACITY_EXCEEDED,
            Self::Short { .. } | Self::ErrorLibrary { .. } => false,
        }
    }

    /// Returns whether the same read may well succeed if it is retried: the medium or the way to it
    /// had trouble, and the device is there.
    pub fn is_transient(self) -> bool {
        const TROUBLE: [i32; 6] = [
            libc::EIO,
            libc::EAGAIN,
            libc::EINTR,
            libc::ETIMEDOUT,
            libc::EREMOTEIO,
            libc::ECONNRESET,
        ];
        match self {
            Self::Errno(errno) => TROUBLE.contains(&errno),
            Self::Nvme { do_not_retry, .. } => !do_not_retry,
            Self::Short { .. } => true,
            Self::ErrorLibrary { .. } => false,
        }
    }

    /// Returns whether the status means that the operation was aborted on request.
    pub fn is_aborted(self) -> bool {
        const BY_REQUEST: (u8, u8) = (0, 0x07);
        match self {
            Self::Errno(errno) => errno == libc::ECANCELED,
            Self::Nvme { code_type, code, .. } => (code_type, code) == BY_REQUEST,
            Self::Short { .. } | Self::ErrorLibrary { .. } => false,
        }
    }
}

impl From<CopyError> for Status {
    fn from(CopyError { library, code, .. }: CopyError) -> Self {
        Self::ErrorLibrary { library, code }
    }
}

impl fmt::Display for Status {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Errno(errno) => {
                let error = std::io::Error::from_raw_os_error(*errno);
                write!(out, "{error}{}", meaning(*errno))
            }
            Self::Nvme { code_type, code, do_not_retry } => {
                let what = nvme_status(*code_type, *code).unwrap_or("an error");
                let again = if *do_not_retry { ", and would again" } else { "" };
                write!(
                    out,
                    "the controller answered {what} (SCT {code_type:#x}, SC {code:#04x}){again}"
                )
            }
            Self::Short { moved: 0 } => {
                out.write_str("nothing was moved: it is gone, or ends before that now")
            }
            Self::ErrorLibrary { library, code } => {
                write!(out, "{} error {code} ({})", library.name, (library.describe)(*code))
            }
            Self::Short { moved } => {
                write!(out, "short transfer, {} moved", ByteCount(u64::from(*moved)))
            }
        }
    }
}

/// Returns the meaning of an error number for a pool, where that is not all that its name says.
fn meaning(errno: i32) -> &'static str {
    match errno {
        libc::ENOSPC => ": the file system, or the thin volume, is full; make room there",
        libc::EDQUOT => {
            ": its owner's quota is used up, whatever room there is; raise it, or free some"
        }
        libc::EFBIG => {
            ": a limit of this process, or of the file system, on a file's length (ulimit -f)"
        }
        libc::EBADE => {
            ": another host has taken the namespace over, and keeps this one from writing"
        }
        libc::EIO => ": the device, or the way to it, failed (dmesg says more)",
        _ => "",
    }
}

/// The common statuses in words (NVMe base specification, figures 101 to 107).
fn nvme_status(code_type: u8, code: u8) -> Option<&'static str> {
    Some(match (code_type, code) {
        (0, 0x01) => "invalid command opcode",
        (0, 0x02) => "invalid field in command",
        (0, 0x04) => "data transfer error",
        (0, 0x05) => "aborted because of a power loss",
        (0, 0x06) => "internal error",
        (0, 0x07) => "aborted on request",
        (0, 0x08) => "aborted because its queue was deleted",
        (0, 0x0b) => "invalid namespace or format",
        (0, 0x20) => "namespace is write protected",
        (0, 0x80) => "LBA out of range",
        (0, 0x81) => "capacity exceeded",
        (0, 0x82) => "namespace not ready",
        (0, 0x83) => "reservation conflict: another host has taken the namespace over",
        (2, 0x80) => "write fault",
        (2, 0x81) => "unrecovered read error",
        (2, 0x82..=0x84) => "end-to-end protection error",
        (2, 0x86) => "access denied",
        (2, 0x87) => "deallocated or unwritten block",
        (3, _) => "a path error",
        _ => return None,
    })
}

/// An operation was not taken; nothing happened.
#[derive(Debug)]
pub struct Refused {
    /// Reason of the refusal.
    pub reason: Refusal,
    /// The operation, with its buffer.
    pub operation: Operation,
}

/// The reason why an operation was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The path has as many operations in flight as it can hold; poll, then retry.
    #[error("the queue is full")]
    Full,
    /// The operation breaks the path's rules.
    #[error("the operation is invalid: {0}")]
    Invalid(&'static str),
    /// An earlier failure latched the device.
    #[error(
        "the device takes no more of this until it is opened again, because of an earlier failure: {0}"
    )]
    Latched(DeviceError),
}
