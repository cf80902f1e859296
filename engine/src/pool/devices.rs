//! The devices of a pool before and besides the data path: locks, and looking for superblocks.

use std::io;
use std::os::unix::fs::MetadataExt;

use super::share_lock::{LockError, LockedFile, Shares};
use crate::layout::{BLOCK_BYTES, SUPERBLOCK_OFFSET, Superblock, SuperblockError};
use crate::path::sim::{SimDisk, SimDisks};
use crate::path::{
    Device, DeviceKind, DeviceOpenError, DeviceSpec, KernelDevices, OpenMode, PathChoice,
    PathProvider,
};
use crate::units::ByteCount;

/// One device, locked.
pub(super) enum Member {
    File { spec: DeviceSpec, lock: LockedFile, device: Device },
    Sim { disk: SimDisk, name: String },
}

/// Why a device cannot become a member.
#[derive(Debug)]
pub(super) enum MemberError {
    Lock(LockError),
    Device(DeviceOpenError),
}

impl Member {
    /// Locks a device that exists, and opens it. The lock comes first: an opener that is refused has
    /// touched nothing.
    pub(super) fn open(
        spec: &DeviceSpec,
        shares: Shares,
        mode: OpenMode,
    ) -> Result<Self, MemberError> {
        let path = spec.target();
        if !path.exists() {
            return Err(MemberError::Device(DeviceOpenError::Missing { path }));
        }
        let lock = LockedFile::acquire(&path, shares).map_err(MemberError::Lock)?;
        let device = Device::open(spec, mode).map_err(MemberError::Device)?;
        Ok(Self::File { spec: spec.clone(), lock, device })
    }

    pub(super) fn sim(disk: &SimDisk, index: usize) -> Self {
        Self::Sim { disk: disk.clone(), name: format!("sim{index}") }
    }

    pub(super) fn name(&self) -> String {
        match self {
            Self::File { spec, .. } => spec.to_string(),
            Self::Sim { name, .. } => name.clone(),
        }
    }

    pub(super) fn size(&self) -> ByteCount {
        match self {
            Self::File { device, .. } => device.size(),
            Self::Sim { disk, .. } => disk.size(),
        }
    }

    /// Makes a regular file at least this long.
    pub(super) fn grow(&mut self, size: ByteCount) -> Result<(), DeviceOpenError> {
        match self {
            Self::File { device, .. } => device.grow(size, false),
            Self::Sim { .. } => Ok(()),
        }
    }

    pub(super) fn is_block_device(&self) -> bool {
        matches!(self, Self::File { device, .. } if device.kind() == DeviceKind::Block)
    }

    /// Reads outside of the data path.
    pub(super) fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        match self {
            Self::File { lock, .. } => lock.read(offset, length),
            Self::Sim { disk, .. } => Ok(disk.peek(offset, length)),
        }
    }

    /// Says in the holder block who owns the share.
    pub(super) fn sign(&self, pool: u128, share: u32) -> io::Result<()> {
        match self {
            Self::File { lock, .. } => lock.sign(pool, share),
            Self::Sim { .. } => Ok(()),
        }
    }

    /// The newest valid superblock, and which of its copies (`A`, `B`) are damaged.
    pub(super) fn superblock(&self) -> Result<(Superblock, Vec<char>), SuperblockError> {
        let block = BLOCK_BYTES as usize;
        let size = self.size().0 / BLOCK_BYTES * BLOCK_BYTES;
        let read = |offset: u64| match self.read(offset, block) {
            Ok(bytes) => Superblock::decode(&bytes),
            Err(_) => Err(SuperblockError::Absent),
        };
        let first = read(SUPERBLOCK_OFFSET);
        // The second copy stands where the first says; without the first, at the device's end.
        let second_offset = first
            .as_ref()
            .map_or(size.saturating_sub(BLOCK_BYTES), |it| it.geometry.second_superblock_offset());
        let second = read(second_offset);
        match (first, second) {
            (Ok(first), Ok(second)) if first == second => Ok((first, vec![])),
            (Ok(first), Ok(second)) if second.generation > first.generation => {
                Ok((second, vec!['A']))
            }
            (Ok(first), _) => Ok((first, vec!['B'])),
            (Err(_), Ok(second)) => Ok((second, vec!['A'])),
            // What stands at the first place says more than what does not stand at the second.
            (Err(SuperblockError::Absent), Err(second)) => Err(second),
            (Err(first), Err(_)) => Err(first),
        }
    }
}

/// Two names of one device, if there are. Locks would notice too, but blame a process for it.
pub(super) fn find_twins(specs: &[DeviceSpec]) -> Option<(String, String)> {
    let mut seen: Vec<((bool, u64, u64), &DeviceSpec)> = Vec::new();
    for spec in specs {
        let Ok(metadata) = spec.target().metadata() else { continue };
        // A block device is known by its number, wherever its node stands.
        let identity = match metadata.rdev() {
            0 => (false, metadata.dev(), metadata.ino()),
            number => (true, 0, number),
        };
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
    /// What opens the data path to all of them.
    pub(super) fn provider(
        &self,
        choice: PathChoice,
        mode: OpenMode,
    ) -> Result<Box<dyn PathProvider>, DeviceOpenError> {
        let mut disks = Vec::new();
        let mut devices = Vec::new();
        for member in &self.0 {
            match member {
                Member::Sim { disk, .. } => disks.push(disk.clone()),
                Member::File { spec, .. } => devices.push(Device::open(spec, mode)?),
            }
        }
        if devices.is_empty() {
            Ok(Box::new(SimDisks(disks)))
        } else {
            Ok(Box::new(KernelDevices { devices, choice }))
        }
    }

    pub(super) fn names(&self) -> Vec<String> {
        self.0.iter().map(Member::name).collect()
    }
}
