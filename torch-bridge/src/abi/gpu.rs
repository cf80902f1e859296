//! Puts and gets of GPU memory, with the events that order them with the caller's kernels.

use std::ffi::{c_char, c_void};

use tidelog_engine::memory::{Destination, GpuDestination, GpuEvent, GpuSource, Source};

use super::batch::{BATCHES, batch_put};
use super::pool::POOLS;
use super::ticket::give_out;
use super::transfer::{range_of, submit_get, submit_put};
use super::{boundary, check_length, check_result, text_argument};
use crate::error::Failure;

/// Puts, as `tide_put` does, from the memory of the GPU that the pool was opened for. The bytes are
/// read once `after`, a `CUevent` recorded behind the kernels that make them, has happened; null:
/// at once.
///
/// # Safety
/// `name` is NUL-terminated. `address` has `length` bytes on the GPU, which stay allocated, and
/// which nobody writes after `after`, until the ticket is released; `after` is null or an event
/// that stays open as long. `ticket` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_put_gpu(
    pool: u64,
    name: *const c_char,
    address: u64,
    length: u64,
    after: *mut c_void,
    flags: u32,
    ticket: *mut u64,
) -> i32 {
    boundary(|| {
        let pool = POOLS.get(pool)?;
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        let length = check_memory(address, length)?;
        check_result(ticket, "ticket")?;
        // SAFETY: by this function's contract.
        let source = unsafe { GpuSource::new(address, length, GpuEvent::from_raw(after)) };
        let submitted = submit_put(&pool, name, Source::Gpu(source), flags)?;
        // SAFETY: by this function's contract.
        unsafe { give_out(&pool, submitted, ticket) }
    })
}

/// Gets, as `tide_get` does, into the memory of the GPU that the pool was opened for, written once
/// `after` has happened: the last kernel that uses what was there before; null: at once. With
/// `landed` the ticket is ready, and released, as soon as the copies are on their way: that event
/// was then recorded behind them, and every stream that uses the bytes waits for it. Null: ready
/// when they are there.
///
/// # Safety
/// `name` is NUL-terminated. `address` has `length` bytes on the GPU, which stay allocated, and
/// which nobody else touches after `after`, until the ticket is released and `landed` has happened;
/// both are null or events that stay open until the release. `ticket` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_get_gpu(
    pool: u64,
    name: *const c_char,
    offset: u64,
    address: u64,
    length: u64,
    after: *mut c_void,
    landed: *mut c_void,
    flags: u32,
    ticket: *mut u64,
) -> i32 {
    boundary(|| {
        let pool = POOLS.get(pool)?;
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        let range = range_of(offset, length)?;
        let length = check_memory(address, length)?;
        check_result(ticket, "ticket")?;
        let (after, landed) = (GpuEvent::from_raw(after), GpuEvent::from_raw(landed));
        // SAFETY: by this function's contract.
        let destination = unsafe { GpuDestination::new(address, length, after, landed) };
        let submitted = submit_get(&pool, name, range, Destination::Gpu(destination), flags)?;
        // SAFETY: by this function's contract.
        unsafe { give_out(&pool, submitted, ticket) }
    })
}

/// Puts, as `tide_batch_put` does, from the memory of the GPU that the pool was opened for. The
/// bytes are read once `after`, a `CUevent` recorded behind the kernels that make them, has
/// happened; null: at once. No more of them is in host memory than staging holds.
///
/// # Safety
/// `name` is NUL-terminated. `address` has `length` bytes on the GPU, which stay allocated, and
/// which nobody writes after `after`, until the call returns; `after` is null or an event that
/// stays open as long.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_batch_put_gpu(
    batch: u64,
    name: *const c_char,
    address: u64,
    length: u64,
    after: *mut c_void,
) -> i32 {
    boundary(|| {
        let batch = BATCHES.get(batch)?;
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        let length = check_memory(address, length)?;
        // SAFETY: by this function's contract; `batch_put` waits for the release.
        let source = unsafe { GpuSource::new(address, length, GpuEvent::from_raw(after)) };
        batch_put(&batch, name, Source::Gpu(source))
    })
}

/// Refuses memory that cannot be.
fn check_memory(address: u64, length: u64) -> Result<usize, Failure> {
    if address == 0 && length > 0 {
        return Err(Failure::invalid("address is 0: no memory of a GPU begins there"));
    }
    if address.checked_add(length).is_none() {
        return Err(Failure::invalid(format!(
            "{length} bytes at {address:#x} end beyond all memory"
        )));
    }
    check_length(length)
}
