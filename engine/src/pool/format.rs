//! Making a pool out of devices.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use super::calibrate::{self, CalibrateProgress, Calibration};
use super::error::FormatError;
use super::media::{MetadataIo, metadata_only};
use super::members::{Member, MemberAccess, Members, MembersReactor};
use super::options::{FormatOptions, PoolDescription};
use super::superblock_copies::known_geometries;
use super::{Pool, owner};
use crate::layout::{
    BLOCK_BYTES, Copies, DEVICES_MAX, DeviceTable, Geometry, GeometryRequest, SUPERBLOCK_OFFSET,
    Superblock, SuperblockError, UnfinishedFormat, protective_mbr,
};
use crate::log::{ChangeLog, LogMedia, LogPlace};
use crate::path::device::blank::first_byte_set;
use crate::path::{DeviceSpec, FillProgress, MemberSource, OpenMode};
use crate::schedule::Reactor;
use crate::units::{ByteCount, DeviceSet};

/// Size of the area at both ends that is zero before a pool's structures are written.
const BLANK_BYTES: u64 = 1 << 20;

/// A device deallocates this much in one request, between two reports of progress.
const DISCARD_BYTES: u64 = 1 << 30;

/// Progress of formatting.
#[derive(Clone, Debug, PartialEq)]
pub enum FormatProgress {
    /// Zeroes that are stored in a file whose file system cannot reserve space.
    Filling {
        /// The device.
        device: String,
        /// Bytes of it that are done.
        done: ByteCount,
        /// The size.
        total: ByteCount,
    },
    /// The deallocation of a whole device.
    Deallocating {
        /// The device.
        device: String,
        /// Bytes of it that are done.
        done: ByteCount,
        /// The size.
        total: ByteCount,
    },
    /// The calibration.
    Measuring(CalibrateProgress),
    /// The calibration is done.
    Calibrated(Calibration),
}

/// Callback of the progress.
type Progress<'a> = &'a mut (dyn FnMut(FormatProgress) + Send);

impl Pool {
    /// Makes a pool of these devices, in stripe order. What they hold is lost, which is refused
    /// unless they are blank or `options.overwrite` says that it may be.
    pub fn format<Source: MemberSource>(
        sources: &[Source],
        options: &FormatOptions,
    ) -> Result<PoolDescription, FormatError> {
        format(sources, options, &mut |_| ())
    }

    /// Makes a pool as [`Pool::format`] does, and reports how far it is.
    pub fn format_with<Source: MemberSource>(
        sources: &[Source],
        options: &FormatOptions,
        progress: &mut (dyn FnMut(FormatProgress) + Send),
    ) -> Result<PoolDescription, FormatError> {
        format(sources, options, progress)
    }

    /// Plans the geometry of these devices, of the sizes `found` (0 for a file that is yet to be
    /// made). Nothing is opened.
    pub fn plan_format<Source: MemberSource>(
        sources: &[Source],
        found: &[ByteCount],
        options: &FormatOptions,
    ) -> Result<Geometry, FormatError> {
        let sizes = sources.iter().enumerate().zip(found);
        let sizes = sizes.map(|(source, found)| usable_size(source, *found, options));
        plan(&sizes.collect::<Result<Vec<_>, _>>()?, options)
    }
}

fn format<Source: MemberSource>(
    sources: &[Source],
    options: &FormatOptions,
    progress: Progress<'_>,
) -> Result<PoolDescription, FormatError> {
    check_count(sources.len())?;
    if let Some((one, other)) = Source::find_twins(sources) {
        return Err(FormatError::SameDevice(one, other));
    }
    // Whatever can be refused is refused before the first file is made.
    if options.must_exist {
        sources.iter().try_for_each(MemberSource::check_exists)?;
    }
    let access = MemberAccess::alone(options.buffered);
    let mut members: Vec<Option<Member>> = Vec::new();
    for (place, source) in sources.iter().enumerate() {
        let exists = source.check_exists().is_ok();
        members.push(if exists { Some(open_existing(source, place, options)?) } else { None });
    }
    refuse_content(members.iter().flatten(), options)?;
    let sizes = sources.iter().enumerate().zip(&members).map(|(source, member)| {
        let found = member.as_ref().map_or(ByteCount::ZERO, |member| member.size());
        usable_size(source, found, options)
    });
    let sizes = sizes.collect::<Result<Vec<_>, _>>()?;
    let geometry = plan(&sizes, options)?;

    owner::reserve_new(members.iter().flatten())?;
    let mut created = MadeDevices(Vec::new());
    let mut complete = Vec::new();
    for (place, ((source, member), size)) in
        sources.iter().zip(members).zip(sizes.iter().copied()).enumerate()
    {
        let fill: FillProgress<'_> = &mut |done| {
            let device = source.name(place);
            progress(FormatProgress::Filling { device, done, total: size });
        };
        complete.push(if let Some(mut member) = member {
            member.grow(size, options.sparse, fill)?;
            member
        } else {
            source.create(size, options.sparse, access.mode, fill)?;
            created.0.push(source);
            Member::open(source, place, &access)?
        });
    }
    if options.discard {
        discard(&complete, progress)?;
    }
    let description = write(&Members::new(complete), &sizes, geometry, options, progress)?;
    created.0.clear();
    Ok(description)
}

/// Devices that this call made and that disappear again if it fails.
struct MadeDevices<'a, Source: MemberSource>(Vec<&'a Source>);

impl<Source: MemberSource> Drop for MadeDevices<'_, Source> {
    fn drop(&mut self) {
        self.0.iter().for_each(|source| source.remove());
    }
}

fn check_count(count: usize) -> Result<(), FormatError> {
    if count == 0 || count > DEVICES_MAX { Err(FormatError::Devices(count)) } else { Ok(()) }
}

/// The geometry of a pool of devices of these sizes.
fn plan(sizes: &[ByteCount], options: &FormatOptions) -> Result<Geometry, FormatError> {
    let geometry = Geometry::plan(&GeometryRequest {
        devices: sizes.len(),
        device_bytes: sizes.iter().copied().min().unwrap_or_default(),
        stripe_unit: options.stripe_unit,
        segment_bytes: options.segment_size,
        shares: options.share_count,
        copies: options.copies,
    })?;
    Ok(geometry.leaving_unused(options.over_provision_percent)?)
}

/// Returns the size of a device that a pool may use; `found` is its size, 0 if it is yet to be
/// made.
fn usable_size<Source: MemberSource>(
    (place, source): (usize, &Source),
    found: ByteCount,
    options: &FormatOptions,
) -> Result<ByteCount, FormatError> {
    match (found, options.device_size) {
        (ByteCount::ZERO, None) => Err(FormatError::SizeNeeded(source.name(place))),
        (ByteCount::ZERO, Some(asked)) => Ok(asked),
        (size, asked) => Ok(size.min(asked.unwrap_or(size))),
    }
}

/// Locks and opens a device that may be written.
pub(super) fn existing<Source: MemberSource>(
    source: &Source,
    place: usize,
    options: &FormatOptions,
) -> Result<Member, FormatError> {
    let member = open_existing(source, place, options)?;
    refuse_content(std::iter::once(&member), options)?;
    owner::reserve_new([&member])?;
    Ok(member)
}

/// Locks and opens a device that nobody else uses, whatever it holds.
fn open_existing<Source: MemberSource>(
    source: &Source,
    place: usize,
    options: &FormatOptions,
) -> Result<Member, FormatError> {
    let access = MemberAccess::alone(options.buffered);
    source.refuse_other_users(access.shares.clone())?;
    Ok(Member::open(source, place, &access)?)
}

/// Returns whether nothing is there of the device that this names: no file, or one that a format
/// which was interrupted has left: the mark, or where the name is Tidelog's own, zeroes.
pub fn is_unmade(spec: &DeviceSpec) -> bool {
    let holds_nothing = |path: &Path| -> io::Result<bool> {
        if !path.metadata()?.is_file() {
            return Ok(false);
        }
        let (file, mut block) = (File::open(path)?, vec![0; BLOCK_BYTES as usize]);
        let is_marked = file.read_exact_at(&mut block, SUPERBLOCK_OFFSET).is_ok()
            && UnfinishedFormat::decode(&block).is_some();
        let is_zero = || first_byte_set(&file, file.metadata()?.len(), &|_| false);
        Ok(is_marked || (spec.path().is_dir() && is_zero()?.is_none()))
    };
    !spec.exists() || holds_nothing(&spec.target()).unwrap_or(false)
}

/// Gives all bytes of the block devices back to them. The bytes of a file stay reserved.
fn discard(members: &[Member], progress: Progress<'_>) -> Result<(), FormatError> {
    for member in members.iter().filter(|member| member.is_block_device()) {
        let size = member.size().0 / BLOCK_BYTES * BLOCK_BYTES;
        let mut done = 0;
        while done < size {
            let length = DISCARD_BYTES.min(size - done);
            member.deallocate(done, length).map_err(|source| FormatError::System {
                what: format!("cannot deallocate {} (format without discard)", member.name()),
                source,
            })?;
            done += length;
            let [done, total] = [done, size].map(ByteCount);
            progress(FormatProgress::Deallocating { device: member.name(), done, total });
        }
    }
    Ok(())
}

/// Refuses devices that hold anything, unless it may be lost, or a format that was interrupted has
/// left it.
pub(super) fn refuse_content<'a>(
    members: impl Iterator<Item = &'a Member> + Clone,
    options: &FormatOptions,
) -> Result<(), FormatError> {
    // Where it had begun to write the superblocks, one device has its own and the next the mark.
    let unfinished: Vec<u128> = members.clone().filter_map(unfinished_pool).collect();
    let may_be_lost = |member: &Member| {
        options.overwrite
            || member.identity().is_some_and(|it| options.overwrite_devices.contains(&it))
            || member.controller().is_some_and(|it| options.overwrite_controllers.contains(it))
            || member.size() == ByteCount::ZERO
    };
    let mut kept = members.filter(|member| !may_be_lost(member));
    kept.try_for_each(|member| refuse_content_of(member, &unfinished))
}

fn refuse_content_of(member: &Member, unfinished: &[u128]) -> Result<(), FormatError> {
    let device = || member.name();
    let is_marked = unfinished_pool(member).is_some();
    let superblock = match member.superblock() {
        Ok(superblock) => Some(superblock),
        Err(SuperblockError::Absent) => None,
        Err(_) if is_marked => None,
        Err(damaged) => {
            let found = format!("a superblock that cannot be used: {damaged}");
            return Err(FormatError::HoldsData { device: device(), found });
        }
    };
    let pool = superblock.map(|it| it.pool).filter(|_| !is_marked);
    let is_unfinished = is_marked || pool.is_some_and(|it| unfinished.contains(&it));
    if let Some(pool) = pool.filter(|_| !is_unfinished) {
        return Err(FormatError::HoldsPool { device: device(), pool });
    }
    let left = |block: &[u8]| is_unfinished && UnfinishedFormat::may_have_left(block);
    let found = member.first_byte_set(&left).map_err(|source| FormatError::System {
        what: format!("cannot read {}", device()),
        source,
    })?;
    match (found, pool) {
        (None, _) => Ok(()),
        // It is whole, and was used.
        (Some(_), Some(pool)) => Err(FormatError::HoldsPool { device: device(), pool }),
        (Some(at), None) => {
            let found = format!("data at byte {at}");
            Err(FormatError::HoldsData { device: device(), found })
        }
    }
}

/// The pool that was to be made of this device by a format that has not ended.
fn unfinished_pool(member: &Member) -> Option<u128> {
    let block = member.read(SUPERBLOCK_OFFSET, BLOCK_BYTES as usize).ok()?;
    UnfinishedFormat::decode(&block).map(|mark| mark.pool)
}

/// Writes everything a pool is made of; the superblocks last, because they are what counts.
fn write(
    members: &Members,
    sizes: &[ByteCount],
    geometry: Geometry,
    options: &FormatOptions,
    progress: Progress<'_>,
) -> Result<PoolDescription, FormatError> {
    let pool = match options.pool_id {
        Some(pool) => pool,
        None => random_id()?,
    };
    // The members hold block devices exclusively; the path opens them once more beside that.
    let mode = OpenMode { buffered: options.buffered, ..OpenMode::default() };
    let through_reactor = |write: &dyn Fn(&MetadataIo<'_>) -> Written| {
        let provider = members.best_provider(mode)?;
        let reactor = MembersReactor::new(members, Reactor::start(provider, metadata_only())?);
        let half_way = |error: &dyn std::error::Error| FormatError::HalfWay(error.to_string());
        let (written, missing) = (&AtomicU64::new(0), DeviceSet::default());
        write(&MetadataIo { reactor: &reactor, written, missing })
            .map_err(|error| half_way(&*error))?;
        reactor.close().map_err(|error| half_way(&error))
    };
    through_reactor(&|media| clear_ends(media, members, UnfinishedFormat { pool }))?;
    let (geometry, depth, table) = if options.calibrate {
        calibrated(members, sizes, &geometry, options, progress)?
    } else {
        (geometry, None, None)
    };
    let rates = options.rates.map(|rates| DeviceTable::of_all(geometry.devices).with_rates(rates));
    let table = rates.filter(|it| it.weighted_sets().len() > 1).or(table);
    let formatted_at = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    let superblock = Superblock {
        generation: 1,
        pool,
        device: 0,
        geometry,
        formatted_at,
        depth,
        index_in_segments: true,
        block_checksums: true,
        seals: false,
        copies: Some(options.copies).filter(|copies| *copies != Copies::One),
        missing: DeviceSet::default(),
        table,
    };
    through_reactor(&|media| write_structures(media, members, &superblock))?;
    let segments = u64::from(geometry.segments) * geometry.segment_blocks();
    Ok(PoolDescription {
        pool,
        geometry,
        devices: members.names(),
        capacity: ByteCount(segments * BLOCK_BYTES),
        copies: options.copies,
        missing: DeviceSet::default(),
        table: superblock.device_table(),
    })
}

/// The geometry with the stripe unit that the devices need, the depth, and the table of devices
/// where some are slower than others.
fn calibrated(
    members: &Members,
    sizes: &[ByteCount],
    geometry: &Geometry,
    options: &FormatOptions,
    progress: Progress<'_>,
) -> Result<(Geometry, Option<u32>, Option<DeviceTable>), FormatError> {
    let with = |stripe_unit| plan(sizes, &FormatOptions { stripe_unit, ..options.clone() });
    let found = calibrate::blank(
        members,
        geometry,
        options.buffered,
        |unit| with(unit).is_ok(),
        &mut |step| progress(FormatProgress::Measuring(step)),
    );
    let found = found.map_err(Box::new)?;
    let table = found.table(geometry.devices, None);
    let chosen = (with(found.stripe_unit)?, Some(found.depth), table);
    progress(FormatProgress::Calibrated(found));
    Ok(chosen)
}

type Written = Result<(), Box<dyn std::error::Error>>;

/// Clears both ends of each device: until the end no device may look like part of any pool, and
/// never again like anything else: RAID and partition tables also stand at the end, and a forgotten
/// one would be assembled again. The mark says that what is written from now on is ours.
pub(super) fn clear_ends(
    media: &MetadataIo<'_>,
    members: &Members,
    mark: UnfinishedFormat,
) -> Written {
    let known = known_geometries(members.0.iter());
    let marks: Vec<_> = members.0.iter().map(|it| it.superblock_marks(&known)).collect();
    for (device, member) in (0..).zip(&members.0) {
        let size = member.size().0 / BLOCK_BYTES * BLOCK_BYTES;
        let blank = BLANK_BYTES.min(size);
        for start in [0, size - blank] {
            media.write(device, start, blank_but_for(mark, start, blank as usize))?;
        }
        // An older pool's second superblock may stand anywhere; with the rest of that pool it would
        // make one again.
        for place in marks[usize::from(device)].iter().filter(|it| **it != SUPERBLOCK_OFFSET) {
            media.write(device, *place, vec![0; BLOCK_BYTES as usize])?;
        }
        media.flush(device)?;
    }
    Ok(())
}

/// Zeroes for so many bytes from `start` on, and the mark in its place if that is among them.
fn blank_but_for(mark: UnfinishedFormat, start: u64, length: usize) -> Vec<u8> {
    let mut bytes = vec![0; length];
    if let Some(at) = SUPERBLOCK_OFFSET.checked_sub(start)
        && let Some(place) = bytes.get_mut(at as usize..(at + BLOCK_BYTES) as usize)
    {
        place.copy_from_slice(&mark.encode());
    }
    bytes
}

/// Writes the shares' empty indices, and a superblock like this one on every device.
fn write_structures(media: &MetadataIo<'_>, members: &Members, superblock: &Superblock) -> Written {
    let Superblock { pool, geometry, .. } = *superblock;
    let devices = 0..members.0.len() as u8;
    for share in 0..geometry.shares {
        let place = LogPlace::new(pool, share, &geometry, superblock.block_format());
        let place = place.ok_or("the geometry lacks a share")?;
        ChangeLog::format(place, media)?;
    }
    let flush = || devices.clone().try_for_each(|device| media.flush(device));
    let of_device = |device: u8| Superblock { device: device.into(), ..*superblock }.encode();
    // What they lead to is there before them.
    flush()?;
    for (device, member) in devices.clone().zip(&members.0) {
        if member.is_block_device() {
            media.write(device, 0, protective_mbr(member.size().0))?;
        }
        media.write(device, geometry.second_superblock_offset(), of_device(device))?;
    }
    // A first one takes the place of its device's mark. Where it is torn the second one is whole.
    flush()?;
    for device in devices.clone() {
        media.write(device, SUPERBLOCK_OFFSET, of_device(device))?;
    }
    flush()?;
    Ok(())
}

/// A number that nobody else has.
pub(super) fn random_id() -> Result<u128, FormatError> {
    let mut bytes = [0; 16];
    File::open("/dev/urandom").and_then(|mut source| source.read_exact(&mut bytes)).map_err(
        |source| FormatError::System { what: "cannot read /dev/urandom".into(), source },
    )?;
    Ok(u128::from_le_bytes(bytes))
}
