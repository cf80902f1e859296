//! The reason why nothing was measured, and the exit code that says so.

use std::fmt::Write;
use std::io;
use std::path::PathBuf;

use tidelog_command_line::BenchExit;
use tidelog_device_safety::DeviceRefusal;
use tidelog_engine::path::{DeviceOpenError, PathError};
use tidelog_engine::units::ByteCount;

use crate::holder::LockHolder;

/// The reason why nothing was measured.
#[derive(Debug, thiserror::Error)]
pub enum BenchError {
    /// An option, or the way options go together.
    #[error("{at}{what}")]
    Usage {
        /// Place of the error: a job file's name, or a job's; ends with a colon and a space.
        at: String,
        /// Description of the error, and advice.
        what: String,
    },
    /// An I/O engine that is none of ours.
    #[error("ioengine={name}: {reason}")]
    Engine {
        /// The name.
        name: String,
        /// The reason why not, and what to do.
        reason: String,
    },
    /// Devices may not be written.
    #[error("{}", refusal_text(.0))]
    Refused(Vec<DeviceRefusal>),
    /// The path is held: another run writes it.
    #[error("nothing was written, because {} is in use{}; wait for its end, or name another file", .path.display(), by(.holder.as_ref()))]
    Held {
        /// Path of the file.
        path: PathBuf,
        /// Holder of the lock, where the kernel tells.
        holder: Option<LockHolder>,
    },
    /// A file system has no room for the files that would be made.
    #[error(
        "nothing was written, because {wanted} are to be reserved on the file system of {}, which has {free} left; \
         give a smaller size", .path.display()
    )]
    NoRoom {
        /// A file that would be there.
        path: PathBuf,
        /// Bytes that all files there would take.
        wanted: ByteCount,
        /// Bytes that are left.
        free: ByteCount,
    },
    /// The data path does not work here.
    #[error("{0}; nothing was measured, since no other data path takes its place")]
    Path(#[from] PathError),
    /// A device cannot be opened.
    #[error(transparent)]
    Device(#[from] DeviceOpenError),
    /// A pool cannot be made, opened or filled.
    #[error("{what}: {why}")]
    Pool {
        /// Action that failed, and its devices.
        what: String,
        /// The engine's answer.
        why: String,
    },
    /// Results could not be written.
    #[error("{what}: {source}")]
    Output {
        /// Destination of the output.
        what: String,
        /// Cause of the error.
        source: io::Error,
    },
    /// The operating system.
    #[error("{what}: {source}")]
    System {
        /// Action that failed.
        what: String,
        /// The answer.
        source: io::Error,
    },
}

impl BenchError {
    /// An error in an option or a combination of options.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::Usage { at: String::new(), what: what.into() }
    }

    /// Adds the place where the error was made.
    #[must_use]
    pub fn within(self, place: &str) -> Self {
        match self {
            Self::Usage { at, what } => Self::Usage { at: format!("{place}: {at}"), what },
            other => other,
        }
    }

    /// The exit code.
    pub fn exit(&self) -> BenchExit {
        match self {
            Self::Usage { .. } | Self::Engine { .. } => BenchExit::Usage,
            Self::Refused(_) | Self::Held { .. } | Self::Device(DeviceOpenError::InUse { .. }) => {
                BenchExit::Refused
            }
            Self::Path(PathError::Unavailable { .. }) => BenchExit::NoPath,
            Self::Output { .. } => BenchExit::Output,
            Self::Path(_)
            | Self::Device(_)
            | Self::Pool { .. }
            | Self::NoRoom { .. }
            | Self::System { .. } => BenchExit::System,
        }
    }
}

fn by(holder: Option<&LockHolder>) -> String {
    holder.map_or_else(String::new, |holder| format!(" by {holder}"))
}

fn refusal_text(refusals: &[DeviceRefusal]) -> String {
    let mut text = String::from("nothing was written, because");
    for DeviceRefusal { device, reason } in refusals {
        let _ = write!(text, "\n  {device}: {reason}\n    {}", reason.help(device));
    }
    text
}
