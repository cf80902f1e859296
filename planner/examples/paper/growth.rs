//! Growth of planning time with the trace, up to a million kernels.

use super::cell::timed;
use super::{GIB, ratio};
use serde::Serialize;
use tidelog_planner::cost::{Machine, SsdLink};
use tidelog_planner::instances::deep_network;
use tidelog_planner::lifetime::Lifetimes;
use tidelog_planner::simulate::SimulateError;
use tidelog_planner::tidelog::{self, tidelog};
use tidelog_planner::units::{Bandwidth, Bytes, Nanos};

const KERNELS: [usize; 4] = [15_625, 62_500, 250_000, 1_000_000];

/// Limit of the time for one size, in seconds: the next is not begun where it would take longer.
const TIMEOUT: f64 = 900.0;

/// One trace length.
#[derive(Serialize)]
pub(super) struct Size {
    pub(super) kernels: usize,
    pub(super) tensors: usize,
    /// Seconds of one core.
    #[serde(rename = "planning_s")]
    pub(super) seconds: f64,
    /// The most that the whole process held meanwhile.
    pub(super) memory_gib: f64,
}

impl Size {
    /// Returns the work to which the time may be in proportion.
    #[allow(clippy::cast_precision_loss, reason = "for a ratio")]
    pub(super) fn work(&self) -> f64 {
        self.kernels as f64 * (self.tensors as f64).log2()
    }
}

/// Plans ever longer steps, each under half the memory that it wants.
pub(super) fn growth(told: impl Fn(&Size)) -> Result<Vec<Size>, SimulateError> {
    let mut sizes: Vec<Size> = Vec::new();
    for kernels in KERNELS {
        if let Some(last) = sizes.last()
            && last.seconds * ratio(kernels as u64, last.kernels as u64) > TIMEOUT
        {
            break;
        }
        forget_the_most();
        let trace = deep_network(kernels / 2);
        let rate = Bandwidth(16_000_000_000);
        let machine = Machine {
            budget: Bytes(Lifetimes::of(&trace).peak().0 / 2),
            staging: Bytes(0),
            ssd: SsdLink { read: rate, write: rate, latency: Nanos(80_000) },
            host: None,
            verify: Bandwidth(1_000_000_000_000),
        };
        let (made, seconds) =
            timed(|| tidelog(&trace, &machine, tidelog::TidelogOptions::default()));
        made?;
        let memory_gib = ratio(most_held(), GIB);
        let size = Size { kernels, tensors: trace.storages.len(), seconds, memory_gib };
        told(&size);
        sizes.push(size);
    }
    Ok(sizes)
}

/// Resets the peak memory of the process, where the system can.
fn forget_the_most() {
    let _ = std::fs::write("/proc/self/clear_refs", "5");
}

/// The most bytes that the process held; 0 where the system does not tell.
fn most_held() -> u64 {
    let told = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = told.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kibibytes = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    kibibytes.map_or(0, |count| count * 1024)
}
