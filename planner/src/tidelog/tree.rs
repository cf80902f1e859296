//! Sums over ranges of ops and the largest of them: adding to a range and asking for the maximum of
//! one take logarithmic time.

/// One value per op of the line.
pub(super) struct RangeMaximum {
    /// The leaves' side, a power of two.
    width: usize,
    /// Per node the maximum below it, without what is pending above.
    maxima: Vec<i64>,
    /// Per node what was added to all below it.
    added: Vec<i64>,
}

impl RangeMaximum {
    pub(super) fn new(values: &[i64]) -> Self {
        let width = values.len().next_power_of_two();
        let mut maxima = vec![i64::MIN / 4; 2 * width];
        maxima[width..width + values.len()].copy_from_slice(values);
        for node in (1..width).rev() {
            maxima[node] = maxima[2 * node].max(maxima[2 * node + 1]);
        }
        Self { width, maxima, added: vec![0; 2 * width] }
    }

    /// Adds to every value of `from..to`.
    pub(super) fn add(&mut self, from: usize, to: usize, amount: i64) {
        if from >= to {
            return;
        }
        let (first, last) = (from + self.width, to - 1 + self.width);
        let (mut left, mut right) = (first, to + self.width);
        while left < right {
            if left & 1 == 1 {
                self.lift(left, amount);
                left += 1;
            }
            if right & 1 == 1 {
                right -= 1;
                self.lift(right, amount);
            }
            left >>= 1;
            right >>= 1;
        }
        self.settle(first);
        self.settle(last);
    }

    /// The largest value of `from..to`; far below zero if there is none.
    pub(super) fn maximum(&self, from: usize, to: usize) -> i64 {
        if from >= to {
            return i64::MIN / 4;
        }
        let (mut left, mut right) = (from + self.width, to - 1 + self.width);
        let (mut of_left, mut of_right) = (self.maxima[left], self.maxima[right]);
        // Both edges climb; what hangs off them inside the range joins on the way.
        while left >> 1 != right >> 1 {
            if left & 1 == 0 {
                of_left = of_left.max(self.maxima[left + 1]);
            }
            if right & 1 == 1 {
                of_right = of_right.max(self.maxima[right - 1]);
            }
            left >>= 1;
            right >>= 1;
            of_left += self.added[left];
            of_right += self.added[right];
        }
        let mut found = of_left.max(of_right);
        let mut node = left >> 1;
        while node >= 1 {
            found += self.added[node];
            node >>= 1;
        }
        found
    }

    fn lift(&mut self, node: usize, amount: i64) {
        self.maxima[node] += amount;
        if node < self.width {
            self.added[node] += amount;
        }
    }

    fn settle(&mut self, leaf: usize) {
        let mut node = leaf >> 1;
        while node >= 1 {
            self.maxima[node] =
                self.maxima[2 * node].max(self.maxima[2 * node + 1]) + self.added[node];
            node >>= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;

    #[test]
    fn it_answers_as_a_plain_list_would() {
        let mut random = Random(5);
        for case in 0..200 {
            let length = 1 + random.below(40) as usize;
            let mut plain: Vec<i64> =
                (0..length).map(|_| random.below(100).cast_signed() - 50).collect();
            let mut tree = RangeMaximum::new(&plain);
            for _ in 0..60 {
                let from = random.below(length as u64) as usize;
                let to = from + random.below((length - from) as u64 + 1) as usize;
                if random.chance(2) {
                    let amount = random.below(40).cast_signed() - 20;
                    plain[from..to].iter_mut().for_each(|value| *value += amount);
                    tree.add(from, to, amount);
                } else if from < to {
                    let wanted = plain[from..to].iter().copied().max().unwrap();
                    assert_eq!(tree.maximum(from, to), wanted, "case {case}: {from}..{to}");
                }
            }
        }
    }
}
