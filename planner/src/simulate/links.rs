//! All links of the machine, and the transfers on them.

use super::engines::{Engines, StreamCompletion, StreamOrder};
use super::event::SimulatedEvent;
use super::gpu_runtime::{ChecksumStream, CompletionRule, GpuRuntime};
use super::link::{LinkCompletion, LinkJob, SimulatedLink, TransferProgress};
use crate::cost::Machine;
use crate::migration::{Ending, MigrationDirection, Target};
use crate::residency::{MigrationOutcome, StorageId, TransferId};
use crate::trace::PlanStorage;
use crate::units::{Bytes, Nanos};
use std::collections::HashMap;

/// Link of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkId {
    Out(Target),
    In(Target),
    /// Memory against checksums: no device takes part.
    Verify(Target),
    /// Check of what was just written.
    Recheck(Target),
}

/// Number of links.
pub(super) const LINKS: usize = 5;

impl LinkId {
    /// The link among all of them.
    pub(super) const fn place(self) -> usize {
        match self {
            Self::Out(Target::Ssd) => 0,
            Self::In(Target::Ssd) => 1,
            Self::Out(Target::Host) => 2,
            Self::In(Target::Host) => 3,
            Self::Verify(_) | Self::Recheck(_) => 4,
        }
    }
}

/// A transfer since it was asked for.
#[derive(Clone, Copy, Debug)]
#[allow(clippy::struct_excessive_bools, reason = "independent facts, each with its own event")]
pub(super) struct LinkTransfer {
    pub(super) id: StorageId,
    pub(super) storage: PlanStorage,
    pub(super) way: LinkId,
    pub(super) bytes: Bytes,
    pub(super) begin: u64,
    pub(super) urgent: bool,
    /// The session took it for complete when it was in its stream.
    pub(super) is_told: bool,
    /// The storage had its memory still when the session took it for complete.
    pub(super) stays: bool,
    pub(super) cancelled: bool,
}

/// A transfer that ended.
pub(super) struct CompletedTransfer {
    pub(super) transfer: TransferId,
    pub(super) flight: LinkTransfer,
    pub(super) moved: u64,
    pub(super) end: u64,
    /// Times at which all bytes had moved, and the checksum was there.
    pub(super) stages: [u64; 2],
}

/// The links by way, and what is on them; on a GPU, what else it does.
pub(super) struct SimulatedLinks {
    links: [SimulatedLink; LINKS],
    engines: Option<Engines>,
    /// Cost of a transfer on each link beyond its bytes, as bytes.
    beyond_bytes: [Bytes; LINKS],
    flights: HashMap<TransferId, LinkTransfer>,
    /// Taken off a link; their completions are due at once.
    cancelled: Vec<(u64, TransferId)>,
}

impl SimulatedLinks {
    pub(super) fn new(machine: &Machine) -> Self {
        let pair = |write, read, latency| {
            [SimulatedLink::new(write, latency), SimulatedLink::new(read, latency)]
        };
        let ssd = pair(machine.ssd.write, machine.ssd.read, machine.ssd.latency);
        // Without host memory the residency machine sends nothing there, whatever a plan says.
        let host = machine.host.map_or_else(|| ssd.clone(), |h| pair(h.write, h.read, h.latency));
        let ([ssd_out, ssd_in], [host_out, host_in]) = (ssd, host);
        let verify = SimulatedLink::new(machine.verify, Nanos(0));
        Self {
            links: [ssd_out, ssd_in, host_out, host_in, verify],
            engines: None,
            beyond_bytes: [Bytes(0); LINKS],
            flights: HashMap::new(),
            cancelled: Vec::new(),
        }
    }

    /// The links as streams of a GPU, with its kernels beside.
    pub(super) fn of_gpu(machine: &Machine, runtime: &GpuRuntime) -> Self {
        let mut links = Self::new(machine);
        // The engine cuts what goes to SSDs into pieces; host memory is copied whole, by a thread
        // that waits for each copy unless all are in the stream at once.
        let (seen, none) = (runtime.costs.wake_up, Nanos(0));
        let gaps = match runtime.behaviour.completion {
            CompletionRule::SeenByHost => [seen, seen],
            CompletionRule::WritesEnqueued => [none, seen],
            CompletionRule::Enqueued => [none, none],
        };
        if runtime.behaviour.checksums != ChecksumStream::Free {
            let ways = [LinkId::Out(Target::Host), LinkId::In(Target::Host)];
            for (way, gap) in ways.into_iter().zip(gaps) {
                links.links[way.place()] = links.links[way.place()].clone().into_stream(gap);
            }
        }
        let (write, read) = machine
            .host
            .map_or((machine.ssd.write, machine.ssd.read), |host| (host.write, host.read));
        for (way, rate) in [(LinkId::Out(Target::Host), write), (LinkId::In(Target::Host), read)] {
            let bytes = u128::from(rate.0) * u128::from(runtime.costs.copy.0) / 1_000_000_000;
            links.beyond_bytes[way.place()] = Bytes(bytes as u64);
        }
        links.engines = Some(Engines::new(runtime, [write, read]));
        links
    }

    /// The GPU, where there is one. Its time is not the caller's until [`Self::advance`].
    pub(super) fn engines(&self) -> Option<&Engines> {
        self.engines.as_ref()
    }

    /// Returns the engines, to launch and to record.
    pub(super) fn engines_mut(&mut self) -> Option<&mut Engines> {
        self.engines.as_mut()
    }

    /// Lets a GPU's time pass.
    pub(super) fn advance(&mut self, now: u64) {
        if let Some(engines) = &mut self.engines {
            engines.advance(&mut self.links, now);
        }
    }

    /// Lets a GPU's time pass until an event has happened, and returns when.
    pub(super) fn until(&mut self, event: SimulatedEvent) -> Option<u64> {
        self.engines.as_mut()?.until(&mut self.links, event)
    }

    /// Hands a transfer over. On a GPU it begins `after` events, and has events of its own.
    pub(super) fn submit(
        &mut self,
        transfer: TransferId,
        flight: LinkTransfer,
        after: Vec<SimulatedEvent>,
    ) -> Option<StreamOrder> {
        self.advance(flight.begin);
        let way = self.link_of(&flight);
        let is_check_in_stream = way != flight.way;
        let bytes = if is_check_in_stream { Bytes(0) } else { flight.bytes };
        let bytes = Bytes(bytes.0 + self.beyond_bytes[way.place()].0);
        let engines = self.engines.as_mut();
        let order = engines.map(|engines| engines.order(transfer, way, flight.bytes));
        let LinkTransfer { begin, urgent, .. } = flight;
        self.links[way.place()].submit(begin, LinkJob { transfer, bytes, urgent, after });
        self.flights.insert(transfer, flight);
        order
    }

    /// A transfer that is under way.
    pub(super) fn flight(&self, transfer: TransferId) -> Option<LinkTransfer> {
        self.flights.get(&transfer).copied()
    }

    pub(super) fn set_stays(&mut self, transfer: TransferId, stays: bool) {
        if let Some(flight) = self.flights.get_mut(&transfer) {
            flight.stays = stays;
        }
    }

    pub(super) fn expedite(&mut self, now: u64, transfer: TransferId) {
        self.advance(now);
        let Some(flight) = self.flights.get_mut(&transfer) else { return };
        flight.urgent = true;
        let flight = *flight;
        self.link(&flight).expedite(now, transfer);
    }

    /// A transfer whose bytes have all moved completes as if it had not been cancelled.
    pub(super) fn cancel(&mut self, now: u64, transfer: TransferId) {
        self.advance(now);
        let Some(flight) = self.flights.get(&transfer).copied() else { return };
        if self.link(&flight).cancel(now, transfer) {
            self.cancelled.push((now, transfer));
            if let Some(engines) = &mut self.engines {
                engines.forget(transfer, now);
            }
            if let Some(flight) = self.flights.get_mut(&transfer) {
                flight.cancelled = true;
            }
        }
    }

    /// Returns the time at which the next completion can be seen, if nothing more is submitted.
    pub(super) fn next_completion(&mut self) -> Option<u64> {
        let cancelled = self.cancelled.iter().map(|(at, _)| *at).min();
        if cancelled.is_some() && self.engines.is_some() {
            return cancelled;
        }
        let moving = match &mut self.engines {
            Some(engines) => engines.next_completion(&mut self.links),
            None => self.links.iter().filter_map(SimulatedLink::next_completion).min(),
        };
        moving.into_iter().chain(cancelled).min()
    }

    /// Returns the transfers that have ended by `now`, in the order of their ends.
    pub(super) fn take_ended(&mut self, now: u64) -> Vec<CompletedTransfer> {
        self.advance(now);
        let mut landed: Vec<StreamCompletion> = self
            .cancelled
            .drain(..)
            .map(|(at, transfer)| at_once(LinkCompletion { at, transfer, started: at }))
            .collect();
        if let Some(engines) = &mut self.engines {
            landed.extend(engines.take_completed(now));
        } else {
            let mut on_links = Vec::new();
            for link in &mut self.links {
                link.take_completed(now, &mut on_links);
            }
            landed.extend(on_links.into_iter().map(at_once));
        }
        landed.sort_unstable_by_key(|ended| ended.landed);
        let ended = landed.into_iter().filter_map(|StreamCompletion { landed, stages }| {
            let flight = self.flights.remove(&landed.transfer)?;
            let (transfer, moved, end) = (landed.transfer, landed.started, landed.at);
            Some(CompletedTransfer { transfer, flight, moved, end, stages })
        });
        ended.collect()
    }

    /// Returns the transfers that are still in flight, and their progress.
    pub(super) fn under_way(
        &mut self,
        now: u64,
    ) -> Vec<(TransferId, LinkTransfer, Option<TransferProgress>)> {
        self.advance(now);
        let mut flights: Vec<_> = self.flights.iter().map(|(id, flight)| (*id, *flight)).collect();
        flights.sort_unstable_by_key(|(transfer, _)| *transfer);
        let told = flights.into_iter().map(|(transfer, flight)| {
            (transfer, flight, self.link(&flight).progress(now, transfer))
        });
        told.collect()
    }

    fn link(&mut self, flight: &LinkTransfer) -> &mut SimulatedLink {
        let way = self.link_of(flight);
        &mut self.links[way.place()]
    }

    /// A GPU checks memory in the stream that copies from it.
    fn link_of(&self, flight: &LinkTransfer) -> LinkId {
        match (flight.way, &self.engines) {
            (LinkId::Verify(target) | LinkId::Recheck(target), Some(engines))
                if engines.computes_checksums() =>
            {
                LinkId::Out(target)
            }
            (way, _) => way,
        }
    }
}

fn at_once(landed: LinkCompletion) -> StreamCompletion {
    StreamCompletion { landed, stages: [landed.at; 2] }
}

impl LinkTransfer {
    pub(super) fn direction(&self) -> MigrationDirection {
        if matches!(self.way, LinkId::In(_)) {
            MigrationDirection::In
        } else {
            MigrationDirection::Out
        }
    }

    pub(super) fn target(&self) -> Target {
        let (LinkId::Out(target)
        | LinkId::In(target)
        | LinkId::Verify(target)
        | LinkId::Recheck(target)) = self.way;
        target
    }

    pub(super) fn ending(&self) -> Ending {
        match self.way {
            _ if self.cancelled => Ending::Cancelled,
            LinkId::Verify(_) | LinkId::Recheck(_) => Ending::Clean,
            _ => Ending::Moved,
        }
    }

    pub(super) fn outcome(&self) -> MigrationOutcome {
        match self.ending() {
            Ending::Cancelled => MigrationOutcome::Cancelled,
            Ending::Clean => MigrationOutcome::Matched,
            _ => MigrationOutcome::Done,
        }
    }
}
