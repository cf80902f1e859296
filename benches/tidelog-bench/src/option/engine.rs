//! `ioengine=`: the data path of a job, named as the engine names it with `tidelog-` before it.

use tidelog_engine::path::PathKind;

use super::job::JobOptions;
use crate::exit::BenchError;

const PREFIX: &str = "tidelog-";

/// The data path of this name.
///
/// # Errors
/// There is none, and why not.
pub fn engine_named(name: &str) -> Result<PathKind, BenchError> {
    let ours = name.trim().strip_prefix(PREFIX).and_then(PathKind::named);
    let reason = match (ours, name.trim()) {
        (Some(PathKind::Spdk), _) if !cfg!(feature = "spdk") => {
            "this build has no SPDK; where one is installed: cargo build --release -p tidelog-bench --features spdk"
        }
        (Some(PathKind::Gds), _) => {
            "this data path moves memory of a GPU, which is not measured here; tidelog-uring moves the host's"
        }
        (Some(kind), _) => return Ok(kind),
        (None, "io_uring") => "this engine is fio's own; use tidelog-uring here",
        (None, "io_uring_cmd") => "this engine is fio's own; use tidelog-uring-cmd here",
        (None, "libaio" | "psync" | "sync" | "pvsync" | "pvsync2" | "posixaio" | "mmap") => {
            "this engine is fio's own; use tidelog-posix here"
        }
        (None, _) => {
            "there are tidelog-uring, tidelog-uring-cmd, tidelog-posix, tidelog-spdk and tidelog-sim"
        }
    };
    Err(BenchError::Engine { name: name.trim().to_owned(), reason: reason.to_owned() })
}

/// Returns the name of such a job's data path.
pub fn engine_name(kind: PathKind) -> String {
    format!("{PREFIX}{kind}")
}

impl JobOptions {
    /// The data path, which must have been named.
    ///
    /// # Errors
    /// It was not.
    pub fn engine(&self) -> Result<PathKind, BenchError> {
        self.engine.ok_or_else(|| {
            BenchError::usage(
                "no ioengine: name the data path to measure, tidelog-uring, tidelog-uring-cmd, tidelog-posix, tidelog-spdk or tidelog-sim",
            )
            .within(&self.name)
        })
    }
}
