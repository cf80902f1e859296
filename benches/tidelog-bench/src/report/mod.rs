//! Reports of a run: fio's text, fio's JSON, fio's terse lines.

mod group;
mod json;
mod logs;
mod normal;
mod terse;

pub use group::{GroupReport, reports};
pub use json::document;
pub use logs::{log_files, log_lines};
pub use normal::{introduction, text};
pub use terse::lines;

/// The version that reports carry. Tools for fio look at it.
pub const VERSION: &str = concat!("tidelog-bench-", env!("CARGO_PKG_VERSION"));
