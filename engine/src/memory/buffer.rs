//! Memory that an operation of a data path names, of whatever kind.

use super::dma::DmaBuffer;
use super::gpu::GpuSlice;
use super::peer::PeerBuffer;

/// Memory that a device reads or writes for one operation. It moves in with the operation and comes
/// back in its completion.
#[derive(Debug)]
pub enum Memory {
    /// The host's.
    Host(DmaBuffer),
    /// Memory of another PCI device (peer DMA).
    Peer(PeerBuffer),
    /// Memory of the GPU which the data path reaches.
    Gpu(GpuSlice),
}

/// The kinds of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MemoryKind {
    /// The host's.
    Host,
    /// Memory of another PCI device.
    Peer,
    /// Memory of a GPU.
    Gpu,
}

impl Memory {
    /// The kind, without the memory.
    pub fn kind(&self) -> MemoryKind {
        match self {
            Self::Host(_) => MemoryKind::Host,
            Self::Peer(_) => MemoryKind::Peer,
            Self::Gpu(_) => MemoryKind::Gpu,
        }
    }

    /// Returns the address of the first byte, for a data path that takes its kind. Only the host's
    /// may be dereferenced.
    pub fn address(&mut self) -> *mut u8 {
        match self {
            Self::Host(buffer) => buffer.address(),
            Self::Peer(buffer) => buffer.address(),
            Self::Gpu(slice) => std::ptr::without_provenance_mut(slice.address() as usize),
        }
    }

    /// Returns the kind, the address and the size of the memory.
    pub(crate) fn span(&self) -> (MemoryKind, usize, usize) {
        let (start, length) = match self {
            Self::Host(buffer) => (buffer.as_ptr() as usize, buffer.len()),
            Self::Peer(buffer) => (buffer.address() as usize, buffer.len()),
            Self::Gpu(slice) => (slice.address() as usize, slice.held().len()),
        };
        (self.kind(), start, length)
    }

    /// The buffer, if it is the host's memory.
    pub fn into_host(self) -> Option<DmaBuffer> {
        match self {
            Self::Host(buffer) => Some(buffer),
            Self::Peer(_) | Self::Gpu(_) => None,
        }
    }

    /// The buffer, if it is another device's memory.
    pub fn into_peer(self) -> Option<PeerBuffer> {
        match self {
            Self::Peer(buffer) => Some(buffer),
            Self::Host(_) | Self::Gpu(_) => None,
        }
    }
}

impl From<DmaBuffer> for Memory {
    fn from(buffer: DmaBuffer) -> Self {
        Self::Host(buffer)
    }
}

impl From<PeerBuffer> for Memory {
    fn from(buffer: PeerBuffer) -> Self {
        Self::Peer(buffer)
    }
}

impl From<GpuSlice> for Memory {
    fn from(slice: GpuSlice) -> Self {
        Self::Gpu(slice)
    }
}
