//! Why a data path could not be opened.

use super::kind::PathKind;

/// A data path could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// This machine or container does not have it.
    #[error("the {kind} data path does not work here: {reason}")]
    Unavailable {
        /// The path that was wanted.
        kind: PathKind,
        /// Why not, and what would help.
        reason: String,
    },
    /// The operating system refused something every path needs.
    #[error("the {kind} data path could not {what}: {source}")]
    System {
        /// The path that was wanted.
        kind: PathKind,
        /// What it tried.
        what: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
}
