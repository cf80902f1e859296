//! Segments in which checkpoints of the index go on.

use super::{AllocationReach, Segment, Space, State};

impl Space {
    /// Free segments that the index can have.
    pub fn free_for_index(&self, reach: AllocationReach) -> u32 {
        self.free_within(reach) as u32
    }

    /// Takes a free segment for the index, counted over the pool.
    pub fn take_for_index(&mut self, reach: AllocationReach) -> Option<u32> {
        if self.free_within(reach) == 0 {
            return None;
        }
        let index = self.free.pop_front()?;
        self.hold(index);
        Some(self.first_segment + index)
    }

    /// The index needs a segment no longer.
    pub fn give_back_from_index(&mut self, segment: u32) {
        let index = segment - self.first_segment;
        debug_assert_eq!(self.segments[index as usize].state, State::Index);
        self.index_segments -= 1;
        self.segments[index as usize] = Segment::FREE;
        self.free.push_back(index);
    }

    /// Recovery found that the index goes on in this segment, where no tensor lies.
    /// [`Self::resume`] ends recovery.
    pub fn adopt_for_index(&mut self, segment: u32) {
        self.hold(segment - self.first_segment);
    }

    fn hold(&mut self, index: u32) {
        self.index_segments += 1;
        self.segments[index as usize] = Segment { state: State::Index, ..Segment::FREE };
    }
}
