//! The reason why a data path could not be opened.

use super::kind::PathKind;

/// A data path could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum PathError {
    /// The path is not available on this machine or in this container.
    #[error("the {kind} data path does not work here: {reason}")]
    Unavailable {
        /// The path that was wanted.
        kind: PathKind,
        /// The reason why not, and what would help.
        reason: String,
    },
    /// The operating system refused something every path needs.
    #[error("the {kind} data path could not {what}: {source}")]
    System {
        /// The path that was wanted.
        kind: PathKind,
        /// The action that failed.
        what: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
}
