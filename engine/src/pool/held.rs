//! Resources of operations in flight, released wherever they end.

use std::sync::Arc;

use super::Shared;
use super::error::GetError;
use crate::layout::{TensorId, TensorKey};
use crate::log::{Reservation, Version};
use crate::schedule::Subject;

/// The space of a write. Dropped without being used, it is given back.
pub(super) struct PendingWrite {
    shared: Arc<Shared>,
    reservation: Option<Reservation>,
}

impl PendingWrite {
    pub(super) fn new(shared: Arc<Shared>, reservation: Reservation) -> Self {
        Self { shared, reservation: Some(reservation) }
    }

    /// The write is complete: the scratch tensor can be read.
    pub(super) fn install(mut self, checksums: &[u32]) {
        if let Some(reservation) = self.reservation.take() {
            self.shared.contents().install(&reservation, checksums);
        }
    }

    /// The reservation, still held by this.
    pub(super) fn reservation(&self) -> Option<&Reservation> {
        self.reservation.as_ref()
    }

    /// The reservation, for whoever goes on with it.
    pub(super) fn take(mut self) -> Option<Reservation> {
        self.reservation.take()
    }
}

impl Drop for PendingWrite {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.shared.contents().abandon(&reservation);
        }
    }
}

/// A version that is being read: its space stays until this is dropped.
pub(super) struct Reading {
    shared: Arc<Shared>,
    /// Gone only while this is dropped.
    version: Option<Arc<Version>>,
}

impl Reading {
    pub(super) fn start(shared: &Arc<Shared>, id: TensorId) -> Option<Self> {
        let version = shared.contents().pin(id);
        version.is_some().then(|| Self { shared: Arc::clone(shared), version })
    }

    /// Starts a read of the version that has this number.
    pub(super) fn start_held(shared: &Arc<Shared>, number: u64) -> Option<Self> {
        let version = shared.contents().pin_held(number);
        version.is_some().then(|| Self { shared: Arc::clone(shared), version })
    }

    /// Starts a read of a version, where it lies now, if it stands or a seal holds it.
    pub(super) fn start_kept(shared: &Arc<Shared>, version: &Version) -> Option<Self> {
        let version = shared.contents().pin_kept(version);
        version.is_some().then(|| Self { shared: Arc::clone(shared), version })
    }

    /// Starts a read of the tensor that a seal holds under this id.
    pub(super) fn start_sealed(
        shared: &Arc<Shared>,
        seal: &str,
        key: &TensorKey,
    ) -> Result<Self, GetError> {
        let mut contents = shared.contents();
        let found = contents.seal(seal).ok_or_else(|| GetError::NoSeal(seal.into()))?;
        let version = contents.sealed_version(found, key.id).cloned();
        let not_sealed = || GetError::NotSealed { seal: seal.to_owned(), tensor: key.clone() };
        let version = Some(contents.pin_version(version.ok_or_else(not_sealed)?));
        Ok(Self { shared: Arc::clone(shared), version })
    }

    pub(super) fn version(&self) -> &Arc<Version> {
        self.version.as_ref().expect("it is there until the drop")
    }

    /// The version, for errors to name it.
    pub(super) fn subject(&self) -> Subject {
        Subject::named(Arc::clone(self.version()) as Arc<_>)
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if let Some(version) = self.version.take() {
            self.shared.contents().unpin(version);
        }
    }
}
