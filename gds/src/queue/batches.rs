//! Which batch has which part: several may be on their way, each is filled with whatever is ready.

use std::sync::Arc;

use tidelog_engine::path::Status;

use super::Queue;
use super::parts::{Place, Stage};
use crate::cufile::{Batch, CuFileError, Driver, Entry, sys};

/// Batches on their way at once: enough that one is filled while others fly.
const BATCHES_MAX: usize = 8;

/// So often in a row the library may say that it is full before that counts as a failure. Others in this process may
/// fill it, too.
const FULL_MAX: u32 = 10_000;

/// The batches of a queue.
pub(super) struct Batches {
    driver: Arc<Driver>,
    full_in_a_row: u32,
    all: Vec<Batch>,
}

impl Batches {
    pub(super) fn new(driver: &Arc<Driver>) -> Self {
        Self { driver: Arc::clone(driver), full_in_a_row: 0, all: Vec::with_capacity(BATCHES_MAX) }
    }

    pub(super) fn poll(
        &mut self,
        mut ended: impl FnMut(u32, Result<u32, Status>),
    ) -> Result<(), CuFileError> {
        self.all.iter_mut().try_for_each(|batch| batch.poll(&mut ended))
    }

    pub(super) fn cancel_all(&mut self) {
        for batch in self.all.iter_mut().filter(|batch| !batch.is_idle()) {
            batch.cancel();
        }
    }

    fn is_any_flying(&self) -> bool {
        self.all.iter().any(|batch| !batch.is_idle())
    }

    /// A batch to fill; none if all are on their way.
    fn idle(&mut self) -> Result<Option<usize>, CuFileError> {
        if let Some(at) = self.all.iter().position(Batch::is_idle) {
            return Ok(Some(at));
        }
        if self.all.len() == BATCHES_MAX {
            return Ok(None);
        }
        self.all.push(Batch::new(&self.driver, u32::MAX)?);
        Ok(Some(self.all.len() - 1))
    }
}

impl Queue {
    /// Submits everything that is ready, as far as there are batches.
    pub(super) fn submit_ready(&mut self) {
        loop {
            let Some(first) = self.parts.at(Stage::Ready).next() else { return };
            match self.batches.idle() {
                Ok(None) => return,
                Ok(Some(batch)) => {
                    if !self.submit_batch(batch) {
                        return;
                    }
                }
                // The library sets up only so many at once: those that fly will do.
                Err(_) if self.batches.is_any_flying() => return,
                Err(error) => self.end_part(first, Err(error.status())),
            }
        }
    }

    /// Fills a batch and submits it. Answers whether it makes sense to try another.
    fn submit_batch(&mut self, at: usize) -> bool {
        let mut members =
            Vec::with_capacity(self.batches.driver.facts().batch_entries_max as usize);
        for slot in self.parts.at(Stage::Ready) {
            let Some(part) = self.parts.get(slot) else { continue };
            let (Some((device, file_offset, write)), Some(registered)) =
                (self.target(part), &self.registered)
            else {
                continue;
            };
            let (memory, memory_offset) = match &part.place {
                Place::Chunk(chunk) => (registered.ring.base(), self.ring.offset(chunk)),
                Place::Direct { region, offset } => (registered.regions[*region].base(), *offset),
            };
            let (file, length) = (&registered.files[device], part.length);
            let entry =
                Entry { file, memory, memory_offset, file_offset, length, write, cookie: slot };
            let batch = &mut self.batches.all[at];
            if !batch.has_room() {
                break;
            }
            batch.add(&entry);
            members.push(slot);
        }
        // SAFETY: every part is ready: its chunk is its own and filled, or its memory is the caller's until the answer;
        // both stay as they are while the part flies.
        let submitted = unsafe { self.batches.all[at].submit() };
        match submitted {
            Ok(()) => {
                self.batches.full_in_a_row = 0;
                for slot in members {
                    self.parts
                        .get_mut(slot)
                        .into_iter()
                        .for_each(|part| part.stage = Stage::Flying);
                }
                true
            }
            // Nothing happened; what flies, here or elsewhere, will make room.
            Err(CuFileError::Call { code: sys::BATCH_FULL, .. })
                if self.batches.full_in_a_row < FULL_MAX =>
            {
                self.batches.full_in_a_row += 1;
                false
            }
            Err(error) => {
                self.abandon(at, &members, error.status());
                true
            }
        }
    }

    /// A batch was refused, and nobody says how much of it had begun by then.
    fn abandon(&mut self, at: usize, members: &[u32], status: Status) {
        let mut batch = self.batches.all.swap_remove(at);
        let stopped = batch.cancel();
        if !stopped {
            // Destroying what may be on its way would not stop it.
            std::mem::forget(batch);
        }
        for slot in members {
            if stopped {
                self.end_part(*slot, Err(status));
            } else {
                self.lose(*slot, status);
            }
        }
    }
}
