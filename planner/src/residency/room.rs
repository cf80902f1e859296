//! Making room: who leaves, what is kept free, which prefetch may begin.

use super::machine::Residency;
use super::refusal::{BudgetRefusal, CONTRIBUTORS_MAX, Contributor};
use super::storage::{BytesPlace, ResidentStorage, TransferKind};
use super::types::{FetchUrgency, StorageId};
use super::victims::Priority;
use crate::units::Bytes;

/// Size below which a storage leaves only when nothing larger may.
const SMALL_BYTES: u64 = 32 << 10;

/// Treatment of asynchronous uses when an op lacks memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AsyncUses {
    /// The transfers end by themselves: what they use will leave.
    End,
    /// The transfers may wait for this op: what they use stays.
    Stay,
}

impl Residency {
    /// Storages leave until `shortage` bytes of memory are on their way out, or none is left that
    /// may leave.
    pub(super) fn make_room(&mut self, shortage: u64) {
        self.make_room_with(shortage, 0);
    }

    /// Makes room by evicting storages whose next use comes after `time` only.
    fn make_room_with(&mut self, shortage: u64, time: u64) {
        let goal = self.sums.committed.saturating_sub(shortage);
        // What goes on the spot (a fetch that nobody took yet) leaves `committed` instead of
        // joining `departing`: what remains is the same.
        while self.sums.committed - self.sums.departing > goal {
            let Some(victim) = self.next_victim(time) else { return };
            let size = self.get(victim).map_or(0, |storage| storage.size);
            self.leave(victim, self.unplanned_target(size));
        }
    }

    /// Keeps memory free ahead of need, so that evictions run while ops compute.
    pub(super) fn keep_headroom(&mut self) {
        if self.op.follows_eviction {
            return;
        }
        let (headroom, until) = if self.in_sync() {
            let ahead = self.look_ahead();
            (ahead.missing.saturating_add(ahead.outputs), ahead.until)
        } else {
            (self.config.headroom.0, 0)
        };
        if headroom == 0 {
            return;
        }
        let wanted = self.sums.committed.saturating_add(self.op.reserve).saturating_add(headroom);
        let shortage = wanted.saturating_sub(self.limit().0);
        if shortage > 0 {
            self.make_room_with(shortage, until);
        }
    }

    /// Begins the prefetches that are due, earliest deadline first, as far as there is room that
    /// nobody else was promised.
    pub(super) fn pump(&mut self) {
        if self.op.follows_eviction || self.look_ahead().missing > 0 {
            return;
        }
        while let Some(follow) = self.follow.as_mut().filter(|follow| follow.has_due()) {
            let Some((_, due)) = follow.first_due() else { return };
            let bound = follow.bound(due.storage);
            let ahead = if due.cautious { follow.needs_ahead() } else { 0 };
            let place =
                bound.and_then(|id| Some((id, self.alive(id)?.place, self.alive(id)?.size)));
            match place {
                Some((id, BytesPlace::Out, size)) => {
                    let promised = self.op.reserve.max(ahead);
                    let taken = self.sums.committed.saturating_add(promised);
                    if taken.saturating_add(size) > self.limit().0 {
                        return;
                    }
                    self.begin_fetch(id, FetchUrgency::Ahead);
                }
                // Still on its way out: it need not go.
                Some((id, BytesPlace::Moving(flight), _)) if flight.kind != TransferKind::Fetch => {
                    self.change_flight(id, |flight| flight.leaving = false);
                    self.offer(id);
                }
                Some((_, BytesPlace::Moving(_) | BytesPlace::Resident, _)) | None => {}
            }
            if let Some(follow) = &mut self.follow {
                follow.drop_first_due();
            }
        }
    }

    /// Puts a storage that may leave where it belongs in the queue of victims.
    pub(super) fn offer(&mut self, id: StorageId) {
        let Some(storage) = self.get(id) else { return };
        if !storage.may_leave() || storage.used_by == self.op.serial {
            return;
        }
        let priority = self.priority(storage);
        if storage.queued >= priority {
            return;
        }
        self.queue(id, priority);
        if self.victims.is_overgrown(self.known()) {
            self.requeue();
        }
    }

    /// Queues all storages anew: their priorities mean something else now.
    pub(super) fn requeue(&mut self) {
        let mut entries = Vec::with_capacity(self.known());
        for index in 0..self.storages.len() {
            let Some(storage) = &self.storages[index] else { continue };
            let listed = storage.may_leave() && storage.used_by != self.op.serial;
            let priority = if listed { self.priority(storage) } else { 0 };
            if listed {
                entries.push((priority, index as u32));
            }
            if let Some(storage) = &mut self.storages[index] {
                storage.queued = priority;
            }
        }
        self.victims.rebuild(entries.into_iter());
    }

    /// Returns the priority of a storage as a victim. Without a schedule the least recently used is
    /// best, with one that whose next use is furthest; among equals one with a valid copy, which
    /// costs no write. What is small goes last: its trip costs as much as a large one's and brings
    /// no room.
    fn priority(&self, storage: &ResidentStorage) -> Priority {
        const NEVER: u64 = u64::MAX >> 2;
        let order = match self.follow.as_ref().filter(|follow| follow.in_sync()) {
            None => NEVER - storage.last_use,
            Some(follow) => match storage.plan {
                Some((plan, birth)) => {
                    follow.table.next_use(plan, birth, follow.now()).unwrap_or(NEVER)
                }
                // Not in the schedule: taken to be half an iteration away.
                None => storage.last_op + u64::from(follow.table.ops() / 2) + 1,
            },
        };
        let pays = u64::from(storage.size >= SMALL_BYTES);
        (pays << 63) | (order << 1) | u64::from(storage.copy)
    }

    fn queue(&mut self, id: StorageId, priority: Priority) {
        if let Some(storage) = &mut self.storages[id.0 as usize] {
            storage.queued = priority;
            self.victims.push(priority, id.0);
        }
    }

    /// The best victim whose next use comes after `time`.
    fn next_victim(&mut self, time: u64) -> Option<StorageId> {
        loop {
            let (priority, index) = self.victims.pop()?;
            let Some(storage) = &mut self.storages[index as usize] else { continue };
            if storage.queued != priority {
                continue;
            }
            storage.queued = 0;
            if !storage.may_leave() || storage.used_by == self.op.serial {
                continue;
            }
            let id = StorageId(index);
            let current = self.storages[index as usize].as_ref().map(|one| self.priority(one))?;
            if current < priority {
                self.queue(id, current);
            } else if order_of(current) > time {
                return Some(id);
            } else {
                self.queue(id, current);
                return None;
            }
        }
    }

    /// Returns the refusal where what the current op uses, `outputs`, and what cannot leave do not
    /// fit at once.
    pub(super) fn refusal(&self, outputs: u64, uses: AsyncUses) -> Option<Box<BudgetRefusal>> {
        let asynchronous = if uses == AsyncUses::Stay { self.async_used_by_others() } else { 0 };
        let uses: u64 = self.uses_that_could_leave().map(|(_, size)| size).sum();
        let stays = self.sums.fixed.saturating_add(asynchronous);
        let needed = stays.saturating_add(uses).saturating_add(outputs);
        if needed.saturating_sub(self.kept_by_transfers()) <= self.limit().0 {
            return None;
        }
        let mut largest: Vec<Contributor> = self
            .uses_that_could_leave()
            .map(|(storage, size)| Contributor { storage, size: Bytes(size), used: true })
            .collect();
        let mut unwritable = 0;
        for (index, storage) in self.storages.iter().enumerate() {
            let Some(storage) = storage else { continue };
            let by_op = storage.used_by == self.op.serial;
            let sums = storage.sums();
            let size =
                if asynchronous > 0 && !by_op { sums.fixed + sums.async_used } else { sums.fixed };
            if size == 0 {
                continue;
            }
            if storage.unwritable && storage.pins == 0 && storage.movable {
                unwritable += size;
            }
            let storage = StorageId(index as u32);
            largest.push(Contributor { storage, size: Bytes(size), used: by_op });
        }
        largest.sort_by_key(|one| (std::cmp::Reverse(one.size), one.storage));
        largest.truncate(CONTRIBUTORS_MAX);
        Some(Box::new(BudgetRefusal {
            budget: self.config.budget,
            smallest_budget: Bytes(
                needed.saturating_add(self.config.staging.0).saturating_add(self.for_others),
            ),
            staging: self.config.staging,
            uses: Bytes(uses),
            outputs: Bytes(outputs),
            unmovable: Bytes(self.sums.fixed - unwritable),
            unwritable: Bytes(unwritable),
            asynchronous: Bytes(asynchronous),
            others: Bytes(self.for_others),
            largest,
        }))
    }

    /// Bytes that cannot leave, of storages that transfers keep alive and the current op does not
    /// use: they may die when the transfer ends.
    fn kept_by_transfers(&self) -> u64 {
        let moving = self.flights.values().filter_map(|&id| self.get(id));
        let others = moving.filter(|storage| storage.used_by != self.op.serial);
        others.map(|storage| storage.sums().fixed).sum()
    }

    /// Bytes that asynchronous uses keep here, apart from what the current op uses too.
    fn async_used_by_others(&self) -> u64 {
        let both = self.op.uses.iter().filter_map(|one| self.used(one.storage));
        self.sums.async_used - both.map(|storage| storage.sums().async_used).sum::<u64>()
    }

    /// Iterates over the storages that the current op uses, apart from what is counted as fixed
    /// already.
    fn uses_that_could_leave(&self) -> impl Iterator<Item = (StorageId, u64)> + '_ {
        self.op.uses.iter().filter_map(|one| {
            let storage = self.used(one.storage)?;
            (storage.sums().fixed == 0).then_some((one.storage, storage.size))
        })
    }
}

/// Returns the order of next uses that a priority stands for.
fn order_of(priority: Priority) -> u64 {
    (priority & (u64::MAX >> 1)) >> 1
}
