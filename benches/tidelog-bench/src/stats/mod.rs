//! What is counted while a job runs.

mod lateness;
mod moments;
mod recorder;

pub use lateness::Lateness;
pub use moments::Moments;
pub use recorder::{Depths, Direction, DirectionStats, LiveCounters, Recorder};
