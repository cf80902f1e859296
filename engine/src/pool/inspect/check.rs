//! Verifying a pool: every structure, every copy of it, and every byte of every durable tensor.

use std::sync::atomic::AtomicU64;

use super::damage::{Damage, DamagedTensor, DamagedTensorCopy, Unsettled};
use super::tensors::{Findings, ReadableVersion, Reader, WINDOW_BYTES};
use super::{devices, shares};
use crate::layout::{Geometry, Superblock};
use crate::log::StripeMap;
use crate::path::{MemberSource, OpenMode};
use crate::pool::OpenError;
use crate::pool::arrangement::{Arranged, Completeness};
use crate::pool::events::ShareOnDevices;
use crate::pool::media::MetadataIo;
use crate::pool::members::{MemberAccess, Members, MembersReactor};
use crate::pool::open::open_members;
use crate::schedule::{Reactor, ReactorOptions};
use crate::units::ByteCount;

/// Progress of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckProgress {
    /// Tensor bytes that have been read and compared, those of all copies.
    pub done: ByteCount,
    /// All there are.
    pub total: ByteCount,
}

/// Findings of a check.
#[derive(Clone, Debug)]
pub struct CheckReport {
    /// The pool.
    pub pool: u128,
    /// The geometry.
    pub geometry: Geometry,
    /// The devices' names, in stripe order.
    pub devices: Vec<String>,
    /// Damage: all that is not as it was written.
    pub damage: Vec<Damage>,
    /// Writes in progress when a process ended, which the next open settles: no damage.
    pub unsettled: Vec<Unsettled>,
    /// Durable tensors that were verified, and versions that seals alone hold.
    pub tensors: u64,
    /// Number of these that seals alone hold.
    pub sealed: u64,
    /// Size in bytes.
    pub bytes: ByteCount,
    /// The data path that read them.
    pub path: String,
}

impl CheckReport {
    /// The shares whose index cannot be read: none of their tensors was verified.
    pub fn unread_shares(&self) -> impl Iterator<Item = u32> {
        self.damage.iter().filter_map(|damage| match damage {
            Damage::Index { share, .. } => Some(*share),
            _ => None,
        })
    }

    /// The tensors of which one copy is damaged, by the device that has it.
    pub fn damaged_copies(&self) -> impl Iterator<Item = &DamagedTensorCopy> {
        self.damage.iter().filter_map(|damage| match damage {
            Damage::TensorCopy(copy) => Some(copy),
            _ => None,
        })
    }

    /// The tensors of which bytes are lost.
    pub fn damaged_tensors(&self) -> impl Iterator<Item = &DamagedTensor> {
        self.damage.iter().filter_map(|damage| match damage {
            Damage::Tensor(tensor) => Some(tensor),
            _ => None,
        })
    }
}

/// Verifies the whole pool, reading only. Nobody can open a share of it meanwhile, and a share that
/// is open is an error. With `buffered` the data goes through the page cache, which may hide what
/// the medium lost; without it a file system that has no `O_DIRECT` is refused.
pub fn check<Source: MemberSource>(
    sources: &[Source],
    buffered: bool,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport, OpenError> {
    check_those(sources, buffered, Completeness::Whole, progress)
}

/// Verifies a pool of which one device may be missing, as [`check`] does. What it had is read from
/// the others; what they do not have is lost.
pub fn check_degraded<Source: MemberSource>(
    sources: &[Source],
    buffered: bool,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport, OpenError> {
    check_those(sources, buffered, Completeness::Degraded, progress)
}

fn check_those<Source: MemberSource>(
    sources: &[Source],
    buffered: bool,
    completeness: Completeness,
    progress: &mut dyn FnMut(CheckProgress),
) -> Result<CheckReport, OpenError> {
    let access = MemberAccess::to_read(buffered);
    let arranged = open_members(sources, &access, completeness)?;
    let Arranged { members, superblocks, damaged, missing, .. } = arranged;
    let superblock = superblocks.first().ok_or(OpenError::Devices(0))?;
    let Superblock { pool, geometry, .. } = *superblock;
    let reactor = reactor_to_read(&members, &geometry, buffered)?;
    let media =
        MetadataIo { reactor: &reactor, written: &AtomicU64::new(0), missing: members.absent() };
    let (names, each) = (members.names(), members.each());
    let mut damage: Vec<Damage> = missing
        .iter()
        .map(|device| Damage::Missing { device: names[usize::from(device.0)].clone() })
        .collect();
    damage.extend(devices::damage(&members, &superblocks, &damaged));
    let mut unsettled = devices::unsettled(&members, &damaged);
    let mut tensors = Vec::new();
    for share in 0..geometry.shares {
        let devices = ShareOnDevices { superblock, members: &each, share };
        let mut found = shares::look(&devices, &names, &media);
        // What is overwritten has no damage of its blocks besides.
        found.damage.retain(|it| !is_in_overwritten(it, &damage));
        damage.extend(found.damage);
        unsettled.extend(found.unsettled);
        tensors.extend(found.index.iter().flat_map(|index| ReadableVersion::all(share, index)));
    }
    let bytes = ByteCount(tensors.iter().map(ReadableVersion::bytes).sum());
    let sealed = tensors.iter().filter(|version| !version.current).count() as u64;
    let stripes = StripeMap::over(&geometry, &superblock.device_table()).without(missing, missing);
    let reader = Reader { reactor: &reactor, stripes, devices: &names };
    let Findings { tensors: lost, copies } = reader.damaged(&tensors, progress);
    damage.extend(copies.into_iter().map(Damage::TensorCopy));
    damage.extend(lost.into_iter().map(Damage::Tensor));
    Ok(CheckReport {
        pool,
        geometry,
        devices: names,
        damage,
        unsettled,
        tensors: tensors.len() as u64,
        sealed,
        bytes,
        path: reactor.capabilities().kind.to_string(),
    })
}

/// Returns whether the damage is a holder block of a device on which something else was made.
fn is_in_overwritten(damage: &Damage, of_devices: &[Damage]) -> bool {
    let Damage::Holder { device, .. } = damage else { return false };
    let is_it =
        |it: &Damage| matches!(it, Damage::OverwrittenStart { device: it, .. } if it == device);
    of_devices.iter().any(is_it)
}

/// A reactor to read a pool's metadata and tensors.
pub(super) fn reactor_to_read<'a>(
    members: &'a Members,
    geometry: &Geometry,
    buffered: bool,
) -> Result<MembersReactor<'a>, OpenError> {
    let mode = OpenMode { buffered, read_only: true, ..OpenMode::default() };
    // Two windows; a small pool never fills them.
    let pool_bytes = geometry.device_bytes * members.0.len() as u64;
    let staging = (2 * WINDOW_BYTES).min(pool_bytes).max(2 * geometry.stripe_unit);
    let options = ReactorOptions {
        chunk: ByteCount(geometry.stripe_unit),
        staging: ByteCount(staging),
        huge_pages: false,
        ..ReactorOptions::default()
    };
    let reactor = Reactor::start(members.best_provider(mode)?, options)?;
    Ok(MembersReactor::new(members, reactor))
}
