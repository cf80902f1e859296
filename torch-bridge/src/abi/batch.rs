//! Durable tensors, in batches: what a batch holds appears whole with its commit, or not at all.

use std::ffi::{c_char, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use tidelog_engine::memory::Source;
use tidelog_engine::pool::{Batch, Commit, PutOptions};

use super::handles::HandleTable;
use super::pool::{OpenPool, POOLS};
use super::ticket::give_out;
use super::transfer::source;
use super::{boundary, check_result, text_argument, write_result};
use crate::error::{Failure, FailureKind};

pub(super) static BATCHES: HandleTable<OpenBatch> = HandleTable::new("batch");

/// A batch, until it is committed, and its pool.
pub(super) struct OpenBatch {
    pool: Arc<OpenPool>,
    batch: Mutex<Option<Batch>>,
}

/// Begins a batch of durable tensors: what it holds appears whole with its commit, or not at all.
///
/// # Safety
/// `batch` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_batch_begin(pool: u64, batch: *mut u64) -> i32 {
    boundary(|| {
        let pool = POOLS.get(pool)?;
        let begun = Mutex::new(Some(pool.batch()));
        let handle = BATCHES.insert(OpenBatch { pool, batch: begun });
        // SAFETY: by this function's contract.
        unsafe { write_result(batch, handle, "batch") }.inspect_err(|_| {
            drop(BATCHES.remove(handle));
        })?;
        Ok(())
    })
}

/// Adds a durable tensor to a batch. Its bytes go through staging memory: the call returns when the
/// memory is the caller's again, which takes as long as the devices do where there is more than
/// staging holds.
///
/// # Safety
/// `name` is NUL-terminated; `address` has `length` bytes that nobody writes during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_batch_put(
    batch: u64,
    name: *const c_char,
    address: *const c_void,
    length: u64,
) -> i32 {
    boundary(|| {
        let batch = BATCHES.get(batch)?;
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        // SAFETY: by this function's contract; `batch_put` waits for the release.
        let source = unsafe { source(address, length) }?;
        batch_put(&batch, name, source)
    })
}

/// Adds the deletion of a durable tensor to a batch.
///
/// # Safety
/// `name` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_batch_delete(batch: u64, name: *const c_char) -> i32 {
    boundary(|| {
        let batch = BATCHES.get(batch)?;
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        with_batch(&batch, |batch| Ok(batch.delete(name)?))?;
        Ok(())
    })
}

/// Commits a batch and ends it, whatever the answer: on `TIDE_READY` everything in it is on the
/// media.
#[unsafe(no_mangle)]
pub extern "C" fn tide_batch_commit(batch: u64) -> i32 {
    boundary(|| {
        start_commit(&*BATCHES.remove(batch)?)?.wait()?;
        Ok(())
    })
}

/// Starts a commit, as `tide_batch_commit` does, without waiting: everything in the batch is on the
/// media once the ticket is ready. Commits become durable in the order in which they were started,
/// and those that are in flight together share their flushes. A commit that was started cannot be
/// cancelled, and closing the pool waits for it.
///
/// # Safety
/// `ticket` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_batch_start_commit(batch: u64, ticket: *mut u64) -> i32 {
    boundary(|| {
        BATCHES.get(batch)?;
        // What is refused for this has not ended the batch.
        check_result(ticket, "ticket")?;
        let batch = BATCHES.remove(batch)?;
        let commit = start_commit(&batch)?;
        // SAFETY: by this function's contract.
        unsafe { give_out(&batch.pool, commit, ticket) }
    })
}

/// Drops a batch: nothing in it happens.
#[unsafe(no_mangle)]
pub extern "C" fn tide_batch_drop(batch: u64) -> i32 {
    boundary(|| {
        BATCHES.remove(batch)?;
        Ok(())
    })
}

fn start_commit(batch: &OpenBatch) -> Result<Commit, Failure> {
    let begun = batch.batch.lock().unwrap_or_else(PoisonError::into_inner).take();
    let begun = begun.ok_or_else(|| Failure::invalid("the batch was committed already"))?;
    Ok(begun.start_commit()?)
}

pub(super) fn with_batch<T>(
    batch: &OpenBatch,
    body: impl FnOnce(&mut Batch) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut batch = batch.batch.lock().unwrap_or_else(PoisonError::into_inner);
    body(batch.as_mut().ok_or_else(|| Failure::invalid("the batch was committed already"))?)
}

/// Puts a durable tensor, and waits until the source is the caller's again. How the write ends is
/// for the commit to tell.
pub(super) fn batch_put(batch: &OpenBatch, name: &str, source: Source) -> Result<(), Failure> {
    // Waited for without the lock: others may go on with the batch.
    let ticket = with_batch(batch, |batch| Ok(batch.put(name, source, PutOptions::default())?))?;
    ticket.wait_released().map_err(|error| {
        let text = format!("the memory must stay allocated until the process ends: {error}");
        Failure::new(FailureKind::Transfer, text)
    })?;
    Ok(())
}
