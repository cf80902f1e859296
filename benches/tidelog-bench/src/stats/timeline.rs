//! Timeline of a job: an entry for each operation, or one for all of a while.

use std::time::{Duration, Instant};

use super::operated::Operated;
use crate::direction::DataDirection;

/// An operation, or those of one direction in a while, on average.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimelineEntry {
    /// End of the operation, in milliseconds since counting began.
    pub at_ms: u64,
    /// Direction of its bytes.
    pub direction: DataDirection,
    /// Bytes of the operation; 0 where it stands for several.
    pub bytes: u64,
    /// Offset of the operation; 0 where it stands for several.
    pub offset: u64,
    /// Priority as the kernel writes it; 0 where it stands for several.
    pub priority: u16,
    /// KiB per second.
    pub bandwidth: u64,
    /// Operations per second; 1 for a single one, as fio has it.
    pub iops: u64,
    /// Submission latency in nanoseconds.
    pub slat: u64,
    /// Completion latency.
    pub clat: u64,
    /// Latency of submission plus completion.
    pub lat: u64,
}

/// The entries of a job so far.
#[derive(Clone, Debug)]
pub struct JobTimeline {
    window: Duration,
    begun: Instant,
    /// Start of the window that is open now.
    opened: Instant,
    open: [Sums; 3],
    entries: Vec<TimelineEntry>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    bytes: u64,
    ios: u64,
    slat: u64,
    clat: u64,
    lat: u64,
}

impl JobTimeline {
    /// Makes a timeline that begins now; a `window` of nothing gives each operation an entry.
    pub fn new(window: Duration, now: Instant) -> Self {
        Self { window, begun: now, opened: now, open: <_>::default(), entries: Vec::new() }
    }

    /// Restarts the timeline at another time.
    #[must_use]
    pub fn begun_at(&self, now: Instant) -> Self {
        Self::new(self.window, now)
    }

    /// Returns the entries.
    pub fn entries(&self) -> &[TimelineEntry] {
        &self.entries
    }

    /// Adds an operation that ended now.
    pub fn completed(&mut self, operated: Operated, slat: u64, clat: u64, now: Instant) {
        let Operated { direction, offset, bytes, priority } = operated;
        let lat = slat + clat;
        if self.window.is_zero() {
            let bandwidth = rate(bytes, Duration::from_nanos(clat)) >> 10;
            let at_ms = self.millis(now);
            self.entries.push(TimelineEntry {
                at_ms,
                direction,
                bytes,
                offset,
                priority,
                bandwidth,
                iops: 1,
                slat,
                clat,
                lat,
            });
            return;
        }
        let sums = &mut self.open[direction as usize];
        sums.bytes += bytes;
        sums.ios += 1;
        sums.slat += slat;
        sums.clat += clat;
        sums.lat += lat;
    }

    /// Looks at the clock: a window that is over becomes entries. What began and did not end a
    /// window is left out, as in fio.
    pub fn tick(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(self.opened);
        if self.window.is_zero() || passed < self.window {
            return;
        }
        let at_ms = self.millis(now);
        for direction in [DataDirection::Read, DataDirection::Write, DataDirection::Trim] {
            let sums = std::mem::take(&mut self.open[direction as usize]);
            if sums.ios > 0 {
                self.entries.push(TimelineEntry {
                    at_ms,
                    direction,
                    bytes: 0,
                    offset: 0,
                    priority: 0,
                    bandwidth: rate(sums.bytes, passed) >> 10,
                    iops: rate(sums.ios, passed),
                    slat: sums.slat / sums.ios,
                    clat: sums.clat / sums.ios,
                    lat: sums.lat / sums.ios,
                });
            }
        }
        self.opened = now;
    }

    fn millis(&self, now: Instant) -> u64 {
        now.saturating_duration_since(self.begun).as_millis() as u64
    }
}

/// Returns a count per second.
fn rate(count: u64, passed: Duration) -> u64 {
    (u128::from(count) * 1_000_000_000 / passed.as_nanos().max(1)) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn operated(direction: DataDirection, bytes: u64) -> Operated {
        Operated { direction, offset: 0, bytes, priority: 0 }
    }

    #[test]
    fn a_window_has_rates_over_its_own_length_and_mean_latencies() {
        let begun = Instant::now();
        let mut timeline = JobTimeline::new(100 * MS, begun);
        for (slat, clat) in [(10, 100), (30, 300)] {
            timeline.completed(
                operated(DataDirection::Write, 1 << 20),
                slat,
                clat,
                begun + 50 * MS,
            );
        }
        timeline.tick(begun + 99 * MS);
        assert_eq!(timeline.entries(), [], "it is not over");
        // It was looked at late: twice the window's time has passed.
        timeline.tick(begun + 200 * MS);
        let entry = TimelineEntry {
            at_ms: 200,
            direction: DataDirection::Write,
            bytes: 0,
            offset: 0,
            priority: 0,
            bandwidth: 10 << 10, // KiB/s
            iops: 10,
            slat: 20,
            clat: 200,
            lat: 220,
        };
        assert_eq!(timeline.entries(), [entry]);
        timeline.tick(begun + 300 * MS);
        assert_eq!(timeline.entries().len(), 1, "nothing happened in the second");
    }

    #[test]
    fn without_a_window_each_operation_has_its_entry() {
        let begun = Instant::now();
        let mut timeline = JobTimeline::new(Duration::ZERO, begun);
        timeline.completed(operated(DataDirection::Read, 4096), 1000, 2_000_000, begun + 7 * MS);
        timeline.tick(begun + 1000 * MS);
        let [entry] = timeline.entries() else { panic!("{:?}", timeline.entries()) };
        assert_eq!((entry.at_ms, entry.bytes, entry.iops, entry.lat), (7, 4096, 1, 2_001_000));
        assert_eq!(entry.bandwidth, 2000, "4 KiB in two milliseconds");
    }
}
