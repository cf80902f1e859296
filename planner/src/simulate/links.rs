//! All links of the machine, and the transfers on them.

use super::link::{LinkCompletion, SimulatedLink, TransferProgress};
use crate::cost::Machine;
use crate::migration::{Ending, MigrationDirection, Target};
use crate::residency::{MigrationOutcome, StorageId, TransferId};
use crate::trace::PlanStorage;
use crate::units::{Bytes, Nanos};
use std::collections::HashMap;

/// Which link a transfer takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkId {
    Out(Target),
    In(Target),
    /// Memory against checksums: no device takes part.
    Verify(Target),
}

/// A transfer since it was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct LinkTransfer {
    pub(super) id: StorageId,
    pub(super) storage: PlanStorage,
    pub(super) way: LinkId,
    pub(super) bytes: Bytes,
    pub(super) begin: u64,
    pub(super) urgent: bool,
    pub(super) cancelled: bool,
}

/// A transfer that ended.
pub(super) struct CompletedTransfer {
    pub(super) transfer: TransferId,
    pub(super) flight: LinkTransfer,
    pub(super) moved: u64,
    pub(super) end: u64,
}

/// The links by way, and what is on them.
pub(super) struct SimulatedLinks {
    ssd: [SimulatedLink; 2],
    host: [SimulatedLink; 2],
    verify: SimulatedLink,
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
        Self {
            ssd,
            host,
            verify: SimulatedLink::new(machine.verify, Nanos(0)),
            flights: HashMap::new(),
            cancelled: Vec::new(),
        }
    }

    pub(super) fn submit(&mut self, transfer: TransferId, flight: LinkTransfer) {
        self.link(flight.way).submit(flight.begin, transfer, flight.bytes, flight.urgent);
        self.flights.insert(transfer, flight);
    }

    pub(super) fn expedite(&mut self, now: u64, transfer: TransferId) {
        let Some(flight) = self.flights.get_mut(&transfer) else { return };
        flight.urgent = true;
        let way = flight.way;
        self.link(way).expedite(now, transfer);
    }

    /// A transfer whose bytes have all moved completes as if it had not been cancelled.
    pub(super) fn cancel(&mut self, now: u64, transfer: TransferId) {
        let Some(way) = self.flights.get(&transfer).map(|flight| flight.way) else { return };
        if self.link(way).cancel(now, transfer) {
            self.cancelled.push((now, transfer));
            if let Some(flight) = self.flights.get_mut(&transfer) {
                flight.cancelled = true;
            }
        }
    }

    pub(super) fn next_completion(&self) -> Option<u64> {
        let moving = self.all().filter_map(SimulatedLink::next_completion);
        moving.chain(self.cancelled.iter().map(|(at, _)| *at)).min()
    }

    /// What has ended by `now`, in the order it ended.
    pub(super) fn take_ended(&mut self, now: u64) -> Vec<CompletedTransfer> {
        let mut landed: Vec<LinkCompletion> = self
            .cancelled
            .drain(..)
            .map(|(at, transfer)| LinkCompletion { at, transfer, started: at })
            .collect();
        for link in self.ssd.iter_mut().chain(&mut self.host).chain([&mut self.verify]) {
            link.take_completed(now, &mut landed);
        }
        landed.sort_unstable();
        let ended = landed.into_iter().filter_map(|landed| {
            let flight = self.flights.remove(&landed.transfer)?;
            let (transfer, moved, end) = (landed.transfer, landed.started, landed.at);
            Some(CompletedTransfer { transfer, flight, moved, end })
        });
        ended.collect()
    }

    /// What is still under way, and how far it has come.
    pub(super) fn under_way(
        &mut self,
        now: u64,
    ) -> Vec<(TransferId, LinkTransfer, Option<TransferProgress>)> {
        let mut flights: Vec<_> = self.flights.iter().map(|(id, flight)| (*id, *flight)).collect();
        flights.sort_unstable_by_key(|(transfer, _)| *transfer);
        let told = flights.into_iter().map(|(transfer, flight)| {
            (transfer, flight, self.link(flight.way).progress(now, transfer))
        });
        told.collect()
    }

    fn all(&self) -> impl Iterator<Item = &SimulatedLink> {
        self.ssd.iter().chain(&self.host).chain([&self.verify])
    }

    fn link(&mut self, way: LinkId) -> &mut SimulatedLink {
        match way {
            LinkId::Out(Target::Ssd) => &mut self.ssd[0],
            LinkId::In(Target::Ssd) => &mut self.ssd[1],
            LinkId::Out(Target::Host) => &mut self.host[0],
            LinkId::In(Target::Host) => &mut self.host[1],
            LinkId::Verify(_) => &mut self.verify,
        }
    }
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
        let (LinkId::Out(target) | LinkId::In(target) | LinkId::Verify(target)) = self.way;
        target
    }

    pub(super) fn ending(&self) -> Ending {
        match self.way {
            _ if self.cancelled => Ending::Cancelled,
            LinkId::Verify(_) => Ending::Clean,
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
