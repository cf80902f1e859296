//! Collects everything that speaks against writing a device.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use tidelog_engine::layout::{SuperblockError, UnfinishedFormat};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::path::device::blank::first_byte_set;
use tidelog_engine::path::device::users::other_use;
use tidelog_engine::path::nvme::{Namespace, UnusableNamespace};
use tidelog_engine::pool::OpenError;
use tidelog_engine::pool::inspect::inspect;
use tidelog_engine::units::ByteCount;

use super::content::{is_unfinished, signatures, signatures_of_partitions};
use super::controller::ClaimedController;
use super::refusal::{DeviceRefusal, Reason};
use super::system::{BlockDevice, DeviceNumber, System, is_claimed};
use super::target::{NamedDevice, TargetKind};

/// Returns all reasons against writing this device. These pools are `unfinished`, as other devices
/// that are named with it say ([`unfinished_pool`]).
///
/// [`unfinished_pool`]: super::unfinished_pool
///
/// # Errors
/// It could not be looked at, so nothing is known.
pub fn refusals(
    target: &NamedDevice,
    system: &System,
    programs: &[PathBuf],
    unfinished: &[u128],
) -> io::Result<Vec<DeviceRefusal>> {
    let mut reasons = users(target, system)?;
    if may_be_read(target, &reasons) {
        let left = is_unfinished(&target.path, unfinished);
        let mut content = named_content(target, programs, left);
        if content.is_empty() {
            content.extend(unnamed_content(target, left)?);
        }
        reasons.extend(content);
    }
    let refusal = |reason| DeviceRefusal { device: target.given.clone(), reason };
    Ok(reasons.into_iter().map(refusal).collect())
}

/// Returns the users of a device and its signatures, for those who write nothing: a few reads,
/// whether it is blank would take a thousand.
///
/// # Errors
/// It could not be looked at, so nothing is known.
pub fn users_and_names(
    target: &NamedDevice,
    system: &System,
    programs: &[PathBuf],
) -> io::Result<Vec<Reason>> {
    let mut reasons = users(target, system)?;
    if may_be_read(target, &reasons) {
        let left = is_unfinished(&target.path, &[]);
        reasons.extend(named_content(target, programs, left));
    }
    Ok(reasons)
}

fn users(target: &NamedDevice, system: &System) -> io::Result<Vec<Reason>> {
    match &target.kind {
        // Whoever attaches a controller is its only user, and that was possible.
        TargetKind::NewFile | TargetKind::Controller(_) => Ok(Vec::new()),
        TargetKind::Other(found) => Ok(vec![Reason::NoDevice { found }]),
        TargetKind::File => users_of_file(target, system),
        TargetKind::Block(device) => users_of_block_device(target, device, system),
    }
}

fn users_of_file(target: &NamedDevice, system: &System) -> io::Result<Vec<Reason>> {
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
fn may_be_read(target: &NamedDevice, users: &[Reason]) -> bool {
    let is_there = !matches!(target.kind, TargetKind::NewFile) && target.size > ByteCount::ZERO;
    is_there && users.iter().all(Reason::may_be_overridden)
}

fn users_of_block_device(
    target: &NamedDevice,
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
    // The kernel's own word comes last and covers what no table shows: other mount namespaces,
    // programs that opened it exclusively. The claim ends at once; formatting claims it again.
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

/// Returns the reason why a drive is unsuitable for a pool. Not every user may send an `NVMe` drive
/// a command.
fn unsuitable(target: &NamedDevice, device: &BlockDevice) -> Option<Reason> {
    let said = || {
        let file = File::open(&target.path).ok()?;
        Namespace::of(&file).ok()?.unusable().ok()?
    };
    let why = match device.is_nvme_namespace().then(said).flatten() {
        None if device.is_zoned() => UnusableNamespace::Zoned,
        known => known?,
    };
    Some(Reason::Unsuitable { why: why.to_string() })
}

/// Pools on a device's partitions, or on the disk that it is a partition of. An open pool claims
/// nothing from the kernel, because other processes have shares of it: nobody but Tidelog knows
/// that it is in use.
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

/// Returns the signatures of a target, without those that an interrupted format `left`.
fn named_content(target: &NamedDevice, programs: &[PathBuf], left: bool) -> Vec<Reason> {
    let mut reasons = if left { Vec::new() } else { pool_reasons(&target.spec()) };
    // What the kernel does not drive has no node that a program could look at.
    if !matches!(target.kind, TargetKind::Controller(_)) {
        let mut signatures = signatures(&target.path, programs);
        signatures.retain(|it| !(left && it.name == "PMBR"));
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

fn unnamed_content(target: &NamedDevice, left: bool) -> io::Result<Option<Reason>> {
    if let TargetKind::Controller(name) = &target.kind {
        return ClaimedController::to(name)?.holds();
    }
    let left = |block: &[u8]| left && UnfinishedFormat::may_have_left(block);
    let found = first_byte_set(&File::open(&target.path)?, target.size.0, &left)?;
    Ok(found.map(|at| Reason::NotBlank { at }))
}

/// The Tidelog pool that the device belongs to, if it does.
fn pool_reasons(spec: &DeviceSpec) -> Vec<Reason> {
    let view = match inspect(std::slice::from_ref(spec)) {
        Ok(view) => view,
        Err(OpenError::Superblock {
            source: SuperblockError::Absent | SuperblockError::Unfinished,
            ..
        }) => return Vec::new(),
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
