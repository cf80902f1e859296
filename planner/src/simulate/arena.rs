//! GPU memory in one arena: who takes memory waits for the event of who had it.
//!
//! Its pages are small and mapped where they are needed, so that no free memory is in the wrong
//! place: only when it is free counts here.

use super::event::{SimulatedEvent, SimulatedEvents};
use std::collections::VecDeque;

/// Memory that was freed at once.
#[derive(Clone, Copy, Debug)]
struct FreeMemory {
    bytes: u64,
    /// Event after which the memory is free.
    after: Option<SimulatedEvent>,
    /// True if a kernel had it last: then kernels, which run in order, need not wait.
    by_kernel: bool,
}

/// Taker of memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryFor {
    Kernel,
    Copy,
}

#[derive(Clone, Debug)]
pub(super) struct SimulatedArena {
    /// Free memory from the first that was freed to the last.
    free: VecDeque<FreeMemory>,
}

impl SimulatedArena {
    pub(super) fn new(bytes: u64) -> Self {
        let all = FreeMemory { bytes, after: None, by_kernel: false };
        Self { free: VecDeque::from([all]) }
    }

    /// Takes memory, and returns the events for which whoever takes it has to wait.
    pub(super) fn take(
        &mut self,
        bytes: u64,
        taker: MemoryFor,
        events: &SimulatedEvents,
    ) -> Vec<SimulatedEvent> {
        let (mut left, mut waits) = (bytes, Vec::new());
        while left > 0
            && let Some(place) = self.best(taker, events)
        {
            let FreeMemory { after, by_kernel, .. } = self.free[place];
            let waits_in_order = taker == MemoryFor::Kernel && by_kernel;
            waits.extend(after.filter(|event| !waits_in_order && !events.has_passed(*event)));
            left -= self.take_of(place, left);
        }
        waits
    }

    /// The free memory that costs its taker the least waiting.
    fn best(&self, taker: MemoryFor, events: &SimulatedEvents) -> Option<usize> {
        // What kernels freed last serves kernels: copies would wait for it longest.
        let freed_by_kernel = || self.free.iter().rposition(|free| free.by_kernel);
        let own = (taker == MemoryFor::Kernel).then(freed_by_kernel).flatten();
        let is_free = |free: &FreeMemory| free.after.is_none_or(|event| events.has_passed(event));
        let first = || (!self.free.is_empty()).then_some(0);
        own.or_else(|| self.free.iter().position(is_free)).or_else(first)
    }

    /// Gives memory back, which is free when an event has happened.
    pub(super) fn give(&mut self, bytes: u64, after: Option<SimulatedEvent>, by_kernel: bool) {
        match self.free.back_mut() {
            Some(last) if last.after == after && last.by_kernel == by_kernel => last.bytes += bytes,
            _ => self.free.push_back(FreeMemory { bytes, after, by_kernel }),
        }
    }

    fn take_of(&mut self, place: usize, bytes: u64) -> u64 {
        let free = &mut self.free[place];
        let part = bytes.min(free.bytes);
        free.bytes -= part;
        if free.bytes == 0 {
            self.free.remove(place);
        }
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_copy_takes_what_has_been_free_longest_and_a_kernel_what_a_kernel_had() {
        let (mut arena, mut events) = (SimulatedArena::new(10), SimulatedEvents::default());
        let [copied, ran] = [events.make(), events.make()];
        assert_eq!(arena.take(10, MemoryFor::Kernel, &events), []);
        arena.give(4, Some(copied), false);
        arena.give(6, Some(ran), true);
        assert_eq!(arena.take(5, MemoryFor::Kernel, &events), [], "kernels run in order");
        assert_eq!(arena.take(5, MemoryFor::Copy, &events), [copied, ran]);
        arena.give(10, Some(copied), false);
        events.record(copied, 3);
        assert_eq!(arena.take(10, MemoryFor::Kernel, &events), [], "it is free by now");
    }
}
