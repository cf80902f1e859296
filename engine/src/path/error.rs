//! The reason why a data path could not be opened.

use super::kind::PathKind;

/// Returns advice for an error that is of a limit of open files; begins with a separator where
/// there is anything.
pub(super) fn help_with_open_files(error: &std::io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::EMFILE) => "; that is a limit of this process, which ulimit -n raises",
        Some(libc::ENFILE) => "; that is a limit of the machine, which sysctl fs.file-max raises",
        _ => "",
    }
}

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
    #[error("the {kind} data path could not {what}: {source}{}", help_with_open_files(source))]
    System {
        /// The path that was wanted.
        kind: PathKind,
        /// The action that failed.
        what: &'static str,
        /// The kernel's answer.
        source: std::io::Error,
    },
}
