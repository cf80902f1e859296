//! Features that older software does not know: the superblocks say so before the first use.

use std::sync::PoisonError;

use super::media::MetadataIo;
use super::options::PoolDescription;
use super::{Pool, superblocks};
use crate::layout::{Copies, Superblock};
use crate::schedule::Reactor;

/// Features that the superblocks of all devices announce.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Announced {
    /// The index may have seals.
    pub(super) seals: bool,
    /// Tensors may have two copies.
    pub(super) copies: bool,
}

impl Announced {
    /// Makes features of which none is announced.
    pub(super) const NONE: Self = Self { seals: false, copies: false };

    /// Returns what all of these superblocks announce.
    pub(super) fn by(superblocks: &[Superblock]) -> Self {
        let all = |is: fn(&Superblock) -> bool| superblocks.iter().all(is);
        Self { seals: all(|it| it.seals), copies: all(|it| it.copies.is_some()) }
    }

    /// Adds those of another.
    pub(super) fn or(self, other: Self) -> Self {
        Self { seals: self.seals || other.seals, copies: self.copies || other.copies }
    }

    /// Sets the features in a superblock.
    pub(super) fn set(self, superblock: &mut Superblock) {
        superblock.seals |= self.seals;
        if self.copies {
            superblock.copies.get_or_insert(Copies::One);
        }
    }
}

impl Pool {
    /// Has the superblocks announce these features, too, before the first use of any.
    ///
    /// # Errors
    /// A device failed.
    pub(super) fn announce(&self, reactor: &Reactor, features: Announced) -> Result<(), String> {
        let mut announced = self.0.announced.lock().unwrap_or_else(PoisonError::into_inner);
        let all = announced.or(features);
        if all != *announced {
            let PoolDescription { pool, geometry, .. } = &self.0.description;
            let written = &self.0.shared.written.metadata;
            let missing = self.absent();
            let media = MetadataIo { reactor, written, missing };
            // Those who own other shares may have written them since this one was opened.
            let now = superblocks::read(&media, *pool, geometry, missing)?;
            superblocks::rewrite(&media, &now, |superblock| features.set(superblock))
                .map_err(|error| error.to_string())?;
            *announced = all;
        }
        Ok(())
    }
}
