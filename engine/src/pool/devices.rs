//! The devices of a pool before and besides the data path: locks, and looking for superblocks.

use std::fs::File;
use std::io;
use std::sync::Arc;

use super::owner::other_owner;
#[cfg(feature = "spdk")]
use super::share_lock;
use super::share_lock::{LockError, LockedFile, Shares};
use super::start;
use crate::layout::{
    BLOCK_BYTES, Geometry, Holder, Owner, SHARES_MAX, SUPERBLOCK_OFFSET, Superblock,
    SuperblockError,
};
use crate::memory::GpuMemory;
use crate::path::device::blank::first_byte_set_by;
use crate::path::nvme::Namespace;
use crate::path::sim::{SimDisk, SimDisks};
#[cfg(feature = "spdk")]
use crate::path::spdk::{Controller, SpdkControllers};
use crate::path::{
    Backend, ControllerName, Device, DeviceIdentity, DeviceKind, DeviceOpenError, DeviceSpec,
    Endurance, KernelDevices, OpenMode, PathChoice, PathProvider,
};
use crate::units::ByteCount;

/// One device, locked.
pub(super) enum Member {
    File {
        spec: DeviceSpec,
        lock: LockedFile,
        device: Device,
    },
    /// A namespace that is this process's alone on this host: there is no other lock.
    #[cfg(feature = "spdk")]
    Controller {
        name: String,
        controller: Arc<Controller>,
    },
    Sim {
        disk: SimDisk,
        name: String,
    },
}

/// Why a device cannot become a member.
#[derive(Debug)]
pub(super) enum MemberError {
    Lock(LockError),
    Device(DeviceOpenError),
    /// Another host writes it.
    Owned {
        device: String,
        owner: Owner,
    },
}

impl Member {
    /// Locks a device that exists, and opens it, unless another host owns it. The lock comes first: an opener that is
    /// refused has touched nothing.
    pub(super) fn open(
        spec: &DeviceSpec,
        shares: Shares,
        mode: OpenMode,
    ) -> Result<Self, MemberError> {
        let member = Self::open_whoever_owns_it(spec, shares, mode)?;
        let device = member.name();
        match other_owner(&member) {
            Ok(None) => Ok(member),
            Ok(Some(owner)) => Err(MemberError::Owned { device, owner }),
            Err(source) => {
                Err(MemberError::Device(DeviceOpenError::Open { path: device.into(), source }))
            }
        }
    }

    /// The same whichever host owns it.
    pub(super) fn open_whoever_owns_it(
        spec: &DeviceSpec,
        shares: Shares,
        mode: OpenMode,
    ) -> Result<Self, MemberError> {
        if let Some(name) = spec.controller() {
            return Self::attach(&name).map_err(MemberError::Device);
        }
        let path = spec.target();
        if !path.exists() {
            return Err(MemberError::Device(DeviceOpenError::Missing { path }));
        }
        let lock = LockedFile::acquire(&path, shares).map_err(MemberError::Lock)?;
        let device = open_locked(spec, &lock, mode).map_err(MemberError::Device)?;
        Ok(Self::File { spec: spec.clone(), lock, device })
    }

    /// Opens a device for reading only. With `keep_writers_out` nobody writes any share meanwhile; a
    /// share that somebody has open is then the error, and which one.
    pub(super) fn open_to_read(
        spec: &DeviceSpec,
        buffered: bool,
        keep_writers_out: bool,
    ) -> Result<Self, (u32, MemberError)> {
        if let Some(name) = spec.controller() {
            return Self::attach(&name).map_err(|error| (0, MemberError::Device(error)));
        }
        let path = spec.target();
        // The device first: it says what a path is that is no device at all.
        let mode = OpenMode { buffered, read_only: true, ..OpenMode::default() };
        let device = Device::open(spec, mode).map_err(|error| (0, MemberError::Device(error)))?;
        let refused = |share| move |error| (share, MemberError::Lock(error));
        let mut lock = LockedFile::open_to_read(&path).map_err(refused(0))?;
        if keep_writers_out {
            for share in 0..SHARES_MAX {
                lock = lock.also_to_read(&path, share).map_err(refused(share))?;
            }
        }
        Ok(Self::File { spec: spec.clone(), lock, device })
    }

    #[cfg(feature = "spdk")]
    fn attach(name: &ControllerName) -> Result<Self, DeviceOpenError> {
        let controller = Controller::attach(name).map_err(|error| DeviceOpenError::Controller {
            name: name.to_string(),
            why: error.to_string(),
        })?;
        Ok(Self::Controller { name: name.to_string(), controller })
    }

    #[cfg(not(feature = "spdk"))]
    fn attach(name: &ControllerName) -> Result<Self, DeviceOpenError> {
        Err(DeviceOpenError::Controller {
            name: name.to_string(),
            why: "this build has no data path spdk; build it with the feature spdk".into(),
        })
    }

    pub(super) fn sim(disk: &SimDisk, index: usize) -> Self {
        Self::Sim { disk: disk.clone(), name: format!("sim{index}") }
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::File { spec, .. } => spec.to_string(),
            #[cfg(feature = "spdk")]
            Self::Controller { name, .. } => name.clone(),
            Self::Sim { name, .. } => name.clone(),
        }
    }

    /// What it says of its own wear.
    fn endurance(&self) -> Result<Endurance, String> {
        match self {
            Self::File { device, .. } => Namespace::of(device.file())
                .and_then(|namespace| namespace.endurance())
                .map_err(|error| error.to_string()),
            #[cfg(feature = "spdk")]
            Self::Controller { controller, .. } => {
                controller.endurance().map_err(|error| error.to_string())
            }
            Self::Sim { .. } => Err("a simulated disk does not wear".into()),
        }
    }

    pub(super) fn size(&self) -> ByteCount {
        match self {
            Self::File { device, .. } => device.size(),
            #[cfg(feature = "spdk")]
            Self::Controller { controller, .. } => controller.size(),
            Self::Sim { disk, .. } => disk.size(),
        }
    }

    /// What it is, whatever it is called; disks that are simulated are nobody else's, nor is a controller.
    pub(super) fn identity(&self) -> Option<DeviceIdentity> {
        match self {
            Self::File { lock, .. } => lock.identity().ok(),
            #[cfg(feature = "spdk")]
            Self::Controller { .. } => None,
            Self::Sim { .. } => None,
        }
    }

    /// Its open file, if it is the kernel's.
    pub(super) fn file(&self) -> Option<&File> {
        match self {
            Self::File { device, .. } => Some(device.file()),
            #[cfg(feature = "spdk")]
            Self::Controller { .. } => None,
            Self::Sim { .. } => None,
        }
    }

    /// Makes a regular file at least this long, and reserves it unless it is to be sparse.
    pub(super) fn grow(&mut self, size: ByteCount, sparse: bool) -> Result<(), DeviceOpenError> {
        match self {
            Self::File { device, .. } => device.grow(size, sparse),
            #[cfg(feature = "spdk")]
            Self::Controller { .. } => Ok(()),
            Self::Sim { .. } => Ok(()),
        }
    }

    pub(super) fn is_block_device(&self) -> bool {
        match self {
            Self::File { device, .. } => device.kind() == DeviceKind::Block,
            #[cfg(feature = "spdk")]
            Self::Controller { .. } => true,
            Self::Sim { .. } => false,
        }
    }

    /// Whether other hosts can reach it, too.
    pub(super) fn is_remote(&self) -> bool {
        match self {
            Self::File { device, .. } => device.is_remote(),
            #[cfg(feature = "spdk")]
            Self::Controller { controller, .. } => controller.is_remote(),
            Self::Sim { .. } => false,
        }
    }

    /// Gives back the locks on its shares; whether nobody else on this host has one.
    pub(super) fn is_last_user(&self) -> bool {
        match self {
            Self::File { lock, .. } => lock.is_last_user(),
            #[cfg(feature = "spdk")]
            Self::Controller { .. } => true,
            Self::Sim { .. } => true,
        }
    }

    /// Reads outside of the data path.
    pub(super) fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::File { lock, .. } => lock.read(offset, length),
            #[cfg(feature = "spdk")]
            Self::Controller { controller, .. } => controller.read(offset, length),
            Self::Sim { disk, .. } => Ok(disk.peek(offset, length)),
        }
    }

    /// The first byte that is not zero, of those that tell whether it is blank.
    pub(super) fn first_byte_set(&self) -> io::Result<Option<u64>> {
        let size = self.size().0;
        match self {
            Self::File { lock, .. } => lock.first_byte_set(size),
            #[cfg(feature = "spdk")]
            Self::Controller { .. } => {
                first_byte_set_by(|start, length| self.read(start, length as usize), size)
            }
            Self::Sim { .. } => {
                first_byte_set_by(|start, length| self.read(start, length as usize), size)
            }
        }
    }

    /// Writes outside of the data path, and puts it on the medium.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        match self {
            Self::File { lock, .. } => lock.write(offset, bytes),
            #[cfg(feature = "spdk")]
            Self::Controller { controller, .. } => controller.write(offset, bytes),
            Self::Sim { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Gives the bytes back to a block device.
    pub(super) fn deallocate(&self, offset: u64, length: u64) -> io::Result<()> {
        match self {
            Self::File { lock, .. } => lock.deallocate(offset, length),
            #[cfg(feature = "spdk")]
            Self::Controller { controller, .. } => controller.deallocate(offset, length),
            Self::Sim { .. } => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    /// Whether a share is open somewhere now, and the name on its door.
    pub(super) fn holder(&self, share: u32) -> (bool, Option<Holder>) {
        match self {
            Self::File { lock, .. } => lock.holder(share),
            #[cfg(feature = "spdk")]
            Self::Controller { controller, .. } => {
                (false, share_lock::last_holder(share, |at, length| controller.read(at, length)))
            }
            Self::Sim { .. } => (false, None),
        }
    }

    /// Puts a share's holder block on the medium, for those who are refused. Nothing of it is left in a page cache, from
    /// where it could be written over what the data path writes there.
    pub(super) fn sign(&self, offset: u64, block: &[u8]) -> io::Result<()> {
        if matches!(self, Self::Sim { .. }) { Ok(()) } else { self.write(offset, block) }
    }

    /// What stands at the two places of this device's superblock. The first copy says where the second
    /// is; without it, that is the device's end, or where the rest of the pool has its own. Zeroes in the place of the
    /// first say that the pool was wiped, and then the rest of it does not count; unless others left them there.
    pub(super) fn superblock_copies(&self, others: Option<&Geometry>) -> SuperblockCopies {
        let read = |offset: u64| match self.read(offset, BLOCK_BYTES as usize) {
            Ok(bytes) => (Superblock::decode(&bytes), is_zero(&bytes)),
            Err(_) => (Err(SuperblockError::Absent), false),
        };
        let (first, is_zero) = read(SUPERBLOCK_OFFSET);
        if let Ok(found) = first {
            let second_offset = found.geometry.second_superblock_offset();
            return SuperblockCopies { first, second: read(second_offset).0, second_offset };
        }
        let copies = |first, second_offset| SuperblockCopies {
            first,
            second: read(second_offset).0,
            second_offset,
        };
        let at_end = copies(first.clone(), self.last_block());
        match others {
            Some(geometry)
                if at_end.second.is_err() && (!is_zero || start::holds_other_data(self)) =>
            {
                copies(first, geometry.second_superblock_offset())
            }
            _ => at_end,
        }
    }

    /// Where the last block begins.
    fn last_block(&self) -> u64 {
        (self.size().0 / BLOCK_BYTES * BLOCK_BYTES).saturating_sub(BLOCK_BYTES)
    }

    /// Every place at which this device has a superblock, whole or damaged, as far as anything tells: what the first
    /// one says, though it be damaged, the device's end, and where the rest of the pool has its own. The first one,
    /// which says where another is, comes last.
    pub(super) fn superblock_marks(&self, others: Option<&Geometry>) -> Vec<u64> {
        let found = |offset: u64| {
            let end = offset.checked_add(BLOCK_BYTES)?;
            let fits = end <= self.size().0 && offset.is_multiple_of(BLOCK_BYTES);
            let bytes = fits.then(|| self.read(offset, BLOCK_BYTES as usize).ok()).flatten()?;
            let decoded = Superblock::decode(&bytes);
            (decoded != Err(SuperblockError::Absent)).then_some((bytes, decoded))
        };
        let is_marked = |offset: &u64| found(*offset).is_some();
        // In the middle of a device anything may stand; unless it is sure, only what is whole is a superblock.
        let is_whole = |offset: &u64| found(*offset).is_some_and(|(_, decoded)| decoded.is_ok());
        let first = found(SUPERBLOCK_OFFSET);
        let (said, is_sure) = match &first {
            Some((bytes, decoded)) => (Superblock::claimed_second_offset(bytes), decoded.is_ok()),
            None => (None, false),
        };
        let said = said.filter(|it| if is_sure { is_marked(it) } else { is_whole(it) });
        let told = others.map(Geometry::second_superblock_offset).filter(is_whole);
        let last = Some(self.last_block()).filter(is_marked);
        let mut places: Vec<u64> = [said, told, last].into_iter().flatten().collect();
        places.retain(|place| *place != SUPERBLOCK_OFFSET);
        places.sort_unstable();
        places.dedup();
        places.extend(first.map(|_| SUPERBLOCK_OFFSET));
        places
    }

    /// Whether zeroes stand in the place of the first superblock, as wiping leaves them.
    pub(super) fn was_wiped(&self) -> bool {
        self.read(SUPERBLOCK_OFFSET, BLOCK_BYTES as usize).is_ok_and(|bytes| is_zero(&bytes))
    }

    /// The newest valid superblock, and which of its copies (`A`, `B`) are damaged.
    pub(super) fn superblock(
        &self,
        others: Option<&Geometry>,
    ) -> Result<(Superblock, Vec<char>), SuperblockError> {
        self.superblock_copies(others).newest()
    }
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// What stands at the two places of a device's superblock.
pub(super) struct SuperblockCopies {
    pub(super) first: Result<Superblock, SuperblockError>,
    pub(super) second: Result<Superblock, SuperblockError>,
    pub(super) second_offset: u64,
}

impl SuperblockCopies {
    /// The copy that holds, and which ones (`A`, `B`) are damaged.
    pub(super) fn newest(&self) -> Result<(Superblock, Vec<char>), SuperblockError> {
        match (&self.first, &self.second) {
            // What a newer version wrote is not written over because the other copy is older.
            (Err(newer), _) | (_, Err(newer)) if newer.is_of_another_version() => {
                Err(newer.clone())
            }
            (Ok(first), Ok(second)) if first == second => Ok((*first, vec![])),
            (Ok(first), Ok(second)) if second.generation > first.generation => {
                Ok((*second, vec!['A']))
            }
            (Ok(first), _) => Ok((*first, vec!['B'])),
            (Err(_), Ok(second)) => Ok((*second, vec!['A'])),
            // What stands at the first place says more than what does not stand at the second.
            (Err(SuperblockError::Absent), Err(second)) => Err(second.clone()),
            (Err(first), Err(_)) => Err(first.clone()),
        }
    }
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

/// Two names of one device, if there are. Locks would notice too, but blame a process for it.
pub(super) fn find_twins(specs: &[DeviceSpec]) -> Option<(String, String)> {
    let mut seen: Vec<(DeviceIdentity, &DeviceSpec)> = Vec::new();
    // Two addresses of one namespace show when they are attached.
    let mut named: Vec<(ControllerName, &DeviceSpec)> = Vec::new();
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

/// The members of a pool, in stripe order once they have been put into it.
pub(super) struct Members(pub(super) Vec<Member>);

impl Members {
    /// The geometry of the pool, of whichever member has a superblock that holds.
    pub(super) fn known_geometry(&self) -> Option<Geometry> {
        let known = self.0.iter().find_map(|member| member.superblock(None).ok());
        known.map(|(superblock, _)| superblock.geometry)
    }

    /// Whether the kernel drives them all.
    pub(super) fn are_of_the_kernel(&self) -> bool {
        self.0.iter().all(|member| matches!(member, Member::File { .. }))
    }

    /// Whether all of them are only simulated.
    pub(super) fn are_simulated(&self) -> bool {
        self.0.iter().all(|member| matches!(member, Member::Sim { .. }))
    }

    /// What opens the data path to all of them, for this GPU's memory too if there is one.
    pub(super) fn provider(
        &self,
        choice: PathChoice,
        backend: Option<&dyn Backend>,
        gpu: Option<&Arc<dyn GpuMemory>>,
        mode: OpenMode,
    ) -> Result<Box<dyn PathProvider>, DeviceOpenError> {
        let mut disks = Vec::new();
        let mut devices = Vec::new();
        #[cfg(feature = "spdk")]
        if let Some(controllers) = self.controllers(choice)? {
            return Ok(Box::new(controllers));
        }
        for member in &self.0 {
            match member {
                Member::Sim { disk, .. } => disks.push(disk.clone()),
                Member::File { spec, lock, .. } => devices.push(open_locked(spec, lock, mode)?),
                #[cfg(feature = "spdk")]
                Member::Controller { .. } => {}
            }
        }
        Ok(match backend {
            _ if devices.is_empty() => Box::new(SimDisks(disks)),
            Some(backend) => backend.provider(devices),
            None => {
                Box::new(KernelDevices { gpu: gpu.cloned(), ..KernelDevices::new(devices, choice) })
            }
        })
    }

    /// The controllers, if that is what the members are. One pool goes by one path.
    #[cfg(feature = "spdk")]
    fn controllers(&self, choice: PathChoice) -> Result<Option<SpdkControllers>, DeviceOpenError> {
        let mut controllers = Vec::new();
        for member in &self.0 {
            if let Member::Controller { controller, .. } = member {
                controllers.push(Arc::clone(controller));
            }
        }
        if controllers.is_empty() {
            return Ok(None);
        }
        let refused = |why: &str| {
            let is_controller = |it: &&Member| matches!(it, Member::Controller { .. });
            let name = self.0.iter().find(is_controller).map(Member::name).unwrap_or_default();
            Err(DeviceOpenError::Controller { name, why: why.into() })
        };
        if controllers.len() != self.0.len() {
            return refused(
                "other devices of the pool are the kernel's; a pool goes by one data path",
            );
        }
        if !matches!(choice, PathChoice::Auto | PathChoice::Spdk) {
            return refused("the kernel does not drive it; only the data path spdk reaches it");
        }
        Ok(Some(SpdkControllers(controllers)))
    }

    /// What each of them says of its own wear.
    pub(super) fn endurance(&self) -> Vec<Result<Endurance, String>> {
        self.0.iter().map(Member::endurance).collect()
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.iter().map(Member::name).collect()
    }
}
