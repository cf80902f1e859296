//! Replacing a device of a pool by a new one, on which everything that it had is made again from
//! the other copies.
//!
//! 1. The superblocks of the others say that the pool goes on without the old device, which is
//!    stale from then on.
//! 2. The new device gets a superblock that says so of itself: it is written and never read.
//! 3. Each share is opened, its index is written anew, and every copy that the old device had is
//!    read from the other device that has one and written to the new one.
//! 4. Once that is on the medium, all superblocks say that the pool is whole.
//!
//! Whatever ends a process in between, the same steps lead to the same end. All shares stay open
//! until the last step: nobody writes meanwhile what the new device would lack.

use super::arrangement::{Arranged, Completeness, arrange_those};
use super::error::{FormatError, OpenError};
use super::format;
use super::media::{MetadataIo, with_media};
use super::members::{Member, MemberAccess, Members};
use super::options::{FormatOptions, OpenOptions};
use super::rebuild::{Rebuild, ReplaceProgress};
use super::reshape::ReshapeError;
use super::{Pool, events, start, superblocks};
use crate::layout::{Geometry, Superblock, TensorKey, UnfinishedFormat, protective_mbr};
use crate::log::LogMedia;
use crate::path::{DeviceIdentity, MemberSource};
use crate::units::{ByteCount, DeviceIndex};

/// Options of a replacement.
#[derive(Clone, Debug, Default)]
pub struct ReplaceOptions {
    /// Go through the page cache, where the file system has no `O_DIRECT`.
    pub buffered: bool,
    /// True if what the new device holds may be lost.
    pub overwrite: bool,
    /// Devices that may lose what they hold, whatever `overwrite` says.
    pub overwrite_devices: Vec<DeviceIdentity>,
    /// Tensor bytes to write in a second; zero for as many as the devices move.
    pub rate: ByteCount,
    /// True to go on without durable tensors that no other device has. They stay as they are:
    /// damaged, until they are dropped.
    pub accept_loss: bool,
}

/// Result of a replacement.
#[derive(Clone, Debug)]
pub struct Replaced {
    /// Place of the device in the pool.
    pub place: u32,
    /// Names of the devices, in stripe order.
    pub devices: Vec<String>,
    /// Tensor bytes that were written to it.
    pub bytes: ByteCount,
    /// Durable tensors that have lost bytes, because no other device had them.
    pub lost: Vec<TensorKey>,
    /// True if there was nothing left to do.
    pub was_whole: bool,
}

/// Has `new` take the place of the device that is missing beside `others`, which are all other
/// devices of the pool. Nobody can open the pool meanwhile.
///
/// # Errors
/// See [`ReshapeError`].
pub fn replace<Device: MemberSource + Clone>(
    new: &Device,
    others: &[Device],
    options: &ReplaceOptions,
    progress: &mut dyn FnMut(ReplaceProgress),
) -> Result<Replaced, ReshapeError> {
    let all = together(new, others)?;
    let (geometry, place) = match prepare(new, others, options, u32::MAX)? {
        Prepared::Whole(place) => return end_whole(&all, place, options),
        Prepared::Begun { geometry, place } => (geometry, place),
    };
    let open = |share| {
        let how = open_options(&geometry, share, options.buffered);
        let opened = Pool::open_renewed(&all, &how, Completeness::Rebuilding)?;
        opened.ok_or(ReshapeError::NoRoom(share))
    };
    let shares = (0..geometry.shares).map(open).collect::<Result<Vec<Pool>, _>>()?;
    let (bytes, lost) = rebuild_all(&shares, options, progress)?;
    let mut devices = Vec::new();
    if let Some(pool) = shares.first() {
        pool.end_rebuilding(DeviceIndex(place as u8))?;
        devices.clone_from(&pool.description().devices);
    }
    shares.into_iter().try_for_each(|pool| pool.close())?;
    Ok(Replaced { place, devices, bytes, lost, was_whole: false })
}

/// Has `new` be a replacement that is begun, and nothing more: [`Pool::open`] with
/// [`OpenOptions::degraded`] takes it in, and [`Pool::rebuild`] finishes it while the pool is used.
/// Returns its place, and whether it has it already.
///
/// # Errors
/// See [`ReshapeError`]. A pool of several shares is opened by several processes, and is refused:
/// none of them could tell when all is done.
pub fn begin_replacement<Device: MemberSource + Clone>(
    new: &Device,
    others: &[Device],
    options: &ReplaceOptions,
) -> Result<(u32, bool), ReshapeError> {
    let all = together(new, others)?;
    match prepare(new, others, options, 1)? {
        Prepared::Whole(place) => {
            end_whole(&all, place, options)?;
            Ok((place, true))
        }
        Prepared::Begun { place, .. } => Ok((place, false)),
    }
}

/// Returns all devices of the pool, of which none is another by another name.
fn together<Device: MemberSource + Clone>(
    new: &Device,
    others: &[Device],
) -> Result<Vec<Device>, ReshapeError> {
    let all: Vec<Device> = others.iter().chain([new]).cloned().collect();
    match Device::find_twins(&all) {
        Some((one, other)) => Err(FormatError::SameDevice(one, other).into()),
        None => Ok(all),
    }
}

/// Makes again what the device had in each share. Returns the bytes, and the tensors that have lost
/// some.
fn rebuild_all(
    shares: &[Pool],
    options: &ReplaceOptions,
    progress: &mut dyn FnMut(ReplaceProgress),
) -> Result<(ByteCount, Vec<TensorKey>), ReshapeError> {
    let refuse_loss = |lost: &[TensorKey]| {
        if lost.is_empty() || options.accept_loss {
            return Ok(());
        }
        Err(ReshapeError::Lost(lost.to_vec()))
    };
    let mut lost = Vec::new();
    for pool in shares {
        lost.extend(pool.lost_tensors()?);
    }
    refuse_loss(&lost)?;
    let rebuilds = shares.iter().map(|pool| pool.rebuild(options.rate));
    let rebuilds: Vec<_> = rebuilds.collect::<Result<_, _>>()?;
    let mut rebuilds: Vec<Rebuild> = rebuilds.into_iter().flatten().map(Rebuild::alone).collect();
    let total = ByteCount(rebuilds.iter().map(|it| it.total().0).sum());
    let (mut before, mut lost) = (ByteCount::ZERO, Vec::new());
    for rebuild in &mut rebuilds {
        rebuild.start_clock();
        while let Some(now) = rebuild.step()? {
            progress(ReplaceProgress { done: ByteCount(before.0 + now.done.0), total });
            std::thread::sleep(rebuild.due());
        }
        before.0 += rebuild.total().0;
        progress(ReplaceProgress { done: before, total });
        lost.extend(rebuild.lost()?);
    }
    refuse_loss(&lost)?;
    Ok((total, lost))
}

/// State of the devices once the new one can be written.
enum Prepared {
    /// A device that has this place already; nothing is left to do but to say so everywhere.
    Whole(u32),
    /// A replacement that is begun.
    Begun { geometry: Geometry, place: u32 },
}

/// Has the others go on without the old device, and the new one be a replacement that is begun.
/// Refuses a pool of more than `shares_max` shares.
fn prepare<Device: MemberSource>(
    new: &Device,
    others: &[Device],
    options: &ReplaceOptions,
    shares_max: u32,
) -> Result<Prepared, ReshapeError> {
    let access = MemberAccess::alone(options.buffered);
    let members = Members::open(others, &access)?;
    let Arranged { members, superblocks, .. } =
        arrange_those(members, &[], Completeness::Degraded)?;
    let Some(newest) = superblocks.iter().max_by_key(|it| it.generation) else {
        return Err(OpenError::Devices(0).into());
    };
    let (newest, geometry) = (*newest, newest.geometry);
    if geometry.shares > shares_max {
        return Err(ReshapeError::Shares(geometry.shares));
    }
    let missing = members.missing();
    let Some(place) = missing.iter().next() else { return Err(ReshapeError::NoneMissing) };
    start::refuse_overwritten(&members, &superblocks)?;
    let place = u32::from(place.0);
    let format = FormatOptions {
        overwrite: options.overwrite,
        overwrite_devices: options.overwrite_devices.clone(),
        buffered: options.buffered,
        ..FormatOptions::default()
    };
    let needed = ByteCount(geometry.device_bytes);
    if new.check_exists().is_err() {
        new.create(needed, false, access.mode, &mut |_| ()).map_err(FormatError::from)?;
    }
    let mut member = Member::open(new, others.len(), &access).map_err(FormatError::from)?;
    let is_its = |it: &Superblock| it.is_of_the_same_pool(&newest) && it.device == place;
    // A larger device has its second copy where only the others can say.
    let found = member.superblock_beside(&[geometry]).ok().filter(is_its);
    let newer = found.filter(|found| found.generation > newest.generation).unwrap_or(newest);
    if found.is_some() && newer.missing.is_empty() && is_as_new(&members, &member, &newest) {
        // The others were never without it, or are no more.
        return Ok(Prepared::Whole(place));
    }
    let is_begun = found.is_some_and(|it| it.missing.contains(DeviceIndex(place as u8)));
    if !is_begun {
        format::refuse_content(std::iter::once(&member), &format)?;
    }
    // A file of which an earlier call was killed while it was made.
    member.grow(needed, false, &mut |_| ()).map_err(FormatError::from)?;
    if member.size() < needed {
        let (device, found) = (member.name(), member.size());
        return Err(ReshapeError::TooSmall { device, found, needed });
    }
    events::refuse_older(&members.each(), &newest)?;
    let generation = newest.generation + 1;
    let is_missing = |it: &mut Superblock| it.missing = missing;
    with_media(&members, options.buffered, |media| {
        Ok::<_, ReshapeError>(superblocks::rewrite(media, &superblocks, is_missing)?)
    })?;
    let superblock = Superblock { generation, missing, device: place, ..newest };
    let new = Members::new(vec![member]);
    with_media(&new, options.buffered, |media| begin_new(media, &new, &superblock, is_begun))?;
    Ok(Prepared::Begun { geometry, place })
}

/// Returns whether a device has seen all openings of every share that the others have.
fn is_as_new(members: &Members, member: &Member, superblock: &Superblock) -> bool {
    let each = members.each().into_iter().map(|it| it.or(Some(member)));
    events::refuse_older(&each.collect::<Vec<_>>(), superblock).is_ok()
}

/// Makes the new device one that is written, and not read.
fn begin_new(
    media: &MetadataIo<'_>,
    new: &Members,
    superblock: &Superblock,
    is_begun: bool,
) -> Result<(), ReshapeError> {
    let Superblock { pool, geometry, .. } = superblock;
    if !is_begun {
        format::clear_ends(media, new, UnfinishedFormat { pool: *pool })
            .map_err(|error| ReshapeError::Device(error.to_string()))?;
    }
    superblocks::clear_slots(media, 0, geometry)?;
    if new.0[0].is_block_device() {
        media.write(0, 0, protective_mbr(new.0[0].size().0))?;
    }
    media.flush(0)?;
    Ok(superblocks::write(media, 0, superblock)?)
}

/// Has all superblocks say that the pool is whole, which it is.
fn end_whole<Device: MemberSource>(
    all: &[Device],
    place: u32,
    options: &ReplaceOptions,
) -> Result<Replaced, ReshapeError> {
    let first = OpenOptions { buffered: options.buffered, ..quiet() };
    let pool = Pool::open(all, &first)?;
    let devices = pool.description().devices.clone();
    pool.close()?;
    Ok(Replaced { place, devices, bytes: ByteCount::ZERO, lost: Vec::new(), was_whole: true })
}

pub(super) fn quiet() -> OpenOptions {
    OpenOptions { huge_pages: false, housekeeping: None, ..OpenOptions::default() }
}

pub(super) fn open_options(geometry: &Geometry, share: u32, buffered: bool) -> OpenOptions {
    let staging = ByteCount(OpenOptions::default().staging.0.max(2 * geometry.stripe_unit));
    OpenOptions { buffered, share, staging, ..quiet() }
}
