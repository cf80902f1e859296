//! Options of jobs: one table of options, from which the command line, job files, help and
//! completions come.

mod check;
mod content;
mod distribution;
mod engine;
mod files;
mod job;
mod kernel;
mod load;
mod logs;
mod refused;
mod sizes;
mod steady;
mod table;
pub mod value;
mod words;
mod zoned;

pub use content::{BufferPattern, DedupeSources, with_content};
pub use distribution::{Distribution, Draw};
pub use engine::{engine_name, engine_named};
pub use files::with_files;
pub use job::{ExitWhat, JobOptions, Level, Queueing};
pub use kernel::{Kernel, Priorities};
pub use load::Load;
pub use logs::{LogKind, LogOptions};
pub(crate) use refused::SETTLED;
pub use refused::no_option;
pub use sizes::Sizes;
pub use steady::{SteadyState, check_steady};
pub use table::{OPTIONS, OptionGroup, OptionSpec, apply, find};
pub use zoned::check_zones;
