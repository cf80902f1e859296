//! The free runs of a region: which of its bytes nobody has.

use std::sync::{Mutex, MutexGuard, PoisonError};

use super::ALIGNMENT;

struct Run {
    start: usize,
    length: usize,
}

/// Free runs by ascending start; neighbours are always merged. Handed out as multiples of 4 KiB.
pub(super) struct FreeRuns(Mutex<Vec<Run>>);

impl FreeRuns {
    /// All of `length` bytes are free.
    pub(super) fn new(length: usize) -> Self {
        Self(Mutex::new(vec![Run { start: 0, length }]))
    }

    /// The start of a run of `bytes` rounded up, and its length; `None` when no free run is that
    /// long.
    pub(super) fn take(&self, bytes: usize) -> Option<(usize, usize)> {
        let length = bytes.max(1).checked_next_multiple_of(ALIGNMENT)?;
        let mut free = self.lock();
        let at = free.iter().position(|run| run.length >= length)?;
        let start = free[at].start;
        free[at].start += length;
        free[at].length -= length;
        if free[at].length == 0 {
            free.remove(at);
        }
        Some((start, length))
    }

    /// Takes a run back that was handed out, or a part of one.
    pub(super) fn release(&self, start: usize, length: usize) {
        let mut free = self.lock();
        let at = free.partition_point(|run| run.start < start);
        free.insert(at, Run { start, length });
        if at + 1 < free.len() && start + length == free[at + 1].start {
            free[at].length += free[at + 1].length;
            free.remove(at + 1);
        }
        if at > 0 && free[at - 1].start + free[at - 1].length == start {
            free[at - 1].length += free[at].length;
            free.remove(at);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Run>> {
        // The list is consistent between any two statements, so a panic elsewhere cannot spoil it.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
