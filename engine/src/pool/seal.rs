//! Seals: sets of tensor versions under a name, by reference.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use super::announce::Announced;
use super::error::{SealError, Unusable};
use super::{Pool, ReclaimError, Shared};
use crate::layout::{NAME_BYTES_MAX, Seal, TensorId, TensorKey};
use crate::log::{ComingSeal, Contents, OwnChange, SealRefusal, Version, Wanted};
use crate::units::ByteCount;

/// A seal, as [`Pool::seals`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealDescription {
    /// The name.
    pub name: String,
    /// Time at which it was made, in seconds since 1970.
    pub sealed_at: u64,
    /// Place among the commits of seals of its share, from 1, whatever the clock said; 0 where
    /// older software made it.
    pub order: u64,
    /// Number of tensors.
    pub tensors: usize,
    /// Size in bytes.
    pub bytes: ByteCount,
    /// Space that it alone holds: what is free once it is dropped.
    pub alone: ByteCount,
}

impl SealDescription {
    pub(super) fn of(contents: &Contents, seal: &Seal) -> Self {
        Self {
            name: seal.name.to_string(),
            sealed_at: seal.sealed_at,
            order: seal.order,
            tensors: seal.versions.len(),
            bytes: ByteCount(contents.sealed(seal).map(|version| version.entry.length).sum()),
            alone: contents.bytes_of_seal_alone(seal),
        }
    }
}

/// A tensor that a seal holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SealedTensor {
    /// The id.
    pub id: TensorId,
    /// Name, if it was put by one.
    pub name: Option<String>,
    /// The length.
    pub length: ByteCount,
}

impl Pool {
    /// The seals, in the order of their names. As for [`Pool::durable_tensors`], a commit in doubt
    /// counts as not made.
    pub fn seals(&self) -> Result<Vec<SealDescription>, Unusable> {
        self.check_usable()?;
        let contents = self.0.shared.contents();
        Ok(contents.seals().map(|seal| SealDescription::of(&contents, seal)).collect())
    }

    /// Returns the tensors of a seal, in the order in which it was given.
    ///
    /// # Errors
    /// There is no seal of this name, or the handle is of no use.
    pub fn sealed_tensors(&self, seal: &str) -> Result<Vec<SealedTensor>, SealError> {
        self.check_usable()?;
        let contents = self.0.shared.contents();
        let found = contents.seal(seal).ok_or_else(|| SealError::Absent(seal.into()))?;
        let describe = |version: &Arc<Version>| SealedTensor {
            id: version.entry.id,
            name: version.entry.name.as_deref().map(str::to_owned),
            length: ByteCount(version.entry.length),
        };
        Ok(contents.sealed(found).map(describe).collect())
    }

    /// Begins a seal of what another one holds under these keys, or else what its `own` batch has
    /// put or stands under them now.
    pub(super) fn begin_seal(
        &self,
        name: &str,
        keys: &[TensorKey],
        from: Option<&str>,
        own: &HashMap<TensorId, OwnChange>,
    ) -> Result<SealInFlight, SealError> {
        let reactor = self.reactor()?;
        let reactor = reactor.as_ref().ok_or(Unusable::Closed)?;
        if self.is_read_only() {
            return Err(SealError::ReadOnly(name.into()));
        }
        if name.is_empty() || name.len() > NAME_BYTES_MAX {
            return Err(SealError::Name(name.len()));
        }
        // The index on the media may have seals from the next commit on.
        let seals = Announced { seals: true, ..Announced::NONE };
        self.announce(reactor, seals).map_err(SealError::Announce)?;
        let sealed_at = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_secs());
        let ids: Vec<TensorId> = keys.iter().map(|key| key.id).collect();
        let mut turn = None;
        let mut last = false;
        let refusal = loop {
            let mut contents = self.0.shared.contents();
            let refusal = match contents.begin_seal((name, sealed_at), &ids, from, own) {
                Ok(coming) => return Ok(SealInFlight::new(&self.0.shared, name, coming)),
                Err(refusal) => refusal,
            };
            let SealRefusal::Full(full) = &refusal else { break refusal };
            // The index wants whole segments: reclamation may free some.
            let enough = full.available.0.saturating_add(contents.reclaimable());
            drop(contents);
            if last || full.needed.0 > enough {
                break refusal;
            }
            let turn = turn.get_or_insert_with(|| self.reclaim_turn());
            last = match turn.reclaim(reactor, Wanted::ANY) {
                Ok(Some(_)) | Err(ReclaimError::Unreadable { .. }) => false,
                Ok(None) | Err(_) => true,
            };
        };
        let called = |id: TensorId| keys.iter().find(|key| key.id == id).cloned();
        Err(SealError::from_refusal(name, refusal, |id| called(id).unwrap_or_else(|| id.into())))
    }
}

/// A seal on its way. Dropped without being used, it releases what it holds.
pub(super) struct SealInFlight {
    shared: Arc<Shared>,
    pub(super) name: Box<str>,
    coming: Option<ComingSeal>,
}

impl SealInFlight {
    fn new(shared: &Arc<Shared>, name: &str, coming: ComingSeal) -> Self {
        Self { shared: Arc::clone(shared), name: name.into(), coming: Some(coming) }
    }

    /// Returns the seal in the log, still held by this.
    pub(super) fn coming(&self) -> Option<&ComingSeal> {
        self.coming.as_ref()
    }

    /// Applies the seal: it is on the media. Returns how many tensors it holds.
    pub(super) fn apply(&mut self) -> usize {
        self.coming.take().map_or(0, |coming| self.shared.contents().apply_seal(&coming))
    }

    /// Leaves the seal in doubt: it may or may not be on the media.
    pub(super) fn leave_in_doubt(&mut self) {
        if let Some(coming) = self.coming.take() {
            self.shared.contents().leave_seal_in_doubt(&coming);
        }
    }
}

impl Drop for SealInFlight {
    fn drop(&mut self) {
        if let Some(coming) = self.coming.take() {
            self.shared.contents().abandon_seal(&coming);
        }
    }
}
