//! Durable tensors: batches, and commits of which several may be in flight.

use std::collections::BTreeMap;

use tidelog_engine::layout::{Copies, LifetimeClass};
use tidelog_engine::memory::Source;
use tidelog_engine::pool::{Batch, Commit, CommitError, PutOptions};

use super::coverage::Under;
use super::model::{Content, Sealed, Seals};
use super::runner::{Check, FILLERS, Runner, durable, text};

/// Changes of a batch to the tensors that it names.
pub(super) type Changes = BTreeMap<u16, Option<Content>>;

/// Changes of a batch to the seals that it names.
pub(super) type SealChanges = BTreeMap<u8, Option<Sealed>>;

/// A commit that was started.
pub(super) struct Started {
    pub(super) commit: Commit,
    pub(super) changes: Changes,
    pub(super) seals: SealChanges,
}

impl Started {
    /// Iterates over the contents that its seals hold of what stood before it.
    pub(super) fn holds(&self) -> impl Iterator<Item = ((u16, bool), Content)> + '_ {
        let sealed = self.seals.values().flatten().flatten();
        let is_its_own = |(id, durable): (u16, bool), content| {
            durable && self.changes.get(&id) == Some(&Some(content))
        };
        let sealed = sealed.map(|(&key, &content)| (key, content));
        sealed.filter(move |(key, content)| !is_its_own(*key, *content))
    }
}

/// The tensors of [`super::Act::FillIndex`], behind all others.
fn fillers(first: u16, count: u8) -> impl Iterator<Item = u16> {
    let first = FILLERS + first;
    first..first + u16::from(count)
}

fn apply_seals(changes: &SealChanges, seals: &mut Seals) {
    for (name, change) in changes {
        match change {
            Some(sealed) => drop(seals.insert(*name, sealed.clone())),
            None => drop(seals.remove(name)),
        }
    }
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
    pub(super) fn batch(
        &mut self,
        puts: &[(u16, Content, u8)],
        deletes: &[u16],
    ) -> Result<(Batch, Changes), String> {
        let mut batch = self.pool()?.batch();
        let mut changes = Changes::new();
        for &(id, content, class) in puts {
            let lifetime = LifetimeClass::ALL[usize::from(class)];
            // What is to have two says nothing: the pool was formatted so.
            let copies = self.script.copies(true, content);
            let copies = (copies == Copies::One).then_some(copies);
            let options = PutOptions { lifetime, copies, ..PutOptions::default() };
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
        let seals = SealChanges::new();
        self.commits.push(Started { commit: commit.clone(), changes, seals });
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
                    apply_seals(&started.seals, &mut self.model.seals);
                }
                Some(Err(error)) => self.commit_failed(&error, &started)?,
            }
        }
        self.commits = going;
        Ok(())
    }

    fn commit_failed(&mut self, error: &CommitError, started: &Started) -> Check {
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
                apply(&started.changes, &mut after);
                self.model.in_doubt = Some(after);
                let seals = self.model.seals_in_doubt.take();
                let mut seals = seals.unwrap_or_else(|| self.model.seals.clone());
                apply_seals(&started.seals, &mut seals);
                self.model.seals_in_doubt = Some(seals);
                self.model.doubted.extend(started.holds());
                if first { self.check_that_nothing_is_taken() } else { Ok(()) }
            }
            // A reclamation's commit may be the one that failed half way.
            CommitError::Stopped(_) if self.allowed_errors.writes || self.is_down() => {
                let durable = &self.model.durable;
                self.model.in_doubt.get_or_insert_with(|| durable.clone());
                let seals = &self.model.seals;
                self.model.seals_in_doubt.get_or_insert_with(|| seals.clone());
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

    /// Seals once every commit in flight has ended well.
    pub(super) fn seals_then(&self) -> Seals {
        let mut seals = self.model.seals.clone();
        self.commits.iter().for_each(|started| apply_seals(&started.seals, &mut seals));
        seals
    }

    /// Commits in doubt are there all or none: they were in one record.
    pub(super) fn resolve_doubt(&mut self) -> Check {
        let Some(after) = self.model.in_doubt.take() else { return Ok(()) };
        let seals_after = self.model.seals_in_doubt.take().unwrap_or_default();
        let found = (self.found()?, self.found_seals()?);
        let lengths = |tensors: &BTreeMap<u16, Content>, seals: &Seals| {
            let length = |content: &Content| u64::from(content.length);
            let tensors = tensors.iter().map(|(id, content)| (*id, length(content)));
            let sealed = |sealed: &Sealed| -> BTreeMap<(u16, bool), u64> {
                sealed.iter().map(|(key, content)| (*key, length(content))).collect()
            };
            let seals = seals.iter().map(|(name, held)| (*name, sealed(held)));
            (tensors.collect::<BTreeMap<_, _>>(), seals.collect::<BTreeMap<_, _>>())
        };
        let is_after = found == lengths(&after, &seals_after);
        let is_before = found == lengths(&self.model.durable, &self.model.seals);
        if is_after && (!is_before || self.bytes_are_those_of(&after, &seals_after)?) {
            self.model.durable = after;
            self.model.seals = seals_after;
        }
        Ok(())
    }

    /// Compares contents by their bytes where lengths are the same.
    fn bytes_are_those_of(
        &mut self,
        after: &BTreeMap<u16, Content>,
        seals: &Seals,
    ) -> Result<bool, String> {
        let differs = after.iter().find(|(id, content)| {
            self.model.durable.get(id).is_some_and(|before| before != *content)
        });
        if let Some((&id, &content)) = differs {
            return Ok(self.bytes_of(id)?.is_some_and(|bytes| bytes == content.bytes()));
        }
        let before = &self.model.seals;
        let differs = seals.iter().find_map(|(name, sealed)| {
            let before = before.get(name)?;
            let differs = |(key, content): &(&(u16, bool), &Content)| {
                before.get(key).is_some_and(|before| before != *content)
            };
            sealed.iter().find(differs).map(|(key, content)| (*name, *key, *content))
        });
        let Some((name, key, content)) = differs else { return Ok(true) };
        Ok(self.sealed_bytes(name, key)?.is_some_and(|bytes| bytes == content.bytes()))
    }
}
