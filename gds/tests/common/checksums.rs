//! The checksum kernel against the host's, and how fast it is: on a GPU, or on the fake.

use std::fmt;
use std::sync::Arc;

use tidelog_gds::checksum::{Checksums, Crc32c, parts_of};
use tidelog_gds::cuda::{DeviceMemory, Gpu, Stream};

use super::cost::{Cost, cost};

/// Size of a transfer in a pool that is formatted without a word on its stripe units.
pub const STRIPE_UNIT: usize = 256 << 10;
/// Places for checksums that are on their way at once.
const PLACES: usize = 64;

/// Compares the checksums of each (first byte, length, unit) with the host's.
pub fn agree(gpu: &Arc<Gpu>, bytes: &[u8], cases: &[(usize, usize, usize)]) {
    let (kernel, checksums) = (Crc32c::new(gpu).unwrap(), Checksums::new(gpu, 1).unwrap());
    let stream = Stream::new(gpu).unwrap();
    let mut data = DeviceMemory::new(gpu, bytes.len()).unwrap();
    data.write(0, bytes).unwrap();
    for &(first, length, unit) in cases {
        let case = format!("{length} bytes from {first} on in units of {unit}");
        let bytes = &bytes[first..first + length];
        let (at, parts) = (data.base().offset(first as u64), parts_of(unit as u32) as usize);
        let words = DeviceMemory::new(gpu, length.div_ceil(unit) * parts * 4).unwrap();
        // SAFETY: both outlive the synchronisation below, and nobody else touches them, nor the
        // place.
        unsafe {
            kernel.launch(&stream, at, length as u64, unit as u32, words.base()).unwrap();
            checksums.take(&stream, at, length as u32, 0).unwrap();
        }
        stream.synchronize().unwrap();
        let mut found = vec![0; words.len()];
        words.read(0, &mut found).unwrap();
        for (number, (unit, found)) in bytes.chunks(unit).zip(found.chunks(4 * parts)).enumerate() {
            let words = found.chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap()));
            let sum = words.fold(0, |sum, word| sum ^ word);
            assert_eq!(sum, crc32c::crc32c(unit), "unit {number} of {case}");
        }
        assert_eq!(checksums.taken(0), crc32c::crc32c(bytes), "the whole of {case}");
    }
}

/// Throughput of checksums.
pub struct Rates {
    /// A large buffer in units of [`STRIPE_UNIT`], by one launch.
    pub at_once: Cost,
    /// Cost in units of 64 KiB, as the tier in host memory has it.
    pub of_tier: Cost,
    /// One unit by each launch, one behind the other in a stream, as transfers come by.
    pub one_by_one: Cost,
    /// Cost where each is waited for before the next is launched.
    pub awaited: Cost,
}

impl Rates {
    /// Measures with `whole` bytes, a multiple of [`STRIPE_UNIT`].
    pub fn measure(gpu: &Arc<Gpu>, whole: usize) -> Self {
        let (kernel, checksums) =
            (Crc32c::new(gpu).unwrap(), Checksums::new(gpu, PLACES as u32).unwrap());
        let stream = Stream::new(gpu).unwrap();
        let data = DeviceMemory::new(gpu, whole).unwrap();
        let words = DeviceMemory::new(gpu, whole >> 16 << 4).unwrap();
        let at_once = |unit: u32| {
            assert!(whole / unit as usize * parts_of(unit) as usize * 4 <= words.len());
            cost(whole, || {
                // SAFETY: both outlive the synchronisation, and nobody else touches them.
                unsafe { kernel.launch(&stream, data.base(), whole as u64, unit, words.base()) }
                    .unwrap();
                stream.synchronize().unwrap();
            })
        };
        let one_by_one = |awaited: bool| {
            cost(whole, || {
                for unit in 0..whole / STRIPE_UNIT {
                    let (at, place) = ((unit * STRIPE_UNIT) as u64, (unit % PLACES) as u32);
                    let at = data.base().offset(at);
                    // SAFETY: the memory outlives the synchronisation; nobody reads the place.
                    unsafe { checksums.take(&stream, at, STRIPE_UNIT as u32, place) }.unwrap();
                    if awaited {
                        stream.synchronize().unwrap();
                    }
                }
                stream.synchronize().unwrap();
            })
        };
        at_once(STRIPE_UNIT as u32); // what the driver does at first
        Self {
            at_once: at_once(STRIPE_UNIT as u32),
            of_tier: at_once(64 << 10),
            one_by_one: one_by_one(false),
            awaited: one_by_one(true),
        }
    }
}

impl fmt::Display for Rates {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "units of 256 KiB {:.2} GB/s by a launch each, {:.1} all at once, {:.1} us for one that is waited for; units of 64 KiB {:.1} GB/s at once",
            self.one_by_one.rate(),
            self.at_once.rate(),
            1e6 * self.awaited.seconds_of(STRIPE_UNIT),
            self.of_tier.rate(),
        )
    }
}
