//! Victims: a queue of storages by priority, corrected lazily.
//!
//! Every storage that may leave has an entry whose priority is at least its own. A use that makes a
//! storage a worse victim therefore costs nothing: its entry is found too high when it surfaces,
//! and goes back where it belongs. Only a use that makes it a better victim adds an entry. Without
//! a schedule every use is of the first kind, so that ops cost no queue work until memory is short.

use std::collections::BinaryHeap;

/// Entries per known storage above which superseded ones are swept out.
const ENTRIES_PER_STORAGE_MAX: usize = 4;
const ENTRIES_MIN: usize = 64;

/// Larger is a better victim. Never 0: that stands for "not queued" in a storage's record.
pub(super) type Priority = u64;

#[derive(Debug, Default)]
pub(super) struct Victims {
    /// Priority, then storage, so that ties are broken the same way every time.
    heap: BinaryHeap<(Priority, u32)>,
}

impl Victims {
    pub(super) fn push(&mut self, priority: Priority, storage: u32) {
        debug_assert!(priority > 0);
        self.heap.push((priority, storage));
    }

    pub(super) fn pop(&mut self) -> Option<(Priority, u32)> {
        self.heap.pop()
    }

    /// Returns whether most entries are superseded ones, given how many storages there are.
    pub(super) fn is_overgrown(&self, storages: usize) -> bool {
        self.heap.len() > ENTRIES_PER_STORAGE_MAX * storages + ENTRIES_MIN
    }

    /// Starts again from one entry per storage.
    pub(super) fn rebuild(&mut self, entries: impl Iterator<Item = (Priority, u32)>) {
        let mut list = std::mem::take(&mut self.heap).into_vec();
        list.clear();
        list.extend(entries);
        self.heap = BinaryHeap::from(list);
    }
}
