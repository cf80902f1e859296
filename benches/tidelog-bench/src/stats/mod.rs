//! What is counted while a job runs.

mod lateness;
mod moments;
mod operated;
mod recorder;
mod steady;
mod timeline;

pub use lateness::Lateness;
pub use moments::Moments;
pub use operated::Operated;
pub use recorder::{Depths, DirectionStats, Latency, LiveCounters, Recorder, nanos};
pub use steady::{Steady, SteadyResult};
pub use timeline::{Entry, Timeline};
