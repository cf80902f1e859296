//! Devices that a pool gets and gives up.
//!
//! Which devices a pool has stands in the device table of its superblocks, and each run of a tensor
//! says over which of them its segment is striped. So a new table changes nothing of what is there:
//! segments that are taken from then on are striped over its current set.
//!
//! - To add a device, it is made ready, and then all superblocks get a table with it.
//! - To evacuate one, they get a table whose current set lacks it; all segments that have a part on
//!   it are copied forward, as reclamation does; both slots of each share get a new index; then
//!   they get a table in which nothing names the device.
//! - To remove one that is empty, they get a table that says so, and last of all its own.
//!
//! Each step is of whole superblocks or of commits, so whatever ends a process in between, the same
//! call leads to the same end. All shares are locked or open all the time but between steps.

mod add;
mod error;
mod evacuate;
mod remove;

use std::time::Instant;

pub use add::add;
pub use error::ReshapeError;
pub use evacuate::evacuate;
pub use remove::remove;

use super::arrangement::Completeness;
use super::error::{OpenError, Unusable};
use super::media::MetadataIo;
use super::replace::open_options;
use super::{Pool, superblocks};
use crate::layout::{DEVICE_SETS_MAX, DeviceTable, Geometry};
use crate::log::Wanted;
use crate::path::{DeviceIdentity, MemberSource};
use crate::units::ByteCount;

/// Options of a change of a pool's devices.
#[derive(Clone, Debug, Default)]
pub struct ReshapeOptions {
    /// Go through the page cache, where the file system has no `O_DIRECT`.
    pub buffered: bool,
    /// True if what a new device holds may be lost.
    pub overwrite: bool,
    /// Devices that may lose what they hold, whatever `overwrite` says.
    pub overwrite_devices: Vec<DeviceIdentity>,
    /// Tensor bytes to move in a second; zero for as many as the devices move.
    pub rate: ByteCount,
}

/// Progress of a change that moves tensors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReshapeProgress {
    /// Bytes, in all copies, that have been moved.
    pub done: ByteCount,
    /// Bytes that are moved in all.
    pub total: ByteCount,
}

/// Result of a change of a pool's devices.
#[derive(Clone, Debug)]
pub struct Reshaped {
    /// Place of the device in the pool.
    pub place: u32,
    /// Names of the devices, in the order of their places.
    pub devices: Vec<String>,
    /// Tensor bytes that were moved.
    pub moved: ByteCount,
    /// True if there was nothing left to do.
    pub was_done: bool,
}

/// All devices of a pool that are there, and how they are used.
struct Reshaping<'a, Device> {
    devices: &'a [Device],
    geometry: Geometry,
    completeness: Completeness,
    options: &'a ReshapeOptions,
}

impl<Device: MemberSource> Reshaping<'_, Device> {
    /// Moves all that is striped over the sets that `is_meant`, and has nothing name them any more.
    /// Returns the tensor bytes that were moved, and the names of the devices.
    fn empty_sets(
        &self,
        is_meant: &dyn Fn(u8) -> bool,
        progress: &mut dyn FnMut(ReshapeProgress),
    ) -> Result<(ByteCount, Vec<String>), ReshapeError> {
        let shares = self.open_all()?;
        let moved = self.move_all(&shares, is_meant, progress)?;
        close_all(shares)?;
        // Each opening writes the index of one slot. What the other has is from before the moves
        // until it is written, too.
        close_all(self.open_all()?)?;
        let shares = self.open_all()?;
        let first = shares.first().ok_or(OpenError::Devices(0))?;
        let is_used = |set: u8| {
            shares.iter().any(|it| it.0.shared.contents().striped_over(|other| other == set) > 0)
        };
        let table = first.0.description.table.settled(is_used);
        first.rewrite_table(&table)?;
        let devices = first.0.description.devices.clone();
        close_all(shares)?;
        Ok((moved, devices))
    }

    /// Opens all shares, and writes their indices anew.
    fn open_all(&self) -> Result<Vec<Pool>, ReshapeError> {
        let open = |share| {
            let options = open_options(&self.geometry, share, self.options.buffered);
            let opened = Pool::open_renewed(self.devices, &options, self.completeness)?;
            opened.ok_or(ReshapeError::NoRoom(share))
        };
        (0..self.geometry.shares).map(open).collect()
    }

    fn move_all(
        &self,
        shares: &[Pool],
        is_meant: &dyn Fn(u8) -> bool,
        progress: &mut dyn FnMut(ReshapeProgress),
    ) -> Result<ByteCount, ReshapeError> {
        let mut lost = Vec::new();
        for pool in shares {
            lost.extend(pool.lost_tensors()?);
        }
        if !lost.is_empty() {
            return Err(ReshapeError::Lost(lost));
        }
        let left = || shares.iter().map(|it| it.striped_over(is_meant)).sum::<u64>();
        let (total, begun) = (left(), Instant::now());
        let mut moved = 0;
        for pool in shares {
            let reactor = pool.reactor()?;
            let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
            while pool.striped_over(is_meant) > 0 {
                let turn = pool.reclaim_turn();
                let step = match turn.empty(reactor, is_meant)? {
                    Some(emptied) => Some(emptied),
                    // Makes room for it.
                    None => turn.reclaim(reactor, Wanted::ANY)?,
                };
                let Some(step) = step else {
                    let needed = ByteCount(pool.striped_over(is_meant));
                    let available = pool.0.shared.contents().space_use().free;
                    return Err(ReshapeError::NoSpace { needed, available });
                };
                moved += step.copied.0;
                let done = ByteCount(total.saturating_sub(left()));
                progress(ReshapeProgress { done, total: ByteCount(total) });
                std::thread::sleep(ByteCount(moved).time_left(self.options.rate, begun));
            }
        }
        progress(ReshapeProgress { done: ByteCount(total), total: ByteCount(total) });
        Ok(ByteCount(moved))
    }
}

fn close_all(shares: Vec<Pool>) -> Result<(), ReshapeError> {
    Ok(shares.into_iter().try_for_each(|pool| pool.close())?)
}

/// Returns the current set of a table as the only one that is meant to stay.
fn others_than_current(table: &DeviceTable) -> impl Fn(u8) -> bool + use<> {
    let (current, sets) = (table.current, table.sets);
    move |set| {
        set != current && usize::from(set) < DEVICE_SETS_MAX && !sets[usize::from(set)].is_empty()
    }
}

impl Pool {
    /// Returns the bytes of tensors, in all copies, that lie in segments striped over these sets.
    pub fn striped_over(&self, is_meant: &dyn Fn(u8) -> bool) -> u64 {
        self.0.shared.contents().striped_over(is_meant)
    }

    /// Has the superblocks of all devices that are there say which devices the pool has.
    fn rewrite_table(&self, table: &DeviceTable) -> Result<(), ReshapeError> {
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        let (description, missing) = (&self.0.description, self.absent());
        let media = MetadataIo { reactor, written: &self.0.shared.written.metadata, missing };
        let (pool, geometry) = (description.pool, &description.geometry);
        let now = superblocks::read(&media, pool, geometry, missing);
        let now = now.map_err(ReshapeError::Device)?;
        Ok(superblocks::rewrite(&media, &now, |it| it.table = Some(*table))?)
    }
}
