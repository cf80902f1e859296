//! Seals: sets of tensor versions under a name, by reference.

use std::ffi::{c_char, c_void};

use serde_json::{Value, json};
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{ForeignSource, Source};

use super::batch::{BATCHES, with_batch};
use super::pool::{OpenPool, POOLS};
use super::session::SESSIONS;
use super::ticket::give_out;
use super::transfer::{destination, urgency};
use super::{
    array_argument, boundary, check_length, check_result, text_argument, write_answer, write_result,
};
use crate::error::{Failure, FailureKind};

/// A tensor's id in the log. Zeroes stand for none.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct tide_tensor {
    /// The high half.
    pub high: u64,
    /// The low half.
    pub low: u64,
}

impl From<TensorId> for tide_tensor {
    fn from(id: TensorId) -> Self {
        Self { high: (id.0 >> 64) as u64, low: id.0 as u64 }
    }
}

impl From<tide_tensor> for TensorId {
    fn from(tensor: tide_tensor) -> Self {
        Self(u128::from(tensor.high) << 64 | u128::from(tensor.low))
    }
}

/// The id that the name of a tensor stands for, in `tensor`.
///
/// # Safety
/// `name` is NUL-terminated; `tensor` points to one `tide_tensor`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_tensor_named(name: *const c_char, tensor: *mut tide_tensor) -> i32 {
    boundary(|| {
        // SAFETY: by this function's contract.
        let name = unsafe { text_argument(name, "name") }?;
        // SAFETY: by this function's contract.
        unsafe { write_result(tensor, TensorId::from_name(name).into(), "tensor") }
    })
}

/// Adds a seal to a batch: what stands under these ids now, scratch or durable, is held under the
/// name `seal` once the batch is committed, whatever happens to the tensors. What this batch has
/// put before the call stands for it, and what it has deleted does not. Nothing is copied. It takes
/// the place of a seal of the same name. A full index returns `TIDE_FULL`, and nothing has changed.
///
/// # Safety
/// `seal` is NUL-terminated; `tensors` has `count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_batch_seal(
    batch: u64,
    seal: *const c_char,
    tensors: *const tide_tensor,
    count: usize,
) -> i32 {
    boundary(|| {
        let batch = BATCHES.get(batch)?;
        // SAFETY: by this function's contract.
        let seal = unsafe { text_argument(seal, "seal") }?;
        // SAFETY: by this function's contract.
        let tensors = unsafe { array_argument(tensors, count, "tensors") }?;
        let ids = tensors.iter().map(|tensor| TensorId::from(*tensor));
        with_batch(&batch, |batch| Ok(batch.seal(seal, ids)?))
    })
}

/// Seals, as `tide_batch_seal` does, what the seal `from` holds under these ids; where it holds
/// nothing, of what this batch has put or stands. What `from` was made of may have changed
/// meanwhile. It must be committed; `TIDE_NOT_FOUND` where there is none.
///
/// # Safety
/// `seal` and `from` are NUL-terminated; `tensors` has `count` items.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_batch_seal_from(
    batch: u64,
    seal: *const c_char,
    from: *const c_char,
    tensors: *const tide_tensor,
    count: usize,
) -> i32 {
    boundary(|| {
        let batch = BATCHES.get(batch)?;
        // SAFETY: by this function's contract.
        let (seal, from) = unsafe { (text_argument(seal, "seal")?, text_argument(from, "from")?) };
        // SAFETY: by this function's contract.
        let tensors = unsafe { array_argument(tensors, count, "tensors") }?;
        let ids = tensors.iter().map(|tensor| TensorId::from(*tensor));
        with_batch(&batch, |batch| Ok(batch.seal_from(seal, from, ids)?))
    })
}

/// Adds the end of a seal to a batch. What it alone holds is free once the batch is committed.
///
/// # Safety
/// `seal` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_batch_drop_seal(batch: u64, seal: *const c_char) -> i32 {
    boundary(|| {
        let batch = BATCHES.get(batch)?;
        // SAFETY: by this function's contract.
        let seal = unsafe { text_argument(seal, "seal") }?;
        with_batch(&batch, |batch| Ok(batch.drop_seal(seal)?))
    })
}

/// The seals as JSON, by name, written to `buffer`: of each `name`, `sealed_at` in seconds since
/// 1970, its `order` among the commits of seals of its share (0 where older software made it; a
/// clock may have been set back), `tensors` and their `bytes`, and the bytes of space that it
/// `alone` holds. Returns the text's length, 0 for an error.
///
/// # Safety
/// `buffer` is null or has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_pool_seals(pool: u64, buffer: *mut c_char, capacity: usize) -> usize {
    let seals = || {
        let seals = POOLS.get(pool)?.seals()?.into_iter().map(|seal| {
            json!({
                "name": seal.name,
                "sealed_at": seal.sealed_at,
                "order": seal.order,
                "tensors": seal.tensors,
                "bytes": seal.bytes.0,
                "alone": seal.alone.0,
            })
        });
        Ok(Value::Array(seals.collect()).to_string())
    };
    // SAFETY: by this function's contract.
    unsafe { write_answer(seals, buffer, capacity) }
}

/// Writes the tensors of a seal to `buffer`, as JSON: of each tensor its `id` (32 hexadecimal
/// digits), its `name` or null, and its `length`. Returns the text's length, 0 for an error.
///
/// # Safety
/// `seal` is NUL-terminated; `buffer` is null or has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_seal_tensors(
    pool: u64,
    seal: *const c_char,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    let tensors = || {
        let pool = POOLS.get(pool)?;
        // SAFETY: by this function's contract.
        let seal = unsafe { text_argument(seal, "seal") }?;
        let tensors = pool.sealed_tensors(seal)?.into_iter().map(|tensor| {
            let id = format!("{:032x}", tensor.id.0);
            json!({ "id": id, "name": tensor.name, "length": tensor.length.0 })
        });
        Ok(Value::Array(tensors.collect()).to_string())
    };
    // SAFETY: by this function's contract.
    unsafe { write_answer(tensors, buffer, capacity) }
}

/// Gets, as `tide_get` does, from a seal.
///
/// # Safety
/// `seal` is NUL-terminated; `address` has `length` bytes that nobody else touches until the ticket
/// is released; `ticket` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_seal_get(
    pool: u64,
    seal: *const c_char,
    tensor: tide_tensor,
    offset: u64,
    address: *mut c_void,
    length: u64,
    flags: u32,
    ticket: *mut u64,
) -> i32 {
    boundary(|| {
        let pool = POOLS.get(pool)?;
        // SAFETY: by this function's contract.
        let seal = unsafe { text_argument(seal, "seal") }?;
        // SAFETY: by this function's contract.
        let (range, destination) = unsafe { destination(offset, address, length) }?;
        check_result(ticket, "ticket")?;
        let (id, urgency) = (TensorId::from(tensor), urgency(flags)?);
        let begun = pool.get_sealed(seal, id, range, destination, urgency, None)?;
        // SAFETY: by this function's contract.
        unsafe { give_out(&pool, begun, ticket) }
    })
}

/// Reads all that a seal holds and compares it with its checksums: `TIDE_READY` where it is whole,
/// `TIDE_CHECKSUM` where bytes are lost. It returns at the end; `tide_last_error` says which tensor
/// has lost bytes, and `tide_pool_stats` has all of them.
///
/// # Safety
/// `seal` is NUL-terminated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_seal_verify(pool: u64, seal: *const c_char) -> i32 {
    boundary(|| {
        let pool = POOLS.get(pool)?;
        // SAFETY: by this function's contract.
        let seal = unsafe { text_argument(seal, "seal") }?;
        let report = pool.scrub_seal(seal)?;
        let Some(first) = report.damaged.first() else { return Ok(()) };
        let id = || format!("{:032x}", first.id.0);
        let tensor = first.name.clone().unwrap_or_else(id);
        let lost: u64 = first.bad.iter().map(|bad| bad.length.0).sum();
        let (damaged, all) = (report.damaged.len(), report.tensors);
        let text = format!(
            "{damaged} of the {all} tensors of the seal {seal:?} have lost bytes; the first, \
             {tensor:?}, {lost} of {}",
            first.length.0
        );
        Err(Failure::new(FailureKind::Checksum, text))
    })
}

/// A handle of the pool in which a session's storages lie, in `pool`: for puts, batches and seals
/// beside the session. `tide_pool_close` ends the handle alone; once the session is closed it is of
/// no use.
///
/// # Safety
/// `pool` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_pool(session: u64, pool: *mut u64) -> i32 {
    boundary(|| {
        let session = SESSIONS.get(session)?;
        check_result(pool, "pool")?;
        let handle = POOLS.insert(OpenPool::of_session(session.pool()));
        // SAFETY: by this function's contract.
        unsafe { write_result(pool, handle, "pool") }
    })
}

/// Writes to `tensors`, for each of `count` storages of a session, the id in the log of a copy that
/// has its bytes; zeroes where there is none: it was never written, or has changed since.
/// `addresses` and `lengths` say where the storages' memory is, 0 for those that are not in memory.
/// What is in memory is compared with its copy, by checksums and without reading that: bytes that
/// changed unseen have none, and neither has what is pinned or cannot move. With `write` not 0,
/// what is in memory, has no copy and could leave is written: it is clean from then on. Of a call
/// that fails nothing is left. Nobody changes or evicts the storages during the call.
///
/// # Safety
/// `storages`, `addresses`, `lengths` and `tensors` have `count` items; each address that is not 0
/// has as many bytes as its length says, in host memory, which nobody writes during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_copies(
    session: u64,
    storages: *const u32,
    addresses: *const u64,
    lengths: *const u64,
    count: usize,
    write: u32,
    tensors: *mut tide_tensor,
) -> i32 {
    boundary(|| {
        let session = SESSIONS.get(session)?;
        // SAFETY: by this function's contract.
        let storages = unsafe { array_argument(storages, count, "storages") }?;
        // SAFETY: by this function's contract.
        let addresses = unsafe { array_argument(addresses, count, "addresses") }?;
        // SAFETY: by this function's contract.
        let lengths = unsafe { array_argument(lengths, count, "lengths") }?;
        if count > 0 {
            check_result(tensors, "tensors")?;
        }
        let mut memory = Vec::with_capacity(count);
        for (&address, &length) in addresses.iter().zip(lengths) {
            let length = check_length(length)?;
            let start = address as *const u8;
            // SAFETY: `length` bytes are there by this function's contract, until the comparison
            // has ended, which is waited for.
            let source = || Source::Foreign(unsafe { ForeignSource::new(start, length) });
            memory.push((address != 0).then(source));
        }
        let copies = session.copies(storages.iter().copied().zip(memory), write != 0)?;
        for (at, copy) in copies.into_iter().enumerate() {
            let tensor = copy.map_or_else(tide_tensor::default, Into::into);
            // SAFETY: one of `count` items that are ours to write by this function's contract.
            unsafe { tensors.add(at).write(tensor) };
        }
        Ok(())
    })
}
