//! Memory that was given up and is copied out still, as the bridge keeps it
//! (`native/departing.h`): the next fetch of its size gets it, and waits for that copy alone.

use super::caching::Place;
use super::event::{SimulatedEvent, SimulatedEvents};
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug)]
pub(super) struct DepartingBlock {
    /// `None` where it is another pool's.
    pub(super) place: Option<Place>,
    pub(super) bytes: u64,
    /// Event behind the last look at it.
    pub(super) read: SimulatedEvent,
}

#[derive(Clone, Debug)]
pub(super) struct DepartingBlocks {
    /// Limit of the bytes in use and being copied out, together.
    limit: u64,
    in_use: u64,
    copied_out: u64,
    /// Blocks in the order in which they were given up.
    blocks: VecDeque<DepartingBlock>,
}

impl DepartingBlocks {
    pub(super) fn new(limit: u64) -> Self {
        Self { limit, in_use: 0, copied_out: 0, blocks: VecDeque::new() }
    }

    pub(super) fn take(&mut self, bytes: u64) {
        self.in_use += bytes;
    }

    pub(super) fn give(&mut self, bytes: u64) {
        self.in_use -= bytes;
    }

    pub(super) fn add(&mut self, block: DepartingBlock) {
        self.copied_out += block.bytes;
        self.blocks.push_back(block);
    }

    /// The oldest of this size.
    pub(super) fn take_copied_out(&mut self, bytes: u64) -> Option<DepartingBlock> {
        let at = self.blocks.iter().position(|block| block.bytes == bytes)?;
        self.copied_out -= bytes;
        self.blocks.remove(at)
    }

    /// Returns blocks to the allocator until the requested bytes are within the limit. Whoever has
    /// it next waits for those that are read still.
    pub(super) fn make_room(
        &mut self,
        bytes: u64,
        events: &SimulatedEvents,
    ) -> Vec<DepartingBlock> {
        let mut gone = Vec::new();
        while let Some(oldest) = self.blocks.front()
            && (events.has_passed(oldest.read)
                || self.in_use + self.copied_out + bytes > self.limit)
        {
            self.copied_out -= oldest.bytes;
            gone.extend(self.blocks.pop_front());
        }
        gone
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fetch_gets_the_oldest_of_its_size_and_room_is_made_from_the_oldest() {
        let (mut memory, mut events) = (DepartingBlocks::new(100), SimulatedEvents::default());
        memory.take(100);
        let read: Vec<_> = [10, 20, 20, 30]
            .into_iter()
            .map(|bytes| {
                memory.give(bytes);
                let read = events.make();
                memory.add(DepartingBlock { place: None, bytes, read });
                read
            })
            .collect();
        assert!(memory.take_copied_out(15).is_none());
        assert_eq!(memory.take_copied_out(20).unwrap().read, read[1]);
        memory.take(20);
        assert!(memory.make_room(0, &events).is_empty(), "it fits");
        let gone = |memory: &mut DepartingBlocks, bytes, events: &_| -> Vec<u64> {
            memory.make_room(bytes, events).iter().map(|block| block.bytes).collect()
        };
        assert_eq!(gone(&mut memory, 11, &events), [10, 20]);
        events.record(read[3], 7);
        assert_eq!(gone(&mut memory, 0, &events), [30], "nobody reads it any more");
    }
}
