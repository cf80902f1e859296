//! Folding: the CRC32C of many bytes by carry-less multiplication of whole vectors.
//!
//! Bytes are polynomials over GF(2): those far ahead are multiplied by a power of x modulo the
//! CRC's polynomial, which brings them as far back without changing the remainder. ("Fast CRC
//! Computation for Generic Polynomials Using PCLMULQDQ Instruction", Intel, 2009.)
#![expect(clippy::inline_always, reason = "only within functions that have the features enabled")]

/// The polynomial of CRC32C, without its highest term.
const POLYNOMIAL: u32 = 0x1EDC_6F41;
/// Distance of prefetching ahead of the folding: what a device has written lies beyond this core's
/// caches, and the processor's own prefetching ends at every page.
const PREFETCH: usize = 16 << 10;
/// Bytes that one prefetch brings.
const CACHE_LINE: usize = 64;

/// Vector of the processor, with what folding does to it.
///
/// # Safety
/// All functions need the processor's features that the vector is made for. They are inlined into a
/// function that has them enabled: called alone they would be no instructions, but calls.
pub(super) trait Vector: Copy {
    /// Bytes of a vector: 16, 32 or 64.
    const BYTES: usize;

    /// Reads the bytes at `from`, of any alignment.
    unsafe fn load(from: *const u8) -> Self;

    /// Writes the bytes to `to`, of any alignment.
    unsafe fn store(self, to: *mut u8);

    /// Writes the bytes to `to`, a multiple of their number, past the cache where the processor can
    /// do that: without reading the line first, nor driving another one out.
    unsafe fn stream(self, to: *mut u8);

    /// Makes a vector of these first 32 bits and zeroes.
    unsafe fn beginning(bits: u32) -> Self;

    /// Makes a vector of which every 128 bits are the two factors of [`ahead`].
    unsafe fn factors(factors: (i64, i64)) -> Self;

    /// Adds two polynomials.
    unsafe fn plus(self, other: Self) -> Self;

    /// Moves every 128 bits ahead by these factors, and adds `next`.
    unsafe fn moved_onto(self, by: Self, next: Self) -> Self;

    /// Returns the CRC of the vector's bytes, begun with no bit set.
    unsafe fn remainder(self) -> u32;

    /// Has the cache line at `at`, which need not be valid, brought near.
    unsafe fn prefetch(at: *const u8);
}

/// Destination of bytes besides their checksum.
pub(super) trait Copying {
    /// Processes a vector of which `to` is the place in the copy.
    ///
    /// # Safety
    /// As for [`Vector`]; where anything is written, `to` is valid.
    unsafe fn put<V: Vector>(vector: V, to: *mut u8);
}

/// Absence of a copy.
pub(super) struct Uncopied;

/// The copy is in the cache afterwards.
pub(super) struct Cached;

/// The copy goes past the cache. It begins on a multiple of a vector's bytes.
pub(super) struct Streamed;

impl Copying for Uncopied {
    #[inline(always)]
    unsafe fn put<V: Vector>(_: V, _: *mut u8) {}
}

impl Copying for Cached {
    #[inline(always)]
    unsafe fn put<V: Vector>(vector: V, to: *mut u8) {
        // SAFETY: passed on to the caller.
        unsafe { vector.store(to) };
    }
}

impl Copying for Streamed {
    #[inline(always)]
    unsafe fn put<V: Vector>(vector: V, to: *mut u8) {
        // SAFETY: passed on to the caller.
        unsafe { vector.stream(to) };
    }
}

/// Returns the CRC32C of what had `sum` and of `length` bytes at `from`, which are copied to `to`
/// if `C` copies: `ABREAST` vectors at a time, so that a multiplication need not wait for the one
/// before.
///
/// # Safety
/// The processor has what `V` needs; `length` is a multiple of `ABREAST` vectors and not 0; both
/// ranges are valid (`to` only if `C` copies) and do not overlap.
#[inline(always)]
pub(super) unsafe fn fold<V: Vector, C: Copying, const ABREAST: usize>(
    sum: u32,
    from: *const u8,
    to: *mut u8,
    length: usize,
) -> u32 {
    let stride = ABREAST * V::BYTES;
    // SAFETY: every vector lies within the ranges of the caller, who has seen to the features.
    unsafe {
        let vector = |at: usize| {
            let bytes = V::load(from.add(at));
            C::put(bytes, to.wrapping_add(at));
            bytes
        };
        let by_stride = V::factors(const { ahead(ABREAST * V::BYTES) });
        let mut sums: [V; ABREAST] = std::array::from_fn(|index| vector(index * V::BYTES));
        // A CRC begins with all bits set, and ends with all turned over.
        sums[0] = sums[0].plus(V::beginning(!sum));
        for at in (stride..length).step_by(stride) {
            if at + PREFETCH < length {
                for line in (at + PREFETCH..).step_by(CACHE_LINE).take(stride / CACHE_LINE) {
                    V::prefetch(from.wrapping_add(line));
                }
            }
            for (index, sum) in sums.iter_mut().enumerate() {
                *sum = sum.moved_onto(by_stride, vector(at + index * V::BYTES));
            }
        }
        let by_vector = V::factors(const { ahead(V::BYTES) });
        let mut sum = sums[0];
        for next in &sums[1..] {
            sum = sum.moved_onto(by_vector, *next);
        }
        !sum.remainder()
    }
}

/// Returns the factors that move 128 bits `bytes` ahead: for the low half, and for the high one.
pub(super) const fn ahead(bytes: usize) -> (i64, i64) {
    let bits = 8 * bytes as u32;
    (reflected_power(bits + 32), reflected_power(bits - 32))
}

/// Returns x to this power modulo the polynomial, with the lowest term first, as CRC32C has its
/// bits.
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
