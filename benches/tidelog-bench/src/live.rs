//! The line that shows on a terminal how far a run is.

use std::io::{IsTerminal, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::figures::{rate, short_count};
use crate::option::JobOptions;
use crate::stats::LiveCounters;

/// Interval at which it is drawn.
const EVERY: Duration = Duration::from_millis(500);

/// Display of the status line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Eta {
    /// No status line.
    Never,
    /// Always.
    Always,
    /// Status line on a terminal.
    Auto,
}

/// The status line of a run.
#[derive(Debug)]
pub struct Live {
    shown: bool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    watched: Vec<(usize, Arc<LiveCounters>)>,
    drawing: Option<(Arc<AtomicBool>, JoinHandle<()>)>,
}

impl Live {
    /// A line, if there is anybody to see it.
    pub fn new(eta: Eta) -> Self {
        let shown = match eta {
            Eta::Never => false,
            Eta::Always => true,
            Eta::Auto => std::io::stderr().is_terminal(),
        };
        Self { shown, state: Mutex::default() }
    }

    /// Counters for a job of this group to count in.
    pub fn watch(&self, group: usize) -> Arc<LiveCounters> {
        let counters = Arc::<LiveCounters>::default();
        self.state().watched.push((group, Arc::clone(&counters)));
        counters
    }

    /// Shows the line for the jobs of a group from now on.
    pub fn begin(&self, group: usize, jobs: &[JobOptions]) {
        if !self.shown {
            return;
        }
        let mut state = self.state();
        let watched = state.watched.iter().filter(|(of, _)| *of == group);
        let counters: Vec<_> = watched.map(|(_, counters)| Arc::clone(counters)).collect();
        let whole = jobs.iter().filter_map(|job| Some(job.runtime? + job.ramp_time)).max();
        let over = Arc::new(AtomicBool::new(false));
        let is_over = Arc::clone(&over);
        let draw = move || draw(&counters, whole, &is_over);
        if let Ok(handle) = thread::Builder::new().name("status".into()).spawn(draw) {
            state.drawing = Some((over, handle));
        }
    }

    /// Removes the line.
    pub fn end(&self) {
        let drawing = self.state().drawing.take();
        if let Some((over, handle)) = drawing {
            over.store(true, Ordering::Relaxed);
            handle.thread().unpark();
            let _ = handle.join();
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }

    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn draw(counters: &[Arc<LiveCounters>], whole: Option<Duration>, is_over: &AtomicBool) {
    let begun = Instant::now();
    let mut before = (begun, sums(counters));
    loop {
        thread::park_timeout(EVERY);
        if is_over.load(Ordering::Relaxed) {
            return;
        }
        let now = (Instant::now(), sums(counters));
        let line = line(counters.len(), before, now, begun, whole);
        let _ = write!(std::io::stderr(), "\r\x1b[K{line}");
        before = now;
    }
}

/// Bytes and operations by direction.
type Sums = [[u64; 2]; 3];

fn sums(counters: &[Arc<LiveCounters>]) -> Sums {
    let sum = |of: fn(&LiveCounters, usize) -> u64, index| {
        counters.iter().map(|counters| of(counters, index)).sum()
    };
    [0, 1, 2].map(|index| {
        [
            sum(|it, index| it.bytes[index].load(Ordering::Relaxed), index),
            sum(|it, index| it.ios[index].load(Ordering::Relaxed), index),
        ]
    })
}

#[expect(clippy::cast_precision_loss, reason = "a status line")]
fn line(
    jobs: usize,
    before: (Instant, Sums),
    now: (Instant, Sums),
    begun: Instant,
    whole: Option<Duration>,
) -> String {
    let passed = (now.0 - before.0).as_secs_f64();
    let per_second =
        |way: usize, what: usize| (now.1[way][what] - before.1[way][what]) as f64 / passed;
    let left = whole.map(|whole| whole.saturating_sub(now.0 - begun));
    let left = left.map_or_else(String::new, |left| {
        let seconds = left.as_secs();
        format!("[eta {:02}m:{:02}s]", seconds / 60, seconds % 60)
    });
    let shown = |way: usize| way < 2 || now.1[way][1] > 0;
    let each = |of: &dyn Fn(usize) -> String| {
        let ways = ["r", "w", "t"].into_iter().enumerate().filter(|(way, _)| shown(*way));
        ways.map(|(way, name)| format!("{name}={}", of(way))).collect::<Vec<_>>().join(",")
    };
    format!(
        "Jobs: {jobs} [{}][{} IOPS]{left}",
        each(&|way| rate(per_second(way, 0))),
        each(&|way| short_count(per_second(way, 1))),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_shows_rates_of_the_last_moment() {
        let begun = Instant::now();
        let before = (begun + Duration::from_secs(1), [[1 << 30, 1000], [0, 0], [0, 0]]);
        let now = (begun + Duration::from_secs(2), [[3 << 30, 13_500], [0, 0], [0, 0]]);
        let whole = Some(Duration::from_secs(75));
        assert_eq!(
            line(2, before, now, begun, whole),
            "Jobs: 2 [r=2048MiB/s,w=0KiB/s][r=12.5k,w=0 IOPS][eta 01m:13s]"
        );
    }
}
