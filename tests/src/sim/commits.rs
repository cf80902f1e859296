//! Durable tensors: batches, and commits of which several may be in flight.

use std::collections::BTreeMap;

use tidelog_engine::layout::LifetimeClass;
use tidelog_engine::memory::Source;
use tidelog_engine::pool::{Batch, Commit, CommitError, PutOptions};

use super::coverage::Under;
use super::model::Content;
use super::runner::{Check, FILLERS, Runner, durable, text};

/// What a batch leaves of the tensors that it names.
type Changes = BTreeMap<u16, Option<Content>>;

/// A commit that was started.
pub(super) struct Started {
    commit: Commit,
    changes: Changes,
}

/// The tensors of [`super::Act::FillIndex`], behind all others.
fn fillers(first: u16, count: u8) -> impl Iterator<Item = u16> {
    let first = FILLERS + first;
    first..first + u16::from(count)
}

fn apply(changes: &Changes, tensors: &mut BTreeMap<u16, Content>) {
    for (id, change) in changes {
        match change {
            Some(content) => drop(tensors.insert(*id, *content)),
            None => drop(tensors.remove(id)),
        }
    }
}

impl Runner<'_> {
    /// The durable tensors once every commit in flight has ended well.
    fn durable_then(&self) -> BTreeMap<u16, Content> {
        let mut tensors = self.model.durable.clone();
        self.commits.iter().for_each(|started| apply(&started.changes, &mut tensors));
        tensors
    }

    /// A batch with these changes, every answer of which is compared.
    fn batch(
        &mut self,
        puts: &[(u16, Content, u8)],
        deletes: &[u16],
    ) -> Result<(Batch, Changes), String> {
        let mut batch = self.pool()?.batch();
        let mut changes = Changes::new();
        for &(id, content, class) in puts {
            let lifetime = LifetimeClass::ALL[usize::from(class)];
            let options = PutOptions { lifetime, ..PutOptions::default() };
            let source = self.source(content)?;
            match batch.put(durable(id), source, options) {
                Ok(ticket) => {
                    self.staged.push(ticket);
                    changes.insert(id, Some(content));
                }
                Err(error) => {
                    self.refused(&error)?;
                    // Making room may have taken commits on. Not before the figures: looking at a
                    // commit in doubt tries another one, and whatever is in flight moves meanwhile.
                    self.process_completions()?;
                }
            }
        }
        // Puts may have waited for reclamation, and commits have ended meanwhile, in whatever way.
        self.process_completions()?;
        let before = self.durable_then();
        for &id in deletes {
            let stands = before.contains_key(&id);
            let expected = match changes.get(&id) {
                Some(change) => change.is_some(),
                None => stands,
            };
            if batch.delete(durable(id).id).is_ok() != expected {
                return Err(format!("deleting durable {id} should answer {expected}"));
            }
            if stands && expected {
                changes.insert(id, None);
            } else if expected {
                changes.remove(&id);
            }
        }
        Ok((batch, changes))
    }

    /// Changes that nobody commits.
    pub(super) fn give_up(&mut self, puts: &[(u16, Content, u8)], deletes: &[u16]) -> Check {
        self.batch(puts, deletes).map(drop)
    }

    /// Puts tensors that take much of the index and nothing else, and commits them.
    pub(super) fn fill_index(&mut self, first: u16, count: u8, flight: bool) -> Check {
        let content = Content { length: 0, salt: 0 };
        let puts: Vec<_> = fillers(first, count).map(|id| (id, content, 2)).collect();
        if flight { self.start_commit(&puts, &[]).map(drop) } else { self.commit(&puts, &[]) }
    }

    /// Deletes those of them that are there. However full the index is, that succeeds.
    pub(super) fn empty_index(&mut self, first: u16, count: u8) -> Check {
        self.process_completions()?;
        let there = self.durable_then();
        let there: Vec<u16> = fillers(first, count).filter(|id| there.contains_key(id)).collect();
        self.commit(&[], &there)
    }

    /// Starts a commit and leaves it in flight, unless the pool takes none any more.
    pub(super) fn start_commit(
        &mut self,
        puts: &[(u16, Content, u8)],
        deletes: &[u16],
    ) -> Result<Option<Commit>, String> {
        if self.model.in_doubt.is_some() {
            return Ok(None); // which `commit_failed` has checked
        }
        let (batch, changes) = self.batch(puts, deletes)?;
        let commit = batch.start_commit().map_err(text)?;
        self.commits.push(Started { commit: commit.clone(), changes });
        Ok(Some(commit))
    }

    /// Commits and waits; processes what became of it.
    pub(super) fn commit(&mut self, puts: &[(u16, Content, u8)], deletes: &[u16]) -> Check {
        if let Some(commit) = self.start_commit(puts, deletes)? {
            // What it came to is seen where every commit's end is.
            drop(commit.wait());
            self.count_struck(Under::Commit);
        }
        Ok(())
    }

    /// Waits for a commit in flight.
    pub(super) fn follow(&mut self, nth: u8) {
        let count = self.commits.len().max(1);
        if let Some(started) = self.commits.iter().rev().nth(usize::from(nth) % count) {
            drop(started.commit.wait());
            self.count_struck(Under::Commit);
        }
    }

    /// Processes the commits that have ended: in the order of their start.
    pub(super) fn take_in_commits(&mut self) -> Check {
        let mut going: Vec<Started> = Vec::new();
        for started in std::mem::take(&mut self.commits) {
            match started.commit.poll() {
                None => going.push(started),
                Some(Ok(())) if !going.is_empty() => {
                    return Err("a commit is acknowledged, and one before it is not".into());
                }
                Some(Ok(())) if self.model.in_doubt.is_some() => {
                    return Err("a commit is acknowledged after one that is in doubt".into());
                }
                Some(Ok(())) => {
                    self.figures.commits += 1;
                    for (id, _) in started.changes.iter().filter(|(_, change)| change.is_some()) {
                        self.lost.remove(id);
                    }
                    apply(&started.changes, &mut self.model.durable);
                }
                Some(Err(error)) => self.commit_failed(&error, &started.changes)?,
            }
        }
        self.commits = going;
        Ok(())
    }

    fn commit_failed(&mut self, error: &CommitError, changes: &Changes) -> Check {
        match error {
            CommitError::Write { .. } | CommitError::Flush(_)
                if self.allowed_errors.writes || self.is_down() =>
            {
                Ok(())
            }
            CommitError::InDoubt(_) if self.allowed_errors.writes || self.is_down() => {
                // All that are in doubt are in one record.
                let doubted = self.model.in_doubt.take();
                let first = doubted.is_none();
                let mut after = doubted.unwrap_or_else(|| self.model.durable.clone());
                apply(changes, &mut after);
                self.model.in_doubt = Some(after);
                if first { self.check_that_nothing_is_taken() } else { Ok(()) }
            }
            // A reclamation's commit may be the one that failed half way.
            CommitError::Stopped(_) if self.allowed_errors.writes || self.is_down() => {
                let durable = &self.model.durable;
                self.model.in_doubt.get_or_insert_with(|| durable.clone());
                Ok(())
            }
            other => Err(format!("the commit failed: {other}")),
        }
    }

    fn check_that_nothing_is_taken(&self) -> Check {
        let Some(pool) = &self.pool else { return Ok(()) };
        let mut batch = pool.batch();
        let put = batch.put(durable(0), Source::from(vec![1]), PutOptions::default());
        if put.is_ok() && batch.commit().is_ok() {
            return Err("a commit was taken after one that is in doubt".into());
        }
        Ok(())
    }

    /// Commits in doubt are there all or none: they were in one record.
    pub(super) fn resolve_doubt(&mut self) -> Check {
        let Some(after) = self.model.in_doubt.take() else { return Ok(()) };
        let found = self.found()?;
        let lengths = |tensors: &BTreeMap<u16, Content>| -> BTreeMap<u16, u64> {
            tensors.iter().map(|(id, content)| (*id, content.length.into())).collect()
        };
        if found == lengths(&after) && found != lengths(&self.model.durable) {
            self.model.durable = after;
        } else if found == lengths(&after) {
            // The same lengths: the bytes tell.
            let differs = after.iter().find(|(id, content)| {
                self.model.durable.get(id).is_some_and(|before| before != *content)
            });
            if let Some((&id, &content)) = differs
                && self.bytes_of(id)?.is_some_and(|bytes| bytes == content.bytes())
            {
                self.model.durable = after;
            }
        }
        Ok(())
    }
}
