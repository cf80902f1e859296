//! Copies that leave the cache to others.

use super::checksum::ChecksumMethod;

/// Length from which the copy bypasses the cache. What is shorter is likely to be used at once.
const STREAMED_MIN: usize = 128 << 10;

/// Copies `length` bytes; a long copy does not read the destination's lines into the cache first,
/// nor drive out what is there. That saves a third of the memory traffic, and on a tensor, which no
/// cache holds, costs nothing.
///
/// # Safety
/// As for [`std::ptr::copy_nonoverlapping`]: both ranges are valid, and do not overlap.
pub(super) unsafe fn copy(from: *const u8, to: *mut u8, length: usize) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if length >= STREAMED_MIN {
        // SAFETY: passed on to the caller.
        return unsafe { stream(from, to, length) };
    }
    // SAFETY: passed on to the caller.
    unsafe { std::ptr::copy_nonoverlapping(from, to, length) };
}

/// Copies `bytes` as [`copy`] does, and returns their CRC32C.
///
/// # Safety
/// `to` is valid for as many bytes, which `bytes` does not overlap.
pub(super) unsafe fn copy_with_checksum(bytes: &[u8], to: *mut u8) -> u32 {
    let method = ChecksumMethod::best();
    if bytes.len() < STREAMED_MIN {
        // SAFETY: passed on to the caller.
        return unsafe { method.copy_to(bytes, to) };
    }
    // SAFETY: passed on to the caller.
    unsafe { method.stream_to(bytes, to) }
}

/// The copy past the cache: two pages side by side, line by line, which keeps more of the memory's
/// banks busy than one stream does. Not four: on AMD's Zen 3 their lines drive one another out of
/// the first cache, and the copy takes four to eight times as long.
///
/// # Safety
/// As for [`copy`].
#[cfg(all(target_arch = "x86_64", not(miri)))]
unsafe fn stream(from: *const u8, to: *mut u8, length: usize) {
    use std::arch::x86_64::_mm_sfence;
    const LINE: usize = 64;
    const PAGE: usize = 4096;
    const ABREAST: usize = 2;
    let head = to.align_offset(LINE).min(length);
    let blocks = (length - head) / (ABREAST * PAGE);
    let tail = head + blocks * ABREAST * PAGE;
    // SAFETY: all of it lies within the two ranges of the caller; whole lines of the destination
    // are stored to, whose start `align_offset` found. The fence makes the stores visible before
    // anything that comes after, as ordinary stores would be.
    unsafe {
        std::ptr::copy_nonoverlapping(from, to, head);
        for block in (head..tail).step_by(ABREAST * PAGE) {
            for line in (block..block + PAGE).step_by(LINE) {
                for at in (line..line + ABREAST * PAGE).step_by(PAGE) {
                    stream_line(from.add(at), to.add(at));
                }
            }
        }
        std::ptr::copy_nonoverlapping(from.add(tail), to.add(tail), length - tail);
        _mm_sfence();
    }
}

/// One line of 64 bytes. SSE2 is part of every x86-64.
///
/// # Safety
/// Both lines are valid, and `to` begins on a line.
#[cfg(all(target_arch = "x86_64", not(miri)))]
#[inline]
#[expect(clippy::cast_ptr_alignment, reason = "loads need none, and the destination has it")]
unsafe fn stream_line(from: *const u8, to: *mut u8) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_stream_si128};
    let (from, to) = (from.cast::<__m128i>(), to.cast::<__m128i>());
    // SAFETY: four times 16 bytes of a valid line each; the stores are aligned, as the caller says.
    unsafe {
        let parts = [0, 1, 2, 3].map(|part| _mm_loadu_si128(from.add(part)));
        for (part, bytes) in parts.into_iter().enumerate() {
            _mm_stream_si128(to.add(part), bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_arrives_and_none_beside_whatever_the_alignment() {
        let from: Vec<u8> = (0..STREAMED_MIN + 4096).map(|index| (index * 7 / 3) as u8).collect();
        for length in [0, 1, 63, STREAMED_MIN - 1, STREAMED_MIN, STREAMED_MIN + 1000] {
            for (skip, place) in [(0, 0), (1, 0), (0, 1), (5, 63), (64, 17)] {
                let mut to = vec![0xEE; STREAMED_MIN + 4096];
                // SAFETY: both vectors are longer than what is skipped and copied.
                unsafe { copy(from.as_ptr().add(skip), to.as_mut_ptr().add(place), length) };
                assert_eq!(to[place..place + length], from[skip..skip + length]);
                assert!(to[..place].iter().chain(&to[place + length..]).all(|&byte| byte == 0xEE));
            }
        }
    }
}
