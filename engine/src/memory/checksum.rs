//! CRC32C of bytes on their way, by themselves or while they are copied.
//!
//! Where the processor has carry-less multiplication of whole vectors (AVX-512 with VPCLMULQDQ),
//! 256 bytes are folded at a time, several times faster than the CRC32 instruction goes; the copy
//! then costs what memory costs. Elsewhere it is the crate `crc32c`, which uses that instruction
//! where there is one.

/// Copying and checksumming alternate in blocks of this size where they cannot be one, so that the
/// checksum finds the bytes in the nearest cache.
const BLOCK: usize = 16 << 10;

/// The CRC32C of `bytes`.
pub fn checksum(bytes: &[u8]) -> u32 {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if bytes.len() >= vector::STRIDE && vector::is_there() {
        let whole = bytes.len() / vector::STRIDE * vector::STRIDE;
        // SAFETY: the processor has what it takes; the range is that of the slice.
        let sum = unsafe { vector::fold::<false>(bytes.as_ptr(), std::ptr::null_mut(), whole) };
        return crc32c::crc32c_append(sum, &bytes[whole..]);
    }
    crc32c::crc32c(bytes)
}

/// Copies `from` to the beginning of `to`, which is at least as long, and returns the CRC32C of
/// what was copied: the source is read once.
pub fn copy_with_checksum(from: &[u8], to: &mut [u8]) -> u32 {
    let to = &mut to[..from.len()];
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    if from.len() >= vector::STRIDE && vector::is_there() {
        let whole = from.len() / vector::STRIDE * vector::STRIDE;
        // SAFETY: the processor has what it takes; both ranges are those of slices, of which one is
        // borrowed mutably, so that they do not overlap.
        let sum = unsafe { vector::fold::<true>(from.as_ptr(), to.as_mut_ptr(), whole) };
        to[whole..].copy_from_slice(&from[whole..]);
        return crc32c::crc32c_append(sum, &to[whole..]);
    }
    let blocks = from.chunks(BLOCK).zip(to.chunks_mut(BLOCK));
    blocks.fold(0, |sum, (from, to)| {
        to.copy_from_slice(from);
        crc32c::crc32c_append(sum, to)
    })
}

/// Folding as polynomials over GF(2): bytes far ahead are multiplied by a power of x modulo the
/// CRC's polynomial, which brings them as far back without changing the remainder. ("Fast CRC
/// Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009.)
#[cfg(all(target_arch = "x86_64", not(miri)))]
mod vector {
    use std::arch::x86_64::{
        __m128i, __m512i, _MM_HINT_T0, _mm_clmulepi64_si128, _mm_crc32_u64, _mm_cvtsi128_si64,
        _mm_extract_epi64, _mm_prefetch, _mm_set_epi64x, _mm_xor_si128, _mm512_broadcast_i32x4,
        _mm512_clmulepi64_epi128, _mm512_extracti32x4_epi32, _mm512_loadu_si512,
        _mm512_storeu_si512, _mm512_ternarylogic_epi64, _mm512_xor_si512, _mm512_zextsi128_si512,
    };

    /// Bytes that are folded at a time: four vectors, so that a multiplication need not wait for
    /// the one before.
    pub(super) const STRIDE: usize = 4 * LINE;
    const LINE: usize = size_of::<__m512i>();
    /// Distance of prefetching ahead of the folding: what a device has written lies beyond this
    /// core's caches, and the processor's own prefetching ends at every page.
    const PREFETCH: usize = 16 << 10;

    /// The polynomial of CRC32C, without its highest term.
    const POLYNOMIAL: u32 = 0x1EDC_6F41;
    /// `a ^ b ^ c`, as the instruction for any function of three bits wants it.
    const XOR_OF_THREE: i32 = 0x96;

    const AHEAD_BY_STRIDE: (i64, i64) = ahead(STRIDE);
    const AHEAD_BY_LINE: (i64, i64) = ahead(LINE);

    /// Returns the factors that move 128 bits `bytes` ahead: for the low half, and for the high
    /// one.
    const fn ahead(bytes: usize) -> (i64, i64) {
        let bits = 8 * bytes as u32;
        (reflected_power(bits + 32), reflected_power(bits - 32))
    }

    /// x to this power modulo the polynomial, with the lowest term first, as CRC32C has its bits.
    const fn reflected_power(exponent: u32) -> i64 {
        let mut power: u32 = 1;
        let mut left = exponent;
        while left > 0 {
            let carry = power >> 31;
            power = (power << 1) ^ (carry * POLYNOMIAL);
            left -= 1;
        }
        (power.reverse_bits() as i64) << 1
    }

    /// Returns whether the processor has everything.
    pub(super) fn is_there() -> bool {
        is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("vpclmulqdq")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("sse4.2")
    }

    /// The CRC32C of `length` bytes at `from`, which are copied to `to` if `COPY`.
    ///
    /// # Safety
    /// [`is_there`] has said so; `length` is a multiple of [`STRIDE`] and not 0; both ranges are
    /// valid (`to` only if `COPY`) and do not overlap.
    #[target_feature(enable = "avx512f,vpclmulqdq,pclmulqdq,sse4.2")]
    pub(super) unsafe fn fold<const COPY: bool>(
        from: *const u8,
        to: *mut u8,
        length: usize,
    ) -> u32 {
        // SAFETY: every line lies within the ranges of the caller.
        let line = |at: usize| unsafe {
            let bytes = _mm512_loadu_si512(from.add(at).cast());
            if COPY {
                _mm512_storeu_si512(to.add(at).cast(), bytes);
            }
            bytes
        };
        let by_stride = multipliers(AHEAD_BY_STRIDE);
        let mut sums = [line(0), line(LINE), line(2 * LINE), line(3 * LINE)];
        // A CRC begins with all bits set.
        let begin = _mm512_zextsi128_si512(_mm_set_epi64x(0, 0xFFFF_FFFF));
        sums[0] = _mm512_xor_si512(sums[0], begin);
        for at in (STRIDE..length).step_by(STRIDE) {
            if at + PREFETCH < length {
                for line in (at + PREFETCH..).step_by(LINE).take(STRIDE / LINE) {
                    _mm_prefetch::<_MM_HINT_T0>(from.wrapping_add(line).cast());
                }
            }
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = moved_onto(*sum, by_stride, line(at + index * LINE));
            }
        }
        let by_line = multipliers(AHEAD_BY_LINE);
        let [first, others @ ..] = sums;
        let sum = others.into_iter().fold(first, |sum, next| moved_onto(sum, by_line, next));
        !remainder(sum)
    }

    /// The CRC of 64 bytes, begun with no bit set.
    #[target_feature(enable = "avx512f,pclmulqdq,sse4.2")]
    fn remainder(line: __m512i) -> u32 {
        let [by_48, by_32, by_16] = const { [ahead(48), ahead(32), ahead(16)] };
        let parts = [
            (_mm512_extracti32x4_epi32::<0>(line), by_48),
            (_mm512_extracti32x4_epi32::<1>(line), by_32),
            (_mm512_extracti32x4_epi32::<2>(line), by_16),
        ];
        let mut last: __m128i = _mm512_extracti32x4_epi32::<3>(line);
        for (part, (low, high)) in parts {
            let by = _mm_set_epi64x(high, low);
            last = _mm_xor_si128(last, _mm_clmulepi64_si128::<0x00>(part, by));
            last = _mm_xor_si128(last, _mm_clmulepi64_si128::<0x11>(part, by));
        }
        let low = _mm_crc32_u64(0, _mm_cvtsi128_si64(last).cast_unsigned());
        _mm_crc32_u64(low, _mm_extract_epi64::<1>(last).cast_unsigned()) as u32
    }

    #[target_feature(enable = "avx512f")]
    fn multipliers((low, high): (i64, i64)) -> __m512i {
        _mm512_broadcast_i32x4(_mm_set_epi64x(high, low))
    }

    /// `sum`, moved ahead, plus `next`.
    #[target_feature(enable = "avx512f,vpclmulqdq")]
    fn moved_onto(sum: __m512i, by: __m512i, next: __m512i) -> __m512i {
        let low = _mm512_clmulepi64_epi128::<0x00>(sum, by);
        let high = _mm512_clmulepi64_epi128::<0x11>(sum, by);
        _mm512_ternarylogic_epi64::<XOR_OF_THREE>(low, high, next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_crc32c_of_any_length_and_alignment_and_the_copy_is_whole() {
        let bytes: Vec<u8> =
            (0..70_000_u32).map(|index| (index.wrapping_mul(index) >> 3) as u8).collect();
        let mut to = vec![0xEE; bytes.len() + 64];
        for skip in [0, 1, 7, 64] {
            for length in [0, 1, 255, 256, 257, 511, 512, 4096, 5000, 16_384, 65_537] {
                let from = &bytes[skip..skip + length];
                let expected = crc32c::crc32c(from);
                assert_eq!(checksum(from), expected, "{length} bytes from {skip}");
                to.fill(0xEE);
                let target = &mut to[skip / 2..];
                assert_eq!(
                    copy_with_checksum(from, target),
                    expected,
                    "{length} bytes from {skip}"
                );
                assert_eq!(&target[..length], from);
                assert!(target[length..].iter().all(|&byte| byte == 0xEE));
            }
        }
        assert_eq!(checksum(b"123456789"), 0xE306_9283, "the value that every CRC32C gives");
    }

    #[test]
    fn every_bit_counts() {
        let mut bytes = vec![0; 1024];
        let sum = checksum(&bytes);
        for bit in (0..8 * bytes.len()).step_by(61) {
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&bytes), sum, "bit {bit}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
