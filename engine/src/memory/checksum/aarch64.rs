//! Folding on aarch64, by the vectors and the polynomial multiplication of NEON.
#![expect(clippy::inline_always, reason = "only within functions that have the features enabled")]

use std::arch::aarch64::{
    __crc32cd, uint64x2_t, vcombine_u64, vcreate_u64, veorq_u64, vgetq_lane_u64, vld1q_u8,
    vmull_high_p64, vmull_p64, vreinterpretq_p64_u64, vreinterpretq_u8_u64, vreinterpretq_u64_p128,
    vreinterpretq_u64_u8, vst1q_u8,
};
use std::arch::is_aarch64_feature_detected;

use super::fold::{Cached, Streamed, Uncopied, Vector, fold};
use super::{ChecksumMethod, Folding};

/// Vectors that are folded at a time.
const ABREAST: usize = 8;

/// Returns the methods that this processor has, the fastest first.
pub(super) fn available() -> impl Iterator<Item = ChecksumMethod> {
    let is_there = is_aarch64_feature_detected!("aes") && is_aarch64_feature_detected!("crc");
    let folding = Folding { stride: ABREAST * Line::BYTES, checksum, copy, stream };
    is_there.then_some(ChecksumMethod { name: "PMULL", folding: Some(folding) }).into_iter()
}

/// # Safety
/// As for [`fold`].
#[target_feature(enable = "neon,aes,crc")]
unsafe fn checksum(sum: u32, from: *const u8, length: usize) -> u32 {
    // SAFETY: passed on to the caller; nothing is copied.
    unsafe { fold::<Line, Uncopied, ABREAST>(sum, from, std::ptr::null_mut(), length) }
}

/// # Safety
/// As for [`fold`].
#[target_feature(enable = "neon,aes,crc")]
unsafe fn copy(sum: u32, from: *const u8, to: *mut u8, length: usize) -> u32 {
    // SAFETY: passed on to the caller.
    unsafe { fold::<Line, Cached, ABREAST>(sum, from, to, length) }
}

/// # Safety
/// As for [`fold`].
#[target_feature(enable = "neon,aes,crc")]
unsafe fn stream(sum: u32, from: *const u8, to: *mut u8, length: usize) -> u32 {
    // SAFETY: passed on to the caller.
    unsafe { fold::<Line, Streamed, ABREAST>(sum, from, to, length) }
}

#[derive(Clone, Copy)]
struct Line(uint64x2_t);

impl Vector for Line {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's, as for the trait, and of the bytes' validity.
        unsafe { Self(vreinterpretq_u64_u8(vld1q_u8(from))) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's, as for the trait, and of the bytes' validity.
        unsafe { vst1q_u8(to, vreinterpretq_u8_u64(self.0)) };
    }

    /// Stores as others are: those past the cache are no stable intrinsic.
    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: passed on to the caller.
        unsafe { self.store(to) };
    }

    #[inline(always)]
    unsafe fn beginning(bits: u32) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe { Self::factors((i64::from(bits), 0)) }
    }

    #[inline(always)]
    unsafe fn factors((low, high): (i64, i64)) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe {
            Self(vcombine_u64(vcreate_u64(low.cast_unsigned()), vcreate_u64(high.cast_unsigned())))
        }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe { Self(veorq_u64(self.0, other.0)) }
    }

    #[inline]
    #[target_feature(enable = "neon,aes")]
    unsafe fn moved_onto(self, by: Self, next: Self) -> Self {
        let low = vmull_p64(vgetq_lane_u64::<0>(self.0), vgetq_lane_u64::<0>(by.0));
        let (sum, by) = (vreinterpretq_p64_u64(self.0), vreinterpretq_p64_u64(by.0));
        let high = vreinterpretq_u64_p128(vmull_high_p64(sum, by));
        Self(veorq_u64(veorq_u64(vreinterpretq_u64_p128(low), high), next.0))
    }

    #[inline]
    #[target_feature(enable = "neon,crc")]
    unsafe fn remainder(self) -> u32 {
        let low = __crc32cd(0, vgetq_lane_u64::<0>(self.0));
        __crc32cd(low, vgetq_lane_u64::<1>(self.0))
    }

    /// Does nothing: the intrinsic is not stable, and these processors prefetch across pages.
    #[inline(always)]
    unsafe fn prefetch(_: *const u8) {}
}
