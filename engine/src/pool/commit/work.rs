//! Changes of one commit: a batch's puts and deletes, or where reclamation has moved tensors.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::Receiver;

use super::flight::answer;
use crate::layout::{Change, HeldVersion, TensorEntry, TensorId, TensorKey};
use crate::log::{Contents, Durability, ReservationKey, StripeMap};
use crate::pool::Shared;
use crate::pool::error::CommitError;
use crate::pool::held::PendingWrite;
use crate::pool::reclaim::ReclamationMoves;
use crate::pool::seal::SealInFlight;
use crate::schedule::TransferError;
use crate::units::DeviceSet;

/// Outcomes of earlier commits: whether they leave a tensor.
type Outcomes = HashMap<TensorId, bool>;

/// Outcomes of the commits that come earlier in a record.
#[derive(Default)]
pub(super) struct Before {
    tensors: Outcomes,
    /// Outcomes for seals.
    seals: HashMap<Box<str>, bool>,
    /// The place of the last seal among the commits of seals.
    seal_order: u64,
    /// The numbers of the held versions whose places the record says already.
    held: HashSet<u64>,
}

/// Change of a seal by a batch.
pub(in crate::pool) enum SealChange {
    Seal(SealInFlight),
    Drop(Box<str>),
}

impl SealChange {
    pub(in crate::pool) fn name(&self) -> &str {
        match self {
            Self::Seal(seal) => &seal.name,
            Self::Drop(name) => name,
        }
    }

    fn leaves_one(&self) -> bool {
        matches!(self, Self::Seal(_))
    }
}

/// A put that was started.
pub(in crate::pool) struct StagedPut {
    pub(in crate::pool) key: TensorKey,
    /// Gets the complete write with its checksums, or why there is none.
    pub(in crate::pool) written: Receiver<Result<WrittenPut, TransferError>>,
    /// Key of the write.
    pub(in crate::pool) put: ReservationKey,
    /// True if a seal of the batch holds it.
    pub(in crate::pool) sealed: bool,
}

/// A put whose bytes are written.
pub(in crate::pool) struct WrittenPut {
    pub(in crate::pool) write: PendingWrite,
    pub(in crate::pool) checksums: Vec<u32>,
    /// True if the put is what the batch leaves under its id; if not, seals of the batch hold it.
    pub(in crate::pool) stands: bool,
}

/// Changes of a commit. Dropped without having been applied, it releases what it holds.
pub(in crate::pool) enum Work {
    Batch(BatchWork),
    Moves { moves: ReclamationMoves, entries: Vec<TensorEntry> },
}

pub(in crate::pool) struct BatchWork {
    shared: Arc<Shared>,
    /// Puts that are being written, and whether each is current.
    writing: VecDeque<(StagedPut, bool)>,
    written: Vec<WrittenPut>,
    deletes: Vec<TensorId>,
    /// Deleted tensors that the record names.
    deleted: Vec<TensorId>,
    /// Outcomes for the tensors that it names.
    fates: Outcomes,
    /// Changes of seals, at most one of each name.
    seals: Vec<SealChange>,
}

impl Work {
    /// The changes of a batch. `puts` and `deletes` name no tensor twice, `seals` no seal; what the
    /// batch has changed again after it was sealed is in `replaced`.
    pub(in crate::pool) fn batch(
        shared: &Arc<Shared>,
        (puts, replaced): (Vec<StagedPut>, Vec<StagedPut>),
        deletes: Vec<TensorId>,
        seals: Vec<SealChange>,
    ) -> Self {
        let puts_leave = puts.iter().map(|put| (put.key.id, true));
        let fates = puts_leave.chain(deletes.iter().map(|id| (*id, false))).collect();
        Self::Batch(BatchWork {
            shared: Arc::clone(shared),
            writing: puts
                .into_iter()
                .map(|put| (put, true))
                .chain(replaced.into_iter().map(|put| (put, false)))
                .collect(),
            written: Vec::new(),
            deletes,
            deleted: Vec::new(),
            fates,
            seals,
        })
    }

    /// Returns whether the work leaves this tensor; `None` if it says nothing about it. A move
    /// changes nothing that anybody can see.
    pub(super) fn outcome(&self, id: TensorId) -> Option<bool> {
        match self {
            Self::Batch(batch) => batch.fates.get(&id).copied(),
            Self::Moves { .. } => None,
        }
    }

    /// Returns the outcome for a seal.
    pub(super) fn seal_outcome(&self, name: &str) -> Option<bool> {
        let Self::Batch(batch) = self else { return None };
        batch.seals.iter().find(|change| change.name() == name).map(SealChange::leaves_one)
    }

    /// Checks that all of its bytes have been written; `None` while some have not.
    pub(super) fn written(&mut self) -> Option<Result<(), CommitError>> {
        let Self::Batch(batch) = self else { return Some(Ok(())) };
        while let Some((put, stands)) = batch.writing.front() {
            match answer(&put.written)? {
                Ok(written) => batch.written.push(WrittenPut { stands: *stands, ..written }),
                Err(source) => {
                    let tensor = batch.shared.contents().called(put.key.clone());
                    return Some(Err(CommitError::Write { tensor, source }));
                }
            }
            batch.writing.pop_front();
        }
        Some(Ok(()))
    }

    /// The devices that its bytes lie on.
    pub(super) fn devices(&self, stripes: &StripeMap) -> DeviceSet {
        match self {
            Self::Batch(batch) => {
                let contents = batch.shared.contents();
                let written = batch.written.iter().filter_map(|it| it.write.reservation());
                let runs = written.map(|reservation| contents.runs(reservation));
                // What scratch puts have written no commit has had flushed.
                let coming = batch.seals.iter().filter_map(|change| match change {
                    SealChange::Seal(seal) => seal.coming(),
                    SealChange::Drop(_) => None,
                });
                let sealed = coming.flat_map(|coming| contents.unflushed_runs(coming));
                runs.chain(sealed)
                    .map(|runs| stripes.devices_of(runs))
                    .fold(DeviceSet::default(), DeviceSet::union)
            }
            Self::Moves { moves, .. } => {
                let each = moves.runs().map(|runs| stripes.devices_of(runs));
                each.fold(DeviceSet::default(), DeviceSet::union)
            }
        }
    }

    /// Returns the changes of its record, once the commits that left `before` are applied to
    /// `contents`; adds to that what this one leaves.
    pub(super) fn changes(&mut self, contents: &Contents, before: &mut Before) -> Vec<Change> {
        match self {
            Self::Batch(batch) => batch.changes(contents, before),
            Self::Moves { moves, entries } => {
                let mut changes = Vec::new();
                for (moving, entry) in moves.with(entries) {
                    // What an earlier commit of the group replaces or deletes need not be moved.
                    let stands = contents.is_current(moving)
                        && moving.version.durability == Durability::Durable
                        && !before.tensors.contains_key(&entry.id);
                    changes.extend(stands.then(|| Change::Put(entry.clone())));
                    // What no seal names in the end is not held, whatever the record says of it.
                    if let Some(number) = contents.number_held(moving) {
                        before.held.insert(number);
                        changes.push(Change::Hold(HeldVersion { number, entry: entry.clone() }));
                    }
                }
                changes
            }
        }
    }

    /// Applies the changes: the record is on media: everybody may see it. Returns how many tensors
    /// it changed.
    pub(super) fn apply(&mut self) -> usize {
        match self {
            Self::Batch(batch) => {
                let (mut puts, mut apart) = (Vec::new(), Vec::new());
                for WrittenPut { write, checksums, stands } in std::mem::take(&mut batch.written) {
                    let put = write.take().map(|reservation| (reservation, checksums));
                    if stands { &mut puts } else { &mut apart }.extend(put);
                }
                let changed = puts.len() + batch.deleted.len() + batch.seals.len();
                let mut contents = batch.shared.contents();
                contents.apply(puts, &batch.deleted);
                for (reservation, checksums) in apart {
                    contents.apply_apart(&reservation, &checksums);
                }
                drop(contents);
                for change in std::mem::take(&mut batch.seals) {
                    match change {
                        SealChange::Seal(mut seal) => drop(seal.apply()),
                        SealChange::Drop(name) => drop(batch.shared.contents().drop_seal(&name)),
                    }
                }
                changed
            }
            Self::Moves { moves, entries } => moves.install(std::mem::take(entries)),
        }
    }

    /// Leaves the changes in doubt: the record may or may not be on media: what it names must not
    /// be used until that is known.
    pub(super) fn leave_in_doubt(&mut self) {
        match self {
            Self::Batch(batch) => {
                let written = std::mem::take(&mut batch.written).into_iter();
                for reservation in written.filter_map(|it| it.write.take()) {
                    batch.shared.contents().leave_in_doubt(&reservation);
                }
                for change in &mut batch.seals {
                    if let SealChange::Seal(seal) = change {
                        seal.leave_in_doubt();
                    }
                }
            }
            Self::Moves { moves, .. } => moves.leave_in_doubt(),
        }
    }
}

impl BatchWork {
    fn changes(&mut self, contents: &Contents, before: &mut Before) -> Vec<Change> {
        // What another commit has deleted meanwhile is gone already.
        let stands = |id: &TensorId| {
            let found = contents.current(*id);
            let durable = found.is_some_and(|it| it.durability == Durability::Durable);
            before.tensors.get(id).copied().unwrap_or(durable)
        };
        self.deleted = self.deletes.iter().copied().filter(stands).collect();
        before.tensors.extend(self.fates.iter().map(|(id, leaves)| (*id, *leaves)));
        let mut changes = Vec::with_capacity(self.written.len() + self.deleted.len());
        for WrittenPut { write, checksums, stands } in &self.written {
            let Some(put) = write.reservation() else { continue };
            let Some(entry) = contents.entry(put, checksums) else { continue };
            changes.extend(contents.held_put(put, &entry));
            changes.extend(stands.then_some(Change::Put(entry)));
        }
        changes.extend(self.deleted.iter().map(|id| Change::Delete(*id)));
        for change in &self.seals {
            let name = change.name();
            let stood = before.seals.insert(name.into(), change.leaves_one());
            match change {
                SealChange::Seal(seal) => {
                    let order = before.seal_order.max(contents.last_seal_order()) + 1;
                    before.seal_order = order;
                    let coming = seal.coming();
                    let seal =
                        coming.map(|coming| contents.seal_changes(coming, &before.held, order));
                    changes.extend(seal.into_iter().flatten());
                }
                SealChange::Drop(_) => {
                    let stands = stood.unwrap_or_else(|| contents.seal(name).is_some());
                    changes.extend(stands.then(|| Change::Drop(name.into())));
                }
            }
        }
        changes
    }
}
