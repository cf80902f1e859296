//! The machine's record: what it is told about storages, the budget and steps. Ops are in `op`,
//! transfers in `transfer`, making room in `room`, what can be asked in `query`.

use super::follow::Follow;
use super::host::HostCopies;
use super::op::{CurrentOp, Pending};
use super::schedule::Schedule;
use super::stats::Stats;
use super::storage::{BytesPlace, ResidentStorage, Sums, TransferInFlight};
use super::types::{
    Attributes, Config, Desync, ProtocolError, ResidencyAction, StorageId, StorageState,
    TransferFailure, TransferId,
};
use super::victims::Victims;
use crate::trace::PlanStorage;
use crate::units::{Bytes, OpIndex};
use std::collections::BTreeMap;
use std::sync::Arc;

/// Residency machine: which storages are where, and what to do next. See the [module](super).
#[derive(Debug)]
pub struct Residency {
    pub(super) config: Config,
    /// Storages by [`StorageId`].
    pub(super) storages: Vec<Option<ResidentStorage>>,
    known: usize,
    pub(super) sums: Sums,
    pub(super) peak: u64,
    pub(super) victims: Victims,
    pub(super) spares: HostCopies,
    pub(super) host_peak: u64,
    pub(super) flights: BTreeMap<TransferId, StorageId>,
    pub(super) transfers_begun: u64,
    pub(super) actions: Vec<ResidencyAction>,
    /// Number of times that actions were taken, from 1: an action is still here if it is of this
    /// batch.
    pub(super) batches: u64,
    pub(super) op: CurrentOp,
    pub(super) pending: Pending,
    /// The part of the budget that is others'.
    pub(super) for_others: u64,
    /// Storages that had memory when a pause began, in which only what cannot leave has some.
    /// `None`: there is no pause.
    pub(super) paused: Option<Vec<StorageId>>,
    /// Number of ops that were granted: the clock of least recent use.
    pub(super) grants: u64,
    pub(super) failure: Option<TransferFailure>,
    pub(super) unwritable: Vec<StorageId>,
    pub(super) follow: Option<Follow>,
    desync: Option<Desync>,
    pub(super) stats: Stats,
}

impl Residency {
    /// A machine that knows no storage yet.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            storages: Vec::new(),
            known: 0,
            sums: Sums::default(),
            peak: 0,
            victims: Victims::default(),
            spares: HostCopies::default(),
            host_peak: 0,
            flights: BTreeMap::new(),
            transfers_begun: 0,
            actions: Vec::new(),
            batches: 1,
            op: CurrentOp::default(),
            pending: Pending::Nothing,
            for_others: 0,
            paused: None,
            grants: 0,
            failure: None,
            unwritable: Vec::new(),
            follow: None,
            desync: None,
            stats: Stats::default(),
        }
    }

    /// Takes what is to be done since the last call, in the order to do it.
    pub fn take_actions(&mut self, into: &mut Vec<ResidencyAction>) {
        into.append(&mut self.actions);
        self.batches += 1;
    }

    /// Changes the budget. If it is smaller than what is taken, [`Self::settle`] is due.
    pub fn set_budget(&mut self, budget: Bytes) {
        self.config.budget = budget;
    }

    /// Changes the amount of memory to keep free ahead of need; see [`Config`].
    pub fn set_headroom(&mut self, headroom: Bytes) {
        self.config.headroom = headroom;
    }

    /// Changes the number of ops to look ahead; see [`Config`].
    pub fn set_lookahead(&mut self, ops: u32) {
        self.config.lookahead = ops;
    }

    // ---- storages ----

    /// A storage exists and has memory. `false` if it was known already: then nothing changed.
    pub fn born(&mut self, id: StorageId, size: Bytes, attributes: Attributes) -> bool {
        let index = id.0 as usize;
        if index >= self.storages.len() {
            self.storages.resize(index + 1, None);
        }
        if self.storages[index].is_some() {
            return false;
        }
        let mut storage = ResidentStorage::born(size.0, attributes.movable);
        storage.last_use = self.grants;
        if let Some(follow) = &mut self.follow {
            storage.last_op = follow.now();
            let made = attributes.birth.filter(|_| follow.in_sync());
            if let Some(plan) = made.and_then(|(op, slot)| follow.table.born_at(op, slot)) {
                follow.bind(plan, id);
                storage.plan = Some((plan, follow.step()));
            }
        }
        self.sums.exchange(Sums::default(), storage.sums());
        self.peak = self.peak.max(self.sums.committed);
        self.storages[index] = Some(storage);
        self.known += 1;
        self.op.reserve = self.op.reserve.saturating_sub(size.0);
        self.offer(id);
        true
    }

    /// A storage's last reference is gone. While a transfer is in flight on its memory, that memory
    /// must stay, and counts, until the transfer completes. Unknown storages are passed over.
    pub fn died(&mut self, id: StorageId) {
        let Some(storage) = self.alive(id) else { return };
        if matches!(storage.place, BytesPlace::Moving(_)) {
            self.change(id, |storage| storage.dead = true);
            self.cancel(id);
        } else {
            self.record_death(id);
        }
    }

    /// A storage's memory has another size, and other bytes as far as the log knows.
    pub fn resized(&mut self, id: StorageId, size: Bytes) -> Result<(), ProtocolError> {
        let before = self.in_memory(id)?.size;
        if before == size.0 {
            return Ok(());
        }
        self.op.reserve = self.op.reserve.saturating_sub(size.0.saturating_sub(before));
        self.change(id, |storage| storage.size = size.0);
        self.modified(id)
    }

    /// A storage's bytes changed outside an op.
    pub fn modified(&mut self, id: StorageId) -> Result<(), ProtocolError> {
        match self.in_memory(id)?.place {
            BytesPlace::Moving(_) => {
                self.change_flight(id, |flight| {
                    flight.stale = true;
                    flight.leaving = false;
                });
                self.cancel(id);
            }
            BytesPlace::Resident | BytesPlace::Out => self.forget(id),
        }
        self.offer(id);
        Ok(())
    }

    /// Pins a storage whose memory something outside sees: from now on, or from when it is back, it
    /// stays. Counted; unknown storages are passed over.
    pub fn pin(&mut self, id: StorageId) {
        if self.alive(id).is_none() {
            return;
        }
        self.change(id, |storage| {
            storage.pins = storage.pins.saturating_add(1);
            storage.keep();
        });
    }

    /// Takes one pin back.
    pub fn unpin(&mut self, id: StorageId) {
        self.change(id, |storage| storage.pins = storage.pins.saturating_sub(1));
        self.offer(id);
    }

    /// An op that goes on after its end (a collective, a kernel on another thread) uses the
    /// storage: it stays until [`Self::async_use_ends`]. Idempotent; unknown storages are
    /// passed over.
    pub fn async_use_begins(&mut self, id: StorageId) {
        if self.alive(id).is_none() {
            return;
        }
        self.change(id, |storage| {
            storage.async_use = true;
            storage.keep();
        });
    }

    /// All asynchronous uses of a storage are complete.
    pub fn async_use_ends(&mut self, id: StorageId) {
        self.change(id, |storage| storage.async_use = false);
        self.offer(id);
    }

    /// Lets storages whose write failed be chosen again. Every step begins with this.
    pub fn retry_failed(&mut self) {
        for id in std::mem::take(&mut self.unwritable) {
            self.change(id, |storage| storage.unwritable = false);
            self.offer(id);
        }
    }

    /// The failure that was not reported yet, if any; reporting it here is reporting it.
    pub fn take_failure(&mut self) -> Option<TransferFailure> {
        self.failure.take()
    }

    // ---- steps and schedules ----

    /// Follows this schedule from the next step on. Bindings are made anew.
    pub fn load_schedule(&mut self, schedule: Arc<Schedule>) {
        self.drop_bindings();
        self.follow = Some(Follow::new(schedule));
        self.requeue();
    }

    /// Follows another schedule of the same steps from the next one on: who is who stays. `false`
    /// if there is none to exchange, or its steps are others.
    pub fn exchange_schedule(&mut self, schedule: Arc<Schedule>) -> bool {
        let exchanged = self.follow.as_mut().is_some_and(|follow| follow.exchange(schedule));
        if exchanged {
            self.requeue();
        }
        exchanged
    }

    /// Follows no schedule any more.
    pub fn clear_schedule(&mut self, reason: &str) {
        if self.follow.take().is_some() {
            self.drop_bindings();
            self.desync = Some(Desync::Cleared { reason: reason.to_owned() });
            self.requeue();
        }
    }

    /// Binds a storage to one of the schedule. Storages that ops make are bound when they are born.
    /// `false` if there is no schedule, or it or the machine does not know the storage.
    pub fn bind(&mut self, plan: PlanStorage, id: StorageId) -> bool {
        let Some(follow) = &mut self.follow else { return false };
        let known = self.storages.get_mut(id.0 as usize).and_then(Option::as_mut);
        let Some(storage) = known.filter(|storage| !storage.dead) else { return false };
        if !follow.bind(plan, id) {
            return false;
        }
        if let Some((before, _)) = storage.plan.replace((plan, follow.step()))
            && before != plan
        {
            follow.unbind(before, id);
        }
        self.offer(id);
        true
    }

    /// A storage that was empty is filled, which is what the schedule has as made at this place.
    pub fn filled(&mut self, id: StorageId, (op, slot): (OpIndex, u16)) {
        let follow = self.follow.as_ref().filter(|follow| follow.in_sync());
        if let Some(plan) = follow.and_then(|follow| follow.table.born_at(op, slot)) {
            self.bind(plan, id);
        }
    }

    /// A step begins. With a schedule it is in sync until shown otherwise.
    pub fn step_begin(&mut self) {
        self.abandon();
        self.retry_failed();
        if let Some(follow) = &mut self.follow {
            let was_in_sync = follow.in_sync();
            follow.step_begin();
            if !was_in_sync {
                self.requeue();
            }
        }
    }

    /// A step ended.
    pub fn step_end(&mut self) {
        self.abandon();
        let reason = self.follow.as_mut().and_then(Follow::step_end);
        self.lose_sync(reason);
    }

    /// Compares an op of the step with the schedule's, before it begins. Where they differ the rest
    /// of the step is reactive, and [`Residency::desync`] tells why, once. Returns whether the
    /// schedule holds.
    pub fn expect(&mut self, op: OpIndex, fingerprint: u64) -> bool {
        let reason = self.follow.as_mut().and_then(|follow| follow.expect(op, fingerprint));
        self.lose_sync(reason);
        self.in_sync()
    }

    /// The caller saw by itself that this step is not the one that was planned: the rest is
    /// reactive.
    pub fn leave_schedule(&mut self) {
        if let Some(follow) = &mut self.follow {
            follow.leave();
            self.requeue();
        }
    }

    /// Returns whether a schedule is being followed.
    pub fn in_sync(&self) -> bool {
        self.follow.as_ref().is_some_and(Follow::in_sync)
    }

    /// Returns the reason why the schedule is not followed any more. Reported once.
    pub fn desync(&mut self) -> Option<Desync> {
        self.desync.take()
    }

    // ---- the record ----

    pub(super) fn get(&self, id: StorageId) -> Option<&ResidentStorage> {
        self.storages.get(id.0 as usize)?.as_ref()
    }

    pub(super) fn alive(&self, id: StorageId) -> Option<&ResidentStorage> {
        self.get(id).filter(|storage| !storage.dead)
    }

    fn in_memory(&self, id: StorageId) -> Result<&ResidentStorage, ProtocolError> {
        let storage = self.alive(id).ok_or(ProtocolError::Unknown(id))?;
        match storage.state() {
            StorageState::Evicted | StorageState::Fetching => Err(ProtocolError::NotResident(id)),
            StorageState::Resident { .. } | StorageState::Evicting => Ok(storage),
        }
    }

    /// The one way to change what the sums depend on.
    pub(super) fn change(&mut self, id: StorageId, with: impl FnOnce(&mut ResidentStorage)) {
        let Some(storage) = self.storages.get_mut(id.0 as usize).and_then(Option::as_mut) else {
            return;
        };
        let before = storage.sums();
        self.spares.drop_from(id, storage);
        with(storage);
        self.spares.add_to(id, storage);
        self.sums.exchange(before, storage.sums());
        self.peak = self.peak.max(self.sums.committed);
        self.host_peak = self.host_peak.max(self.sums.hosted);
    }

    pub(super) fn change_flight(
        &mut self,
        id: StorageId,
        with: impl FnOnce(&mut TransferInFlight),
    ) {
        self.change(id, |storage| {
            if let BytesPlace::Moving(flight) = &mut storage.place {
                with(flight);
            }
        });
    }

    /// The copy, if there is one, is not to be used any more.
    pub(super) fn forget(&mut self, id: StorageId) {
        self.change(id, |storage| storage.copying = false);
        let Some(target) = self.get(id).filter(|one| one.copy).map(|one| one.target) else {
            return;
        };
        self.change(id, |storage| {
            storage.copy = false;
            storage.hosted = 0;
        });
        self.actions.push(ResidencyAction::Forget { storage: id, target });
    }

    /// Records the death of a storage, whose memory no op touches any more: it is gone, and so is
    /// its copy.
    pub(super) fn record_death(&mut self, id: StorageId) {
        self.forget(id);
        let Some(storage) = self.storages.get_mut(id.0 as usize).and_then(Option::take) else {
            return;
        };
        self.known -= 1;
        self.sums.exchange(storage.sums(), Sums::default());
        if !storage.written {
            self.stats.bytes_never_written.0 += storage.size;
        }
        if let (Some(follow), Some((plan, _))) = (&mut self.follow, storage.plan) {
            follow.unbind(plan, id);
        }
        // Its memory went with it: nobody is there to free it a second time.
        if storage.released_in == self.batches {
            self.actions.retain(|action| *action != ResidencyAction::Release { storage: id });
        }
    }

    pub(super) fn lose_sync(&mut self, reason: Option<Desync>) {
        if reason.is_some() {
            self.desync = reason;
            self.requeue();
        }
    }

    fn drop_bindings(&mut self) {
        for storage in self.storages.iter_mut().flatten() {
            storage.plan = None;
        }
    }

    pub(super) fn known(&self) -> usize {
        self.known
    }
}
