//! The executor: hands each event to the machine and to the rooms, in their order, and carries out
//! what the machine decides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::schedule::{TransferError, Urgency};
use tidelog_planner::migration::Ending;
use tidelog_planner::migration::Target;
use tidelog_planner::residency::{
    Attributes, BudgetRefusal, EvictError, FailureInfo, FetchUrgency as Wanted, MigrationOutcome,
    OpBegin, OpProgress, OpUse, Pending, ProtocolError, Residency, ResidencyAction, StorageId,
    StorageState as Residence, TransferId,
};
use tidelog_planner::units::{Bytes, OpIndex};

use super::history::History;
use super::ops::{GoesOn, HeldError, OpCall, Ops};
use super::parts::{PART_NUMBERS, StorageParts};
use super::planning::Planning;
use super::storages::{STORAGES_MAX, StorageBirth, Storages};
use super::transfer::{StorageTransfer, TransferDirection};
use super::transfers::{BackingStore, OrderedTransfer, QueuedRequest, TransferEnd, Transfers};
use super::write_budget::{SessionWrites, WriteMeter, rated};
use crate::error::{Failure, FailureKind};
use crate::memory::{
    BYTES_MAX, CallerMemory, MemoryAction, MemoryPlace, MemoryRequest, RequestedBytes,
};

/// Next action of the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Readiness {
    /// The caller continues.
    Ready,
    /// The caller takes requests first.
    Requests,
    /// The caller waits for transfers, or for asynchronous uses to end.
    Waiting,
}

/// The residency machine, and the rooms that carry out what it decides.
pub(super) struct Executor {
    pub(super) machine: Residency,
    pub(super) storages: Storages,
    pub(super) parts: StorageParts,
    ops: Ops,
    pub(super) transfers: Transfers,
    pub(super) planning: Planning,
    pub(super) history: History,
    pub(super) write_budget: Option<WriteMeter>,
    /// Parts that are to be out before an eviction that was asked for is through.
    evicting: Vec<StorageId>,
    /// Storages that the caller is in the middle of around the op that is begun, as the machine has
    /// it.
    in_hand: Vec<StorageId>,
    /// Empty; kept for its memory.
    actions: Vec<ResidencyAction>,
    /// Scratch memory for uses, as `actions`.
    uses: Vec<OpUse>,
}

impl Executor {
    pub(super) fn new(machine: Residency, planning: Planning, store: Arc<BackingStore>) -> Self {
        let has_gpu = matches!(store.place(), MemoryPlace::Gpu(_));
        Self {
            machine,
            storages: Storages::default(),
            parts: StorageParts::default(),
            ops: Ops::default(),
            transfers: Transfers::new(store),
            planning,
            history: History::new(has_gpu),
            write_budget: None,
            evicting: Vec::new(),
            in_hand: Vec::new(),
            actions: Vec::new(),
            uses: Vec::new(),
        }
    }

    pub(super) fn born(&mut self, birth: &StorageBirth) -> Result<(), Failure> {
        let number = u32::try_from(birth.storage).ok().filter(|&number| number < STORAGES_MAX);
        let Some(storage) = number.map(StorageId) else {
            return Err(Failure::invalid(format!(
                "storage number {} is too large: use small numbers again, below {STORAGES_MAX}",
                birth.storage
            )));
        };
        if self.storages.contains(storage) {
            return Ok(()); // reported before
        }
        if self.parts.are_used() && storage.0 < PART_NUMBERS {
            return Err(Failure::invalid(format!(
                "storage number {} is one of those below {PART_NUMBERS} that are for parts",
                storage.0
            )));
        }
        if self.machine.knows(storage) {
            return Err(Failure::invalid(format!(
                "storage number {} is that of one that died with a transfer in flight: take \
                 another number",
                storage.0
            )));
        }
        if self.ops.depth() > 0 && self.transfers.is_in_hand_around(storage.0) {
            return Err(Failure::invalid(format!(
                "storage number {} is that of one that died while the caller was in the middle of \
                 what it is asked for: take another number",
                storage.0
            )));
        }
        self.check_size(birth.size)?;
        let place = birth.op.map(|op| (OpIndex(op), birth.slot));
        let movable = birth.movable && birth.size > 0;
        self.storages.born(storage, movable, place);
        let expected = place.map(|(op, slot)| (self.planning.expected_at(op), slot));
        let attributes = Attributes { movable, birth: expected };
        self.parts.born(&mut self.machine, storage, birth.size, attributes);
        self.planning.born(storage, birth.size, place);
        Ok(())
    }

    pub(super) fn died(&mut self, storage: StorageId) {
        if self.storages.died(storage) {
            self.parts.of(storage).for_each(|part| self.ops.died(part));
            self.parts.died(&mut self.machine, storage);
            self.transfers.died(storage.0);
            self.planning.died(storage);
        }
    }

    /// Sums of sizes must not overflow, whatever sizes a caller makes up.
    pub(super) fn check_size(&self, size: u64) -> Result<(), Failure> {
        let taken = self.machine.committed().0 + self.machine.evicted().0;
        if size > BYTES_MAX - taken.min(BYTES_MAX) {
            return Err(Failure::invalid(format!(
                "a storage of {size} bytes beside {taken} others: no memory is that large"
            )));
        }
        Ok(())
    }

    /// Returns the number of ops around those that begin now.
    pub(super) fn depth(&self) -> usize {
        self.ops.depth()
    }

    /// Enters or leaves ops, so that `depth` are around those that begin from here on. What was
    /// inside is over; the op that was begun last goes on after those that begin inside it. An
    /// error of what goes on by that is for who waits for it, who looks again.
    pub(super) fn nest(&mut self, depth: usize) -> Result<Readiness, Failure> {
        self.caller_returns();
        let mut progress = self.nest_ops(depth)?;
        self.carry_out();
        if matches!(progress, OpProgress::Refused(_) | OpProgress::Failed(_)) {
            let error = std::mem::replace(&mut progress, OpProgress::Waiting);
            self.ops.hold(HeldError::Machine(error));
        }
        if self.transfers.next_request().is_some() {
            self.history.requests_handed_out();
            return Ok(Readiness::Requests);
        }
        let waits = matches!(progress, OpProgress::Waiting);
        Ok(if waits { Readiness::Waiting } else { Readiness::Ready })
    }

    fn nest_ops(&mut self, depth: usize) -> Result<OpProgress, Failure> {
        let now = self.ops.depth();
        if depth > now + 1 {
            return Err(Failure::invalid(format!(
                "{depth} ops around the next one, where {now} are: they are entered one by one"
            )));
        }
        self.transfers.nest(depth);
        if depth > now {
            let (parts, evicting) = (&self.parts, std::mem::take(&mut self.evicting));
            self.ops.enter(&mut self.machine, evicting, |uses, into| parts.uses(uses, into));
            self.depth_changed();
            return Ok(OpProgress::Ready);
        }
        if depth == now {
            return Ok(OpProgress::Ready);
        }
        self.evicting.clear();
        self.ops.retry_declined(&mut self.machine);
        let mut goes_on = GoesOn::Nothing;
        while self.ops.depth() > depth {
            goes_on = self.ops.leave(&mut self.machine);
        }
        self.depth_changed();
        Ok(match goes_on {
            GoesOn::Nothing => OpProgress::Ready,
            GoesOn::Held => OpProgress::Waiting,
            // In the plan's time, and in the step, it has begun.
            GoesOn::Op => self.op_begins_in_machine(None),
            GoesOn::Settle => self.machine.settle(),
            GoesOn::Evict(storages) => {
                self.evicting = storages;
                self.evict_rest()
            }
        })
    }

    /// Updates what the caller is in the middle of, for the time until the depth changes again.
    fn depth_changed(&mut self) {
        for storage in self.in_hand.drain(..) {
            self.machine.in_hand(storage, false);
        }
        let in_hand = self.transfers.in_hand_around().map(StorageId);
        self.in_hand.extend(in_hand.flat_map(|storage| self.parts.of(storage)));
        for &storage in &self.in_hand {
            self.machine.in_hand(storage, true);
        }
        self.keep_for_ops_around();
    }

    /// Keeps budget for ops around: room for outputs that they were granted, and memory that counts
    /// as given up, but that the caller was about to free when the op inside began.
    fn keep_for_ops_around(&mut self) {
        if self.ops.depth() == 0 {
            return self.machine.keep_for_others(Bytes(0));
        }
        let is_out = |of: RequestedBytes| {
            let mut parts = self.parts.of(StorageId(of.storage));
            let id = parts.find(|&part| self.parts.requested(part) == of);
            id.and_then(|id| self.machine.state(id)) == Some(Residence::Evicted)
        };
        // One that was given up, wanted back and given up again is there once.
        let kept: BTreeMap<_, _> = self.transfers.kept_around().filter(|it| is_out(it.0)).collect();
        let room = self.ops.room_around() + kept.values().sum::<u64>();
        self.machine.keep_for_others(Bytes(room));
    }

    pub(super) fn step_begins(&mut self) -> OpProgress {
        self.leave_ops();
        self.note_host_copies();
        self.history.step_begins();
        if let Some(budget) = &mut self.write_budget {
            budget.step_begins();
        }
        self.evicting.clear();
        self.ops.retry_declined(&mut self.machine);
        self.ops.step_begins();
        self.sample(Instant::now());
        let step = self.history.step_number();
        self.planning.step_begins(&mut self.machine, &mut self.parts, step);
        self.machine.step_begin();
        self.machine.settle()
    }

    /// Passes on what host memory says of its copies.
    fn note_host_copies(&mut self) {
        self.history.host_copied(self.transfers.tier_stats().as_ref());
    }

    /// Leaves all ops: nothing that was begun continues.
    fn leave_ops(&mut self) {
        self.transfers.nest(0);
        while self.ops.depth() > 0 {
            self.ops.leave(&mut self.machine);
        }
        self.ops.unpin(&mut self.machine);
        self.ops.take_held();
        self.depth_changed();
    }

    pub(super) fn step_ends(&mut self, complete: bool) -> OpProgress {
        self.leave_ops();
        self.machine.step_end();
        self.sample(Instant::now());
        self.note_host_copies();
        self.history.step_ends(complete, self.transfers.under_way());
        self.planning.step_ends(complete, &self.machine, &self.storages, &self.history);
        self.machine.settle()
    }

    /// Sets how many bytes a day may go to the devices, to which `devices` went before.
    pub(super) fn set_write_budget(&mut self, per_day: Option<Bytes>, devices: u64) {
        let written = self.written(devices);
        self.write_budget = per_day.map(|per_day| WriteMeter::new(per_day, written));
        self.planning.set_write_budget(per_day, &self.machine, &self.history);
    }

    /// Returns how long to pause, as `devices` bytes have gone to the devices by now.
    pub(super) fn throttle(&mut self, devices: u64) -> Duration {
        let written = self.written(devices);
        let Some(budget) = &mut self.write_budget else { return Duration::ZERO };
        budget.look(written);
        self.planning.storages_may_write(budget.for_storages());
        budget.pause()
    }

    /// Notes that the caller was throttled for a time.
    pub(super) fn has_throttled(&mut self, time: Duration) {
        self.history.throttled();
        let Some(budget) = &mut self.write_budget else { return };
        if budget.has_paused(time) {
            let (step, per_day) = (self.history.step_number(), rated(budget.per_day()));
            self.planning.notice(format!(
                "steps write more than the write budget of {per_day} a day, so pauses follow them, the first one step \
                 {step}: stats()[\"write_budget\"] has their sum. More memory or a larger budget shortens them"
            ));
        }
    }

    fn written(&self, devices: u64) -> SessionWrites {
        SessionWrites { storages: self.history.counters().totals().bytes_written, devices }
    }

    pub(super) fn op_begins(
        &mut self,
        op: &OpCall<'_>,
        uses: impl Iterator<Item = OpUse>,
    ) -> OpProgress {
        self.evicting.clear();
        self.ops.retry_declined(&mut self.machine);
        self.ops.begins(op, uses);
        // Inside another op it is no op of the step: there is one place for the two.
        let index = op.index.filter(|_| self.ops.depth() == 0).map(|index| {
            let uses = (op.name, self.ops.uses());
            self.planning.op_begins(&mut self.machine, index, op.fingerprint, uses)
        });
        let progress = self.op_begins_in_machine(index);
        self.ops.unpin(&mut self.machine);
        progress
    }

    fn op_begins_in_machine(&mut self, index: Option<OpIndex>) -> OpProgress {
        self.uses.clear();
        self.parts.uses(self.ops.uses(), &mut self.uses);
        let needs = Bytes(self.ops.needs().min(BYTES_MAX));
        self.machine.op_begin(&OpBegin { index, uses: &self.uses, needs })
    }

    pub(super) fn op_ends(&mut self) -> OpProgress {
        let now = Instant::now();
        self.ops.take_held();
        if self.ops.depth() == 0 {
            self.planning.op_ends(now);
        }
        if let Some((op, since)) = self.ops.ends() {
            self.history.op_ran(op, since, now);
        }
        self.ops.unpin(&mut self.machine);
        self.machine.op_end();
        self.parts.cut_waiting(&mut self.machine);
        self.machine.settle()
    }

    pub(super) fn settle(&mut self) -> OpProgress {
        self.ops.take_held();
        self.machine.settle()
    }

    /// Has all that can leave memory; nothing comes back before `go_on_after_pause`.
    pub(super) fn pause(&mut self) -> Result<OpProgress, EvictError> {
        self.evicting.clear();
        self.ops.take_held();
        self.ops.retry_declined(&mut self.machine);
        self.machine.pause()?;
        self.ops.ends();
        self.ops.unpin(&mut self.machine);
        self.note_host_copies();
        self.history.pause_begins(self.machine.committed());
        Ok(self.machine.settle())
    }

    /// Ends a pause, if there is one. `at_once`: with all back that left by it and fits.
    pub(super) fn go_on_after_pause(&mut self, at_once: bool) -> OpProgress {
        self.evicting.clear();
        self.ops.take_held();
        let left = self.machine.go_on_after_pause();
        self.history.pause_ends(self.machine.committed());
        if !at_once {
            return self.machine.settle();
        }
        let mut room = self.machine.limit().0.saturating_sub(self.machine.committed().0);
        let mut uses = Vec::new();
        for storage in left {
            let out = self.machine.state(storage) == Some(Residence::Evicted);
            let size = self.machine.size(storage).filter(|size| out && size.0 <= room);
            if let Some(size) = size {
                room -= size.0;
                uses.push(OpUse { storage, modifies: false });
            }
        }
        let call = OpCall { index: None, fingerprint: 0, name: "the end of a pause", needs: 0 };
        self.ops.begins(&call, std::iter::empty());
        self.machine.op_begin(&OpBegin { index: None, uses: &uses, needs: Bytes(0) })
    }

    /// A storage has another size.
    pub(super) fn resized(&mut self, storage: StorageId, size: u64) -> Result<(), ProtocolError> {
        self.check_in_memory(storage)?;
        let was_empty =
            self.parts.of(storage).all(|part| self.machine.size(part) == Some(Bytes(0)));
        for (part, size) in self.parts.sizes(storage, size) {
            self.machine.resized(part, Bytes(size))?;
        }
        if let Some((op, slot)) = self.planning.resized(storage, was_empty, size) {
            self.machine.filled(storage, (self.planning.expected_at(op), slot));
        }
        Ok(())
    }

    /// A storage's bytes changed outside an op.
    pub(super) fn modified(&mut self, storage: StorageId) -> Result<(), ProtocolError> {
        self.check_in_memory(storage)?;
        self.parts.of(storage).try_for_each(|part| self.machine.modified(part))
    }

    /// Checks that a storage is in memory with all of its parts.
    fn check_in_memory(&self, storage: StorageId) -> Result<(), ProtocolError> {
        let is_away = self.parts.are_away(&self.machine, storage);
        if is_away { Err(ProtocolError::NotResident(storage)) } else { Ok(()) }
    }

    /// Moves one storage out: all of its parts.
    pub(super) fn evict(&mut self, storage: StorageId) -> Result<OpProgress, EvictError> {
        self.evicting.clear();
        self.ops.take_held();
        // All begin to leave; whether they are out is looked at one after the other.
        for part in self.parts.of(storage) {
            let _ = self.machine.evict(part)?;
        }
        self.evicting.extend(self.parts.of(storage));
        Ok(self.evict_rest())
    }

    fn evict_rest(&mut self) -> OpProgress {
        while let Some(part) = self.evicting.pop() {
            match self.machine.evict(part) {
                Ok(OpProgress::Ready) | Err(_) => {}
                Ok(OpProgress::Waiting) => return OpProgress::Waiting,
                Ok(ended) => {
                    self.evicting.clear();
                    return ended;
                }
            }
        }
        OpProgress::Ready
    }

    /// Looks again, and at what is left of an eviction that was asked for.
    fn resume(&mut self, resume: impl FnOnce(&mut Residency) -> OpProgress) -> OpProgress {
        match resume(&mut self.machine) {
            OpProgress::Ready => self.evict_rest(),
            progress => progress,
        }
    }

    /// Looks again at what waits. Requests of transfers that have ended come first: a storage that
    /// a transfer kept alive may die by them, and what waits for its room is not refused then.
    pub(super) fn look_again(
        &mut self,
        resume: impl FnOnce(&mut Residency) -> OpProgress,
    ) -> Result<Readiness, Failure> {
        self.caller_returns();
        if self.transfers.next_request().is_some() {
            self.history.requests_handed_out();
            return Ok(Readiness::Requests);
        }
        match self.ops.take_held() {
            None => self.advance(|executor| executor.resume(resume)),
            Some(HeldError::Machine(error)) => self.advance(|_| error),
            Some(HeldError::Wait(failure)) => Err(failure),
        }
    }

    /// The caller has not heard what became of its wait: it had an error of its own returned.
    pub(super) fn hold(&mut self, failure: Failure) {
        self.ops.hold(HeldError::Wait(failure));
    }

    /// Processes what completed, reports one event to the machine, carries out what it decides, and
    /// returns what the caller must do before it goes on.
    pub(super) fn advance(
        &mut self,
        event: impl FnOnce(&mut Self) -> OpProgress,
    ) -> Result<Readiness, Failure> {
        self.caller_returns();
        self.keep_for_ops_around();
        let progress = event(self);
        self.carry_out();
        if self.transfers.next_request().is_some() {
            if matches!(progress, OpProgress::Refused(_) | OpProgress::Failed(_)) {
                self.ops.hold(HeldError::Machine(progress));
            }
            self.history.requests_handed_out();
            return Ok(Readiness::Requests);
        }
        if matches!(progress, OpProgress::Waiting) {
            let is_away = |storage| self.parts.are_away(&self.machine, storage);
            let missing = || self.ops.missing(is_away);
            let label = |storage| self.storages.label(storage, storage);
            self.history.stall_begins(|| missing().map(label));
        } else {
            self.history.stall_ends(self.ops.last());
        }
        let now = Instant::now(); // ops are short: one look at the clock for all
        self.sample(now);
        if self.history.is_paused() {
            self.note_host_copies();
        }
        if !matches!(progress, OpProgress::Waiting)
            && self.history.pause_goes_on(self.machine.committed())
        {
            self.transfers.release_staging();
        }
        self.readiness(progress, now)
    }

    /// Takes in what completed while the caller was away.
    fn caller_returns(&mut self) {
        self.history.caller_returns();
        while let Some(completion) = self.transfers.completion() {
            self.complete(completion);
        }
    }

    fn readiness(&mut self, progress: OpProgress, now: Instant) -> Result<Readiness, Failure> {
        match progress {
            OpProgress::Ready if self.uses_what_moves_around() => Err(self.in_the_middle()),
            OpProgress::Ready => {
                if self.ops.depth() == 0 {
                    self.planning.op_runs(now);
                }
                self.ops.runs(now);
                Ok(Readiness::Ready)
            }
            OpProgress::Waiting if self.transfers.wait_for_op_around() => {
                // An op that has ended is not refused: the budget holds once the op around has.
                let settles = self.machine.pending() == Pending::Settle;
                if settles { Ok(Readiness::Ready) } else { Err(self.in_the_middle()) }
            }
            OpProgress::Waiting
                if self.transfers.is_empty() && self.machine.async_used() == Bytes(0) =>
            {
                Err(Failure::internal("the op waits, but nothing is in flight"))
            }
            OpProgress::Waiting => Ok(Readiness::Waiting),
            OpProgress::Refused(refusal) if fits_but_for_others(&refusal) => {
                Err(self.in_the_middle())
            }
            OpProgress::Refused(refusal) => {
                self.ops.gives_up();
                let name = |storage| self.storages.text(self.parts.whole(storage));
                Err(self.ops.too_large(&refusal, name))
            }
            OpProgress::Failed(failure) => {
                self.ops.gives_up();
                let not_accepted = self.transfers.take_not_accepted(failure.storage);
                let kind = if not_accepted { FailureKind::Pool } else { FailureKind::Transfer };
                let storage = self.parts.whole(failure.storage);
                Err(Failure::new(kind, failure.info.message).about(storage.0))
            }
        }
    }

    /// Returns whether the op uses something of which the caller has begun to do what was asked for
    /// around it.
    fn uses_what_moves_around(&self) -> bool {
        let is_asked_for = |one: &OpUse| self.transfers.is_asked_for(one.storage.0);
        self.ops.depth() > 0 && self.ops.open_uses().any(is_asked_for)
    }

    /// The error of an op that needs what the caller is in the middle of around it. The op around
    /// goes on once this one has ended, and this one could once the other has done what it was
    /// asked for. So this one ends, and by that neither waits for good.
    fn in_the_middle(&mut self) -> Failure {
        let name = self.ops.last().map_or("an access", |(name, _)| name);
        let failure = Failure::new(
            FailureKind::Busy,
            format!(
                "{name} is inside another op, which has or is in the middle of moving what it \
                 needs: let it run when that has ended"
            ),
        );
        self.ops.gives_up();
        self.evicting.clear();
        self.machine.op_end();
        self.carry_out();
        failure
    }

    /// Carries out the machine's actions until it has none left.
    pub(super) fn carry_out(&mut self) {
        let mut actions = std::mem::take(&mut self.actions);
        loop {
            actions.clear();
            self.machine.take_actions(&mut actions);
            if actions.is_empty() {
                break;
            }
            for action in actions.drain(..) {
                self.perform(action);
            }
        }
        self.actions = actions;
    }

    fn perform(&mut self, action: ResidencyAction) {
        match action {
            ResidencyAction::Evict { storage, transfer, copy, target } => {
                let direction = TransferDirection::Out(copy);
                self.begin(transfer, storage, (direction, target), Urgency::Ahead);
            }
            ResidencyAction::Fetch { storage, transfer, urgency, target } => {
                self.begin(transfer, storage, (TransferDirection::In, target), urgency_of(urgency));
            }
            ResidencyAction::Release { storage } => {
                let (of, size) = (self.parts.requested(storage), self.size(storage));
                self.transfers.request(MemoryAction::Release, of, size);
            }
            ResidencyAction::Expedite { transfer } => self.transfers.expedite(transfer),
            ResidencyAction::Cancel { transfer } => {
                if self.transfers.cancel(transfer) {
                    self.end(transfer, MigrationOutcome::Cancelled);
                }
            }
            ResidencyAction::Forget { storage, target } => self.transfers.forget(storage, target),
        }
    }

    fn begin(
        &mut self,
        id: TransferId,
        storage: StorageId,
        (direction, target): (TransferDirection, Target),
        urgency: Urgency,
    ) {
        let (whole, of) = (self.parts.whole(storage), self.parts.requested(storage));
        let (label, kind) = (self.storages.label(whole, storage), self.storages.kind(whole));
        let bytes = self.size(storage);
        let transfer = StorageTransfer::new((label, of), kind, bytes, (direction, target), urgency);
        self.transfers.begin(id, transfer);
    }

    /// Hands out the next request. What nobody needs any more ends instead: that it is not answered
    /// by now shows that the caller was cut short in it.
    pub(super) fn hand_out(&mut self) -> Option<MemoryRequest> {
        self.end_void();
        self.transfers.hand_out()
    }

    /// The caller was cut short in the middle of a request, and begins it anew if it is needed.
    pub(super) fn request_cut_short(&mut self, sequence: u64) {
        self.transfers.cut_short(sequence);
        self.end_void();
    }

    fn end_void(&mut self) {
        while let Some(void) = self.transfers.take_void() {
            if let Some(id) = void.transfer {
                self.end(id, MigrationOutcome::Cancelled);
            }
        }
    }

    /// The caller has done what a request asked for, or declined it.
    pub(super) fn request_done(&mut self, memory: &CallerMemory) -> Result<(), Failure> {
        let answered = self.transfers.take_answered(memory.sequence())?;
        if let Some(QueuedRequest { request, transfer: Some(id), is_void }) = answered {
            if is_void {
                self.end(id, MigrationOutcome::Cancelled);
            } else if memory.is_none() {
                self.decline(id, &request);
            } else {
                self.submit(id, &request, memory);
            }
            self.carry_out();
        }
        Ok(())
    }

    /// The caller cannot do what a transfer needs of it.
    fn decline(&mut self, id: TransferId, request: &MemoryRequest) {
        if request.action == MemoryAction::Allocate {
            let message = format!(
                "there was no memory for its {}, with all out that could leave: what is free is in \
                 pieces, or others in this process hold it; lower memory=, or use what keeps the \
                 allocator from fragmenting (PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True)",
                Bytes(request.size)
            );
            return self.end(id, MigrationOutcome::NoMemory(FailureInfo { message }));
        }
        let Some(storage) = self.transfers.get(id).map(|it| it.label.storage) else { return };
        self.ops.decline(storage, &mut self.machine);
        // To the machine the storage is modified, so it cancels the eviction. That is not a
        // transfer that failed, and no op has to fail.
        let _ = self.machine.modified(storage);
        self.carry_out();
        if self.transfers.get(id).is_some() {
            self.end(id, MigrationOutcome::Cancelled);
        }
    }

    /// Hands a transfer to the pool or to host memory.
    fn submit(&mut self, id: TransferId, request: &MemoryRequest, memory: &CallerMemory) {
        match self.transfers.submit(id, request, memory) {
            Ok(Some(transfer)) => {
                self.history.transfer_started(transfer);
                if transfer.is_ordered {
                    self.history.transfer_completed(transfer, true, Instant::now());
                    self.end(id, MigrationOutcome::Enqueued);
                }
            }
            Ok(None) => {}
            Err(message) => self.end(id, MigrationOutcome::Failed(FailureInfo { message })),
        }
    }

    /// The caller has waited since then for a transfer, and saw one end or not.
    pub(super) fn waited(&mut self, since: Instant, seen: Option<TransferEnd>) {
        let ended = seen.as_ref().and_then(|end| Some((self.transfers.get(end.transfer)?, end.at)));
        self.history.waited(since, ended);
        if let Some(completion) = seen {
            self.complete(completion);
        }
    }

    /// A transfer that was submitted has ended.
    pub(super) fn complete(&mut self, completion: TransferEnd) {
        let TransferEnd { transfer: id, outcome, at } = completion;
        if let Ok(done) = &outcome {
            self.transfers.has_waited(id, done.waited);
        }
        let Some(transfer) = self.transfers.get(id) else {
            return self.ordered_ended(id, outcome.map(|_| ()));
        };
        let outcome = match outcome {
            Ok(done) if transfer.direction.compares() => {
                if done.matched {
                    MigrationOutcome::Matched
                } else {
                    MigrationOutcome::Differs
                }
            }
            Ok(_) => MigrationOutcome::Done,
            Err(TransferError::Cancelled) => MigrationOutcome::Cancelled,
            Err(error) => MigrationOutcome::Failed(FailureInfo { message: error.to_string() }),
        };
        let done = matches!(outcome, MigrationOutcome::Done | MigrationOutcome::Matched);
        self.history.transfer_completed(transfer, done, at);
        self.end(id, outcome);
    }

    /// The host has seen the end of a transfer that was complete for the machine when it was in its
    /// stream.
    fn ordered_ended(&mut self, id: TransferId, outcome: Result<(), TransferError>) {
        let Some(OrderedTransfer { transfer, is_needed }) = self.transfers.take_ordered(id) else {
            return;
        };
        if let (Err(error), true) = (outcome, is_needed) {
            let info = FailureInfo { message: error.to_string() };
            self.machine.copy_lost(transfer.label.storage, id, info);
            self.carry_out();
        }
    }

    /// Reports to the machine how a transfer ended, and to the caller that its storage is resident
    /// again, if it is.
    fn end(&mut self, id: TransferId, outcome: MigrationOutcome) {
        let Some(transfer) = self.transfers.end(id) else { return };
        let storage = transfer.label.storage;
        self.history.transfer_ended(&transfer, ending_of(&outcome));
        if transfer.is_ordered {
            self.transfers.end_ordered(id, transfer);
        }
        self.machine.completed(id, outcome);
        self.carry_out();
        self.sample(Instant::now());
        if let Some(Residence::Resident { clean }) = self.machine.state(storage) {
            let of = self.parts.requested(storage);
            let state = || self.parts.state(&self.machine, self.parts.whole(storage));
            let action = match of.part {
                Some(_) => MemoryAction::SettlePart { state: state() },
                None => MemoryAction::Settle { clean },
            };
            self.transfers.request(action, of, self.size(storage));
        }
    }

    fn size(&self, storage: StorageId) -> u64 {
        self.machine.size(storage).map_or(0, |size| size.0)
    }

    /// Keeps how much memory is taken now, for the report.
    fn sample(&mut self, now: Instant) {
        let committed = self.machine.committed().0;
        let wanted = committed + self.machine.evicted().0;
        let moving = self.transfers.moving();
        self.history.sample(now, committed.saturating_sub(moving), moving, wanted);
    }
}

/// Returns whether a refused op would be granted if it were not for what ops around it have.
fn fits_but_for_others(refusal: &BudgetRefusal) -> bool {
    refusal.smallest_budget.0 - refusal.others.0 <= refusal.budget.0
}

fn ending_of(outcome: &MigrationOutcome) -> Ending {
    match outcome {
        MigrationOutcome::Done | MigrationOutcome::Enqueued => Ending::Moved,
        MigrationOutcome::Matched => Ending::Clean,
        // What differs from its copy is written next, and that transfer is recorded by itself.
        MigrationOutcome::Cancelled | MigrationOutcome::Differs => Ending::Cancelled,
        MigrationOutcome::Failed(_) | MigrationOutcome::NoMemory(_) => Ending::Failed,
    }
}

fn urgency_of(wanted: Wanted) -> Urgency {
    match wanted {
        Wanted::Urgent => Urgency::Urgent,
        Wanted::Ahead => Urgency::Ahead,
    }
}
