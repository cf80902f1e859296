//! History of residency: which storage was out when, read off the transfers of a step in the steady
//! state.

use super::{Case, has_ended};
use crate::migration::MigrationDirection;
use crate::trace::{Identity, PlanStorage};
use crate::units::Nanos;

/// Moments, for each storage, at which its memory went (true) or was taken again (false).
pub(super) struct ResidencyHistory {
    changes: Vec<Vec<(Nanos, bool)>>,
    global: Vec<bool>,
}

impl ResidencyHistory {
    pub(super) fn of(case: &Case<'_>) -> Self {
        let storages = &case.trace.storages;
        let mut changes = vec![Vec::new(); storages.len()];
        let moved = case.simulation.transfers.iter().filter(|t| has_ended(t) && !t.stays);
        for transfer in moved {
            let change = match transfer.direction {
                MigrationDirection::Out => (transfer.end, true),
                MigrationDirection::In => (transfer.begin, false),
            };
            changes[transfer.storage.0 as usize].push(change);
        }
        for of_storage in &mut changes {
            of_storage.sort_unstable();
        }
        let is_global =
            |storage: &crate::trace::Storage| matches!(storage.identity, Identity::Name(_));
        Self { changes, global: storages.iter().map(is_global).collect() }
    }

    /// Returns whether a storage has no memory at a moment. What a global did last in a step it is
    /// still doing when the next one begins.
    pub(super) fn is_out(&self, storage: PlanStorage, at: Nanos) -> bool {
        let index = storage.0 as usize;
        let changes = &self.changes[index];
        let before = changes.partition_point(|(time, _)| *time <= at);
        match before.checked_sub(1) {
            Some(last) => changes[last].1,
            None => self.global[index] && changes.last().is_some_and(|(_, out)| *out),
        }
    }
}
