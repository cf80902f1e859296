//! The staging ring: GPU memory that is registered once and that every transfer passes through.
//!
//! Registering is slow and BAR space is finite, while a copy within the GPU costs little next to an SSD. So the
//! allocator's tensors are never registered: their bytes are copied to a chunk of this ring, or from it.

use crate::cuda::DevicePointer;

/// The longest piece of one transfer. cuFile splits what is longer anyway.
pub const CHUNK_MAX: u32 = 16 << 20;

/// One chunk, exclusively owned until it is given back. It has an address on the GPU and no bytes to look at.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    index: u32,
}

/// Which chunks of a region are in use.
#[derive(Debug)]
pub struct Ring {
    chunk: u32,
    count: u32,
    free: Vec<u32>,
    quarantined: u32,
}

impl Ring {
    /// As many chunks of `chunk` bytes as fit into `bytes`; at least one.
    pub fn new(bytes: u64, chunk: u32) -> Self {
        let count = u32::try_from(bytes / u64::from(chunk)).unwrap_or(u32::MAX).max(1);
        Self { chunk, count, free: (0..count).rev().collect(), quarantined: 0 }
    }

    /// The memory it needs.
    pub fn bytes(&self) -> usize {
        self.chunk as usize * self.count as usize
    }

    /// Bytes in a chunk.
    pub fn chunk(&self) -> u32 {
        self.chunk
    }

    /// Takes a chunk, if there is one.
    pub fn take(&mut self) -> Option<Chunk> {
        self.free.pop().map(|index| Chunk { index })
    }

    /// Gives a chunk back that nobody touches any more.
    #[expect(clippy::needless_pass_by_value, reason = "who gives a chunk up has it no more")]
    pub fn give_back(&mut self, chunk: Chunk) {
        debug_assert!(!self.free.contains(&chunk.index));
        self.free.push(chunk.index);
    }

    /// Gives a chunk up that a device may touch at any time from now on: it is never handed out again.
    #[expect(clippy::needless_pass_by_value, reason = "who gives a chunk up has it no more")]
    pub fn quarantine(&mut self, chunk: Chunk) {
        debug_assert!(!self.free.contains(&chunk.index));
        self.quarantined += 1;
    }

    /// Whether every chunk that could ever be handed out is gone.
    pub fn is_exhausted(&self) -> bool {
        self.quarantined == self.count
    }

    /// Chunks that are in use, and may come back.
    pub fn in_use(&self) -> u32 {
        self.count - self.quarantined - self.free.len() as u32
    }

    /// How far into the region a chunk begins.
    pub fn offset(&self, chunk: &Chunk) -> u64 {
        u64::from(chunk.index) * u64::from(self.chunk)
    }

    /// Where a chunk begins, in a region that begins at `base`.
    pub fn pointer(&self, base: DevicePointer, chunk: &Chunk) -> DevicePointer {
        base.offset(self.offset(chunk))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_are_disjoint_and_come_back() {
        let mut ring = Ring::new(40 << 10, 16 << 10);
        assert_eq!(ring.bytes(), 32 << 10, "only whole chunks are allocated");
        let (one, two) = (ring.take().unwrap(), ring.take().unwrap());
        assert!(ring.take().is_none());
        assert_eq!(ring.offset(&one).abs_diff(ring.offset(&two)), 16 << 10);
        ring.give_back(one);
        assert_eq!((ring.in_use(), ring.take().is_some()), (1, true));
    }

    #[test]
    fn a_chunk_in_quarantine_is_never_handed_out_again() {
        let mut ring = Ring::new(8 << 10, 4 << 10);
        let chunk = ring.take().unwrap();
        ring.quarantine(chunk);
        assert!(!ring.is_exhausted());
        let last = ring.take().unwrap();
        assert!(ring.take().is_none());
        ring.quarantine(last);
        assert!(ring.is_exhausted());
        assert_eq!(ring.in_use(), 0);
    }

    #[test]
    fn a_ring_has_a_chunk_however_small_it_was_asked_to_be() {
        assert!(Ring::new(0, 4096).take().is_some());
    }
}
