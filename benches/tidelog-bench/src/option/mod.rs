//! What can be asked for: one table of options, from which the command line, job files, help and completions come.

mod job;
mod sizes;
mod table;
pub mod value;

pub use job::{Engine, JobOptions, Level, Load};
pub use sizes::Sizes;
pub use table::{Group, OPTIONS, OptionSpec, apply, find};
