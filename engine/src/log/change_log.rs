//! The change log and the index checkpoints: how commits become durable.
//!
//! A share has two slots, each a checkpoint followed by a change log; what a slot has no room for
//! of its checkpoint goes on in segments. A record, which carries one commit or several, is
//! appended to the log of the current slot; where it does not fit, the whole index *with* its
//! changes is written as the next checkpoint into the other slot, which is then current. Either way
//! one checksummed write, on the medium of two devices (one where there is one), decides. The other
//! slot holds the state before until then.
//!
//! There is one such write at a time: a record behind a gap is damage to recovery, never a crash's
//! doing.

use std::collections::HashSet;
use std::fmt;
use std::ops::Range;

use thiserror::Error;

use super::index_room::CheckpointRoom;
use super::stripe::StripeMap;
#[cfg(test)]
use crate::layout::TensorEntry;
use crate::layout::{
    BlockFormat, Change, ChangeRecord, Checkpoint, DEVICE_SETS_MAX, DeviceTable, Geometry,
    IndexParts, LogMark, LogPoint, RecordHead, ShareArea, SlotArea, Superblock,
};
use crate::units::{ByteCount, DeviceIndex, DeviceSet};

/// Devices as the change log needs them. Offsets and lengths are multiples of 4 KiB.
pub trait LogMedia {
    /// Error of a device.
    type Error: std::error::Error + Send + Sync + 'static;

    /// Returns whether a read failed for some of its blocks alone, so that others of the device may
    /// well be readable.
    fn is_of_block(error: &Self::Error) -> bool;
    /// Reads `length` bytes at `offset` of a device of the pool.
    fn read(&self, device: u8, offset: u64, length: u64) -> Result<Vec<u8>, Self::Error>;
    /// Writes at `offset` of a device of the pool.
    fn write(&self, device: u8, offset: u64, bytes: Vec<u8>) -> Result<(), Self::Error>;
    /// Puts everything written before on the media.
    fn flush(&self, device: u8) -> Result<(), Self::Error>;
}

/// Place of a share's change log.
#[derive(Clone, Copy, Debug)]
pub struct LogPlace {
    /// The pool.
    pub pool: u128,
    /// The share's number.
    pub share: u32,
    /// Area of the share.
    pub area: ShareArea,
    /// Map of segments to the devices.
    pub stripes: StripeMap,
    /// Format of checkpoints and records in blocks.
    pub format: BlockFormat,
    /// The devices that carry the metadata, with a copy each.
    pub metadata: DeviceSet,
    /// The one copy to read, as if there were no other.
    pub only: Option<u8>,
    /// Devices of which nothing is read.
    pub missing: DeviceSet,
    /// Devices of these to which nothing is written, because they are not there.
    pub absent: DeviceSet,
}

impl LogPlace {
    /// Returns the metadata's place for a share of a pool; `None` if there is no such share.
    pub fn new(pool: u128, share: u32, geometry: &Geometry, format: BlockFormat) -> Option<Self> {
        Self::over(pool, share, (geometry, &DeviceTable::of_all(geometry.devices)), format)
    }

    /// Returns the metadata's place for a share of a pool with these devices.
    fn over(
        pool: u128,
        share: u32,
        (geometry, table): (&Geometry, &DeviceTable),
        format: BlockFormat,
    ) -> Option<Self> {
        let (area, stripes) = (geometry.share(share)?, StripeMap::over(geometry, table));
        let (metadata, only) = (table.metadata, None);
        let (missing, absent) = (DeviceSet::default(), DeviceSet::default());
        Some(Self { pool, share, area, stripes, format, metadata, only, missing, absent })
    }

    /// Returns the metadata's place for a share of the pool that has this superblock.
    pub fn of(superblock: &Superblock, share: u32) -> Option<Self> {
        let Superblock { pool, geometry, .. } = superblock;
        let devices = (geometry, &superblock.device_table());
        Self::over(*pool, share, devices, superblock.block_format())
    }

    /// Reads nothing of the devices that are `missing`, of which the `absent` ones are not there.
    #[must_use]
    pub const fn without(self, missing: DeviceSet, absent: DeviceSet) -> Self {
        Self { missing, absent, stripes: self.stripes.without(missing, absent), ..self }
    }

    /// The copies to look at, each named by the device on which it begins.
    pub fn copies(&self) -> impl Iterator<Item = u8> + Clone + use<> {
        let Self { only, missing, .. } = *self;
        let all = self.carriers().filter(move |copy| only.is_none_or(|only| only == *copy));
        all.filter(move |copy| !missing.contains(DeviceIndex(*copy)))
    }

    /// The devices that carry the metadata, whether they are there or not.
    pub fn carriers(&self) -> impl Iterator<Item = u8> + Clone + use<> {
        let Self { metadata, .. } = *self;
        (0..64).filter(move |device| metadata.contains(DeviceIndex(*device)))
    }

    /// Counts the copies before the one that begins on this device.
    fn rank(&self, copy: u8) -> u8 {
        self.carriers().take_while(|it| *it != copy).count() as u8
    }

    /// Returns whether a device may have a part of the copy that begins on another one.
    pub fn may_lie_on(&self, copy: u8, device: DeviceIndex) -> bool {
        let is_in = |set: u8| self.stripes.has_part_of_index(set, self.rank(copy), device);
        device.0 == copy
            || (!self.metadata.contains(device) && (0..DEVICE_SETS_MAX as u8).any(is_in))
    }

    /// The room that the next checkpoint of this share can have.
    pub fn checkpoint_room(&self) -> CheckpointRoom {
        self.room_over(self.stripes.current())
    }

    /// The room of a checkpoint whose segments are striped over this set of devices.
    pub(super) fn room_over(&self, set: u8) -> CheckpointRoom {
        let slot = self.area.slots[0].checkpoint_bytes;
        let segment = self.stripes.index_bytes(set);
        let [slot_bytes, segment_bytes] = [slot, segment].map(|it| self.format.content_of(it));
        CheckpointRoom { slot_bytes, segment_bytes }
    }

    /// Returns whether a record says that it belongs to this share.
    pub(super) fn is_ours(&self, head: &RecordHead) -> bool {
        (head.pool, head.share) == (self.pool, self.share)
    }

    /// Checks that a checkpoint of this share may go on in these segments.
    ///
    /// # Errors
    /// Why not.
    pub(super) fn check_segments(&self, segments: &[u32]) -> Result<(), String> {
        let distinct: HashSet<&u32> = segments.iter().collect();
        if let Some(other) = segments.iter().find(|it| !self.segments().contains(it)) {
            return Err(format!("the index goes on in segment {other} outside of its share"));
        }
        let twice = "the index goes on in one segment twice".to_owned();
        if distinct.len() == segments.len() { Ok(()) } else { Err(twice) }
    }

    /// The segments of the share.
    pub fn segments(&self) -> Range<u32> {
        self.area.first_segment..self.area.first_segment + self.area.segments
    }

    /// Returns the places of one copy of a checkpoint of `length` bytes that begins in `slot` and
    /// goes on in segments striped over a set, in order: device, offset and bytes there.
    pub fn parts(
        &self,
        copy: u8,
        slot: usize,
        (segments, set): (&[u32], u8),
        length: u64,
    ) -> impl Iterator<Item = (u8, u64, u64)> {
        let SlotArea { checkpoint_offset, checkpoint_bytes, .. } = self.area.slots[slot];
        let (stripes, rank) = (self.stripes, self.rank(copy));
        let slices = segments.iter().flat_map(move |&segment| {
            let (_, bytes) = stripes.slice(segment);
            stripes.index_slices(segment, set, rank).map(move |(to, at)| (to, at, bytes))
        });
        let mut left = length;
        std::iter::once((copy, checkpoint_offset, checkpoint_bytes)).chain(slices).map_while(
            move |(device, offset, room)| {
                let bytes = left.min(room);
                left -= bytes;
                (bytes > 0).then_some((device, offset, bytes))
            },
        )
    }
}

/// The reason why a commit did not become durable.
#[derive(Debug, Error)]
pub enum AppendError<E: fmt::Display> {
    /// The index has outgrown its place. Nothing was written; the log goes on.
    #[error("the index needs {needed} and its place has {room}; delete durable tensors")]
    IndexFull {
        /// Size of the index with this commit.
        needed: ByteCount,
        /// Capacity of the index.
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
    /// Size that the index needs.
    pub needed: ByteCount,
    /// Capacity of the index.
    pub room: ByteCount,
}

impl<E: fmt::Display> From<IndexFull> for AppendError<E> {
    fn from(IndexFull { needed, room }: IndexFull) -> Self {
        Self::IndexFull { needed, room }
    }
}

/// Writes that make changes durable, once all of them are on the media.
#[derive(Debug)]
pub struct Append {
    /// Writes in order of execution, from the last on: what lies in segments goes before the slot
    /// that names them.
    pub writes: Vec<MetaWrite>,
    /// Slot of a checkpoint of the whole index, and the number of the slot's segments that it uses.
    pub checkpoint: Option<(usize, usize)>,
    /// The end of the log behind it.
    pub end: LogEnd,
}

/// Write of identical bytes to several devices, of which those that are missing get none.
#[derive(Clone, Debug)]
pub struct MetaWrite {
    /// The devices.
    pub devices: DeviceSet,
    /// Offset on each of the devices.
    pub offset: u64,
    /// Bytes to write.
    pub bytes: Vec<u8>,
}

impl Append {
    /// The devices that it touches.
    pub fn devices(&self) -> DeviceSet {
        self.writes.iter().map(|write| write.devices).fold(DeviceSet::default(), DeviceSet::union)
    }
}

/// End of a change log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    pub(super) slot: usize,
    pub(super) epoch: u64,
    pub(super) sequence: u64,
    /// Offset of the next record within the slot's log.
    pub(super) position: u64,
    /// The last commit that may stand in it.
    pub(super) commit: LogPoint,
}

impl LogEnd {
    pub(super) fn point(&self) -> LogPoint {
        LogPoint { epoch: self.epoch, sequence: self.sequence }
    }
}

/// The change log of a share, ready to be continued.
#[derive(Debug)]
pub struct ChangeLog {
    place: LogPlace,
    end: LogEnd,
    /// True if the next commit must be a checkpoint, because records stand here that nothing may
    /// follow.
    ended: bool,
    stopped: Option<String>,
}

impl ChangeLog {
    /// Continues the log in `slot` behind the records that recovery read.
    pub(super) fn resume(place: LogPlace, end: LogEnd) -> Self {
        Self { place, end, ended: false, stopped: None }
    }

    /// Has the next commit write a checkpoint.
    pub fn end_here(&mut self) {
        self.ended = true;
    }

    /// Writes the first checkpoint of an empty share.
    ///
    /// # Errors
    /// A device failed.
    pub fn format<M: LogMedia>(place: LogPlace, media: &M) -> Result<(), AppendError<M::Error>> {
        // The epoch before the first; its slot holds nothing.
        let commit = LogPoint::default();
        let end = LogEnd { slot: 1, epoch: 0, sequence: 0, position: 0, commit };
        Self::resume(place, end).checkpoint(media, IndexParts::default(), &[]).map(drop)
    }

    /// The record of these changes, for which there must be room. Once it is on media,
    /// [`Self::complete`] must be told; until then there may be no other.
    pub fn record(&self, changes: Vec<Change>) -> Append {
        let LogEnd { slot, epoch, sequence, position, .. } = self.end;
        let LogPlace { pool, share, .. } = self.place;
        let sequence = sequence + 1;
        let record = ChangeRecord { pool, share, epoch, sequence, changes };
        let bytes = self.place.format.lay_out(record.encode());
        let commit = LogPoint { epoch, sequence };
        let position_behind = position + bytes.len() as u64;
        let end = LogEnd { slot, epoch, sequence, position: position_behind, commit };
        let offset = self.place.area.slots[slot].log_offset + position;
        let writes = vec![MetaWrite { devices: self.place.metadata, offset, bytes }];
        Append { writes, checkpoint: None, end }
    }

    /// Returns whether the record of these changes would fit, and may be there.
    pub fn has_room_for(&self, changes: &[Change]) -> bool {
        let room = self.place.area.slots[self.end.slot].log_bytes - self.end.position;
        let needed = self.place.format.blocks_for(ChangeRecord::bytes_for(changes));
        !self.ended && needed <= room
    }

    /// The slot that the next checkpoint goes to.
    pub fn next_slot(&self) -> usize {
        1 - self.end.slot
    }

    /// The whole index, with a commit, as the next checkpoint, into the other slot and as many of
    /// `segments`, which are that slot's, as it needs. As with [`Self::record`], it counts once
    /// [`Self::complete`] was told.
    ///
    /// # Errors
    /// It is too large.
    pub fn next_checkpoint(
        &self,
        index: &IndexParts<'_>,
        segments: &[u32],
    ) -> Result<Append, IndexFull> {
        let (slot, epoch) = (self.next_slot(), self.end.epoch + 1);
        let LogPlace { pool, share, stripes, .. } = self.place;
        let (room, payload) = (self.place.checkpoint_room(), index.bytes());
        let used = room.segments_for(payload) as usize;
        let Some(segments) = segments.get(..used).filter(|_| room.lists(used as u64)) else {
            let room = ByteCount(room.with(segments.len() as u64));
            return Err(IndexFull { needed: ByteCount(payload), room });
        };
        let goes_on = (segments, stripes.current());
        let content = Checkpoint::encode(pool, share, epoch, goes_on, index);
        let mut bytes = self.place.format.lay_out(content);
        let length = bytes.len() as u64;
        let copies = self.place.carriers();
        let copies = copies.map(|copy| self.place.parts(copy, slot, goes_on, length).collect());
        let copies: Vec<Vec<(u8, u64, u64)>> = copies.collect();
        // From the last on, so that the part in the slot, mostly the only one, is never copied.
        let writes = (0..copies[0].len()).rev().map(|number| {
            // All copies of a part lie at the same place of their devices.
            let devices = copies.iter().map(|parts| DeviceIndex(parts[number].0)).collect();
            let (_, offset, length) = copies[0][number];
            let part = bytes.split_off(bytes.len() - length as usize);
            MetaWrite { devices, offset, bytes: part }
        });
        let mut writes: Vec<MetaWrite> = writes.collect();
        writes.reverse();
        let commit = LogPoint { epoch, sequence: 0 };
        let end = LogEnd { slot, epoch, sequence: 0, position: 0, commit };
        Ok(Append { writes, checkpoint: Some((slot, used)), end })
    }

    /// Records that an append is on the media of all devices that it touches.
    pub fn complete(&mut self, end: LogEnd) {
        self.ended &= end.epoch == self.end.epoch;
        self.end = end;
    }

    /// Makes `changes` durable and waits for it. `after` gives the index as it is once they are
    /// applied, and is asked only if the change log is full.
    ///
    /// # Errors
    /// See [`AppendError`]; after [`AppendError::Device`] the log refuses everything.
    #[cfg(test)]
    pub fn append<M: LogMedia>(
        &mut self,
        media: &M,
        changes: Vec<Change>,
        after: impl FnOnce(&[Change]) -> Vec<TensorEntry>,
    ) -> Result<(), AppendError<M::Error>> {
        self.refuse_if_stopped()?;
        if !self.has_room_for(&changes) {
            let append = self.next_checkpoint(&(&after(&changes)).into(), &[])?;
            return self.write(media, append);
        }
        self.write(media, self.record(changes))
    }

    /// Writes the whole index as it is into the other slot, which is then current, and its
    /// `segments`, and waits for it. Answers how many of these it goes on in.
    ///
    /// # Errors
    /// See [`AppendError`].
    pub fn checkpoint<'a, M: LogMedia>(
        &mut self,
        media: &M,
        index: impl Into<IndexParts<'a>>,
        segments: &[u32],
    ) -> Result<usize, AppendError<M::Error>> {
        self.refuse_if_stopped()?;
        let mut append = self.next_checkpoint(&index.into(), segments)?;
        append.end.commit = self.end.commit;
        let used = append.checkpoint.map_or(0, |(_, used)| used);
        self.write(media, append)?;
        Ok(used)
    }

    /// Devices that get nothing, because they are not there.
    pub fn absent(&self) -> DeviceSet {
        self.place.absent
    }

    /// The devices that carry the metadata.
    pub fn devices(&self) -> impl Iterator<Item = DeviceIndex> + use<> {
        self.place.carriers().map(DeviceIndex)
    }

    /// Counts the checkpoints since the pool was formatted.
    pub fn epoch(&self) -> u64 {
        self.end.epoch
    }

    /// Records since the checkpoint.
    pub fn records(&self) -> u64 {
        self.end.sequence
    }

    /// Returns the mark of the log's end. It is `closed` if nothing that was begun may be behind
    /// it.
    pub fn mark(&self, closed: bool) -> LogMark {
        let closed = closed && !self.ended && self.stopped.is_none();
        LogMark { end: self.end.point(), commit: self.end.commit, closed }
    }

    /// Records that nothing may be added any more, because a commit is in doubt.
    pub fn stop(&mut self, reason: String) {
        self.stopped.get_or_insert(reason);
    }

    /// Returns the reason why nothing may be added any more, if that is so.
    pub fn stopped(&self) -> Option<&str> {
        self.stopped.as_deref()
    }

    fn refuse_if_stopped<E: fmt::Display>(&self) -> Result<(), AppendError<E>> {
        self.stopped().map_or(Ok(()), |reason| Err(AppendError::Stopped(reason.into())))
    }

    /// Writes to all devices, then flushes each.
    fn write<M: LogMedia>(
        &mut self,
        media: &M,
        append: Append,
    ) -> Result<(), AppendError<M::Error>> {
        let touched = append.devices();
        let Append { mut writes, end, .. } = append;
        let mut write = |MetaWrite { devices, offset, bytes }: MetaWrite| {
            devices.iter().try_for_each(|device| media.write(device.0, offset, bytes.clone()))
        };
        let written = writes
            .drain(..)
            .rev()
            .try_for_each(&mut write)
            .and_then(|()| touched.iter().try_for_each(|device| media.flush(device.0)));
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
