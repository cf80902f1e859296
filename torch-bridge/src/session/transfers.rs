//! The machine's actions as operations of the engine or of host memory, and their completions on the way back.

use std::time::Instant;

use tidelog_engine::layout::{TensorId, TensorKey};
use tidelog_engine::schedule::{Outcome as Transferred, TransferError, Urgency};
use tidelog_planner::migration::{self, Ending, Target};
use tidelog_planner::residency::{
    Action, CopyKind, FailureInfo, Outcome, State as Residence, StorageId, TransferId,
    Urgency as Wanted,
};
use tidelog_planner::trace::Kind;
use tidelog_planner::units::Bytes;

use super::carrier::{Cargo, Carrier};
use super::history::{Ended, Label};
use super::{Request, RequestKind, Session, State};
use crate::abi::{CallerMemory, Failure};

/// A transfer that the machine asked for and has not heard the end of.
pub(super) struct InFlight {
    pub(super) storage: StorageId,
    pub(super) direction: Direction,
    /// Where to, or where from.
    target: Target,
    urgency: Urgency,
    /// What the report says of it; the storage may be gone when the transfer ends.
    label: Label,
    kind: Kind,
    bytes: u64,
    asked: Instant,
    submitted: Option<Instant>,
    /// None until the caller has answered with the memory's address.
    carrier: Option<Carrier>,
}

impl InFlight {
    /// The other side of it, once it has one.
    pub(super) fn carrier(&self) -> Option<&Carrier> {
        self.carrier.as_ref()
    }

    /// Asks it to stop; what has not begun has nothing to stop.
    pub(super) fn stop(&self) {
        if let Some(carrier) = &self.carrier {
            carrier.cancel();
        }
    }

    /// The transfer as the report tells of it.
    fn told(&self, ending: Ending) -> Ended {
        let direction = match self.direction {
            Direction::Out(_) => migration::Direction::Out,
            Direction::In => migration::Direction::In,
        };
        Ended {
            label: self.label.clone(),
            kind: self.kind,
            bytes: self.bytes,
            direction,
            target: self.target,
            asked: self.asked,
            submitted: self.submitted,
            urgent: self.urgency == Urgency::Urgent,
            ending,
        }
    }
}

/// Which way a transfer's bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Direction {
    Out(CopyKind),
    In,
}

impl Session {
    /// Carries out the machine's actions until it has none left.
    pub(super) fn carry_out(&self, state: &mut State) {
        let mut actions = std::mem::take(&mut state.actions);
        loop {
            actions.clear();
            state.machine.take_actions(&mut actions);
            if actions.is_empty() {
                break;
            }
            for action in actions.drain(..) {
                self.perform(state, action);
            }
        }
        state.actions = actions;
    }

    fn perform(&self, state: &mut State, action: Action) {
        match action {
            Action::Evict { storage, transfer, copy, target } => {
                state.begin(transfer, storage, (Direction::Out(copy), target), Urgency::Ahead);
            }
            Action::Fetch { storage, transfer, urgency, target } => {
                state.begin(transfer, storage, (Direction::In, target), urgency_of(urgency));
            }
            Action::Release { storage } => {
                state.request(RequestKind::Release, storage, state.size_of(storage), None);
            }
            Action::Expedite { transfer } => {
                if let Some(in_flight) = state.in_flight.get_mut(&transfer) {
                    in_flight.urgency = Urgency::Urgent;
                    if let Some(carrier) = &in_flight.carrier {
                        carrier.expedite();
                    }
                }
            }
            Action::Cancel { transfer } => self.cancel(state, transfer),
            Action::Forget { storage, target } => self.forget(state.log_id(storage), target),
        }
    }

    /// Stops a transfer: the pool's at its next piece, one that has not begun at once.
    fn cancel(&self, state: &mut State, transfer: TransferId) {
        match state.in_flight.get(&transfer).map(|in_flight| &in_flight.carrier) {
            Some(Some(carrier)) => carrier.cancel(),
            Some(None) => {
                state.requests.retain(|request| request.transfer != Some(transfer));
                self.end(state, transfer, Outcome::Cancelled);
            }
            None => {}
        }
    }

    pub(crate) fn next_request(&self) -> Option<Request> {
        self.lock().requests.front().copied()
    }

    /// The caller has done what a request asked for.
    pub(crate) fn request_done(&self, memory: &CallerMemory) -> Result<i32, Failure> {
        memory.check(self.place)?;
        let sequence = memory.sequence();
        let mut state = self.lock();
        if sequence > state.next_sequence {
            return Err(Failure::invalid(format!("request {sequence} was never handed out")));
        }
        let Some(request) = state.requests.front().copied() else {
            return Ok(0); // reported twice: an interrupt fell between the report and its answer
        };
        if request.sequence != sequence {
            return if sequence < request.sequence {
                Ok(0)
            } else {
                Err(Failure::invalid(format!(
                    "request {sequence} was not handed out yet; the next is {}",
                    request.sequence
                )))
            };
        }
        state.requests.pop_front();
        if let Some(transfer) = request.transfer {
            if memory.is_none() {
                self.decline(&mut state, transfer, &request);
            } else {
                self.submit(&mut state, transfer, &request, memory);
            }
            self.carry_out(&mut state);
        }
        Ok(0)
    }

    /// The caller cannot do what a transfer needs of it.
    fn decline(&self, state: &mut State, transfer: TransferId, request: &Request) {
        let storage = StorageId(request.storage);
        if request.kind == RequestKind::Allocate {
            let message = format!(
                "there was no memory for its {}, with all out that could leave: what is free is in pieces, or others in this \
                 process hold it; lower memory=, or use what keeps the allocator from fragmenting \
                 (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)",
                Bytes(request.size)
            );
            self.end(state, transfer, Outcome::NoMemory(FailureInfo { message }));
            return;
        }
        // It stays, until the next op at least: asked again at once, it would be declined again.
        state.machine.pin(storage);
        state.declined.push(storage);
        // The machine calls the eviction off by itself; that nobody has to answer for it is what
        // tells this from a transfer that failed.
        let _ = state.machine.modified(storage);
        self.carry_out(state);
        if state.in_flight.contains_key(&transfer) {
            self.end(state, transfer, Outcome::Cancelled);
        }
    }

    /// Hands a transfer to whoever carries it out.
    fn submit(
        &self,
        state: &mut State,
        transfer: TransferId,
        request: &Request,
        memory: &CallerMemory,
    ) {
        let Some(in_flight) = state.in_flight.get(&transfer) else { return };
        let (storage, direction, target) =
            (in_flight.storage, in_flight.direction, in_flight.target);
        let begun = self.carry(&Cargo {
            transfer,
            key: state.log_key(storage),
            kind: state.kind_of(storage),
            direction,
            urgency: in_flight.urgency,
            target,
            request,
            memory,
        });
        match begun {
            Ok(carrier) => {
                if let Some(in_flight) = state.in_flight.get_mut(&transfer) {
                    in_flight.carrier = Some(carrier);
                    in_flight.submitted = Some(Instant::now());
                }
                state.figures.started(direction, target);
            }
            Err(message) => {
                state.refused_by_pool.insert(storage);
                self.end(state, transfer, Outcome::Failed(FailureInfo { message }));
            }
        }
    }

    /// Takes in every completion that is there.
    pub(super) fn take_in(&self, state: &mut State) {
        while let Some(ended) = self.completions.oldest_end() {
            let Some((tag, transferred)) = self.completions.try_pop() else { return };
            self.complete(state, TransferId(tag), transferred, ended);
        }
    }

    pub(super) fn complete(
        &self,
        state: &mut State,
        transfer: TransferId,
        transferred: Transferred,
        ended: Instant,
    ) {
        let Some(in_flight) = state.in_flight.get(&transfer) else { return };
        let (storage, direction, target) =
            (in_flight.storage, in_flight.direction, in_flight.target);
        let outcome = match transferred {
            Ok(done) if direction == Direction::Out(CopyKind::Verify) => {
                if done.matched {
                    Outcome::Matched
                } else {
                    Outcome::Differs
                }
            }
            Ok(_) => Outcome::Done,
            Err(TransferError::Cancelled) => Outcome::Cancelled,
            Err(error) => Outcome::Failed(FailureInfo { message: error.to_string() }),
        };
        let moved = matches!(outcome, Outcome::Done | Outcome::Matched);
        let (kind, size) = (state.kind_of(storage), state.size_of(storage));
        let moved = moved.then_some((kind, size));
        state.figures.finished((direction, target), moved, ended);
        self.end(state, transfer, outcome);
    }

    /// Tells the machine how a transfer ended, and the caller where its storage is resident again.
    fn end(&self, state: &mut State, transfer: TransferId, outcome: Outcome) {
        let Some(in_flight) = state.in_flight.remove(&transfer) else { return };
        state.moving -= in_flight.bytes;
        state.history.transferred(in_flight.told(ending_of(&outcome)), Instant::now());
        state.machine.completed(transfer, outcome);
        self.carry_out(state);
        state.sample();
        if let Some(Residence::Resident { clean }) = state.machine.state(in_flight.storage) {
            state.request(RequestKind::Settle, in_flight.storage, u64::from(clean), None);
        }
    }
}

impl State {
    fn begin(
        &mut self,
        transfer: TransferId,
        storage: StorageId,
        (direction, target): (Direction, Target),
        urgency: Urgency,
    ) {
        let bytes = self.size_of(storage);
        let in_flight = InFlight {
            storage,
            direction,
            target,
            urgency,
            label: self.label(storage),
            kind: self.kind_of(storage),
            bytes,
            asked: Instant::now(),
            submitted: None,
            carrier: None,
        };
        self.in_flight.insert(transfer, in_flight);
        self.moving += bytes;
        let kind = match direction {
            Direction::Out(_) => RequestKind::Evict,
            Direction::In => RequestKind::Allocate,
        };
        self.request(kind, storage, bytes, Some(transfer));
    }

    /// The step ends in the report too, with what goes on beyond it.
    pub(super) fn end_history(&mut self, complete: bool) {
        self.sample();
        let now = Instant::now();
        let mut under_way: Vec<_> = self.in_flight.iter().collect();
        under_way.sort_unstable_by_key(|(transfer, _)| **transfer);
        for (_, in_flight) in under_way {
            self.history.transferred(in_flight.told(Ending::UnderWay), now);
        }
        self.history.step_ends(complete, now);
    }

    /// The same, with the name that errors call it by.
    fn log_key(&self, storage: StorageId) -> TensorKey {
        let name = self.known.get(&storage).and_then(|known| known.name.as_deref());
        let name = name.map_or_else(|| format!("storage {}", storage.0).into(), Into::into);
        TensorKey { id: self.log_id(storage), name: Some(name) }
    }

    /// The name under which a storage lies in the log, or in host memory.
    fn log_id(&self, storage: StorageId) -> TensorId {
        TensorId(u128::from(self.log_prefix) << 64 | u128::from(storage.0))
    }
}

fn ending_of(outcome: &Outcome) -> Ending {
    match outcome {
        Outcome::Done => Ending::Moved,
        Outcome::Matched => Ending::Clean,
        // What differs from its copy is written next, and that transfer tells of itself.
        Outcome::Cancelled | Outcome::Differs => Ending::Cancelled,
        Outcome::Failed(_) | Outcome::NoMemory(_) => Ending::Failed,
    }
}

fn urgency_of(wanted: Wanted) -> Urgency {
    match wanted {
        Wanted::Urgent => Urgency::Urgent,
        Wanted::Ahead => Urgency::Ahead,
    }
}
