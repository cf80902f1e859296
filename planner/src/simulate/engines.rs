//! Engines of a GPU beside the program's thread: its kernels, the streams that copy, and checksums,
//! each on a time line of its own, which events tie to each other.

use super::event::{SimulatedEvent, SimulatedEvents};
use super::gpu::{ChecksumFor, SimulatedGpu};
use super::gpu_runtime::{ChecksumStream, CopyRates, GpuRuntime};
use super::link::{LinkCompletion, SimulatedLink};
use super::links::{LINKS, LinkId};
use crate::migration::Target;
use crate::residency::TransferId;
use crate::units::{Bandwidth, Bytes, Nanos};
use std::collections::{HashMap, VecDeque};

/// The links that the GPU's own link carries: away from it, and to it.
const GPU_WAYS: [LinkId; 2] = [LinkId::Out(Target::Host), LinkId::In(Target::Host)];

/// Order of a transfer on the GPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct StreamOrder {
    /// Recorded when its bytes have moved.
    pub(super) copied: SimulatedEvent,
    /// Recorded when its checksum is there as well: nothing touches the memory any more.
    pub(super) complete: SimulatedEvent,
    /// Time of the checksum on the GPU.
    checksum: Option<Nanos>,
    /// Event for which the checksum waits beside the copy.
    checked_behind: Option<SimulatedEvent>,
    way: LinkId,
}

/// A transfer that is complete, and when its stages were.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StreamCompletion {
    pub(super) landed: LinkCompletion,
    /// Times at which the bytes had moved and the checksum was there.
    pub(super) stages: [u64; 2],
}

pub(super) struct Engines {
    now: u64,
    pub(super) gpu: SimulatedGpu,
    pub(super) events: SimulatedEvents,
    checksums: ChecksumStream,
    /// Rate of checksums on the GPU, in bytes a second.
    rate: Bandwidth,
    /// Delay until the host's threads see an end.
    seen_after: u64,
    both_ways: Option<CopyRates>,
    alone: [Bandwidth; 2],
    orders: HashMap<TransferId, StreamOrder>,
    /// Copied, and in the checksum's queue.
    copied: HashMap<TransferId, LinkCompletion>,
    complete: VecDeque<StreamCompletion>,
}

impl Engines {
    pub(super) fn new(runtime: &GpuRuntime, alone: [Bandwidth; 2]) -> Self {
        let GpuRuntime { behaviour, costs, .. } = runtime;
        Self {
            now: 0,
            gpu: SimulatedGpu::new(matches!(
                behaviour.checksums,
                ChecksumStream::BesideWrites | ChecksumStream::OwnStream
            )),
            events: SimulatedEvents::default(),
            checksums: behaviour.checksums,
            rate: costs.checksum,
            seen_after: costs.wake_up.0,
            both_ways: costs.both_ways,
            alone,
            orders: HashMap::new(),
            copied: HashMap::new(),
            complete: VecDeque::new(),
        }
    }

    /// Returns whether a GPU computes checksums: then a check of memory is one more job in a
    /// stream.
    pub(super) fn computes_checksums(&self) -> bool {
        self.checksums != ChecksumStream::Free
    }

    /// Notes what a transfer is to do, and returns its events.
    pub(super) fn order(&mut self, transfer: TransferId, way: LinkId, bytes: Bytes) -> StreamOrder {
        let checksum = self.computes_checksums().then(|| self.rate.time_for(bytes));
        let (copied, complete) = (self.events.make(), self.events.make());
        let order = StreamOrder { copied, complete, checksum, checked_behind: None, way };
        self.orders.insert(transfer, order);
        order
    }

    /// Makes the copy of a write wait until these events have happened, with its memory free, or as
    /// it is.
    pub(super) fn before_write(
        &mut self,
        bytes: Bytes,
        after: Vec<SimulatedEvent>,
    ) -> Vec<SimulatedEvent> {
        if self.checksums != ChecksumStream::BesideWrites {
            return after;
        }
        let summed = self.events.make();
        self.gpu.check(ChecksumFor::Beginning(summed), self.rate.time_for(bytes), after);
        vec![summed]
    }

    /// The last look at what a transfer writes waits for this.
    pub(super) fn check_behind(&mut self, transfer: TransferId, event: Option<SimulatedEvent>) {
        if self.checksums == ChecksumStream::BesideWrites
            && let Some(order) = self.orders.get_mut(&transfer)
        {
            order.checked_behind = event;
        }
    }

    /// A transfer that was taken off its link: whoever waits for it waits no more.
    pub(super) fn forget(&mut self, transfer: TransferId, now: u64) {
        if let Some(order) = self.orders.remove(&transfer) {
            self.events.record(order.copied, now);
            self.events.record(order.complete, now);
        }
    }

    /// Lets time pass on all time lines.
    pub(super) fn advance(&mut self, links: &mut [SimulatedLink; LINKS], until: u64) {
        while self.now < until {
            let next = self.next_change(links).map_or(until, |next| next.min(until));
            self.step(links, next);
        }
    }

    /// Lets time pass until the host can see that a transfer is complete, and returns when; `None`
    /// if none is under way that ever will be.
    pub(super) fn next_completion(&mut self, links: &mut [SimulatedLink; LINKS]) -> Option<u64> {
        while self.complete.is_empty() {
            let next = self.next_change(links)?;
            self.step(links, next);
        }
        self.complete.front().map(|complete| complete.landed.at)
    }

    /// Lets time pass until an event has happened, and returns when; `None` if it never will.
    pub(super) fn until(
        &mut self,
        links: &mut [SimulatedLink; LINKS],
        event: SimulatedEvent,
    ) -> Option<u64> {
        while !self.events.has_passed(event) {
            let next = self.next_change(links)?;
            self.step(links, next);
        }
        self.events.passed_at(event)
    }

    /// Moves what the host can see by `now` to the caller.
    pub(super) fn take_completed(&mut self, now: u64) -> Vec<StreamCompletion> {
        let due = self.complete.iter().take_while(|complete| complete.landed.at <= now).count();
        self.complete.drain(..due).collect()
    }

    /// Begins what can begin, and says when something changes next.
    fn next_change(&mut self, links: &mut [SimulatedLink; LINKS]) -> Option<u64> {
        self.gpu.look_at(&self.events);
        for link in &mut *links {
            link.look_at(&self.events);
        }
        self.share_link(links);
        let links = links.iter().filter_map(SimulatedLink::next_change);
        links.chain(self.gpu.next_change()).min()
    }

    /// Gives both ways of the GPU's link the rates that they have together, or alone.
    fn share_link(&self, links: &mut [SimulatedLink; LINKS]) {
        let Some(both) = self.both_ways else { return };
        let are_both_moving = GPU_WAYS.iter().all(|way| links[way.place()].is_moving());
        let rates = if are_both_moving { [both.out, both.back] } else { self.alone };
        for (way, rate) in GPU_WAYS.iter().zip(rates) {
            links[way.place()].set_rate(rate);
        }
    }

    fn step(&mut self, links: &mut [SimulatedLink; LINKS], next: u64) {
        let checked = self.gpu.work_until(next, &mut self.events);
        self.now = next;
        let mut landed = Vec::new();
        for link in &mut *links {
            link.take_completed(next, &mut landed);
        }
        if let Some(transfer) = checked
            && let Some(landed) = self.copied.remove(&transfer)
        {
            self.let_go(links, transfer);
            self.end(landed, next);
        }
        landed.sort_unstable();
        for landed in landed {
            self.moved(links, landed);
        }
    }

    /// The bytes of a transfer have moved.
    fn moved(&mut self, links: &mut [SimulatedLink; LINKS], landed: LinkCompletion) {
        let Some(order) = self.orders.get(&landed.transfer).copied() else { return };
        self.events.record(order.copied, landed.at);
        let Some(length) = order.checksum else {
            self.end(landed, landed.at);
            return;
        };
        if self.holds_stream(&order) {
            links[order.way.place()].hold(landed.started);
        }
        let after = order.checked_behind.into_iter().collect();
        self.gpu.check(ChecksumFor::End(landed.transfer), length, after);
        self.copied.insert(landed.transfer, landed);
    }

    fn let_go(&self, links: &mut [SimulatedLink; LINKS], transfer: TransferId) {
        if let Some(order) = self.orders.get(&transfer)
            && self.holds_stream(order)
        {
            links[order.way.place()].let_go(self.now);
        }
    }

    /// Returns whether the stream that copies waits for the checksum.
    fn holds_stream(&self, order: &StreamOrder) -> bool {
        match self.checksums {
            ChecksumStream::CopyStream => true,
            ChecksumStream::BesideWrites => order.way == LinkId::In(Target::Host),
            ChecksumStream::Free | ChecksumStream::OwnStream => false,
        }
    }

    /// A transfer is complete at `now`.
    fn end(&mut self, landed: LinkCompletion, now: u64) {
        if let Some(order) = self.orders.remove(&landed.transfer) {
            self.events.record(order.complete, now);
        }
        let (stages, at) = ([landed.at, now], now + self.seen_after);
        let landed = LinkCompletion { at, ..landed };
        self.complete.push_back(StreamCompletion { landed, stages });
    }
}
