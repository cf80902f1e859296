//! Memory of a GPU as an end of transfers. The engine has no address for it and no CUDA: whoever
//! opens a pool brings what copies, and the reactor only looks whether a copy is done.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use super::dma::DmaPool;
use super::peer::PeerMemory;
use crate::library::ErrorLibrary;

/// A GPU whose memory transfers may name.
pub trait GpuMemory: fmt::Debug + Send + Sync {
    /// Returns the name of the GPU.
    fn name(&self) -> String;

    /// Returns the place for the thread that moves bytes between it and the block devices of these
    /// numbers (`st_rdev`; `None` where a device has none) should run. `None` where nobody knows:
    /// then the devices alone decide.
    fn near(&self, _devices: &[Option<u64>]) -> Option<GpuPlace> {
        None
    }

    /// Makes what copies between the GPU and `staging`, `slots` at once, on the thread that will
    /// use it.
    fn open(&self, slots: u32, staging: &DmaPool) -> Result<OpenedCopies, GpuError>;

    /// Takes memory of the GPU that other devices read and write themselves, for the thread that
    /// calls this.
    ///
    /// # Errors
    /// Why there is none. Bytes then pass through staging memory.
    fn open_window(&self, _size: WindowSize) -> Result<OpenedWindow, GpuError> {
        Err(GpuError(format!("nothing maps memory of {} for other devices", self.name())))
    }
}

/// Place from which a GPU is best served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPlace {
    /// The NUMA node.
    pub node: usize,
    /// Explanation of the place, for people.
    pub why: String,
}

/// Requested size of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSize {
    /// Bytes of a chunk: a multiple of 4 KiB.
    pub chunk: u32,
    /// Number of chunks.
    pub chunks: u32,
}

impl WindowSize {
    /// Divides `bytes` into as many chunks of `chunk` bytes as fit into `bytes`; at least one.
    pub fn new(bytes: u64, chunk: u32) -> Self {
        let chunks = u32::try_from(bytes / u64::from(chunk)).unwrap_or(u32::MAX).max(1);
        Self { chunk, chunks }
    }

    /// The memory it needs.
    pub fn bytes(self) -> usize {
        self.chunk as usize * self.chunks as usize
    }
}

/// Memory of a GPU that other devices reach, and what copies between it and the rest of the GPU's.
pub struct OpenedWindow {
    /// The memory, as large as was asked for at least.
    pub memory: Box<dyn PeerMemory>,
    /// Address of the window for the GPU.
    pub base: u64,
    /// Engine that copies from the window and to it.
    pub copies: Box<dyn GpuCopies>,
}

/// Copy engine, with its capabilities.
pub struct OpenedCopies {
    /// The copies.
    pub copies: Box<dyn GpuCopies>,
    /// The reason why the GPU takes no checksums ([`GpuCopy::checked`]), and the host has to.
    pub why_no_checksums: Option<String>,
    /// The reason why staging memory is not page-locked, and copies therefore bounce in the driver.
    pub why_unlocked: Option<String>,
    /// Kept as long as the copies: what page-locks the staging memory.
    pub lock: Option<Box<dyn Any>>,
}

/// Copies between memory of a GPU and chunks, each in a slot of its own. Those to chunks happen one
/// after the other, so do those from chunks.
///
/// # Safety
/// What [`begin`](GpuCopies::begin) took touches memory until [`is_done`](GpuCopies::is_done)
/// returned true, or [`stop`](GpuCopies::stop) did, and no longer; what it refused touches none. It
/// is done only when every byte is where devices that are then told to read it find it, and the
/// checksum is that of those bytes.
pub unsafe trait GpuCopies: Send {
    /// Begins a copy in a slot in which none is under way.
    ///
    /// # Safety
    /// All memory that it names is allocated, and its event is open, until it is done. Once the
    /// event has happened nobody writes what it reads, nor touches what it writes.
    unsafe fn begin(&mut self, slot: u32, copy: &GpuCopy) -> Result<(), CopyError>;

    /// Returns whether the copy in a slot is done. An error is that of the GPU as a whole; nobody
    /// knows of this copy then.
    fn is_done(&mut self, slot: u32) -> Result<bool, CopyError>;

    /// Returns whether a caller's event, which is open, has happened. Who cannot tell says that it
    /// has: the copies wait for it themselves.
    fn has_happened(&mut self, _event: GpuEvent) -> Result<bool, CopyError> {
        Ok(true)
    }

    /// The checksum that was taken last in a slot whose copy is done.
    fn checksum(&self, slot: u32) -> u32;

    /// Has `event` happen when all copies from chunks that were begun are done, and `after` has
    /// happened. Both may be the same: `after` is then what it stands for before the call.
    fn record(&mut self, event: GpuEvent, after: Option<GpuEvent>) -> Result<(), CopyError>;

    /// Waits for all copies. Returns whether nothing runs any more: not so where nobody can tell.
    fn stop(&mut self) -> bool;
}

/// One copy: it waits for its event, copies, fills up with zeroes, and takes a checksum.
#[derive(Clone, Copy, Debug)]
pub struct GpuCopy {
    /// Direction of the copy.
    pub direction: GpuDirection,
    /// The memory's bytes that are copied, if any are. Its event is waited for in any case.
    pub memory: GpuRange,
    /// Place in a chunk that is copied from or to.
    pub chunk: ChunkPlace,
    /// Bytes to zero.
    pub zeroes: GpuBytes,
    /// Bytes to checksum.
    pub checked: GpuBytes,
}

/// Direction of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuDirection {
    /// Copy into the chunk.
    Fill,
    /// Copy out of the chunk, with what devices have written to it.
    Drain,
}

/// A place in a chunk.
#[derive(Clone, Copy, Debug)]
pub enum ChunkPlace {
    /// Chunk in staging memory of the host.
    Host(NonNull<u8>),
    /// Chunk in a window of the GPU's memory.
    Gpu(u64),
}

/// Some bytes on a GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GpuBytes {
    /// The first of them.
    pub address: u64,
    /// Number of bytes; may be zero.
    pub length: u32,
}

/// A copy was not taken, or not followed: what the library that drives the GPU returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} could not {what}: error {code} ({})", .library.name, (.library.describe)(*.code))]
pub struct CopyError {
    /// The library.
    pub library: &'static ErrorLibrary,
    /// The operation that failed.
    pub what: &'static str,
    /// The number.
    pub code: i32,
}

impl From<CopyError> for GpuError {
    fn from(error: CopyError) -> Self {
        Self(error.to_string())
    }
}

/// The driver's handle of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuEvent(NonNull<c_void>);

// SAFETY: a handle, which the engine only hands on; who made it keeps the event open, whatever
// thread uses it.
unsafe impl Send for GpuEvent {}
// SAFETY: as above.
unsafe impl Sync for GpuEvent {}

impl GpuEvent {
    /// The event behind a handle; `None` for a null one.
    pub fn from_raw(handle: *mut c_void) -> Option<Self> {
        NonNull::new(handle).map(Self)
    }

    /// The handle.
    pub fn as_raw(self) -> *mut c_void {
        self.0.as_ptr()
    }
}

/// A GPU could not do what was asked of it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct GpuError(pub String);

/// Memory of a GPU that a transfer reads.
#[derive(Debug)]
pub struct GpuSource {
    pub(crate) range: GpuRange,
}

/// Memory of a GPU that a transfer writes.
#[derive(Debug)]
pub struct GpuDestination {
    pub(crate) range: GpuRange,
    pub(crate) landed: Option<GpuEvent>,
}

/// Range of the GPU's memory, with the event after which it may be used.
#[derive(Clone, Copy, Debug)]
pub struct GpuRange {
    /// The first byte.
    pub address: u64,
    /// Number of bytes.
    pub length: usize,
    /// Event that must precede, on the GPU; `None`: nothing.
    pub after: Option<GpuEvent>,
}

impl GpuSource {
    /// `length` bytes at `address` of the memory of the GPU that the pool was opened with, which
    /// are there once `after` has happened; now if there is no event.
    ///
    /// # Safety
    /// Until the transfer's ticket reports `released` the memory stays allocated and the event
    /// open, and nobody writes the bytes after `after`. Where a transfer has no such ticket, that
    /// is until its end is told.
    pub unsafe fn new(address: u64, length: usize, after: Option<GpuEvent>) -> Self {
        Self { range: GpuRange { address, length, after } }
    }

    /// Returns the range to copy from.
    pub fn range(&self) -> GpuRange {
        self.range
    }
}

impl GpuDestination {
    /// `length` bytes at `address` of the memory of the GPU that the pool was opened with, which
    /// nobody uses any more once `after` has happened. With `landed` the transfer ends as soon as
    /// its copies to the GPU are under way, and whoever uses the bytes, or frees them, waits for
    /// that event, which is recorded before the ticket turns ready; without, it ends when they are
    /// done. That event never happens before `after`, also where the transfer fails or is
    /// cancelled.
    ///
    /// # Safety
    /// Until the transfer's ticket reports `released`, and `landed` has happened, the memory stays
    /// allocated and nobody else touches it after `after`. Both events stay open until `released`.
    /// Where a transfer has no such ticket, `released` is when its end is told.
    pub unsafe fn new(
        address: u64,
        length: usize,
        after: Option<GpuEvent>,
        landed: Option<GpuEvent>,
    ) -> Self {
        Self { range: GpuRange { address, length, after }, landed }
    }

    /// Returns the range to copy to.
    pub fn range(&self) -> GpuRange {
        self.range
    }

    /// Returns the event to record when the bytes are there.
    pub fn landed(&self) -> Option<GpuEvent> {
        self.landed
    }
}

impl GpuRange {
    /// The copy between the bytes from `offset` on and a part of a chunk, of which there are as
    /// many.
    pub(crate) fn copy(&self, direction: GpuDirection, offset: usize, part: &mut [u8]) -> GpuCopy {
        let memory = self.part(offset, part.len());
        let chunk = ChunkPlace::Host(NonNull::from(part).cast());
        let none = GpuBytes::default();
        GpuCopy { direction, memory, chunk, zeroes: none, checked: none }
    }

    /// Returns the copy that takes the checksum of the bytes from `offset` on where they are.
    pub(crate) fn check(&self, offset: usize, length: u32) -> GpuCopy {
        let memory = self.part(offset, length as usize);
        let (chunk, checked) =
            (ChunkPlace::Gpu(memory.address), GpuBytes { address: memory.address, length });
        let (direction, memory) = (GpuDirection::Fill, GpuRange { length: 0, ..memory });
        GpuCopy { direction, memory, chunk, zeroes: GpuBytes::default(), checked }
    }

    /// Returns the slice for an operation of a data path: the bytes from `offset` on, which are
    /// those of its extent that `held` says. Its checksum is that of the extent's first `checked`
    /// bytes.
    pub(crate) fn slice(&self, offset: usize, held: Range<u32>, checked: u32) -> GpuSlice {
        let Self { address, after, .. } = self.part(offset, held.len());
        GpuSlice { address, first: held.start, length: held.len() as u32, checked, after }
    }

    /// Some of its bytes.
    fn part(&self, offset: usize, length: usize) -> Self {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "a piece beyond its memory on the GPU");
        Self { address: self.address + offset as u64, length, after: self.after }
    }
}

/// Memory of a GPU that an operation of a data path reads or writes. It has an address, and no
/// bytes to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GpuSlice {
    address: u64,
    first: u32,
    length: u32,
    checked: u32,
    after: Option<GpuEvent>,
}

impl GpuSlice {
    /// The bytes at `address`, once `after` has happened: those of the operation's extent that
    /// `held` says. The operation's checksum is that of the extent's first `checked` bytes. A write
    /// has these in memory, and zeroes follow them.
    ///
    /// # Safety
    /// Until the operation's completion the memory stays allocated and the event open, and after
    /// the event nobody writes the memory, nor reads it where the operation writes it.
    pub unsafe fn new(
        address: u64,
        held: Range<u32>,
        checked: u32,
        after: Option<GpuEvent>,
    ) -> Self {
        Self { address, first: held.start, length: held.len() as u32, checked, after }
    }

    /// Returns the address of the memory.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Returns the range of the operation's extent that the slice holds.
    pub fn held(&self) -> Range<u32> {
        self.first..self.first + self.length
    }

    /// Returns the number of bytes of the extent that the checksum covers, from its first on.
    pub fn checked(&self) -> u32 {
        self.checked
    }

    /// Returns the event that must precede, on the GPU.
    pub fn after(&self) -> Option<GpuEvent> {
        self.after
    }
}
