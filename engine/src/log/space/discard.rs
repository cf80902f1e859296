//! Free segments that devices have not been told of yet.

use super::{Space, State};

impl Space {
    /// Takes the free segment that will be reused last among those whose devices still keep its
    /// bytes, so that nobody else takes it before [`Self::end_discard`].
    pub fn begin_discard(&mut self) -> Option<u32> {
        let Self { segments, free, .. } = self;
        let place = free.iter().rposition(|&index| !segments[index as usize].discarded)?;
        let index = free.remove(place)?;
        segments[index as usize].state = State::Discarding;
        Some(self.first_segment + index)
    }

    /// Ends a discard; the segment can be taken again. Where it failed it counts as done too: it is
    /// advice, and a device that refuses it once will again.
    pub fn end_discard(&mut self, segment: u32) {
        let index = segment - self.first_segment;
        let segment = &mut self.segments[index as usize];
        debug_assert_eq!(segment.state, State::Discarding, "nobody else touches it");
        segment.state = State::Free;
        segment.discarded = true;
        self.free.push_back(index);
    }
}
