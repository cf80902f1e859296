//! Host memory as a tier in front of the log, for the storages of a GPU: what goes there, and which
//! copies make way.
//!
//! A copy there counts from the eviction that makes it until it is forgotten. When its storage is
//! back in memory the copy stays, so that the storage can leave again without being copied; but it
//! is spare, and makes way for storages that would have to go to the log otherwise.

use super::machine::Residency;
use super::storage::ResidentStorage;
use super::types::StorageId;
use crate::migration::Target;
use std::collections::BTreeSet;

/// Copies in host memory whose storages are in memory, by the transfer that brought those back.
#[derive(Debug, Default)]
pub(super) struct HostCopies(BTreeSet<(u64, StorageId)>);

impl HostCopies {
    /// A storage is about to change.
    pub(super) fn drop_from(&mut self, id: StorageId, before: &ResidentStorage) {
        if before.is_spare() {
            self.0.remove(&(before.last_transfer.0, id));
        }
    }

    /// A storage has changed.
    pub(super) fn add_to(&mut self, id: StorageId, now: &ResidentStorage) {
        if now.is_spare() {
            self.0.insert((now.last_transfer.0, id));
        }
    }

    /// Returns the storage that leaves first: what came back last is in use now, and likely to be
    /// modified or to die before it would leave again.
    fn first_to_go(&self) -> Option<StorageId> {
        self.0.last().map(|(_, id)| *id)
    }
}

impl Residency {
    /// Returns the tier for `size` bytes that no plan sends: to host memory, which is nearer. While
    /// a schedule is followed as much of that memory is left to its moves as they can ever take:
    /// they count on it. While it is paused nothing moves by a schedule.
    pub(super) fn unplanned_target(&self, size: u64) -> Target {
        let Some(follow) = self.follow.as_ref().filter(|follow| follow.in_sync()) else {
            return Target::Host;
        };
        if self.is_paused() {
            return Target::Host;
        }
        let taken = self.sums.hosted - self.sums.spare + size;
        let fits = taken.saturating_add(follow.host_bytes()) <= self.config.host_memory.0;
        if fits { Target::Host } else { Target::Ssd }
    }

    /// Returns the tier for `size` bytes that are wanted there: to the log where host memory has no
    /// room.
    pub(super) fn destination(&mut self, size: u64, wanted: Target) -> Target {
        let taken = self.sums.hosted - self.sums.spare;
        if wanted == Target::Ssd || taken.saturating_add(size) > self.config.host_memory.0 {
            return Target::Ssd;
        }
        while self.sums.hosted.saturating_add(size) > self.config.host_memory.0
            && let Some(spare) = self.spares.first_to_go()
        {
            self.stats.host_copies_given_up += 1;
            self.forget(spare);
        }
        Target::Host
    }
}
