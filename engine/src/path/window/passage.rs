//! GPU's part in a request: how its bytes get to its chunk, and from there to where they belong.

use super::active::{WindowEntry, WindowPlace};
use super::{DmaDirection, Window};
use crate::memory::{ChunkPlace, GpuBytes, GpuCopy, GpuDirection, GpuRange};

impl Window {
    /// Returns the address of a request's bytes for the GPU.
    fn address_of(&self, place: &WindowPlace) -> u64 {
        match place {
            WindowPlace::Chunk(chunk) => self.base + self.ring.offset(chunk),
            WindowPlace::Direct { region, offset } => self.regions[*region].start + offset,
        }
    }

    /// Returns the copy that makes a request ready for its device that writes, or has its place in
    /// the caller's own memory: once that is free, what is written is copied to the chunk.
    pub(super) fn filling(&self, active: &WindowEntry) -> GpuCopy {
        let WindowEntry { request, place, .. } = active;
        let (memory, address) = (request.memory, self.address_of(place));
        let is_write = request.direction == DmaDirection::Write;
        // A write's memory holds the first bytes of the extent.
        let held = if is_write { memory.held().end } else { 0 };
        let (copied, zeroes) = match place {
            WindowPlace::Chunk(_) => (held, request.length - held),
            WindowPlace::Direct { .. } => (0, 0),
        };
        GpuCopy {
            direction: GpuDirection::Fill,
            memory: GpuRange {
                address: memory.address(),
                length: copied as usize,
                after: memory.after(),
            },
            chunk: ChunkPlace::Gpu(address),
            zeroes: GpuBytes { address: address + u64::from(copied), length: zeroes },
            checked: GpuBytes { address, length: held },
        }
    }

    /// Returns the copy that drains a request that a device has brought: its bytes out of its
    /// chunk, and the checksum of what lies there.
    pub(super) fn draining(&self, active: &WindowEntry) -> GpuCopy {
        let WindowEntry { request, place, .. } = active;
        let (memory, address) = (request.memory, self.address_of(place));
        let held = if matches!(place, WindowPlace::Chunk(_)) { memory.held() } else { 0..0 };
        GpuCopy {
            direction: GpuDirection::Drain,
            memory: GpuRange {
                address: memory.address(),
                length: held.len(),
                after: memory.after().filter(|_| !held.is_empty()),
            },
            chunk: ChunkPlace::Gpu(address + u64::from(held.start)),
            zeroes: GpuBytes::default(),
            checked: GpuBytes { address, length: memory.checked() },
        }
    }
}
