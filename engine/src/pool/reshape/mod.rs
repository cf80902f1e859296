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
mod evacuate;
mod remove;

use std::time::Instant;

use thiserror::Error;

pub use add::add;
pub use evacuate::evacuate;
pub use remove::remove;

use super::arrangement::Completeness;
use super::error::{CloseError, FormatError, OpenError, ReclaimError, Unusable};
use super::media::MetadataIo;
use super::replace::{open_options, some_names};
use super::{Pool, superblocks};
use crate::layout::{DEVICE_SETS_MAX, DeviceTable, Geometry, GeometryError, TensorKey};
use crate::log::Wanted;
use crate::path::{DeviceIdentity, MemberSource};
use crate::schedule::{ControlError, DrainError, StartError};
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

/// The reason why a pool did not get or give up a device. What was begun is finished by doing the
/// same again.
#[derive(Debug, Error)]
pub enum ReshapeError {
    /// The pool cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The new device cannot be had, or holds something.
    #[error(transparent)]
    New(#[from] FormatError),
    /// The pool cannot be laid out over these devices.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// The new device is too small.
    #[error("{device} has {found}, and the pool uses {needed} of each device")]
    TooSmall {
        /// The device.
        device: String,
        /// Size of the device.
        found: ByteCount,
        /// The size that is needed.
        needed: ByteCount,
    },
    /// The pool has no such device.
    #[error("the pool has {devices} place(s), numbered from 0; there is no device {place}")]
    NoPlace {
        /// The place.
        place: u32,
        /// Places of the pool.
        devices: u32,
    },
    /// The device was removed before.
    #[error("device {0} was removed from the pool before")]
    Gone(u32),
    /// The number of devices that would be left is too small.
    #[error("without it {left} device(s) are left, and the pool needs {needed}: add one first")]
    TooFew {
        /// Devices that would be left.
        left: usize,
        /// Devices that the pool needs.
        needed: usize,
    },
    /// The pool has no space for it on the other devices.
    #[error(
        "{needed} must be moved, and segments without the device have {available} left for it: delete tensors, or \
         add a device first"
    )]
    NoSpace {
        /// Bytes that are to be moved, in all copies.
        needed: ByteCount,
        /// Bytes that there is space for.
        available: ByteCount,
    },
    /// The index of a share has no room to be written anew.
    #[error(
        "the index of share {0} must be written anew, and there is no space for it; open the pool, and delete \
         durable tensors"
    )]
    NoRoom(u32),
    /// Durable tensors have a part on a lost device alone.
    #[error("{}", lost(.0))]
    Lost(Vec<TensorKey>),
    /// The tensors could not be moved.
    #[error(transparent)]
    Move(Box<ReclaimError>),
    /// The data path could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// A device failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A device did not give back what it was asked.
    #[error(transparent)]
    Drain(#[from] DrainError),
    /// A superblock could not be read, or a device not be cleared.
    #[error("{0}")]
    Device(String),
    /// A share could not be given back.
    #[error(transparent)]
    Close(#[from] CloseError),
    /// The handle is of no use.
    #[error(transparent)]
    Unusable(#[from] Unusable),
}

impl From<ReclaimError> for ReshapeError {
    fn from(error: ReclaimError) -> Self {
        Self::Move(Box::new(error))
    }
}

/// Names the tensors that are lost with a device.
fn lost(tensors: &[TensorKey]) -> String {
    format!(
        "{} durable tensor(s) have a part on the lost device alone: {}; drop them first, or give the pool \
         another device in its place (replace --accept-loss)",
        tensors.len(),
        some_names(tensors)
    )
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
                self.keep_rate(begun, moved);
            }
        }
        progress(ReshapeProgress { done: ByteCount(total), total: ByteCount(total) });
        Ok(ByteCount(moved))
    }

    /// Waits while more was moved than the rate allows.
    fn keep_rate(&self, begun: Instant, moved: u64) {
        let due = ByteCount(moved).time_at(self.options.rate);
        std::thread::sleep(due.saturating_sub(begun.elapsed()));
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
    fn striped_over(&self, is_meant: &dyn Fn(u8) -> bool) -> u64 {
        self.0.shared.contents().striped_over(is_meant)
    }

    /// Has the superblocks of all devices that are there say which devices the pool has.
    fn rewrite_table(&self, table: &DeviceTable) -> Result<(), ReshapeError> {
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        let description = &self.0.description;
        let missing = description.missing.union(description.table.removed);
        let media = MetadataIo { reactor, written: &self.0.shared.written.metadata, missing };
        let (pool, geometry) = (description.pool, &description.geometry);
        let now = superblocks::read(&media, pool, geometry, missing);
        let now = now.map_err(ReshapeError::Device)?;
        Ok(superblocks::rewrite(&media, &now, |it| it.table = Some(*table))?)
    }
}
