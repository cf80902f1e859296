//! An order in which every number has its turn once, without remembering which had.

/// A pseudo-random order of the numbers below `count`, decided by a seed.
///
/// A Feistel network permutes the next power of four; what falls beyond `count` is permuted again
/// until it does not. So a random map of any size costs no memory and no cache misses.
#[derive(Clone, Debug)]
pub struct Permutation {
    count: u64,
    /// Bits of each half.
    half: u32,
    /// Odd, as they are factors.
    keys: [u64; ROUNDS],
}

const ROUNDS: usize = 4;

impl Permutation {
    /// The order of this seed.
    pub fn new(count: u64, seed: u64) -> Self {
        let bits = 64 - count.saturating_sub(1).leading_zeros();
        let mut random = fastrand::Rng::with_seed(seed);
        let keys = std::array::from_fn(|_| random.u64(..) | 1);
        Self { count, half: bits.div_ceil(2).max(1), keys }
    }

    /// The number whose turn is `turn`, which is below `count`.
    pub fn at(&self, turn: u64) -> u64 {
        debug_assert!(turn < self.count);
        let mut number = turn;
        loop {
            number = self.permute(number);
            if number < self.count {
                return number;
            }
        }
    }

    fn permute(&self, number: u64) -> u64 {
        let mask = (1 << self.half) - 1;
        let (mut left, mut right) = (number >> self.half, number & mask);
        for key in self.keys {
            // The top bits of a product depend on all bits of its factors.
            let scrambled = (right ^ key).wrapping_mul(key) >> (64 - self.half);
            (left, right) = (right, left ^ scrambled);
        }
        (left << self.half) | right
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_its_turn_once() {
        for count in [1, 2, 3, 4, 5, 17, 64, 1000, 4097] {
            let order = Permutation::new(count, count ^ 7);
            let mut seen: Vec<u64> = (0..count).map(|turn| order.at(turn)).collect();
            seen.sort_unstable();
            assert!(seen.into_iter().eq(0..count), "{count}");
        }
    }

    #[test]
    fn the_order_looks_random_and_follows_the_seed() {
        let [one, same, other] = [1, 1, 2].map(|seed| Permutation::new(10_000, seed));
        let order = |it: &Permutation| (0..10_000).map(|turn| it.at(turn)).collect::<Vec<_>>();
        assert_eq!(order(&one), order(&same));
        assert_ne!(order(&one), order(&other));
        let neighbours =
            order(&one).windows(2).filter(|pair| pair[0].abs_diff(pair[1]) < 100).count();
        assert!(neighbours < 400, "{neighbours} of 10000 steps are short; 200 would be by chance");
    }
}
