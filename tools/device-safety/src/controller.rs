//! Namespaces of NVMe controllers that the kernel does not drive. They have no node to look at:
//! whoever wants to know what one is attaches it, and nobody else can have it meanwhile.

use std::fmt;
use std::io;
use std::sync::Arc;

use tidelog_engine::layout::{BLOCK_BYTES, SUPERBLOCK_OFFSET, UnfinishedFormat};
use tidelog_engine::path::device::blank::first_byte_set_by;
use tidelog_engine::path::spdk::{AdminQueue, Controller, SpdkControllers};
use tidelog_engine::path::{ControllerName, PathProvider};
use tidelog_engine::units::ByteCount;

use super::refusal::Reason;

/// A controller that is this process's for as long as this lives.
pub struct ClaimedController(Arc<Controller>);

impl fmt::Debug for ClaimedController {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ClaimedController({})", self.size())
    }
}

impl ClaimedController {
    /// Attaches the controller.
    ///
    /// # Errors
    /// It is not there, or somebody else has it.
    pub fn to(name: &ControllerName) -> io::Result<Self> {
        Controller::attach(name).map(Self).map_err(io::Error::other)
    }

    /// The capacity of its namespace.
    pub fn size(&self) -> ByteCount {
        self.0.size()
    }

    /// Returns the contents that speak against writing it.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn holds(&self) -> io::Result<Option<Reason>> {
        let mut admin_queue = AdminQueue::new(&self.0)?;
        let mark = admin_queue.read(SUPERBLOCK_OFFSET, BLOCK_BYTES as usize)?;
        let is_unfinished = UnfinishedFormat::decode(&mark).is_some();
        let left = |block: &[u8]| is_unfinished && UnfinishedFormat::may_have_left(block);
        let read = |start, length: u64| admin_queue.read(start, length as usize);
        Ok(first_byte_set_by(read, self.size().0, &left)?.map(|at| Reason::NotBlank { at }))
    }

    /// Returns whether a data path to it is open.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Returns the provider of the data path to these, in stripe order.
    pub fn provider<'a>(attached: impl Iterator<Item = &'a Self>) -> Box<dyn PathProvider> {
        Box::new(SpdkControllers(attached.map(|it| Arc::clone(&it.0)).collect()))
    }
}
