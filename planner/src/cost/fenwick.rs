//! Prefix sums that change (a Fenwick tree): sum, add and search in O(log n).

/// Sums over a row of unsigned amounts.
#[derive(Clone, Debug)]
pub(crate) struct Fenwick {
    /// `tree[i]` covers the `i & -i` entries that end at `i` (counted from 1).
    tree: Vec<u64>,
    values: Vec<u64>,
    total: u64,
}

impl Fenwick {
    pub(crate) fn new(values: Vec<u64>) -> Self {
        let mut tree = vec![0; values.len() + 1];
        for (index, value) in values.iter().enumerate() {
            tree[index + 1] += value;
        }
        for index in 1..tree.len() {
            let parent = index + (index & index.wrapping_neg());
            if parent < tree.len() {
                tree[parent] += tree[index];
            }
        }
        Self { tree, total: values.iter().sum(), values }
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    pub(crate) fn get(&self, index: usize) -> u64 {
        self.values[index]
    }

    /// The sum of the entries before `index`.
    pub(crate) fn before(&self, index: usize) -> u64 {
        let mut sum = 0;
        let mut at = index;
        while at > 0 {
            sum += self.tree[at];
            at &= at - 1;
        }
        sum
    }

    /// Takes `amount` (at most what is there) from an entry.
    pub(crate) fn subtract(&mut self, index: usize, amount: u64) {
        self.values[index] -= amount;
        self.total -= amount;
        let mut at = index + 1;
        while at < self.tree.len() {
            self.tree[at] -= amount;
            at += at & at.wrapping_neg();
        }
    }

    /// The entry with `before(entry) <= sum < before(entry + 1)`, and what of the sum is its own;
    /// `sum` must be below the total.
    pub(crate) fn search(&self, sum: u64) -> (usize, u64) {
        debug_assert!(sum < self.total);
        let mut left = sum;
        let mut at = 0;
        let mut step = self.tree.len().next_power_of_two() >> 1;
        while step > 0 {
            let next = at + step;
            if next < self.tree.len() && self.tree[next] <= left {
                at = next;
                left -= self.tree[next];
            }
            step >>= 1;
        }
        (at, left)
    }
}

#[cfg(test)]
mod tests {
    use super::Fenwick;

    #[test]
    fn search_is_the_inverse_of_the_prefix_sum() {
        let mut sums = Fenwick::new(vec![3, 0, 2, 0, 0, 5, 1]);
        sums.subtract(5, 4);
        assert_eq!((sums.total(), sums.len()), (7, 7));
        for sum in 0..sums.total() {
            let (entry, own) = sums.search(sum);
            assert!(sums.before(entry) <= sum && sum < sums.before(entry + 1), "sum {sum}");
            assert_eq!(own, sum - sums.before(entry));
            assert!(sums.get(entry) > 0);
        }
    }
}
