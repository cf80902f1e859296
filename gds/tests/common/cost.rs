//! Costs in words, for people.
#![allow(clippy::cast_precision_loss, reason = "rates for people")]

use std::fmt;
use std::time::Instant;

/// Cost of moving bytes.
pub struct Cost {
    pub bytes: usize,
    pub seconds: f64,
    /// Time of all processors, in seconds.
    pub processors: f64,
}

impl Cost {
    /// Returns the rate in 10^9 bytes a second.
    pub fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }

    /// Returns the average seconds of `bytes` bytes.
    pub fn seconds_of(&self, bytes: usize) -> f64 {
        self.seconds * bytes as f64 / self.bytes as f64
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.processors / self.seconds;
        write!(out, "{:.2} GB/s with {share:.0} % of a processor", self.rate())
    }
}

/// Measures the cost of moving `bytes` by `body`.
pub fn cost(bytes: usize, body: impl FnOnce()) -> Cost {
    let processors = || {
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: it writes the one value that it is given.
        let answer = unsafe { libc::clock_gettime(libc::CLOCK_PROCESS_CPUTIME_ID, &raw mut time) };
        assert_eq!(answer, 0);
        time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
    };
    let (begun, used) = (Instant::now(), processors());
    body();
    Cost { bytes, seconds: begun.elapsed().as_secs_f64(), processors: processors() - used }
}
