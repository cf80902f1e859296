//! Segment trees over the ops of one iteration: add to a range, ask for its maximum, find the ops
//! that came down far enough. Amounts are in bytes; everything is O(log ops).

use crate::units::Bytes;

/// Value below any sum of sizes that can occur: marks an op that has been taken out.
const GONE: i64 = i64::MIN / 2;

/// Memory more than all storages of a valid trace together; a larger budget is as good as none.
const PLENTY: u64 = 1 << 54;

/// An amount that may be subtracted.
pub(super) fn signed(bytes: Bytes) -> i64 {
    bytes.0.min(PLENTY).cast_signed()
}

/// A row of amounts with range addition and range maximum.
#[derive(Clone, Debug)]
pub(super) struct Ranges {
    leaves: usize,
    /// The maximum under each node, additions pending above it not included.
    maximum: Vec<i64>,
    /// The minimum under each node, over the entries that are not gone; `i64::MAX` without any.
    minimum: Vec<i64>,
    pending: Vec<i64>,
}

impl Ranges {
    pub(super) fn new(values: &[i64]) -> Self {
        let leaves = values.len().next_power_of_two();
        let mut tree = Self {
            leaves,
            maximum: vec![GONE; 2 * leaves],
            minimum: vec![i64::MAX; 2 * leaves],
            pending: vec![0; 2 * leaves],
        };
        tree.maximum[leaves..leaves + values.len()].copy_from_slice(values);
        tree.minimum[leaves..leaves + values.len()].copy_from_slice(values);
        for node in (1..leaves).rev() {
            tree.pull(node);
        }
        tree
    }

    /// Adds `amount` to the entries `from..to`.
    pub(super) fn add(&mut self, from: u32, to: u32, amount: i64) {
        self.add_under(1, 0, self.leaves, (from as usize, to as usize), amount);
    }

    /// The largest entry of `from..to`.
    pub(super) fn maximum(&mut self, from: u32, to: u32) -> i64 {
        self.maximum_under(1, 0, self.leaves, (from as usize, to as usize))
    }

    /// Takes out every entry of zero or less and tells which they were.
    pub(super) fn take_settled(&mut self, mut each: impl FnMut(usize)) {
        while self.minimum[1] <= 0 {
            let mut node = 1;
            while node < self.leaves {
                self.push(node);
                node = if self.minimum[2 * node] <= 0 { 2 * node } else { 2 * node + 1 };
            }
            each(node - self.leaves);
            self.maximum[node] = GONE;
            self.minimum[node] = i64::MAX;
            while node > 1 {
                node /= 2;
                self.pull(node);
            }
        }
    }

    fn add_under(&mut self, node: usize, low: usize, high: usize, to: (usize, usize), amount: i64) {
        if to.1 <= low || high <= to.0 {
            return;
        }
        if to.0 <= low && high <= to.1 {
            self.apply(node, amount);
            return;
        }
        self.push(node);
        let middle = low.midpoint(high);
        self.add_under(2 * node, low, middle, to, amount);
        self.add_under(2 * node + 1, middle, high, to, amount);
        self.pull(node);
    }

    fn maximum_under(&mut self, node: usize, low: usize, high: usize, of: (usize, usize)) -> i64 {
        if of.1 <= low || high <= of.0 {
            return GONE;
        }
        if of.0 <= low && high <= of.1 {
            return self.maximum[node];
        }
        self.push(node);
        let middle = low.midpoint(high);
        let left = self.maximum_under(2 * node, low, middle, of);
        left.max(self.maximum_under(2 * node + 1, middle, high, of))
    }

    fn apply(&mut self, node: usize, amount: i64) {
        if self.minimum[node] != i64::MAX {
            self.maximum[node] += amount;
            self.minimum[node] += amount;
            self.pending[node] += amount;
        }
    }

    fn push(&mut self, node: usize) {
        let amount = std::mem::take(&mut self.pending[node]);
        if amount != 0 {
            self.apply(2 * node, amount);
            self.apply(2 * node + 1, amount);
        }
    }

    fn pull(&mut self, node: usize) {
        self.maximum[node] = self.maximum[2 * node].max(self.maximum[2 * node + 1]);
        self.minimum[node] = self.minimum[2 * node].min(self.minimum[2 * node + 1]);
    }
}

#[cfg(test)]
mod tests {
    use super::Ranges;

    #[test]
    fn ranges_agree_with_a_plain_row() {
        let mut state = 7u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut row: Vec<i64> = (0..37).map(|_| random(100).cast_signed() + 1).collect();
        let mut gone = [false; 37];
        let mut tree = Ranges::new(&row);
        for _ in 0..400 {
            let from = random(37) as u32;
            let to = from + 1 + random(u64::from(37 - from)) as u32;
            let amount = random(41).cast_signed() - 22;
            tree.add(from, to, amount);
            row[from as usize..to as usize].iter_mut().for_each(|value| *value += amount);
            tree.take_settled(|index| {
                assert!(row[index] <= 0 && !gone[index]);
                gone[index] = true;
            });
            let left = (from as usize..to as usize).filter(|index| !gone[*index]);
            match left.map(|index| row[index]).max() {
                Some(maximum) => assert_eq!(tree.maximum(from, to), maximum),
                None => assert!(tree.maximum(from, to) < 0),
            }
            assert!((0..37).all(|index| gone[index] || row[index] > 0));
        }
    }
}
