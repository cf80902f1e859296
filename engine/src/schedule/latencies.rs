//! Latencies of a device, now and usually: one that is far off its own history is named.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Factor over its usual time from which a device is far off.
const TIMES: u32 = 8;
/// Least latency that is reported.
const NOTICED: Duration = Duration::from_millis(20);
/// A device that has answered nothing for so long, though it was asked, is silent.
const SILENT: Duration = Duration::from_secs(2);
/// Operations that make a history.
const HISTORY: u64 = 256;

/// Latency of operations of one kind on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Latency {
    /// Average over the last thousand or so.
    pub usual: Duration,
    /// Average over the last few.
    pub recent: Duration,
    /// Number of operations.
    pub operations: u64,
}

impl Latency {
    /// Returns whether the last ones took far longer than those before.
    fn is_off(&self) -> bool {
        self.operations >= HISTORY && self.recent > NOTICED && self.recent > self.usual * TIMES
    }

    /// The one of two that says more.
    pub(super) fn or(self, other: Self) -> Self {
        match (self.is_off(), other.is_off()) {
            (true, false) => self,
            (false, true) => other,
            _ if other.operations > self.operations => other,
            _ => self,
        }
    }
}

/// Latencies of a device's completions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceLatencies {
    /// Operations that it was given and has not answered.
    pub in_flight: u64,
    /// Time since its last response, while it had something to answer.
    pub silent: Duration,
    /// The reads.
    pub reads: Latency,
    /// The writes.
    pub writes: Latency,
    /// The flushes, which take as long as there is to flush: they tell nothing of trouble.
    pub flushes: Latency,
}

impl DeviceLatencies {
    /// Describes the deviation of the device from its own history, if it is large.
    pub fn trouble(&self) -> Option<String> {
        if self.in_flight > 0 && self.silent >= SILENT {
            let (silent, waiting) = (self.silent.as_secs_f64(), self.in_flight);
            return Some(format!("has answered nothing for {silent:.1} s; {waiting} wait for it"));
        }
        let off = |latency: &Latency, what: &str| {
            let [recent, usual] = [latency.recent, latency.usual].map(|it| it.as_secs_f64() * 1e3);
            let text = || format!("takes {recent:.1} ms for a {what}, usually {usual:.1} ms");
            latency.is_off().then(text)
        };
        off(&self.reads, "read").or_else(|| off(&self.writes, "write"))
    }

    pub(super) fn add(&mut self, other: Self) {
        self.in_flight += other.in_flight;
        self.silent = self.silent.max(other.silent);
        self.reads = self.reads.or(other.reads);
        self.writes = self.writes.or(other.writes);
        self.flushes = self.flushes.or(other.flushes);
    }
}

/// One device's pulse, as its reactor thread takes it; anybody reads.
#[derive(Debug)]
pub(super) struct DeviceLatencyCounters {
    /// Origin of the times below, in nanoseconds.
    start: Instant,
    in_flight: AtomicU64,
    /// Time of its last response, or of the first operation afterwards.
    heard: AtomicU64,
    reads: LatencyCounters,
    writes: LatencyCounters,
    flushes: LatencyCounters,
}

#[derive(Debug, Default)]
struct LatencyCounters {
    usual: AtomicU64,
    recent: AtomicU64,
    operations: AtomicU64,
}

impl DeviceLatencyCounters {
    pub(super) fn new(start: Instant) -> Self {
        let [in_flight, heard] = [0, 0].map(AtomicU64::new);
        let [reads, writes, flushes] = [(); 3].map(|()| LatencyCounters::default());
        Self { start, in_flight, heard, reads, writes, flushes }
    }

    /// Counts an operation that was given to it at this time. Only the reactor thread calls this,
    /// and [`Self::answered`].
    pub(super) fn asked(&self, now: u64) {
        let before = self.in_flight.load(Ordering::Relaxed);
        if before == 0 {
            self.heard.store(now, Ordering::Relaxed);
        }
        self.in_flight.store(before + 1, Ordering::Relaxed);
    }

    /// Counts a response, or an operation that was not taken.
    pub(super) fn answered(&self, now: u64) {
        let before = self.in_flight.load(Ordering::Relaxed);
        self.in_flight.store(before.saturating_sub(1), Ordering::Relaxed);
        self.heard.store(now, Ordering::Relaxed);
    }

    /// A read took this long.
    pub(super) fn read(&self, nanoseconds: u64) {
        self.reads.took(nanoseconds);
    }

    /// A write did.
    pub(super) fn wrote(&self, nanoseconds: u64) {
        self.writes.took(nanoseconds);
    }

    /// A flush did.
    pub(super) fn flushed(&self, nanoseconds: u64) {
        self.flushes.took(nanoseconds);
    }

    pub(super) fn snapshot(&self) -> DeviceLatencies {
        let in_flight = self.in_flight.load(Ordering::Relaxed);
        let heard = Duration::from_nanos(self.heard.load(Ordering::Relaxed));
        let silent = if in_flight == 0 {
            Duration::ZERO
        } else {
            self.start.elapsed().saturating_sub(heard)
        };
        let [reads, writes, flushes] =
            [&self.reads, &self.writes, &self.flushes].map(LatencyCounters::snapshot);
        DeviceLatencies { in_flight, silent, reads, writes, flushes }
    }
}

impl LatencyCounters {
    fn took(&self, nanoseconds: u64) {
        let before = self.operations.load(Ordering::Relaxed);
        let move_by = |mean: &AtomicU64, window: u64| {
            let old = mean.load(Ordering::Relaxed).cast_signed();
            let weight = window.min(before + 1).cast_signed();
            let new = old + (nanoseconds.cast_signed() - old) / weight;
            mean.store(new.cast_unsigned(), Ordering::Relaxed);
        };
        move_by(&self.usual, 1024);
        move_by(&self.recent, 16);
        self.operations.store(before + 1, Ordering::Relaxed);
    }

    fn snapshot(&self) -> Latency {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let [usual, recent] = [&self.usual, &self.recent].map(|it| Duration::from_nanos(read(it)));
        Latency { usual, recent, operations: read(&self.operations) }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_device_that_takes_far_longer_than_it_did_is_named_until_it_does_not() {
        let device = DeviceLatencyCounters::new(Instant::now());
        (0..2000).for_each(|_| device.read(1_000_000));
        assert_eq!(device.snapshot().trouble(), None);
        (0..40).for_each(|_| device.read(50_000_000));
        let trouble = device.snapshot().trouble().unwrap();
        assert!(trouble.starts_with("takes 4") && trouble.contains("for a read"), "{trouble}");
        (0..100).for_each(|_| device.read(1_000_000));
        assert_eq!(device.snapshot().trouble(), None);
        // Ten times as long, and still nothing that anybody notices.
        let fast = DeviceLatencyCounters::new(Instant::now());
        (0..2000).for_each(|_| fast.wrote(10_000));
        (0..40).for_each(|_| fast.wrote(1_000_000));
        assert_eq!(fast.snapshot().trouble(), None);
    }

    #[test]
    fn a_device_that_was_asked_and_answers_nothing_is_silent_and_an_idle_one_is_not() {
        let Some(long_ago) = Instant::now().checked_sub(Duration::from_secs(60)) else { return };
        let device = DeviceLatencyCounters::new(long_ago);
        assert_eq!(device.snapshot(), DeviceLatencies::default());
        device.asked(1_000_000_000);
        device.asked(2_000_000_000);
        let trouble = device.snapshot().trouble().unwrap();
        assert!(trouble.contains("nothing for 59.") && trouble.contains("2 wait"), "{trouble}");
        device.answered(59_500_000_000);
        assert_eq!(device.snapshot().trouble(), None);
        device.answered(59_900_000_000);
        assert_eq!(device.snapshot().silent, Duration::ZERO);
    }
}
