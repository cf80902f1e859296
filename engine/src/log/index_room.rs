//! Capacity for checkpoints of the index, and its reserved part.
//!
//! A checkpoint begins in one of two slots and goes on in segments that belong to that slot. Both
//! slots always have room for every durable tensor that there is and every one that is being put:
//! room is taken when a put begins, so no commit finds too little, and a deletion, which only makes
//! the index smaller, always fits. A slot keeps its segments until a later checkpoint in it needs
//! fewer: what stands there is the state to go back to if the newer one is lost.

use super::change_log::LogPlace;
use super::stripe::StripeMap;
use crate::layout::{Checkpoint, Run, TensorEntry};
use crate::units::ByteCount;

/// The room that checkpoints can have.
#[derive(Clone, Copy, Debug)]
pub struct CheckpointRoom {
    /// Bytes of content in a slot.
    pub slot_bytes: u64,
    /// Bytes of content that each segment adds.
    pub segment_bytes: u64,
}

impl CheckpointRoom {
    /// Returns the bytes of tensors for which there is space in a slot with `segments` segments.
    pub const fn with(&self, segments: u64) -> u64 {
        let all = self.slot_bytes + segments * self.segment_bytes;
        all.saturating_sub(Checkpoint::payload_start(segments))
    }

    /// Returns the number of segments of a checkpoint with `payload_bytes` bytes of tensors.
    pub fn segments_for(&self, payload_bytes: u64) -> u64 {
        let beyond = payload_bytes.saturating_sub(self.with(0));
        // Each of them also takes a place in the list.
        let mut segments = beyond.div_ceil(self.segment_bytes);
        while self.with(segments) < payload_bytes {
            segments += 1;
        }
        segments
    }

    /// Returns whether the list of `segments` segments stands in the slot, where a reader looks for
    /// it.
    pub const fn lists(&self, segments: u64) -> bool {
        Checkpoint::payload_start(segments) <= self.slot_bytes
    }
}

/// Use of the index's capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IndexUse {
    /// Bytes that durable tensors and seals take in a checkpoint.
    pub live: ByteCount,
    /// Use by entries that are being put and made.
    pub coming: ByteCount,
    /// Bytes for which there is room now. It grows by segments where the pool allows that.
    pub room: ByteCount,
    /// Segments that checkpoints go on in.
    pub segments: usize,
}

/// The room of a share's index.
#[derive(Debug)]
pub struct IndexRoom {
    checkpoint: CheckpointRoom,
    stripes: StripeMap,
    /// The segments of each slot.
    segments: [Vec<u32>; 2],
    grows: bool,
    live: u64,
    coming: u64,
}

impl IndexRoom {
    /// The room of a share whose slots go on in these segments, with nothing in it. Only where it
    /// `grows` may it take more.
    pub fn new(place: &LogPlace, segments: [Vec<u32>; 2], grows: bool) -> Self {
        let (checkpoint, stripes) = (place.checkpoint_room(), place.stripes);
        Self { checkpoint, stripes, segments, grows, live: 0, coming: 0 }
    }

    pub(super) fn usage(&self) -> IndexUse {
        IndexUse {
            live: ByteCount(self.live),
            coming: ByteCount(self.coming),
            room: ByteCount(self.room()),
            segments: self.all_segments().count(),
        }
    }

    /// Returns whether the index room may take segments.
    pub(super) fn grows(&self) -> bool {
        self.grows
    }

    pub(super) fn let_grow(&mut self) {
        self.grows = true;
    }

    /// The segments of a slot.
    pub(super) fn segments(&self, slot: usize) -> &[u32] {
        &self.segments[slot]
    }

    pub(super) fn all_segments(&self) -> impl Iterator<Item = u32> {
        self.segments.iter().flatten().copied()
    }

    /// Bytes for which there is room in either slot.
    pub(super) fn room(&self) -> u64 {
        let slots = self.segments.iter();
        slots.map(|segments| self.checkpoint.with(segments.len() as u64)).min().unwrap_or(0)
    }

    /// Bytes that tensors take, or will when what is under way has ended well.
    pub(super) fn spoken_for(&self) -> u64 {
        self.live + self.coming
    }

    pub(super) fn live(&self) -> u64 {
        self.live
    }

    /// Returns the number of segments that a slot lacks for `payload_bytes` bytes; `None` if it can
    /// never have.
    pub(super) fn missing(&self, slot: usize, payload_bytes: u64) -> Option<u32> {
        let wanted = self.checkpoint.segments_for(payload_bytes);
        let missing = wanted.saturating_sub(self.segments[slot].len() as u64);
        match u32::try_from(missing) {
            Ok(0) => Some(0),
            Ok(missing) if self.grows && self.checkpoint.lists(wanted) => Some(missing),
            _ => None,
        }
    }

    /// Returns whether a slot has more segments than it needs.
    pub(super) fn has_surplus(&self, slot: usize) -> bool {
        self.segments[slot].len() as u64 > self.checkpoint.segments_for(self.spoken_for())
    }

    /// A slot has one more segment.
    pub(super) fn add(&mut self, slot: usize, segment: u32) {
        self.segments[slot].push(segment);
    }

    /// A checkpoint in this slot that goes on in `used` of its segments is on media: returns those
    /// that the slot needs no longer.
    pub(super) fn trim(&mut self, slot: usize, used: usize) -> Vec<u32> {
        let wanted = self.checkpoint.segments_for(self.spoken_for()) as usize;
        let kept = wanted.max(used).min(self.segments[slot].len());
        self.segments[slot].split_off(kept)
    }

    /// The bytes that a tensor uses in the index, also if its checksums are not known yet.
    pub(super) fn bytes_of(&self, entry: &TensorEntry) -> u64 {
        self.bytes_at(entry, &entry.runs)
    }

    /// Returns the growth of a tensor's entry if it lies in these runs. Whether there is room for
    /// it shows when its move is committed.
    pub(super) fn growth(&self, entry: &TensorEntry, runs: &[Run]) -> u64 {
        self.bytes_at(entry, runs).saturating_sub(self.bytes_of(entry))
    }

    fn bytes_at(&self, entry: &TensorEntry, runs: &[Run]) -> u64 {
        entry.encoded_bytes(runs.len(), self.stripes.count(runs)) as u64
    }

    /// A put has begun, or a move that makes an entry longer.
    pub(super) fn begin(&mut self, bytes: u64) {
        self.coming += bytes;
    }

    /// Ends a reservation, whatever became of it.
    pub(super) fn end(&mut self, bytes: u64) {
        self.coming -= bytes;
    }

    /// A durable tensor, or a version that a seal holds, is there.
    pub(super) fn insert(&mut self, entry: &TensorEntry) {
        self.insert_bytes(self.bytes_of(entry));
    }

    /// Removes an entry.
    pub(super) fn remove(&mut self, entry: &TensorEntry) {
        self.remove_bytes(self.bytes_of(entry));
    }

    /// Inserts an entry of `bytes` bytes.
    pub(super) fn insert_bytes(&mut self, bytes: u64) {
        self.live += bytes;
    }

    /// Removes bytes.
    pub(super) fn remove_bytes(&mut self, bytes: u64) {
        self.live -= bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_are_as_many_as_needed_and_no_more() {
        for segment_bytes in [4096, 64 << 10] {
            let room = CheckpointRoom { slot_bytes: 8192, segment_bytes };
            assert_eq!(room.with(0), 8192 - 64);
            for payload in (0..200_000).step_by(8) {
                let segments = room.segments_for(payload);
                assert!(room.with(segments) >= payload);
                assert!(segments == 0 || room.with(segments - 1) < payload, "{payload}");
            }
        }
        let room = CheckpointRoom { slot_bytes: 8192, segment_bytes: 4096 };
        assert!(room.lists((8192 - 64) / 4) && !room.lists((8192 - 64) / 4 + 1));
    }
}
