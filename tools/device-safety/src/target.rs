//! Resolution of a name on the command line to a device, and everything that speaks against writing
//! it.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use tidelog_engine::path::{ControllerName, DeviceIdentity, DeviceSpec};
use tidelog_engine::units::ByteCount;

use super::controller::ClaimedController;
use super::refusal::{DeviceRefusal, Reason};
use super::system::{BlockDevice, DeviceNumber, System};

/// Kind of a device for the operating system.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TargetKind {
    /// A block device that exists.
    Block(BlockDevice),
    /// A regular file that exists.
    File,
    /// A regular file that will be made.
    NewFile,
    /// A namespace of a controller that the kernel does not drive.
    Controller(ControllerName),
    /// File of another kind, which is no device.
    Other(&'static str),
}

/// Scope of a device on its drive: whole drives can be deallocated and handed to user-space
/// drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// An `NVMe` namespace.
    WholeNamespace,
    /// Whole block device of another kind.
    WholeDevice,
    /// A namespace of a controller that the kernel does not drive.
    Controller,
    /// A part of the named device.
    Partition(String),
    /// A file on a file system.
    File,
}

impl fmt::Display for Scope {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WholeNamespace => write!(out, "whole NVMe namespace"),
            Self::WholeDevice => write!(out, "whole block device"),
            Self::Controller => write!(out, "NVMe namespace without the kernel"),
            Self::Partition(of) => write!(out, "partition of {of}"),
            Self::File => write!(out, "file"),
        }
    }
}

/// A device that was named on the command line.
#[derive(Clone, Debug)]
pub struct NamedDevice {
    /// The name as it was given.
    pub given: String,
    /// The file or node that it stands for, without symbolic links.
    pub path: PathBuf,
    /// Kind of the device.
    pub kind: TargetKind,
    /// Identity, independent of the name; `None` for a file that will be made.
    pub identity: Option<DeviceIdentity>,
    /// The size; zero for a file that will be made.
    pub size: ByteCount,
    /// Scope of the device on its drive.
    pub scope: Scope,
}

impl NamedDevice {
    /// Resolves the name.
    ///
    /// # Errors
    /// It could not be looked at.
    pub fn resolve(given: &str, system: &System) -> io::Result<Self> {
        let spec = DeviceSpec::new(given);
        if let Some(name) = spec.controller() {
            return Self::of_controller(given, name);
        }
        let named = spec.target();
        let (path, metadata) = match fs::canonicalize(&named) {
            Ok(path) => {
                let metadata = fs::metadata(&path)?;
                (path, metadata)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Self::new_file(given, &named);
            }
            Err(error) => return Err(error),
        };
        let found = metadata.file_type();
        let (kind, size, scope) = if found.is_block_device() {
            let number = DeviceNumber::from_raw(metadata.rdev());
            let device = system.block_device(number).ok_or_else(|| {
                let what = format!("block device {number} is not in {}", system.sysfs.display());
                io::Error::new(io::ErrorKind::NotFound, what)
            })?;
            let scope = match device.parent() {
                Some(disk) => Scope::Partition(disk.name),
                None if device.is_nvme_namespace() => Scope::WholeNamespace,
                None => Scope::WholeDevice,
            };
            let size = device.size();
            (TargetKind::Block(device), size, scope)
        } else if found.is_file() {
            (TargetKind::File, metadata.len(), Scope::File)
        } else {
            let what = match () {
                () if found.is_char_device() => "a character device",
                () if found.is_fifo() => "a pipe",
                () if found.is_socket() => "a socket",
                () => "a directory",
            };
            (TargetKind::Other(what), 0, Scope::File)
        };
        let identity = Some(DeviceIdentity::of(&metadata));
        Ok(Self { given: given.to_owned(), path, kind, identity, size: ByteCount(size), scope })
    }

    fn of_controller(given: &str, name: ControllerName) -> io::Result<Self> {
        Ok(Self {
            given: given.to_owned(),
            path: PathBuf::from(name.to_string()),
            size: ClaimedController::to(&name)?.size(),
            kind: TargetKind::Controller(name),
            identity: None,
            scope: Scope::Controller,
        })
    }

    fn new_file(given: &str, named: &Path) -> io::Result<Self> {
        // A link that leads nowhere would be followed to who knows where by the one who makes the
        // file.
        if fs::symlink_metadata(named).is_ok() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "it is a broken symbolic link"));
        }
        let directory = match named.parent() {
            Some(parent) if parent != Path::new("") => parent,
            _ => Path::new("."),
        };
        let directory = fs::canonicalize(directory).map_err(|error| {
            io::Error::new(error.kind(), format!("its directory cannot be used: {error}"))
        })?;
        let name = named.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let path = directory.join(name);
        // Nobody makes files in /dev on purpose: a mistyped device would silently become memory
        // there.
        if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
            return Err(io::Error::new(io::ErrorKind::NotFound, "there is no such device"));
        }
        Ok(Self {
            given: given.to_owned(),
            path,
            kind: TargetKind::NewFile,
            identity: None,
            size: ByteCount::ZERO,
            scope: Scope::File,
        })
    }

    /// Returns the name for the engine.
    pub fn spec(&self) -> DeviceSpec {
        DeviceSpec::new(&self.path)
    }

    /// Returns whether the named device is made of blocks that can be given back, as those of a
    /// file cannot.
    pub fn is_block_device(&self) -> bool {
        matches!(self.kind, TargetKind::Block(_) | TargetKind::Controller(_))
    }

    /// Returns whether the kernel knows partitions on it.
    pub fn has_partitions(&self) -> bool {
        matches!(&self.kind, TargetKind::Block(device) if !device.partitions().is_empty())
    }

    /// Returns the model name.
    pub fn model(&self) -> Option<String> {
        let TargetKind::Block(device) = &self.kind else { return None };
        device.model().or_else(|| device.parent()?.model())
    }
}

/// Names of one device, or of a disk and a partition of it.
pub fn same_or_overlapping(targets: &[NamedDevice]) -> Vec<DeviceRefusal> {
    let mut refusals = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        let twin = targets[..index].iter().find(|other| overlap(target, other));
        if let Some(twin) = twin {
            let reason = Reason::SameAs { other: twin.given.clone() };
            refusals.push(DeviceRefusal { device: target.given.clone(), reason });
        }
    }
    refusals
}

fn overlap(one: &NamedDevice, other: &NamedDevice) -> bool {
    match (&one.kind, &other.kind) {
        (TargetKind::NewFile, TargetKind::NewFile) => one.path == other.path,
        (TargetKind::Controller(one), TargetKind::Controller(other)) => one == other,
        (TargetKind::Block(disk), TargetKind::Block(part)) => {
            let is_parent = |disk: &BlockDevice, part: &BlockDevice| {
                part.parent().is_some_and(|parent| parent.number == disk.number)
            };
            disk.number == part.number || is_parent(disk, part) || is_parent(part, disk)
        }
        _ => one.identity.is_some() && one.identity == other.identity,
    }
}
