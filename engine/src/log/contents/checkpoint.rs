//! The room that the index needs in its checkpoints: taken before a tensor is put, and given back
//! when a checkpoint needs less.

use super::Contents;
use crate::layout::Change;
use crate::log::change_log::IndexFull;
use crate::log::index_room::IndexUse;
use crate::log::space::{AllocationReach, Full};
use crate::log::version::BeginError;
use crate::units::ByteCount;

/// Shortage of the index for one more tensor.
#[derive(Clone, Copy)]
pub(super) enum IndexShort {
    /// The index may not grow.
    Bound(IndexFull),
    /// The index needs `needed` segments, and `available` are left beside what its tensor takes.
    Segments { needed: u32, available: u32 },
}

impl Contents {
    /// Returns the use of the index's capacity.
    pub fn index_use(&self) -> IndexUse {
        self.room.usage()
    }

    /// The segments that checkpoints go on in, those of slot 0 first.
    pub fn index_segments(&self) -> Vec<u32> {
        self.room.all_segments().collect()
    }

    /// Returns whether so much of the room of its slots is taken that the index should be allowed
    /// to grow.
    pub fn index_should_grow(&self) -> bool {
        !self.room.grows() && self.room.live() > self.room.room() / 2
    }

    /// The index may take segments from now on: the superblocks say so.
    pub fn let_index_grow(&mut self) {
        self.room.let_grow();
    }

    /// Takes the segments that the index needs as it is, as far as there are any; those of `first`,
    /// the slot that is written next, before the other's.
    pub fn settle_index(&mut self, first: usize) {
        for slot in [first, 1 - first] {
            let missing = self.room.missing(slot, self.room.live()).unwrap_or(0);
            // What is missing then is told when it is needed.
            let there = missing.min(self.space.free_for_index(AllocationReach::Reserve));
            self.take_index_segments(slot, there, AllocationReach::Reserve);
        }
    }

    /// Returns whether a slot has segments that nothing there or being put needs.
    pub fn index_has_surplus(&self, slot: usize) -> bool {
        self.room.has_surplus(slot)
    }

    /// Takes room in the index for what is being put.
    ///
    /// # Errors
    /// There is too little; nothing has changed.
    pub(super) fn reserve_index(&mut self, bytes: u64) -> Result<(), IndexShort> {
        // Scratch tensors have no place there.
        if bytes == 0 {
            return Ok(());
        }
        let payload = self.room.spoken_for() + bytes;
        let missing = [0, 1].map(|slot| self.room.missing(slot, payload));
        let [Some(one), Some(other)] = missing else {
            let (needed, room) = (ByteCount(payload), ByteCount(self.room.room()));
            return Err(IndexShort::Bound(IndexFull { needed, room }));
        };
        let (needed, available) = (one + other, self.space.spare_segments());
        if needed > available {
            return Err(IndexShort::Segments { needed, available });
        }
        for (slot, missing) in [one, other].into_iter().enumerate() {
            let all = self.take_index_segments(slot, missing, AllocationReach::Sisters);
            debug_assert!(all, "there were {available} segments for {needed}");
        }
        self.room.begin(bytes);
        Ok(())
    }

    /// Returns the error of a put whose entry does not fit into the index.
    pub(super) fn index_refusal(&self, short: IndexShort) -> BeginError {
        match short {
            IndexShort::Bound(full) => BeginError::IndexFull(full),
            IndexShort::Segments { needed, available } => {
                BeginError::Full(self.segments_lacking(needed, available))
            }
        }
    }

    /// Makes the error of an index that needs `needed` segments and could have `available`.
    pub(super) fn segments_lacking(&self, needed: u32, available: u32) -> Full {
        let segments = |count: u32| ByteCount(u64::from(count) * self.space.segment_size().0);
        let (needed, available) = (segments(needed), segments(available));
        Full { needed, available, for_index: true, space: self.space_use() }
    }

    /// Checks that the index has room for these changes, and for all that is being put besides.
    /// What makes it no larger is always welcome; what was `admitted`, as puts are and moves are
    /// not, need not make way for what was not.
    ///
    /// # Errors
    /// It has not, and there are no segments for it.
    pub fn check_index(&mut self, changes: &[Change], admitted: bool) -> Result<(), IndexFull> {
        let all = self.room.spoken_for();
        if all > self.room.room() {
            // Moves make entries longer and take no room when they begin.
            let _ = [0, 1].map(|slot| self.index_segments_for(slot, all).is_ok());
        }
        let room = self.room.room();
        if all <= room {
            return Ok(());
        }
        let needed = self.index_bytes_after(changes);
        if (admitted && needed <= room) || needed <= self.room.live() {
            return Ok(());
        }
        Err(IndexFull { needed: ByteCount(needed), room: ByteCount(room) })
    }

    /// Returns the segments of a slot, of which a checkpoint with `payload` bytes of tensors needs
    /// no more.
    ///
    /// # Errors
    /// There are not enough, and no more to be had.
    pub fn index_segments_for(&mut self, slot: usize, payload: u64) -> Result<&[u32], IndexFull> {
        let missing = self.room.missing(slot, payload);
        let taken =
            missing.is_some_and(|it| self.take_index_segments(slot, it, AllocationReach::Reserve));
        if taken {
            Ok(self.room.segments(slot))
        } else {
            Err(IndexFull { needed: ByteCount(payload), room: ByteCount(self.room.room()) })
        }
    }

    /// A checkpoint in this slot that goes on in `used` of its segments is on media.
    pub fn checkpoint_is_written(&mut self, slot: usize, used: usize) {
        for segment in self.room.trim(slot, used) {
            self.space.give_back_from_index(segment);
        }
    }

    /// Takes all of them or none; whether it did.
    fn take_index_segments(&mut self, slot: usize, count: u32, reach: AllocationReach) -> bool {
        if count > self.space.free_for_index(reach) {
            return false;
        }
        for segment in (0..count).filter_map(|_| self.space.take_for_index(reach)) {
            self.room.add(slot, segment);
        }
        true
    }
}
