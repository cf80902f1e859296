//! Batches of durable tensors, and commits that are waited for or in flight.

use std::collections::BTreeMap;

use tidelog::abi::*;

use super::{Batch, Caller, NAMES, StartedCommit, WAIT_MS, content, name_of};
use crate::abi::last_error;

impl Caller {
    pub(super) fn begin(&mut self) {
        // One at a time, so that what a commit brings is known.
        if self.batches.is_empty() {
            let mut handle = 0;
            // SAFETY: the place is ours.
            let begun = unsafe { tide_batch_begin(self.pool, &raw mut handle) };
            assert_eq!(begun, TIDE_READY, "{}", last_error());
            self.batches.push(Batch { handle, changes: BTreeMap::new() });
        }
    }

    pub(super) fn change(&mut self) {
        let (name, put, deletes) =
            (self.choices.below(NAMES), self.content(), self.choices.percent(25));
        let Some(batch) = self.batches.last_mut() else { return };
        let text = name_of('d', name);
        let bytes = content(put.0, put.1);
        // SAFETY: the name is NUL-terminated, the bytes are as many as it says.
        let status = unsafe {
            if deletes {
                tide_batch_delete(batch.handle, text.as_ptr())
            } else {
                let (bytes, length) = (bytes.as_ptr().cast(), bytes.len() as u64);
                tide_batch_put(batch.handle, text.as_ptr(), bytes, length)
            }
        };
        match status {
            TIDE_READY => drop(batch.changes.insert(name, (!deletes).then_some(put))),
            TIDE_FULL if !deletes => {}
            TIDE_NOT_FOUND if deletes => {}
            TIDE_POOL_FAILED => {}
            other => panic!("{other}: {}", last_error()),
        }
    }

    pub(super) fn commit(&mut self) {
        let Some(Batch { handle, changes }) = self.batches.pop() else { return };
        let status = tide_batch_commit(handle);
        assert_eq!(tide_batch_commit(handle), TIDE_STALE_HANDLE, "a batch is committed once");
        // One that was started before has ended before.
        self.end_commit(WAIT_MS);
        if status == TIDE_READY {
            for (name, content) in changes {
                self.durable.insert(name, vec![content]);
            }
        } else {
            let failed = [TIDE_POOL_FAILED, TIDE_FULL, TIDE_CANCELLED].contains(&status);
            assert!(failed, "{status}: {}", last_error());
        }
    }

    pub(super) fn start_commit(&mut self) {
        if self.commit.is_some() {
            return self.end_commit(WAIT_MS);
        }
        let Some(Batch { handle, changes }) = self.batches.pop() else { return };
        let mut ticket = 0;
        // SAFETY: the place is ours.
        let status = unsafe { tide_batch_start_commit(handle, &raw mut ticket) };
        assert_eq!(status, TIDE_READY, "{}", last_error());
        assert_eq!(tide_batch_drop(handle), TIDE_STALE_HANDLE, "a batch is committed once");
        assert_eq!(tide_ticket_cancel(ticket), TIDE_INVALID_ARGUMENT);
        self.begun();
        let mut before = BTreeMap::new();
        for (name, content) in &changes {
            let possible = self.durable.get_mut(name).expect("a name");
            before.insert(*name, possible.clone());
            possible.push(*content);
        }
        self.commit = Some(StartedCommit { ticket, changes, before });
    }

    /// A commit that was started, if one was, ends within this time.
    pub(super) fn end_commit(&mut self, timeout: u32) {
        let Some(StartedCommit { ticket, changes, before }) = self.commit.take() else { return };
        let status = tide_ticket_wait(ticket, timeout);
        if status == TIDE_READY {
            self.durable.extend(changes.into_iter().map(|(name, content)| (name, vec![content])));
        } else {
            let failed = [TIDE_POOL_FAILED, TIDE_FULL, TIDE_CANCELLED].contains(&status);
            assert!(failed, "{status}: {}", last_error());
            self.durable.extend(before);
        }
        assert_eq!(tide_ticket_released(ticket), 1);
        assert_eq!(tide_ticket_drop(ticket), TIDE_READY);
    }

    pub(super) fn drop_batch(&mut self) {
        let Some(batch) = self.batches.pop() else { return };
        assert_eq!(tide_batch_drop(batch.handle), TIDE_READY);
        assert_eq!(tide_batch_drop(batch.handle), TIDE_STALE_HANDLE);
    }
}
