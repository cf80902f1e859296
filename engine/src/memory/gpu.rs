//! Memory of a GPU as an end of transfers. The engine has no address for it and no CUDA: whoever
//! opens a pool brings what copies, and the reactor only looks whether a copy is done.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;
use std::ptr::NonNull;

use super::dma::DmaPool;
use crate::path::backend::{OpenedWindow, WindowSize};

/// A GPU whose memory transfers may name.
pub trait GpuMemory: fmt::Debug + Send + Sync {
    /// What it is called.
    fn name(&self) -> String;

    /// Where the thread that moves bytes between it and the block devices of these numbers
    /// (`st_rdev`; `None` where a device has none) should run. `None` where nobody knows: then the
    /// devices alone decide.
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

/// From where a GPU is best served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuPlace {
    /// The NUMA node.
    pub node: usize,
    /// What is there, for people.
    pub why: String,
}

/// What copies, and how well.
pub struct OpenedCopies {
    /// The copies.
    pub copies: Box<dyn GpuCopies>,
    /// Why the GPU takes no checksums ([`GpuDirection::Checksum`]), and the host has to.
    pub why_no_checksums: Option<String>,
    /// Why staging memory is not page-locked, and copies therefore bounce in the driver.
    pub why_unlocked: Option<String>,
    /// Kept as long as the copies: what page-locks the staging memory.
    pub lock: Option<Box<dyn Any>>,
}

/// Copies between a GPU and staging memory, each in a slot of its own. Those to the GPU happen one
/// after the other, so do those from it.
///
/// # Safety
/// A copy that [`begin`](GpuCopies::begin) refused touches neither end. One that
/// [`is_done`](GpuCopies::is_done) has told to be done touches them no more. After
/// [`wait`](GpuCopies::wait) none does, also where it failed: then the GPU runs nothing of this
/// process any more.
pub unsafe trait GpuCopies {
    /// Begins a copy in a slot in which none is under way.
    ///
    /// # Safety
    /// Both ends are as long as it says, and stay so until it is done: nobody writes where it reads
    /// from, nor touches where it writes to. An event that it names stays open as long.
    unsafe fn begin(&mut self, slot: u32, copy: &GpuCopy) -> Result<(), GpuError>;

    /// Whether the copy in a slot is done. An error is that of the GPU as a whole; nobody knows of
    /// this copy then.
    fn is_done(&mut self, slot: u32) -> Result<bool, GpuError>;

    /// Has `event` happen when all copies to the GPU that were begun are done.
    fn record(&mut self, event: GpuEvent) -> Result<(), GpuError>;

    /// Waits for all copies.
    fn wait(&mut self);
}

/// One copy.
#[derive(Clone, Copy, Debug)]
pub struct GpuCopy {
    /// Which way.
    pub direction: GpuDirection,
    /// The GPU's end.
    pub gpu: u64,
    /// The staging memory's end.
    pub staging: NonNull<u8>,
    /// How many bytes of the GPU's.
    pub length: usize,
    /// What must have happened on the GPU before.
    pub after: Option<GpuEvent>,
}

/// Which way a copy goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GpuDirection {
    /// From the GPU to staging memory.
    Out,
    /// From staging memory to the GPU.
    In,
    /// From the GPU to staging memory, of which there are four bytes: the CRC32C of the GPU's, in
    /// the processor's order.
    Checksum,
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

/// Where in the GPU's memory, and from when on.
#[derive(Clone, Copy, Debug)]
pub struct GpuRange {
    /// Its first byte.
    pub address: u64,
    /// How many bytes.
    pub length: usize,
    /// What must have happened on the GPU before; `None`: nothing.
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

    /// What it is, for whoever copies it.
    pub fn range(&self) -> GpuRange {
        self.range
    }
}

impl GpuDestination {
    /// `length` bytes at `address` of the memory of the GPU that the pool was opened with, which
    /// nobody uses any more once `after` has happened. With `landed` the transfer ends as soon as
    /// its copies to the GPU are under way, and whoever uses the bytes, or frees them, waits for
    /// that event, which is recorded before the ticket turns ready; without, it ends when they are
    /// done.
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

    /// What it is, for whoever copies there.
    pub fn range(&self) -> GpuRange {
        self.range
    }

    /// What is to happen when the bytes are there.
    pub fn landed(&self) -> Option<GpuEvent> {
        self.landed
    }
}

impl GpuRange {
    /// The copy between as many bytes from `offset` on as `part` of the chunk is long and that
    /// part; of a checksum, to the chunk's beginning.
    pub(crate) fn copy(
        &self,
        direction: GpuDirection,
        offset: usize,
        chunk: &mut [u8],
        part: Range<usize>,
    ) -> GpuCopy {
        let (length, after) = (part.len(), self.after);
        let gpu = self.address_of(offset, length);
        let staging = match direction {
            GpuDirection::Checksum => &mut chunk[..size_of::<u32>()],
            GpuDirection::Out | GpuDirection::In => &mut chunk[part],
        };
        let staging = NonNull::from(staging).cast();
        GpuCopy { direction, gpu, staging, length, after }
    }

    /// What an operation of a data path gets: the bytes from `offset` on, which are those of its
    /// extent that `held` says. Its checksum is that of the extent's first `checked` bytes.
    pub(crate) fn slice(&self, offset: usize, held: Range<u32>, checked: u32) -> GpuSlice {
        let address = self.address_of(offset, held.len());
        GpuSlice {
            address,
            first: held.start,
            length: held.len() as u32,
            checked,
            after: self.after,
        }
    }

    fn address_of(&self, offset: usize, length: usize) -> u64 {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "a piece beyond its memory on the GPU");
        self.address + offset as u64
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

    /// Where the memory begins.
    pub fn address(&self) -> u64 {
        self.address
    }

    /// Which bytes of the operation's extent it holds.
    pub fn held(&self) -> Range<u32> {
        self.first..self.first + self.length
    }

    /// How many bytes of the extent the checksum is of, from its first on.
    pub fn checked(&self) -> u32 {
        self.checked
    }

    /// What must have happened on the GPU before.
    pub fn after(&self) -> Option<GpuEvent> {
        self.after
    }
}
