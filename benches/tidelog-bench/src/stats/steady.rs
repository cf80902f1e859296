//! True if jobs run steadily: `ss=`, by fio's rules.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::option::SteadyState;

/// Watches jobs that are reported together.
#[derive(Debug)]
pub struct Steady {
    wanted: SteadyState,
    operations: AtomicU64,
    bytes: AtomicU64,
    watch: Mutex<Watch>,
    is_attained: AtomicBool,
}

#[derive(Debug, Default)]
struct Watch {
    /// End of the ramp.
    begins: Option<Instant>,
    /// Start of the open sample, and the bytes that had been moved then.
    opened: Option<(Instant, [u64; 2])>,
    /// Operations and bytes a second, of each interval of the window.
    samples: VecDeque<[u64; 2]>,
    criterion: f64,
    slope: f64,
    deviation: f64,
}

/// Result of the check for a steady run.
#[derive(Clone, Debug, PartialEq)]
pub struct SteadyResult {
    /// Criterion that was asked for.
    pub wanted: SteadyState,
    /// True if the criterion was reached.
    pub is_attained: bool,
    /// Value that is compared with the limit; 0 before the window is full.
    pub criterion: f64,
    /// Slope of the line through the window.
    pub slope: f64,
    /// The greatest from the window's mean.
    pub deviation: f64,
    /// Operations and bytes a second, of each interval of the window.
    pub samples: Vec<[u64; 2]>,
}

impl SteadyResult {
    /// Operations, or bytes, a second on average.
    pub fn mean(&self, of: usize) -> u64 {
        let sum: u64 = self.samples.iter().map(|sample| sample[of]).sum();
        sum.checked_div(self.samples.len() as u64).unwrap_or(0)
    }
}

impl Steady {
    /// Begins to watch with the first look.
    pub fn new(wanted: SteadyState) -> Self {
        Self {
            wanted,
            operations: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            watch: Mutex::default(),
            is_attained: AtomicBool::new(false),
        }
    }

    /// Returns whether the jobs are over because they ran steadily.
    pub fn is_attained(&self) -> bool {
        self.is_attained.load(Ordering::Relaxed)
    }

    /// Counts what a job has done.
    pub fn count(&self, operations: u64, bytes: u64) {
        self.operations.fetch_add(operations, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Takes a sample, if it is time. Another job that looks at this moment is enough.
    pub fn look(&self, now: Instant) {
        let Ok(mut watch) = self.watch.try_lock() else { return };
        let moved = [&self.operations, &self.bytes].map(|counter| counter.load(Ordering::Relaxed));
        if watch.sample(&self.wanted, moved, now) && watch.judge(&self.wanted) {
            self.is_attained.store(true, Ordering::Relaxed);
        }
    }

    /// Returns the result so far.
    pub fn result(&self) -> SteadyResult {
        let watch = self.watch.lock().unwrap_or_else(PoisonError::into_inner);
        SteadyResult {
            wanted: self.wanted,
            is_attained: self.is_attained(),
            criterion: watch.criterion,
            slope: watch.slope,
            deviation: watch.deviation,
            samples: watch.samples.iter().copied().collect(),
        }
    }
}

impl Watch {
    /// Takes a sample into the window, if its interval is over; returns whether it was.
    fn sample(&mut self, wanted: &SteadyState, moved: [u64; 2], now: Instant) -> bool {
        if now < *self.begins.get_or_insert(now + wanted.ramp) {
            return false;
        }
        let (opened, before) = *self.opened.get_or_insert((now, moved));
        let took = now.saturating_duration_since(opened);
        if took < wanted.interval {
            return false;
        }
        self.opened = Some((now, moved));
        if self.samples.len() == wanted.intervals() {
            self.samples.pop_front();
        }
        let rate = |which: usize| per_second(moved[which].saturating_sub(before[which]), took);
        self.samples.push_back([rate(0), rate(1)]);
        true
    }

    /// Returns whether the window is full, and steady.
    #[expect(clippy::cast_precision_loss, reason = "rates do not need their last bits")]
    fn judge(&mut self, wanted: &SteadyState) -> bool {
        let count = self.samples.len();
        if count < wanted.intervals() {
            return false;
        }
        let rates: Vec<f64> = self
            .samples
            .iter()
            .map(|sample| sample[usize::from(wanted.bandwidth)] as f64)
            .collect();
        let mean = rates.iter().sum::<f64>() / count as f64;
        let middle = (count - 1) as f64 / 2.0;
        let places = || (0..count).map(|place| place as f64 - middle);
        let rise: f64 = places().zip(&rates).map(|(place, rate)| place * rate).sum();
        self.slope = rise / places().map(|place| place * place).sum::<f64>();
        self.deviation = rates.iter().map(|rate| (rate - mean).abs()).fold(0.0, f64::max);
        let found = if wanted.slope { self.slope } else { self.deviation };
        self.criterion = if wanted.percent { 100.0 * found / mean } else { found };
        self.criterion.abs() < wanted.limit
    }
}

fn per_second(amount: u64, took: Duration) -> u64 {
    let rate = u128::from(amount) * 1_000_000_000 / took.as_nanos().max(1);
    u64::try_from(rate).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Watches jobs that do `each` operations in each second, and returns how many seconds they
    /// ran.
    fn seconds(wanted: &str, ramp: u64, each: impl Fn(u64) -> u64) -> (Option<u64>, SteadyResult) {
        let wanted = SteadyState {
            window: Duration::from_secs(5),
            ramp: Duration::from_secs(ramp),
            ..SteadyState::read(wanted).unwrap()
        };
        let steady = Steady::new(wanted);
        let begun = Instant::now();
        steady.look(begun);
        let ended = (0..100).find(|second| {
            for tenth in 1..=10 {
                steady.count(each(*second) / 10, each(*second) / 10 * 4096);
                steady.look(begun + Duration::from_millis(second * 1000 + tenth * 100));
            }
            steady.is_attained()
        });
        (ended.map(|second| second + 1), steady.result())
    }

    #[test]
    fn what_is_steady_ends_when_its_window_is_full() {
        let (ended, result) = seconds("iops:10%", 0, |_| 1000);
        assert_eq!(ended, Some(5));
        assert_eq!(result.samples, [[1000, 4_096_000]; 5]);
        assert_eq!(
            seconds("bw_slope:1%", 7, |_| 1000).0,
            Some(12),
            "the window begins after the ramp"
        );
    }

    #[test]
    fn a_window_is_judged_by_its_greatest_deviation_or_its_slope() {
        // Up and down by a fifth about a thousand: no slope to speak of, but a deviation.
        let wave = |second: u64| if second.is_multiple_of(2) { 800 } else { 1200 };
        assert_eq!(seconds("iops:10%", 0, wave).0, None);
        assert_eq!(seconds("iops:30%", 0, wave).0, Some(5));
        assert_eq!(seconds("iops_slope:1%", 0, wave).0, Some(5));
        // Always more: that slope is of a hundred operations a second.
        let (ended, result) = seconds("iops_slope:50", 0, |second| 1000 + 100 * second);
        assert!(ended.is_none() && (result.slope - 100.0).abs() < 1.0, "{result:?}");
        assert_eq!(seconds("iops_slope:101", 0, |second| 1000 + 100 * second).0, Some(5));
        // It falls, and then stays: the window goes along.
        assert_eq!(seconds("iops:1%", 0, |second| 5000 - 500 * second.min(6)).0, Some(11));
    }
}
