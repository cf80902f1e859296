//! The change log and the index checkpoints: how commits become durable.
//!
//! A share has two slots, each a checkpoint followed by a change log. A record, which carries one commit or
//! several, is appended to the log of the current slot; where it does not fit, the whole index *with* its
//! changes is written as the next checkpoint into the other slot, which is then current. Either way one
//! checksummed write, on the medium of two devices (one where there is one), decides. The other slot holds
//! the state before until then.
//!
//! There is one such write at a time: a record behind a gap is damage to recovery, never a crash's doing.

use std::borrow::Borrow;
use std::fmt;

use thiserror::Error;

use crate::layout::{Change, ChangeRecord, Checkpoint, ShareArea, TensorEntry};
use crate::units::{ByteCount, DeviceIndex};

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

/// The index with a commit is larger than its place. Nothing was written; the log goes on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IndexFull {
    /// What the index needs.
    pub needed: ByteCount,
    /// What there is.
    pub room: ByteCount,
}

impl<E: fmt::Display> From<IndexFull> for AppendError<E> {
    fn from(IndexFull { needed, room }: IndexFull) -> Self {
        Self::IndexFull { needed, room }
    }
}

/// A write that makes changes durable, once it is on the medium of every metadata device.
#[derive(Debug)]
pub struct Append {
    /// Where it goes, on each of them.
    pub offset: u64,
    /// What is written.
    pub bytes: Vec<u8>,
    /// Whether this is a checkpoint of the whole index.
    pub is_checkpoint: bool,
    /// The end of the log behind it.
    pub end: End,
}

/// Where a change log ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct End {
    slot: usize,
    epoch: u64,
    sequence: u64,
    /// Where the next record goes, within the slot's log.
    position: u64,
}

/// The change log of a share, ready to be continued.
#[derive(Debug)]
pub struct ChangeLog {
    place: Place,
    end: End,
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
        Self { place, end: End { slot, epoch, sequence, position }, stopped: None }
    }

    /// Writes the first checkpoint of an empty share.
    ///
    /// # Errors
    /// A device failed.
    pub fn format<M: Media>(place: Place, media: &M) -> Result<(), AppendError<M::Error>> {
        // The epoch before the first; its slot holds nothing.
        Self::resume(place, 1, 0, 0, 0).checkpoint(media, &[])
    }

    /// The record of these changes, for which there must be room. Once it is on media, [`Self::complete`] must
    /// be told; until then there may be no other.
    pub fn record(&self, changes: Vec<Change>) -> Append {
        let End { slot, epoch, sequence, position } = self.end;
        let Place { pool, share, .. } = self.place;
        let sequence = sequence + 1;
        let record = ChangeRecord { pool, share, epoch, sequence, changes };
        let bytes = record.encode();
        let end = End { slot, epoch, sequence, position: position + bytes.len() as u64 };
        let offset = self.place.area.slots[slot].log_offset + position;
        Append { offset, bytes, is_checkpoint: false, end }
    }

    /// Whether the record of these changes would fit.
    pub fn has_room_for(&self, changes: &[Change]) -> bool {
        let room = self.place.area.slots[self.end.slot].log_bytes - self.end.position;
        ChangeRecord::bytes_for(changes) <= room
    }

    /// The whole index as the next checkpoint, into the other slot. As with [`Self::record`], it counts once
    /// [`Self::complete`] was told.
    ///
    /// # Errors
    /// It is too large.
    pub fn next_checkpoint(
        &self,
        tensors: &[impl Borrow<TensorEntry>],
    ) -> Result<Append, IndexFull> {
        let (slot, epoch) = (1 - self.end.slot, self.end.epoch + 1);
        let area = self.place.area.slots[slot];
        let bytes = Checkpoint::encode(self.place.pool, self.place.share, epoch, tensors);
        if bytes.len() as u64 > area.checkpoint_bytes {
            let needed = ByteCount(bytes.len() as u64);
            return Err(IndexFull { needed, room: ByteCount(area.checkpoint_bytes) });
        }
        let end = End { slot, epoch, sequence: 0, position: 0 };
        Ok(Append { offset: area.checkpoint_offset, bytes, is_checkpoint: true, end })
    }

    /// What ends here is on the medium of every metadata device.
    pub fn complete(&mut self, end: End) {
        self.end = end;
    }

    /// Makes `changes` durable and waits for it. `after` gives the index as it is once they are applied, and
    /// is asked only if the change log is full.
    ///
    /// # Errors
    /// See [`AppendError`]; after [`AppendError::Device`] the log refuses everything.
    #[cfg(test)]
    pub fn append<M: Media>(
        &mut self,
        media: &M,
        changes: Vec<Change>,
        after: impl FnOnce(&[Change]) -> Vec<TensorEntry>,
    ) -> Result<(), AppendError<M::Error>> {
        self.refuse_if_stopped()?;
        if !self.has_room_for(&changes) {
            return self.checkpoint(media, &after(&changes));
        }
        self.write(media, self.record(changes))
    }

    /// Writes the whole index into the other slot, which is then current, and waits for it.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn checkpoint<M: Media>(
        &mut self,
        media: &M,
        tensors: &[TensorEntry],
    ) -> Result<(), AppendError<M::Error>> {
        self.refuse_if_stopped()?;
        let append = self.next_checkpoint(tensors)?;
        self.write(media, append)
    }

    /// The devices that carry the metadata.
    pub fn devices(&self) -> impl Iterator<Item = DeviceIndex> + use<> {
        (0..self.place.devices).map(DeviceIndex)
    }

    /// Counts the checkpoints since the pool was formatted.
    pub fn epoch(&self) -> u64 {
        self.end.epoch
    }

    /// Records since the checkpoint.
    pub fn records(&self) -> u64 {
        self.end.sequence
    }

    /// Records that nothing may be added any more, because a commit is in doubt.
    pub fn stop(&mut self, reason: String) {
        self.stopped.get_or_insert(reason);
    }

    /// Why nothing may be added any more, if that is so.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    fn refuse_if_stopped<E: fmt::Display>(&self) -> Result<(), AppendError<E>> {
        self.stopped().map_or(Ok(()), |reason| Err(AppendError::Stopped(reason.into())))
    }

    /// Writes to every metadata device, then flushes each.
    fn write<M: Media>(&mut self, media: &M, append: Append) -> Result<(), AppendError<M::Error>> {
        let devices = 0..self.place.devices;
        let Append { offset, bytes, end, .. } = append;
        let written = devices
            .clone()
            .try_for_each(|device| media.write(device, offset, bytes.clone()))
            .and_then(|()| devices.clone().try_for_each(|device| media.flush(device)));
        match written {
            Ok(()) => {
                self.complete(end);
                Ok(())
            }
            Err(error) => {
                self.stop(error.to_string());
                Err(AppendError::Device(error))
            }
        }
    }
}
