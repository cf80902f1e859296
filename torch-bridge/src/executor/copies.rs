//! Copies in the log of what is in memory, for checkpoints: those that are there, and those that
//! are written now.

use std::collections::{HashSet, VecDeque};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::pool::Copies;
use tidelog_engine::schedule::Ticket;
use tidelog_planner::residency::{CopyInLog, StorageId};
use tidelog_planner::units::Bytes;

use super::session::Session;
use crate::error::Failure;

/// Transfers at once.
const IN_FLIGHT: usize = 16;

impl Session {
    /// Returns for each storage the id in the log of a copy that has its bytes, if there is one and
    /// the pool's durable tensors have no more.
    /// With a storage comes its memory, where that is in memory and may be read. It is compared
    /// with the copy there is. If they are to be written, those that have none and could leave get
    /// one, so that they are clean from then on.
    pub(crate) fn copies(
        &self,
        storages: impl Iterator<Item = (u32, Option<Source>)>,
        write: bool,
    ) -> Result<Vec<Option<TensorId>>, Failure> {
        let storages: Vec<_> = storages.collect();
        if self.store.pool().copies() == Copies::Two {
            // What a session writes has one copy.
            return Ok(vec![None; storages.len()]);
        }
        let (found, flights, written) = (Vec::new(), VecDeque::new(), Vec::new());
        let mut copying = Copying { session: self, write, found, flights, written };
        let mut seen = HashSet::new();
        for (storage, memory) in storages {
            // Of two copies of one storage the second would be deleted, and with it the first.
            if !seen.insert(storage) {
                return Err(Failure::invalid(format!("storage {storage} is there twice")));
            }
            copying.begin(StorageId(storage), memory)?;
        }
        copying.end()
    }
}

struct Copying<'a> {
    session: &'a Session,
    /// True if copies that are not there are written.
    write: bool,
    found: Vec<Option<TensorId>>,
    flights: VecDeque<Flight>,
    /// Copies that are no storage's yet.
    written: Vec<StorageId>,
}

struct Flight {
    /// The place in `found`.
    place: usize,
    storage: StorageId,
    ticket: Ticket,
    kind: FlightKind,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum FlightKind {
    Verify,
    Write,
}

impl Copying<'_> {
    fn begin(&mut self, storage: StorageId, memory: Option<Source>) -> Result<(), Failure> {
        let (store, place) = (&self.session.store, self.found.len());
        let (copied, size, label) = {
            let mut executor = self.session.lock();
            executor.storages.check(storage)?;
            // What was said of it is carried out: nothing deletes under its id later.
            executor.carry_out();
            let label =
                (executor.storages.label(storage, storage), executor.storages.kind(storage));
            let copied = executor.machine.copy_in_log(storage);
            (copied, executor.machine.size(storage), label)
        };
        let id = store.log_id(storage);
        self.found.push((copied == CopyInLog::Out).then_some(id));
        // Where its length is another one somebody resized it unseen.
        let memory = memory.filter(|memory| size == Some(Bytes(memory.len() as u64)));
        let Some(memory) = memory else { return Ok(()) };
        let (kind, ticket) = match copied {
            CopyInLog::InMemory => (FlightKind::Verify, store.pool().verify(id, memory, None)?),
            CopyInLog::NotYet if self.write && self.session.lock().machine.begin_copy(storage) => {
                (FlightKind::Write, store.put_copy(&label.0, label.1, memory)?)
            }
            _ => return Ok(()),
        };
        self.flights.push_back(Flight { place, storage, ticket, kind });
        if self.flights.len() > IN_FLIGHT { self.end_oldest() } else { Ok(()) }
    }

    fn end_oldest(&mut self) -> Result<(), Failure> {
        let Some(flight) = self.flights.pop_front() else { return Ok(()) };
        let ended = flight.ticket.wait();
        if flight.kind == FlightKind::Write {
            self.written.push(flight.storage);
        }
        let is_copy = ended?.matched || flight.kind == FlightKind::Write;
        self.found[flight.place] = is_copy.then(|| self.session.store.log_id(flight.storage));
        Ok(())
    }

    /// All or none of what was written are copies.
    fn end(mut self) -> Result<Vec<Option<TensorId>>, Failure> {
        while !self.flights.is_empty() {
            self.end_oldest()?;
        }
        let mut executor = self.session.lock();
        self.written.retain(|storage| !executor.machine.adopt_copy(*storage));
        drop(executor);
        // What is not taken for a copy is deleted, and no answer.
        for storage in &self.written {
            let id = self.session.store.log_id(*storage);
            self.found.iter_mut().filter(|found| **found == Some(id)).for_each(|it| *it = None);
        }
        Ok(std::mem::take(&mut self.found))
    }
}

impl Drop for Copying<'_> {
    /// Releases the caller's memory, and deletes copies that nobody would.
    fn drop(&mut self) {
        for Flight { storage, ticket, kind, .. } in self.flights.drain(..) {
            let _ = (ticket.wait(), ticket.wait_released());
            if kind == FlightKind::Write {
                self.written.push(storage);
            }
        }
        for storage in self.written.drain(..) {
            self.session.store.forget_copy(storage);
        }
    }
}
