//! What is counted while a job runs.

mod moments;
mod recorder;

pub use moments::Moments;
pub use recorder::{Depths, Direction, DirectionStats, LiveCounters, Recorder};
