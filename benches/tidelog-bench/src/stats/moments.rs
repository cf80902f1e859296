//! Least, most, mean and standard deviation of numbers that go by.

/// Of the numbers so far, without keeping them (Welford's method).
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Moments {
    /// How many.
    pub count: u64,
    /// The smallest.
    pub min: u64,
    /// The largest.
    pub max: u64,
    /// Their mean.
    pub mean: f64,
    squares: f64,
}

#[expect(clippy::cast_precision_loss, reason = "statistics")]
impl Moments {
    /// Takes a number in.
    pub fn add(&mut self, number: u64) {
        self.min = if self.count == 0 { number } else { self.min.min(number) };
        self.max = self.max.max(number);
        self.count += 1;
        let off = number as f64 - self.mean;
        self.mean += off / self.count as f64;
        self.squares += off * (number as f64 - self.mean);
    }

    /// Takes in what another one has seen.
    pub fn merge(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = *other;
            return;
        }
        let (ours, theirs) = (self.count as f64, other.count as f64);
        let off = other.mean - self.mean;
        self.squares += other.squares + off * off * ours * theirs / (ours + theirs);
        self.mean += off * theirs / (ours + theirs);
        self.min = self.min.min(other.min);
        self.max = self.max.max(other.max);
        self.count += other.count;
    }

    /// The standard deviation, of a sample, as fio computes it.
    pub fn deviation(&self) -> f64 {
        if self.count < 2 { 0.0 } else { (self.squares / (self.count - 1) as f64).sqrt() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn merged_moments_are_those_of_all() {
        let numbers = [5, 1, 9, 4, 4, 1000, 0, 7];
        let of = |numbers: &[u64]| {
            let mut moments = Moments::default();
            for number in numbers {
                moments.add(*number);
            }
            moments
        };
        let all = of(&numbers);
        for cut in 0..=numbers.len() {
            let mut merged = of(&numbers[..cut]);
            merged.merge(&of(&numbers[cut..]));
            assert_eq!((merged.count, merged.min, merged.max), (8, 0, 1000));
            assert!((merged.mean - all.mean).abs() < 1e-9);
            assert!((merged.deviation() - all.deviation()).abs() < 1e-9);
        }
        assert!((all.mean - 128.75).abs() < 1e-9);
        assert!((all.deviation() - 352.050_2).abs() < 1e-3, "{}", all.deviation());
    }
}
