//! The depth of a pool that holds something.

use std::sync::atomic::AtomicU64;

use super::{AREA, CalibrateError, CalibrateProgress, Calibration, measure};
use crate::layout::{Geometry, SUPERBLOCK_OFFSET, Superblock};
use crate::log::{Media, Place, Recovered, StripeMap, recover};
use crate::path::sim::SimDisk;
use crate::path::{DeviceSpec, Extent, OpenMode, PathChoice};
use crate::pool::devices::{Member, Members, find_twins};
use crate::pool::media::{MetadataIo, metadata_only};
use crate::pool::open::{arrange, refused};
use crate::pool::share_lock::Shares;
use crate::pool::{OpenError, Pool, owner};
use crate::schedule::Reactor;
use crate::units::ByteCount;

impl Pool {
    /// Measures how many operations must be in flight on each device of a pool, and stores that in its superblocks: who
    /// opens it and names no depth gets this one. Nobody may have a share open. Only segments that the log says are free
    /// are written, so that whenever this ends, all tensors are there.
    ///
    /// # Errors
    /// Why not; the pool is as it was.
    pub fn calibrate(
        specs: &[DeviceSpec],
        buffered: bool,
        progress: &mut (dyn FnMut(CalibrateProgress) + Send),
    ) -> Result<Calibration, CalibrateError> {
        if let Some((one, other)) = find_twins(specs) {
            let what = format!("{one} and {other} are the same device");
            return Err(OpenError::NotOnePool(what).into());
        }
        let mode = OpenMode { buffered, exclusive: true, ..OpenMode::default() };
        let open = |spec| Member::open(spec, Shares::All, mode).map_err(|error| refused(error, 0));
        calibrate(specs.iter().map(open).collect::<Result<_, _>>()?, buffered, progress)
    }

    /// The same for a pool on simulated disks.
    ///
    /// # Errors
    /// Why not; the pool is as it was.
    pub fn calibrate_sim(
        disks: &[SimDisk],
        progress: &mut (dyn FnMut(CalibrateProgress) + Send),
    ) -> Result<Calibration, CalibrateError> {
        let members = disks.iter().enumerate().map(|(index, disk)| Member::sim(disk, index));
        calibrate(members.collect(), false, progress)
    }
}

fn calibrate(
    members: Vec<Member>,
    buffered: bool,
    progress: &mut (dyn FnMut(CalibrateProgress) + Send),
) -> Result<Calibration, CalibrateError> {
    if members.is_empty() {
        return Err(OpenError::Devices(0).into());
    }
    let (members, superblocks, _) = arrange(members)?;
    let Superblock { pool, geometry, .. } = superblocks[0];
    owner::claim(&members, pool)?;
    let calibrated = with_media(&members, buffered, |media| free(media, pool, &geometry))
        .and_then(|area| {
            let unit = [ByteCount(geometry.stripe_unit)];
            measure(&members, &area, &unit, buffered, progress)
        })
        .and_then(|found| {
            with_media(&members, buffered, |media| store(media, &superblocks, found.depth))?;
            Ok(found)
        });
    owner::release(&members, pool);
    calibrated
}

/// Reads and writes metadata, and ends the data path again: devices are measured by another.
fn with_media<T>(
    members: &Members,
    buffered: bool,
    act: impl FnOnce(&MetadataIo<'_>) -> Result<T, CalibrateError>,
) -> Result<T, CalibrateError> {
    let mode = OpenMode { buffered, ..OpenMode::default() };
    let provider = members.provider(PathChoice::Auto, None, None, mode)?;
    let reactor = Reactor::start(provider, metadata_only())?;
    let done = act(&MetadataIo { reactor: &reactor, written: &AtomicU64::new(0) })?;
    reactor.close()?;
    Ok(done)
}

/// Slices of segments in which nothing lives, by the index of every share.
fn free(
    media: &MetadataIo<'_>,
    pool: u128,
    geometry: &Geometry,
) -> Result<Vec<Extent>, CalibrateError> {
    let stripes = StripeMap::new(geometry);
    let mut taken = vec![false; geometry.segments as usize];
    for (share, area) in (0..geometry.shares).filter_map(|it| Some((it, geometry.share(it)?))) {
        let place = Place { pool, share, area, devices: geometry.metadata_devices() };
        let failed = |what| OpenError::Recovery { share, what };
        // What has been read must not disappear when the power goes, as what was free then might not be.
        (0..place.devices).try_for_each(|device| media.flush(device))?;
        let recovered = recover(place, &stripes, geometry.segment_blocks(), media)
            .map_err(|error| failed(error.to_string()))?;
        let Recovered { tensors, runs, mut log, settled, .. } = recovered;
        if !settled {
            // As when the share is opened: a record that one device alone has may get lost, and what it freed live again.
            log.checkpoint(media, &tensors).map_err(|error| failed(error.to_string()))?;
        }
        for (run, _) in runs {
            taken[run.segment as usize] = true;
        }
    }
    let slice = |segment: u64| {
        Extent::new(geometry.data_offset + segment * geometry.segment_bytes, geometry.segment_bytes)
    };
    let free = (0..).zip(taken).filter(|(_, taken)| !taken).map(|(segment, _)| slice(segment));
    Ok(free.take(AREA.div_ceil(geometry.segment_bytes) as usize).collect())
}

/// One copy after the other, so that a whole one is there all the time.
fn store(
    media: &MetadataIo<'_>,
    superblocks: &[Superblock],
    depth: u32,
) -> Result<(), CalibrateError> {
    let generation = superblocks.iter().map(|it| it.generation).max().unwrap_or_default() + 1;
    for (device, superblock) in (0..).zip(superblocks) {
        let superblock = Superblock { generation, depth: Some(depth), ..*superblock };
        for offset in [superblock.geometry.second_superblock_offset(), SUPERBLOCK_OFFSET] {
            let written = media.write(device, offset, superblock.encode());
            written.and_then(|()| media.flush(device))?;
        }
    }
    Ok(())
}
