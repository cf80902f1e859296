//! Batches and their transfers: several may be on their way, each is filled with whatever is ready
//! for one device. So a device that does not answer keeps its own batches, and no more than its
//! share of all.

use std::sync::Arc;

use tidelog_engine::path::Status;
use tidelog_engine::path::backend::{
    DmaDirection, Shares, TransferPlace, TransferStatus, Window, WindowTransfer,
};
use tidelog_engine::units::DeviceIndex;

use super::Registered;
use crate::cufile::{BatchSubmitError, CuFileBatch, CuFileError, CuFileTransfer, Driver, sys};

/// Batches on their way at once: enough that one is filled while others fly. For each of many
/// devices there are some.
const BATCHES_MAX: usize = 8;
const BATCHES_EACH: usize = 2;

/// Number of times in a row that the library may say that it is full before that counts as a
/// failure. Others in this process may fill it, too.
const FULL_MAX: u32 = 10_000;

/// The batches of a queue.
pub(super) struct Batches {
    driver: Arc<Driver>,
    full_in_a_row: u32,
    all: Vec<Member>,
    shares: Shares,
}

/// A batch, and the device that has it while it is on its way.
struct Member {
    batch: CuFileBatch,
    device: Option<DeviceIndex>,
    /// The reason why it was not submitted as a whole, where that is so.
    refused: Option<Status>,
}

impl Batches {
    pub(super) fn new(driver: &Arc<Driver>, devices: usize) -> Self {
        let most = BATCHES_MAX.max(BATCHES_EACH * devices);
        Self {
            driver: Arc::clone(driver),
            full_in_a_row: 0,
            all: Vec::with_capacity(most),
            shares: Shares::new(most, devices),
        }
    }

    /// Tells of every transfer that has ended.
    pub(super) fn poll(
        &mut self,
        told: &mut Vec<(u32, TransferStatus)>,
    ) -> Result<(), CuFileError> {
        let mut at = 0;
        while let Some(Member { batch, device, refused }) = self.all.get_mut(at) {
            let refused = *refused;
            batch.poll(|slot, result| told.push((slot, told_of(result, refused))))?;
            let is_silent = batch.is_silent();
            if let Some(device) = device.take_if(|_| is_silent || batch.is_idle()) {
                self.shares.release(device);
            }
            if is_silent {
                let status = refused.unwrap_or(Status::Errno(libc::ECANCELED));
                let lost = |slot: &u32| (*slot, TransferStatus::Lost(status));
                told.extend(batch.outstanding().iter().map(lost));
                // It is not destroyed: that would not stop an SSD.
                self.all.swap_remove(at);
            } else {
                at += 1;
            }
        }
        Ok(())
    }

    pub(super) fn cancel_all(&mut self) {
        for member in self.all.iter_mut().filter(|member| !member.batch.is_idle()) {
            member.batch.cancel();
        }
    }

    /// Submits transfers, as far as there are batches, and tells what became of them.
    ///
    /// # Safety
    /// What the transfers name is registered, and theirs alone until they have ended.
    pub(super) unsafe fn submit(
        &mut self,
        ready: &mut [WindowTransfer],
        registered: &Registered,
        window: &Window,
        told: &mut Vec<(u32, TransferStatus)>,
    ) {
        ready.sort_by_key(|transfer| transfer.device);
        for of_device in ready.chunk_by(|one, other| one.device == other.device) {
            // SAFETY: passed on to the caller.
            if !unsafe { self.submit_to_device(of_device, registered, window, told) } {
                return;
            }
        }
    }

    /// Submits to one device. Returns whether it makes sense to try another.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    unsafe fn submit_to_device(
        &mut self,
        ready: &[WindowTransfer],
        registered: &Registered,
        window: &Window,
        told: &mut Vec<(u32, TransferStatus)>,
    ) -> bool {
        let mut left = ready;
        while let Some((first, others)) = left.split_first() {
            match self.idle(first.device) {
                Ok(None) => return true,
                Ok(Some(at)) => {
                    let count = self.fill(at, left, registered, window);
                    let (members, later) = left.split_at(count);
                    // SAFETY: passed on to the caller.
                    if !unsafe { self.send(at, members, told) } {
                        return false;
                    }
                    left = later;
                }
                // The library sets up only so many at once: those that fly will do.
                Err(_) if self.is_any_in_flight() => return false,
                Err(error) => {
                    told.push((first.slot, TransferStatus::Failed(error.status())));
                    left = others;
                }
            }
        }
        true
    }

    fn is_any_in_flight(&self) -> bool {
        self.all.iter().any(|member| !member.batch.is_idle())
    }

    /// A batch to fill for a device; none if all that it may have are on their way.
    fn idle(&mut self, device: DeviceIndex) -> Result<Option<usize>, CuFileError> {
        if self.shares.left_for(device) == 0 {
            return Ok(None);
        }
        if let Some(at) = self.all.iter().position(|member| member.batch.is_idle()) {
            return Ok(Some(at));
        }
        let batch = CuFileBatch::new(&self.driver, u32::MAX)?;
        self.all.push(Member { batch, device: None, refused: None });
        Ok(Some(self.all.len() - 1))
    }

    /// Puts as many transfers into a batch as it has room for; returns how many.
    fn fill(
        &mut self,
        at: usize,
        ready: &[WindowTransfer],
        registered: &Registered,
        window: &Window,
    ) -> usize {
        let batch = &mut self.all[at].batch;
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
            batch.add(&CuFileTransfer {
                file: &registered.files[usize::from(transfer.device.0)],
                memory,
                memory_offset,
                file_offset: transfer.offset,
                length: transfer.length,
                write: transfer.direction == DmaDirection::Write,
                cookie: transfer.slot,
            });
            count += 1;
        }
        count
    }

    /// Submits a batch with its transfers. Returns whether it makes sense to try another.
    ///
    /// # Safety
    /// As for [`submit`](Self::submit).
    unsafe fn send(
        &mut self,
        at: usize,
        members: &[WindowTransfer],
        told: &mut Vec<(u32, TransferStatus)>,
    ) -> bool {
        let member = &mut self.all[at];
        // SAFETY: passed on to the caller.
        let (taken, refused) = match unsafe { member.batch.submit() } {
            Ok(()) => (true, None),
            // Nothing happened; what is in flight, here or elsewhere, will make room.
            Err(BatchSubmitError::Refused(CuFileError::Call { code: sys::BATCH_FULL, .. }))
                if self.full_in_a_row < FULL_MAX =>
            {
                self.full_in_a_row += 1;
                return false;
            }
            Err(BatchSubmitError::Refused(error)) => (false, Some(error.status())),
            // Nobody says how much of it had begun by then.
            Err(BatchSubmitError::InPart(error)) => (true, Some(error.status())),
        };
        let status = match refused {
            Some(status) if !taken => TransferStatus::Failed(status),
            _ => TransferStatus::Taken,
        };
        told.extend(members.iter().map(|transfer| (transfer.slot, status)));
        if let Some(first) = members.first().filter(|_| taken) {
            self.full_in_a_row = 0;
            self.shares.take(first.device);
            (member.device, member.refused) = (Some(first.device), refused);
        }
        true
    }
}

/// Converts an entry of a batch to the status of its transfer.
fn told_of(result: Result<u32, Status>, refused: Option<Status>) -> TransferStatus {
    match result {
        Ok(moved) => TransferStatus::Moved(moved),
        // It was cancelled because of others.
        Err(status @ Status::Errno(libc::ECANCELED)) => {
            TransferStatus::Failed(refused.unwrap_or(status))
        }
        // cuFile stopped waiting; nobody says that the SSD stopped writing.
        Err(status @ Status::Errno(libc::ETIMEDOUT)) => TransferStatus::Lost(status),
        Err(status) => TransferStatus::Failed(status),
    }
}
