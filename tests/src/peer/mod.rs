//! Memory of another device that controllers read and write themselves: a GPU that is only memory,
//! and tensors that go through the log from it and to it. What lies in that memory is seen from its
//! other side, by whoever serves the device.

mod file;
mod stand_in;
mod tensors;

pub use file::FileMemory;
pub use stand_in::StandIn;
pub use tensors::{GPU_BYTES, fill, through_the_log, verify};

use crate::sim::Random;

/// Size of the chunks in which memory is filled.
pub(crate) const CHUNK: usize = 1 << 20;

/// The bytes of the chunk at `at`, as the seed decides.
pub(crate) fn pattern(seed: u64, at: u64, bytes: &mut [u8]) {
    let mut random = Random::new(Random::new(seed ^ at).draw());
    for word in bytes.chunks_exact_mut(8) {
        word.copy_from_slice(&random.draw().to_le_bytes());
    }
}
