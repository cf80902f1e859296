//! The links as a pass sees them: one transfer at a time, in the order given.

use crate::cost::Machine;
use crate::migration::Target;
use crate::units::{Bandwidth, Bytes, Nanos};
use std::collections::VecDeque;

/// A transfer on a link.
#[derive(Clone, Copy, Debug)]
pub(super) struct SweepTransfer {
    end: u64,
    pub(super) instance: u32,
}

/// One link in one direction.
pub(super) struct SweepLink {
    rate: Bandwidth,
    latency: u64,
    pub(super) busy_until: u64,
    queue: VecDeque<SweepTransfer>,
}

impl SweepLink {
    fn new(rate: Bandwidth, latency: Nanos) -> Self {
        Self { rate, latency: latency.0, busy_until: 0, queue: VecDeque::new() }
    }

    pub(super) fn begin(&mut self, now: u64, instance: u32, bytes: u64) {
        self.busy_until = self.busy_until.max(now) + self.rate.time_for(Bytes(bytes)).0;
        self.queue.push_back(SweepTransfer { end: self.busy_until + self.latency, instance });
    }

    fn take_done(&mut self, now: u64) -> Option<SweepTransfer> {
        let due = self.queue.front().is_some_and(|transfer| transfer.end <= now);
        if due { self.queue.pop_front() } else { None }
    }
}

/// One direction of all tiers: the SSDs, and host memory where there is any.
pub(super) struct SweepLinks([Option<SweepLink>; 2]);

impl SweepLinks {
    pub(super) fn out(machine: &Machine) -> Self {
        let host = machine.host.filter(|host| host.memory.0 > 0);
        Self([
            Some(SweepLink::new(machine.ssd.write, machine.ssd.latency)),
            host.map(|host| SweepLink::new(host.write, host.latency)),
        ])
    }

    pub(super) fn back(machine: &Machine) -> Self {
        let host = machine.host.filter(|host| host.memory.0 > 0);
        Self([
            Some(SweepLink::new(machine.ssd.read, machine.ssd.latency)),
            host.map(|host| SweepLink::new(host.read, host.latency)),
        ])
    }

    /// Returns the rate of all tiers together.
    pub(super) fn rate(&self) -> Bandwidth {
        Bandwidth(self.0.iter().flatten().map(|link| link.rate.0).sum())
    }

    pub(super) fn of(&self, target: Target) -> Option<&SweepLink> {
        self.0[tier(target)].as_ref()
    }

    pub(super) fn of_mut(&mut self, target: Target) -> Option<&mut SweepLink> {
        self.0[tier(target)].as_mut()
    }

    /// Returns whether a link has nothing to do by then.
    pub(super) fn idle(&self, until: u64) -> bool {
        self.0.iter().flatten().any(|link| link.busy_until <= until)
    }

    pub(super) fn next_end(&self) -> Option<u64> {
        self.0.iter().flatten().filter_map(|link| link.queue.front()).map(|one| one.end).min()
    }

    pub(super) fn moving(&self) -> impl Iterator<Item = &SweepTransfer> {
        self.0.iter().flatten().flat_map(|link| &link.queue)
    }

    pub(super) fn take_done(&mut self, now: u64) -> Option<SweepTransfer> {
        self.0.iter_mut().flatten().find_map(|link| link.take_done(now))
    }
}

fn tier(target: Target) -> usize {
    match target {
        Target::Ssd => 0,
        Target::Host => 1,
    }
}
