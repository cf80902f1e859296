//! Data path without the kernel: SPDK's NVMe driver on whole controllers, by PCI address (vfio-pci,
//! uio) or over a fabric.
//!
//! A reactor has one queue pair on each of its controllers, polls it, and lets submissions be seen
//! in batches. Operations are cut at what the controller takes at once. A command that takes too
//! long is aborted; if that does not bring it back the controller is reset (one on the bus) or
//! connected anew (one over a fabric), and the command fails as timed out. The admin thread does
//! that step by step, and the reactor goes on with the others. A connection that is lost is made
//! anew as well, for reads alone. A controller that is gone fails everything in flight as removed,
//! and refuses the rest.
//!
//! Buffers come out of the environment's memory ([`SpdkPath::allocate`](DataPath::allocate)), which
//! every controller can reach; other pools must be registered.

mod admin_queue;
mod admin_thread;
mod attach;
mod claim;
mod command;
mod controller;
mod ending;
mod endurance;
mod environment;
mod exchange;
mod flight;
mod group;
mod host;
mod identity;
mod log;
mod member;
mod options;
mod pair;
mod path;
mod peer;
mod queue;
mod reset;
mod sigbus;
mod timeout;
mod waiting;

pub use admin_queue::AdminQueue;
pub use controller::{AttachError, Controller};
pub use environment::{EnvironmentError, configure};
pub(super) use member::attach;
pub use options::{EnvironmentOptions, Pages};
pub use path::SpdkPath;
pub use timeout::TimeoutCounters;

use std::sync::Arc;

use super::choose::{OpenedPath, PathProvider};
use super::error::PathError;
use super::window::Windowed;

/// Controllers, in stripe order.
pub struct SpdkControllers(
    /// The controllers.
    pub Vec<Arc<Controller>>,
);

impl PathProvider for SpdkControllers {
    fn open(self: Box<Self>, depth: u32) -> Result<OpenedPath, PathError> {
        let path = Box::new(Windowed::new(Box::new(SpdkPath::of_pool(self.0, depth)?)));
        Ok(OpenedPath { path, why_not: Vec::new() })
    }
}
