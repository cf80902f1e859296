//! Bytes that follow from a seed, so that a mix-up shows.

/// Numbers that look random and come again with the same seed.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    pub(crate) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }
}

/// Memory that a device may write while a test holds it, so never a slice for longer than a look.
pub(crate) struct Memory {
    pub(crate) address: *mut u8,
    pub(crate) size: usize,
}

impl Memory {
    pub(crate) fn new(size: usize, byte: u8) -> Self {
        Self { address: Box::into_raw(vec![byte; size].into_boxed_slice()).cast(), size }
    }

    pub(crate) fn fill(&mut self, seed: u64) {
        // SAFETY: ours, and no transfer is writing or reading it: the framework fills only what is settled.
        let bytes = unsafe { std::slice::from_raw_parts_mut(self.address, self.size) };
        let mut random = Random(seed);
        bytes.chunks_mut(8).for_each(|chunk| {
            chunk.copy_from_slice(&random.next().to_le_bytes()[..chunk.len()]);
        });
    }

    pub(crate) fn check(&self, seed: u64, whose: u32) {
        // SAFETY: ours, and nothing writes it: the framework looks only at what is in memory.
        let bytes = unsafe { std::slice::from_raw_parts(self.address, self.size) };
        let mut random = Random(seed);
        let right =
            bytes.chunks(8).all(|chunk| *chunk == random.next().to_le_bytes()[..chunk.len()]);
        assert!(right, "storage {whose} ({} bytes) came back with other bytes", self.size);
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // What still reads it would see that.
        // SAFETY: made by `new` from a boxed slice of this size, dropped once; no transfer touches it.
        unsafe {
            std::ptr::write_bytes(self.address, 0xDD, self.size);
            drop(Box::from_raw(std::ptr::slice_from_raw_parts_mut(self.address, self.size)));
        }
    }
}
