//! `latency_target=`: the largest depth at which latencies keep to it, found while the job runs.

use std::time::{Duration, Instant};

use crate::option::JobOptions;

/// Next step of a job that looks for its depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DepthStep {
    /// The job continues.
    On,
    /// The job drains, since more operations are in flight than the next depth allows.
    Drain,
    /// The depth is found; what is counted from now on is measured at it.
    Measure,
    /// The search is over: the last depth was measured, too.
    Over,
    /// The target is never reached: even one operation at a time takes too long.
    Never,
}

/// The search for a depth: doubled until it is too large, and then halved between what was right
/// and what was not, as fio does.
#[derive(Clone, Debug)]
pub(super) struct Depth {
    target: u64,
    window: Duration,
    percentile: f64,
    most: usize,
    tried: usize,
    low: usize,
    high: usize,
    /// Number of times in a row that nothing but the upper end kept the depth from growing.
    stable: u32,
    is_found: bool,
    ios: u64,
    late: u64,
    begun: Option<Instant>,
}

impl Depth {
    /// Makes the search that a job asks for, if it does.
    pub(super) fn of(job: &JobOptions) -> Option<Self> {
        let target = job.latency_target?;
        let most = job.iodepth as usize;
        Some(Self {
            target: u64::try_from(target.as_nanos()).unwrap_or(u64::MAX),
            window: job.latency_window,
            percentile: job.latency_percentile,
            most,
            tried: 1,
            low: 1,
            high: most,
            stable: 0,
            is_found: false,
            ios: 0,
            late: 0,
            begun: None,
        })
    }

    /// Returns the limit of operations in flight.
    pub(super) fn limit(&self) -> usize {
        self.tried
    }

    /// Adds the latency of one that ended.
    pub(super) fn landed(&mut self, nanos: u64) {
        self.ios += 1;
        self.late += u64::from(nanos > self.target);
    }

    /// Looks whether a window is over, and decides.
    pub(super) fn look(&mut self, now: Instant) -> DepthStep {
        let begun = *self.begun.get_or_insert(now);
        let has_failed = self.percentile >= 100.0 && self.late > 0;
        if has_failed {
            return self.failed(now);
        }
        if now - begun < self.window || self.ios == 0 {
            return DepthStep::On;
        }
        #[expect(clippy::cast_precision_loss, reason = "a percentage")]
        let kept = (self.ios - self.late) as f64 / self.ios as f64 * 100.0;
        if kept >= self.percentile { self.succeeded(now) } else { self.failed(now) }
    }

    fn failed(&mut self, now: Instant) -> DepthStep {
        if self.tried == 1 {
            return DepthStep::Never;
        }
        self.high = self.tried;
        if self.tried == self.low {
            self.low -= 1;
        }
        self.tried = usize::midpoint(self.tried, self.low).max(1);
        self.stable = 0;
        self.restart(now);
        DepthStep::Drain
    }

    fn succeeded(&mut self, now: Instant) -> DepthStep {
        let before = self.tried;
        self.low = self.tried;
        if self.tried + 1 == self.high {
            self.stable += 1;
            if self.stable >= 3 {
                (self.high, self.stable) = (self.high + 1, 0);
            }
        }
        let next = if self.high == self.most {
            self.tried * 2
        } else {
            usize::midpoint(self.tried, self.high)
        };
        self.tried = next.min(self.most);
        self.restart(now);
        if self.tried != before {
            return DepthStep::On;
        }
        if std::mem::replace(&mut self.is_found, true) {
            DepthStep::Over
        } else {
            DepthStep::Measure
        }
    }

    fn restart(&mut self, now: Instant) {
        (self.begun, self.ios, self.late) = (Some(now), 0, 0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Searches on a device that keeps to the target up to a depth; returns the depths tried, and
    /// how it ended.
    fn search(kept_up_to: usize, iodepth: u32) -> (Vec<usize>, DepthStep) {
        let job = JobOptions {
            iodepth,
            latency_target: Some(Duration::from_millis(1)),
            latency_window: Duration::from_secs(1),
            latency_percentile: 99.0,
            ..JobOptions::default()
        };
        let mut depth = Depth::of(&job).unwrap();
        let begun = Instant::now();
        let mut tried = Vec::new();
        for second in 0..200 {
            let now = begun + Duration::from_secs(second);
            match depth.look(now) {
                end @ (DepthStep::Over | DepthStep::Never) => return (tried, end),
                _ => tried.push(depth.limit()),
            }
            let latency = if depth.limit() <= kept_up_to { 500_000 } else { 1_500_000 };
            (0..100).for_each(|_| depth.landed(latency));
        }
        panic!("it never ends: {tried:?}");
    }

    #[test]
    fn the_largest_depth_that_keeps_to_the_target_is_found_and_measured() {
        let (tried, end) = search(20, 128);
        assert_eq!((&tried[..6], end), (&[1, 2, 4, 8, 16, 32][..], DepthStep::Over), "{tried:?}");
        assert_eq!(tried.last(), Some(&20), "{tried:?}");
        let (tried, _) = search(1000, 64);
        assert_eq!(tried.last(), Some(&64), "all of iodepth: {tried:?}");
        assert_eq!(search(0, 64), (vec![1], DepthStep::Never));
        assert_eq!(search(1, 64).0.last(), Some(&1));
    }
}
