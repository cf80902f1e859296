//! Sums over ranges of ops and the largest of them: adding to a range and asking for the maximum of
//! one take logarithmic time.

/// One value per op of the line.
pub(super) struct RangeMaximum {
    /// The leaves' side, a power of two.
    width: usize,
    nodes: Vec<Node>,
}

/// Two children lie side by side: a climb reads one line of the cache for each level.
#[derive(Clone, Copy)]
struct Node {
    /// The maximum below it, without what is pending above.
    maximum: i64,
    /// Number that was added to all below it.
    added: i64,
}

impl RangeMaximum {
    pub(super) fn new(values: &[i64]) -> Self {
        let width = values.len().next_power_of_two();
        let mut nodes = vec![Node { maximum: i64::MIN / 4, added: 0 }; 2 * width];
        for (node, value) in nodes[width..].iter_mut().zip(values) {
            node.maximum = *value;
        }
        for node in (1..width).rev() {
            nodes[node].maximum = nodes[2 * node].maximum.max(nodes[2 * node + 1].maximum);
        }
        Self { width, nodes }
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
        let (mut first, mut last) = (first >> 1, last >> 1);
        while first != last {
            self.settle(first);
            self.settle(last);
            first >>= 1;
            last >>= 1;
        }
        while first >= 1 {
            self.settle(first);
            first >>= 1;
        }
    }

    /// The largest value of `from..to`; far below zero if there is none.
    pub(super) fn maximum(&self, from: usize, to: usize) -> i64 {
        if from >= to {
            return i64::MIN / 4;
        }
        let (mut left, mut right) = (from + self.width, to - 1 + self.width);
        let (mut of_left, mut of_right) = (self.nodes[left].maximum, self.nodes[right].maximum);
        // Both edges climb; what hangs off them inside the range joins on the way.
        while left >> 1 != right >> 1 {
            if left & 1 == 0 {
                of_left = of_left.max(self.nodes[left + 1].maximum);
            }
            if right & 1 == 1 {
                of_right = of_right.max(self.nodes[right - 1].maximum);
            }
            left >>= 1;
            right >>= 1;
            of_left += self.nodes[left].added;
            of_right += self.nodes[right].added;
        }
        let mut found = of_left.max(of_right);
        let mut node = left >> 1;
        while node >= 1 {
            found += self.nodes[node].added;
            node >>= 1;
        }
        found
    }

    fn lift(&mut self, node: usize, amount: i64) {
        let node = &mut self.nodes[node];
        node.maximum += amount;
        node.added += amount;
    }

    fn settle(&mut self, node: usize) {
        let below = self.nodes[2 * node].maximum.max(self.nodes[2 * node + 1].maximum);
        self.nodes[node].maximum = below + self.nodes[node].added;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelog_random::Random;

    #[test]
    fn it_answers_as_a_plain_list_would() {
        let mut random = Random::new(5);
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
