//! Ops: what they use comes back, what they make gets room, and nothing of it leaves before the
//! op's end.

use super::follow::{Due, Follow};
use super::machine::Residency;
use super::refusal::BudgetRefusal;
use super::room::AsyncUses;
use super::storage::{BytesPlace, ResidentStorage, TransferKind};
use super::types::{
    EvictError, FetchUrgency, OpBegin, OpProgress, OpUse, ResidencyAction, StorageId,
    TransferFailure,
};
use crate::migration::{MigrationDirection, Target};
use crate::units::{Bytes, OpIndex};

/// Decision that [`Residency::resume`] makes again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Pending {
    /// No decision: nothing waits.
    #[default]
    Nothing,
    /// An op that wants to run.
    Op,
    /// Settlement: what is committed is to be within the budget.
    Settle,
    /// A storage that the caller moves out.
    Evict(StorageId),
}

/// State that was suspended when ops began inside it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Suspended {
    /// Decision that waited.
    pub pending: Pending,
    /// Room that an op which runs was granted for outputs that are not born yet.
    pub reserve: Bytes,
}

/// The op that runs, or waits to run.
#[derive(Debug)]
pub(super) struct CurrentOp {
    /// Protects the storages that carry this number. Another one for every op, and between ops.
    pub(super) serial: u64,
    /// Each storage once.
    pub(super) uses: Vec<OpUse>,
    /// Memory for outputs: what the caller said, and what the schedule expects.
    outputs: u64,
    expected: u64,
    /// The part of that for which there is room, and which was not born yet.
    pub(super) reserve: u64,
    /// A fetch that it waited for failed.
    pub(super) failure: Option<TransferFailure>,
    /// Memory for a fetch could not be had.
    pub(super) extra_eviction: Option<ExtraEviction>,
    /// The caller has moved a storage out since it ended: nothing comes back ahead of need before
    /// the next one begins.
    pub(super) follows_eviction: bool,
}

impl Default for CurrentOp {
    fn default() -> Self {
        let (outputs, expected, reserve) = (0, 0, 0);
        let (uses, failure, extra_eviction, follows_eviction) = (Vec::new(), None, None, false);
        Self {
            serial: 1,
            uses,
            outputs,
            expected,
            reserve,
            failure,
            extra_eviction,
            follows_eviction,
        }
    }
}

/// Eviction of more storages than the budget asks for, before a fetch whose memory could not be had
/// asks again.
#[derive(Debug)]
pub(super) struct ExtraEviction {
    /// Bytes that leave this time: twice as many as the last time.
    pub(super) bytes: u64,
    /// True if the ops have been told to begin.
    pub(super) begun: bool,
    /// Failure that is reported when nothing is left that could leave.
    pub(super) failure: TransferFailure,
}

/// Bytes that an op still lacks.
struct Lacks {
    /// True if a transfer on a storage that it uses must end first.
    transfers: bool,
    /// Bytes that are in the log only.
    bytes: u64,
}

/// Progress of an [`ExtraEviction`].
enum ExtraEvicted {
    Enough,
    Waiting,
    InVain(TransferFailure),
}

impl Residency {
    /// An op wants to run. If an op ran or waited without an end being told, it ended here.
    pub fn op_begin(&mut self, begin: &OpBegin<'_>) -> OpProgress {
        self.abandon();
        self.op.follows_eviction = false;
        if let Some(failure) = self.failure.take() {
            return OpProgress::Failed(Box::new(failure));
        }
        self.adopt(begin);
        if let Some(index) = begin.index
            && self.follow.is_some()
        {
            self.follow_to(index);
        }
        self.pending = Pending::Op;
        let progress = self.advance_op();
        if progress == OpProgress::Waiting {
            self.stats.stalls += 1;
        }
        progress
    }

    /// The op ran, or was given up.
    pub fn op_end(&mut self) {
        self.abandon();
        self.pump();
    }

    /// Suspends the current decision: other ops run inside it. What an op uses that runs is the
    /// caller's to pin, and its room to keep by [`Self::keep_for_others`]. What waits is told anew
    /// when those ops are over.
    pub fn suspend(&mut self) -> Suspended {
        let suspended = Suspended { pending: self.pending, reserve: Bytes(self.op.reserve) };
        self.abandon();
        suspended
    }

    /// The ops inside are over: one that runs has its room for outputs again.
    pub fn go_on(&mut self, reserve: Bytes) {
        self.abandon();
        self.op.reserve = reserve.0;
    }

    /// Reserves bytes of the budget that are not for ops that begin from here on: others have it,
    /// or will.
    pub fn keep_for_others(&mut self, bytes: Bytes) {
        self.for_others = bytes.0;
    }

    /// The caller is in the middle of something with a storage's memory, or no longer: until then
    /// nothing makes room by it. Unknown storages are passed over.
    pub fn in_hand(&mut self, id: StorageId, is: bool) {
        self.change(id, |storage| storage.in_hand = is);
        self.offer(id);
    }

    /// Returns the decision that waits.
    pub fn pending(&self) -> Pending {
        self.pending
    }

    /// Looks again at what waits, after completions were reported. `Ready` if nothing does.
    pub fn resume(&mut self) -> OpProgress {
        match self.pending {
            Pending::Op => self.advance_op(),
            Pending::Settle => self.advance_settle(),
            Pending::Evict(id) => self.advance_evict(id),
            Pending::Nothing => self.failed().unwrap_or(OpProgress::Ready),
        }
    }

    /// Looks again as `resume` does. What then waits for asynchronous uses alone is refused: the
    /// caller does not wait for them, because they may not end by themselves.
    pub fn resume_or_refuse(&mut self) -> OpProgress {
        // A schedule may be wrong; it never refuses an op that would fit.
        self.op.expected = 0;
        let progress = self.resume();
        if progress != OpProgress::Waiting || !self.flights.is_empty() {
            return progress;
        }
        let outputs = if self.pending == Pending::Op { self.op.outputs } else { 0 };
        self.refusal(outputs, AsyncUses::Stay).map_or(progress, |refusal| self.refuse(refusal))
    }

    fn refuse(&mut self, refusal: Box<BudgetRefusal>) -> OpProgress {
        self.stats.refusals += 1;
        self.abandon();
        OpProgress::Refused(refusal)
    }

    /// Storages leave until what is committed is within the budget: for after births, and after the
    /// budget became smaller. Takes the place of an op that waits.
    pub fn settle(&mut self) -> OpProgress {
        if self.pending == Pending::Op {
            self.abandon();
        }
        self.pending = Pending::Settle;
        self.advance_settle()
    }

    /// Moves one storage out, also one whose last write failed. `Ready` when it is out, or when
    /// something wanted it back meanwhile. Takes the place of an op that waits. No schedule brings
    /// it back before the next op begins.
    pub fn evict(&mut self, id: StorageId) -> Result<OpProgress, EvictError> {
        let storage = self.alive(id).ok_or(EvictError::Unknown(id))?;
        if !storage.movable {
            return Err(EvictError::Unmovable(id));
        }
        if storage.pins > 0 {
            return Err(EvictError::Pinned(id));
        }
        if storage.async_use {
            return Err(EvictError::AsyncUse(id));
        }
        if storage.used_by == self.op.serial {
            return Err(EvictError::InUse(id));
        }
        if self.pending == Pending::Op {
            self.abandon();
        }
        self.unwritable.retain(|failed| *failed != id);
        self.change(id, |storage| storage.unwritable = false);
        self.op.follows_eviction = true;
        if let Some(storage) = self.get(id).filter(|storage| storage.may_leave()) {
            self.leave(id, self.unplanned_target(storage.size));
        }
        self.pending = Pending::Evict(id);
        Ok(self.advance_evict(id))
    }

    /// Ends the current op, if any: what it used may leave again.
    pub(super) fn abandon(&mut self) {
        self.pending = Pending::Nothing;
        self.op.serial += 1;
        self.op.reserve = 0;
        self.op.failure = None;
        self.op.extra_eviction = None;
        let mut uses = std::mem::take(&mut self.op.uses);
        for one in uses.drain(..) {
            self.offer(one.storage);
        }
        self.op.uses = uses;
    }

    /// A storage that the current op uses, unless it died since the op began (and perhaps another
    /// was born under its number).
    pub(super) fn used(&self, id: StorageId) -> Option<&ResidentStorage> {
        self.alive(id).filter(|storage| storage.used_by == self.op.serial)
    }

    fn adopt(&mut self, begin: &OpBegin<'_>) {
        self.op.outputs = begin.needs.0;
        self.op.expected = 0;
        for &one in begin.uses {
            let known = self.storages.get_mut(one.storage.0 as usize).and_then(Option::as_mut);
            let Some(storage) = known.filter(|storage| !storage.dead) else {
                self.stats.unknown_uses += 1;
                continue;
            };
            if storage.used_by == self.op.serial {
                self.op.uses[storage.use_slot as usize].modifies |= one.modifies;
                continue;
            }
            storage.used_by = self.op.serial;
            storage.use_slot = self.op.uses.len() as u32;
            self.op.uses.push(one);
        }
    }

    /// The schedule's time goes on to this op, and the moves begin that start by then.
    fn follow_to(&mut self, index: OpIndex) {
        let reason = self.follow.as_mut().and_then(|follow| follow.op_begins(index));
        self.lose_sync(reason);
        let Some(follow) = self.follow.as_ref().filter(|follow| follow.in_sync()) else { return };
        self.op.expected = follow.table.needs(index).0;
        while let Some(row) = self.follow.as_mut().and_then(Follow::next_started) {
            let Some(follow) = &mut self.follow else { return };
            if row.direction == MigrationDirection::In {
                let due = Due { storage: row.storage, cautious: false };
                follow.put_off(follow.deadline(&row), due);
            } else if let Some(id) = follow.bound(row.storage) {
                if row.stays {
                    self.clean_as_planned(id, row.target);
                    continue;
                }
                if row.awaited {
                    follow.await_eviction(follow.deadline(&row), id);
                }
                self.evict_as_planned(id, row.target);
            }
        }
    }

    fn evict_as_planned(&mut self, id: StorageId, target: Target) {
        let Some(storage) = self.get(id) else { return };
        let fetching = matches!(storage.place, BytesPlace::Moving(flight) if flight.kind == TransferKind::Fetch);
        let used = storage.used_by == self.op.serial;
        if storage.may_leave() && !used && !fetching {
            self.stats.evictions_planned += 1;
            self.leave(id, target);
        }
    }

    /// Has a copy made of a storage that stays. Not where the op uses it, which may modify it.
    fn clean_as_planned(&mut self, id: StorageId, target: Target) {
        let Some(storage) = self.get(id) else { return };
        let is_dirty = matches!(storage.place, BytesPlace::Resident) && !storage.copy;
        let used = storage.used_by == self.op.serial;
        if is_dirty && storage.may_leave() && !used {
            self.stats.cleanings += 1;
            self.leave(id, target);
            self.change_flight(id, |flight| flight.leaving = false);
            self.offer(id);
        }
    }

    fn advance_op(&mut self) -> OpProgress {
        if let Some(failure) = self.op.failure.take() {
            self.abandon();
            return OpProgress::Failed(Box::new(failure));
        }
        if let Some(failed) = self.failed() {
            return failed;
        }
        let limit = self.limit().0;
        loop {
            let lacks = self.look_at_uses();
            match self.extra_eviction() {
                ExtraEvicted::Enough => {}
                ExtraEvicted::Waiting => return OpProgress::Waiting,
                ExtraEvicted::InVain(failure) => {
                    self.abandon();
                    return OpProgress::Failed(Box::new(failure));
                }
            }
            let outputs = self.op.outputs.max(self.op.expected);
            let wanted = self.sums.committed.saturating_add(outputs);
            let is_held = lacks.transfers || self.awaits_eviction();
            if !is_held && lacks.bytes == 0 && wanted <= limit {
                return self.grant(outputs);
            }
            if let Some(refusal) = self.refusal(outputs, AsyncUses::End) {
                if outputs > self.op.outputs {
                    // A schedule may be wrong; it never refuses an op that would fit.
                    self.op.expected = 0;
                    continue;
                }
                return self.refuse(refusal);
            }
            let left = self.fetch_uses();
            let committed = self.sums.committed;
            let wanted = committed.saturating_add(left).saturating_add(outputs);
            let shortage = wanted.saturating_sub(limit);
            self.make_room(shortage);
            if self.sums.committed < committed {
                continue;
            }
            // What was squeezed out must not come back before the op has what it waits for.
            if shortage == 0 && self.op.extra_eviction.is_none() {
                self.op.reserve = outputs;
                self.pump();
            }
            return OpProgress::Waiting;
        }
    }

    /// Returns whether the schedule says that the op waits for an eviction, and that is not over.
    fn awaits_eviction(&self) -> bool {
        let mut awaited = self.follow.iter().flat_map(Follow::awaited);
        let is_leaving = |id| {
            let place = self.get(id).map(|storage| storage.place);
            matches!(place, Some(BytesPlace::Moving(flight))
                if flight.leaving && flight.kind != TransferKind::Fetch)
        };
        awaited.any(is_leaving)
    }

    /// Has storages leave where memory could not be had, more each time, until none is left that
    /// may: so this ends.
    fn extra_eviction(&mut self) -> ExtraEvicted {
        let Some(extra_eviction) = &mut self.op.extra_eviction else { return ExtraEvicted::Enough };
        if !extra_eviction.begun {
            extra_eviction.begun = true;
            let (bytes, committed) = (extra_eviction.bytes, self.sums.committed);
            self.make_room(bytes);
            let freed = self.sums.committed < committed;
            if self.sums.departing == 0 && !freed {
                if self.sums.async_used > 0 {
                    self.op.extra_eviction.iter_mut().for_each(|it| it.begun = false);
                    return ExtraEvicted::Waiting;
                }
                let extra_eviction = self.op.extra_eviction.take();
                return extra_eviction
                    .map_or(ExtraEvicted::Enough, |it| ExtraEvicted::InVain(it.failure));
            }
        }
        if self.sums.departing > 0 { ExtraEvicted::Waiting } else { ExtraEvicted::Enough }
    }

    /// Finds what the op lacks, and turns transfers on what it uses to its side: a storage that is
    /// on its way out stays, at once if the op only reads it; a fetch hurries.
    fn look_at_uses(&mut self) -> Lacks {
        let mut lacks = Lacks { transfers: false, bytes: 0 };
        for index in 0..self.op.uses.len() {
            let OpUse { storage: id, modifies } = self.op.uses[index];
            let Some(storage) = self.used(id) else { continue };
            let flight = match storage.place {
                BytesPlace::Resident => continue,
                BytesPlace::Out => {
                    lacks.bytes = lacks.bytes.saturating_add(storage.size);
                    continue;
                }
                BytesPlace::Moving(flight) => flight,
            };
            if flight.leaving {
                self.change_flight(id, |flight| flight.leaving = false);
            }
            if flight.kind == TransferKind::Fetch {
                lacks.transfers = true;
                self.expedite(id);
            } else if modifies {
                self.cancel(id);
                let stopped =
                    self.get(id).is_some_and(|one| matches!(one.place, BytesPlace::Resident));
                lacks.transfers |= !stopped;
            } else if flight.leaving {
                self.stats.kept_by_reader += 1;
            }
        }
        lacks
    }

    fn expedite(&mut self, id: StorageId) {
        let Some(BytesPlace::Moving(flight)) = self.get(id).map(|storage| storage.place) else {
            return;
        };
        if flight.urgent {
            return;
        }
        self.change_flight(id, |flight| flight.urgent = true);
        self.stats.fetches_late += 1;
        if !flight.cancelled {
            self.actions.push(ResidencyAction::Expedite { transfer: flight.transfer });
        }
    }

    /// Begins to fetch what the op uses as far as there is room; returns how many bytes are left.
    fn fetch_uses(&mut self) -> u64 {
        let mut left: u64 = 0;
        for index in 0..self.op.uses.len() {
            let id = self.op.uses[index].storage;
            let Some(storage) = self.used(id) else { continue };
            if !matches!(storage.place, BytesPlace::Out) {
                continue;
            }
            let size = storage.size;
            if self.sums.committed.saturating_add(size) <= self.limit().0 {
                self.begin_fetch(id, FetchUrgency::Urgent);
            } else {
                left = left.saturating_add(size);
            }
        }
        left
    }

    /// The op may run: copies of what it modifies are out of date from now on.
    fn grant(&mut self, outputs: u64) -> OpProgress {
        self.pending = Pending::Nothing;
        self.op.extra_eviction = None;
        self.grants += 1;
        if let Some(follow) = &mut self.follow {
            follow.drop_awaited();
        }
        let now = self.follow.as_ref().map_or(0, Follow::now);
        for index in 0..self.op.uses.len() {
            let OpUse { storage: id, modifies } = self.op.uses[index];
            if self.used(id).is_none() {
                continue;
            }
            if let Some(storage) = &mut self.storages[id.0 as usize] {
                storage.last_use = self.grants;
                storage.last_op = now;
            }
            if modifies {
                self.forget(id);
            }
        }
        self.op.reserve = outputs;
        self.pump();
        self.keep_headroom();
        OpProgress::Ready
    }

    fn advance_settle(&mut self) -> OpProgress {
        if let Some(failed) = self.failed() {
            return failed;
        }
        let limit = self.limit().0;
        if self.sums.committed > limit
            && let Some(refusal) = self.refusal(0, AsyncUses::End)
        {
            self.pending = Pending::Nothing;
            self.stats.refusals += 1;
            return OpProgress::Refused(refusal);
        }
        self.make_room(self.sums.committed.saturating_sub(limit));
        if self.sums.committed > limit {
            return OpProgress::Waiting;
        }
        self.pending = Pending::Nothing;
        self.pump();
        self.keep_headroom();
        OpProgress::Ready
    }

    fn advance_evict(&mut self, id: StorageId) -> OpProgress {
        if let Some(failed) = self.failed() {
            return failed;
        }
        if self.alive(id).is_some_and(|storage| matches!(storage.place, BytesPlace::Moving(_))) {
            return OpProgress::Waiting;
        }
        self.pending = Pending::Nothing;
        OpProgress::Ready
    }

    /// Reports a failed write, which ends whatever waits.
    fn failed(&mut self) -> Option<OpProgress> {
        let failure = self.failure.take()?;
        if self.pending == Pending::Op {
            self.abandon();
        }
        self.pending = Pending::Nothing;
        Some(OpProgress::Failed(Box::new(failure)))
    }
}
