//! Adding a device.

use super::others_than_current;
use super::{ReshapeError, ReshapeOptions, ReshapeProgress, Reshaped, Reshaping, close_all};
use crate::layout::{
    DEVICES_MAX, DeviceTable, Geometry, GeometryError, SUPERBLOCK_OFFSET, Superblock,
    UnfinishedFormat, protective_mbr,
};
use crate::log::LogMedia;
use crate::path::MemberSource;
use crate::pool::arrangement::{Arranged, Completeness, arrange_those, newest};
use crate::pool::error::{FormatError, OpenError};
use crate::pool::holder::holder_offset;
use crate::pool::media::with_media;
use crate::pool::members::{Member, MemberAccess, Members};
use crate::pool::options::FormatOptions;
use crate::pool::superblock_copies::known_geometries;
use crate::pool::{events, format, start, superblocks};
use crate::units::{ByteCount, DeviceIndex, DeviceSet};

/// Gives a pool, whose devices are `others`, another device. Segments that are taken from then on
/// are striped over that, too. One that was emptied is taken back. Nobody can open the pool
/// meanwhile.
///
/// Nothing moves, unless the pool's tensors lie over as many sets of devices as the format has
/// numbers for: then `progress` is told.
///
/// # Errors
/// See [`ReshapeError`].
pub fn add<Device: MemberSource + Clone>(
    new: &Device,
    others: &[Device],
    options: &ReshapeOptions,
    progress: &mut dyn FnMut(ReshapeProgress),
) -> Result<Reshaped, ReshapeError> {
    let all: Vec<Device> = others.iter().chain([new]).cloned().collect();
    if let Some((one, other)) = Device::find_twins(&all) {
        return Err(FormatError::SameDevice(one, other).into());
    }
    let mut moved = ByteCount::ZERO;
    let (place, was_done) = loop {
        match prepare(new, others, options)? {
            Prepared::Ready { place, was_done } => break (place, was_done),
            Prepared::Full { table, geometry, has_it } => {
                let devices = if has_it { &all } else { others };
                let completeness = Completeness::Whole;
                let reshaping = Reshaping { devices, geometry, completeness, options };
                moved = reshaping.empty_sets(&others_than_current(&table), progress)?.0;
            }
        }
    };
    // What carries the metadata from now on gets it.
    let (devices, completeness) = (&all[..], Completeness::Whole);
    let geometry = geometry_of(&all, options)?;
    let shares = Reshaping { devices, geometry, completeness, options }.open_all()?;
    let devices = shares.first().map(|it| it.0.description.devices.clone()).unwrap_or_default();
    close_all(shares)?;
    Ok(Reshaped { place, devices, moved, was_done })
}

/// State of the devices once the superblocks were written.
enum Prepared {
    /// Superblocks that all name the device.
    Ready { place: u32, was_done: bool },
    /// Table of which all numbers of sets are taken.
    Full { table: Box<DeviceTable>, geometry: Geometry, has_it: bool },
}

fn prepare<Device: MemberSource>(
    new: &Device,
    others: &[Device],
    options: &ReshapeOptions,
) -> Result<Prepared, ReshapeError> {
    let access = MemberAccess::alone(options.buffered);
    let members = Members::open(others, &access)?;
    let known = newest(found(&members)?.iter()).ok_or(OpenError::Devices(0))?;
    let exists = new.check_exists().is_ok();
    let open = || Member::open(new, others.len(), &access).map_err(FormatError::from);
    if exists {
        let member = open()?;
        let its = member.superblock_beside(&[known.geometry]).ok();
        let its = its.filter(|it| it.is_of_the_same_pool(&known));
        let is_placed = |it: &Superblock| {
            let removed = known.device_table().removed;
            it.device < known.geometry.devices && !removed.contains(DeviceIndex(it.device as u8))
        };
        if let Some(its) = its.filter(is_placed) {
            let members = members.into_iter().chain([member]).collect();
            return take_back(members, its.device, options);
        }
    }
    let arranged = arrange_those(members, &[], Completeness::Whole)?;
    let Arranged { members, superblocks, .. } = &arranged;
    start::refuse_overwritten(members, superblocks)?;
    let Superblock { generation, geometry, .. } = known;
    let place = geometry.devices;
    if place as usize >= DEVICES_MAX {
        return Err(GeometryError::Devices(place as usize + 1).into());
    }
    let wider = Geometry { devices: place + 1, ..geometry };
    wider.check()?;
    let table = known.device_table();
    let set = table.current_set().union([DeviceIndex(place as u8)].into_iter().collect());
    let Some(table) = table.striped_over(set).map(DeviceTable::with_carriers) else {
        return Ok(Prepared::Full {
            table: Box::new(known.device_table()),
            geometry,
            has_it: false,
        });
    };
    let needed = ByteCount(geometry.device_bytes);
    if !exists {
        new.create(needed, false, access.mode, &mut |_| ()).map_err(FormatError::from)?;
    }
    let mut member = open()?;
    // What an earlier call has made of it holds nothing.
    let is_begun = |it: &Superblock| it.is_of_the_same_pool(&known) && it.device >= place;
    if !member.superblock_beside(&[geometry]).is_ok_and(|it| is_begun(&it)) {
        format::refuse_content(std::iter::once(&member), &format_options(options))?;
    }
    // A file of which an earlier call was killed while it was made.
    member.grow(needed, false, &mut |_| ()).map_err(FormatError::from)?;
    if member.size() < needed {
        let (device, found) = (member.name(), member.size());
        return Err(ReshapeError::TooSmall { device, found, needed });
    }
    let holders = events::blocks_for_new(&members.each(), &known)?;
    let generation = generation + 1;
    let superblock =
        Superblock { generation, device: place, geometry: wider, table: Some(table), ..known };
    let new = Members::new(vec![member]);
    with_media(&new, options.buffered, |media| {
        format::clear_ends(media, &new, UnfinishedFormat { pool: known.pool })
            .map_err(|error| ReshapeError::Device(error.to_string()))?;
        superblocks::clear_slots(media, 0, &wider)?;
        if new.0[0].is_block_device() {
            media.write(0, 0, protective_mbr(new.0[0].size().0))?;
        }
        media.flush(0)?;
        // One superblock says whose it is before there is more on it than that. It counts once the
        // other has taken the place of the mark.
        media.write(0, wider.second_superblock_offset(), superblock.encode())?;
        media.flush(0)?;
        for (share, block) in (0..).zip(holders) {
            media.write(0, holder_offset(share), block)?;
        }
        media.flush(0)?;
        media.write(0, SUPERBLOCK_OFFSET, superblock.encode())?;
        Ok::<_, ReshapeError>(media.flush(0)?)
    })?;
    // It is ready before any other device says that it is there.
    let superblocks: Vec<Superblock> =
        superblocks.iter().map(|it| it.with_devices_of(&superblock)).collect();
    with_media(members, options.buffered, |media| {
        Ok::<_, ReshapeError>(superblocks::rewrite(media, &superblocks, |_| ())?)
    })?;
    Ok(Prepared::Ready { place, was_done: false })
}

/// Has new segments use a device that is the pool's, and may have been emptied.
fn take_back(
    members: Vec<Member>,
    place: u32,
    options: &ReshapeOptions,
) -> Result<Prepared, ReshapeError> {
    let Arranged { members, superblocks, .. } = arrange_those(members, &[], Completeness::Whole)?;
    start::refuse_overwritten(&members, &superblocks)?;
    let known = newest(superblocks.iter()).ok_or(OpenError::Devices(0))?;
    events::refuse_older(&members.each(), &known)?;
    let (table, device) = (known.device_table(), DeviceIndex(place as u8));
    if table.current_set().contains(device) {
        return Ok(Prepared::Ready { place, was_done: true });
    }
    let set = table.current_set().union([device].into_iter().collect());
    let Some(next) = table.striped_over(set).map(DeviceTable::with_carriers) else {
        return Ok(Prepared::Full {
            table: Box::new(table),
            geometry: known.geometry,
            has_it: true,
        });
    };
    let carriers = next.metadata.without(table.metadata);
    with_media(&members, options.buffered, |media| {
        clear_carriers(media, carriers, &known.geometry)?;
        Ok::<_, ReshapeError>(superblocks::rewrite(media, &superblocks, |it| {
            it.table = Some(next);
        })?)
    })?;
    Ok(Prepared::Ready { place, was_done: false })
}

/// Clears the places of the metadata on devices that are to carry it.
pub(super) fn clear_carriers<M: LogMedia>(
    media: &M,
    carriers: DeviceSet,
    geometry: &Geometry,
) -> Result<(), M::Error> {
    carriers.iter().try_for_each(|device| {
        superblocks::clear_slots(media, device.0, geometry)?;
        media.flush(device.0)
    })
}

/// The superblocks of devices that are of one pool.
pub(super) fn found(members: &[Member]) -> Result<Vec<Superblock>, ReshapeError> {
    let known = known_geometries(members.iter());
    let read = |member: &Member| {
        let device = member.name();
        member.superblock_beside(&known).map_err(|source| OpenError::Superblock { device, source })
    };
    Ok(members.iter().map(read).collect::<Result<_, _>>()?)
}

fn geometry_of<Device: MemberSource>(
    devices: &[Device],
    options: &ReshapeOptions,
) -> Result<Geometry, ReshapeError> {
    let members = Members::open(devices, &MemberAccess::to_look(options.buffered))?;
    let known = newest(found(&members)?.iter()).ok_or(OpenError::Devices(0))?;
    Ok(known.geometry)
}

fn format_options(options: &ReshapeOptions) -> FormatOptions {
    FormatOptions {
        overwrite: options.overwrite,
        overwrite_devices: options.overwrite_devices.clone(),
        buffered: options.buffered,
        ..FormatOptions::default()
    }
}
