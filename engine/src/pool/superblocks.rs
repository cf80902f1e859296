//! Writing the superblocks of a pool again.

use crate::layout::{BLOCK_BYTES, Geometry, SUPERBLOCK_OFFSET, Superblock};
use crate::log::LogMedia;
use crate::units::{DeviceIndex, DeviceSet};

/// Writes both copies of every superblock with a change, as the next generation of all; those of
/// devices that the media leave out are not. One copy after the other, so that a whole one is there
/// all the time.
pub(super) fn rewrite<M: LogMedia>(
    media: &M,
    superblocks: &[Superblock],
    change: impl Fn(&mut Superblock),
) -> Result<(), M::Error> {
    let generation = superblocks.iter().map(|it| it.generation).max().unwrap_or_default() + 1;
    for (device, superblock) in (0..).zip(superblocks) {
        let mut superblock = Superblock { generation, ..*superblock };
        change(&mut superblock);
        write(media, device, &superblock)?;
    }
    Ok(())
}

/// Writes both copies of a superblock, one after the other.
pub(super) fn write<M: LogMedia>(
    media: &M,
    device: u8,
    superblock: &Superblock,
) -> Result<(), M::Error> {
    for offset in [superblock.geometry.second_superblock_offset(), SUPERBLOCK_OFFSET] {
        media.write(device, offset, superblock.encode())?;
        media.flush(device)?;
    }
    Ok(())
}

/// Clears the starts of checkpoints and change logs of a device that carries no metadata yet:
/// nothing that stood there may be taken for the pool's. They are not flushed.
pub(super) fn clear_slots<M: LogMedia>(
    media: &M,
    device: u8,
    geometry: &Geometry,
) -> Result<(), M::Error> {
    let areas = (0..geometry.shares).filter_map(|share| geometry.share(share));
    for slot in areas.flat_map(|area| area.slots) {
        for offset in [slot.checkpoint_offset, slot.log_offset] {
            media.write(device, offset, vec![0; BLOCK_BYTES as usize])?;
        }
    }
    Ok(())
}

/// The superblock that holds on each device of this pool, in stripe order. One of another device
/// is none; of a device that is `missing` it is what the first of the others has.
///
/// # Errors
/// A device failed, or has none.
pub(super) fn read<M: LogMedia>(
    media: &M,
    pool: u128,
    geometry: &Geometry,
    missing: DeviceSet,
) -> Result<Vec<Superblock>, String> {
    let places = [SUPERBLOCK_OFFSET, geometry.second_superblock_offset()];
    let of_device = |device: u8| {
        let mut newest: Option<Superblock> = None;
        for offset in places {
            let block = media.read(device, offset, BLOCK_BYTES).map_err(|it| it.to_string())?;
            match Superblock::decode(&block) {
                Ok(found)
                    if (found.pool, found.device) == (pool, device.into())
                        && newest.is_none_or(|it| it.generation < found.generation) =>
                {
                    newest = Some(found);
                }
                Err(error) if error.is_of_another_version() => return Err(error.to_string()),
                _ => (),
            }
        }
        newest.ok_or_else(|| format!("device {device} has no whole superblock"))
    };
    let is_missing = |device: u8| missing.contains(DeviceIndex(device));
    let first = (0..geometry.devices as u8).find(|it| !is_missing(*it)).map(of_device);
    let first = first.ok_or("all devices are missing")??;
    let of_place = |device: u8| {
        if is_missing(device) { Ok(first.of_device(device.into())) } else { of_device(device) }
    };
    (0..geometry.devices as u8).map(of_place).collect()
}
