//! Looking ahead along the schedule: what the next ops use comes back early, and gets its room
//! early.
//!
//! A plan's prefetches begin where the planner, with its idea of the devices, would begin them.
//! What it did not expect (a victim chosen on demand, a transfer that took longer) would be found
//! missing only by the op that needs it. The schedule knows better: it says of every op what it
//! uses.

use super::follow::Follow;
use super::machine::Residency;
use super::storage::BytesPlace;
use super::types::{FetchUrgency, StorageId};
use crate::units::OpIndex;

/// Part of the memory for storages, 1 / this, that storages fetched ahead may take.
const AHEAD_PARTS: u64 = 8;

/// Bytes that the ops ahead lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MissingBytes {
    /// Bytes that are to come back and have no room yet.
    pub(super) missing: u64,
    /// The largest outputs of one of those ops.
    pub(super) outputs: u64,
    /// The last of those ops: what is used later may make room for them.
    pub(super) until: u64,
}

impl Residency {
    /// Brings back what the ops ahead use, the nearest first, as far as there is room.
    pub(super) fn look_ahead(&mut self) -> MissingBytes {
        let Some((from, until)) = self.window() else { return MissingBytes::default() };
        let mut missing: u64 = 0;
        for time in from..=until {
            for (id, size) in self.absent_at(time) {
                let ahead = self.sums.fetching.saturating_add(missing);
                if ahead > 0 && ahead.saturating_add(size) > self.limit().0 / AHEAD_PARTS {
                    return self.shortfall(missing, time);
                }
                let promised = self.op.reserve.max(self.outputs_until(time));
                let taken = self.sums.committed.saturating_add(promised).saturating_add(size);
                if missing == 0 && taken <= self.limit().0 {
                    self.begin_fetch(id, FetchUrgency::Ahead);
                } else {
                    missing = missing.saturating_add(size);
                }
            }
            if missing == 0
                && let Some(follow) = &mut self.follow
            {
                follow.looked_until(time);
            }
        }
        self.shortfall(missing, until)
    }

    /// The times of the ops to look at: those that are near, and not known to have all that they
    /// use.
    fn window(&self) -> Option<(u64, u64)> {
        let follow = self.follow.as_ref().filter(|follow| follow.in_sync())?;
        let ops = u64::from(self.config.lookahead.min(follow.table.ops()));
        (ops > 0).then(|| (follow.look_from(), follow.now() + ops))
    }

    /// Returns the storages that the op at `time` uses and that have no memory, with their sizes.
    fn absent_at(&self, time: u64) -> Vec<(StorageId, u64)> {
        let Some(follow) = &self.follow else { return Vec::new() };
        let op = OpIndex((time % u64::from(follow.table.ops())) as u32);
        let absent = follow.table.used_by(op).iter().filter_map(|&plan| {
            let id = follow.bound(plan)?;
            let storage =
                self.alive(id).filter(|storage| matches!(storage.place, BytesPlace::Out))?;
            let (plan, birth) = storage.plan?;
            // The use may be another instance's: one that died in the step before, or is not born
            // yet.
            let next = follow.table.next_use(plan, birth, follow.now())?;
            (next <= time).then_some((id, storage.size))
        });
        absent.collect()
    }

    fn shortfall(&self, missing: u64, until: u64) -> MissingBytes {
        MissingBytes { missing, outputs: self.outputs_until(until), until }
    }

    fn outputs_until(&self, time: u64) -> u64 {
        self.follow.as_ref().map_or(0, |follow| follow.needs_until(time))
    }
}

impl Follow {
    /// The first op whose uses were not all found in memory or on their way.
    fn look_from(&self) -> u64 {
        self.looked.max(self.now()) + 1
    }

    fn looked_until(&mut self, time: u64) {
        self.looked = time;
    }

    /// Resets the lookahead to `time`: something that is used at `time` has left after all.
    pub(super) fn look_again(&mut self, time: u64) {
        self.looked = self.looked.min(time.saturating_sub(1));
    }
}
