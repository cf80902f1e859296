//! Memory of another PCI device (a GPU, say) that NVMe controllers read and write themselves: peer
//! DMA.
//!
//! A [`PeerMemory`] maps it and says where it lies; here that is a [`PciBar`]. A [`PeerRegion`]
//! hands it out as [`PeerBuffer`]s, which are owned like any buffer under DMA and, unlike
//! [`DmaBuffer`](super::DmaBuffer)s, have no `Deref`: loads from a device's memory are slow at
//! best, and what lies there is the device's own affair. A data path that can do it is told of the
//! region with [`DataPath::register_peer`](crate::path::DataPath::register_peer).

mod bar;

use std::fmt;
use std::ptr::NonNull;
use std::sync::Arc;

pub use bar::{BarError, PciBar};

use super::runs::FreeRuns;
use crate::units::ByteCount;

/// Memory of another PCI device, mapped into this process so that it has an address here.
///
/// # Safety
/// From `span` on so many bytes, a multiple of 4 KiB, are mapped at one place until the value is
/// dropped, and belong to nobody else in this process. Where there is a bus address the whole span
/// lies behind it without a gap.
pub unsafe trait PeerMemory: fmt::Debug + Send + Sync {
    /// Returns address and size of the mapping.
    fn span(&self) -> (NonNull<u8>, usize);

    /// The address of its first byte as other devices see it where no IOMMU translates; `None` if
    /// nobody knows.
    fn bus_address(&self) -> Option<u64>;

    /// Describes the memory, for people.
    fn describe(&self) -> String;
}

/// A region of device memory, handed out in parts.
///
/// Cloning makes another handle. The mapping goes with the last handle and the last buffer.
#[derive(Clone)]
pub struct PeerRegion(Arc<Inner>);

struct Inner {
    memory: Box<dyn PeerMemory>,
    free: FreeRuns,
}

impl PeerRegion {
    /// Makes a region of all of this memory.
    pub fn new(memory: Box<dyn PeerMemory>) -> Self {
        let free = FreeRuns::new(memory.span().1);
        Self(Arc::new(Inner { memory, free }))
    }

    /// Takes `bytes`, rounded up to 4 KiB, or `None` when no free run is that long.
    pub fn take(&self, bytes: usize) -> Option<PeerBuffer> {
        let (start, length) = self.0.free.take(bytes)?;
        Some(PeerBuffer { region: self.clone(), start, length })
    }

    /// Returns the size of the region.
    pub fn size(&self) -> ByteCount {
        ByteCount(self.0.memory.span().1 as u64)
    }

    /// Returns whether a buffer is a part of it.
    pub(crate) fn holds(&self, buffer: &PeerBuffer) -> bool {
        Arc::ptr_eq(&self.0, &buffer.region.0)
    }

    /// The memory.
    pub fn memory(&self) -> &dyn PeerMemory {
        &*self.0.memory
    }
}

impl fmt::Debug for PeerRegion {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PeerRegion({}, {})", self.size(), self.0.memory.describe())
    }
}

/// A part of a [`PeerRegion`], exclusively owned, given back on drop. It has a place and a length,
/// and no bytes.
pub struct PeerBuffer {
    region: PeerRegion,
    start: usize,
    length: usize,
}

#[expect(clippy::len_without_is_empty, reason = "a buffer is never empty")]
impl PeerBuffer {
    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns the offset in the region.
    pub fn offset(&self) -> usize {
        self.start
    }

    /// Returns the address of the mapping, for the data path. Never to be dereferenced.
    pub fn address(&self) -> *mut u8 {
        self.region.0.memory.span().0.as_ptr().wrapping_add(self.start)
    }
}

impl Drop for PeerBuffer {
    fn drop(&mut self) {
        self.region.0.free.release(self.start, self.length);
    }
}

impl fmt::Debug for PeerBuffer {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "PeerBuffer({} bytes at {} of its region)", self.length, self.start)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Addresses without memory: what a region does needs no device.
    #[derive(Debug)]
    struct Nowhere(usize);

    // SAFETY: nobody dereferences the addresses of peer memory, and no path here takes it.
    unsafe impl PeerMemory for Nowhere {
        fn span(&self) -> (NonNull<u8>, usize) {
            (NonNull::without_provenance((4096).try_into().unwrap()), self.0)
        }

        fn bus_address(&self) -> Option<u64> {
            None
        }

        fn describe(&self) -> String {
            "nowhere".into()
        }
    }

    /// A region of memory that no device has.
    pub(crate) fn region_without_a_device(bytes: usize) -> PeerRegion {
        PeerRegion::new(Box::new(Nowhere(bytes)))
    }

    #[test]
    fn buffers_are_disjoint_and_return_when_they_are_dropped() {
        let region = region_without_a_device(16 << 10);
        let held: Vec<PeerBuffer> = (0..4).map(|_| region.take(100).unwrap()).collect();
        let mut starts: Vec<_> = held.iter().map(|it| (it.offset(), it.len())).collect();
        starts.sort_unstable();
        assert_eq!(starts, [(0, 4096), (4096, 4096), (8192, 4096), (12_288, 4096)]);
        assert!(region.take(1).is_none());
        assert_eq!(held[1].address() as usize, 4096 + 4096);
        drop(held);
        assert_eq!(region.take(16 << 10).unwrap().len(), 16 << 10);
    }
}
