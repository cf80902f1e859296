//! A build without SPDK attaches no controllers, and says so.

use std::io;

use tidelog_engine::path::{ControllerName, KernelDevices, PathChoice, PathProvider};
use tidelog_engine::units::ByteCount;

use super::refusal::Reason;

/// A controller that is this process's: in this build there is none.
#[derive(Debug)]
pub enum ClaimedController {}

impl ClaimedController {
    /// Refuses.
    ///
    /// # Errors
    /// Always: how to build one that can.
    pub fn to(_: &ControllerName) -> io::Result<Self> {
        Err(io::Error::other("this build has no SPDK; build it with --features spdk"))
    }

    /// The capacity of its namespace.
    pub fn size(&self) -> ByteCount {
        match *self {}
    }

    /// Returns the contents that speak against writing it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn holds(&self) -> io::Result<Option<Reason>> {
        match *self {}
    }

    /// Returns whether a data path to it is open.
    pub fn is_in_use(&self) -> bool {
        match *self {}
    }

    /// Returns the provider of the data path to these, in stripe order.
    pub fn provider<'a>(_: impl Iterator<Item = &'a Self>) -> Box<dyn PathProvider> {
        // Of no controllers, which it refuses.
        Box::new(KernelDevices::new(Vec::new(), PathChoice::Spdk))
    }
}
