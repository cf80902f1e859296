//! A batch of durable changes: written as they come, decided by one commit.

use std::collections::{BTreeMap, HashMap};

use super::Pool;
use super::commit::{Commit, SealChange, StagedPut, Work, WrittenPut, told};
use super::error::{CommitError, DeleteError, PutError, SealError};
use super::options::PutOptions;
use crate::layout::{Copies, NAME_BYTES_MAX, TensorId, TensorKey};
use crate::log::{Durability, Lane, OwnChange, PutRequest};
use crate::memory::Source;
use crate::schedule::Ticket;

/// Durable changes that appear together or not at all. Writes begin at once; dropping the batch
/// without a commit undoes everything.
pub struct Batch {
    pool: Pool,
    /// The last change of each tensor, by when it came.
    changes: BTreeMap<u64, Staged>,
    /// Position of each tensor's change in the batch.
    of: HashMap<TensorId, u64>,
    next: u64,
    /// The last change of each seal.
    seals: Vec<SealChange>,
    /// Puts that were sealed before another change of their tensor came.
    replaced: Vec<StagedPut>,
    /// Number of copies of what is put, where the put does not say.
    copies: Copies,
}

/// A change of a batch.
enum Staged {
    Put(StagedPut),
    Delete(TensorId),
}

impl Batch {
    pub(super) fn new(pool: Pool) -> Self {
        let copies = pool.0.copies;
        Self {
            pool,
            copies,
            changes: BTreeMap::new(),
            of: HashMap::new(),
            next: 0,
            seals: Vec::new(),
            replaced: Vec::new(),
        }
    }

    /// Sets the number of copies of what is put from now on, unless the put says how many.
    #[must_use]
    pub fn with_copies(self, copies: Copies) -> Self {
        Self { copies, ..self }
    }

    /// Writes a durable tensor of `source.len()` bytes, to appear with the commit. The ticket tells
    /// of the write only; waiting for it is not needed. A later change of the same id in this batch
    /// takes this one's place.
    pub fn put(
        &mut self,
        key: impl Into<TensorKey>,
        source: Source,
        options: PutOptions,
    ) -> Result<Ticket, PutError> {
        let key = key.into();
        let TensorKey { id, name } = key.clone();
        if let Some(name) = name.as_ref().filter(|name| name.len() > NAME_BYTES_MAX) {
            return Err(PutError::NameTooLong(name.len()));
        }
        let copies = options.copies.unwrap_or(self.copies);
        let lane = Lane { durability: Durability::Durable, class: options.lifetime, copies };
        let request = PutRequest { id, name, length: source.len() as u64, lane };
        let (tell, written) = told(&self.pool.0.commits);
        let (ticket, put) =
            self.pool.start_put(&request, source, options, move |write, outcome| {
                // A batch that is gone takes nothing; what comes back is dropped and gives up its
                // space.
                tell.tell(outcome.map(|checksums| {
                    let (checksums, stands) = (checksums.to_vec(), true);
                    WrittenPut { write, checksums, stands }
                }));
            })?;
        self.stage(id, Staged::Put(StagedPut { key, written, put, sealed: false }));
        Ok(ticket)
    }

    /// Deletes a durable tensor, or takes back a put of this batch. Commits in flight count as if
    /// they had ended well: what the last of them puts can be deleted, and what it deletes is gone.
    ///
    /// # Errors
    /// There is none.
    pub fn delete(&mut self, key: impl Into<TensorKey>) -> Result<(), DeleteError> {
        self.pool.check_usable()?;
        let key = key.into();
        if self.pool.is_read_only() {
            return Err(DeleteError::ReadOnly(key));
        }
        let id = key.id;
        let staged = self.of.get(&id).and_then(|at| self.changes.get(at));
        let (put, deleted) = match staged {
            Some(Staged::Put(_)) => (true, false),
            Some(Staged::Delete(_)) => (false, true),
            None => (false, false),
        };
        let stands = self.pool.0.commits.outcome(id).unwrap_or_else(|| {
            let contents = self.pool.0.shared.contents();
            contents.current(id).is_some_and(|it| it.durability == Durability::Durable)
        });
        if !put && (!stands || deleted) {
            return Err(DeleteError::Unknown(self.pool.0.shared.contents().called(key)));
        }
        if stands {
            self.stage(id, Staged::Delete(id));
        } else if let Some(at) = self.of.remove(&id) {
            self.unstage(at);
        }
        Ok(())
    }

    /// Seals what stands under these keys now, scratch or durable, under a name: nothing is copied,
    /// and it stays as it is, whatever happens to the tensors. What this batch has put before
    /// stands for it, and what it has deleted does not; what other batches put does once they are
    /// committed. The seal appears with the commit, in the place of an older one of its name.
    pub fn seal<Key: Into<TensorKey>>(
        &mut self,
        name: &str,
        keys: impl IntoIterator<Item = Key>,
    ) -> Result<(), SealError> {
        self.begin_seal(name, keys, None)
    }

    /// Seals, as [`Batch::seal`] does, what the seal `from` holds under these keys; where it holds
    /// nothing, of what this batch has put or stands.
    ///
    /// # Errors
    /// There is no seal of the name `from`: one that is being committed is none yet.
    pub fn seal_from<Key: Into<TensorKey>>(
        &mut self,
        name: &str,
        from: &str,
        keys: impl IntoIterator<Item = Key>,
    ) -> Result<(), SealError> {
        self.begin_seal(name, keys, Some(from))
    }

    fn begin_seal<Key: Into<TensorKey>>(
        &mut self,
        name: &str,
        keys: impl IntoIterator<Item = Key>,
        from: Option<&str>,
    ) -> Result<(), SealError> {
        let keys: Vec<TensorKey> = keys.into_iter().map(Into::into).collect();
        let own = keys.iter().filter_map(|key| {
            let change = match self.changes.get(self.of.get(&key.id)?)? {
                Staged::Put(put) => OwnChange::Put(put.put),
                Staged::Delete(_) => OwnChange::Delete,
            };
            Some((key.id, change))
        });
        let seal = self.pool.begin_seal(name, &keys, from, &own.collect())?;
        for key in &keys {
            let at = self.of.get(&key.id);
            if let Some(Staged::Put(put)) = at.and_then(|at| self.changes.get_mut(at)) {
                put.sealed = true;
            }
        }
        self.stage_seal(SealChange::Seal(seal));
        Ok(())
    }

    /// Drops a seal: what it alone holds is free once the commit has returned. Takes back a seal of
    /// this batch, too.
    ///
    /// # Errors
    /// There is none of this name.
    pub fn drop_seal(&mut self, name: &str) -> Result<(), SealError> {
        self.pool.check_usable()?;
        if self.pool.is_read_only() {
            return Err(SealError::ReadOnly(name.into()));
        }
        let stands = self.pool.0.commits.seal_outcome(name);
        let stands = stands.unwrap_or_else(|| self.pool.0.shared.contents().seal(name).is_some());
        let staged = self.seals.iter().find(|change| change.name() == name);
        match staged {
            Some(SealChange::Drop(_)) => return Err(SealError::Absent(name.into())),
            None if !stands => return Err(SealError::Absent(name.into())),
            _ => (),
        }
        if stands {
            self.stage_seal(SealChange::Drop(name.into()));
        } else {
            self.seals.retain(|change| change.name() != name);
        }
        Ok(())
    }

    fn stage_seal(&mut self, change: SealChange) {
        self.seals.retain(|other| other.name() != change.name());
        self.seals.push(change);
    }

    /// Waits for the batch's writes and makes all of its changes durable. When this returns, they
    /// survive any crash; when it fails, none of them is there, unless the error says that this is
    /// in doubt.
    pub fn commit(self) -> Result<(), CommitError> {
        self.start_commit()?.wait()
    }

    /// Starts to make all of the batch's changes durable, behind the commits that were started
    /// before. Those that are in flight together share their flushes and their record.
    ///
    /// # Errors
    /// The pool is of no use. What else may go wrong is for the [`Commit`] to tell.
    pub fn start_commit(self) -> Result<Commit, CommitError> {
        self.pool.check_usable()?;
        let Self { pool, changes, seals, replaced, .. } = self;
        let (mut puts, mut deletes) = (Vec::new(), Vec::new());
        for change in changes.into_values() {
            match change {
                Staged::Put(put) => puts.push(put),
                Staged::Delete(id) => deletes.push(id),
            }
        }
        Ok(pool.0.commits.start(Work::batch(&pool.0.shared, (puts, replaced), deletes, seals)))
    }

    /// A change, in the place of an earlier one of the same tensor.
    fn stage(&mut self, id: TensorId, change: Staged) {
        let at = self.next;
        self.next += 1;
        self.changes.insert(at, change);
        if let Some(before) = self.of.insert(id, at) {
            self.unstage(before);
        }
    }

    /// Takes back a change that another one of the same tensor follows. What a seal holds of it is
    /// written all the same.
    fn unstage(&mut self, at: u64) {
        if let Some(Staged::Put(put)) = self.changes.remove(&at)
            && put.sealed
        {
            self.replaced.push(put);
        }
    }
}
