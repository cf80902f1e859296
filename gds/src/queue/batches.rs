//! Which batch has which part: several may be on their way, each is filled with whatever is ready.

use std::sync::Arc;

use tidelog_engine::path::Status;
use tidelog_engine::path::backend::{Direction, Told, Transfer, TransferPlace, Window};

use super::Registered;
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

    /// Tells of every part that has ended.
    pub(super) fn poll(&mut self, told: &mut Vec<(u32, Told)>) -> Result<(), CuFileError> {
        let mut ended = |part, result| told.push((part, told_of(result)));
        self.all.iter_mut().try_for_each(|batch| batch.poll(&mut ended))
    }

    pub(super) fn cancel_all(&mut self) {
        for batch in self.all.iter_mut().filter(|batch| !batch.is_idle()) {
            batch.cancel();
        }
    }

    /// Submits parts, as far as there are batches, and tells what became of them.
    ///
    /// # Safety
    /// What the parts name is registered, and theirs alone until they have ended.
    pub(super) unsafe fn submit(
        &mut self,
        ready: &[Transfer],
        registered: &Registered,
        window: &Window,
        told: &mut Vec<(u32, Told)>,
    ) {
        let mut left = ready;
        while let Some((first, others)) = left.split_first() {
            match self.idle() {
                Ok(None) => return,
                Ok(Some(at)) => {
                    let count = self.fill(at, left, registered, window);
                    let (members, later) = left.split_at(count);
                    // SAFETY: passed on to the caller.
                    if !unsafe { self.send(at, members, told) } {
                        return;
                    }
                    left = later;
                }
                // The library sets up only so many at once: those that fly will do.
                Err(_) if self.is_any_flying() => return,
                Err(error) => {
                    told.push((first.part, Told::Failed(error.status())));
                    left = others;
                }
            }
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

    /// Puts as many parts into a batch as it has room for; answers how many.
    fn fill(
        &mut self,
        at: usize,
        ready: &[Transfer],
        registered: &Registered,
        window: &Window,
    ) -> usize {
        let batch = &mut self.all[at];
        let mut count = 0;
        for transfer in ready {
            if !batch.has_room() {
                break;
            }
            let (memory, memory_offset) = match transfer.place {
                TransferPlace::Chunk(chunk) => (registered.window.base(), window.offset_of(chunk)),
                TransferPlace::Direct { region, offset } => {
                    (registered.regions[region].base(), offset)
                }
            };
            batch.add(&Entry {
                file: &registered.files[usize::from(transfer.device.0)],
                memory,
                memory_offset,
                file_offset: transfer.offset,
                length: transfer.length,
                write: transfer.direction == Direction::Write,
                cookie: transfer.part,
            });
            count += 1;
        }
        count
    }

    /// Submits a batch with its parts. Answers whether it makes sense to try another.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    unsafe fn send(
        &mut self,
        at: usize,
        members: &[Transfer],
        told: &mut Vec<(u32, Told)>,
    ) -> bool {
        // SAFETY: passed on to the caller.
        match unsafe { self.all[at].submit() } {
            Ok(()) => {
                self.full_in_a_row = 0;
                told.extend(members.iter().map(|member| (member.part, Told::Taken)));
                true
            }
            // Nothing happened; what flies, here or elsewhere, will make room.
            Err(CuFileError::Call { code: sys::BATCH_FULL, .. })
                if self.full_in_a_row < FULL_MAX =>
            {
                self.full_in_a_row += 1;
                false
            }
            Err(error) => {
                let ended = self.abandon(at, error.status());
                told.extend(members.iter().map(|member| (member.part, ended)));
                true
            }
        }
    }

    /// A batch was refused, and nobody says how much of it had begun by then. Answers what became of its parts.
    fn abandon(&mut self, at: usize, status: Status) -> Told {
        let mut batch = self.all.swap_remove(at);
        if batch.cancel() {
            return Told::Failed(status);
        }
        // Destroying what may be on its way would not stop it.
        std::mem::forget(batch);
        Told::Lost(status)
    }
}

/// What an entry of a batch says of its part.
fn told_of(result: Result<u32, Status>) -> Told {
    match result {
        Ok(moved) => Told::Moved(moved),
        // cuFile stopped waiting; nobody says that the SSD stopped writing.
        Err(status @ Status::Errno(libc::ETIMEDOUT)) => Told::Lost(status),
        Err(status) => Told::Failed(status),
    }
}
