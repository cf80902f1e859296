//! Members that a person names: files and block devices, which the kernel drives, and controllers,
//! which SPDK drives.

use std::fs::Metadata;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;

use super::choose::{KernelDevices, PathProvider};
use super::device::blank::Leftover;
use super::device::lock::LockedFile;
use super::device::users::{lock_of_others, other_use_unless};
use super::device::{
    ControllerName, Device, DeviceIdentity, DeviceKind, DeviceOpenError, DeviceSpec, Fence,
    FenceKey, FillProgress, OpenMode, fence,
};
use super::endurance::Endurance;
use super::member::{MemberDevice, MemberError, MemberSource, PathRequest, mixed, of_one_kind};
use super::nvme::{AdminError, Namespace};
use crate::units::ByteCount;

/// A file or block device, locked.
struct KernelMember {
    spec: DeviceSpec,
    lock: LockedFile,
    device: Device,
}

impl MemberSource for DeviceSpec {
    fn name(&self, _place: usize) -> String {
        self.to_string()
    }

    fn open_member(
        &self,
        _place: usize,
        shares: Range<u32>,
        mode: OpenMode,
    ) -> Result<Box<dyn MemberDevice>, MemberError> {
        if let Some(name) = self.controller() {
            return Ok(attach(&name)?);
        }
        let open = if mode.read_only { open_to_read } else { open_to_write };
        let (lock, device) = open(self, shares, mode)?;
        Ok(Box::new(KernelMember { spec: self.clone(), lock, device }))
    }

    /// A controller is asked when it is opened.
    fn check_exists(&self) -> Result<(), DeviceOpenError> {
        if self.exists() { Ok(()) } else { Err(DeviceOpenError::Missing { path: self.target() }) }
    }

    fn create(
        &self,
        size: ByteCount,
        sparse: bool,
        mode: OpenMode,
        progress: FillProgress<'_>,
    ) -> Result<(), DeviceOpenError> {
        Device::create_with(self, size, sparse, mode, progress).map(drop)
    }

    fn remove(&self) {
        // Whoever calls this reports why; a file left behind holds nothing.
        let _ = std::fs::remove_file(self.target());
    }

    /// Refuses a file or block device that another program has locked, and a file that one may
    /// write: a block device is claimed. Who has a share of a pool on it is named by the lock on
    /// that.
    fn refuse_other_users(&self, shares: Range<u32>) -> Result<(), DeviceOpenError> {
        let path = self.target();
        let is_device = |it: Metadata| it.is_file() || it.file_type().is_block_device();
        if !path.metadata().is_ok_and(is_device) {
            return Ok(());
        }
        // Another formatter has it open a moment before it has the shares.
        let is_pool =
            || LockedFile::open_to_read(&path).is_ok_and(|file| file.is_locked_elsewhere(&shares));
        match other_use_unless(&path, is_pool) {
            Ok(None) => Ok(()),
            Ok(Some(how)) => Err(DeviceOpenError::Used { path, how }),
            Err(source) => Err(DeviceOpenError::Open { path, source }),
        }
    }

    /// Locks would notice too, but name a process as the cause.
    fn find_twins(specs: &[Self]) -> Option<(String, String)> {
        let mut seen: Vec<(DeviceIdentity, &Self)> = Vec::new();
        // Two addresses of one namespace show when they are attached.
        let mut named: Vec<(ControllerName, &Self)> = Vec::new();
        for spec in specs {
            if let Some(name) = spec.controller() {
                if let Some((_, twin)) = named.iter().find(|(other, _)| other.is_twin_of(&name)) {
                    return Some((twin.to_string(), spec.to_string()));
                }
                named.push((name, spec));
                continue;
            }
            let Ok(metadata) = spec.target().metadata() else { continue };
            let identity = DeviceIdentity::of(&metadata);
            if let Some((_, twin)) = seen.iter().find(|(other, _)| *other == identity) {
                return Some((twin.to_string(), spec.to_string()));
            }
            seen.push((identity, spec));
        }
        None
    }
}

/// Locks a device, then opens it: an opener that is refused has touched nothing.
fn open_to_write(
    spec: &DeviceSpec,
    shares: Range<u32>,
    mode: OpenMode,
) -> Result<(LockedFile, Device), MemberError> {
    let path = spec.target();
    if !path.exists() {
        return Err(DeviceOpenError::Missing { path }.into());
    }
    let lock = LockedFile::acquire(&path, shares)?;
    let device = open_locked(spec, &lock, mode)?;
    // Others may have it open, for other shares of the pool; but none has reason to lock it.
    match lock_of_others(&path) {
        Ok(None) => Ok((lock, device)),
        Ok(Some(how)) => Err(DeviceOpenError::Used { path, how }.into()),
        Err(source) => Err(DeviceOpenError::Open { path, source }.into()),
    }
}

/// Opens a device, which says what a path is that is no device at all; then keeps writers out of
/// the shares, one after the other, so that the error says which one somebody has.
fn open_to_read(
    spec: &DeviceSpec,
    shares: Range<u32>,
    mode: OpenMode,
) -> Result<(LockedFile, Device), MemberError> {
    let path = spec.target();
    let device = Device::open(spec, mode)?;
    let mut lock = LockedFile::open_to_read(&path)?;
    for share in shares {
        lock = lock.also_to_read(&path, share)?;
    }
    Ok((lock, device))
}

/// Opens a device by its name once more, if that still stands for the one that is locked.
fn open_locked(
    spec: &DeviceSpec,
    lock: &LockedFile,
    mode: OpenMode,
) -> Result<Device, DeviceOpenError> {
    let device = Device::open(spec, mode)?;
    let opened = device.file().metadata().map(|it| DeviceIdentity::of(&it));
    match (opened, lock.identity()) {
        (Ok(opened), Ok(locked)) if opened == locked => Ok(device),
        (Ok(_), Ok(_)) => Err(DeviceOpenError::Changed { path: spec.target() }),
        (Err(source), _) | (_, Err(source)) => {
            Err(DeviceOpenError::Open { path: spec.target(), source })
        }
    }
}

#[cfg(feature = "spdk")]
use super::spdk::attach;

#[cfg(not(feature = "spdk"))]
fn attach(name: &ControllerName) -> Result<Box<dyn MemberDevice>, DeviceOpenError> {
    Err(DeviceOpenError::Controller {
        name: name.to_string(),
        why: "this build has no data path spdk; build it with the feature spdk".into(),
    })
}

impl MemberDevice for KernelMember {
    fn name(&self) -> String {
        self.spec.to_string()
    }

    fn size(&self) -> ByteCount {
        self.device.size()
    }

    fn identity(&self) -> Option<DeviceIdentity> {
        self.lock.identity().ok()
    }

    fn namespace(&self) -> Result<Namespace<'_>, AdminError> {
        Namespace::of(self.device.file())
    }

    fn endurance(&self) -> Result<Endurance, String> {
        let namespace = self.namespace();
        namespace.and_then(|it| it.endurance()).map_err(|error| error.to_string())
    }

    fn is_block_device(&self) -> bool {
        self.device.kind() == DeviceKind::Block
    }

    fn is_remote(&self) -> bool {
        self.device.is_remote()
    }

    fn fence(&self, ours: FenceKey, theirs: Option<FenceKey>) -> io::Result<Fence> {
        fence::fence(self.device.file(), ours, theirs)
    }

    fn unfence(&self, ours: FenceKey) {
        fence::unfence(self.device.file(), ours);
    }

    fn allows_several_paths(&self) -> bool {
        true
    }

    fn is_locked_elsewhere(&self, share: u32) -> bool {
        self.lock.is_locked_elsewhere(&(share..share + 1))
    }

    fn is_last_user(&self, shares: Range<u32>) -> bool {
        self.lock.is_last_user(&shares)
    }

    fn grow(
        &mut self,
        size: ByteCount,
        sparse: bool,
        progress: FillProgress<'_>,
    ) -> Result<(), DeviceOpenError> {
        self.device.grow_with(size, sparse, progress)
    }

    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.lock.read(offset, length)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.lock.write(offset, bytes)
    }

    fn deallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        self.lock.deallocate(offset, length)
    }

    fn first_byte_set(&self, left: Leftover<'_>) -> io::Result<Option<u64>> {
        self.lock.first_byte_set(self.size().0, left)
    }

    fn provider(
        &self,
        members: &[&dyn MemberDevice],
        request: &PathRequest<'_>,
    ) -> Result<Box<dyn PathProvider>, DeviceOpenError> {
        let members: Vec<&Self> =
            of_one_kind(members).map_err(|controller| mixed(controller.name()))?;
        let again = |member: &&Self| open_locked(&member.spec, &member.lock, request.mode);
        let devices = members.iter().map(again).collect::<Result<Vec<_>, _>>()?;
        let (choice, gpu) = (request.choice, request.gpu.cloned());
        Ok(match request.backend {
            Some(backend) => backend.provider(devices),
            None => Box::new(KernelDevices { gpu, ..KernelDevices::new(devices, choice) }),
        })
    }
}
