//! `random_generator=lfsr`: a linear feedback shift register, whose next number costs a shift and a
//! bit.

/// An order of the numbers below a count in which each has its turn once: the states of a Galois
/// register of the smallest width that has enough, those beyond the count left out.
#[derive(Clone, Debug)]
pub struct Lfsr {
    count: u64,
    taps: u64,
    first: u64,
    state: u64,
}

/// Taps with which a register of 3 bits and more runs through all of its states but 0: primitive
/// polynomials.
const TAPS: [u64; 46] = [
    0x6,
    0xc,
    0x14,
    0x30,
    0x60,
    0xb8,
    0x110,
    0x240,
    0x500,
    0x829,
    0x100d,
    0x2015,
    0x6000,
    0xd008,
    0x12000,
    0x20400,
    0x40023,
    0x9_0000,
    0x14_0000,
    0x30_0000,
    0x42_0000,
    0xe1_0000,
    0x120_0000,
    0x200_0023,
    0x400_0013,
    0x900_0000,
    0x1400_0000,
    0x2000_0029,
    0x4800_0000,
    0x8020_0003,
    0x1_0008_0000,
    0x2_0400_0003,
    0x5_0000_0000,
    0x8_0100_0000,
    0x10_0000_001f,
    0x20_0000_0031,
    0x44_0000_0000,
    0xa0_0014_0000,
    0x120_0000_0000,
    0x300_000c_0000,
    0x630_0000_0000,
    0xc00_0003_0000,
    0x1b00_0000_0000,
    0x3000_0300_0000,
    0x4200_0000_0000,
    0xc000_0018_0000,
];

impl Lfsr {
    /// The order of this seed; of at most 2^48 - 1 numbers, far more blocks than a device has.
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = (u64::BITS - count.leading_zeros()).clamp(3, 48);
        let states = (1 << bits) - 1;
        let mut lfsr =
            Self { count, taps: TAPS[bits as usize - 3], first: 1 + seed % states, state: 0 };
        lfsr.rewind();
        lfsr
    }

    /// Begins the same order again.
    pub fn rewind(&mut self) {
        self.state = self.first;
    }

    /// The next number.
    pub fn advance(&mut self) -> u64 {
        loop {
            let number = self.state - 1;
            let carry = self.state & 1;
            self.state = (self.state >> 1) ^ (self.taps & carry.wrapping_neg());
            if number < self.count {
                return number;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_turn_once_at_every_width() {
        for count in [1, 2, 6, 7, 8, 100, 4095, 4096, 5000, 1 << 16, (1 << 20) + 1] {
            let mut lfsr = Lfsr::new(count, count ^ 5);
            let order: Vec<u64> = (0..count).map(|_| lfsr.advance()).collect();
            let mut sorted = order.clone();
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..count), "{count}");
            lfsr.rewind();
            assert!((0..count).map(|_| lfsr.advance()).eq(order), "{count}");
        }
    }

    #[test]
    fn every_register_runs_through_all_of_its_states() {
        // x^n, multiplied so often by itself as there are states, comes back to itself, and no
        // sooner.
        for (taps, bits) in TAPS.into_iter().zip(3_u32..) {
            assert_eq!(64 - taps.leading_zeros(), bits, "the widest tap is the width");
            let polynomial = (taps << 1) | 1;
            let times = |mut a: u64, mut b: u64| {
                let mut product = 0;
                while b > 0 {
                    product ^= if b & 1 == 1 { a } else { 0 };
                    (a, b) = (a << 1, b >> 1);
                    a ^= if a >> bits == 1 { polynomial } else { 0 };
                }
                product
            };
            let power = |mut exponent: u64| {
                let (mut result, mut base) = (1, 2);
                while exponent > 0 {
                    result = if exponent & 1 == 1 { times(result, base) } else { result };
                    (base, exponent) = (times(base, base), exponent >> 1);
                }
                result
            };
            let states: u64 = (1 << bits) - 1;
            assert_eq!(power(states), 1, "{bits} bits");
            let (mut rest, mut factor) = (states, 2);
            while factor * factor <= rest {
                if rest.is_multiple_of(factor) {
                    assert_ne!(power(states / factor), 1, "{bits} bits");
                    rest /= factor;
                } else {
                    factor += 1;
                }
            }
            assert!(rest == states || power(states / rest) != 1, "{bits} bits");
        }
    }
}
