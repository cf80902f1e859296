//! Peer DMA of a simulated controller: the processor copies through the mapping of the other
//! device's memory.

use crate::memory::Memory;
use crate::memory::peer::{PeerBuffer, PeerRegion};

/// The regions that were registered.
#[derive(Default)]
pub(super) struct SimPeers(Vec<PeerRegion>);

impl SimPeers {
    pub(super) fn register(&mut self, region: &PeerRegion) {
        self.0.push(region.clone());
    }

    /// Returns whether a buffer is of a region that was registered.
    pub(super) fn reach(&self, buffer: &PeerBuffer) -> bool {
        self.0.iter().any(|region| region.holds(buffer))
    }
}

/// Returns the first bytes of the buffer.
pub(super) fn read(buffer: &PeerBuffer, length: usize) -> Vec<u8> {
    assert!(length <= buffer.len(), "a transfer beyond its buffer");
    let mut bytes = vec![0; length];
    // SAFETY: the buffer is as long (asserted above) and mapped, by the contract of `PeerMemory`;
    // it is the operation's alone, so nobody writes it. The vector is new.
    unsafe { std::ptr::copy_nonoverlapping(buffer.address(), bytes.as_mut_ptr(), length) };
    bytes
}

/// Makes the first bytes of another device's memory these.
pub(super) fn write(memory: &mut Memory, bytes: &[u8]) {
    let (_, _, length) = memory.span();
    assert!(bytes.len() <= length, "a transfer beyond its buffer");
    // SAFETY: as in `read`, as the gate admits no GPU's memory; nobody else looks at what is the
    // operation's alone, and a region is no memory of the engine's.
    unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), memory.address(), bytes.len()) };
}
