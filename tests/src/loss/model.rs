//! Model of a pool's durable tensors and seals: every state that may be there after a crash, or
//! once a device is gone.

use std::collections::{BTreeMap, VecDeque};

use tidelog_engine::pool::{Commit, CommitError};

use crate::sim::Content;

/// Durable tensors by number, and seals by number: what each holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct DurableState {
    /// The tensors.
    pub(super) tensors: BTreeMap<u8, Content>,
    /// The seals.
    pub(super) seals: BTreeMap<u8, BTreeMap<u8, Content>>,
}

/// Changes of one commit.
#[derive(Clone, Debug, Default)]
pub(super) struct DurableChanges {
    /// Tensors that are put, or deleted where there is no content.
    pub(super) tensors: BTreeMap<u8, Option<Content>>,
    /// Seals that are made, or dropped where they hold nothing at all.
    pub(super) seals: BTreeMap<u8, Option<BTreeMap<u8, Content>>>,
}

impl DurableState {
    fn apply(&mut self, changes: &DurableChanges) {
        for (id, content) in &changes.tensors {
            match content {
                Some(content) => drop(self.tensors.insert(*id, *content)),
                None => drop(self.tensors.remove(id)),
            }
        }
        for (name, held) in &changes.seals {
            match held {
                Some(held) => drop(self.seals.insert(*name, held.clone())),
                None => drop(self.seals.remove(name)),
            }
        }
    }
}

/// A commit that was started.
struct Started {
    commit: Commit,
    changes: DurableChanges,
    is_there: Option<bool>,
}

/// State of the pool that is known, and commits that may be there.
#[derive(Default)]
pub(super) struct DurableStates {
    base: DurableState,
    started: VecDeque<Started>,
}

impl DurableStates {
    /// Returns the state once all commits that were started are there.
    pub(super) fn last(&self) -> DurableState {
        let mut state = self.base.clone();
        self.started.iter().for_each(|it| state.apply(&it.changes));
        state
    }

    /// Returns the number of commits that may be on their way.
    pub(super) fn in_flight(&self) -> usize {
        self.started.len()
    }

    /// A commit was started.
    pub(super) fn start(&mut self, commit: Commit, changes: DurableChanges) {
        self.started.push_back(Started { commit, changes, is_there: None });
    }

    /// Waits for the first commit on its way; returns whether there was one.
    ///
    /// # Errors
    /// It has failed; it may be there all the same.
    pub(super) fn wait(&mut self) -> Result<bool, CommitError> {
        let Some(first) = self.started.front_mut() else { return Ok(false) };
        first.commit.wait()?;
        first.is_there = Some(true);
        self.settle();
        Ok(true)
    }

    /// Takes in which commits have returned well; returns how many.
    pub(super) fn take_what_returned(&mut self) -> u64 {
        let mut returned = 0;
        for started in &mut self.started {
            if started.is_there.is_none() && matches!(started.commit.poll(), Some(Ok(()))) {
                started.is_there = Some(true);
                returned += 1;
            }
        }
        self.settle();
        returned
    }

    fn settle(&mut self) {
        while let Some(Started { changes, is_there: Some(true), .. }) = self.started.front() {
            self.base.apply(changes);
            self.started.pop_front();
        }
    }

    /// Returns the states that may be there, those with most commits first. What has returned well
    /// is in all of them.
    pub(super) fn possible(&self) -> Vec<DurableState> {
        let mut states = vec![self.base.clone()];
        for Started { changes, is_there, .. } in &self.started {
            let with = states.iter().map(|state| {
                let mut state = state.clone();
                state.apply(changes);
                state
            });
            let with: Vec<DurableState> = with.collect();
            let without = if *is_there == Some(true) { Vec::new() } else { states };
            states = with.into_iter().chain(without).collect();
        }
        states
    }

    /// Takes a state that was found as known; nothing is under way.
    pub(super) fn found(&mut self, state: DurableState) {
        self.base = state;
        self.started.clear();
    }
}
