//! Memory for transfers: memory that devices read and write, and memory that belongs to a caller.
//!
//! [`DmaPool`] is one mapping, on huge pages where the machine has them, out of which
//! [`DmaBuffer`]s are handed. A buffer is owned: it moves into an operation and comes back in its
//! completion, so nobody can free or touch memory that a device may still write. [`Source`] and
//! [`Destination`] are the two ends of a transfer; they are either owned, or *foreign*: a raw
//! pointer into memory that somebody else (a tensor framework) keeps alive; or they are memory of a
//! *GPU*, which has no bytes for the processor to look at.
//!
//! `PeerRegion` is memory of another PCI device, which controllers read and write without the
//! host's memory in between; its buffers have no bytes that a program could see. [`Memory`] is what
//! one operation of a data path names, of whichever kind.
//!
//! This is one of the two rooms of the engine in which `unsafe` is allowed.
#![allow(unsafe_code)]

mod buffer;
mod checksum;
mod copies;
mod dma;
mod ends;
mod gpu;
pub mod peer;
mod policy;
pub mod process;
mod runs;
mod stream;
mod system;
#[cfg(test)]
mod tests;

pub use buffer::{Memory, MemoryKind};
pub use checksum::{ChecksumMethod, checksum, copy_with_checksum};
pub(crate) use copies::{CopyResult, PendingCopies};
pub use dma::{Backing, DmaBuffer, DmaPool, MemoryError};
pub use ends::{Destination, ForeignDestination, ForeignSource, Source};
pub use gpu::{
    ChunkPlace, CopyError, GpuBytes, GpuCopies, GpuCopy, GpuDestination, GpuDirection, GpuError,
    GpuEvent, GpuMemory, GpuPlace, GpuRange, GpuSlice, GpuSource, OpenedCopies, OpenedWindow,
    WindowSize,
};
pub use policy::MemoryPolicy;
pub use system::{GroupLimit, SystemMemory};

/// Every device address, length and buffer is a multiple of this many bytes.
///
/// 4 KiB serves both block sizes in use (512 and 4096 bytes) and is the most that `O_DIRECT` asks
/// for.
pub const ALIGNMENT: usize = 4096;
