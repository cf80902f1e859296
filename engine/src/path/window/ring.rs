//! The chunks of a window: GPU memory that is registered once and that every transfer passes
//! through.
//!
//! Registering is slow and BAR space is finite, while a copy within the GPU costs little next to an
//! SSD. So the allocator's tensors are never registered: their bytes are copied to a chunk of this
//! ring, or from it.

use crate::memory::WindowSize;
use crate::path::shares::Shares;
use crate::units::DeviceIndex;

/// One chunk, exclusively owned until it is given back. It has a number and no bytes to look at.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chunk(u32);

impl Chunk {
    pub(super) fn number(&self) -> u32 {
        self.0
    }
}

/// Ring of a window's chunks, free and in use.
#[derive(Debug)]
pub(super) struct ChunkRing {
    size: WindowSize,
    free: Vec<u32>,
    shares: Shares,
    /// True if a device may touch a chunk at any time that is nobody's.
    is_any_lost: bool,
}

impl ChunkRing {
    pub(super) fn new(size: WindowSize, devices: usize) -> Self {
        let shares = Shares::new(size.chunks as usize, devices);
        Self { size, free: (0..size.chunks).rev().collect(), shares, is_any_lost: false }
    }

    /// Returns the size of the window.
    pub(super) fn size(&self) -> WindowSize {
        self.size
    }

    /// Takes a chunk for a device, if there is one that it may have.
    pub(super) fn take(&mut self, device: DeviceIndex) -> Option<Chunk> {
        if self.shares.left_for(device) == 0 {
            return None;
        }
        let chunk = self.free.pop()?;
        self.shares.take(device);
        Some(Chunk(chunk))
    }

    /// Gives a device's chunk back that nobody touches any more.
    #[expect(clippy::needless_pass_by_value, reason = "who gives a chunk up has it no more")]
    pub(super) fn release(&mut self, device: DeviceIndex, chunk: Chunk) {
        debug_assert!(!self.free.contains(&chunk.0));
        self.free.push(chunk.0);
        self.shares.release(device);
    }

    /// Gives a chunk up that its device may touch at any time from now on: it is never handed out
    /// again.
    #[expect(clippy::needless_pass_by_value, reason = "who gives a chunk up has it no more")]
    pub(super) fn quarantine(&mut self, device: DeviceIndex, chunk: Chunk) {
        debug_assert!(!self.free.contains(&chunk.0));
        self.shares.lose(device);
        self.is_any_lost = true;
    }

    /// Returns whether a chunk is lost: the window's memory is the devices' for good.
    pub(super) fn is_any_lost(&self) -> bool {
        self.is_any_lost
    }

    /// Returns whether every chunk that could ever be handed out is gone.
    pub(super) fn is_exhausted(&self) -> bool {
        self.shares.total() == 0
    }

    /// Returns the offset of a chunk in the window.
    pub(super) fn offset(&self, chunk: &Chunk) -> u64 {
        u64::from(chunk.0) * u64::from(self.size.chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEVICE: DeviceIndex = DeviceIndex(0);

    #[test]
    fn chunks_are_disjoint_and_come_back() {
        let size = WindowSize::new(40 << 10, 16 << 10);
        assert_eq!(size.bytes(), 32 << 10, "only whole chunks are allocated");
        let mut ring = ChunkRing::new(size, 1);
        let (one, two) = (ring.take(DEVICE).unwrap(), ring.take(DEVICE).unwrap());
        assert!(ring.take(DEVICE).is_none());
        assert_eq!(ring.offset(&one).abs_diff(ring.offset(&two)), 16 << 10);
        ring.release(DEVICE, one);
        assert!(ring.take(DEVICE).is_some() && ring.take(DEVICE).is_none());
    }

    #[test]
    fn a_chunk_in_quarantine_is_never_handed_out_again() {
        let mut ring = ChunkRing::new(WindowSize { chunk: 4 << 10, chunks: 2 }, 1);
        let chunk = ring.take(DEVICE).unwrap();
        ring.quarantine(DEVICE, chunk);
        assert!(ring.is_any_lost() && !ring.is_exhausted());
        let last = ring.take(DEVICE).unwrap();
        assert!(ring.take(DEVICE).is_none());
        ring.quarantine(DEVICE, last);
        assert!(ring.is_exhausted());
    }

    #[test]
    fn a_ring_has_a_chunk_however_small_it_was_asked_to_be() {
        for devices in 1..4 {
            assert!(ChunkRing::new(WindowSize::new(0, 4096), devices).take(DEVICE).is_some());
        }
    }
}
