//! What a GPU does for a window: copies between a chunk and somebody's memory, and checksums of
//! what lies in a chunk.

use crate::memory::GpuEvent;
use crate::memory::peer::PeerMemory;
use crate::path::Status;

/// How large a window is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSize {
    /// Bytes of a chunk: a multiple of 4 KiB.
    pub chunk: u32,
    /// How many chunks.
    pub chunks: u32,
}

impl WindowSize {
    /// As many chunks of `chunk` bytes as fit into `bytes`; at least one.
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
    /// Where it begins for the GPU.
    pub base: u64,
    /// What copies from it and to it.
    pub copies: Box<dyn WindowCopies>,
}

/// What a GPU does for the parts of transfers, each in a slot of its own:
/// [`Window::slots`](super::Window::slots) of them.
///
/// # Safety
/// What [`begin`](WindowCopies::begin) has been asked touches memory until
/// [`is_done`](WindowCopies::is_done) told that it is done, or [`stop`](WindowCopies::stop) that
/// nothing runs any more, and no longer. It is done only when every byte is where devices that are
/// then told to read it find it, and the checksum is that of those bytes.
pub unsafe trait WindowCopies: Send {
    /// Begins what is to be done in a slot in which nothing is under way. Where this fails, parts
    /// of it may be under way.
    ///
    /// # Safety
    /// All memory that it names is allocated, and events are open, until it is done. Once `after`
    /// has happened nobody writes what it reads, nor touches what it writes.
    unsafe fn begin(&mut self, slot: u32, copy: &WindowCopy) -> Result<(), Status>;

    /// Whether that is done. After an error nobody knows.
    fn is_done(&mut self, slot: u32) -> Result<bool, Status>;

    /// The checksum that was taken last in a slot where all is done.
    fn checksum(&self, slot: u32) -> u32;

    /// Waits for everything. Returns whether nothing runs any more: not so where nobody can tell.
    fn stop(&mut self) -> bool;
}

/// What is to be done with a part that lies on the GPU at `place`. To fill it: wait for `after`,
/// copy, fill up with zeroes, take the checksum. To drain it: take the checksum, wait for `after`,
/// copy.
#[derive(Clone, Copy, Debug)]
pub struct WindowCopy {
    /// Which of the two.
    pub direction: WindowDirection,
    /// Where the part lies: in a chunk, or in registered memory of the caller's.
    pub place: u64,
    /// What is copied, if anything is.
    pub copied: Option<Copied>,
    /// How many bytes behind the copied ones become zeroes, when it is filled.
    pub zeroes: u32,
    /// Of how many of the part's bytes, from its first on, the checksum is taken; of none if this
    /// is 0.
    pub checked: u32,
    /// What must have happened on the GPU before the caller's memory is touched.
    pub after: Option<GpuEvent>,
}

/// Which way a part goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowDirection {
    /// Into the chunk, for a device to read.
    Fill,
    /// Out of the chunk, which a device has written.
    Drain,
}

/// Bytes that go between a part and the caller's memory.
#[derive(Clone, Copy, Debug)]
pub struct Copied {
    /// The first of them, counted from the part's beginning.
    pub first: u32,
    /// How many; at least one.
    pub length: u32,
    /// Where they are in the caller's memory on the GPU.
    pub with: u64,
}
