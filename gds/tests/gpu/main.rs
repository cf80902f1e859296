//! On a real GPU, with the real cuFile. Each test says what it lacks where there is none. `tests/hardware/gpu.sh` runs
//! them; what they print is for its table.
#![allow(unsafe_code)]
#![allow(clippy::cast_precision_loss, reason = "rates for people")]
#![allow(clippy::items_after_statements, reason = "sizes stand in the test that they are of")]

#[path = "../common/mod.rs"]
mod common;

mod checksum;
mod copies;
mod cufile;
mod gdr;
mod log;
mod tier;

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use tidelog_gds::Gpu;
use tidelog_gds::cuda::gpu_count;
use tidelog_gds::cufile::{Compat, Driver, Library};
use tidelog_tests::machine::skip;

fn gpu(test: &str) -> Option<Arc<Gpu>> {
    let found = gpu_count().and_then(|_| Gpu::open(0));
    found.map_err(|why| skip(test, &why.to_string())).ok()
}

fn driver(test: &str, compat: Compat) -> Option<Arc<Driver>> {
    let library = Library::open(None).map_err(|why| why.to_string());
    let driver =
        library.and_then(|library| Driver::open(library, compat).map_err(|why| why.to_string()));
    driver.map_err(|why| skip(test, &why)).ok()
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at * 31 / 7 + at / 4093) as u8).collect()
}

/// What moving bytes took.
struct Cost {
    bytes: usize,
    seconds: f64,
    /// Of all processors, in seconds.
    processors: f64,
}

impl Cost {
    /// In 10^9 bytes a second.
    fn rate(&self) -> f64 {
        self.bytes as f64 / self.seconds / 1e9
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let share = 100.0 * self.processors / self.seconds;
        write!(out, "{:.2} GB/s with {share:.0} % of a processor", self.rate())
    }
}

/// What it takes to move `bytes` by `body`.
fn cost(bytes: usize, body: impl FnOnce()) -> Cost {
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
