//! Bytes that follow from a seed, so that a mix-up shows.

use crate::sim::Random;

/// The bytes of a tensor.
pub(super) fn content(seed: u64, size: usize) -> Vec<u8> {
    let mut random = Random::new(seed);
    let mut bytes = vec![0; size.next_multiple_of(8)];
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&random.draw().to_le_bytes());
    }
    bytes.truncate(size);
    bytes
}

/// Memory that a device may write while a caller holds it, so never a slice for longer than a look.
pub struct Memory {
    /// Address of the memory.
    pub address: *mut u8,
    /// Size in bytes.
    pub size: usize,
}

impl Memory {
    /// Memory of this size, full of `byte`.
    pub fn new(size: usize, byte: u8) -> Self {
        Self { address: Box::into_raw(vec![byte; size].into_boxed_slice()).cast(), size }
    }

    /// Fills the memory with the bytes of `seed`. No transfer may be using it.
    pub fn fill(&mut self, seed: u64) {
        // SAFETY: ours, and no transfer is writing or reading it: callers fill only what is
        // settled.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.address, self.size) };
        bytes.copy_from_slice(&content(seed, self.size));
    }

    /// Returns the contents. No transfer may be writing it.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: ours, and nothing writes it: callers look only at what is settled.
        unsafe { std::slice::from_raw_parts(self.address, self.size) }
    }

    /// Panics unless it has the bytes of `seed`. No transfer may be writing it.
    pub fn check(&self, seed: u64, whose: u32) {
        let right = self.bytes() == content(seed, self.size);
        assert!(right, "storage {whose} ({} bytes) came back with other bytes", self.size);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // What still reads it would see that.
        // SAFETY: made by `new` from a boxed slice of this size, dropped once; no transfer touches
        // it.
        unsafe {
            std::ptr::write_bytes(self.address, 0xDD, self.size);
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.address, self.size)));
        }
    }
}
