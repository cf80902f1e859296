//! Data paths, by which bytes reach a device: the trait, its rules, and its backends.
//!
//! A [`DataPath`] is one queue to a few devices, driven by one thread. Operations own their buffer:
//! it moves in with [`DataPath::submit`] and comes back in its [`Completion`], on errors too. What
//! holds for every backend:
//!
//! - *Refused* (nothing happened, the operation comes back) and *failed* (the device answered) are
//!   different types. A short transfer is a failure, once the kernel was asked for its rest.
//! - A media error on a read fails that operation only, and so does a deallocation, which is
//!   advice. A failed write or flush latches the device: from then on it refuses everything but
//!   reads, which still reach what was written before, until it is opened again. A device that is
//!   gone refuses reads too. A write past the page cache that finds no room latches nothing.
//! - Neither locks, allocations nor system calls per operation beyond what the path itself needs.
//!
//! [`uring`] is the path of choice (NVMe commands of its own, when asked for by name, see
//! [`uring::passthrough`]), [`posix`] serves where a container forbids `io_uring`, `spdk` (with the
//! feature of that name) drives whole controllers without the kernel, [`sim`] is a disk in memory
//! with faults on demand. [`choose`] opens devices and picks. [`checked`] wraps any of them and
//! panics when it breaks a rule.
//!
//! This is one of the two rooms of the engine in which `unsafe` is allowed.
#![allow(unsafe_code)]

pub mod checked;
pub mod choose;
pub mod device;
mod endurance;
mod error;
mod gate;
mod kernel;
mod kind;
mod latch;
pub mod member;
mod numa;
pub mod nvme;
mod operation;
mod partial;
pub mod posix;
mod priority;
mod shares;
pub mod sim;
mod slots;
#[cfg(feature = "spdk")]
pub mod spdk;
#[cfg(test)]
mod tests;
pub mod uring;
mod waker;
mod window;

use std::io;
use std::time::{Duration, Instant};

pub use choose::{Backend, KernelDevices, OpenedPath, PathProvider};
pub use device::{
    ControllerName, DEVICES_MAX, Device, DeviceIdentity, DeviceKind, DeviceOpenError, DeviceSpec,
    Fence, FenceKey, FillProgress, OpenMode, SpecError, controllers_of,
};
pub use endurance::{Endurance, FdpStatistics, ReclaimUnitHandle};
pub use error::PathError;
pub use kind::{PathChoice, PathKind, UnknownPath};
pub use member::{MemberDevice, MemberError, MemberSource, PathRequest};
pub use numa::stay_near;
pub use operation::{
    Action, Completion, DeviceError, Extent, Operation, OperationKind, PlacementHandle, Refusal,
    Refused, Status,
};
pub use partial::PartialProvider;
pub use priority::{IoPriority, PriorityClass};
pub use uring::SubmissionThread;
pub use waker::Waker;

use crate::memory::peer::PeerRegion;
use crate::memory::{DmaPool, GpuMemory, MemoryError, MemoryKind, WindowSize};
use crate::units::ByteCount;

/// True if this build has the data path `spdk`.
pub const HAS_SPDK: bool = cfg!(feature = "spdk");

/// Types for data paths outside of the engine.
pub mod backend {
    pub use super::gate::Gate;
    pub use super::shares::Shares;
    pub use super::slots::{Slots, conclude};
    pub use super::window::{
        DmaDirection, TransferPlace, TransferStatus, Window, WindowCompletion, WindowRequest,
        WindowTransfer, Windowed,
    };
}

/// Capabilities of a data path, found out when it was opened.
#[derive(Clone, Debug)]
pub struct Capabilities {
    /// Kind of the backend.
    pub kind: PathKind,
    /// The devices, by index.
    pub devices: Vec<DeviceCapabilities>,
    /// Kinds of memory that operations may name besides the host's.
    pub memory: MemoryKinds,
    /// True if an operation's priority is passed on.
    pub priorities: bool,
    /// Operations that may be in flight at once, over all devices.
    pub depth: u32,
    /// Registered buffers, by which transfers skip the per-operation pinning of their buffer.
    pub registered_buffers: Feature,
    /// Registered files, by which operations skip the lookup of their file.
    pub registered_files: Feature,
    /// Notes of the backend (kernel features in use, threads), for people.
    pub notes: Vec<String>,
}

/// Kinds of memory that a data path takes besides the host's, which every path takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryKinds {
    /// Memory of other PCI devices, once it was [registered](DataPath::register_peer).
    pub peer: bool,
    /// Memory of the GPU which the path [reaches](DataPath::reach_gpu).
    pub gpu: bool,
}

impl MemoryKinds {
    /// The host's alone.
    pub const HOST: Self = Self { peer: false, gpu: false };

    /// Returns whether operations may name memory of this kind.
    pub fn take(self, kind: MemoryKind) -> bool {
        match kind {
            MemoryKind::Host => true,
            MemoryKind::Peer => self.peer,
            MemoryKind::Gpu => self.gpu,
        }
    }
}

/// Properties of one device.
#[derive(Clone, Debug)]
pub struct DeviceCapabilities {
    /// The path, or a name for a simulated one.
    pub name: String,
    /// The capacity.
    pub size: ByteCount,
    /// The smallest unit it reads and writes, in bytes.
    pub logical_block: u32,
    /// True if the page cache is bypassed.
    pub direct: bool,
    /// True if a write that completed may still be lost when the power goes, unless it was forced
    /// (FUA) or a flush followed it.
    pub volatile_cache: bool,
    /// True if freed ranges may be given back to the medium (TRIM).
    pub deallocate: bool,
    /// Number of placement handles (FDP) that writes may name; 0 where the device has none.
    pub placement_handles: u16,
}

/// Reach of controllers into another device's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerReach {
    /// The IOMMU maps it for them.
    Iommu,
    /// Commands carry its addresses on the bus.
    BusAddresses,
}

impl std::fmt::Display for PeerReach {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Self::Iommu => "through the IOMMU",
            Self::BusAddresses => "by bus addresses",
        })
    }
}

/// Controllers cannot reach another device's memory, and why not.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("peer DMA does not work here: {0}")]
pub struct PeerUnreachable(pub String);

/// Feature of a path: in use, or the reason why not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Feature {
    /// Peer DMA is in use.
    On,
    /// Peer DMA is not in use, for this reason.
    Off(String),
}

/// One queue to a few devices.
///
/// # Safety
/// From an accepted [`submit`](DataPath::submit) until the buffer comes back in a completion, the
/// implementation owns the buffer and must neither free nor hand it out, not even when it is itself
/// dropped: memory that a device may still touch is leaked instead. A completion that claims
/// success means that every byte of the extent was moved. Memory of a GPU that an operation names
/// is the implementation's to read or write until the completion; where no device can be told to
/// have let go of it there is none.
pub unsafe trait DataPath {
    /// Returns the path's capabilities; changes only when something is registered.
    fn capabilities(&self) -> &Capabilities;

    /// Memory for buffers that the devices reach best; [`register`](DataPath::register) it like any
    /// other.
    fn allocate(&mut self, bytes: ByteCount, huge_pages: bool) -> Result<DmaPool, MemoryError> {
        DmaPool::new(bytes, huge_pages)
    }

    /// Registers the memory that buffers will come from. Where that is not possible the path goes
    /// on without, and [`Capabilities::registered_buffers`] says why.
    fn register(&mut self, region: &DmaPool);

    /// Lets go of the memory that was registered, while nothing is in flight. `false`: devices may
    /// reach it until the path is dropped.
    fn unregister(&mut self) -> bool {
        false
    }

    /// Lets operations name buffers of this device memory (peer DMA), until the path is dropped.
    /// Returns how the controllers reach it.
    ///
    /// # Errors
    /// Why they cannot.
    fn register_peer(&mut self, _region: &PeerRegion) -> Result<PeerReach, PeerUnreachable> {
        let kind = self.capabilities().kind;
        Err(PeerUnreachable(format!(
            "the {kind} data path moves bytes by way of the host's memory"
        )))
    }

    /// Lets operations name memory of this GPU, until the path is dropped. Their completions tell
    /// the CRC32C of the bytes, which the GPU takes: the host sees none of them. They pass through
    /// a window of this size, so each is no longer than a chunk of it. Returns why not, where bytes
    /// are to pass through staging memory instead.
    ///
    /// # Errors
    /// The path is for GPUs alone, and does not work.
    fn reach_gpu(
        &mut self,
        _gpu: &dyn GpuMemory,
        _window: WindowSize,
    ) -> Result<Feature, PathError> {
        let kind = self.capabilities().kind;
        Ok(Feature::Off(format!("the {kind} data path moves bytes by way of the host's memory")))
    }

    /// Takes an operation, or gives it back untouched. Accepted operations may wait for
    /// [`ring`](DataPath::ring). Their order is not kept.
    fn submit(&mut self, operation: Operation) -> Result<(), Refused>;

    /// Lets the devices see everything submitted. An error means that the path itself is dead.
    fn ring(&mut self) -> io::Result<()>;

    /// Appends what has completed; returns how many.
    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize;

    /// Rings, then sleeps until a completion can be polled, the (armed) [`Waker`] is woken, or the
    /// time is up. May return early.
    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()>;

    /// The handle with which other threads end a [`wait`](DataPath::wait).
    fn waker(&self) -> Waker;

    /// Asks that the operation with this tag ends soon. It completes all the same: as aborted, or
    /// as if nothing had been asked.
    fn abort(&mut self, tag: u64);

    /// Operations accepted and not yet polled.
    fn in_flight(&self) -> usize;

    /// Waits for everything in flight, aborting it once `deadline` has passed. Returns how many
    /// operations are in flight even then; their buffers stay leaked.
    fn drain(&mut self, deadline: Instant, completions: &mut Vec<Completion>) -> usize {
        /// Time for aborted operations to come back.
        const GRACE: Duration = Duration::from_millis(500);
        let last = deadline + GRACE;
        let mut tags_asked = false;
        while self.in_flight() > 0 {
            self.poll(completions);
            let now = Instant::now();
            if self.in_flight() == 0 || now >= last {
                break;
            }
            if now >= deadline && !tags_asked {
                self.abort_all();
                tags_asked = true;
            }
            let until = if now < deadline { deadline } else { last };
            if self.wait(Some(until - now)).is_err() {
                break;
            }
        }
        self.in_flight()
    }

    /// Asks that everything in flight ends soon.
    fn abort_all(&mut self);
}
