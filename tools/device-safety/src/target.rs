//! From a name on the command line to a device, and everything that speaks against writing it.

use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use tidelog_engine::layout::SuperblockError;
use tidelog_engine::path::device::blank::first_byte_set;
use tidelog_engine::path::device::users::other_use;
use tidelog_engine::path::nvme::{Namespace, Unusable};
use tidelog_engine::path::{ControllerName, DeviceIdentity, DeviceSpec};
use tidelog_engine::pool::OpenError;
use tidelog_engine::pool::inspect::inspect;
use tidelog_engine::units::ByteCount;

use super::content::{signatures, signatures_of_partitions};
use super::controller::Attached;
use super::refusal::{Reason, Refusal};
use super::system::{BlockDevice, DeviceNumber, System, is_claimed};

/// What a device is to the operating system.
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
    /// Something that is no device.
    Other(&'static str),
}

/// How much of a drive a device is: whole drives can be deallocated and handed to user-space drivers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// An `NVMe` namespace.
    WholeNamespace,
    /// Another whole block device.
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
pub struct Target {
    /// The name as it was given.
    pub given: String,
    /// The file or node that it stands for, without symbolic links.
    pub path: PathBuf,
    /// What it is.
    pub kind: TargetKind,
    /// What it is, whatever it is called; `None` for a file that will be made.
    pub identity: Option<DeviceIdentity>,
    /// Its size; zero for a file that will be made.
    pub size: ByteCount,
    /// How much of a drive it is.
    pub scope: Scope,
}

impl Target {
    /// What the name stands for.
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
            size: Attached::to(&name)?.size(),
            kind: TargetKind::Controller(name),
            identity: None,
            scope: Scope::Controller,
        })
    }

    fn new_file(given: &str, named: &Path) -> io::Result<Self> {
        // A link that leads nowhere would be followed to who knows where by the one who makes the file.
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
        // Nobody makes files in /dev on purpose: a mistyped device would silently become memory there.
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

    /// For the engine.
    pub fn spec(&self) -> DeviceSpec {
        DeviceSpec::new(&self.path)
    }

    /// Whether it is made of blocks that can be given back, as those of a file cannot.
    pub fn is_block_device(&self) -> bool {
        matches!(self.kind, TargetKind::Block(_) | TargetKind::Controller(_))
    }

    /// Whether the kernel knows partitions on it.
    pub fn has_partitions(&self) -> bool {
        matches!(&self.kind, TargetKind::Block(device) if !device.partitions().is_empty())
    }

    /// What its maker calls it.
    pub fn model(&self) -> Option<String> {
        let TargetKind::Block(device) = &self.kind else { return None };
        device.model().or_else(|| device.parent()?.model())
    }
}

/// Names of one device, or of a disk and a partition of it.
pub fn same_or_overlapping(targets: &[Target]) -> Vec<Refusal> {
    let mut refusals = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        let twin = targets[..index].iter().find(|other| overlap(target, other));
        if let Some(twin) = twin {
            let reason = Reason::SameAs { other: twin.given.clone() };
            refusals.push(Refusal { device: target.given.clone(), reason });
        }
    }
    refusals
}

fn overlap(one: &Target, other: &Target) -> bool {
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

/// Everything that speaks against writing this device.
///
/// # Errors
/// It could not be looked at, so nothing is known.
pub fn refusals(
    target: &Target,
    system: &System,
    programs: &[PathBuf],
) -> io::Result<Vec<Refusal>> {
    let mut reasons = users(target, system)?;
    if may_be_read(target, &reasons) {
        let mut content = named_content(target, programs);
        if content.is_empty() {
            content.extend(unnamed_content(target)?);
        }
        reasons.extend(content);
    }
    let refusal = |reason| Refusal { device: target.given.clone(), reason };
    Ok(reasons.into_iter().map(refusal).collect())
}

/// Who uses a device, and what it holds that has a name, for those who write nothing: a few reads, whether it is blank
/// would take a thousand.
///
/// # Errors
/// It could not be looked at, so nothing is known.
pub fn users_and_names(
    target: &Target,
    system: &System,
    programs: &[PathBuf],
) -> io::Result<Vec<Reason>> {
    let mut reasons = users(target, system)?;
    if may_be_read(target, &reasons) {
        reasons.extend(named_content(target, programs));
    }
    Ok(reasons)
}

fn users(target: &Target, system: &System) -> io::Result<Vec<Reason>> {
    match &target.kind {
        // Whoever attaches a controller is its only user, and that was possible.
        TargetKind::NewFile | TargetKind::Controller(_) => Ok(Vec::new()),
        TargetKind::Other(found) => Ok(vec![Reason::NoDevice { found }]),
        TargetKind::File => users_of_file(target, system),
        TargetKind::Block(device) => users_of_block_device(target, device, system),
    }
}

fn users_of_file(target: &Target, system: &System) -> io::Result<Vec<Reason>> {
    let mut reasons = system.users_of_file(&target.path);
    // Who has a pool on it open has it open for writing, and a name.
    let pool = pool_reasons(&target.spec());
    if pool.iter().any(|reason| matches!(reason, Reason::PoolInUse { .. })) {
        reasons.extend(pool);
    } else if reasons.is_empty() {
        reasons.extend(other_use(&target.path)?.map(|how| Reason::Used { how }));
    }
    Ok(reasons)
}

/// A device that somebody uses is not even read.
fn may_be_read(target: &Target, users: &[Reason]) -> bool {
    let is_there = !matches!(target.kind, TargetKind::NewFile) && target.size > ByteCount::ZERO;
    is_there && users.iter().all(Reason::may_be_overridden)
}

fn users_of_block_device(
    target: &Target,
    device: &BlockDevice,
    system: &System,
) -> io::Result<Vec<Reason>> {
    let mut reasons = system.users(device);
    reasons.extend(neighbouring_pools(device));
    if target.size == ByteCount::ZERO {
        reasons.push(Reason::NoDevice { found: "a block device without a size (no medium?)" });
    }
    if device.is_read_only() {
        reasons.push(Reason::ReadOnly);
    }
    reasons.extend(unsuitable(target, device));
    // The kernel's own word comes last and covers what no table shows: other mount namespaces, programs
    // that opened it exclusively. The claim ends at once; formatting claims it again.
    let known = reasons.iter().any(|reason| !reason.may_be_overridden());
    if !known && is_claimed(&target.path)? {
        reasons.push(Reason::Claimed);
    } else if !known {
        reasons.extend(other_use(&target.path)?.map(|how| Reason::Used { how }));
    }
    let partitions = device.partitions();
    if !partitions.is_empty() {
        let partitions = partitions.into_iter().map(|part| part.name).collect();
        reasons.push(Reason::Partitioned { partitions });
    }
    Ok(reasons)
}

/// What a drive is that no pool is made of. Whether an `NVMe` drive answers is not for everybody to ask.
fn unsuitable(target: &Target, device: &BlockDevice) -> Option<Reason> {
    let said = || {
        let file = File::open(&target.path).ok()?;
        Namespace::of(&file).ok()?.unusable().ok()?
    };
    let why = match device.is_nvme_namespace().then(said).flatten() {
        None if device.is_zoned() => Unusable::Zoned,
        known => known?,
    };
    Some(Reason::Unsuitable { why: why.to_string() })
}

/// Pools on a device's partitions, or on the disk that it is a partition of. An open pool claims nothing from
/// the kernel, because other processes have shares of it: nobody but Tidelog knows that it is in use.
fn neighbouring_pools(device: &BlockDevice) -> Vec<Reason> {
    let pools = |neighbour: &BlockDevice| {
        let node = Path::new("/dev").join(&neighbour.name);
        let is_it = DeviceNumber::of_path(&node) == Some(neighbour.number);
        if is_it { pool_reasons(&DeviceSpec::new(node)) } else { Vec::new() }
    };
    let mut reasons: Vec<Reason> = device.partitions().iter().flat_map(pools).collect();
    if let Some(disk) = device.parent() {
        let of_disk = pools(&disk).into_iter().map(|reason| match reason {
            // Its partitions are leftovers. Whoever wants them wipes the pool first.
            Reason::Pool { description } => {
                Reason::HeldBy { what: disk.name.clone(), holder: description }
            }
            other => other,
        });
        reasons.extend(of_disk);
    }
    reasons
}

fn named_content(target: &Target, programs: &[PathBuf]) -> Vec<Reason> {
    let mut reasons = pool_reasons(&target.spec());
    // What the kernel does not drive has no node that a program could look at.
    if !matches!(target.kind, TargetKind::Controller(_)) {
        let mut signatures = signatures(&target.path, programs);
        // Behind what is known of the whole device, a name within it says little more.
        if signatures.is_empty() && reasons.is_empty() {
            signatures = signatures_of_partitions(&target.path, target.size.0, programs);
        }
        if !signatures.is_empty() {
            let signatures = signatures.iter().map(ToString::to_string).collect();
            reasons.push(Reason::Holds { signatures });
        }
    }
    reasons
}

fn unnamed_content(target: &Target) -> io::Result<Option<Reason>> {
    if let TargetKind::Controller(name) = &target.kind {
        return Attached::to(name)?.holds();
    }
    let found = first_byte_set(&File::open(&target.path)?, target.size.0)?;
    Ok(found.map(|at| Reason::NotBlank { at }))
}

/// The Tidelog pool that the device belongs to, if it does.
fn pool_reasons(spec: &DeviceSpec) -> Vec<Reason> {
    let view = match inspect(std::slice::from_ref(spec)) {
        Ok(view) => view,
        Err(OpenError::Superblock { source: SuperblockError::Absent, .. }) => return Vec::new(),
        Err(OpenError::Superblock { source, .. }) => {
            return vec![Reason::Pool { description: format!("a Tidelog pool: {source}") }];
        }
        Err(OpenError::Shrunk { .. }) => {
            let description = "a Tidelog pool that is larger than the device".to_owned();
            return vec![Reason::Pool { description }];
        }
        // What cannot be read at all shows when its content is looked at.
        Err(_) => return Vec::new(),
    };
    let tensors: usize =
        view.shares.iter().filter_map(|share| Some(share.index.as_ref().ok()?.tensors.len())).sum();
    let description = format!(
        "Tidelog pool {:032x} (device {} of {}, {tensors} durable tensor(s))",
        view.superblock.pool,
        view.devices.first().map_or(0, |(place, _)| *place),
        view.superblock.geometry.devices,
    );
    let held = view.shares.iter().find(|share| share.held).map(|share| {
        let holder = share.holder.as_ref().map(|holder| format!(" by {holder}"));
        Reason::PoolInUse { holder: holder.unwrap_or_default() }
    });
    held.into_iter().chain([Reason::Pool { description }]).collect()
}
