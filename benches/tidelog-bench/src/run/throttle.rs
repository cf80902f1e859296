//! `rate=` and `rate_iops=`: how soon the next operation may begin.

use std::time::{Duration, Instant};

use crate::option::JobOptions;
use crate::stats::Direction;

/// The pace of a job, for each direction on its own, if it is held back. What was late is caught up with, as in fio.
#[derive(Clone, Debug)]
pub(super) struct Throttle([Option<Pace>; 3]);

#[derive(Clone, Copy, Debug, Default)]
struct Pace {
    bytes_per_second: Option<u64>,
    ios_per_second: Option<u64>,
    begun: Option<Instant>,
    bytes: u64,
    ios: u64,
}

impl Throttle {
    /// The pace that a job asks for.
    pub(super) fn new(job: &JobOptions) -> Self {
        let pace = |index: usize| {
            let (bytes_per_second, ios_per_second) = (job.rate[index], job.rate_iops[index]);
            let is_held_back = bytes_per_second.is_some() || ios_per_second.is_some();
            is_held_back.then(|| Pace { bytes_per_second, ios_per_second, ..Pace::default() })
        };
        Self([0, 1, 2].map(pace))
    }

    /// When the next operation may begin, if not yet.
    pub(super) fn due(&mut self, direction: Direction, now: Instant) -> Option<Instant> {
        self.0[direction as usize].as_mut()?.due(now)
    }

    /// Counts one that began.
    pub(super) fn took(&mut self, direction: Direction, length: u64) {
        if let Some(pace) = &mut self.0[direction as usize] {
            pace.bytes += length;
            pace.ios += 1;
        }
    }
}

impl Pace {
    fn due(&mut self, now: Instant) -> Option<Instant> {
        let time = |done: u64, rate: Option<u64>| rate.map(|rate| for_so_many(done, rate));
        let (bytes, ios) =
            (time(self.bytes, self.bytes_per_second), time(self.ios, self.ios_per_second));
        let at = *self.begun.get_or_insert(now) + bytes.max(ios)?;
        (at > now).then_some(at)
    }
}

/// How long so many take at a rate per second.
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
        assert_eq!(throttle.due(Direction::Read, begun), None, "the first may begin at once");
        throttle.took(Direction::Read, 512 << 10);
        assert_eq!(throttle.due(Direction::Read, after(100)), Some(after(500)));
        assert_eq!(throttle.due(Direction::Write, after(100)), None);
        assert_eq!(throttle.due(Direction::Read, after(1200)), None);
        throttle.took(Direction::Read, 512 << 10);
        assert_eq!(throttle.due(Direction::Read, after(1200)), None, "two were due by then");
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
        throttle.due(Direction::Write, begun);
        throttle.took(Direction::Write, 4096);
        assert_eq!(throttle.due(Direction::Write, begun), Some(begun + Duration::from_secs(1)));
    }
}
