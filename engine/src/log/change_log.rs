//! The change log and the index checkpoints: how a commit becomes durable.
//!
//! A share has two slots, each a checkpoint followed by a change log. A commit is appended to the log of
//! the current slot; where it does not fit, the whole index *with* the commit is written as the next
//! checkpoint into the other slot, which is then current. Either way one checksummed write, on two
//! devices (one where there is one), flushed, decides. The other slot holds the state before until then.

use std::fmt;

use thiserror::Error;

use crate::layout::{Change, ChangeRecord, Checkpoint, ShareArea, TensorEntry};
use crate::units::ByteCount;

/// What the change log needs of devices. Offsets and lengths are multiples of 4 KiB.
pub trait Media {
    /// What a device answers when it fails.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Reads `length` bytes at `offset` of a device of the pool.
    fn read(&self, device: u8, offset: u64, length: u64) -> Result<Vec<u8>, Self::Error>;
    /// Writes at `offset` of a device of the pool.
    fn write(&self, device: u8, offset: u64, bytes: Vec<u8>) -> Result<(), Self::Error>;
    /// Puts everything written before on the media.
    fn flush(&self, device: u8) -> Result<(), Self::Error>;
}

/// Which share's change log this is.
#[derive(Clone, Copy, Debug)]
pub struct Place {
    /// The pool.
    pub pool: u128,
    /// The share's number.
    pub share: u32,
    /// Where the share lies.
    pub area: ShareArea,
    /// The devices 0.. that carry the metadata.
    pub devices: u8,
}

/// Why a commit did not become durable.
#[derive(Debug, Error)]
pub enum AppendError<E: fmt::Display> {
    /// The index has outgrown its place. Nothing was written; the log goes on.
    #[error("the index needs {needed} and its place has {room}; delete durable tensors")]
    IndexFull {
        /// What the index with this commit needs.
        needed: ByteCount,
        /// What there is.
        room: ByteCount,
    },
    /// A device failed. Whether the commit is there shows only after the pool is opened again.
    #[error("the change log could not be written: {0}")]
    Device(E),
    /// An earlier commit failed half way, so nothing may be added until the pool is opened again.
    #[error("an earlier commit failed ({0}); open the pool again")]
    Stopped(String),
}

/// The change log of a share, ready to be continued.
#[derive(Debug)]
pub struct ChangeLog {
    place: Place,
    slot: usize,
    epoch: u64,
    sequence: u64,
    /// Where the next record goes, within the slot's log.
    position: u64,
    stopped: Option<String>,
}

impl ChangeLog {
    /// Continues the log in `slot` behind the records that recovery read.
    pub(super) fn resume(
        place: Place,
        slot: usize,
        epoch: u64,
        sequence: u64,
        position: u64,
    ) -> Self {
        Self { place, slot, epoch, sequence, position, stopped: None }
    }

    /// Writes the first checkpoint of an empty share.
    ///
    /// # Errors
    /// A device failed.
    pub fn format<M: Media>(place: Place, media: &M) -> Result<(), AppendError<M::Error>> {
        // The epoch before the first; its slot holds nothing.
        Self::resume(place, 1, 0, 0, 0).checkpoint(media, &[])
    }

    /// Makes `changes` durable. `after` gives the index as it is once they are applied, and is asked only
    /// if the change log is full.
    ///
    /// # Errors
    /// See [`AppendError`]; after [`AppendError::Device`] the log refuses everything.
    pub fn append<M: Media>(
        &mut self,
        media: &M,
        changes: Vec<Change>,
        after: impl FnOnce(&[Change]) -> Vec<TensorEntry>,
    ) -> Result<(), AppendError<M::Error>> {
        self.refuse_if_stopped()?;
        let slot = self.place.area.slots[self.slot];
        let length = ChangeRecord::bytes_for(&changes);
        if length > slot.log_bytes - self.position {
            return self.checkpoint(media, &after(&changes));
        }
        let record = ChangeRecord {
            pool: self.place.pool,
            share: self.place.share,
            epoch: self.epoch,
            sequence: self.sequence + 1,
            changes,
        };
        self.write(media, slot.log_offset + self.position, &record.encode())?;
        self.sequence += 1;
        self.position += length;
        Ok(())
    }

    /// Writes the whole index into the other slot, which is then current.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn checkpoint<M: Media>(
        &mut self,
        media: &M,
        tensors: &[TensorEntry],
    ) -> Result<(), AppendError<M::Error>> {
        self.refuse_if_stopped()?;
        let slot = 1 - self.slot;
        let area = self.place.area.slots[slot];
        let bytes = Checkpoint::encode(self.place.pool, self.place.share, self.epoch + 1, tensors);
        if bytes.len() as u64 > area.checkpoint_bytes {
            return Err(AppendError::IndexFull {
                needed: ByteCount(bytes.len() as u64),
                room: ByteCount(area.checkpoint_bytes),
            });
        }
        self.write(media, area.checkpoint_offset, &bytes)?;
        (self.slot, self.epoch) = (slot, self.epoch + 1);
        (self.sequence, self.position) = (0, 0);
        Ok(())
    }

    /// Counts the checkpoints since the pool was formatted.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Records that nothing may be added any more, because a commit is in doubt.
    pub fn stop(&mut self, reason: String) {
        self.stopped.get_or_insert(reason);
    }

    fn refuse_if_stopped<E: fmt::Display>(&self) -> Result<(), AppendError<E>> {
        self.stopped.as_ref().map_or(Ok(()), |reason| Err(AppendError::Stopped(reason.clone())))
    }

    /// Writes to every metadata device, then flushes each.
    fn write<M: Media>(
        &mut self,
        media: &M,
        offset: u64,
        bytes: &[u8],
    ) -> Result<(), AppendError<M::Error>> {
        let devices = 0..self.place.devices;
        let written = devices
            .clone()
            .try_for_each(|device| media.write(device, offset, bytes.to_vec()))
            .and_then(|()| devices.clone().try_for_each(|device| media.flush(device)));
        written.map_err(|error| {
            self.stop(error.to_string());
            AppendError::Device(error)
        })
    }
}
