//! A pause: nothing has memory but what cannot leave, and nothing comes back until it is over.

use super::machine::Residency;
use super::storage::{BytesPlace, ResidentStorage};
use super::types::{EvictError, StorageId};

impl Residency {
    /// Begins a pause: all that may leave is to leave, also what could not be written before.
    /// [`Self::settle`] is due, which has ended when all of it is out. An op that ran or waited
    /// ended here.
    ///
    /// # Errors
    /// Nothing leaves where an asynchronous use keeps a storage here that could: which one.
    pub fn pause(&mut self) -> Result<(), EvictError> {
        let each = || self.storages.iter().enumerate();
        let in_use = |it: &ResidentStorage| !it.dead && !it.stays() && it.async_use;
        let mut used = each().filter(|(_, storage)| storage.as_ref().is_some_and(in_use));
        if let Some((index, _)) = used.next() {
            return Err(EvictError::AsyncUse(StorageId(index as u32)));
        }
        let had_memory = |(index, storage): (usize, &Option<ResidentStorage>)| {
            let is_here = |it: &ResidentStorage| !it.dead && !matches!(it.place, BytesPlace::Out);
            storage.as_ref().is_some_and(is_here).then_some(StorageId(index as u32))
        };
        let here = each().filter_map(had_memory).collect();
        self.abandon();
        self.retry_failed();
        self.paused.get_or_insert(here);
        Ok(())
    }

    /// Ends a pause. Returns what had memory when it began, if there was one. [`Self::settle`] is
    /// due.
    pub fn go_on_after_pause(&mut self) -> Vec<StorageId> {
        self.paused.take().unwrap_or_default()
    }
}
