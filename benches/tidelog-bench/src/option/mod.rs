//! What can be asked for: one table of options, from which the command line, job files, help and completions come.

mod distribution;
mod files;
mod job;
mod load;
mod logs;
mod sizes;
mod table;
pub mod value;

pub use distribution::{Distribution, Draw};
pub use files::with_files;
pub use job::{Engine, ExitWhat, JobOptions, Level};
pub use load::Load;
pub use logs::{LogKind, Logs};
pub use sizes::Sizes;
pub use table::{Group, OPTIONS, OptionSpec, apply, find};
