//! Running jobs: groups one after the other, the jobs of a group side by side.

mod backlog;
mod beside;
mod budget;
mod depth;
mod dump;
mod floor;
mod interrupt;
mod log;
mod processors;
mod raw;
mod start;
mod throttle;
mod usage;

pub use interrupt::{is_interrupted, take_signals};
pub use log::make_pool;
pub use start::{JobEnd, JobResult, RunStatus, run};
pub use usage::Usage;
