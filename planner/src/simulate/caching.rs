//! torch's caching allocator, and the bridge's trims of it: which calls of the driver a step makes.
//!
//! Segments come from the driver and are cut into blocks; a free block serves the next allocation
//! that it fits best. Nothing moves, so there may be room and no block that is large enough. What
//! is smaller than a MiB comes from segments of its own, which stay.

use super::event::SimulatedEvent;
use std::collections::{BTreeSet, HashMap};

const MIB: u64 = 1 << 20;

/// Allocations of less are another pool's (`kSmallSize`).
const SMALL_BYTES: u64 = MIB;
/// Allocations of less get a part of a segment of [`MEDIUM_SEGMENT`] (`kMinLargeAlloc`).
const LARGE_BYTES: u64 = 10 * MIB;
const MEDIUM_SEGMENT: u64 = 20 * MIB;
/// Unit of larger segments, which are whole multiples (`kRoundLarge`).
const ROUNDING: u64 = 2 * MIB;
/// Sizes are rounded up to a multiple (`kMinBlockSize`).
const BLOCK_ROUNDING: u64 = 512;

/// Number of bytes after which the bridge checks the allocator's kept bytes (`memory/_heap.py`): it
/// empties the cache where more is kept than this, or than this part of the budget.
const LOOK_EVERY: u64 = 4 * MIB;
const KEPT_MIN: u64 = 256 * MIB;
const KEPT_PARTS: u64 = 10;

/// Driver calls of an allocation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DriverCalls {
    /// Waits until the GPU has nothing left to do.
    pub(super) drains: u32,
    pub(super) allocations: u32,
    pub(super) releases: u32,
    /// Granules that are mapped at another address.
    pub(super) remapped: u32,
    /// Events that the host sees before that.
    pub(super) host_waits: Vec<SimulatedEvent>,
    /// True if no memory was left, though enough is free.
    pub(super) misfits: u32,
}

/// A block: its segment, and where it begins there.
pub(super) type Place = (u32, u64);

#[derive(Clone, Debug)]
struct Segment {
    size: u64,
    /// Blocks by where they begin: their size, and whether they are free.
    blocks: Vec<(u64, u64, bool)>,
}

#[derive(Clone, Debug)]
pub(super) struct CachingAllocator {
    /// The most that the driver gives.
    limit: u64,
    tensors_max: u64,
    segments: HashMap<u32, Segment>,
    made: u32,
    /// Free blocks by size.
    free: BTreeSet<(u64, Place)>,
    reserved: u64,
    given: u64,
    unseen: u64,
    look_every: u64,
}

impl CachingAllocator {
    pub(super) fn new(tensors_max: u64, slack: u64) -> Self {
        Self {
            limit: tensors_max + slack,
            tensors_max,
            segments: HashMap::new(),
            made: 0,
            free: BTreeSet::new(),
            reserved: 0,
            given: 0,
            unseen: 0,
            look_every: LOOK_EVERY,
        }
    }

    /// Takes memory for `bytes` bytes; `None` where it is another pool's.
    pub(super) fn take(&mut self, bytes: u64) -> (Option<Place>, DriverCalls) {
        let mut calls = DriverCalls::default();
        if bytes < SMALL_BYTES {
            return (None, calls);
        }
        let size = bytes.next_multiple_of(BLOCK_ROUNDING);
        let place = self.best_fit(size).unwrap_or_else(|| self.new_segment(size, &mut calls));
        let place = self.give_part(place, size);
        self.look(bytes, &mut calls);
        (Some(place), calls)
    }

    /// Memory comes back, and joins what is free beside it.
    pub(super) fn give(&mut self, (segment, begin): Place) {
        let Some(found) = self.segments.get_mut(&segment) else { return };
        let Some(mut at) = found.blocks.iter().position(|block| block.0 == begin) else { return };
        let (_, mut size, _) = found.blocks[at];
        self.given -= size;
        let mut start = begin;
        if at + 1 < found.blocks.len() && found.blocks[at + 1].2 {
            let (next, bytes, _) = found.blocks.remove(at + 1);
            self.free.remove(&(bytes, (segment, next)));
            size += bytes;
        }
        if at > 0 && found.blocks[at - 1].2 {
            let (before, bytes, _) = found.blocks.remove(at - 1);
            self.free.remove(&(bytes, (segment, before)));
            (start, size, at) = (before, size + bytes, at - 1);
        }
        found.blocks[at] = (start, size, true);
        self.free.insert((size, (segment, start)));
    }

    fn best_fit(&self, size: u64) -> Option<Place> {
        self.free.range((size, (0, 0))..).next().map(|(_, place)| *place)
    }

    fn new_segment(&mut self, size: u64, calls: &mut DriverCalls) -> Place {
        let large = size.next_multiple_of(ROUNDING);
        let size = if size < LARGE_BYTES { MEDIUM_SEGMENT } else { large };
        if self.reserved + size > self.limit {
            self.empty_cache(calls);
            // The bridge would have others leave and ask again; the step goes on here all the same.
            calls.misfits += u32::from(self.reserved + size > self.limit);
        }
        calls.allocations += 1;
        self.made += 1;
        self.reserved += size;
        self.segments.insert(self.made, Segment { size, blocks: vec![(0, size, true)] });
        self.free.insert((size, (self.made, 0)));
        (self.made, 0)
    }

    /// Gives `size` bytes of a free block away; what is left of it stays one, if it is large.
    fn give_part(&mut self, place: Place, size: u64) -> Place {
        let (segment, begin) = place;
        let blocks = self.segments.get_mut(&segment).map(|segment| &mut segment.blocks);
        let Some(blocks) = blocks else { return place };
        let Some(at) = blocks.iter().position(|block| block.0 == begin) else { return place };
        let whole = blocks[at].1;
        self.free.remove(&(whole, place));
        let left = whole - size;
        let is_cut = left > SMALL_BYTES;
        let given = if is_cut { size } else { whole };
        blocks[at] = (begin, given, false);
        if is_cut {
            blocks.insert(at + 1, (begin + size, left, true));
            self.free.insert((left, (segment, begin + size)));
        }
        self.given += given;
        place
    }

    /// Every few MiB the bridge looks whether too much is kept, and empties the cache.
    fn look(&mut self, bytes: u64, calls: &mut DriverCalls) {
        self.unseen += bytes;
        if self.unseen < self.look_every {
            return;
        }
        self.unseen = 0;
        if !self.keeps_too_much() {
            self.look_every = LOOK_EVERY;
            return;
        }
        self.empty_cache(calls);
        let in_vain = self.keeps_too_much();
        self.look_every = if in_vain { 2 * self.look_every } else { LOOK_EVERY };
    }

    fn keeps_too_much(&self) -> bool {
        let kept = self.reserved - self.given;
        let kept_max = KEPT_MIN.max(self.tensors_max / KEPT_PARTS);
        kept > kept_max && kept + self.given > self.tensors_max + kept_max
    }

    /// Segments of which nothing is given away go back to the driver, once the GPU is done.
    fn empty_cache(&mut self, calls: &mut DriverCalls) {
        let whole = |(size, (segment, _)): &&(u64, Place)| self.segments[segment].size == *size;
        let unused: Vec<(u64, Place)> = self.free.iter().filter(whole).copied().collect();
        calls.drains += 1;
        calls.releases += unused.len() as u32;
        for free in unused {
            self.free.remove(&free);
            self.segments.remove(&free.1.0);
            self.reserved -= free.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_free_serves_again_and_joins_what_is_beside() {
        let mut memory = CachingAllocator::new(1 << 30, 0);
        let (first, calls) = memory.take(4 * MIB);
        assert_eq!(calls.allocations, 1);
        let (second, calls) = memory.take(8 * MIB);
        assert_eq!((calls, memory.reserved), (DriverCalls::default(), 20 * MIB), "of one segment");
        memory.give(first.unwrap());
        memory.give(second.unwrap());
        assert_eq!(memory.free.len(), 1);
        assert_eq!(memory.take(9 * MIB).1, DriverCalls::default());
    }

    #[test]
    fn room_in_pieces_is_no_room() {
        let mut memory = CachingAllocator::new(64 * MIB, 0);
        let places: Vec<_> = (0..4).map(|_| memory.take(16 * MIB).0.unwrap()).collect();
        memory.give(places[0]);
        memory.give(places[2]);
        let (_, calls) = memory.take(24 * MIB);
        let expected =
            DriverCalls { drains: 1, allocations: 1, releases: 2, ..DriverCalls::default() };
        assert_eq!(calls, expected, "two segments go, one comes");
        memory.give(places[1]);
        let (_, calls) = memory.take(32 * MIB);
        assert_eq!(calls.misfits, 1);
    }

    #[test]
    fn the_cache_is_emptied_when_it_keeps_too_much() {
        let mut memory = CachingAllocator::new(1 << 30, 1 << 40);
        let places: Vec<_> = (0..21).map(|_| memory.take(64 * MIB).0.unwrap()).collect();
        for place in places {
            memory.give(place);
        }
        let (_, calls) = memory.take(64 * MIB);
        assert_eq!((calls.drains, calls.releases), (1, 20));
    }
}
