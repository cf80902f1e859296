//! Reads in flight, which keep what they read where it is.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::Contents;
use crate::layout::TensorId;
use crate::log::version::Version;

impl Contents {
    /// Starts a read: the version's space stays until [`Self::unpin`], whatever happens to the
    /// tensor.
    pub fn pin(&mut self, id: TensorId) -> Option<Arc<Version>> {
        let version = Arc::clone(self.current(id)?);
        Some(self.pin_version(version))
    }

    /// Pins the version of this number, as [`Self::pin`] does.
    pub fn pin_held(&mut self, number: u64) -> Option<Arc<Version>> {
        let version = Arc::clone(self.held(number)?);
        Some(self.pin_version(version))
    }

    /// Pins a version that stands or is held, as [`Self::pin`] does.
    pub fn pin_kept(&mut self, version: &Version) -> Option<Arc<Version>> {
        let current = self.current(version.entry.id).filter(|it| it.serial == version.serial);
        let held = || self.held(self.number_of(version)?);
        let kept = Arc::clone(current.or_else(held)?);
        Some(self.pin_version(kept))
    }

    /// Pins a version that can be read, as [`Self::pin`] does.
    pub fn pin_version(&mut self, version: Arc<Version>) -> Arc<Version> {
        let readers = self.readers.entry(version.serial).or_default();
        match readers.iter_mut().find(|(moves, _)| *moves == version.moves) {
            Some((_, count)) => *count += 1,
            None => readers.push((version.moves, 1)),
        }
        version
    }

    /// Ends a read.
    pub fn unpin(&mut self, version: Arc<Version>) {
        let Version { serial, moves, .. } = *version;
        let Entry::Occupied(mut entry) = self.readers.entry(serial) else { return };
        let readers = entry.get_mut();
        let Some(at) = readers.iter().position(|(moved, _)| *moved == moves) else { return };
        readers[at].1 -= 1;
        if readers[at].1 == 0 {
            readers.swap_remove(at);
            if readers.is_empty() {
                entry.remove();
            }
            self.release_retired(serial);
        }
        self.spares.keep(version);
    }

    /// Gives back the places that no reader of this version knows any more.
    fn release_retired(&mut self, serial: u64) {
        // Few versions are replaced while they are read.
        if self.retired.is_empty() {
            return;
        }
        let Entry::Occupied(mut retired) = self.retired.entry(serial) else { return };
        let readers = self.readers.get(&serial).into_iter().flatten();
        let oldest = readers.map(|(moves, _)| *moves).min();
        retired.get_mut().retain(|place| {
            let read = oldest.is_some_and(|oldest| oldest <= place.moves);
            if !read {
                self.space.release(&place.runs);
            }
            read
        });
        if retired.get().is_empty() {
            retired.remove();
        }
    }
}
