//! Reads in flight, which keep what they read where it is.

use std::collections::hash_map::Entry;
use std::sync::Arc;

use super::Contents;
use crate::layout::TensorId;
use crate::log::version::Version;

impl Contents {
    /// Starts a read: the version's space stays until [`Self::unpin`], whatever happens to the tensor.
    pub fn pin(&mut self, id: TensorId) -> Option<Arc<Version>> {
        let version = Arc::clone(self.current(id)?);
        *self.readers.entry((version.serial, version.moves)).or_default() += 1;
        Some(version)
    }

    /// Ends a read.
    pub fn unpin(&mut self, version: &Version) {
        let Some(readers) = self.readers.get_mut(&(version.serial, version.moves)) else { return };
        *readers -= 1;
        if *readers == 0 {
            self.readers.remove(&(version.serial, version.moves));
            self.release_retired(version.serial);
        }
    }

    /// Gives back the places that no reader of this version knows any more.
    fn release_retired(&mut self, serial: u64) {
        let Entry::Occupied(mut retired) = self.retired.entry(serial) else { return };
        let oldest = self.readers.range((serial, 0)..=(serial, u32::MAX)).next();
        let oldest = oldest.map(|(&(_, moves), _)| moves);
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
