//! `rate=` and `rate_iops=`: how soon the next operation may begin.

use std::time::{Duration, Instant};

use crate::direction::DataDirection;
use crate::option::JobOptions;

/// The pace of a job, for each direction on its own, if it is held back. What was late is caught up
/// with, as in fio.
#[derive(Clone, Debug)]
pub(super) struct Throttle([Option<RateLimit>; 3]);

#[derive(Clone, Debug, Default)]
struct RateLimit {
    bytes_per_second: Option<u64>,
    ios_per_second: Option<u64>,
    begun: Option<Instant>,
    bytes: u64,
    ios: u64,
    /// Random delays of operations: the generator, and the delay of the one before.
    chance: Option<(fastrand::Rng, Duration)>,
}

impl Throttle {
    /// The pace that a job asks for.
    pub(super) fn new(job: &JobOptions) -> Self {
        let pace = |index: usize| {
            let (bytes_per_second, ios_per_second) = (job.rate[index], job.rate_iops[index]);
            let is_held_back = bytes_per_second.is_some() || ios_per_second.is_some();
            let seed = job.randseed ^ index as u64;
            let chance = job.poisson.then(|| (fastrand::Rng::with_seed(seed), Duration::ZERO));
            is_held_back.then(|| RateLimit {
                bytes_per_second,
                ios_per_second,
                chance,
                ..RateLimit::default()
            })
        };
        Self([0, 1, 2].map(pace))
    }

    /// Returns the time at which the next operation may begin, if not yet.
    pub(super) fn due(&mut self, direction: DataDirection, now: Instant) -> Option<Instant> {
        self.0[direction as usize].as_mut()?.due(now)
    }

    /// Counts one that began.
    pub(super) fn took(&mut self, direction: DataDirection, length: u64) {
        if let Some(pace) = &mut self.0[direction as usize] {
            pace.took(length);
        }
    }
}

impl RateLimit {
    fn took(&mut self, length: u64) {
        self.bytes += length;
        self.ios += 1;
        // Between the events of a Poisson process lie times with an exponential distribution.
        let mean = [(length, self.bytes_per_second), (1, self.ios_per_second)]
            .into_iter()
            .filter_map(|(done, rate)| rate.map(|rate| for_so_many(done, rate)))
            .max();
        if let (Some((random, sum)), Some(mean)) = (&mut self.chance, mean) {
            *sum += mean.mul_f64(-(1.0 - random.f64()).ln());
        }
    }

    fn due(&mut self, now: Instant) -> Option<Instant> {
        if let Some((_, sum)) = &self.chance {
            let at = *self.begun.get_or_insert(now) + *sum;
            return (at > now).then_some(at);
        }
        let time = |done: u64, rate: Option<u64>| rate.map(|rate| for_so_many(done, rate));
        let (bytes, ios) =
            (time(self.bytes, self.bytes_per_second), time(self.ios, self.ios_per_second));
        let at = *self.begun.get_or_insert(now) + bytes.max(ios)?;
        (at > now).then_some(at)
    }
}

/// Returns the time of `count` operations at a rate per second.
fn for_so_many(count: u64, rate: u64) -> Duration {
    let nanos = u128::from(count) * 1_000_000_000 / u128::from(rate.max(1));
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX / 4))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_late_is_caught_up_with_and_directions_do_not_wait_for_each_other() {
        let job = JobOptions { rate: [Some(1 << 20), None, None], ..JobOptions::default() };
        let mut throttle = Throttle::new(&job);
        let begun = Instant::now();
        let after = |millis| begun + Duration::from_millis(millis);
        assert_eq!(throttle.due(DataDirection::Read, begun), None, "the first may begin at once");
        throttle.took(DataDirection::Read, 512 << 10);
        assert_eq!(throttle.due(DataDirection::Read, after(100)), Some(after(500)));
        assert_eq!(throttle.due(DataDirection::Write, after(100)), None);
        assert_eq!(throttle.due(DataDirection::Read, after(1200)), None);
        throttle.took(DataDirection::Read, 512 << 10);
        assert_eq!(throttle.due(DataDirection::Read, after(1200)), None, "two were due by then");
    }

    #[test]
    fn a_poisson_process_has_the_rate_and_the_spread_of_one() {
        let job = JobOptions {
            rate_iops: [Some(1000), None, None],
            poisson: true,
            ..JobOptions::default()
        };
        let mut throttle = Throttle::new(&job);
        let begun = Instant::now();
        let mut times = Vec::new();
        for _ in 0..20_000 {
            let due = throttle.due(DataDirection::Read, begun).unwrap_or(begun);
            times.push((due - begun).as_secs_f64());
            throttle.took(DataDirection::Read, 4096);
        }
        let gaps: Vec<f64> = times.windows(2).map(|pair| (pair[1] - pair[0]) * 1000.0).collect();
        let count = f64::from(u32::try_from(gaps.len()).unwrap());
        let mean = gaps.iter().sum::<f64>() / count;
        let variance = gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / count;
        assert!((mean - 1.0).abs() < 0.03, "{mean} ms");
        assert!((variance - 1.0).abs() < 0.1, "{variance}: that of an exponential distribution");
    }

    #[test]
    fn the_stricter_of_two_rates_counts() {
        let job = JobOptions {
            rate: [None, Some(4096), None],
            rate_iops: [None, Some(2), None],
            ..JobOptions::default()
        };
        let mut throttle = Throttle::new(&job);
        let begun = Instant::now();
        throttle.due(DataDirection::Write, begun);
        throttle.took(DataDirection::Write, 4096);
        assert_eq!(throttle.due(DataDirection::Write, begun), Some(begun + Duration::from_secs(1)));
    }
}
