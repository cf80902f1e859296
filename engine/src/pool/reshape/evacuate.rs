//! Emptying a device.

use super::add::clear_carriers;
use super::{
    ReshapeError, ReshapeOptions, ReshapeProgress, Reshaped, Reshaping, close_all,
    others_than_current,
};
use crate::layout::{BLOCK_BYTES, DeviceTable, Geometry, Superblock};
use crate::log::StripeMap;
use crate::path::MemberSource;
use crate::pool::arrangement::{Arranged, Completeness, arrange_those, newest};
use crate::pool::error::OpenError;
use crate::pool::media::with_media;
use crate::pool::members::{MemberAccess, Members};
use crate::pool::{events, start, superblocks};
use crate::units::{ByteCount, DeviceIndex, DeviceSet};

/// Moves all that the device of this place has to the others, so that nothing of the pool is on it.
/// `devices` are all of the pool; the one that is emptied may be missing where tensors have two
/// copies. Nobody can open the pool meanwhile.
///
/// # Errors
/// See [`ReshapeError`]. What was moved stays where it is; [`add`](super::add) takes the device
/// back.
pub fn evacuate<Device: MemberSource + Clone>(
    devices: &[Device],
    place: u32,
    options: &ReshapeOptions,
    progress: &mut dyn FnMut(ReshapeProgress),
) -> Result<Reshaped, ReshapeError> {
    let gone = DeviceIndex(place as u8);
    let mut was_checked = false;
    loop {
        let begun = prepare(devices, place, was_checked, options)?;
        let Begun { geometry, completeness, step } = begun;
        let reshaping = Reshaping { devices, geometry, completeness, options };
        match step {
            Step::Empty(devices) => {
                let moved = ByteCount::ZERO;
                return Ok(Reshaped { place, devices, moved, was_done: true });
            }
            Step::Check(table) => {
                check_space(&reshaping, &table, gone)?;
                was_checked = true;
            }
            Step::Full(table) => {
                reshaping.empty_sets(&others_than_current(&table), progress)?;
            }
            Step::Move(table) => {
                let has_it = |set: u8| table.set(set).contains(gone);
                let (moved, devices) = reshaping.empty_sets(&has_it, progress)?;
                return Ok(Reshaped { place, devices, moved, was_done: false });
            }
        }
    }
}

struct Begun {
    geometry: Geometry,
    completeness: Completeness,
    step: Step,
}

/// Step that is due.
enum Step {
    /// End: the device is empty. The names of all.
    Empty(Vec<String>),
    /// Check of the space, of which there may be too little.
    Check(DeviceTable),
    /// Move of what lies over older sets: all numbers are taken.
    Full(DeviceTable),
    /// Move of the segments that use it; no new one does.
    Move(DeviceTable),
}

fn prepare<Device: MemberSource>(
    devices: &[Device],
    place: u32,
    was_checked: bool,
    options: &ReshapeOptions,
) -> Result<Begun, ReshapeError> {
    let members = Members::open(devices, &MemberAccess::alone(options.buffered))?;
    let Arranged { members, superblocks, missing, .. } =
        arrange_those(members, &[], Completeness::Degraded)?;
    start::refuse_overwritten(&members, &superblocks)?;
    let known = newest(superblocks.iter()).ok_or(OpenError::Devices(0))?;
    let (geometry, table) = (known.geometry, known.device_table());
    if place >= geometry.devices {
        return Err(ReshapeError::NoPlace { place, devices: geometry.devices });
    }
    let gone = DeviceIndex(place as u8);
    if table.removed.contains(gone) {
        return Err(ReshapeError::Gone(place));
    }
    let of_place: DeviceSet = [gone].into_iter().collect();
    if let Some(other) = missing.without(of_place).iter().next() {
        let present = members.names().join(", ");
        let (places, unopened) = (other.0.to_string(), String::new());
        let (count, devices) = (missing.len(), geometry.devices);
        return Err(OpenError::Missing { places, count, devices, present, unopened }.into());
    }
    events::refuse_older(&members.each(), &known)?;
    let completeness =
        if missing.is_empty() { Completeness::Whole } else { Completeness::Degraded };
    let begun = |step| Ok(Begun { geometry, completeness, step });
    if !table.used().contains(gone) {
        return begun(Step::Empty(members.names()));
    }
    let left = table.current_set().without(of_place);
    if left == table.current_set() {
        return begun(Step::Move(table));
    }
    let needed = known.copies.map_or(1, |_| 2);
    if left.len() < needed {
        return Err(ReshapeError::TooFew { left: left.len(), needed });
    }
    let Some(next) = table.striped_over(left).map(DeviceTable::with_carriers) else {
        return begun(Step::Full(table));
    };
    if !was_checked {
        return begun(Step::Check(next));
    }
    let carriers = next.metadata.without(table.metadata);
    with_media(&members, options.buffered, |media| {
        clear_carriers(media, carriers, &geometry)?;
        let change = |it: &mut Superblock| (it.table, it.missing) = (Some(next), missing);
        Ok::<_, ReshapeError>(superblocks::rewrite(media, &superblocks, change)?)
    })?;
    begun(Step::Move(next))
}

/// Checks that each share has space for its tensors in segments that are striped as the next table
/// says.
fn check_space<Device: MemberSource>(
    reshaping: &Reshaping<'_, Device>,
    next: &DeviceTable,
    gone: DeviceIndex,
) -> Result<(), ReshapeError> {
    let shares = reshaping.open_all()?;
    let blocks = StripeMap::over(&reshaping.geometry, next).segment_blocks();
    for pool in &shares {
        let has_it = |set: u8| next.set(set).contains(gone);
        let contents = pool.0.shared.contents();
        let (needed, segments) = (contents.striped_over(has_it), contents.movable_segments());
        let stays = contents.striped_over(|set| !has_it(set));
        let available = segments * blocks * BLOCK_BYTES;
        if needed + stays > available {
            let (needed, available) = (ByteCount(needed), available.saturating_sub(stays));
            return Err(ReshapeError::NoSpace { needed, available: ByteCount(available) });
        }
    }
    close_all(shares)
}
