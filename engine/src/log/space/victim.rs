//! Choice of the segment to reclaim.

use super::{AllocationReach, Durability, Lane, Space, State};
use crate::layout::BLOCK_BYTES;
use crate::units::ByteCount;

/// A segment is old once this part of the share has been written since.
const AGE_SHARE: u64 = 8;

/// Criteria for segments that are worth reclaiming.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Durability of the segments; `None`: any.
    pub durability: Option<Durability>,
    /// Least dead part of a segment, in eighths.
    pub dead_eighths_min: u64,
}

impl Wanted {
    /// Criteria that take any segment that frees space.
    pub const ANY: Self = Self { durability: None, dead_eighths_min: 0 };
    /// Criteria that take segments which free enough back to be worth more than keeping lifetimes
    /// apart.
    pub const WORTHWHILE: Self = Self { durability: None, dead_eighths_min: 1 };
}

/// A segment to reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Victim {
    /// The segment, counted over the pool.
    pub segment: u32,
    /// The lane that filled it.
    pub lane: Lane,
    /// Bytes that must be copied.
    pub live: ByteCount,
    /// Bytes that become free.
    pub dead: ByteCount,
}

impl Space {
    /// The sealed segment that gives most for what copying costs: the benefit is its dead blocks
    /// times its age, the cost its live blocks. The first of equals.
    ///
    /// In a young segment waiting makes more blocks die. From `AGE_SHARE` on that argument is
    /// spent, and age counts no more: otherwise old segments that are nearly all alive would be
    /// copied over and over before younger ones that are nearly all dead.
    pub fn victim(&self, wanted: Wanted) -> Option<Victim> {
        let blocks = self.segments.len() as u64 * u64::from(self.segment_blocks);
        let age_max = 1 + blocks / AGE_SHARE;
        let candidates = (0_u32..).zip(&self.segments).filter_map(|(index, segment)| {
            let State::Sealed(lane) = segment.state else { return None };
            let (live, dead) = (u64::from(segment.live), self.dead_in(index, lane));
            let fits = live <= self.available(lane, AllocationReach::Reserve);
            let kind = wanted.durability.is_none_or(|durability| durability == lane.durability);
            let worth = 8 * dead >= wanted.dead_eighths_min * u64::from(self.segment_blocks);
            let settled = segment.reserved == 0 && dead > 0 && !segment.unmovable;
            if !(settled && kind && worth && fits) {
                return None;
            }
            let age = (1 + self.handed_out - segment.filled_at).min(age_max);
            let value = ((u128::from(dead) * u128::from(age)) << 32) / u128::from(1 + live);
            Some((
                value,
                index,
                Victim {
                    segment: self.first_segment + index,
                    lane,
                    live: ByteCount(live * BLOCK_BYTES),
                    dead: ByteCount(dead * BLOCK_BYTES),
                },
            ))
        });
        let best = candidates.max_by_key(|&(value, index, _)| (value, std::cmp::Reverse(index)));
        best.map(|(.., victim)| victim)
    }

    /// The sealed segment with least in it of those that `is_meant`, by the sets of devices over
    /// which they are striped, and that can be emptied now.
    pub fn victim_of_set(&self, is_meant: impl Fn(u8) -> bool) -> Option<Victim> {
        let candidates = (0_u32..).zip(&self.segments).filter_map(|(index, segment)| {
            let State::Sealed(lane) = segment.state else { return None };
            let live = u64::from(segment.live);
            let fits = live <= self.available(lane, AllocationReach::Reserve);
            let is_settled = segment.reserved == 0 && !segment.unmovable;
            (is_meant(segment.set) && is_settled && fits).then(|| Victim {
                segment: self.first_segment + index,
                lane,
                live: ByteCount(live * BLOCK_BYTES),
                dead: ByteCount(self.dead_in(index, lane) * BLOCK_BYTES),
            })
        });
        candidates.min_by_key(|victim| (victim.live.0, victim.segment))
    }

    /// Returns the blocks of tensors, in all copies, that live in segments striped over a set that
    /// `is_meant`.
    pub fn live_of_set(&self, is_meant: impl Fn(u8) -> bool) -> u64 {
        let of_tensors =
            |it: &&super::Segment| matches!(it.state, State::Open(_) | State::Sealed(_));
        let meant = self.segments.iter().filter(of_tensors).filter(|it| is_meant(it.set));
        meant.map(|segment| u64::from(segment.live)).sum()
    }

    /// Keeps a segment from being written to while it is reclaimed.
    pub fn begin_reclaim(&mut self, segment: u32) {
        self.victim = Some(segment - self.first_segment);
    }

    /// Ends a reclamation, whatever became of it.
    pub fn end_reclaim(&mut self) {
        self.victim = None;
    }

    /// Marks a segment that has unreadable data: it stays as it is until all in it is dead.
    pub fn mark_unmovable(&mut self, segment: u32) {
        let segment = &mut self.segments[(segment - self.first_segment) as usize];
        segment.unmovable = !segment.is_unused();
    }

    /// Returns the most that reclamation could free.
    pub fn reclaimable(&self) -> ByteCount {
        let sealed = (0_u32..).zip(&self.segments).filter_map(|(index, segment)| {
            let State::Sealed(lane) = segment.state else { return None };
            let is_movable = segment.reserved == 0 && !segment.unmovable;
            is_movable.then(|| self.dead_in(index, lane))
        });
        ByteCount(sealed.sum::<u64>() * BLOCK_BYTES)
    }

    /// Free segments that puts may take.
    pub fn spare_segments(&self) -> u32 {
        self.free_within(AllocationReach::Sisters) as u32
    }

    /// Returns the number of segments that are not the index's, without those that are kept for
    /// reclamation.
    pub fn segments_for_tensors(&self) -> u64 {
        u64::from(self.segment_count().saturating_sub(self.index_segments + self.reserve.max(1)))
    }

    /// Segments of the share.
    pub fn segment_count(&self) -> u32 {
        self.segments.len() as u32
    }

    /// Blocks that come back if a sealed segment of this lane is emptied: those that are dead, what
    /// was never filled included. Where a device is missing, less than what lives in a segment may
    /// fit into another.
    fn dead_in(&self, index: u32, lane: Lane) -> u64 {
        let segment = &self.segments[index as usize];
        u64::from(self.usable(lane.copies).saturating_sub(segment.live + segment.reserved))
    }
}
