//! Devices as members of a pool: how one is found, locked and opened, what is asked of it beside
//! the data path, and what opens the data path to all of them.
//!
//! Whoever adds a kind of device implements [`MemberSource`] for what names it and [`MemberDevice`]
//! for what is open.

use std::any::Any;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;

use super::choose::{Backend, PathProvider};
use super::device::blank::{Leftover, first_byte_set_by};
use super::device::{
    ControllerName, DeviceIdentity, DeviceOpenError, Fence, FenceKey, FillProgress, OpenMode,
};
use super::endurance::Endurance;
use super::kind::PathChoice;
use super::nvme::{AdminError, Namespace};
use crate::memory::GpuMemory;
use crate::units::ByteCount;

/// Name or handle of a device that can be opened as a member of a pool.
pub trait MemberSource {
    /// Returns the name of the device, given its place in the list of devices.
    fn name(&self, place: usize) -> String;

    /// Opens the device with locks on these shares of it: against every other process, or, where
    /// the mode is read only, against those who write. The lock comes before anything is changed.
    ///
    /// # Errors
    /// Why not.
    fn open_member(
        &self,
        place: usize,
        shares: Range<u32>,
        mode: OpenMode,
    ) -> Result<Box<dyn MemberDevice>, MemberError>;

    /// Checks that there is something to open.
    ///
    /// # Errors
    /// There is not.
    fn check_exists(&self) -> Result<(), DeviceOpenError> {
        Ok(())
    }

    /// Makes the device, `size` bytes long, where it does not exist yet and can be made. Tells how
    /// many zeroes are stored, where it needs zeroes.
    ///
    /// # Errors
    /// Why not.
    fn create(
        &self,
        _size: ByteCount,
        _sparse: bool,
        _mode: OpenMode,
        _progress: FillProgress<'_>,
    ) -> Result<(), DeviceOpenError> {
        Ok(())
    }

    /// Removes what [`create`](MemberSource::create) made.
    fn remove(&self) {}

    /// Refuses a device that another program uses, unless that program has one of these shares of
    /// it.
    ///
    /// # Errors
    /// How it is used.
    fn refuse_other_users(&self, _shares: Range<u32>) -> Result<(), DeviceOpenError> {
        Ok(())
    }

    /// Two names of one device, if there are.
    fn find_twins(_sources: &[Self]) -> Option<(String, String)>
    where
        Self: Sized,
    {
        None
    }
}

/// An open device of a pool, beside its data path: locks, metadata before a data path is open, and
/// what it is.
pub trait MemberDevice: Any + Send {
    /// Returns the name.
    fn name(&self) -> String;

    /// Returns the capacity.
    fn size(&self) -> ByteCount;

    /// Returns the identity for the kernel, independent of the name. A device that the kernel does
    /// not know has none.
    fn identity(&self) -> Option<DeviceIdentity> {
        None
    }

    /// The controller that it was named by, where the kernel does not drive it.
    fn controller(&self) -> Option<&ControllerName> {
        None
    }

    /// Returns the namespace, through the kernel's driver.
    ///
    /// # Errors
    /// It is none, or the kernel does not say.
    fn namespace(&self) -> Result<Namespace<'_>, AdminError> {
        Err(AdminError::Nonsense)
    }

    /// Returns the wear that the device reports.
    ///
    /// # Errors
    /// Why it says nothing.
    fn endurance(&self) -> Result<Endurance, String>;

    /// Returns whether the member device is a block device, and no regular file.
    fn is_block_device(&self) -> bool;

    /// Returns whether the member only stands for a device that is missing: all I/O fails.
    fn is_absent(&self) -> bool {
        false
    }

    /// Returns whether other hosts can reach it, too.
    fn is_remote(&self) -> bool {
        false
    }

    /// Fences the device for this host, in place of `theirs` where another host is known to have
    /// it: a reservation that the device's target keeps.
    ///
    /// # Errors
    /// The device did not get the command, or did not answer it.
    fn fence(&self, _ours: FenceKey, _theirs: Option<FenceKey>) -> io::Result<Fence> {
        Ok(Fence::Unsupported)
    }

    /// Gives the reservation back, if it is this host's.
    fn unfence(&self, _ours: FenceKey) {}

    /// Returns whether the member device is in this process's memory, where no other process can
    /// ever open it.
    fn is_private(&self) -> bool {
        false
    }

    /// Returns whether several data paths to it may be open at once.
    fn allows_several_paths(&self) -> bool {
        false
    }

    /// Returns whether somebody else has this share locked now.
    fn is_locked_elsewhere(&self, _share: u32) -> bool {
        false
    }

    /// Gives back its locks, then tries for all of these shares: whether nobody else on this host
    /// has one.
    fn is_last_user(&self, _shares: Range<u32>) -> bool {
        true
    }

    /// Makes a regular file at least this long, and reserves it unless it is to be sparse. Tells
    /// how many zeroes are stored, where it needs zeroes.
    ///
    /// # Errors
    /// Why not.
    fn grow(
        &mut self,
        _size: ByteCount,
        _sparse: bool,
        _progress: FillProgress<'_>,
    ) -> Result<(), DeviceOpenError> {
        Ok(())
    }

    /// Reads outside of the data path.
    ///
    /// # Errors
    /// Why not.
    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// Writes whole blocks outside of the data path, and puts them on the medium.
    ///
    /// # Errors
    /// Why not.
    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Gives these bytes back to a block device (TRIM).
    ///
    /// # Errors
    /// Why not.
    fn deallocate(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// The first byte that is not zero, of those that tell whether it is blank, in a block that is
    /// no leftover.
    ///
    /// # Errors
    /// It cannot be read.
    fn first_byte_set(&self, left: Leftover<'_>) -> io::Result<Option<u64>> {
        first_byte_set_by(|start, length| self.read(start, length as usize), self.size().0, left)
    }

    /// Returns the provider of the data path to all of these members, in stripe order, of which
    /// this is the first.
    ///
    /// # Errors
    /// They are not all of this kind, or cannot be opened once more for the path.
    fn provider(
        &self,
        members: &[&dyn MemberDevice],
        request: &PathRequest<'_>,
    ) -> Result<Box<dyn PathProvider>, DeviceOpenError>;
}

/// Request for a data path to the members of a pool.
#[derive(Default)]
pub struct PathRequest<'a> {
    /// The path.
    pub choice: PathChoice,
    /// A path that is no part of the engine, instead.
    pub backend: Option<&'a dyn Backend>,
    /// The GPU whose memory they serve, if they do.
    pub gpu: Option<&'a Arc<dyn GpuMemory>>,
    /// Mode in which the devices are opened once more for the path.
    pub mode: OpenMode,
}

/// The reason why a device cannot be opened as a member.
#[derive(Debug)]
pub enum MemberError {
    /// The shares are locked by another process.
    Locked {
        /// The file or block device.
        path: PathBuf,
        /// The shares that were asked for together.
        shares: Range<u32>,
    },
    /// The lock could not be asked for.
    Lock {
        /// The file or block device.
        path: PathBuf,
        /// The kernel's answer.
        source: io::Error,
    },
    /// The device.
    Device(DeviceOpenError),
}

impl From<DeviceOpenError> for MemberError {
    fn from(error: DeviceOpenError) -> Self {
        Self::Device(error)
    }
}

/// The members as what they are, if all are of one kind; or else the first that is of another.
pub(super) fn of_one_kind<'a, Kind: MemberDevice>(
    members: &[&'a dyn MemberDevice],
) -> Result<Vec<&'a Kind>, &'a dyn MemberDevice> {
    let known = |member: &&'a dyn MemberDevice| {
        let any: &dyn Any = *member;
        any.downcast_ref().ok_or(*member)
    };
    members.iter().map(known).collect()
}

/// A member that cannot be reached by the same data path as the others.
pub(super) fn mixed(controller: String) -> DeviceOpenError {
    let why = "other devices of the pool are the kernel's; a pool goes by one data path";
    DeviceOpenError::Controller { name: controller, why: why.into() }
}
