//! The program's thread where tensors are a GPU's: what it does takes it time, it launches ahead,
//! and it waits where it must.

use super::arena::{SimulatedArena, SimulatedStream};
use super::caching::{CachingAllocator, DriverCalls, Place};
use super::clocks::{CauseSpan, TimeCause};
use super::departing::{DepartingBlock, DepartingBlocks};
use super::event::{SimulatedEvent, SimulatedEvents};
use super::gpu::CopyWait;
use super::gpu_runtime::{CompletionRule, EvictionAfter, GpuAllocator, GpuRuntime};
use super::gpu_step::StepCounts;
use crate::migration::MigrationDirection;
use crate::residency::{OpUse, StorageId};
use crate::units::{Bytes, Nanos};
use std::collections::{HashMap, VecDeque};

/// Last events of a storage in streams.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct StorageEvents {
    pub(super) last_use: Option<SimulatedEvent>,
    pub(super) fetched: Option<SimulatedEvent>,
    pub(super) evicted: Option<SimulatedEvent>,
}

enum Memory {
    Free,
    Caching(Box<CachingMemory>),
    Arena(SimulatedArena),
}

/// Memory of torch's allocator.
struct CachingMemory {
    allocator: CachingAllocator,
    places: HashMap<StorageId, Place>,
    /// Departing blocks, given up and copied out, where that is in the order of streams.
    departing: Option<DepartingBlocks>,
}

impl CachingMemory {
    /// Returns what whoever has it waits for, beside what kernels wait for that were launched.
    fn take(
        &mut self,
        id: StorageId,
        bytes: u64,
        events: &SimulatedEvents,
    ) -> (Vec<SimulatedEvent>, DriverCalls) {
        let mut waits = Vec::new();
        if let Some(departing) = &mut self.departing {
            let gone = departing.make_room(bytes, events);
            departing.take(bytes);
            for DepartingBlock { place, read, .. } in gone {
                self.give_to_allocator(place);
                waits.extend(to_come([Some(read), None], events));
            }
        }
        let (place, calls) = self.allocator.take(bytes);
        self.places.extend(place.map(|place| (id, place)));
        (waits, calls)
    }

    /// Takes memory that is copied out for a fetch, if there is some, and returns the event for
    /// which its copy waits.
    fn take_copied_out(&mut self, id: StorageId, bytes: u64) -> Option<SimulatedEvent> {
        let departing = self.departing.as_mut()?;
        let DepartingBlock { place, read, .. } = departing.take_copied_out(bytes)?;
        departing.take(bytes);
        self.places.extend(place.map(|place| (id, place)));
        Some(read)
    }

    /// `read`: what is behind the copy that has it still.
    fn give(&mut self, id: StorageId, bytes: u64, read: Option<SimulatedEvent>) {
        let place = self.places.remove(&id);
        if let Some(departing) = &mut self.departing {
            departing.give(bytes);
            if let Some(read) = read {
                return departing.add(DepartingBlock { place, bytes, read });
            }
        }
        self.give_to_allocator(place);
    }

    fn give_to_allocator(&mut self, place: Option<Place>) {
        if let Some(place) = place {
            self.allocator.give(place);
        }
    }
}

/// The program's thread, and what it has put into streams.
pub(super) struct ProgramThread {
    pub(super) runtime: GpuRuntime,
    memory: Memory,
    /// Storages by [`StorageId`].
    storages: Vec<StorageEvents>,
    /// Kernels whose end it has not seen.
    pub(super) launched: VecDeque<SimulatedEvent>,
    pub(super) last_launched: Option<SimulatedEvent>,
    /// Waits of the next kernel because of its memory.
    waits: Vec<CopyWait>,
    spans: Vec<CauseSpan>,
    pub(super) counts: StepCounts,
}

impl ProgramThread {
    pub(super) fn new(runtime: GpuRuntime, capacity: u64) -> Self {
        let memory = match runtime.behaviour.memory {
            GpuAllocator::Free => Memory::Free,
            GpuAllocator::Caching | GpuAllocator::CachingInOrder => {
                let in_order = runtime.behaviour.memory == GpuAllocator::CachingInOrder;
                Memory::Caching(Box::new(CachingMemory {
                    allocator: CachingAllocator::new(capacity, runtime.costs.slack.0),
                    places: HashMap::new(),
                    departing: in_order.then(|| DepartingBlocks::new(capacity)),
                }))
            }
            GpuAllocator::Arena => Memory::Arena(SimulatedArena::new(Bytes(capacity))),
        };
        Self {
            runtime,
            memory,
            storages: Vec::new(),
            launched: VecDeque::new(),
            last_launched: None,
            waits: Vec::new(),
            spans: Vec::new(),
            counts: StepCounts::default(),
        }
    }

    pub(super) fn begin_iteration(&mut self) {
        self.spans.clear();
        self.counts = StepCounts::default();
    }

    pub(super) fn spans(&self) -> &[CauseSpan] {
        &self.spans
    }

    /// Notes what a part of its time was.
    pub(super) fn note(&mut self, span: CauseSpan) {
        if span.begin >= span.end {
            return;
        }
        match self.spans.last_mut() {
            Some(last) if last.cause == span.cause && last.end == span.begin => last.end = span.end,
            _ => self.spans.push(span),
        }
    }

    /// Notes that from `now` on it does something that takes so long, and returns when it ends.
    pub(super) fn spend(&mut self, now: u64, cause: TimeCause, nanos: u64) -> u64 {
        let end = now + nanos;
        self.note(CauseSpan { begin: Nanos(now), end: Nanos(end), cause });
        end
    }

    /// Returns whether a transfer counts as complete when it is in its stream.
    pub(super) fn tells_at_once(&self, is_write: bool) -> bool {
        match self.runtime.behaviour.completion {
            CompletionRule::SeenByHost => false,
            CompletionRule::WritesEnqueued => is_write,
            CompletionRule::Enqueued => true,
        }
    }

    pub(super) fn storage(&mut self, id: StorageId) -> &mut StorageEvents {
        let index = id.0 as usize;
        if index >= self.storages.len() {
            self.storages.resize(index + 1, StorageEvents::default());
        }
        &mut self.storages[index]
    }

    /// Returns the events for which an eviction's copy waits.
    pub(super) fn before_eviction(
        &mut self,
        id: StorageId,
        is_write: bool,
        events: &SimulatedEvents,
    ) -> Vec<SimulatedEvent> {
        let all = self.last_launched;
        let order = self.runtime.behaviour.eviction_after;
        let StorageEvents { last_use, fetched, .. } = *self.storage(id);
        let waits = match order {
            EvictionAfter::LastUseOfWrites if !is_write => [all, None],
            EvictionAfter::AllLaunched => [all, None],
            EvictionAfter::LastUse | EvictionAfter::LastUseOfWrites => [last_use, fetched],
        };
        to_come(waits, events)
    }

    /// Takes a fetch's memory, and returns what its copy waits for.
    pub(super) fn before_fetch(
        &mut self,
        id: StorageId,
        bytes: u64,
        events: &SimulatedEvents,
    ) -> (Vec<SimulatedEvent>, DriverCalls) {
        let all = self.last_launched;
        let evicted = self.storage(id).evicted;
        match &mut self.memory {
            Memory::Free => (to_come([evicted, None], events), DriverCalls::default()),
            Memory::Caching(memory) => {
                if let Some(read) = memory.take_copied_out(id, bytes) {
                    return (to_come([evicted, Some(read)], events), DriverCalls::default());
                }
                let (copied_out, calls) = memory.take(id, bytes, events);
                let mut waits = to_come([evicted, all], events);
                waits.extend(&copied_out);
                self.waits.extend(copied_out.into_iter().map(waits_for_copy_out));
                (waits, calls)
            }
            Memory::Arena(arena) => {
                let (taken, calls) =
                    arena.take(id, Bytes(bytes), SimulatedStream::CopiesBack, events);
                let others = if taken.is_none() { all } else { None };
                let mut waits = to_come([evicted, others], events);
                waits.extend(taken.into_iter().flatten());
                (waits, calls)
            }
        }
    }

    /// Takes the memory of what the next kernel makes.
    pub(super) fn before_birth(
        &mut self,
        id: StorageId,
        bytes: u64,
        events: &SimulatedEvents,
    ) -> DriverCalls {
        *self.storage(id) = StorageEvents::default();
        match &mut self.memory {
            Memory::Free => DriverCalls::default(),
            Memory::Caching(memory) => {
                let (waits, calls) = memory.take(id, bytes, events);
                self.waits.extend(waits.into_iter().map(waits_for_copy_out));
                calls
            }
            Memory::Arena(arena) => {
                let (waits, calls) = arena.take(id, Bytes(bytes), SimulatedStream::Kernels, events);
                let waits = waits.into_iter().flatten();
                self.waits.extend(waits.map(waits_for_copy_out));
                calls
            }
        }
    }

    /// Returns the events for which the next kernel waits, which uses these storages. What it
    /// modifies may be copied out still, though it stays.
    pub(super) fn before_kernel(
        &mut self,
        uses: impl Iterator<Item = OpUse>,
        events: &SimulatedEvents,
    ) -> Vec<CopyWait> {
        let mut waits = std::mem::take(&mut self.waits);
        for OpUse { storage, modifies } in uses {
            let StorageEvents { fetched, evicted, .. } = *self.storage(storage);
            let ways = [
                (fetched, MigrationDirection::In),
                (evicted.filter(|_| modifies), MigrationDirection::Out),
            ];
            let to_come = ways.into_iter().filter_map(|(event, way)| Some((event?, way)));
            waits.extend(to_come.filter(|(event, _)| !events.has_passed(*event)));
        }
        waits
    }

    /// A storage's memory is given up, which a copy or the last kernel had.
    pub(super) fn release(&mut self, id: StorageId, bytes: u64, by_kernel: bool) {
        let StorageEvents { last_use, fetched, evicted } = *self.storage(id);
        let after = evicted.filter(|_| !by_kernel);
        let uses = [
            (SimulatedStream::Kernels, last_use),
            (SimulatedStream::CopiesBack, fetched),
            (SimulatedStream::CopiesOut, evicted),
        ];
        let uses = uses.into_iter().filter_map(|(stream, event)| Some((stream, event?)));
        match &mut self.memory {
            Memory::Free => {}
            Memory::Caching(memory) => memory.give(id, bytes, after),
            Memory::Arena(arena) => arena.give(id, uses),
        }
    }
}

fn waits_for_copy_out(event: SimulatedEvent) -> CopyWait {
    (event, MigrationDirection::Out)
}

fn to_come(waits: [Option<SimulatedEvent>; 2], events: &SimulatedEvents) -> Vec<SimulatedEvent> {
    waits.into_iter().flatten().filter(|event| !events.has_passed(*event)).collect()
}
