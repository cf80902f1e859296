//! A batch of durable changes: written as they come, decided by one commit.

use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{MutexGuard, PoisonError};

use super::Pool;
use super::error::{CommitError, DeleteError, PutError, Unusable};
use super::held::PendingWrite;
use super::media::MetadataIo;
use super::options::PutOptions;
use crate::layout::{Change, NAME_BYTES_MAX, Run, TensorId};
use crate::log::{AppendError, ChangeLog, Durability, Lane, Request};
use crate::memory::Source;
use crate::schedule::{Reactor, Ticket, TransferError};
use crate::units::DeviceIndex;

/// What a durable tensor is called: an id, and the name that it was made from if there is one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorKey {
    /// The id.
    pub id: TensorId,
    /// The name, stored so that two names with one id are noticed.
    pub name: Option<Box<str>>,
}

impl From<TensorId> for TensorKey {
    fn from(id: TensorId) -> Self {
        Self { id, name: None }
    }
}

impl From<&str> for TensorKey {
    fn from(name: &str) -> Self {
        Self { id: TensorId::from_name(name), name: Some(name.into()) }
    }
}

/// Durable changes that appear together or not at all. Writes begin at once; dropping the batch without a
/// commit undoes everything.
pub struct Batch {
    pool: Pool,
    puts: Vec<StagedPut>,
    deletes: Vec<TensorId>,
}

struct StagedPut {
    id: TensorId,
    ticket: Ticket,
    /// Gets, before the ticket is ready, the complete write with its checksums, or why there is none.
    written: Receiver<Result<Written, TransferError>>,
}

struct Written {
    write: PendingWrite,
    checksums: Vec<u32>,
}

impl Batch {
    pub(super) fn new(pool: Pool) -> Self {
        Self { pool, puts: Vec::new(), deletes: Vec::new() }
    }

    /// Writes a durable tensor of `source.len()` bytes, to appear with the commit. The ticket tells of
    /// the write only; waiting for it is not needed. A later change of the same id in this batch takes
    /// this one's place.
    pub fn put(
        &mut self,
        key: impl Into<TensorKey>,
        source: Source,
        options: PutOptions,
    ) -> Result<Ticket, PutError> {
        let TensorKey { id, name } = key.into();
        if let Some(name) = name.as_ref().filter(|name| name.len() > NAME_BYTES_MAX) {
            return Err(PutError::NameTooLong(name.len()));
        }
        let lane = Lane { durability: Durability::Durable, class: options.lifetime };
        let request = Request { id, name, length: source.len() as u64, lane };
        let (send, written) = sync_channel(1);
        let ticket = self.pool.start_put(&request, source, options, move |write, outcome| {
            // A batch that is gone takes nothing; what comes back is dropped and gives up its space.
            let _ = send.send(outcome.map(|checksums| Written { write, checksums }));
        })?;
        self.forget(id);
        self.puts.push(StagedPut { id, ticket: ticket.clone(), written });
        Ok(ticket)
    }

    /// Deletes a durable tensor, or takes back a put of this batch.
    ///
    /// # Errors
    /// There is none.
    pub fn delete(&mut self, id: TensorId) -> Result<(), DeleteError> {
        self.pool.check_usable()?;
        let staged = self.puts.iter().any(|put| put.id == id);
        let contents = self.pool.0.shared.contents();
        let stands = contents.current(id).is_some_and(|it| it.durability == Durability::Durable);
        drop(contents);
        if !staged && (!stands || self.deletes.contains(&id)) {
            return Err(DeleteError::Unknown(id));
        }
        self.forget(id);
        if stands {
            self.deletes.push(id);
        }
        Ok(())
    }

    /// Waits for the batch's writes and makes all of its changes durable. When this returns, they survive
    /// any crash; when it fails, none of them is there, unless the error says that this is in doubt.
    pub fn commit(self) -> Result<(), CommitError> {
        let Self { pool, puts, deletes } = self;
        // Writes in flight need the reactor as they always do; holding it open here keeps `close` waiting.
        let reactor = pool.reactor()?;
        let reactor = reactor.as_ref().ok_or(CommitError::Unusable(Unusable::Closed))?;
        let mut written = Vec::with_capacity(puts.len());
        for StagedPut { id, ticket, written: receiver } in puts {
            let outcome = ticket.wait_for(&receiver).and_then(|written| written);
            written.push(outcome.map_err(|source| CommitError::Write { id, source })?);
        }
        if written.is_empty() && deletes.is_empty() {
            return Ok(());
        }
        commit(&pool, reactor, written, &deletes)
    }

    /// Takes back earlier changes of the same id.
    fn forget(&mut self, id: TensorId) {
        self.puts.retain(|put| put.id != id);
        self.deletes.retain(|deleted| *deleted != id);
    }
}

fn commit(
    pool: &Pool,
    reactor: &Reactor,
    written: Vec<Written>,
    deletes: &[TensorId],
) -> Result<(), CommitError> {
    let shared = &pool.0.shared;
    let runs = written.iter().filter_map(|it| Some(&*it.write.reservation()?.runs));
    let mut log = CommitLog::open(pool, reactor, runs)?;

    let contents = shared.contents();
    let puts = written
        .iter()
        .filter_map(|it| contents.entry(it.write.reservation()?, &it.checksums).map(Change::Put));
    // What another batch has deleted meanwhile is gone already.
    let stands = |id: &TensorId| {
        contents.current(*id).is_some_and(|it| it.durability == Durability::Durable)
    };
    let deletes: Vec<TensorId> = deletes.iter().copied().filter(stands).collect();
    let changes: Vec<Change> = puts.chain(deletes.iter().map(|id| Change::Delete(*id))).collect();
    drop(contents);

    match log.append(changes) {
        Ok(()) => {
            let puts = written
                .into_iter()
                .filter_map(|it| it.write.take().map(|reservation| (reservation, it.checksums)))
                .collect();
            shared.contents().apply(puts, &deletes);
            Ok(())
        }
        Err(error) => {
            if matches!(error, CommitError::InDoubt(_)) {
                for reservation in written.into_iter().filter_map(|it| it.write.take()) {
                    shared.contents().leave_in_doubt(&reservation);
                }
            }
            Err(error)
        }
    }
}

/// The change log, held for one commit: nobody else changes durable tensors meanwhile.
pub(super) struct CommitLog<'a> {
    pool: &'a Pool,
    reactor: &'a Reactor,
    log: MutexGuard<'a, ChangeLog>,
}

impl<'a> CommitLog<'a> {
    /// Takes the log, and puts the data in `runs` on the media of every device it touched.
    pub(super) fn open<'r>(
        pool: &'a Pool,
        reactor: &'a Reactor,
        runs: impl Iterator<Item = &'r [Run]>,
    ) -> Result<Self, CommitError> {
        // A panic in the middle of a commit leaves it in doubt, as a failure does; the log knows its
        // state.
        let log = pool.0.log.lock().unwrap_or_else(PoisonError::into_inner);
        let touched = runs.fold(0, |devices, runs| devices | pool.0.stripes.devices_of(runs));
        let devices: Vec<DeviceIndex> =
            (0..64).filter(|device| touched & (1 << device) != 0).map(DeviceIndex).collect();
        if !devices.is_empty() {
            reactor.flush(&devices).map_err(CommitError::Flush)?;
        }
        Ok(Self { pool, reactor, log })
    }

    /// Makes the changes durable. The contents are for the caller to change, while it still holds this.
    pub(super) fn append(&mut self, changes: Vec<Change>) -> Result<(), CommitError> {
        let shared = &self.pool.0.shared;
        let media = MetadataIo { reactor: self.reactor, written: &shared.written.metadata };
        let after = |changes: &[Change]| shared.contents().durable_after(changes);
        self.log.append(&media, changes, after).map_err(|error| match error {
            AppendError::Device(error) => CommitError::InDoubt(error),
            AppendError::IndexFull { needed, room } => CommitError::IndexFull { needed, room },
            AppendError::Stopped(reason) => CommitError::Stopped(reason),
        })
    }
}
