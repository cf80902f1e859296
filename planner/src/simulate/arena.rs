//! GPU memory in an arena of ours ([`crate::arena`]): what takes memory waits for the events of who
//! had it, and what does not fit is mapped together.

use super::caching::DriverCalls;
use super::event::{SimulatedEvent, SimulatedEvents};
use crate::arena::{ALLOCATION_MIN, ArenaAddress, GpuArena, Granules, StreamNumber, StreamUse};
use crate::residency::StorageId;
use crate::units::Bytes;
use std::collections::HashMap;

/// Allocations take whole granules: this part of the budget is there for it besides.
const ROUNDING_PARTS: u64 = 64;

/// Streams of the simulated GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SimulatedStream {
    Kernels,
    CopiesOut,
    CopiesBack,
}

#[derive(Clone, Debug)]
pub(super) struct SimulatedArena {
    arena: GpuArena,
    addresses: HashMap<StorageId, ArenaAddress>,
}

impl SimulatedArena {
    /// Makes the arena of a budget.
    pub(super) fn new(budget: Bytes) -> Self {
        let memory = Bytes(budget.0 + budget.0 / ROUNDING_PARTS);
        Self { arena: GpuArena::new(Granules::holding(memory)), addresses: HashMap::new() }
    }

    /// Takes memory for work of a stream. Returns the events for which that waits; `None` where it
    /// is another pool's.
    pub(super) fn take(
        &mut self,
        id: StorageId,
        bytes: Bytes,
        stream: SimulatedStream,
        events: &SimulatedEvents,
    ) -> (Option<Vec<SimulatedEvent>>, DriverCalls) {
        let mut calls = DriverCalls::default();
        if bytes < ALLOCATION_MIN {
            return (None, calls);
        }
        let happened = |one| events.has_passed(event_of(one));
        let asked = Granules::holding(bytes);
        let Ok(placement) = self.arena.take(asked, number_of(stream), happened) else {
            // As where torch's allocator has none: the step goes on here all the same.
            calls.misfits += 1;
            return (None, calls);
        };
        self.addresses.insert(id, placement.address);
        calls.remapped = placement.remaps.iter().map(|remap| remap.length.0).sum();
        calls.host_waits = placement.host_waits.into_iter().map(event_of).collect();
        (Some(placement.waits.into_iter().map(event_of).collect()), calls)
    }

    /// Gives memory back, which is free when these events have happened.
    pub(super) fn give(
        &mut self,
        id: StorageId,
        uses: impl IntoIterator<Item = (SimulatedStream, SimulatedEvent)>,
    ) {
        if let Some(address) = self.addresses.remove(&id) {
            let use_of = |(stream, event)| StreamUse {
                stream: number_of(stream),
                number: SimulatedEvent::number(event),
            };
            let uses: Vec<StreamUse> = uses.into_iter().map(use_of).collect();
            self.arena.give(address, &uses);
        }
    }
}

fn number_of(stream: SimulatedStream) -> StreamNumber {
    StreamNumber(stream as u32)
}

fn event_of(one: StreamUse) -> SimulatedEvent {
    SimulatedEvent::numbered(one.number)
}

#[cfg(test)]
mod tests {
    use super::SimulatedStream::{CopiesBack, CopiesOut, Kernels};
    use super::*;

    #[test]
    fn a_taker_waits_for_who_had_its_memory_in_another_stream() {
        let mut arena = SimulatedArena::new(Bytes(8 << 20));
        let mut events = SimulatedEvents::default();
        let [copied, ran] = [events.make(), events.make()];
        let ids = [StorageId(0), StorageId(1)];
        for id in ids {
            let taken = arena.take(id, Bytes(4 << 20), Kernels, &events);
            assert_eq!(taken, (Some(vec![]), DriverCalls::default()));
        }
        arena.give(ids[0], [(CopiesOut, copied)]);
        arena.give(ids[1], [(Kernels, ran)]);
        let taken = |arena: &mut SimulatedArena, id, bytes, events: &_| {
            let (waits, calls) = arena.take(id, Bytes(bytes), CopiesBack, events);
            assert_eq!(calls, DriverCalls::default());
            waits
        };
        assert_eq!(taken(&mut arena, ids[0], 4 << 20, &events), Some(vec![copied]), "the older");
        events.record(ran, 3);
        assert_eq!(taken(&mut arena, ids[1], 3 << 20, &events), Some(vec![]), "it is free by now");
        assert_eq!(taken(&mut arena, StorageId(2), 1000, &events), None, "another pool's");
        let (waits, calls) = arena.take(StorageId(2), Bytes(4 << 20), CopiesBack, &events);
        assert_eq!((waits, calls.misfits), (None, 1));
    }
}
