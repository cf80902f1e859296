//! Least, most, mean and standard deviation of numbers that go by.

/// Moments of the numbers so far, without keeping them: their sum and that of their squares, which
/// are exact. To take a number in is on the way of every operation that is measured, so it divides
/// nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moments {
    /// Number of values.
    pub count: u64,
    /// The smallest.
    pub min: u64,
    /// The largest.
    pub max: u64,
    sum: u128,
    squares: u128,
}

impl Moments {
    /// Takes a number in.
    pub fn add(&mut self, number: u64) {
        self.add_alike(number, 1);
    }

    /// Takes a number in `times` times, at least once.
    pub fn add_alike(&mut self, number: u64, times: u64) {
        self.min = if self.count == 0 { number } else { self.min.min(number) };
        self.max = self.max.max(number);
        self.count += times;
        let (number, times) = (u128::from(number), u128::from(times));
        self.sum += number * times;
        self.squares = self.squares.saturating_add((number * number).saturating_mul(times));
    }

    /// Adds what another one has seen.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.min = if self.count == 0 { other.min } else { self.min.min(other.min) };
        self.max = self.max.max(other.max);
        self.count += other.count;
        self.sum += other.sum;
        self.squares = self.squares.saturating_add(other.squares);
    }

    /// Returns the mean; 0 of none.
    #[expect(clippy::cast_precision_loss, reason = "statistics")]
    pub fn mean(&self) -> f64 {
        self.sum as f64 / self.count.max(1) as f64
    }

    /// The standard deviation, of a sample, as fio computes it.
    #[expect(clippy::cast_precision_loss, reason = "statistics")]
    pub fn deviation(&self) -> f64 {
        if self.count < 2 {
            return 0.0;
        }
        // The difference of two large numbers: in floating point nothing might be left of it. The
        // quotient is at most the sum of the squares.
        let count = u128::from(self.count);
        let (whole, rest) = (self.sum / count, self.sum % count);
        let mean_square = whole.saturating_mul(self.sum);
        let mean_square = mean_square.saturating_add(rest.saturating_mul(self.sum) / count);
        (self.squares.saturating_sub(mean_square) as f64 / (self.count - 1) as f64).sqrt()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(numbers: &[u64]) -> Moments {
        let mut moments = Moments::default();
        for &number in numbers {
            moments.add(number);
        }
        moments
    }

    #[test]
    fn numbers_that_are_alike_count_as_often_as_they_came() {
        let mut moments = of(&[3]);
        moments.add_alike(7, 4);
        assert_eq!(moments, of(&[3, 7, 7, 7, 7]));
    }

    #[test]
    fn merged_moments_are_those_of_all() {
        let numbers = [5, 1, 9, 4, 4, 1000, 0, 7];
        let all = of(&numbers);
        for cut in 0..=numbers.len() {
            let mut merged = of(&numbers[..cut]);
            merged.merge(&of(&numbers[cut..]));
            assert_eq!(merged, all);
        }
        assert_eq!((all.count, all.min, all.max), (8, 0, 1000));
        assert!((all.mean() - 128.75).abs() < 1e-9);
        assert!((all.deviation() - 352.050_2).abs() < 1e-3, "{}", all.deviation());
    }

    #[test]
    fn small_differences_of_large_numbers_are_not_lost() {
        let hour = 3_600_000_000_000_u64;
        let many: Vec<u64> = (0..30_000).map(|number| hour + number % 3).collect();
        let moments = of(&many);
        assert!((moments.mean() - 3_600_000_000_001.0).abs() < 1e-3, "{}", moments.mean());
        assert!(
            (moments.deviation() - (2_f64 / 3.0).sqrt()).abs() < 1e-4,
            "{}",
            moments.deviation()
        );
        assert!(of(&[u64::MAX; 3]).deviation() >= 0.0, "too large for it, but no panic");
    }
}
