//! The two ends of a transfer: where its bytes come from and where they go.

use std::alloc::{Layout, alloc_zeroed};
use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

use super::dma::DmaBuffer;
use super::gpu::{GpuDestination, GpuEvent, GpuRange, GpuSource};
use super::stream;

/// Memory of somebody else that a transfer reads.
pub struct ForeignSource {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the constructor's contract makes the bytes readable from any thread until release.
unsafe impl Send for ForeignSource {}
// SAFETY: shared access only reads.
unsafe impl Sync for ForeignSource {}

impl ForeignSource {
    /// `length` readable bytes at `address`. With a length of 0 the address may be null.
    ///
    /// # Safety
    /// Until the transfer's ticket reports `released` (also after the ticket was dropped, so a
    /// caller that drops it must learn of the end from a completion queue), the bytes stay
    /// allocated and nobody writes them.
    pub unsafe fn new(address: *const u8, length: usize) -> Self {
        Self { address: non_null(address.cast_mut(), length), length }
    }
}

/// Memory of somebody else that a transfer writes.
pub struct ForeignDestination {
    address: NonNull<u8>,
    length: usize,
}

// SAFETY: the constructor's contract makes the bytes writable from any thread until release.
unsafe impl Send for ForeignDestination {}

impl ForeignDestination {
    /// `length` writable bytes at `address`. With a length of 0 the address may be null.
    ///
    /// # Safety
    /// Until the transfer's ticket reports `released` (also after the ticket was dropped), the
    /// bytes stay allocated and nobody else reads or writes them.
    pub unsafe fn new(address: *mut u8, length: usize) -> Self {
        Self { address: non_null(address, length), length }
    }
}

/// Frameworks give empty tensors a null address; slices may not have one.
fn non_null(address: *mut u8, length: usize) -> NonNull<u8> {
    assert!(length == 0 || !address.is_null(), "{length} bytes of foreign memory at null");
    NonNull::new(address).unwrap_or(NonNull::dangling())
}

/// Origin of the bytes of a write.
pub enum Source {
    /// Memory that the caller keeps alive and unchanged until release.
    Foreign(ForeignSource),
    /// Bytes that the transfer owns.
    Owned(Vec<u8>),
    /// Bytes that the transfer shares.
    Shared(Arc<[u8]>),
    /// Memory that devices read themselves: no byte is copied where its pieces are whole blocks.
    Dma {
        /// The memory; the ticket gives it back (`take_buffer`). What lies behind `length` in the
        /// last block is filled with zeroes.
        buffer: DmaBuffer,
        /// Number of bytes that are written, from the start.
        length: usize,
    },
    /// Memory of the GPU that the pool was opened with.
    Gpu(GpuSource),
}

impl Source {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Foreign(foreign) => foreign.length,
            Self::Owned(bytes) => bytes.len(),
            Self::Shared(bytes) => bytes.len(),
            Self::Dma { buffer, length } => buffer.len().min(*length),
            Self::Gpu(gpu) => gpu.range.length,
        }
    }

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether devices may read it themselves.
    pub(crate) fn is_dma(&mut self) -> bool {
        matches!(self, Self::Dma { .. })
    }

    /// The memory of a GPU, if it is that.
    pub(crate) fn on_gpu(&self) -> Option<GpuRange> {
        match self {
            Self::Gpu(gpu) => Some(gpu.range),
            _ => None,
        }
    }

    /// The DMA buffer, if it is one.
    pub(crate) fn into_dma(self) -> Option<DmaBuffer> {
        match self {
            Self::Dma { buffer, .. } => Some(buffer),
            Self::Foreign(_) | Self::Owned(_) | Self::Shared(_) | Self::Gpu(_) => None,
        }
    }

    /// The bytes; only the reactor reads them, and only before it reports release. Those on a GPU
    /// it has copied.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            // SAFETY: valid and unwritten until release by the contract of `ForeignSource::new`,
            // and the reactor drops every such slice before it reports release.
            Self::Foreign(foreign) => unsafe {
                std::slice::from_raw_parts(foreign.address.as_ptr(), foreign.length)
            },
            Self::Owned(bytes) => bytes,
            Self::Shared(bytes) => bytes,
            Self::Dma { buffer, .. } => &buffer[..self.len()],
            Self::Gpu(_) => unreachable!("memory of a GPU has no bytes to look at"),
        }
    }
}

impl From<ForeignSource> for Source {
    fn from(foreign: ForeignSource) -> Self {
        Self::Foreign(foreign)
    }
}

impl From<Vec<u8>> for Source {
    fn from(bytes: Vec<u8>) -> Self {
        Self::Owned(bytes)
    }
}

impl From<Arc<[u8]>> for Source {
    fn from(bytes: Arc<[u8]>) -> Self {
        Self::Shared(bytes)
    }
}

impl fmt::Debug for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Source({} bytes)", self.len())
    }
}

/// Destination of the bytes of a read.
pub enum Destination {
    /// Memory that the caller keeps alive and untouched until release.
    Foreign(ForeignDestination),
    /// Bytes that the transfer owns; the ticket gives them out once it is done.
    Owned(Vec<u8>),
    /// Memory that the transfer will own, of this size: it is allocated once it is clear that it is
    /// needed.
    New(usize),
    /// Memory that devices write themselves: no byte is copied where its pieces are whole blocks.
    Dma {
        /// The memory; the ticket gives it back (`take_buffer`). What lies behind `length` in the
        /// last block may change.
        buffer: DmaBuffer,
        /// Number of bytes that are read, from the start.
        length: usize,
    },
    /// Memory of the GPU that the pool was opened with.
    Gpu(GpuDestination),
}

impl Destination {
    /// `length` bytes that the transfer owns; take them from the ticket (`take_bytes`). They are
    /// allocated when it is submitted, which is refused where that cannot be.
    pub fn buffer(length: usize) -> Self {
        Self::New(length)
    }

    /// Allocates what is yet to be allocated.
    ///
    /// # Errors
    /// So many bytes cannot be had.
    pub(crate) fn allocated(self) -> Result<Self, usize> {
        match self {
            Self::New(length) => zeroed(length).map(Self::Owned).ok_or(length),
            there => Ok(there),
        }
    }

    /// Returns the capacity in bytes.
    pub fn len(&self) -> usize {
        match self {
            Self::Foreign(foreign) => foreign.length,
            Self::Owned(bytes) => bytes.len(),
            Self::New(length) => *length,
            Self::Dma { buffer, length } => buffer.len().min(*length),
            Self::Gpu(gpu) => gpu.range.length,
        }
    }

    /// Returns whether there is room for none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns whether devices may write it themselves.
    pub(crate) fn is_dma(&mut self) -> bool {
        matches!(self, Self::Dma { .. })
    }

    /// The memory of a GPU, if it is that.
    pub(crate) fn on_gpu(&self) -> Option<GpuRange> {
        match self {
            Self::Gpu(gpu) => Some(gpu.range),
            _ => None,
        }
    }

    /// Returns the event to record when the last byte is there, if the transfer does not wait for
    /// that.
    pub(crate) fn landed(&self) -> Option<GpuEvent> {
        match self {
            Self::Gpu(gpu) => gpu.landed,
            _ => None,
        }
    }

    /// The DMA buffer, if it is one.
    pub(crate) fn into_dma(self) -> Option<DmaBuffer> {
        match self {
            Self::Dma { buffer, .. } => Some(buffer),
            Self::Foreign(_) | Self::Owned(_) | Self::New(_) | Self::Gpu(_) => None,
        }
    }

    /// Copies `bytes` to `offset`; the caller has checked that they fit.
    pub(crate) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let target = self.place(offset, bytes.len());
        // SAFETY: `place` vouches for the range; `bytes` is a buffer of its own in memory that the
        // engine mapped, so that the two never overlap.
        unsafe { stream::copy(bytes.as_ptr(), target, bytes.len()) };
    }

    /// Copies `bytes` to `offset` as [`Self::write`] does, and returns their CRC32C, for which they
    /// are not read again.
    pub(crate) fn write_with_checksum(&mut self, offset: usize, bytes: &[u8]) -> u32 {
        let target = self.place(offset, bytes.len());
        // SAFETY: as in `write`.
        unsafe { stream::copy_with_checksum(bytes, target) }
    }

    /// Returns the address of bytes that a piece is copied to, which may be written until the
    /// destination is released.
    fn place(&mut self, offset: usize, length: usize) -> *mut u8 {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.len()), "a piece beyond its destination");
        match self {
            // SAFETY: the range lies within the foreign memory (asserted above), which is valid and
            // ours alone until release by the contract of `ForeignDestination::new`.
            Self::Foreign(foreign) => unsafe { foreign.address.as_ptr().add(offset) },
            Self::Owned(owned) => owned[offset..].as_mut_ptr(),
            Self::Dma { buffer, .. } => buffer[offset..].as_mut_ptr(),
            Self::New(_) => unreachable!("no transfer begins without its memory"),
            Self::Gpu(_) => unreachable!("the GPU's own copies write its memory"),
        }
    }
}

/// Allocates zeroed memory, if there is enough. The kernel makes pages of them as they are touched.
fn zeroed(length: usize) -> Option<Vec<u8>> {
    if length == 0 {
        return Some(Vec::new());
    }
    let layout = Layout::array::<u8>(length).ok()?;
    // SAFETY: the layout is of one byte at least.
    let memory = unsafe { alloc_zeroed(layout) };
    let bytes = std::ptr::slice_from_raw_parts_mut(memory, length);
    // SAFETY: where it is not null it is of the allocator that boxes have, of this layout and
    // initialised.
    (!memory.is_null()).then(|| unsafe { Box::from_raw(bytes) }.into_vec())
}

impl From<ForeignDestination> for Destination {
    fn from(foreign: ForeignDestination) -> Self {
        Self::Foreign(foreign)
    }
}

impl fmt::Debug for Destination {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Destination({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_memory_is_read_and_written_in_place() {
        let origin = [1_u8, 2, 3, 4];
        let mut target = [0_u8; 4];
        // SAFETY: both arrays outlive the ends made of them and are not touched meanwhile.
        let (source, mut destination) = unsafe {
            let source = ForeignSource::new(origin.as_ptr(), origin.len());
            (
                Source::from(source),
                ForeignDestination::new(target.as_mut_ptr(), target.len()).into(),
            )
        };
        Destination::write(&mut destination, 1, &source.bytes()[1..]);
        drop(destination);
        assert_eq!(target, [0, 2, 3, 4]);
    }

    #[test]
    fn an_empty_tensor_may_lie_at_null() {
        // SAFETY: no byte is behind either pointer.
        let (source, destination) = unsafe {
            let source = ForeignSource::new(std::ptr::null(), 0);
            (Source::from(source), ForeignDestination::new(std::ptr::null_mut(), 0))
        };
        assert!(source.bytes().is_empty() && Destination::from(destination).is_empty());
    }

    #[test]
    #[should_panic(expected = "beyond its destination")]
    fn a_write_beyond_the_destination_is_a_bug_and_never_lands() {
        Destination::buffer(4).allocated().unwrap().write(3, &[1, 2]);
    }

    #[test]
    fn memory_that_cannot_be_had_is_an_error() {
        assert_eq!(Destination::buffer(1 << 50).allocated().err(), Some(1 << 50));
        assert_eq!(Destination::buffer(usize::MAX).allocated().err(), Some(usize::MAX));
        let there = Destination::buffer(3).allocated().unwrap();
        assert!(matches!(there, Destination::Owned(bytes) if bytes == [0; 3]));
    }
}
