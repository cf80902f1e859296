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
    #[allow(clippy::unused_self, reason = "who has the contents to themselves may count")]
    pub fn pin_version(&mut self, version: Arc<Version>) -> Arc<Version> {
        version.readers().begin();
        version
    }

    /// Ends a read.
    pub fn unpin(&mut self, version: Arc<Version>) {
        // Few versions are replaced while they are read.
        if version.readers().end() && !self.retired.is_empty() {
            self.release_retired(&version);
        }
        self.spares.keep(version);
    }

    /// Releases the places of a version that nobody reads any more, unless somebody reads it who
    /// began before it was moved there.
    fn release_retired(&mut self, version: &Arc<Version>) {
        let Entry::Occupied(mut entry) = self.retired.entry(version.serial) else { return };
        let retired = entry.get_mut();
        for place in &mut *retired {
            if place.read.as_ref().is_some_and(|read| Arc::ptr_eq(read, version)) {
                place.read = None;
            }
        }
        let unread = retired.iter().take_while(|place| place.read.is_none()).count();
        for place in retired.drain(..unread) {
            self.space.release(&place.runs);
        }
        if retired.is_empty() {
            entry.remove();
        }
    }
}
