//! Memory of the host: how much a process may use, and memory that is used again, with the
//! signatures of the C library, for a program's own allocator.

use std::ffi::{c_char, c_void};

use serde_json::json;
use tidelog_engine::memory::SystemMemory;

use super::{TIDE_READY, boundary, write_answer};
use crate::error::Failure;
use crate::memory::{Arena, arena, arena_of_this_process, small};

/// Writes the limits of the host's memory for this process to `buffer`, as JSON: `machine`, what
/// the machine has; `limit`, the lowest limit of the control groups (of a container, say) that the
/// process is in, and `limit_file`, the kernel's file that sets it, both null where none is below
/// `machine`; `available`, what can be allocated now without swapping and below every limit. All in
/// bytes. Returns the text's length, 0 for an error.
///
/// # Safety
/// `buffer` is null or has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_host_memory(buffer: *mut c_char, capacity: usize) -> usize {
    let figures = || {
        let memory = SystemMemory::read().map_err(|error| Failure::invalid(error.to_string()))?;
        let (limit, file) =
            memory.limit.as_ref().map(|it| (it.bytes, it.file.display().to_string())).unzip();
        let (machine, available) = (memory.machine, memory.available);
        Ok(json!({ "machine": machine, "limit": limit, "limit_file": file, "available": available }).to_string())
    };
    // SAFETY: by this function's contract.
    unsafe { write_answer(figures, buffer, capacity) }
}

/// Sets whether large allocations of `tide_memory_allocate` come from memory that is kept when it
/// is freed, so that it can be used again without page faults. With 0 all that is kept goes back to
/// the system; what is allocated stays until it is freed. It is the whole process's.
#[unsafe(no_mangle)]
pub extern "C" fn tide_memory_keep(on: i32) -> i32 {
    boundary(|| {
        let Some(arena) = arena_of_this_process() else {
            let why = "there are no addresses for memory that is kept (ulimit -v), or this is a child of fork";
            return if on == 0 { Ok(()) } else { Err(Failure::invalid(why)) };
        };
        arena.keep(on != 0);
        Ok(())
    })
}

/// Sets whether the calling thread keeps small blocks that it frees by `tide_memory_free`, 8 MiB at
/// most, and gets them again for allocations of the same size. With 0 all of them go back to the C
/// library.
#[unsafe(no_mangle)]
pub extern "C" fn tide_memory_keep_small(on: i32) {
    small::keep(on != 0);
}

/// Gives at least `bytes` of what is kept back to the system, or all that there is; small blocks of
/// the calling thread go back to the C library where the rest is not enough. Returns how many bytes
/// went.
#[unsafe(no_mangle)]
pub extern "C" fn tide_memory_release(bytes: u64) -> u64 {
    let released = arena().map_or(0, |arena| arena.release(bytes as usize) as u64);
    if released < bytes { released + small::release() as u64 } else { released }
}

/// Holds the process at `most` bytes of resident memory that is no file's, as far as what is kept
/// goes: what is too much goes back to the system now, and from now on when an allocation takes
/// more. What others in the process have counts as it is now, so this is called again from time to
/// time. Returns by how many bytes the process would be above that if nothing were kept.
#[unsafe(no_mangle)]
pub extern "C" fn tide_memory_hold(most: u64) -> u64 {
    arena().map_or(0, |arena| arena.hold_process(most as usize) as u64)
}

/// Returns the bytes of freed memory that are kept, for all threads, and small blocks of the
/// calling one.
#[unsafe(no_mangle)]
pub extern "C" fn tide_memory_kept() -> u64 {
    (arena().map_or(0, Arena::kept) + small::kept()) as u64
}

/// Gives the pages of a part of an allocation back to the system: its bytes are lost, and nobody
/// reads it before it is written again. Pages that it shares with what is beside it stay.
///
/// # Safety
/// `address` is that of `length` bytes of private memory of the caller's, which nobody else reads
/// or writes meanwhile.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_memory_decommit(address: *mut c_void, length: u64) {
    // SAFETY: by this function's contract.
    unsafe { Arena::decommit(address.cast(), length as usize) };
}

/// Recommits a part that is about to be written again: what is kept makes way for its pages.
#[unsafe(no_mangle)]
pub extern "C" fn tide_memory_recommit(address: *mut c_void, length: u64) {
    Arena::recommit(address.cast(), length as usize);
}

/// Allocates, as `posix_memalign` does, which it calls for what is small, and while nothing is to
/// be kept. Small sizes are rounded up to multiples of 64 bytes.
///
/// # Safety
/// As `posix_memalign`; only `tide_memory_free` frees it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_memory_allocate(
    result: *mut *mut c_void,
    alignment: usize,
    size: usize,
) -> i32 {
    let rounded = small::rounded(size, alignment);
    let kept = || rounded.and_then(small::take);
    let large = arena().and_then(|arena| arena.allocate(size, alignment)).map(<*mut u8>::cast);
    if let Some(address) = large.or_else(kept) {
        // SAFETY: by this function's contract.
        unsafe { result.write(address) };
        return TIDE_READY;
    }
    // SAFETY: by this function's contract.
    unsafe { libc::posix_memalign(result, alignment, rounded.unwrap_or(size)) }
}

/// Frees, as `free` does, which it calls for all that did not come from memory that is kept.
///
/// # Safety
/// As `free`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_memory_free(memory: *mut c_void) {
    if arena().is_some_and(|arena| arena.free(memory.cast())) {
        return;
    }
    // SAFETY: by this function's contract it is the C library's block, and nobody uses it now.
    unsafe {
        if !small::give(memory) {
            libc::free(memory);
        }
    }
}
