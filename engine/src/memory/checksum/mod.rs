//! CRC32C of bytes on their way, by themselves or while they are copied.
//!
//! Where the processor has carry-less multiplication, which is every x86-64 since 2010 and nearly
//! every aarch64 of servers, 128 to 256 bytes are folded at a time, several times faster than the
//! CRC32 instruction goes; the copy then costs what memory costs. Elsewhere it is the crate
//! `crc32c`, which uses that instruction where there is one. The crate `crc-fast` is as fast at
//! checksums, but has no copy with them.

use std::sync::LazyLock;

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod aarch64;
#[cfg(all(any(target_arch = "aarch64", target_arch = "x86_64"), not(miri)))]
mod fold;
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod x86;

/// Copying and checksumming alternate in blocks of this size where they cannot be one, so that the
/// checksum finds the bytes in the nearest cache.
const BLOCK: usize = 16 << 10;
/// Alignment of what goes past the cache: that of a cache's line, and of the longest vector.
const LINE: usize = 64;

/// Returns the CRC32C of `bytes`.
pub fn checksum(bytes: &[u8]) -> u32 {
    ChecksumMethod::best().checksum(bytes)
}

/// Copies `from` to the beginning of `to`, which is at least as long, and returns the CRC32C of
/// what was copied: the source is read once.
pub fn copy_with_checksum(from: &[u8], to: &mut [u8]) -> u32 {
    ChecksumMethod::best().copy_with_checksum(from, to)
}

/// Way to compute checksums that this processor has.
#[derive(Clone, Copy, Debug)]
pub struct ChecksumMethod {
    name: &'static str,
    /// Functions for whole strides; the rest is done by the crate `crc32c`, as is all where there
    /// are none.
    folding: Option<Folding>,
}

/// Functions that need features of the processor, which it has wherever a method has them.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    any(miri, not(any(target_arch = "aarch64", target_arch = "x86_64"))),
    expect(dead_code, reason = "nothing folds here")
)]
struct Folding {
    /// Bytes of which every length that is folded is a multiple.
    stride: usize,
    /// Each goes on with the checksum of the bytes before.
    checksum: unsafe fn(u32, *const u8, usize) -> u32,
    copy: unsafe fn(u32, *const u8, *mut u8, usize) -> u32,
    /// The copy goes past the cache, to a multiple of [`LINE`].
    stream: unsafe fn(u32, *const u8, *mut u8, usize) -> u32,
}

impl ChecksumMethod {
    /// Returns the fastest method of this processor.
    pub fn best() -> &'static Self {
        static BEST: LazyLock<ChecksumMethod> = LazyLock::new(|| {
            ChecksumMethod::available().next().unwrap_or_else(ChecksumMethod::by_instruction)
        });
        &BEST
    }

    /// Returns all methods of this processor, the fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        #[cfg(all(target_arch = "aarch64", not(miri)))]
        let folding = aarch64::available();
        #[cfg(all(target_arch = "x86_64", not(miri)))]
        let folding = x86::available();
        #[cfg(any(miri, not(any(target_arch = "aarch64", target_arch = "x86_64"))))]
        let folding = std::iter::empty();
        folding.chain([Self::by_instruction()])
    }

    /// Makes the method of the crate `crc32c`.
    fn by_instruction() -> Self {
        Self { name: "CRC32", folding: None }
    }

    /// Returns the name of the processor's instructions.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the CRC32C of `bytes`.
    pub fn checksum(&self, bytes: &[u8]) -> u32 {
        let (folding, whole) = self.whole_strides(bytes.len());
        let sum = folding.map_or(0, |folding| {
            // SAFETY: the processor has what it takes, as the method is there; the range is that of
            // the slice, in whole strides.
            unsafe { (folding.checksum)(0, bytes.as_ptr(), whole) }
        });
        if whole == bytes.len() { sum } else { crc32c::crc32c_append(sum, &bytes[whole..]) }
    }

    /// Copies `from` to the beginning of `to`, which is at least as long, and returns the CRC32C of
    /// what was copied.
    ///
    /// # Panics
    /// `to` is shorter.
    pub fn copy_with_checksum(&self, from: &[u8], to: &mut [u8]) -> u32 {
        // SAFETY: the slice is as long, and borrowed mutably, so that it does not overlap.
        unsafe { self.copy_to(from, to[..from.len()].as_mut_ptr()) }
    }

    /// Copies as [`Self::copy_with_checksum`] does, and leaves the cache to others: for a copy that
    /// no cache holds.
    ///
    /// # Panics
    /// `to` is shorter.
    pub fn stream_with_checksum(&self, from: &[u8], to: &mut [u8]) -> u32 {
        // SAFETY: as in `copy_with_checksum`.
        unsafe { self.stream_to(from, to[..from.len()].as_mut_ptr()) }
    }

    /// Copies `from` to `to`, and returns the CRC32C of what was copied.
    ///
    /// # Safety
    /// `to` is valid for as many bytes, which `from` does not overlap.
    pub(super) unsafe fn copy_to(&self, from: &[u8], to: *mut u8) -> u32 {
        let (folding, whole) = self.whole_strides(from.len());
        // SAFETY: the processor has what it takes, as the method is there; the ranges are the
        // caller's, whole strides and then the rest.
        unsafe {
            let sum = folding.map_or(0, |folding| (folding.copy)(0, from.as_ptr(), to, whole));
            copy_in_blocks(sum, &from[whole..], to.add(whole))
        }
    }

    /// Copies `from` to `to` past the cache, and returns the CRC32C of what was copied.
    ///
    /// # Safety
    /// As for [`Self::copy_to`].
    pub(super) unsafe fn stream_to(&self, from: &[u8], to: *mut u8) -> u32 {
        let head = to.align_offset(LINE).min(from.len());
        let (head, rest) = from.split_at(head);
        let (folding, whole) = self.whole_strides(rest.len());
        // SAFETY: as in `copy_to`; the whole strides begin on a line, behind what comes before it.
        unsafe {
            let sum = copy_in_blocks(0, head, to);
            let to = to.add(head.len());
            let sum =
                folding.map_or(sum, |folding| (folding.stream)(sum, rest.as_ptr(), to, whole));
            copy_in_blocks(sum, &rest[whole..], to.add(whole))
        }
    }

    /// Returns the functions for the whole strides of `length` bytes, if there are any, and how
    /// many bytes those have.
    fn whole_strides(&self, length: usize) -> (Option<Folding>, usize) {
        let whole = self.folding.map_or(0, |folding| length / folding.stride * folding.stride);
        (self.folding.filter(|_| whole > 0), whole)
    }
}

/// Copies `from` to `to`, and returns the CRC32C of what had `sum` and of what was copied.
///
/// # Safety
/// As for [`ChecksumMethod::copy_to`].
unsafe fn copy_in_blocks(sum: u32, from: &[u8], to: *mut u8) -> u32 {
    from.chunks(BLOCK).enumerate().fold(sum, |sum, (index, from)| {
        // SAFETY: the block lies within the range of the caller, and is written before it is read.
        let copy = unsafe {
            let to = to.add(index * BLOCK);
            std::ptr::copy_nonoverlapping(from.as_ptr(), to, from.len());
            std::slice::from_raw_parts(to, from.len())
        };
        crc32c::crc32c_append(sum, copy)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_gives_the_crc32c_of_any_length_and_alignment_and_copies_all() {
        let bytes: Vec<u8> =
            (0..70_000_u32).map(|index| (index.wrapping_mul(index) >> 3) as u8).collect();
        let mut to = vec![0xEE; bytes.len() + 64];
        for method in ChecksumMethod::available() {
            let by = method.name();
            for skip in [0, 1, 7, 64] {
                for length in [0, 1, 127, 128, 129, 255, 256, 257, 511, 512, 5000, 16_384, 65_537] {
                    let from = &bytes[skip..skip + length];
                    let expected = crc32c::crc32c(from);
                    assert_eq!(method.checksum(from), expected, "{by}: {length} from {skip}");
                    to.fill(0xEE);
                    let target = &mut to[skip / 2..];
                    let copied = method.copy_with_checksum(from, target);
                    assert_eq!(copied, expected, "{by}: {length} from {skip}");
                    assert_eq!(&target[..length], from, "{by}");
                    assert!(target[length..].iter().all(|&byte| byte == 0xEE), "{by}");
                    target.fill(0xEE);
                    let streamed = method.stream_with_checksum(from, target);
                    assert_eq!(streamed, expected, "{by}: {length} from {skip}");
                    assert_eq!(&target[..length], from, "{by}");
                    assert!(target[length..].iter().all(|&byte| byte == 0xEE), "{by}");
                }
            }
            let known = method.checksum(b"123456789");
            assert_eq!(known, 0xE306_9283, "{by}: the value that every CRC32C gives");
        }
    }

    #[test]
    fn every_bit_counts() {
        let mut bytes = vec![0; 1024];
        for method in ChecksumMethod::available() {
            let sum = method.checksum(&bytes);
            for bit in (0..8 * bytes.len()).step_by(61) {
                bytes[bit / 8] ^= 1 << (bit % 8);
                assert_ne!(method.checksum(&bytes), sum, "{}: bit {bit}", method.name());
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
        }
    }
}
