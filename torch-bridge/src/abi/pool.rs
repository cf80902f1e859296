//! The tensor log itself, for frameworks that do their own residency: put, get, delete, commit.

use std::ffi::{c_char, c_void};
use std::ops::Range;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tidelog_engine::layout::{LifetimeClass, TensorId};
use tidelog_engine::memory::{Destination, ForeignDestination, ForeignSource, Source};
use tidelog_engine::pool::{Batch, Pool, PutOptions};
use tidelog_engine::schedule::{Ticket, Urgency};
use tidelog_gds::CallerRegion;
use tidelog_gds::cuda::DevicePointer;

use super::handles::HandleTable;
use super::{
    Options, boundary, check_length, check_result, options_argument, place_numbered, text_argument,
    write_answer, write_result,
};
use crate::error::{Failure, FailureKind};
use crate::executor::Readiness;
use crate::pool::{PoolConfig, open_pool, pool_figures};

pub(super) static POOLS: HandleTable<Pool> = HandleTable::new("pool");
static TICKETS: HandleTable<Ticket> = HandleTable::new("ticket");
pub(super) static BATCHES: HandleTable<OpenBatch> = HandleTable::new("batch");

/// A batch, until it is committed.
pub(super) type OpenBatch = Mutex<Option<Batch>>;

/// In `flags` of a transfer: it goes before those that are not urgent.
pub const TIDE_URGENT: u32 = 1;

/// How to open a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tide_pool_options {
    /// `sizeof` this struct: tells which version of it the caller was built with.
    pub size: u64,
    /// Devices of the pool, separated by commas: directories, files or block devices.
    pub devices: *const c_char,
    /// "auto", "uring", "uring-cmd" or "posix"; where a GPU is named also "gds" and "gds-compat".
    pub data_path: *const c_char,
    /// Bytes of staging buffers.
    pub staging: u64,
    /// Bytes of the pool where Tidelog makes the files of directories; 0 lets it choose.
    pub pool_size: u64,
    /// The share of the pool to own.
    pub share: u32,
    /// Non-zero allows a file system without `O_DIRECT`.
    pub buffered: u8,
    /// CUDA's number of the GPU whose memory `tide_put_gpu` and `tide_get_gpu` name, plus one; 0:
    /// none.
    pub gpu: u8,
    /// Where that GPU's memory begins that transfers by "gds" read and write in place, without a
    /// copy, from multiples of 4 KiB on: an arena of `cuMemAlloc`'s. It stays allocated until
    /// `tide_pool_close` has returned. What cuFile refuses to register is copied like other memory
    /// (the data path's notes in the statistics say why). 0: none.
    pub arena: u64,
    /// Its bytes.
    pub arena_bytes: u64,
    /// Non-zero refuses a pool that is not there. Otherwise one is made where none of its devices
    /// exists; and where a file system is not mounted, its directory is empty, and the pool would
    /// be made on another disk.
    pub must_exist: u64,
}

// SAFETY: numbers and pointers, of which any bytes are a value; `size` comes first.
unsafe impl Options for tide_pool_options {
    const NAME: &str = "tide_pool_options";
    const LENGTH_MIN: usize = std::mem::offset_of!(Self, arena);
}

/// Opens a share of a pool, formatting it first where its devices are fresh directories, unless it
/// must exist.
///
/// # Safety
/// `options` points to options as long as their `size` says, whose texts are NUL-terminated; `pool`
/// points to one `uint64_t`. An arena that the options name stays allocated until the pool is
/// closed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_pool_open(options: *const tide_pool_options, pool: *mut u64) -> i32 {
    boundary(|| {
        // SAFETY: by this function's contract null or one set of options, as long as it says.
        let options = unsafe { options_argument(options) }?;
        let config = PoolConfig {
            // SAFETY: by this function's contract null or NUL-terminated.
            devices: unsafe { text_argument(options.devices, "devices") }?,
            // SAFETY: as above.
            data_path: unsafe { text_argument(options.data_path, "data_path") }?,
            staging: options.staging,
            size: options.pool_size,
            share: options.share,
            buffered: options.buffered != 0,
            must_exist: options.must_exist != 0,
            share_count: 1,
            place: place_numbered(options.gpu),
            // SAFETY: by this function's contract it stays until the pool is closed.
            arena: unsafe { arena_of(&options) },
        };
        let handle = POOLS.insert(open_pool(&config)?.pool);
        // SAFETY: by this function's contract null or one u64 of the caller's.
        unsafe { write_result(pool, handle, "pool") }.inspect_err(|_| {
            drop(POOLS.remove(handle));
        })?;
        Ok(())
    })
}

/// The memory that is read and written in place, if any is named.
///
/// # Safety
/// It stays allocated until the pool that is opened with it is closed.
unsafe fn arena_of(options: &tide_pool_options) -> Option<CallerRegion> {
    let length = usize::try_from(options.arena_bytes).unwrap_or(usize::MAX);
    // SAFETY: by this function's contract.
    let region = || unsafe { CallerRegion::new(DevicePointer(options.arena), length) };
    (options.arena != 0 || options.arena_bytes != 0).then(region)
}

/// Closes a pool: waits for its transfers and releases the share.
#[unsafe(no_mangle)]
pub extern "C" fn tide_pool_close(pool: u64) -> i32 {
    boundary(|| {
        POOLS.remove(pool)?.close().map_err(Failure::pool)?;
        Ok(())
    })
}

/// Figures of the pool since it was opened as JSON, written to `buffer`: `data_path` and `why_not`
/// a better one; `pool` with `capacity`, `live`, `dead`, `free` and `index` in bytes; `devices`
/// with `bytes_read`, `bytes_written` and `errors` of each; `endurance` as the devices count it.
/// Returns the text's length, 0 for an error.
///
/// # Safety
/// `buffer` is null or has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_pool_stats(pool: u64, buffer: *mut c_char, capacity: usize) -> usize {
    let figures = || {
        let pool = POOLS.get(pool)?;
        let endurance = pool.endurance()?;
        let figures = pool_figures(Some(&pool.stats()?), Some(&endurance));
        Ok(Value::Object(figures).to_string())
    };
    // SAFETY: by this function's contract.
    unsafe { write_answer(figures, buffer, capacity) }
}

/// The names of the durable tensors as JSON, `["name", ...]`, written to `buffer`; null for one
/// that has none. Returns the text's length, 0 for an error.
///
/// # Safety
/// `buffer` is null or has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_pool_list(pool: u64, buffer: *mut c_char, capacity: usize) -> usize {
    let names = || {
        let tensors = POOLS.get(pool)?.durable_tensors()?;
        Ok(json!(tensors.iter().map(|(_, name)| name).collect::<Vec<_>>()).to_string())
    };
    // SAFETY: by this function's contract.
    unsafe { write_answer(names, buffer, capacity) }
}

/// Writes `length` bytes as the scratch tensor `name`, replacing an older version once complete.
/// The memory belongs to the library until `tide_ticket_released` says otherwise, also after
/// `tide_ticket_drop`.
///
/// # Safety
/// `name` is NUL-terminated; `address` has `length` bytes that nobody writes until the ticket is
/// released; `ticket` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_put(
    pool: u64,
    name: *const c_char,
    address: *const c_void,
    length: u64,
    flags: u32,
    ticket: *mut u64,
) -> i32 {
    boundary(|| {
        let pool = POOLS.get(pool)?;
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        // SAFETY: by this function's contract.
        let source = unsafe { source(address, length) }?;
        check_result(ticket, "ticket")?;
        let submitted = submit_put(&pool, name, source, flags)?;
        // SAFETY: by this function's contract.
        unsafe { give_out(submitted, ticket) }
    })
}

/// Reads `length` bytes from `offset` of the tensor `name` into `address`, checksums verified.
///
/// # Safety
/// `name` is NUL-terminated; `address` has `length` bytes that nobody else touches until the ticket
/// is released; `ticket` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_get(
    pool: u64,
    name: *const c_char,
    offset: u64,
    address: *mut c_void,
    length: u64,
    flags: u32,
    ticket: *mut u64,
) -> i32 {
    boundary(|| {
        let pool = POOLS.get(pool)?;
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        if address.is_null() && length > 0 {
            return Err(Failure::invalid("address is a null pointer"));
        }
        let range = range_of(offset, length)?;
        let length = check_length(length)?;
        check_result(ticket, "ticket")?;
        // SAFETY: by this function's contract.
        let destination = unsafe { ForeignDestination::new(address.cast(), length) };
        let submitted = submit_get(&pool, name, range, Destination::Foreign(destination), flags)?;
        // SAFETY: by this function's contract.
        unsafe { give_out(submitted, ticket) }
    })
}

/// Forgets the scratch tensor `name`; its space is free once no transfer reads it.
///
/// # Safety
/// `name` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_delete(pool: u64, name: *const c_char) -> i32 {
    boundary(|| {
        let pool = POOLS.get(pool)?;
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        pool.delete(name)?;
        Ok(())
    })
}

/// The length of the tensor `name`, in `length`.
///
/// # Safety
/// `name` is NUL-terminated; `length` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_length(pool: u64, name: *const c_char, length: *mut u64) -> i32 {
    boundary(|| {
        let pool = POOLS.get(pool)?;
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        let found = pool.length(TensorId::from_name(name)).ok_or_else(|| {
            let text = format!("the pool has no tensor named {name:?}");
            Failure::new(FailureKind::NotFound, text)
        })?;
        // SAFETY: by this function's contract.
        unsafe { write_result(length, found, "length") }?;
        Ok(())
    })
}

/// Waits at most `timeout_ms` for a ticket: `TIDE_READY` once its transfer succeeded,
/// `TIDE_WAITING` while it has not ended, an error once it failed. A time-out of 0 only looks.
#[unsafe(no_mangle)]
pub extern "C" fn tide_ticket_wait(ticket: u64, timeout_ms: u32) -> i32 {
    boundary(|| {
        let timeout = Duration::from_millis(timeout_ms.into());
        match TICKETS.get(ticket)?.wait_timeout(timeout) {
            Some(Ok(_)) => Ok(Readiness::Ready),
            Some(Err(error)) => Err(error.into()),
            None => Ok(Readiness::Waiting),
        }
    })
}

/// Stops a transfer as soon as its pieces in flight are back. Its ticket then ends with an error.
#[unsafe(no_mangle)]
pub extern "C" fn tide_ticket_cancel(ticket: u64) -> i32 {
    boundary(|| {
        TICKETS.get(ticket)?.cancel();
        Ok(())
    })
}

/// 1 once no device and no copy touches the transfer's memory any more, 0 before.
#[unsafe(no_mangle)]
pub extern "C" fn tide_ticket_released(ticket: u64) -> i32 {
    boundary(|| Ok(TICKETS.get(ticket)?.released()))
}

/// Forgets a ticket. Its transfer goes on, and its memory stays in use until it ends: to know when,
/// keep the ticket until it is released.
#[unsafe(no_mangle)]
pub extern "C" fn tide_ticket_drop(ticket: u64) -> i32 {
    boundary(|| {
        TICKETS.remove(ticket)?;
        Ok(())
    })
}

/// Begins a batch of durable tensors: what it holds appears whole with its commit, or not at all.
///
/// # Safety
/// `batch` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_batch_begin(pool: u64, batch: *mut u64) -> i32 {
    boundary(|| {
        let begun = POOLS.get(pool)?.batch();
        let handle = BATCHES.insert(Mutex::new(Some(begun)));
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
        let batch = BATCHES.remove(batch)?;
        let begun = batch.lock().unwrap_or_else(PoisonError::into_inner).take();
        begun.ok_or_else(|| Failure::invalid("the batch was committed already"))?.commit()?;
        Ok(())
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

fn with_batch<T>(
    batch: &OpenBatch,
    body: impl FnOnce(&mut Batch) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut batch = batch.lock().unwrap_or_else(PoisonError::into_inner);
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

/// Starts a put.
pub(super) fn submit_put(
    pool: &Pool,
    name: &str,
    source: Source,
    flags: u32,
) -> Result<Ticket, Failure> {
    let urgency = urgency(flags)?;
    let options = PutOptions { lifetime: LifetimeClass::Step, urgency, notify: None };
    Ok(pool.put(name, source, options)?)
}

/// Starts a get of the bytes `range`.
pub(super) fn submit_get(
    pool: &Pool,
    name: &str,
    range: Range<u64>,
    destination: Destination,
    flags: u32,
) -> Result<Ticket, Failure> {
    Ok(pool.get(name, range, destination, urgency(flags)?, None)?)
}

/// The `length` bytes from `offset`.
pub(super) fn range_of(offset: u64, length: u64) -> Result<Range<u64>, Failure> {
    let end = offset
        .checked_add(length)
        .ok_or_else(|| Failure::invalid(format!("{length} bytes from {offset} overflow")))?;
    Ok(offset..end)
}

fn urgency(flags: u32) -> Result<Urgency, Failure> {
    match flags {
        0 => Ok(Urgency::Ahead),
        TIDE_URGENT => Ok(Urgency::Urgent),
        _ => Err(Failure::invalid(format!(
            "flags have the bits {:#x}, which this version does not know; it knows TIDE_URGENT ({TIDE_URGENT:#x})",
            flags & !TIDE_URGENT
        ))),
    }
}

/// # Safety
/// `address` has `length` bytes that stay valid and unwritten until the transfer's ticket is
/// released.
unsafe fn source(address: *const c_void, length: u64) -> Result<Source, Failure> {
    if address.is_null() && length > 0 {
        return Err(Failure::invalid("address is a null pointer"));
    }
    let length = check_length(length)?;
    // SAFETY: not null unless empty, and valid until release by this function's contract.
    Ok(Source::Foreign(unsafe { ForeignSource::new(address.cast(), length) }))
}

/// # Safety
/// `place` is null or points to one u64 of the caller's.
pub(super) unsafe fn give_out(ticket: Ticket, place: *mut u64) -> Result<(), Failure> {
    let handle = TICKETS.insert(ticket);
    // SAFETY: by this function's contract.
    unsafe { write_result(place, handle, "ticket") }?;
    Ok(())
}
