//! Batches: one call for many transfers. A batch is used again only when all of its entries have
//! ended. After a cancel, or a submission that failed half-way, cuFile may never tell of some:
//! these are given up, with what they name.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::path::Status;

use super::driver::Driver;
use super::error::{CuFileError, entry_result};
use super::registered::RegisteredFile;
use super::sys;
use crate::cuda::DevicePointer;

/// Time for which a cancelled batch may report nothing until it counts as lost. What it still has
/// then is lost, not ended: an SSD may have it.
const SILENCE: Duration = Duration::from_millis(100);

/// A batch was not submitted as a whole.
#[derive(Debug)]
pub(crate) enum BatchSubmitError {
    /// The batch was refused: nothing of it happened.
    Refused(CuFileError),
    /// The batch was refused in part: some of it may be on its way: the batch tells of that, or
    /// falls [silent](CuFileBatch::is_silent).
    InPart(CuFileError),
}

impl From<CuFileError> for BatchSubmitError {
    fn from(error: CuFileError) -> Self {
        match error {
            CuFileError::Call { code, .. } if !sys::SUBMIT_REFUSED.contains(&code) => {
                Self::InPart(error)
            }
            CuFileError::Cuda { .. } => Self::InPart(error),
            error => Self::Refused(error),
        }
    }
}

/// One transfer of a batch.
pub(crate) struct CuFileTransfer<'a> {
    pub(crate) file: &'a RegisteredFile,
    /// The start of the registered memory, and how far into it the bytes are.
    pub(crate) memory: DevicePointer,
    pub(crate) memory_offset: u64,
    pub(crate) file_offset: u64,
    pub(crate) length: u32,
    pub(crate) write: bool,
    /// Comes back when it ends.
    pub(crate) cookie: u32,
}

/// A batch of cuFile.
pub(crate) struct CuFileBatch {
    driver: Arc<Driver>,
    handle: sys::BatchHandle,
    entries: Vec<sys::BatchEntry>,
    events: Vec<sys::BatchEvent>,
    capacity: usize,
    /// The cookies of entries that were submitted and have not ended.
    outstanding: Vec<u32>,
    /// Start of a batch's silence, where its entries may never end.
    silent_since: Option<Instant>,
}

// SAFETY: a batch's handle may be used from any thread, by one at a time, which `&mut self` sees
// to.
unsafe impl Send for CuFileBatch {}

impl CuFileBatch {
    /// Sets up a batch of as many entries as the driver allows, and no more than `wanted`.
    pub(crate) fn new(driver: &Arc<Driver>, wanted: u32) -> Result<Self, CuFileError> {
        let functions = &driver.library().functions;
        let set_up = functions.batch_set_up.clone()?;
        functions.batch_submit.clone()?;
        functions.batch_status.clone()?;
        let capacity = wanted.clamp(1, driver.facts().batch_entries_max);
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle.
        let answer = unsafe { set_up(&raw mut handle, capacity) };
        CuFileError::check(answer, format!("set up a batch of {capacity} entries"))?;
        let capacity = capacity as usize;
        Ok(Self {
            driver: Arc::clone(driver),
            handle,
            entries: Vec::with_capacity(capacity),
            events: vec![sys::BatchEvent::EMPTY; capacity],
            capacity,
            outstanding: Vec::with_capacity(capacity),
            silent_since: None,
        })
    }

    /// Returns whether nothing of it is on its way, so that it may be filled.
    pub(crate) fn is_idle(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Returns whether the cu file batch will not tell what became of its
    /// [outstanding](Self::outstanding) entries.
    pub(crate) fn is_silent(&self) -> bool {
        !self.is_idle() && self.silent_since.is_some_and(|since| since.elapsed() >= SILENCE)
    }

    /// The cookies of entries that have not ended.
    pub(crate) fn outstanding(&self) -> &[u32] {
        &self.outstanding
    }

    /// Returns whether another entry fits.
    pub(crate) fn has_room(&self) -> bool {
        self.entries.len() < self.capacity
    }

    /// Adds an entry to what is submitted next.
    pub(crate) fn add(&mut self, entry: &CuFileTransfer<'_>) {
        self.entries.push(sys::BatchEntry {
            mode: sys::BATCH_MODE,
            memory: entry.memory.0 as *mut c_void,
            file_offset: entry.file_offset.cast_signed(),
            memory_offset: entry.memory_offset.cast_signed(),
            length: entry.length as usize,
            file: entry.file.handle(),
            opcode: if entry.write { sys::WRITE } else { sys::READ },
            cookie: entry.cookie as usize as *mut c_void,
        });
    }

    /// Submits what was added.
    ///
    /// # Errors
    /// All of it is as if it had never been added, or some of it may be on its way. That was
    /// cancelled then.
    ///
    /// # Safety
    /// The memory of every entry stays allocated, and nobody touches it in a way that races with
    /// its transfer, until the entry has ended.
    pub(crate) unsafe fn submit(&mut self) -> Result<(), BatchSubmitError> {
        let submit = self.driver.library().functions.batch_submit.clone()?;
        let count = self.entries.len();
        // SAFETY: the entries are valid and as many as is said; their memory is passed on to the
        // caller.
        let answer = unsafe { submit(self.handle, count as u32, self.entries.as_mut_ptr(), 0) };
        self.silent_since = None;
        self.outstanding.extend(self.entries.iter().map(|entry| entry.cookie as usize as u32));
        self.entries.clear();
        let submitted = CuFileError::check(answer, format!("submit a batch of {count} transfers"));
        submitted.map_err(BatchSubmitError::from).inspect_err(|error| match error {
            BatchSubmitError::Refused(_) => self.outstanding.clear(),
            BatchSubmitError::InPart(_) => {
                self.cancel();
                self.silent_since = Some(Instant::now());
            }
        })
    }

    /// Tells of every entry that has ended: its cookie, and the bytes moved or why not.
    pub(crate) fn poll(
        &mut self,
        mut ended: impl FnMut(u32, Result<u32, Status>),
    ) -> Result<(), CuFileError> {
        if self.is_idle() {
            return Ok(());
        }
        let status = self.driver.library().functions.batch_status.clone()?;
        let mut count = self.outstanding.len() as u32;
        let mut at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: `count` says how many events there is room for, and becomes how many there are.
        let answer = unsafe {
            status(self.handle, 0, &raw mut count, self.events.as_mut_ptr(), &raw mut at_once)
        };
        CuFileError::check(answer, "tell how a batch is doing")?;
        for event in &self.events[..(count as usize).min(self.events.len())] {
            let cookie = event.cookie as usize as u32;
            let place = self.outstanding.iter().position(|it| *it == cookie);
            if let (Some(place), Some(result)) = (place, entry_result(event)) {
                self.outstanding.swap_remove(place);
                self.silent_since = self.silent_since.map(|_| Instant::now());
                ended(cookie, result);
            }
        }
        Ok(())
    }

    /// Asks that everything in it ends soon.
    pub(crate) fn cancel(&mut self) {
        let Ok(cancel) = &self.driver.library().functions.batch_cancel else { return };
        // SAFETY: the handle is set up.
        if unsafe { cancel(self.handle) }.code == 0 {
            self.silent_since = Some(Instant::now());
        }
    }
}

impl Drop for CuFileBatch {
    fn drop(&mut self) {
        // A batch that is on its way is left to the process's end: destroying it would not stop the
        // SSD.
        if !self.is_idle() {
            return;
        }
        if let Ok(destroy) = &self.driver.library().functions.batch_destroy {
            // SAFETY: set up in `new`, destroyed once, with nothing on its way.
            unsafe { destroy(self.handle) };
        }
    }
}
