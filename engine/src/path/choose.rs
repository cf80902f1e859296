//! Opening devices by the best path there is, and saying why not by a better one.

use std::sync::Arc;

use crate::memory::GpuMemory;

use super::device::Device;
use super::error::PathError;
use super::kind::{PathChoice, PathKind};
use super::uring::SubmissionThread;
use super::{DataPath, posix, stay_near, uring};

/// A data path, and how it was come by.
pub struct OpenedPath {
    /// The path.
    pub path: Box<dyn DataPath>,
    /// Reasons, for each better path, why it was not chosen.
    pub why_not: Vec<String>,
}

/// Opens a data path on the thread that will drive it.
///
/// A provider travels to that thread; the path it opens need not be able to.
pub trait PathProvider: Send {
    /// Opens the path with room for `depth` operations in flight per device.
    fn open(self: Box<Self>, depth: u32) -> Result<OpenedPath, PathError>;
}

/// A way to devices that is no part of the engine: another crate's data path.
pub trait Backend: std::fmt::Debug + Send + Sync {
    /// Returns the provider that opens the path to `devices`, given in stripe order.
    fn provider(&self, devices: Vec<Device>) -> Box<dyn PathProvider>;
}

/// Devices of the operating system, in stripe order, by the path of choice.
pub struct KernelDevices {
    /// The devices.
    pub devices: Vec<Device>,
    /// The path.
    pub choice: PathChoice,
    /// The GPU whose memory they serve, if they do: the thread that drives them goes where it is.
    pub gpu: Option<Arc<dyn GpuMemory>>,
    /// The kernel's thread that takes what is submitted, if there shall be one.
    pub submission: Option<SubmissionThread>,
}

impl KernelDevices {
    /// Devices that serve the host's memory.
    pub fn new(devices: Vec<Device>, choice: PathChoice) -> Self {
        Self { devices, choice, gpu: None, submission: None }
    }
}

impl PathProvider for KernelDevices {
    fn open(self: Box<Self>, depth: u32) -> Result<OpenedPath, PathError> {
        let Self { devices, choice, gpu, submission } = *self;
        if choice == PathChoice::Spdk {
            return Err(PathError::Unavailable {
                kind: PathKind::Spdk,
                reason: "the kernel drives these devices; name controllers, as spdk:0000:01:00.0"
                    .into(),
            });
        }
        let depth = depth.saturating_mul(devices.len() as u32);
        let mut why_not = Vec::new();
        // The thread that opens a path drives it.
        let near = stay_near(&devices, gpu.as_deref());
        if choice == PathChoice::UringCmd {
            let mut path =
                Box::new(uring::passthrough::PassthroughPath::new(&devices, depth, submission)?);
            path.note(near);
            return Ok(OpenedPath { path, why_not });
        }
        if choice != PathChoice::Posix {
            match uring::ProbedRing::probe(depth, submission) {
                Ok(ring) => {
                    let mut path = Box::new(uring::UringPath::new(ring, devices)?);
                    path.note(near);
                    return Ok(OpenedPath { path, why_not });
                }
                Err(error) if choice == PathChoice::Uring => return Err(error),
                Err(error) => why_not.push(error.to_string()),
            }
        }
        if submission.is_some() {
            return Err(PathError::Unavailable {
                kind: PathKind::Posix,
                reason: "the kernel takes submissions by a thread of its own for io_uring alone"
                    .into(),
            });
        }
        let mut path = Box::new(posix::PosixPath::new(devices, depth)?);
        path.note(near);
        Ok(OpenedPath { path, why_not })
    }
}
