//! Transfers: how they begin, what becomes of a storage when they end.

use super::follow::Due;
use super::machine::Residency;
use super::op::{ExtraEviction, Pending};
use super::storage::{BytesPlace, TransferInFlight, TransferKind};
use super::types::{
    CopyInLog, CopyKind, FailureInfo, FetchUrgency, MigrationOutcome, ResidencyAction, StorageId,
    TransferFailure, TransferId,
};
use crate::migration::{MigrationDirection, Target};
use crate::units::Bytes;

/// Knowledge of the copy when an eviction's transfer has ended.
enum Verdict {
    /// The copy is there and equal to memory.
    Good,
    /// The copy is there and differs from memory.
    Bad,
    /// The comparison found nothing out.
    Open,
    /// The comparison failed, and found nothing out.
    Broken(FailureInfo),
}

impl Residency {
    /// A transfer ended: nothing touches its memory any more. `false` if it is not in flight (a
    /// completion told twice): then nothing changed.
    ///
    /// An outcome that the transfer cannot have counts as a failure: a fetch that `Matched`, or
    /// `Cancelled` where nobody asked for it (it would be begun again without end).
    pub fn completed(&mut self, transfer: TransferId, outcome: MigrationOutcome) -> bool {
        let Some(id) = self.flights.remove(&transfer) else { return false };
        let Some(BytesPlace::Moving(flight)) = self.get(id).map(|storage| storage.place) else {
            return false;
        };
        if flight.kind == TransferKind::Fetch {
            self.fetched(id, flight, outcome);
        } else {
            self.copied(id, flight, outcome);
        }
        if self.pending == Pending::Nothing {
            self.pump();
        }
        true
    }

    /// The caller begins to write the bytes that a storage has now to where its copies lie in the
    /// log. `false` where it cannot have one now: [`Residency::copy_in_log`] is not
    /// [`CopyInLog::NotYet`].
    pub fn begin_copy(&mut self, id: StorageId) -> bool {
        let begins = self.copy_in_log(id) == CopyInLog::NotYet;
        self.change(id, |storage| storage.copying = begins);
        begins
    }

    /// Adopts bytes that the caller has written since [`Residency::begin_copy`] as the storage's
    /// copy, as an eviction's would be. `false` where that cannot be any more: the bytes have
    /// changed, or the storage is leaving. Then what was written is the caller's to delete.
    pub fn adopt_copy(&mut self, id: StorageId) -> bool {
        let copying = self.get(id).is_some_and(|storage| storage.copying);
        let adopts = copying && self.copy_in_log(id) == CopyInLog::NotYet;
        self.change(id, |storage| {
            storage.copying = false;
            if adopts {
                (storage.copy, storage.written) = (true, true);
                storage.target = Target::Ssd;
            }
        });
        self.offer(id);
        adopts
    }

    /// The copy that a transfer, which ended as [`MigrationOutcome::Enqueued`], has made is of no
    /// use. Where the bytes are nowhere else, whoever comes next is told; each fetch fails.
    pub fn copy_lost(&mut self, id: StorageId, transfer: TransferId, info: FailureInfo) {
        match self.get(id).map(|storage| storage.place) {
            Some(BytesPlace::Resident) => self.forget(id),
            Some(_) => self.fail(id, transfer, MigrationDirection::Out, info),
            None => {}
        }
    }

    /// Asks a storage in memory to leave. An eviction that a reader had kept goes on to leave; a
    /// fetch is given up.
    pub(super) fn leave(&mut self, id: StorageId, target: Target) {
        match self.get(id).map(|storage| storage.place) {
            Some(BytesPlace::Resident) => self.begin_eviction(id, target),
            Some(BytesPlace::Moving(flight)) => {
                self.change_flight(id, |flight| flight.leaving = true);
                if flight.kind == TransferKind::Fetch {
                    self.stats.fetches_yielded += 1;
                    self.cancel(id);
                }
            }
            Some(BytesPlace::Out) | None => {}
        }
    }

    fn begin_eviction(&mut self, id: StorageId, target: Target) {
        let Some(storage) = self.get(id) else { return };
        let (kind, copy, target) = if storage.copy {
            (TransferKind::Verify, CopyKind::Verify, storage.target)
        } else {
            (TransferKind::Write, CopyKind::Write, self.destination(storage.size, target))
        };
        let transfer = self.take_off(id, kind, false);
        self.change(id, |storage| {
            storage.target = target;
            storage.hosted = if target == Target::Host { storage.size } else { 0 };
        });
        self.stats.evictions += 1;
        self.actions.push(ResidencyAction::Evict { storage: id, transfer, copy, target });
    }

    /// Makes sure that what was written is what the memory holds still.
    fn check_again(&mut self, id: StorageId, target: Target) {
        let transfer = self.take_off(id, TransferKind::Recheck, false);
        let copy = CopyKind::Recheck;
        self.actions.push(ResidencyAction::Evict { storage: id, transfer, copy, target });
    }

    /// Begins to bring a storage back. The caller has made sure of the room.
    pub(super) fn begin_fetch(&mut self, id: StorageId, urgency: FetchUrgency) {
        let Some(target) = self.get(id).map(|storage| storage.target) else { return };
        let urgent = urgency == FetchUrgency::Urgent;
        let transfer = self.take_off(id, TransferKind::Fetch, urgent);
        let counter = match urgency {
            FetchUrgency::Urgent => &mut self.stats.fetches_urgent,
            FetchUrgency::Ahead => &mut self.stats.fetches_ahead,
        };
        *counter += 1;
        self.actions.push(ResidencyAction::Fetch { storage: id, transfer, urgency, target });
        self.offer(id);
    }

    fn take_off(&mut self, id: StorageId, kind: TransferKind, urgent: bool) -> TransferId {
        let transfer = TransferId(self.transfers_begun);
        self.transfers_begun += 1;
        self.flights.insert(transfer, id);
        let leaving = kind != TransferKind::Fetch;
        let (cancelled, stale, batch) = (false, false, self.batches);
        let flight = TransferInFlight { transfer, kind, urgent, cancelled, leaving, stale, batch };
        self.change(id, |storage| {
            storage.place = BytesPlace::Moving(flight);
            storage.last_transfer = transfer;
        });
        transfer
    }

    /// Asks a storage's transfer to stop. One that nobody took yet is withdrawn on the spot.
    pub(super) fn cancel(&mut self, id: StorageId) {
        let Some(BytesPlace::Moving(flight)) = self.get(id).map(|storage| storage.place) else {
            return;
        };
        if flight.cancelled {
            return;
        }
        let begins = |action: &ResidencyAction| match *action {
            ResidencyAction::Evict { transfer, .. } | ResidencyAction::Fetch { transfer, .. } => {
                transfer == flight.transfer
            }
            _ => false,
        };
        let untaken = flight.batch == self.batches;
        let Some(at) = untaken.then(|| self.actions.iter().rposition(begins)).flatten() else {
            self.change_flight(id, |flight| flight.cancelled = true);
            self.stats.cancels += 1;
            self.actions.push(ResidencyAction::Cancel { transfer: flight.transfer });
            return;
        };
        self.actions.remove(at);
        self.actions
            .retain(|action| *action != ResidencyAction::Expedite { transfer: flight.transfer });
        self.flights.remove(&flight.transfer);
        if flight.kind == TransferKind::Fetch {
            self.change(id, |storage| storage.place = BytesPlace::Out);
            self.stays_out(id, flight);
        } else {
            let withdrawn = TransferInFlight { leaving: false, cancelled: true, ..flight };
            self.copied(id, withdrawn, MigrationOutcome::Cancelled);
        }
    }

    /// The end of an eviction's transfer.
    fn copied(&mut self, id: StorageId, flight: TransferInFlight, outcome: MigrationOutcome) {
        let Some((bytes, target)) = self.get(id).map(|one| (one.size, one.target)) else { return };
        let is_checked = outcome == MigrationOutcome::Enqueued;
        let verdict = match (flight.kind, outcome) {
            (_, MigrationOutcome::Cancelled) if flight.cancelled => Verdict::Open,
            (_, MigrationOutcome::Failed(info) | MigrationOutcome::NoMemory(info)) => {
                Verdict::Broken(info)
            }
            (TransferKind::Write, MigrationOutcome::Done | MigrationOutcome::Enqueued) => {
                self.stats.went_out(target, bytes);
                self.change(id, |storage| {
                    storage.copy = true;
                    storage.written = true;
                });
                Verdict::Good
            }
            (TransferKind::Verify, MigrationOutcome::Matched) => {
                self.stats.verify_hits += 1;
                self.stats.bytes_verified.0 += bytes;
                Verdict::Good
            }
            (TransferKind::Recheck, MigrationOutcome::Matched) => Verdict::Good,
            (TransferKind::Verify | TransferKind::Recheck, MigrationOutcome::Differs) => {
                self.stats.verify_misses += 1;
                Verdict::Bad
            }
            (_, outcome) => Verdict::Broken(misfit(flight.kind, &outcome)),
        };
        self.change(id, |storage| {
            storage.place = BytesPlace::Resident;
            if !storage.copy {
                storage.hosted = 0;
            }
        });
        if flight.stale || matches!(verdict, Verdict::Bad) {
            self.forget(id);
        }
        if self.alive(id).is_none() {
            self.record_death(id);
            return;
        }
        match verdict {
            Verdict::Broken(info) => {
                self.change(id, |storage| storage.unwritable = true);
                self.unwritable.push(id);
                self.fail(id, flight.transfer, MigrationDirection::Out, info);
            }
            Verdict::Good if flight.leaving && !flight.stale => {
                if self.config.recheck && flight.kind == TransferKind::Write && !is_checked {
                    self.check_again(id, target);
                } else {
                    self.release(id);
                }
            }
            _ if flight.leaving => self.begin_eviction(id, target),
            _ => self.offer(id),
        }
    }

    /// The end of a fetch.
    fn fetched(&mut self, id: StorageId, flight: TransferInFlight, outcome: MigrationOutcome) {
        let arrived = outcome == MigrationOutcome::Done;
        if arrived && let Some(storage) = self.get(id) {
            self.stats.came_back(storage.target, storage.size);
        }
        if self.alive(id).is_none() {
            self.record_death(id);
        } else if arrived && !flight.leaving {
            self.change(id, |storage| storage.place = BytesPlace::Resident);
            self.offer(id);
        } else {
            self.release(id);
            let failure = match outcome {
                MigrationOutcome::Done => None,
                MigrationOutcome::Cancelled if flight.cancelled => None,
                MigrationOutcome::NoMemory(info) => {
                    self.ask_again(id, flight.transfer, info);
                    return;
                }
                MigrationOutcome::Failed(info) => Some(info),
                outcome => Some(misfit(TransferKind::Fetch, &outcome)),
            };
            match failure {
                None => self.stays_out(id, flight),
                Some(info) => self.fail(id, flight.transfer, MigrationDirection::In, info),
            }
        }
    }

    /// A fetch was given up. If it was ahead of need, it is retried when there is room.
    fn stays_out(&mut self, id: StorageId, flight: TransferInFlight) {
        let Some(storage) = self.alive(id) else {
            self.record_death(id);
            return;
        };
        let Some((plan, birth)) = storage.plan.filter(|_| !flight.urgent) else { return };
        if let Some(follow) = self.follow.as_mut().filter(|follow| follow.in_sync())
            && let Some(deadline) = follow.table.next_use(plan, birth, follow.now())
        {
            follow.put_off(deadline, Due { storage: plan, cautious: true });
        }
    }

    /// Asks again: memory was missing for a fetch. The op that waits for it asks again when others
    /// have left; a prefetch is left until something touches the storage.
    fn ask_again(&mut self, storage: StorageId, transfer: TransferId, info: FailureInfo) {
        let Some(size) = self.used(storage).map(|one| one.size) else { return };
        if self.pending != Pending::Op {
            return;
        }
        let before = self.op.extra_eviction.take().map_or(0, |extra_eviction| extra_eviction.bytes);
        let (direction, bytes) = (MigrationDirection::In, Bytes(size));
        let failure = TransferFailure { storage, transfer, direction, bytes, info, others: 0 };
        let bytes = size.max(before.saturating_mul(2));
        self.op.extra_eviction = Some(ExtraEviction { bytes, begun: false, failure });
    }

    /// Gives up memory of which there is a valid copy.
    fn release(&mut self, id: StorageId) {
        let batch = self.batches;
        let plan = self.get(id).and_then(|storage| storage.plan);
        if let (Some(follow), Some((plan, birth))) = (&mut self.follow, plan)
            && let Some(next) = follow.table.next_use(plan, birth, follow.now())
        {
            follow.look_again(next);
        }
        self.change(id, |storage| {
            storage.place = BytesPlace::Out;
            storage.released_in = batch;
        });
        self.stats.releases += 1;
        self.actions.push(ResidencyAction::Release { storage: id });
    }

    /// Keeps a failure for whom it concerns: a fetch concerns the op that waits for it, and nobody
    /// else (the next touch retries); a write concerns whoever comes next.
    fn fail(
        &mut self,
        storage: StorageId,
        transfer: TransferId,
        direction: MigrationDirection,
        info: FailureInfo,
    ) {
        self.stats.failures += 1;
        let used = self.get(storage).is_some_and(|one| one.used_by == self.op.serial);
        let bytes = Bytes(self.get(storage).map_or(0, |one| one.size));
        let report = match direction {
            MigrationDirection::Out => &mut self.failure,
            MigrationDirection::In if used && self.pending == Pending::Op => &mut self.op.failure,
            MigrationDirection::In => return,
        };
        match report {
            Some(first) => first.others += 1,
            None => {
                *report =
                    Some(TransferFailure { storage, transfer, direction, bytes, info, others: 0 });
            }
        }
    }
}

/// Describes an outcome that its transfer cannot have.
fn misfit(kind: TransferKind, outcome: &MigrationOutcome) -> FailureInfo {
    let what = match kind {
        TransferKind::Write => "write",
        TransferKind::Verify | TransferKind::Recheck => "check",
        TransferKind::Fetch => "fetch",
    };
    FailureInfo { message: format!("the {what} ended as {outcome:?}, which was not asked for") }
}
