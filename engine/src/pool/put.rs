//! Puts: from the caller to the reactor's queue.

use std::sync::Arc;

use super::announce::Announced;
use super::error::{PutError, Unusable};
use super::held::PendingWrite;
use super::options::PutOptions;
use super::{Pool, mover_and_list, pieces};
use crate::layout::{Copies, TensorKey};
use crate::log::{Durability, Lane, PutRequest, ReservationKey};
use crate::memory::Source;
use crate::schedule::{Finish, Reactor, Subject, Ticket, Transfer, TransferError};

/// One of the puts of [`Pool::put_all`].
#[derive(Debug)]
pub struct Put {
    /// Key of the tensor.
    pub key: TensorKey,
    /// The bytes.
    pub source: Source,
    /// Options of the put.
    pub options: PutOptions,
}

/// Wakes a reactor's threads at the end, whatever that is.
struct Rouse<'a>(&'a Reactor);

impl Drop for Rouse<'_> {
    fn drop(&mut self) {
        self.0.wake_all();
    }
}

impl Pool {
    /// Writes a scratch tensor of `source.len()` bytes. It takes the place of an older version when
    /// it is complete, in the order in which puts were called.
    pub fn put(
        &self,
        key: impl Into<TensorKey>,
        source: Source,
        options: PutOptions,
    ) -> Result<Ticket, PutError> {
        let put = Put { key: key.into(), source, options };
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        let (ticket, mover) = self.enqueue_scratch(reactor, put)?;
        mover.wake();
        Ok(ticket)
    }

    /// Puts each tensor, as [`Self::put`] does, in their order, with one wake-up of the reactor,
    /// which costs more than a small put. The iterator must not wait for what it has yielded: that
    /// may not have begun.
    ///
    /// # Errors
    /// Those of the first that is refused. The ones before it go on: their tickets are behind what
    /// `tickets` held.
    pub fn put_all(
        &self,
        puts: impl IntoIterator<Item = Put>,
        tickets: &mut Vec<Ticket>,
    ) -> Result<(), PutError> {
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        // Also where the iterator panics.
        let _rouse = Rouse(reactor);
        for put in puts {
            tickets.push(self.enqueue_scratch(reactor, put)?.0);
        }
        Ok(())
    }

    /// Enqueues a scratch put; returns its ticket and the reactor to wake.
    fn enqueue_scratch<'a>(
        &self,
        reactor: &'a Reactor,
        put: Put,
    ) -> Result<(Ticket, &'a Reactor), PutError> {
        let Put { key: TensorKey { id, name }, source, options } = put;
        let copies = options.copies.unwrap_or(Copies::One);
        let lane = Lane { durability: Durability::Scratch, class: options.lifetime, copies };
        let request = PutRequest { id, name, length: source.len() as u64, lane };
        let (ticket, _, mover) =
            self.enqueue_put(reactor, &request, source, options, |write, outcome| {
                if let Ok(checksums) = outcome {
                    write.install(checksums);
                }
            })?;
        Ok((ticket, mover))
    }

    /// Checks that the pool may have tensors with these copies, and has its superblocks say so.
    fn allow_copies(&self, reactor: &Reactor, copies: Copies) -> Result<(), PutError> {
        self.0.description.geometry.check_copies(copies).map_err(PutError::Copies)?;
        let copies = Announced { copies: true, ..Announced::NONE };
        self.announce(reactor, copies).map_err(PutError::Announce)
    }

    /// Starts a put, as [`Self::enqueue_put`] does, and wakes the reactor.
    pub(super) fn start_put(
        &self,
        request: &PutRequest,
        source: Source,
        options: PutOptions,
        finish: impl FnOnce(PendingWrite, Result<&[u32], TransferError>) + Send + 'static,
    ) -> Result<(Ticket, ReservationKey), PutError> {
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        let (ticket, put, mover) = self.enqueue_put(reactor, request, source, options, finish)?;
        mover.wake();
        Ok((ticket, put))
    }

    /// Reserves space and enqueues the write; `finish` gets the complete write, or drops it and
    /// thereby gives its space back. Returns the reactor to wake, too.
    fn enqueue_put<'a>(
        &self,
        reactor: &'a Reactor,
        request: &PutRequest,
        source: Source,
        options: PutOptions,
        finish: impl FnOnce(PendingWrite, Result<&[u32], TransferError>) + Send + 'static,
    ) -> Result<(Ticket, ReservationKey, &'a Reactor), PutError> {
        if self.is_read_only() {
            let (id, name) = (request.id, request.name.clone());
            return Err(PutError::ReadOnly(TensorKey { id, name }));
        }
        let (length, lane) = (request.length, request.lane);
        if lane.copies != Copies::One {
            self.allow_copies(reactor, lane.copies)?;
        }
        let handle = self.0.handles.of_lane(lane);
        let stripes = self.0.stripes.to_write();
        let (reservation, (mover, pieces)) = self.begin_put(reactor, request, |runs| {
            let placements = stripes.placements(runs, length);
            let pieces = placements.map(|placement| pieces::whole(placement).placed(handle));
            mover_and_list(reactor, pieces)
        })?;
        let put = reservation.key();
        let write = PendingWrite::new(Arc::clone(&self.0.shared), reservation);
        let shared = Arc::clone(&self.0.shared);
        let ended = Finish::new(move |result| {
            shared.written.put(lane, result.bytes);
            finish(write, result.outcome.map(|done| done.checksums));
        });
        let transfer = Transfer::Write { source, pieces };
        // Where the engine takes nothing, it drops `ended` and with it the reservation.
        let subject = request.name.as_deref().map_or(Subject::of(request.id), Subject::called);
        let PutOptions { urgency, notify, .. } = options;
        Ok((mover.enqueue(subject, transfer, urgency, notify, ended)?, put, mover))
    }
}
