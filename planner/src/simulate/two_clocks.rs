//! The world where tensors are a GPU's: the thread has its clock, and puts kernels and copies into
//! streams.

use super::OpStall;
use super::caching::DriverCalls;
use super::clocks::{CauseSpan, TimeCause};
use super::event::SimulatedEvent;
use super::gpu::{KernelBegin, LaunchedKernel};
use super::gpu_step::{GpuStep, waited_for_transfer};
use super::links::{CompletedTransfer, LinkId, LinkTransfer};
use super::world::World;
use crate::migration::MigrationDirection;
use crate::residency::{OpUse, StorageId, TransferId};
use crate::trace::{Op, PlanStorage};
use crate::units::{Nanos, OpIndex};
use std::collections::HashMap;

impl World<'_> {
    /// A step begins: what follows is accounted for.
    pub(super) fn begin_gpu_step(&mut self) {
        self.links.advance(self.now);
        if let (Some(thread), Some(engines)) = (&mut self.thread, self.links.engines_mut()) {
            thread.begin_iteration();
            engines.gpu.begin_iteration(self.now);
        }
    }

    /// Tells where the time of the step that ends now went. Ops begin, and wait, by the GPU's clock
    /// from here on: when an op that launches nothing begins the GPU is with the kernel before.
    pub(super) fn tell_gpu_step(&mut self) {
        self.links.advance(self.now);
        let (Some(thread), Some(engines)) = (&self.thread, self.links.engines()) else { return };
        let spans = engines.gpu.spans(self.now);
        let origin = self.now - self.since_origin(self.now).0;
        self.result.gpu = Some(GpuStep::explained(origin, &spans, thread.spans(), thread.counts));
        let known: HashMap<OpIndex, Option<PlanStorage>> =
            self.result.stalls.iter().map(|stall| (stall.op, stall.waited_for)).collect();
        let mut begins = vec![None; self.trace.ops.len()];
        self.result.stalls.clear();
        for KernelBegin { op, at, idle } in engines.gpu.begins() {
            let at = self.since_origin(*at);
            begins[op.0 as usize] = Some(at);
            if *idle > 0 {
                let waited_for = known.get(op).copied().flatten();
                let (begin, length) = (Nanos(at.0.saturating_sub(*idle)), Nanos(*idle));
                self.result.stalls.push(OpStall { op: *op, begin, length, waited_for });
            }
        }
        let mut last = Nanos(0);
        self.result.begins = begins
            .iter()
            .map(|begin| {
                last = begin.unwrap_or(last);
                last
            })
            .collect();
    }

    pub(super) fn tells_at_once(&self, way: LinkId) -> bool {
        let is_write = matches!(way, LinkId::Out(_));
        self.thread.as_ref().is_some_and(|thread| thread.tells_at_once(is_write))
    }

    /// The thread gets to the next op.
    pub(super) fn dispatch(&mut self) {
        let cost = self.thread.as_ref().map(|thread| thread.runtime.costs.dispatch);
        self.spend(TimeCause::Dispatch, cost);
    }

    /// The thread does what the session asks for.
    pub(super) fn request(&mut self) {
        let Some(thread) = &mut self.thread else { return };
        thread.counts.requests += 1;
        let cost = thread.runtime.costs.request;
        self.spend(TimeCause::Requests, Some(cost));
    }

    /// An op runs: on the thread's clock where that is the only one, or by a launch.
    pub(super) fn run(&mut self, index: OpIndex, op: &Op, uses: impl Iterator<Item = OpUse>) {
        if self.thread.is_none() {
            self.now += op.duration.0;
        } else if op.duration > Nanos(0) {
            self.launch_kernel(index, op.duration, &uses.collect::<Vec<_>>());
        }
    }

    fn launch_kernel(&mut self, op: OpIndex, duration: Nanos, uses: &[OpUse]) {
        let (Some(thread), Some(engines)) = (&mut self.thread, self.links.engines_mut()) else {
            return;
        };
        let after = thread.before_kernel(uses.iter().copied(), &engines.events);
        let done = engines.events.make();
        let launched = self.now + thread.runtime.costs.launch.0;
        engines.gpu.launch(LaunchedKernel { op, launched, duration, after, done });
        for used in uses {
            thread.storage(used.storage).last_use = Some(done);
        }
        thread.launched.push_back(done);
        thread.last_launched = Some(done);
        let ahead = thread.runtime.costs.launches_ahead as usize;
        self.see_launched(ahead);
    }

    /// Waits until at most `ahead` launches are not complete.
    fn see_launched(&mut self, ahead: usize) {
        while let Some(thread) = &mut self.thread
            && thread.launched.len() > ahead
            && let Some(first) = thread.launched.pop_front()
        {
            self.wait_for(first, TimeCause::Dispatch);
        }
    }

    /// The thread waits for an event.
    fn wait_for(&mut self, event: SimulatedEvent, cause: TimeCause) {
        if let Some(at) = self.links.until(event)
            && at > self.now
            && let Some(thread) = &mut self.thread
        {
            thread.note(CauseSpan { begin: Nanos(self.now), end: Nanos(at), cause });
            self.now = at;
        }
    }

    /// The thread waits until the GPU has nothing left to do.
    fn drain(&mut self, cause: TimeCause) {
        let Some(thread) = &mut self.thread else { return };
        thread.counts.drains += 1;
        thread.launched.clear();
        if let Some(last) = thread.last_launched {
            self.wait_for(last, cause);
        }
    }

    /// The program reads its loss, if it does, and the step is over.
    pub(super) fn end_gpu_step(&mut self) {
        let Some(thread) = &self.thread else { return };
        if thread.runtime.behaviour.loss_is_read {
            let wake_up = thread.runtime.costs.wake_up;
            self.drain(TimeCause::Dispatch);
            self.spend(TimeCause::WakeUps, Some(wake_up));
        }
    }

    /// Time passes until a transfer has ended, which is told. Returns how long that was; `None` if
    /// none is under way.
    pub(super) fn wait(&mut self) -> Option<u64> {
        let began = self.now;
        self.now = self.now.max(self.links.next_completion()?);
        if self.thread.is_none() {
            self.complete();
            return Some(self.now - began);
        }
        let ended = self.links.take_ended(self.now);
        if self.now > began
            && let Some(first) = ended.first()
        {
            self.note_wait(began, first);
        }
        let waited = self.now - began;
        self.tell(ended);
        Some(waited)
    }

    fn note_wait(&mut self, began: u64, ended: &CompletedTransfer) {
        let Some(thread) = &mut self.thread else { return };
        let is_recheck = matches!(ended.flight.way, LinkId::Recheck(_));
        let direction = ended.flight.direction();
        let spans = waited_for_transfer([began, self.now], ended.stages, direction, is_recheck);
        for span in spans {
            thread.note(span);
        }
        thread.counts.host_waits += 1;
        let wake_up = thread.runtime.costs.wake_up;
        self.spend(TimeCause::WakeUps, Some(wake_up));
    }

    /// Puts a transfer into its stream, behind what it waits for.
    pub(super) fn put_into_stream(&mut self, transfer: TransferId, flight: LinkTransfer) {
        self.request();
        self.links.advance(self.now);
        let (Some(thread), Some(engines)) = (&mut self.thread, self.links.engines_mut()) else {
            return;
        };
        let (id, is_fetch) = (flight.id, flight.direction() == MigrationDirection::In);
        let is_write = matches!(flight.way, LinkId::Out(_));
        let last_launched = thread.last_launched;
        let (mut after, calls) = if is_fetch {
            thread.before_fetch(id, flight.bytes.0, &engines.events)
        } else {
            (thread.before_eviction(id, is_write, &engines.events), DriverCalls::default())
        };
        if is_write {
            after = engines.before_write(flight.bytes, after);
        }
        self.have_driver(calls);
        let flight = LinkTransfer { begin: self.now, ..flight };
        let order = self.links.submit(transfer, flight, after);
        if let (Some(engines), true) = (self.links.engines_mut(), is_write) {
            engines.check_behind(transfer, last_launched);
        }
        if let (Some(thread), Some(order)) = (&mut self.thread, order) {
            let events = thread.storage(id);
            if is_fetch {
                events.fetched = Some(order.copied);
            } else {
                events.evicted = Some(order.complete);
            }
            if flight.is_told {
                self.enqueued.push(transfer);
            }
        }
    }

    /// Takes memory for an op's output.
    pub(super) fn take_memory_of_birth(&mut self, id: StorageId) {
        let size = self.instance(id).size();
        self.links.advance(self.now);
        let (Some(thread), Some(engines)) = (&mut self.thread, self.links.engines()) else {
            return;
        };
        let calls = thread.before_birth(id, size, &engines.events);
        self.have_driver(calls);
    }

    /// The thread has the driver allocate and release memory.
    fn have_driver(&mut self, calls: DriverCalls) {
        let DriverCalls { drains, allocations, releases, remapped, host_waits, misfits } = calls;
        for _ in 0..drains {
            self.drain(TimeCause::Allocator);
        }
        for event in host_waits {
            self.see_happen(event);
        }
        let Some(thread) = &mut self.thread else { return };
        thread.counts.allocations += allocations;
        thread.counts.releases += releases;
        thread.counts.remapped += remapped;
        thread.counts.misfits += misfits;
        let costs = thread.runtime.costs;
        let all =
            [(costs.allocation, allocations), (costs.release, releases), (costs.remap, remapped)];
        let nanos = all.iter().map(|(cost, count)| cost.0 * u64::from(*count)).sum();
        self.spend(TimeCause::Allocator, Some(Nanos(nanos)));
    }

    /// The thread waits until it sees that an event has happened, because of memory.
    fn see_happen(&mut self, event: SimulatedEvent) {
        let began = self.now;
        self.wait_for(event, TimeCause::Allocator);
        if self.now > began
            && let Some(thread) = &mut self.thread
        {
            thread.counts.host_waits += 1;
            let wake_up = thread.runtime.costs.wake_up;
            self.spend(TimeCause::WakeUps, Some(wake_up));
        }
    }

    fn spend(&mut self, cause: TimeCause, nanos: Option<Nanos>) {
        if let (Some(thread), Some(nanos)) = (&mut self.thread, nanos) {
            self.now = thread.spend(self.now, cause, nanos.0);
        }
    }
}
