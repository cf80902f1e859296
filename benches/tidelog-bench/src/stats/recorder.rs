//! One job's counters, and what others see of them while it runs.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::counts::{Depths, DirectionStats, OperationLatency, nanos};
use super::moments::Moments;
use super::operated::Operated;
use super::timeline::JobTimeline;
use crate::direction::DataDirection;

/// Interval at which throughput is sampled, as in fio.
const SAMPLE_EVERY: Duration = Duration::from_millis(500);
/// Counters of a job while it runs: bytes and operations, by direction.
#[derive(Debug, Default)]
pub struct LiveCounters {
    /// Bytes.
    pub bytes: [AtomicU64; 3],
    /// Operations.
    pub ios: [AtomicU64; 3],
    /// True if somebody wants all counters as they are.
    wanted: AtomicBool,
    copy: Mutex<Option<Box<Recorder>>>,
}

impl LiveCounters {
    /// Asks the job to leave a copy of its counters.
    pub fn want_copy(&self) {
        self.wanted.store(true, Ordering::Release);
    }

    /// Returns whether a copy was asked for and is not there yet.
    pub fn awaits_copy(&self) -> bool {
        self.wanted.load(Ordering::Acquire)
    }

    /// The newest copy; none before the first. A job that has ended left one with all that it
    /// counted.
    pub fn copy(&self) -> Option<Recorder> {
        self.copy.lock().unwrap_or_else(PoisonError::into_inner).as_deref().cloned()
    }
}

/// A job's counters.
#[derive(Clone, Debug)]
pub struct Recorder {
    /// Statistics by direction.
    pub stats: [DirectionStats; 3],
    /// Operations in flight when one was begun.
    pub depth: Depths,
    /// Operations handed over together.
    pub submitted: Depths,
    /// Completions seen together.
    pub completed: Depths,
    /// Latencies of commits.
    pub syncs: Moments,
    /// Timeline of the job, if it has one.
    pub timeline: Option<JobTimeline>,
    live: Arc<LiveCounters>,
    /// Start of the job.
    begun: Instant,
    /// Time from which it is counted.
    counted_from: Instant,
    counting: bool,
    ended: Instant,
    sample: Sample,
}

/// The half second that is being sampled.
#[derive(Clone, Copy, Debug)]
struct Sample {
    begun: Instant,
    bytes: [u64; 3],
    ios: [u64; 3],
}

impl Recorder {
    /// Counters of a job that did nothing.
    pub fn empty() -> Self {
        Self::new(Duration::ZERO, false, Arc::default())
    }

    /// Counters of a job that begins now and is counted after `ramp`.
    pub fn new(ramp: Duration, lat_percentiles: bool, live: Arc<LiveCounters>) -> Self {
        let begun = Instant::now();
        Self {
            stats: [(); 3].map(|()| DirectionStats::new(lat_percentiles)),
            depth: Depths::default(),
            submitted: Depths::default(),
            completed: Depths::default(),
            syncs: Moments::default(),
            timeline: None,
            live,
            begun,
            counted_from: begun + ramp,
            counting: ramp.is_zero(),
            ended: begun,
            sample: Sample { begun, bytes: [0; 3], ios: [0; 3] },
        }
    }

    /// Adds a timeline with an entry for each `window`, or each operation.
    #[must_use]
    pub fn with_timeline(mut self, window: Duration) -> Self {
        self.timeline = Some(JobTimeline::new(window, self.counted_from));
        self
    }

    /// Returns the time since counting began, or until it begins: runtime is counted from there.
    pub fn counted_for(&self, now: Instant) -> Duration {
        now.saturating_duration_since(self.counted_from)
    }

    /// Looks at the clock: ends the ramp, and a sample of throughput.
    pub fn tick(&mut self, now: Instant) {
        if !self.counting {
            if now < self.counted_from {
                return;
            }
            let live = Arc::clone(&self.live);
            let (begun, ramp) = (self.begun, self.counted_from - self.begun);
            let timeline = self.timeline.as_ref().map(|it| it.begun_at(now));
            let lat_percentiles = self.stats[0].lat_histogram.is_some();
            *self =
                Self { counting: true, begun, timeline, ..Self::new(ramp, lat_percentiles, live) };
            self.counted_from = now;
            self.sample.begun = now;
        }
        if self.live.wanted.load(Ordering::Relaxed) {
            self.leave_copy();
        }
        if let Some(timeline) = &mut self.timeline {
            timeline.tick(now);
        }
        let passed = now.saturating_duration_since(self.sample.begun);
        if passed >= SAMPLE_EVERY {
            self.end_sample(now, passed);
        }
    }

    /// Leaves a copy for whoever tells results so far.
    pub fn leave_copy(&mut self) {
        // A timeline is long, and nobody looks at it before the end.
        let timeline = self.timeline.take();
        let copy = Some(Box::new(self.clone()));
        self.timeline = timeline;
        *self.live.copy.lock().unwrap_or_else(PoisonError::into_inner) = copy;
        self.live.wanted.store(false, Ordering::Release);
    }

    #[expect(clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "rates are positive")]
    fn end_sample(&mut self, now: Instant, passed: Duration) {
        let before = self.sample;
        let per_second = |count: u64| (count as f64 / passed.as_secs_f64()) as u64;
        for (index, stats) in self.stats.iter_mut().enumerate() {
            let (bytes, ios) = (stats.bytes - before.bytes[index], stats.ios - before.ios[index]);
            if ios > 0 {
                stats.bandwidth.add(per_second(bytes) >> 10);
                stats.iops.add(per_second(ios));
            }
        }
        self.sample = Sample {
            begun: now,
            bytes: self.stats.each_ref().map(|it| it.bytes),
            ios: self.stats.each_ref().map(|it| it.ios),
        };
    }

    /// Counts an operation that was seen complete at `now`.
    pub fn completed(
        &mut self,
        direction: DataDirection,
        bytes: u64,
        latency: OperationLatency,
        now: Instant,
    ) {
        let operated = Operated { direction, offset: 0, bytes, priority: 0 };
        self.completed_alike(1, operated, latency, now);
    }

    /// Begins to count anew: what was counted so far led to what is to be measured.
    pub fn restart(&mut self, now: Instant) {
        let live = Arc::clone(&self.live);
        let lat_percentiles = self.stats[0].lat_histogram.is_some();
        let timeline = self.timeline.as_ref().map(|it| it.begun_at(now));
        *self = Self { timeline, ..Self::new(Duration::ZERO, lat_percentiles, live) };
        (self.counted_from, self.sample.begun) = (now, now);
    }

    /// Counts so many operations, at least one, that are alike and were seen complete together.
    pub fn completed_alike(
        &mut self,
        ios: u64,
        operated: Operated,
        latency: OperationLatency,
        now: Instant,
    ) {
        let Operated { direction, bytes, .. } = operated;
        let index = direction as usize;
        count(&self.live.bytes[index], ios * bytes);
        count(&self.live.ios[index], ios);
        if !self.counting {
            return;
        }
        let stats = &mut self.stats[index];
        let OperationLatency { slat, clat } = latency;
        let lat = slat + clat;
        stats.ios += ios;
        stats.bytes += ios * bytes;
        stats.slat.add_alike(slat, ios);
        stats.clat.add_alike(clat, ios);
        stats.lat.add_alike(lat, ios);
        stats.clat_histogram.saturating_record_n(clat, ios);
        if let Some(histogram) = &mut stats.lat_histogram {
            histogram.saturating_record_n(lat, ios);
        }
        if let Some(timeline) = &mut self.timeline {
            for _ in 0..ios {
                timeline.completed(operated, slat, clat, now);
            }
        }
        self.ended = now;
    }

    /// Counts a commit.
    pub fn synced(&mut self, begun: Instant, now: Instant) {
        if self.counting {
            self.syncs.add(nanos(begun, now));
            self.ended = now;
        }
    }

    /// The time that was counted.
    pub fn runtime(&self) -> Duration {
        self.ended.saturating_duration_since(self.counted_from)
    }
}

/// Adds to a counter without a lock, as other threads only read it.
fn count(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_happens_in_the_ramp_is_not_counted() {
        let live = Arc::new(LiveCounters::default());
        let mut recorder = Recorder::new(Duration::from_millis(5), true, Arc::clone(&live));
        let begun = Instant::now();
        recorder.completed(DataDirection::Read, 4096, OperationLatency::default(), begun);
        assert_eq!(recorder.stats[0].ios, 0);
        let later = begun + Duration::from_millis(10);
        recorder.tick(later);
        let end = later + Duration::from_millis(2);
        let latency = OperationLatency::between([later, later + Duration::from_millis(1), end]);
        recorder.completed(DataDirection::Read, 4096, latency, end);
        let read = &recorder.stats[0];
        assert_eq!((read.ios, read.bytes), (1, 4096));
        assert_eq!((read.slat.max, read.clat.max, read.lat.max), (1_000_000, 1_000_000, 2_000_000));
        let lat_histogram = read.lat_histogram.as_ref().expect("it was asked for");
        assert_eq!(lat_histogram.len(), 1);
        assert_eq!(recorder.runtime(), Duration::from_millis(2));
        assert_eq!(live.ios[0].load(Ordering::Relaxed), 2, "a status line shows the ramp too");
    }

    #[test]
    fn operations_that_are_alike_are_counted_together() {
        let counted = |alike: bool| {
            let mut recorder = Recorder::new(Duration::ZERO, true, Arc::default());
            recorder = recorder.with_timeline(Duration::ZERO);
            let (latency, now) = (OperationLatency { slat: 100, clat: 5000 }, recorder.begun);
            if alike {
                let (direction, bytes) = (DataDirection::Write, 4096);
                let operated = Operated { direction, offset: 0, bytes, priority: 0 };
                recorder.completed_alike(3, operated, latency, now);
            } else {
                (0..3).for_each(|_| recorder.completed(DataDirection::Write, 4096, latency, now));
            }
            let live = Arc::clone(&recorder.live);
            let DirectionStats {
                ios, bytes, slat, clat, lat, clat_histogram, lat_histogram, ..
            } = recorder.stats[1].clone();
            let entries = recorder.timeline.map(|it| it.entries().len());
            let seen = (live.ios[1].load(Ordering::Relaxed), live.bytes[1].load(Ordering::Relaxed));
            (ios, bytes, [slat, clat, lat], clat_histogram, lat_histogram, entries, seen)
        };
        let counted_alike = counted(true);
        assert_eq!(counted_alike, counted(false));
        assert_eq!((counted_alike.0, counted_alike.5, counted_alike.6), (3, Some(3), (3, 12288)));
    }

    #[test]
    fn throughput_is_sampled_every_half_second() {
        let mut recorder = Recorder::new(Duration::ZERO, false, Arc::default());
        let begun = Instant::now();
        for step in 1..=4 {
            let now = begun + step * Duration::from_millis(500);
            let latency = OperationLatency::between([begun, begun, now]);
            recorder.completed(DataDirection::Write, 1 << 20, latency, now);
            recorder.tick(now + Duration::from_millis(1));
        }
        let write = &recorder.stats[1];
        assert_eq!(write.bandwidth.count, 4);
        assert!((2000..=2048).contains(&write.bandwidth.min), "{:?} KiB/s", write.bandwidth);
        assert_eq!(recorder.stats[0].bandwidth.count, 0);
    }
}
