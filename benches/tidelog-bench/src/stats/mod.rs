//! Counters while a job runs.

mod counts;
mod lateness;
mod moments;
mod operated;
mod recorder;
mod steady;
mod timeline;

pub use counts::{Depths, DirectionStats, OperationLatency, nanos};
pub use lateness::Lateness;
pub use moments::Moments;
pub use operated::Operated;
pub use recorder::{LiveCounters, Recorder};
pub use steady::{Steady, SteadyResult};
pub use timeline::{JobTimeline, TimelineEntry};
