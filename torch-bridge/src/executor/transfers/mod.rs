//! Transfers that are under way, and the requests to the caller that they need.
//!
//! A transfer begins with a request for the storage's memory. Once the caller has passed that
//! memory, the pool or the host memory moves the bytes. Requests are handed out in their order, and
//! the first again until it is answered. Inside an op others are handed out than what the caller
//! has begun around it: that is done by whoever has begun it, and what comes after it for the same
//! storage waits.

mod backing_store;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustc_hash::{FxHashMap, FxHashSet};
use tidelog_engine::schedule::Urgency;
use tidelog_gds::HostTierStats;
use tidelog_planner::migration::Target;
use tidelog_planner::residency::{StorageId, TransferId};

use super::transfer::{StorageTransfer, TransferDirection};
use crate::error::Failure;
use crate::memory::{CallerMemory, MemoryAction, MemoryRequest, RequestedBytes};
use backing_store::TransferTicket;

pub(super) use backing_store::{BackingStore, TransferEnd, open_tier};

/// The transfers that the machine asked for and has not heard the end of.
pub(super) struct Transfers {
    store: Arc<BackingStore>,
    in_flight: FxHashMap<TransferId, InFlight>,
    /// Transfers that have ended for the machine, and of which the host has not seen the end.
    ordered: FxHashMap<TransferId, OrderedTransfer>,
    requests: VecDeque<QueuedRequest>,
    last_sequence: u64,
    /// Number of ops around the one that is begun.
    depth: usize,
    /// Requests that were handed out and are not answered yet, and how deep that was.
    begun: Vec<(u64, usize)>,
    /// Bytes of storages on which a transfer is in flight.
    moving: u64,
    /// Storages whose transfer the pool did not accept: it is full, not broken.
    not_accepted: FxHashSet<StorageId>,
}

/// A transfer that is complete on the GPU in its order.
pub(super) struct OrderedTransfer {
    pub(super) transfer: StorageTransfer,
    /// True if the copy is still the storage's.
    pub(super) is_needed: bool,
}

struct InFlight {
    transfer: StorageTransfer,
    /// `None` until the caller has passed the memory.
    ticket: Option<TransferTicket>,
}

/// A request, and the transfer that can begin once it is answered.
#[derive(Clone, Copy)]
pub(super) struct QueuedRequest {
    pub(super) request: MemoryRequest,
    pub(super) transfer: Option<TransferId>,
    /// True if nobody needs it any more, and the caller was in the middle of it: its storage has
    /// died, or its transfer is to stop. It ends when it is done, or when the caller is cut short.
    pub(super) is_void: bool,
}

impl Transfers {
    pub(super) fn new(store: Arc<BackingStore>) -> Self {
        Self {
            store,
            in_flight: FxHashMap::default(),
            ordered: FxHashMap::default(),
            requests: VecDeque::new(),
            last_sequence: 0,
            depth: 0,
            begun: Vec::new(),
            moving: 0,
            not_accepted: FxHashSet::default(),
        }
    }

    /// Registers a transfer and asks the caller for its storage's memory.
    pub(super) fn begin(&mut self, id: TransferId, transfer: StorageTransfer) {
        let action = match transfer.direction {
            TransferDirection::Out(_) => MemoryAction::Evict,
            TransferDirection::In => MemoryAction::Allocate,
        };
        self.moving += transfer.bytes;
        self.queue(action, transfer.of, transfer.bytes, Some(id));
        self.in_flight.insert(id, InFlight { transfer, ticket: None });
    }

    /// Asks the caller for what no transfer waits for.
    pub(super) fn request(&mut self, action: MemoryAction, of: RequestedBytes, size: u64) {
        self.queue(action, of, size, None);
    }

    fn queue(
        &mut self,
        action: MemoryAction,
        of: RequestedBytes,
        size: u64,
        transfer: Option<TransferId>,
    ) {
        self.last_sequence += 1;
        let request = MemoryRequest { sequence: self.last_sequence, action, of, size };
        self.requests.push_back(QueuedRequest { request, transfer, is_void: false });
    }

    /// Sets the number of ops around the one that is begun. What was begun inside of one that is
    /// over was cut short: it is handed out again.
    pub(super) fn nest(&mut self, depth: usize) {
        self.depth = depth;
        self.begun.retain(|(_, at)| *at <= depth);
    }

    /// The first request that is not answered yet, of those that the caller can answer here.
    pub(super) fn next_request(&self) -> Option<MemoryRequest> {
        let mut requests = self.requests.iter().map(|queued| queued.request);
        if self.depth == 0 {
            return requests.next();
        }
        requests.find(|request| !self.is_in_hand_around(request.of.storage))
    }

    /// Returns whether the caller has begun to do what a request asks for that is about this
    /// storage, or a part of it, before the op that is begun.
    pub(super) fn is_in_hand_around(&self, storage: u32) -> bool {
        let mut requests = self.requests.iter().map(|queued| queued.request);
        requests.any(|it| it.of.storage == storage && self.is_begun_around(it.sequence))
    }

    /// A storage is gone, and its memory with it. Another may be born under its number: nothing is
    /// asked for that any more was meant for this one. What is in hand around is answered yet.
    pub(super) fn died(&mut self, storage: u32) {
        self.void(|queued| queued.transfer.is_none() && queued.request.of.storage == storage);
    }

    /// Takes back requests that nobody needs any more, but for those that are in hand around.
    /// Returns whether there was one of these.
    fn void(&mut self, of_it: impl Fn(&QueuedRequest) -> bool) -> bool {
        let mut is_in_hand = false;
        let (begun, depth) = (&mut self.begun, self.depth);
        self.requests.retain_mut(|queued| {
            if !of_it(queued) {
                return true;
            }
            let sequence = queued.request.sequence;
            queued.is_void = begun.iter().any(|&(each, at)| each == sequence && at < depth);
            if !queued.is_void {
                begun.retain(|(each, _)| *each != sequence);
            }
            is_in_hand |= queued.is_void;
            queued.is_void
        });
        is_in_hand
    }

    /// Takes a request that nobody needs any more, and that the caller is not in the middle of
    /// around what is begun: it was cut short, and will not answer.
    pub(super) fn take_void(&mut self) -> Option<QueuedRequest> {
        let is_left = |queued: &QueuedRequest| {
            queued.is_void && !self.is_begun_around(queued.request.sequence)
        };
        let at = self.requests.iter().position(is_left)?;
        let left = self.requests.remove(at)?;
        self.cut_short(left.request.sequence);
        Some(left)
    }

    /// Records that the caller is not in the middle of a request any more, without an answer.
    pub(super) fn cut_short(&mut self, sequence: u64) {
        self.begun.retain(|(begun, _)| *begun != sequence);
    }

    /// The storages that requests are about which the caller has begun to do before the op that is
    /// begun.
    pub(super) fn in_hand_around(&self) -> impl Iterator<Item = u32> + '_ {
        let requests = self.requests.iter().map(|queued| queued.request);
        requests.filter(|it| self.is_begun_around(it.sequence)).map(|it| it.of.storage)
    }

    /// Iterates over the storages that the caller is to give up, with their sizes, but cannot
    /// before the op around goes on.
    pub(super) fn kept_around(&self) -> impl Iterator<Item = (RequestedBytes, u64)> + '_ {
        let requests = self.requests.iter().map(|queued| queued.request);
        let kept = requests.filter(|request| {
            request.action == MemoryAction::Release && self.is_in_hand_around(request.of.storage)
        });
        kept.map(|request| (request.of, request.size))
    }

    /// Hands out a request for the caller to begin.
    pub(super) fn hand_out(&mut self) -> Option<MemoryRequest> {
        let next = self.next_request()?;
        if !self.begun.iter().any(|(sequence, _)| *sequence == next.sequence) {
            self.begun.push((next.sequence, self.depth));
        }
        Some(next)
    }

    /// Returns whether a request is about this storage, or a part of it.
    pub(super) fn is_asked_for(&self, storage: u32) -> bool {
        self.requests.iter().any(|queued| {
            let is_needed = !queued.is_void || self.is_begun_around(queued.request.sequence);
            queued.request.of.storage == storage && is_needed
        })
    }

    /// Returns whether the caller has begun to do what a request asks for before the op that is
    /// begun.
    fn is_begun_around(&self, sequence: u64) -> bool {
        self.begun.iter().any(|(begun, at)| *begun == sequence && *at < self.depth)
    }

    /// Takes the request that the caller has answered. `None` where that answer came before: an
    /// interrupt fell between it and what it returned.
    pub(super) fn take_answered(
        &mut self,
        sequence: u64,
    ) -> Result<Option<QueuedRequest>, Failure> {
        if sequence > self.last_sequence {
            return Err(Failure::invalid(format!("request {sequence} was never handed out")));
        }
        let at = self.requests.iter().position(|queued| queued.request.sequence == sequence);
        let next = self.next_request().map(|next| next.sequence);
        let is_begun = self.begun.contains(&(sequence, self.depth));
        if !is_begun && next != Some(sequence) {
            if at.is_none() && next.is_none_or(|next| sequence < next) {
                return Ok(None);
            }
            let next = next.map_or("none".to_owned(), |next| next.to_string());
            return Err(Failure::invalid(format!(
                "request {sequence} was not handed out here yet; the next is {next}"
            )));
        }
        self.cut_short(sequence);
        Ok(at.and_then(|at| self.requests.remove(at)))
    }

    /// Returns whether nothing in flight goes on before the caller has answered what it has begun
    /// around the op that waits.
    pub(super) fn wait_for_op_around(&self) -> bool {
        self.depth > 0
            && self.in_hand_around().next().is_some()
            && self.in_flight.values().all(|in_flight| in_flight.ticket.is_none())
    }

    /// Begins to move a transfer's bytes, and returns the transfer. What was cancelled meanwhile
    /// has nothing to begin.
    pub(super) fn submit(
        &mut self,
        id: TransferId,
        request: &MemoryRequest,
        memory: &CallerMemory,
    ) -> Result<Option<&StorageTransfer>, String> {
        let Some(InFlight { transfer, ticket }) = self.in_flight.get_mut(&id) else {
            return Ok(None);
        };
        let begun = self.store.begin(id, transfer, request, memory).inspect_err(|_| {
            self.not_accepted.insert(transfer.label.storage);
        })?;
        transfer.is_ordered = matches!(begun, TransferTicket::Ordered);
        *ticket = Some(begun);
        transfer.submitted = Some(Instant::now());
        Ok(Some(transfer))
    }

    /// An op waits for the transfer now.
    pub(super) fn expedite(&mut self, id: TransferId) {
        if let Some(InFlight { transfer, ticket }) = self.in_flight.get_mut(&id) {
            transfer.urgency = Urgency::Urgent;
            if let Some(ticket) = ticket {
                ticket.expedite();
            }
        }
    }

    /// Stops a transfer: one that moves bytes at its next piece, one that has not begun at once.
    /// Returns whether it has ended by that.
    pub(super) fn cancel(&mut self, id: TransferId) -> bool {
        match self.in_flight.get(&id) {
            Some(InFlight { ticket: Some(ticket), .. }) => {
                ticket.cancel();
                false
            }
            // Where its request is in hand around, it ends with the answer.
            Some(InFlight { ticket: None, .. }) => !self.void(|it| it.transfer == Some(id)),
            None => false,
        }
    }

    /// Returns the statistics of host memory, if there is any for copies.
    pub(super) fn tier_stats(&self) -> Option<HostTierStats> {
        self.store.tier_stats()
    }

    /// The oldest completion that nobody has seen.
    pub(super) fn completion(&self) -> Option<TransferEnd> {
        self.store.completion()
    }

    /// Records that a transfer could begin later by `time` than it was submitted: its bytes were
    /// not there yet, which says nothing of how fast they move.
    pub(super) fn has_waited(&mut self, id: TransferId, time: Duration) {
        if let Some(InFlight { transfer, .. }) = self.in_flight.get_mut(&id) {
            transfer.submitted = transfer.submitted.map(|submitted| submitted + time);
        }
    }

    /// A transfer that has not ended.
    pub(super) fn get(&self, id: TransferId) -> Option<&StorageTransfer> {
        self.in_flight.get(&id).map(|in_flight| &in_flight.transfer)
    }

    /// Ends a transfer.
    pub(super) fn end(&mut self, id: TransferId) -> Option<StorageTransfer> {
        let InFlight { transfer, .. } = self.in_flight.remove(&id)?;
        self.moving -= transfer.bytes;
        Some(transfer)
    }

    /// Ends a transfer that is ordered on the GPU: the host sees to it later.
    pub(super) fn end_ordered(&mut self, id: TransferId, transfer: StorageTransfer) {
        self.ordered.insert(id, OrderedTransfer { transfer, is_needed: true });
    }

    /// The host has seen the end of one.
    pub(super) fn take_ordered(&mut self, id: TransferId) -> Option<OrderedTransfer> {
        self.ordered.remove(&id)
    }

    /// A copy is not needed any more.
    pub(super) fn forget(&mut self, storage: StorageId, target: Target) {
        for ordered in self.ordered.values_mut() {
            let StorageTransfer { label, target: of, .. } = &ordered.transfer;
            ordered.is_needed &= (label.storage, *of) != (storage, target);
        }
        self.store.forget(storage, target);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.in_flight.is_empty()
    }

    /// Bytes of storages on which a transfer is in flight.
    pub(super) fn moving(&self) -> u64 {
        self.moving
    }

    /// The transfers that have not ended, in the order in which the machine asked for them.
    pub(super) fn under_way(&self) -> impl Iterator<Item = &StorageTransfer> {
        let mut under_way: Vec<_> = self.in_flight.iter().collect();
        under_way.sort_unstable_by_key(|(id, _)| **id);
        under_way.into_iter().map(|(_, in_flight)| &in_flight.transfer)
    }

    /// Returns whether the failure of the storage's transfer, which is about to be reported, was
    /// that the pool did not accept it.
    pub(super) fn take_not_accepted(&mut self, storage: StorageId) -> bool {
        self.not_accepted.remove(&storage)
    }

    /// Gives back the memory that the pool needs only while it moves bytes.
    pub(super) fn release_staging(&self) {
        self.store.pool().release_staging();
    }

    /// Stops all transfers and waits until no device or copy touches the caller's memory.
    pub(super) fn stop(&self) {
        let tickets = || self.in_flight.values().filter_map(|in_flight| in_flight.ticket.as_ref());
        tickets().for_each(TransferTicket::cancel);
        tickets().for_each(TransferTicket::wait);
        self.store.close_tier();
    }
}
