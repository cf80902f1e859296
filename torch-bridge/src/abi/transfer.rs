//! Scratch tensors, one by one: put, get, delete, length; and verification of any tensor.

use std::ffi::{c_char, c_void};
use std::ops::Range;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, ForeignDestination, ForeignSource, Source};
use tidelog_engine::pool::{Pool, PutOptions};
use tidelog_engine::schedule::{Ticket, Urgency};

use super::pool::POOLS;
use super::ticket::give_out;
use super::{boundary, check_length, check_result, text_argument, write_result};
use crate::error::{Failure, FailureKind};

/// Flag of a transfer: it goes before those that are not urgent.
pub const TIDE_URGENT: u32 = 1;
/// Flag of a put: it has as many copies as a durable tensor of the pool, for a seal to keep.
pub const TIDE_AS_DURABLE: u32 = 2;

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
        unsafe { give_out(&pool, submitted, ticket) }
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
        // SAFETY: by this function's contract.
        let (range, destination) = unsafe { destination(offset, address, length) }?;
        check_result(ticket, "ticket")?;
        let submitted = submit_get(&pool, name, range, destination, flags)?;
        // SAFETY: by this function's contract.
        unsafe { give_out(&pool, submitted, ticket) }
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

/// Reads the tensor `name`, scratch or durable, and compares it with its checksums: `TIDE_READY`
/// where it is whole, `TIDE_CHECKSUM` or `TIDE_DEVICE_FAILED` where bytes are lost. It returns at
/// the end; `tide_last_error` says how much is lost and where.
///
/// # Safety
/// `name` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_verify(pool: u64, name: *const c_char) -> i32 {
    boundary(|| {
        let pool = POOLS.get(pool)?;
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        let scrubbed = pool.scrub_tensor(name)?;
        let Some(first) = scrubbed.bad.first() else { return Ok(()) };
        let lost: u64 = scrubbed.bad.iter().map(|bad| bad.length.0).sum();
        let (length, path, from) = (scrubbed.length.0, &first.path, first.tensor.start);
        let error = &first.error;
        Err(Failure::from(error.clone()).saying(format!(
            "{name:?} has lost {lost} of its {length} bytes; the first from its byte {from}, on {path}: {error}"
        )))
    })
}

/// Starts a put.
pub(super) fn submit_put(
    pool: &Pool,
    name: &str,
    source: Source,
    flags: u32,
) -> Result<Ticket, Failure> {
    let copies = (flags & TIDE_AS_DURABLE != 0).then(|| pool.copies());
    let urgency = urgency(flags & !TIDE_AS_DURABLE)?;
    let options = PutOptions { urgency, copies, ..PutOptions::default() };
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

pub(super) fn urgency(flags: u32) -> Result<Urgency, Failure> {
    match flags {
        0 => Ok(Urgency::Ahead),
        TIDE_URGENT => Ok(Urgency::Urgent),
        _ => Err(Failure::invalid(format!(
            "flags have the bits {:#x}, which this version does not know; it knows TIDE_URGENT ({TIDE_URGENT:#x}), and of \
             puts TIDE_AS_DURABLE ({TIDE_AS_DURABLE:#x})",
            flags & !TIDE_URGENT
        ))),
    }
}

/// # Safety
/// `address` has `length` bytes that stay valid and unwritten until the transfer's ticket is
/// released.
pub(super) unsafe fn source(address: *const c_void, length: u64) -> Result<Source, Failure> {
    if address.is_null() && length > 0 {
        return Err(Failure::invalid("address is a null pointer"));
    }
    let length = check_length(length)?;
    // SAFETY: not null unless empty, and valid until release by this function's contract.
    Ok(Source::Foreign(unsafe { ForeignSource::new(address.cast(), length) }))
}

/// The `length` bytes from `offset` of a tensor, and where they go.
///
/// # Safety
/// `address` has `length` bytes that nobody else touches until the transfer's ticket is released.
pub(super) unsafe fn destination(
    offset: u64,
    address: *mut c_void,
    length: u64,
) -> Result<(Range<u64>, Destination), Failure> {
    if address.is_null() && length > 0 {
        return Err(Failure::invalid("address is a null pointer"));
    }
    let range = range_of(offset, length)?;
    let length = check_length(length)?;
    // SAFETY: not null unless empty, and ours until release by this function's contract.
    let memory = unsafe { ForeignDestination::new(address.cast(), length) };
    Ok((range, Destination::Foreign(memory)))
}
