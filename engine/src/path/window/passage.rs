//! What the GPU does for a part: how its bytes get to its chunk, and from there to where they
//! belong.

use std::ops::Range;

use super::copies::{Copied, WindowCopy, WindowDirection};
use super::parts::{PartMemory, WindowPart};
use super::{DmaDirection, Window};
use crate::memory::GpuSlice;

impl Window {
    /// Where a part's bytes are for the GPU.
    fn address_of(&self, part: &WindowPart) -> u64 {
        match &part.place {
            PartMemory::Chunk(chunk) => self.base + self.ring.offset(chunk),
            PartMemory::Direct { region, offset } => self.regions[*region].start + offset,
        }
    }

    /// What makes a part ready for its device: once its memory is free, what is written is copied
    /// to its chunk.
    pub(super) fn filling(
        &self,
        memory: GpuSlice,
        direction: DmaDirection,
        part: &WindowPart,
    ) -> WindowCopy {
        let mut copy = WindowCopy {
            direction: WindowDirection::Fill,
            place: self.address_of(part),
            copied: None,
            zeroes: 0,
            checked: 0,
            after: memory.after(),
        };
        if direction == DmaDirection::Write {
            // A write's memory holds the first bytes of the extent.
            let held = part.overlap(&memory.held());
            copy.checked = held.len() as u32;
            if let PartMemory::Chunk(_) = part.place {
                copy.copied = some_of(part, memory, &held);
                copy.zeroes = part.length - held.len() as u32;
            }
        }
        copy
    }

    /// What is done with a part that a device has brought: its checksum, and its bytes out of its
    /// chunk.
    pub(super) fn draining(&self, memory: GpuSlice, part: &WindowPart) -> WindowCopy {
        let held = part.overlap(&memory.held());
        let in_chunk = matches!(part.place, PartMemory::Chunk(_));
        let copied = if in_chunk { some_of(part, memory, &held) } else { None };
        WindowCopy {
            direction: WindowDirection::Drain,
            place: self.address_of(part),
            copied,
            zeroes: 0,
            checked: part.overlap(&(0..memory.checked())).len() as u32,
            after: memory.after().filter(|_| copied.is_some()),
        }
    }
}

/// Those bytes of a part that the caller's memory on the GPU holds.
fn some_of(part: &WindowPart, memory: GpuSlice, held: &Range<u32>) -> Option<Copied> {
    if held.is_empty() {
        return None;
    }
    let with = in_memory(memory, held.start);
    Some(Copied { first: held.start - part.start, length: held.len() as u32, with })
}

/// Where the caller's memory on the GPU holds this byte of its request.
pub(super) fn in_memory(memory: GpuSlice, byte: u32) -> u64 {
    memory.address() + u64::from(byte - memory.held().start)
}
