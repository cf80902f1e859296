//! The depth of a pool that holds something, and the rates of its devices.

use super::{AREA, CalibrateError, CalibrateProgress, Calibration, measure};
use crate::layout::{DeviceRates, Superblock};
use crate::log::{Contents, IndexRoom, LogPlace, Recovered, Space, recover};
use crate::path::{Extent, MemberSource};
use crate::pool::arrangement::{Arranged, arrange, newest};
use crate::pool::events::ShareOnDevices;
use crate::pool::media::{MetadataIo, with_media};
use crate::pool::members::{Member, MemberAccess, Members};
use crate::pool::{OpenError, Pool, events, owner, settle, start, superblocks};
use crate::units::ByteCount;

impl Pool {
    /// Measures how many operations must be in flight on each device of a pool, and stores that in
    /// its superblocks: who opens it and names no depth gets this one. Where some devices are
    /// slower than others, their rates are stored, too, and new segments are shared out by them.
    /// Nobody may have a share open. Only segments that the log says are free are written, so that
    /// whenever this ends, all tensors are there.
    ///
    /// # Errors
    /// Why not; the pool is as it was.
    pub fn calibrate<Source: MemberSource>(
        sources: &[Source],
        buffered: bool,
        progress: &mut (dyn FnMut(CalibrateProgress) + Send),
    ) -> Result<Calibration, CalibrateError> {
        let members = Members::open(sources, &MemberAccess::alone(buffered))?;
        calibrate(members, buffered, progress)
    }

    /// Stores rates of a pool's devices that are known from elsewhere, by which new segments are
    /// shared out. Nobody may have a share open.
    ///
    /// # Errors
    /// Why not; the pool is as it was, or has these rates.
    pub fn store_rates<Source: MemberSource>(
        sources: &[Source],
        rates: DeviceRates,
        buffered: bool,
    ) -> Result<(), CalibrateError> {
        let members = Members::open(sources, &MemberAccess::alone(buffered))?;
        let Arranged { members, superblocks, .. } = arrange(members)?;
        start::refuse_overwritten(&members, &superblocks)?;
        let known = newest(superblocks.iter()).ok_or(OpenError::Devices(0))?;
        events::refuse_older(&members.each(), &known)?;
        let table = known.device_table().with_rates(rates);
        with_media(&members, buffered, |media| {
            superblocks::rewrite(media, &superblocks, |it| it.table = Some(table))?;
            Ok(())
        })
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
    let Arranged { members, superblocks, .. } = arrange(members)?;
    start::refuse_overwritten(&members, &superblocks)?;
    let grows = superblocks.iter().all(|superblock| superblock.index_in_segments);
    let Superblock { pool, geometry, .. } = superblocks[0];
    owner::claim(&members, pool)?;
    let calibrated =
        with_media(&members, buffered, |media| free(media, &members, &superblocks[0], grows))
            .and_then(|area| {
                let unit = [ByteCount(geometry.stripe_unit)];
                measure(&members, &area, &unit, buffered, progress)
            })
            .and_then(|found| {
                with_media(&members, buffered, |media| {
                    let depth = Some(found.depth);
                    let table = found.table(geometry.devices, superblocks[0].table);
                    superblocks::rewrite(media, &superblocks, |it| {
                        (it.depth, it.table) = (depth, table);
                    })?;
                    Ok::<_, CalibrateError>(())
                })?;
                Ok(found)
            });
    owner::release(&members, pool);
    calibrated
}

/// Slices of segments in which nothing lives, by the index of every share.
fn free(
    media: &MetadataIo<'_>,
    members: &Members,
    superblock: &Superblock,
    grows: bool,
) -> Result<Vec<Extent>, CalibrateError> {
    let geometry = &superblock.geometry;
    let mut taken = vec![false; geometry.segments as usize];
    for share in 0..geometry.shares {
        let failed = |what| OpenError::Recovery { share, what };
        let place = LogPlace::of(superblock, share);
        let place = place.ok_or_else(|| failed("there is no such share".to_owned()))?;
        // What has been read must not disappear when the power goes, as what was free then might
        // not be.
        let mark = ShareOnDevices { superblock, members: &members.each(), share }.seen().mark();
        let recovered = settle::read(media, geometry, place, mark, recover).map_err(failed)?;
        let Recovered { index, index_segments, mut log, settled, .. } = recovered;
        for (run, _) in &index.runs {
            taken[run.segment as usize] = true;
        }
        let room = IndexRoom::new(&place, index_segments, grows);
        let mut contents = Contents::recovered(Space::at(&place), room, index);
        // As when the share is opened: a record that one device alone has may get lost, and what it
        // freed live again.
        let written = settled
            || settle::settle(media, &mut log, &mut contents)
                .map_err(|error| failed(error.to_string()))?;
        if !written {
            let what = "its index must be written anew, and there is no space for it";
            return Err(failed(format!("{what}; open the pool, and delete durable tensors")).into());
        }
        for segment in contents.index_segments() {
            taken[segment as usize] = true;
        }
    }
    let slice = |segment: u64| {
        Extent::new(geometry.data_offset + segment * geometry.segment_bytes, geometry.segment_bytes)
    };
    let free = (0..).zip(taken).filter(|(_, taken)| !taken).map(|(segment, _)| slice(segment));
    Ok(free.take(AREA.div_ceil(geometry.segment_bytes) as usize).collect())
}
