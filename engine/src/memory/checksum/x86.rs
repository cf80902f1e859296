//! Folding on x86-64, by vectors of three widths.
#![expect(clippy::inline_always, reason = "only within functions that have the features enabled")]

use std::arch::x86_64::{
    __m128i, __m256i, __m512i, _MM_HINT_T0, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi64_si128,
    _mm_cvtsi128_si64, _mm_extract_epi64, _mm_loadu_si128, _mm_prefetch, _mm_set_epi64x,
    _mm_sfence, _mm_storeu_si128, _mm_stream_si128, _mm_xor_si128, _mm256_broadcastsi128_si256,
    _mm256_castsi256_si128, _mm256_clmulepi64_epi128, _mm256_extracti128_si256, _mm256_loadu_si256,
    _mm256_storeu_si256, _mm256_stream_si256, _mm256_xor_si256, _mm256_zextsi128_si256,
    _mm512_broadcast_i32x4, _mm512_castsi512_si256, _mm512_clmulepi64_epi128,
    _mm512_extracti64x4_epi64, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512,
    _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
};

use super::fold::{Cached, Streamed, Uncopied, Vector, ahead, fold};
use super::{ChecksumMethod, Folding};

/// `a ^ b ^ c`, as the instruction for any function of three bits wants it.
const XOR_OF_THREE: i32 = 0x96;

/// Defines functions that fold vectors of one type, with these features of the processor, and the
/// method that calls them.
macro_rules! method {
    ($module:ident, $vector:ty, $abreast:literal, $features:literal) => {
        mod $module {
            use super::*;

            pub(super) const FOLDING: Folding =
                Folding { stride: $abreast * <$vector>::BYTES, checksum, copy, stream };

            /// # Safety
            /// As for [`fold`].
            #[target_feature(enable = $features)]
            unsafe fn checksum(sum: u32, from: *const u8, length: usize) -> u32 {
                // SAFETY: passed on to the caller; nothing is copied.
                unsafe {
                    fold::<$vector, Uncopied, $abreast>(sum, from, std::ptr::null_mut(), length)
                }
            }

            /// # Safety
            /// As for [`fold`].
            #[target_feature(enable = $features)]
            unsafe fn copy(sum: u32, from: *const u8, to: *mut u8, length: usize) -> u32 {
                // SAFETY: passed on to the caller.
                unsafe { fold::<$vector, Cached, $abreast>(sum, from, to, length) }
            }

            /// # Safety
            /// As for [`fold`].
            #[target_feature(enable = $features)]
            unsafe fn stream(sum: u32, from: *const u8, to: *mut u8, length: usize) -> u32 {
                // SAFETY: passed on to the caller.
                let sum = unsafe { fold::<$vector, Streamed, $abreast>(sum, from, to, length) };
                // What was stored past the cache is seen before what comes after, as what is stored
                // otherwise.
                _mm_sfence();
                sum
            }
        }
    };
}

method!(avx512, Line512, 4, "avx512f,avx2,vpclmulqdq,pclmulqdq,sse4.2");
method!(avx2, Line256, 4, "avx2,vpclmulqdq,pclmulqdq,sse4.2");
method!(sse, Line128, 8, "pclmulqdq,sse4.2");

/// Returns the CRC32C of what had `sum` and of `length` bytes: where nothing is copied, vectors of
/// 128 bits are no faster than the CRC32 instruction, and on AMD's processors half as fast.
///
/// The instruction takes three cycles, and one can begin in each: so three parts are summed side by
/// side, and their sums moved ahead by the lengths behind them.
///
/// # Safety
/// The processor has the features; the range is valid, and a multiple of 8 bytes long.
#[target_feature(enable = "pclmulqdq,sse4.2")]
unsafe fn by_instruction(sum: u32, from: *const u8, length: usize) -> u32 {
    /// Bytes of a part: three are nearly a block of 4 KiB.
    const PART: usize = 21 * WORDS * 8;
    const WORDS: usize = 8;
    // SAFETY: every word lies within the range of the caller, who has seen to the features.
    unsafe {
        let word = |at: usize| from.add(at).cast::<u64>().read_unaligned();
        let (mut sum, mut at) = (u64::from(!sum), 0);
        while length - at >= 3 * PART {
            let (mut second, mut third) = (0, 0);
            for words in 0..PART / (WORDS * 8) {
                // The number of turns is a constant: the loop is unrolled.
                for index in 0..WORDS {
                    let at = at + (words * WORDS + index) * 8;
                    sum = _mm_crc32_u64(sum, word(at));
                    second = _mm_crc32_u64(second, word(at + PART));
                    third = _mm_crc32_u64(third, word(at + 2 * PART));
                }
            }
            let moved = |sum: u64, ahead: i64| {
                let (sum, ahead) = (_mm_cvtsi64_si128(sum.cast_signed()), _mm_cvtsi64_si128(ahead));
                _mm_cvtsi128_si64(_mm_clmulepi64_si128::<0>(sum, ahead)).cast_unsigned()
            };
            let first = moved(sum, const { ahead(2 * PART).1 });
            sum = third ^ _mm_crc32_u64(0, first ^ moved(second, const { ahead(PART).1 }));
            at += 3 * PART;
        }
        for at in (at..length).step_by(8) {
            sum = _mm_crc32_u64(sum, word(at));
        }
        !(sum as u32)
    }
}

/// Returns the methods that this processor has, the fastest first.
pub(super) fn available() -> impl Iterator<Item = ChecksumMethod> {
    let narrow = is_x86_feature_detected!("pclmulqdq") && is_x86_feature_detected!("sse4.2");
    let several = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("vpclmulqdq");
    let wide = is_x86_feature_detected!("avx512f");
    [
        (narrow && several && wide, "AVX-512 with VPCLMULQDQ", avx512::FOLDING),
        (narrow && several, "AVX2 with VPCLMULQDQ", avx2::FOLDING),
        (narrow, "PCLMULQDQ", Folding { checksum: by_instruction, ..sse::FOLDING }),
    ]
    .into_iter()
    .filter(|(is_there, ..)| *is_there)
    .map(|(_, name, folding)| ChecksumMethod { name, folding: Some(folding) })
}

#[derive(Clone, Copy)]
struct Line128(__m128i);

#[derive(Clone, Copy)]
struct Line256(__m256i);

#[derive(Clone, Copy)]
struct Line512(__m512i);

impl Vector for Line128 {
    const BYTES: usize = 16;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's, as for the trait, and of the bytes' validity.
        unsafe { Self(_mm_loadu_si128(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's, as for the trait, and of the bytes' validity.
        unsafe { _mm_storeu_si128(to.cast(), self.0) };
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's, as for the trait, and of the bytes' validity and alignment.
        unsafe { _mm_stream_si128(to.cast(), self.0) };
    }

    #[inline(always)]
    unsafe fn beginning(bits: u32) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe { Self(_mm_set_epi64x(0, i64::from(bits))) }
    }

    #[inline(always)]
    unsafe fn factors((low, high): (i64, i64)) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe { Self(_mm_set_epi64x(high, low)) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe { Self(_mm_xor_si128(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn moved_onto(self, by: Self, next: Self) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe {
            let low = _mm_clmulepi64_si128::<0x00>(self.0, by.0);
            let high = _mm_clmulepi64_si128::<0x11>(self.0, by.0);
            Self(_mm_xor_si128(_mm_xor_si128(low, high), next.0))
        }
    }

    #[inline(always)]
    unsafe fn remainder(self) -> u32 {
        // SAFETY: the caller's, as for the trait.
        unsafe {
            let low = _mm_crc32_u64(0, _mm_cvtsi128_si64(self.0).cast_unsigned());
            _mm_crc32_u64(low, _mm_extract_epi64::<1>(self.0).cast_unsigned()) as u32
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: the caller's, as for the trait.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(at.cast()) };
    }
}

impl Vector for Line256 {
    const BYTES: usize = 32;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's, as for the trait, and of the bytes' validity.
        unsafe { Self(_mm256_loadu_si256(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's, as for the trait, and of the bytes' validity.
        unsafe { _mm256_storeu_si256(to.cast(), self.0) };
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's, as for the trait, and of the bytes' validity and alignment.
        unsafe { _mm256_stream_si256(to.cast(), self.0) };
    }

    #[inline(always)]
    unsafe fn beginning(bits: u32) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe { Self(_mm256_zextsi128_si256(Line128::beginning(bits).0)) }
    }

    #[inline(always)]
    unsafe fn factors(factors: (i64, i64)) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe { Self(_mm256_broadcastsi128_si256(Line128::factors(factors).0)) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe { Self(_mm256_xor_si256(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn moved_onto(self, by: Self, next: Self) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe {
            let low = _mm256_clmulepi64_epi128::<0x00>(self.0, by.0);
            let high = _mm256_clmulepi64_epi128::<0x11>(self.0, by.0);
            Self(_mm256_xor_si256(_mm256_xor_si256(low, high), next.0))
        }
    }

    #[inline(always)]
    unsafe fn remainder(self) -> u32 {
        // SAFETY: the caller's, as for the trait.
        unsafe {
            let low = Line128(_mm256_castsi256_si128(self.0));
            let high = Line128(_mm256_extracti128_si256::<1>(self.0));
            low.moved_onto(Line128::factors(const { ahead(Line128::BYTES) }), high).remainder()
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: the caller's, as for the trait.
        unsafe { Line128::prefetch(at) };
    }
}

impl Vector for Line512 {
    const BYTES: usize = 64;

    #[inline(always)]
    unsafe fn load(from: *const u8) -> Self {
        // SAFETY: the caller's, as for the trait, and of the bytes' validity.
        unsafe { Self(_mm512_loadu_si512(from.cast())) }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's, as for the trait, and of the bytes' validity.
        unsafe { _mm512_storeu_si512(to.cast(), self.0) };
    }

    #[inline(always)]
    unsafe fn stream(self, to: *mut u8) {
        // SAFETY: the caller's, as for the trait, and of the bytes' validity and alignment.
        unsafe { _mm512_stream_si512(to.cast(), self.0) };
    }

    #[inline(always)]
    unsafe fn beginning(bits: u32) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe { Self(_mm512_zextsi128_si512(Line128::beginning(bits).0)) }
    }

    #[inline(always)]
    unsafe fn factors(factors: (i64, i64)) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe { Self(_mm512_broadcast_i32x4(Line128::factors(factors).0)) }
    }

    #[inline(always)]
    unsafe fn plus(self, other: Self) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe { Self(_mm512_xor_si512(self.0, other.0)) }
    }

    #[inline(always)]
    unsafe fn moved_onto(self, by: Self, next: Self) -> Self {
        // SAFETY: the caller's, as for the trait.
        unsafe {
            let low = _mm512_clmulepi64_epi128::<0x00>(self.0, by.0);
            let high = _mm512_clmulepi64_epi128::<0x11>(self.0, by.0);
            Self(_mm512_ternarylogic_epi64::<XOR_OF_THREE>(low, high, next.0))
        }
    }

    #[inline(always)]
    unsafe fn remainder(self) -> u32 {
        // SAFETY: the caller's, as for the trait.
        unsafe {
            let low = Line256(_mm512_castsi512_si256(self.0));
            let high = Line256(_mm512_extracti64x4_epi64::<1>(self.0));
            low.moved_onto(Line256::factors(const { ahead(Line256::BYTES) }), high).remainder()
        }
    }

    #[inline(always)]
    unsafe fn prefetch(at: *const u8) {
        // SAFETY: the caller's, as for the trait.
        unsafe { Line128::prefetch(at) };
    }
}
