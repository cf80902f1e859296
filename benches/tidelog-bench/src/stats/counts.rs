//! Counts of a job's operations: how many there were, how long they took, and how deep the queue
//! was.

use std::time::Instant;

use hdrhistogram::Histogram;

use super::moments::Moments;

/// An hour, the longest latency that is told from longer ones, in nanoseconds.
const LATENCY_MAX: u64 = 3_600_000_000_000;
/// Latencies are told apart to three digits.
const DIGITS: u8 = 3;

/// Statistics of one direction.
#[derive(Clone, Debug)]
pub struct DirectionStats {
    /// Operations.
    pub ios: u64,
    /// Bytes.
    pub bytes: u64,
    /// Latencies from the decision to do an operation until it was handed to the data path.
    pub slat: Moments,
    /// Latencies from the submission until the completion was seen.
    pub clat: Moments,
    /// Latencies of submission plus completion.
    pub lat: Moments,
    /// Completion latencies.
    pub clat_histogram: Histogram<u64>,
    /// Total latencies, if anybody wants more of them than their moments: to count them twice takes
    /// time that is measured.
    pub lat_histogram: Option<Histogram<u64>>,
    /// Throughput of each half second, in KiB/s.
    pub bandwidth: Moments,
    /// Operations per second of each half second.
    pub iops: Moments,
}

/// Latency of an operation, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OperationLatency {
    /// Time from the decision to do it until it was handed to the data path.
    pub slat: u64,
    /// Time from the submission until the completion was seen.
    pub clat: u64,
}

impl OperationLatency {
    /// Makes the latency of an operation that was decided on at `begun`, handed over at `issued`,
    /// and seen complete at `now`.
    pub fn between([begun, issued, now]: [Instant; 3]) -> Self {
        Self { slat: nanos(begun, issued), clat: nanos(issued, now) }
    }
}

/// The nanoseconds from one instant to another.
pub fn nanos(from: Instant, to: Instant) -> u64 {
    to.saturating_duration_since(from).as_nanos() as u64
}

impl DirectionStats {
    /// Makes the statistics of a direction in which nothing went yet.
    pub(super) fn new(lat_percentiles: bool) -> Self {
        let histogram = || {
            let made = Histogram::new_with_bounds(1, LATENCY_MAX, DIGITS);
            made.expect("the bounds are valid constants")
        };
        Self {
            ios: 0,
            bytes: 0,
            slat: Moments::default(),
            clat: Moments::default(),
            lat: Moments::default(),
            clat_histogram: histogram(),
            lat_histogram: lat_percentiles.then(histogram),
            bandwidth: Moments::default(),
            iops: Moments::default(),
        }
    }

    /// Adds what another job has counted.
    pub fn merge(&mut self, other: &Self) {
        self.ios += other.ios;
        self.bytes += other.bytes;
        self.slat.merge(&other.slat);
        self.clat.merge(&other.clat);
        self.lat.merge(&other.lat);
        self.clat_histogram += &other.clat_histogram;
        // Of a part of them it would say nothing true of all.
        self.lat_histogram = match (self.lat_histogram.take(), &other.lat_histogram) {
            (Some(ours), Some(theirs)) => Some(ours + theirs),
            _ => None,
        };
        self.bandwidth.merge(&other.bandwidth);
        self.iops.merge(&other.iops);
    }
}

/// Counts of operations in flight, by powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Depths([u64; 7]);

impl Depths {
    /// Counts `number` once, with the weight `times`.
    pub fn count(&mut self, number: usize, times: u64) {
        let place = number.max(1).ilog2().min(6) as usize;
        self.0[place] += times;
    }

    /// Counts operations that went together, as fio does: 1 to 4, 5 to 8, 9 to 16.
    pub fn count_batch(&mut self, number: usize) {
        self.count(number.saturating_sub(1), 1);
    }

    /// Percentages of 1, 2-3, 4-7, 8-15, 16-31, 32-63, and 64 or more.
    #[expect(clippy::cast_precision_loss, reason = "statistics")]
    pub fn percentages(&self) -> [f64; 7] {
        let sum = self.0.iter().sum::<u64>().max(1);
        self.0.map(|count| 100.0 * count as f64 / sum as f64)
    }

    /// Adds what another job has counted.
    pub fn merge(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(ours, theirs)| *ours += theirs);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depths_are_counted_by_powers_of_two() {
        let mut depths = Depths::default();
        for number in [1, 3, 64, 100] {
            depths.count(number, 1);
        }
        let rounded = depths.percentages().map(|percent| format!("{percent:.0}"));
        assert_eq!(rounded, ["25", "25", "0", "0", "0", "0", "50"]);
    }
}
