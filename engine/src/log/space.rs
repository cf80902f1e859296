//! The space of a share: which segments are free, which a lane fills, and what lies in them.
//!
//! Space is append only. A lane fills its open segment from front to back and takes another; what
//! lies in a segment only ever turns from reserved to live to dead, and when nothing in it is
//! reserved or live any more, the whole segment is free again. Lanes that differ in durability or
//! copies never touch the same segment. Blocks are those of the devices: a tensor with two copies
//! takes twice as many as it has.
//!
//! A segment that stays mixed comes back by reclamation, which copies its live blocks forward. Some
//! free segments are its alone: copying never needs space that is not there.

mod audit;
mod discard;
mod gaps;
mod index;
mod lane;
mod resume;
mod sets;
mod victim;

pub use gaps::Gaps;
pub use lane::{Durability, LANES, Lane};
pub use victim::{Victim, Wanted};

use std::collections::{BTreeMap, VecDeque};

use super::change_log::LogPlace;
use super::stripe::StripeMap;
use crate::layout::{BLOCK_BYTES, Copies, DEVICE_SETS_MAX, LifetimeClass, Run, Runs, ShareArea};
use crate::units::ByteCount;
use lane::CLASSES;
use sets::SetTurns;

/// A share has at least this many segments; with fewer there is nothing to keep back.
const SEGMENTS_FOR_RESERVE: u32 = 8;
/// Number of segments from which a second segment of reserve is cheap.
const SEGMENTS_FOR_SECOND: u32 = 32;

/// Use of a share's space. Live, dead, free, reserved, index and missing always sum to the
/// capacity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpaceUse {
    /// Capacity of the share.
    pub capacity: ByteCount,
    /// Held by tensors that can be read, and by seals.
    pub live: ByteCount,
    /// The part of `live` that only seals hold: what their tensors were, and are no more.
    pub sealed: ByteCount,
    /// Held by nothing, but in a segment that is not free yet.
    pub dead: ByteCount,
    /// Free segments, and what is left of the open ones.
    pub free: ByteCount,
    /// The part of `free` that only reclamation may take.
    pub reclaim_reserve: ByteCount,
    /// Held by writes in flight, by uncommitted batches, and by old versions that are being read.
    pub reserved: ByteCount,
    /// Segments that hold what checkpoints of the index have no room for in their places.
    pub index: ByteCount,
    /// The part of free segments, and of what is left of the open ones, that a missing device has.
    pub missing: ByteCount,
}

/// No space for an allocation; nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full {
    /// Requested size in all copies, rounded up to blocks; or the segments by which the index would
    /// have to grow.
    pub needed: ByteCount,
    /// Size that this lane could have had: `free` less what is left of other durability's open
    /// segments, and less what is kept for reclamation. For the index, the whole segments of that
    /// beside the tensor's own.
    pub available: ByteCount,
    /// True if the index is what is to grow, and not a tensor that is to be put.
    pub for_index: bool,
    /// Use of the space.
    pub space: SpaceUse,
}

/// Reach of an allocation, each more than the one before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllocationReach {
    /// The lane's own segments: its open one and free ones. What is put into a sister's dies at
    /// another time than the rest there.
    Lane,
    /// Open segments of the sister lanes, too.
    Sisters,
    /// Free segments that are kept for reclamation, too.
    Reserve,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Free,
    /// Free, and not to be taken while its devices are told so.
    Discarding,
    /// A lane appends here.
    Open(Lane),
    /// Filled by this lane, or found partly filled by recovery.
    Sealed(Lane),
    /// Checkpoints of the index go on in it.
    Index,
}

#[derive(Clone, Debug)]
struct Segment {
    state: State,
    /// Number of the set of devices over which it is striped. What is free counts as if it were
    /// striped over the current one.
    set: u8,
    /// Blocks handed out so far, from the front.
    filled: u32,
    live: u32,
    reserved: u32,
    /// Runs that were handed out and never held anything readable, by their end: their start.
    unused: BTreeMap<u32, u32>,
    /// Value of [`Space::handed_out`] when the segment's last block was handed out: how old it is.
    filled_at: u64,
    /// True if something in the segment cannot be read, so it cannot be reclaimed.
    unmovable: bool,
    /// True if the devices have been told that the segment holds nothing.
    discarded: bool,
}

impl Segment {
    const FREE: Self = Self {
        state: State::Free,
        set: 0,
        filled: 0,
        live: 0,
        reserved: 0,
        unused: BTreeMap::new(),
        filled_at: 0,
        unmovable: false,
        discarded: false,
    };

    /// Returns whether the segment holds nothing: free, or about to be.
    fn is_unused(&self) -> bool {
        matches!(self.state, State::Free | State::Discarding)
    }
}

/// The space of a share.
#[derive(Debug)]
pub struct Space {
    first_segment: u32,
    /// Blocks of a segment that is striped over the current set of devices.
    segment_blocks: u32,
    /// Blocks of a segment by the set of devices over which it is striped.
    set_blocks: [u32; DEVICE_SETS_MAX],
    /// Number of the current set.
    current: u8,
    /// Turns of the sets over which new segments are striped.
    turns: SetTurns,
    segments: Vec<Segment>,
    /// Oldest first: a freed segment is reused as late as possible.
    free: VecDeque<u32>,
    /// The open segment of each lane.
    open: [Option<u32>; LANES],
    /// The segment that each lane filled last; it may have become free since.
    filled_last: [Option<u32>; LANES],
    live: u64,
    reserved: u64,
    /// Number of segments of the index.
    index_segments: u32,
    /// Free segments that only reclamation takes.
    reserve: u32,
    /// The segment that is being reclaimed.
    victim: Option<u32>,
    /// Blocks handed out so far: the clock by which segments age.
    handed_out: u64,
    /// True if tensors are kept apart by lifetime.
    lifetime_lanes: bool,
    /// The places that nothing new is put to, where a device is missing.
    gaps: Option<Gaps>,
}

impl Space {
    /// An empty share, with some free segments that only reclamation takes.
    ///
    /// The survivors of one segment fill less than one other, so a single one is enough to go on
    /// for ever; a second keeps reclamation going while old readers hold on to the last victim.
    pub fn new(area: &ShareArea, segment_blocks: u64) -> Self {
        let reserve = match area.segments {
            0..SEGMENTS_FOR_RESERVE => 0,
            SEGMENTS_FOR_RESERVE..SEGMENTS_FOR_SECOND => 1,
            SEGMENTS_FOR_SECOND.. => 2,
        };
        Self {
            first_segment: area.first_segment,
            segment_blocks: segment_blocks as u32,
            set_blocks: [segment_blocks as u32; DEVICE_SETS_MAX],
            current: 0,
            turns: SetTurns::default(),
            segments: vec![Segment::FREE; area.segments as usize],
            free: (0..area.segments).collect(),
            open: [None; LANES],
            filled_last: [None; LANES],
            live: 0,
            reserved: 0,
            index_segments: 0,
            reserve,
            victim: None,
            handed_out: 0,
            lifetime_lanes: true,
            gaps: None,
        }
    }

    /// An empty share at this place, whose segments are striped as its map says. What is put keeps
    /// clear of a device that is missing.
    pub fn at(place: &LogPlace) -> Self {
        let LogPlace { area, stripes, .. } = place;
        Self::new(area, stripes.segment_blocks()).striped_by(stripes)
    }

    fn striped_by(self, stripes: &StripeMap) -> Self {
        let (current, gaps) = (stripes.current(), stripes.gaps());
        let set_blocks = std::array::from_fn(|set| stripes.blocks_over(set as u8) as u32);
        Self { set_blocks, current, gaps, ..self }
    }

    /// Merges the lanes into one for each durability, whatever lifetimes are hinted.
    #[must_use]
    pub fn without_lifetime_lanes(self) -> Self {
        Self { lifetime_lanes: false, ..self }
    }

    /// Reserves room for `bytes` and appends it to `runs`: what is left of the lane's open segment,
    /// then free segments; what is left of its sister lanes' segments only before giving up.
    ///
    /// # Errors
    /// There is not enough within reach; nothing has changed.
    pub fn allocate(
        &mut self,
        hinted: Lane,
        bytes: u64,
        reach: AllocationReach,
        runs: &mut Runs,
    ) -> Result<(), Full> {
        let one = Lane { class: LifetimeClass::Step, ..hinted };
        let lane = if self.lifetime_lanes { hinted } else { one };
        let needed = bytes.div_ceil(BLOCK_BYTES) * u64::from(lane.copies.count());
        // What most allocations find; where else there is something is not asked for then.
        let fits = self.open[lane.index()].is_some_and(|index| needed <= self.room(index));
        if !fits {
            self.check_available(lane, reach, needed)?;
        }
        let mut missing = self.fill(lane, needed, runs);
        while missing > 0 && self.free_within(reach) > 0 {
            let set = self.next_set(lane, reach, missing);
            let Some(index) = self.free.pop_front() else { break };
            let segment = &mut self.segments[index as usize];
            (segment.discarded, segment.set) = (false, set);
            segment.state = State::Open(lane);
            self.open[lane.index()] = Some(index);
            missing = self.fill(lane, missing, runs);
        }
        if missing > 0 {
            for sister in lane.family().skip(1) {
                missing = self.fill(sister, missing, runs);
            }
        }
        debug_assert_eq!(missing, 0, "available() promised more than there was");
        Ok(())
    }

    fn check_available(&self, lane: Lane, reach: AllocationReach, needed: u64) -> Result<(), Full> {
        let available = self.available(lane, reach);
        if needed <= available {
            return Ok(());
        }
        Err(Full {
            needed: ByteCount(needed.saturating_mul(BLOCK_BYTES)),
            available: ByteCount(available * BLOCK_BYTES),
            for_index: false,
            space: self.space_use(),
        })
    }

    /// The reserved runs hold a readable tensor from now on.
    pub fn install(&mut self, runs: &[Run]) {
        for run in runs {
            let segment = self.segment(run);
            segment.reserved -= run.blocks;
            segment.live += run.blocks;
            self.reserved -= u64::from(run.blocks);
            self.live += u64::from(run.blocks);
        }
    }

    /// Marks the runs of a tensor that nothing finds any more, but somebody still reads it.
    pub fn retire(&mut self, runs: &[Run]) {
        for run in runs {
            let segment = self.segment(run);
            segment.live -= run.blocks;
            segment.reserved += run.blocks;
            self.live -= u64::from(run.blocks);
            self.reserved += u64::from(run.blocks);
        }
    }

    /// The tensor in these runs is gone, and nobody reads it.
    pub fn remove(&mut self, runs: &[Run]) {
        self.retire(runs);
        self.release(runs);
    }

    /// The last read of an old version in these runs has ended.
    pub fn release(&mut self, runs: &[Run]) {
        for run in runs {
            self.segment(run).reserved -= run.blocks;
            self.reserved -= u64::from(run.blocks);
            self.free_if_empty(run.segment - self.first_segment);
        }
    }

    /// The write into these reserved runs has failed or was given up, and nothing touches them any
    /// more.
    ///
    /// Nobody has ever read them, so what lies at the edge of what a lane has filled is handed out
    /// again: a put that fails over and over costs no space.
    pub fn abandon(&mut self, runs: &[Run]) {
        for run in runs {
            self.segment(run).unused.insert(run.end() as u32, run.block);
        }
        self.release(runs);
        for run in runs.iter().rev() {
            self.take_back(run.segment - self.first_segment);
        }
        // A lane that has lost the segment it went on in goes back to the one before.
        for lane in 0..LANES {
            if let (None, Some(last)) = (self.open[lane], self.filled_last[lane]) {
                self.take_back(last);
            }
        }
    }

    /// Returns the use of the space.
    pub fn space_use(&self) -> SpaceUse {
        let open = || self.open.iter().flatten();
        let open_room: u64 = open().map(|&index| self.room(index)).sum();
        let left =
            |&index: &u32| u64::from(self.limit(index) - self.segments[index as usize].filled);
        let open_left: u64 = open().map(left).sum();
        let capacity: u64 = self.segments.iter().map(|it| self.blocks_of(it)).sum();
        let unused = self.segments.iter().filter(|segment| segment.is_unused()).count() as u64;
        // Of those that may have more.
        let usable = Copies::ALL.map(|copies| self.usable(copies));
        let usable = usable.into_iter().max().map_or(0, u64::from);
        let free = unused * usable + open_room;
        let missing = unused * (u64::from(self.segment_blocks) - usable) + open_left - open_room;
        let kept = unused.min(u64::from(self.reserve)) * usable;
        let index = u64::from(self.index_segments) * u64::from(self.segment_blocks);
        let bytes = |blocks: u64| ByteCount(blocks * BLOCK_BYTES);
        SpaceUse {
            capacity: bytes(capacity),
            live: bytes(self.live),
            sealed: ByteCount(0),
            dead: bytes(capacity - self.live - self.reserved - index - free - missing),
            free: bytes(free),
            reclaim_reserve: bytes(kept),
            reserved: bytes(self.reserved),
            index: bytes(index),
            missing: bytes(missing),
        }
    }

    /// Hands out up to `missing` blocks of the lane's open segment; returns how many are still
    /// missing.
    fn fill(&mut self, lane: Lane, missing: u64, runs: &mut Runs) -> u64 {
        let Some(index) = self.open[lane.index()] else { return missing };
        let Some(gaps) = self.gaps else {
            return self.hand_out((lane, index), self.limit(index), missing, runs);
        };
        let (mut missing, limit) = (missing, self.segment_blocks);
        while missing > 0 && self.room(index) > 0 {
            let stretch = gaps.stretch(self.segments[index as usize].filled, limit, lane.copies);
            self.segments[index as usize].filled = stretch.start;
            missing = self.hand_out((lane, index), stretch.end, missing, runs);
        }
        if self.room(index) == 0 && self.open[lane.index()] == Some(index) {
            // A gap is all that is left.
            self.segments[index as usize].filled = limit;
            self.seal(lane, index);
        }
        missing
    }

    /// Hands out up to `missing` blocks of an open segment that end before `end`; returns how many
    /// are still missing.
    fn hand_out(
        &mut self,
        (lane, index): (Lane, u32),
        end: u32,
        missing: u64,
        runs: &mut Runs,
    ) -> u64 {
        let blocks = missing.min((end - self.segments[index as usize].filled).into()) as u32;
        let (first, limit) = (self.first_segment, self.limit(index));
        let segment = &mut self.segments[index as usize];
        if blocks > 0 {
            let (block, copies) = (segment.filled, lane.copies);
            let (number, set) = (first + index, segment.set);
            runs.push(Run { segment: number, block, blocks, copies, set });
            segment.filled += blocks;
            segment.reserved += blocks;
            self.reserved += u64::from(blocks);
            self.handed_out += u64::from(blocks);
            segment.filled_at = self.handed_out;
        }
        if segment.filled == limit {
            self.seal(lane, index);
        }
        missing - u64::from(blocks)
    }

    /// A lane has filled its open segment.
    fn seal(&mut self, lane: Lane, index: u32) {
        self.segments[index as usize].state = State::Sealed(lane);
        self.open[lane.index()] = None;
        self.filled_last[lane.index()] = Some(index);
    }

    /// Returns whether any segment has two copies of what lies in it.
    pub fn has_mirrors(&self) -> bool {
        self.segments.iter().any(|segment| match segment.state {
            State::Open(lane) | State::Sealed(lane) => lane.copies == Copies::Two,
            State::Free | State::Discarding | State::Index => false,
        })
    }

    /// The bytes of one segment, over all devices.
    pub fn segment_size(&self) -> ByteCount {
        ByteCount(u64::from(self.segment_blocks) * BLOCK_BYTES)
    }

    /// Blocks of a segment, over all devices of its set.
    fn blocks_of(&self, segment: &Segment) -> u64 {
        let set = match segment.state {
            State::Free | State::Discarding | State::Index => self.current,
            State::Open(_) | State::Sealed(_) => segment.set,
        };
        u64::from(self.set_blocks[usize::from(set)])
    }

    /// Blocks of a segment that is open, or was.
    fn limit(&self, index: u32) -> u32 {
        self.set_blocks[usize::from(self.segments[index as usize].set)]
    }

    /// Blocks that an allocation in this lane can have.
    fn available(&self, lane: Lane, reach: AllocationReach) -> u64 {
        let lanes = if reach == AllocationReach::Lane { 1 } else { CLASSES };
        let open = lane.family().take(lanes).filter_map(|lane| self.open[lane.index()]);
        let rooms: u64 = open.map(|index| self.room(index)).sum();
        self.free_within(reach) as u64 * u64::from(self.usable(lane.copies)) + rooms
    }

    /// Free segments that an allocation can have.
    fn free_within(&self, reach: AllocationReach) -> usize {
        let kept = if reach == AllocationReach::Reserve { 0 } else { self.reserve };
        self.free.len().saturating_sub(kept as usize)
    }

    /// Blocks of an open segment that can still be handed out.
    fn room(&self, index: u32) -> u64 {
        let Segment { filled, state, .. } = &self.segments[index as usize];
        match (self.gaps, state) {
            (Some(gaps), State::Open(lane) | State::Sealed(lane)) => {
                gaps.room(*filled, self.segment_blocks, lane.copies).into()
            }
            _ => u64::from(self.limit(index) - filled),
        }
    }

    /// Blocks of a free segment that tensors with these copies can have.
    fn usable(&self, copies: Copies) -> u32 {
        let all = self.segment_blocks;
        self.gaps.map_or(all, |gaps| gaps.room(0, all, copies))
    }

    fn segment(&mut self, run: &Run) -> &mut Segment {
        &mut self.segments[(run.segment - self.first_segment) as usize]
    }

    /// Moves the edge of what has been handed out back over runs that were never used.
    fn take_back(&mut self, index: u32) {
        // What is being reclaimed takes nothing new.
        if self.victim == Some(index) {
            return;
        }
        let segment = &mut self.segments[index as usize];
        let (State::Open(lane) | State::Sealed(lane)) = segment.state else { return };
        // The lane goes on in one place; a segment behind it keeps its hole until it is free.
        let open = &mut self.open[lane.index()];
        if open.is_some_and(|open| open != index) {
            return;
        }
        let (gaps, limit) = (self.gaps, self.segment_blocks);
        let edge = |filled: u32| gaps.map_or(filled, |it| it.before(filled, limit, lane.copies));
        while let Some(start) = segment
            .unused
            .remove(&segment.filled)
            .or_else(|| segment.unused.remove(&edge(segment.filled)))
        {
            segment.filled = start;
            segment.state = State::Open(lane);
            *open = Some(index);
        }
    }

    fn free_if_empty(&mut self, index: u32) {
        let segment = &mut self.segments[index as usize];
        if segment.live > 0 || segment.reserved > 0 || segment.is_unused() {
            return;
        }
        if let State::Open(lane) = segment.state {
            self.open[lane.index()] = None;
        }
        *segment = Segment::FREE;
        self.free.push_back(index);
    }
}

#[cfg(test)]
#[path = "space_tests.rs"]
mod tests;
