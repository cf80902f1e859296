//! Ledger of one link, in one direction: the time that is already promised over the iteration.
//!
//! The iteration is cut into equal slots of link time. A transfer takes free time from the slots it
//! passes; what is taken is gone for all others. The ledger is a ring: what is promised at a time
//! is promised at that time of every iteration. Within a slot only the amount is known, so a slot
//! in use serves an eviction from its end and a prefetch from its beginning; slots are short
//! against transfers, and the sums over slots are exact.
//!
//! A Fenwick tree over the free time tells "where is the n-th free nanosecond from here" in
//! O(log slots), without walking full slots; each slot is filled at most once, so making promises
//! is O(log slots) amortised too.

use super::Fenwick;
use crate::units::{Bandwidth, Bytes, Nanos};

/// Finer slots bring nothing: at this many, a slot of a one second iteration is 4 microseconds.
const SLOTS_MAX: u64 = 1 << 18;

/// The promised time of one link in one direction.
#[derive(Clone, Debug)]
pub struct Ledger {
    rate: Bandwidth,
    latency: Nanos,
    period: u64,
    width: u64,
    /// Free link time per slot.
    free: Fenwick,
}

impl Ledger {
    /// An empty ledger over one iteration of length `period`.
    pub fn new(period: Nanos, rate: Bandwidth, latency: Nanos) -> Self {
        let period = period.0.max(1);
        let width = period.div_ceil(SLOTS_MAX);
        let slots = period.div_ceil(width);
        let mut free = vec![width; slots as usize];
        free[slots as usize - 1] = period - width * (slots - 1);
        Self { rate, latency, period, width, free: Fenwick::new(free) }
    }

    /// The time that `bytes` take on the idle link, latency included.
    pub fn unloaded(&self, bytes: Bytes) -> Nanos {
        Nanos(self.rate.time_for(bytes).0.saturating_add(self.latency.0))
    }

    /// Returns the link time of the iteration that is promised.
    pub fn promised(&self) -> Nanos {
        Nanos(self.period - self.free.total())
    }

    /// Returns the earliest completion of a transfer of `bytes` that may begin at `from`, if that
    /// is no later than `to`. Times are unrolled; windows longer than an iteration are cut to one.
    pub fn earliest_completion(&self, from: Nanos, to: Nanos, bytes: Bytes) -> Option<Nanos> {
        let to = to.0.min(from.0 + self.period);
        let need = self.rate.time_for(bytes).0.max(1);
        let slot = self.slot_at(from.0);
        let first = self.free_after(slot, from.0);
        let done = if need <= first {
            from.0.max(self.begin(slot) + self.used(slot)) + need
        } else {
            let (last, before) = self.search(self.before(slot + 1) + (need - first) - 1)?;
            self.begin(last) + self.used(last) + before + 1
        };
        let complete = done.saturating_add(self.latency.0);
        (complete <= to).then_some(Nanos(complete))
    }

    /// Returns the latest start of a transfer of `bytes` that must be complete by `to`, if that is
    /// no earlier than `from`.
    pub fn latest_start(&self, from: Nanos, to: Nanos, bytes: Bytes) -> Option<Nanos> {
        let from = from.0.max(to.0.saturating_sub(self.period));
        let end = to.0.checked_sub(self.latency.0).filter(|end| *end > from)?;
        let need = self.rate.time_for(bytes).0.max(1);
        let slot = self.slot_at(end - 1);
        let first = self.free_until(slot, end);
        let start = if need <= first {
            end.min(self.begin(slot + 1) - self.used(slot)) - need
        } else {
            let target = self.before(slot).checked_sub(need - first)?;
            let (earliest, before) = self.search(target)?;
            self.begin(earliest) + before
        };
        (start >= from).then_some(Nanos(start))
    }

    /// Promises the time of the transfer that [`Ledger::earliest_completion`] answered for.
    pub fn promise_from(&mut self, from: Nanos, bytes: Bytes) {
        let mut need = self.rate.time_for(bytes).0.max(1);
        let slot = self.slot_at(from.0);
        let first = need.min(self.free_after(slot, from.0));
        self.take(slot, first);
        need -= first;
        let mut last = slot;
        while need > 0 {
            let Some(next) = self.free_slot_after(last) else { break };
            let part = need.min(self.free(next));
            self.take(next, part);
            need -= part;
            last = next;
        }
    }

    /// Promises the time of the transfer that [`Ledger::latest_start`] answered for.
    pub fn promise_until(&mut self, to: Nanos, bytes: Bytes) {
        let end = to.0.saturating_sub(self.latency.0);
        let mut need = self.rate.time_for(bytes).0.max(1);
        let slot = self.slot_at(end.saturating_sub(1));
        let first = need.min(self.free_until(slot, end));
        self.take(slot, first);
        need -= first;
        let mut earliest = slot;
        while need > 0 {
            let Some(next) = self.free_slot_before(earliest) else { break };
            let part = need.min(self.free(next));
            self.take(next, part);
            need -= part;
            earliest = next;
        }
    }

    /// The unrolled slot that holds the nanosecond beginning at `time`.
    fn slot_at(&self, time: u64) -> u64 {
        (time / self.period) * self.slots() + (time % self.period) / self.width
    }

    /// Returns the time at which an unrolled slot begins.
    fn begin(&self, slot: u64) -> u64 {
        (slot / self.slots()) * self.period + (slot % self.slots()) * self.width
    }

    fn slots(&self) -> u64 {
        self.free.len() as u64
    }

    fn free(&self, slot: u64) -> u64 {
        self.free.get((slot % self.slots()) as usize)
    }

    fn used(&self, slot: u64) -> u64 {
        self.begin(slot + 1) - self.begin(slot) - self.free(slot)
    }

    /// Free time of a slot after the moment `time` in it.
    fn free_after(&self, slot: u64, time: u64) -> u64 {
        self.free(slot).min(self.begin(slot + 1) - time)
    }

    /// Free time of a slot before the moment `time` in it.
    fn free_until(&self, slot: u64, time: u64) -> u64 {
        self.free(slot).min(time - self.begin(slot))
    }

    /// Free time before an unrolled slot.
    fn before(&self, slot: u64) -> u64 {
        (slot / self.slots()) * self.free.total() + self.free.before((slot % self.slots()) as usize)
    }

    /// The next unrolled slot with free time: mostly the very next one.
    fn free_slot_after(&self, slot: u64) -> Option<u64> {
        if self.free(slot + 1) > 0 {
            return Some(slot + 1);
        }
        self.search(self.before(slot + 1)).map(|(next, _)| next)
    }

    fn free_slot_before(&self, slot: u64) -> Option<u64> {
        let before = slot.checked_sub(1)?;
        if self.free(before) > 0 {
            return Some(before);
        }
        self.search(self.before(slot).checked_sub(1)?).map(|(next, _)| next)
    }

    /// The unrolled slot that holds the `sum`-th free nanosecond, and how many of its own come
    /// before that; `None` when nothing is free.
    fn search(&self, sum: u64) -> Option<(u64, u64)> {
        let total = self.free.total();
        let round = sum.checked_div(total)?;
        let (slot, before) = self.free.search(sum % total);
        Some((round * self.slots() + slot as u64, before))
    }

    fn take(&mut self, slot: u64, amount: u64) {
        let index = (slot % self.slots()) as usize;
        self.free.subtract(index, amount);
    }
}
