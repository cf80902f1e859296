//! Removing a device.

use super::add::found;
use super::{ReshapeError, ReshapeOptions, ReshapeProgress, Reshaped, evacuate};
use crate::layout::{DeviceTable, Superblock};
use crate::path::MemberSource;
use crate::pool::absent::AbsentMember;
use crate::pool::arrangement::{newest, place as arrange_places};
use crate::pool::error::OpenError;
use crate::pool::media::with_media;
use crate::pool::members::{Member, MemberAccess, Members};
use crate::pool::{start, superblocks};
use crate::units::{ByteCount, DeviceIndex, DeviceSet};

/// Takes the device of this place out of its pool, for ever, once nothing of the pool is on it;
/// what is on it is moved to the others before. `devices` are all that the pool has; the one that
/// is removed may be missing as in [`evacuate`]. Nobody can open the pool meanwhile.
///
/// # Errors
/// See [`ReshapeError`].
pub fn remove<Device: MemberSource + Clone>(
    devices: &[Device],
    place: u32,
    options: &ReshapeOptions,
    progress: &mut dyn FnMut(ReshapeProgress),
) -> Result<Reshaped, ReshapeError> {
    let mut moved = ByteCount::ZERO;
    if !is_removed(devices, place, options)? {
        moved = evacuate(devices, place, options, progress)?.moved;
    }
    let (devices, was_done) = mark(devices, place, options)?;
    Ok(Reshaped { place, devices, moved, was_done })
}

/// Returns whether a device says already that the one of this place is no more the pool's.
fn is_removed<Device: MemberSource>(
    devices: &[Device],
    place: u32,
    options: &ReshapeOptions,
) -> Result<bool, ReshapeError> {
    let members = Members::open(devices, &MemberAccess::to_look(options.buffered))?;
    let known = newest(found(&members)?.iter()).ok_or(OpenError::Devices(0))?;
    Ok(known.device_table().removed.contains(DeviceIndex(place as u8)))
}

/// Has all superblocks say that the device was removed, its own last: until then the pool is whole
/// without it, or opens with it. Returns the names of the devices, and whether all said so before.
fn mark<Device: MemberSource>(
    devices: &[Device],
    place: u32,
    options: &ReshapeOptions,
) -> Result<(Vec<String>, bool), ReshapeError> {
    let members = Members::open(devices, &MemberAccess::alone(options.buffered))?;
    let places = arrange_places(members)?;
    let of_place: DeviceSet = [DeviceIndex(place as u8)].into_iter().collect();
    let mut all: Vec<(Member, Superblock)> = Vec::new();
    let mut is_told = true;
    for placed in places {
        let says_so = |it: &DeviceTable| it.removed.intersection(of_place) == of_place;
        is_told &= placed.superblock.table.is_some_and(|it| says_so(&it));
        all.push((placed.member, placed.superblock));
    }
    let known = newest(all.iter().map(|(_, it)| it)).ok_or(OpenError::Devices(0))?;
    let (members, superblocks) = in_places(all, &known);
    start::refuse_overwritten(&members, &superblocks)?;
    let table = known.device_table();
    let table = DeviceTable { removed: table.removed.union(of_place), ..table };
    table.check(known.geometry.devices)?;
    let missing = known.missing.without(of_place);
    with_media(&members, options.buffered, |media| {
        for is_last in [false, true] {
            let others: DeviceSet = (0..known.geometry.devices as u8)
                .map(DeviceIndex)
                .filter(|device| of_place.contains(*device) != is_last)
                .collect();
            let apart = crate::pool::media::MetadataIo {
                reactor: media.reactor,
                written: media.written,
                missing: media.missing.union(others),
            };
            superblocks::rewrite(&apart, &superblocks, |it| {
                (it.table, it.missing) = (Some(table), missing);
            })?;
        }
        Ok::<_, ReshapeError>(())
    })?;
    Ok((members.names(), is_told))
}

/// Puts the devices into the order of their places, with a stand-in for each that is not there, and
/// superblocks that say what the newest says.
fn in_places(all: Vec<(Member, Superblock)>, known: &Superblock) -> (Members, Vec<Superblock>) {
    let size = ByteCount(known.geometry.device_bytes);
    let mut all = all.into_iter().peekable();
    let (mut members, mut superblocks) = (Vec::new(), Vec::new());
    for device in 0..known.geometry.devices {
        let here = all.next_if(|(_, superblock)| superblock.device == device);
        let (member, superblock) = here.unwrap_or_else(|| {
            let absent = Member::absent(AbsentMember::removed(device, size));
            (absent, known.of_device(device))
        });
        members.push(member);
        superblocks.push(superblock.with_devices_of(known));
    }
    (Members::new(members), superblocks)
}
