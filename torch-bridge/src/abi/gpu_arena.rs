//! A GPU's memory out of an arena, for a framework's allocator.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use tidelog_gds::cuda::ForeignStream;

use super::handles::HandleTable;
use super::mapped::ordinal_of;
use super::{array_argument, boundary, check_result, write_answer};
use crate::error::Failure;
use crate::memory::{GpuMemoryArena, gpu_arena_at};

static ARENAS: HandleTable<Arc<GpuMemoryArena>> = HandleTable::new("arena");

/// Opens an arena of at most `bytes` of a GPU's memory; `gpu` is CUDA's number of it plus one.
/// Memory is allocated from the driver when it is first wanted, and kept until the arena is closed.
/// `least` gets the size from which allocations should come from it: smaller ones would be rounded
/// up by more than themselves. `arena` gets its handle.
///
/// # Safety
/// `least` and `arena` point to one `uint64_t` each.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_gpu_arena_open(
    gpu: u8,
    bytes: u64,
    least: *mut u64,
    arena: *mut u64,
) -> i32 {
    boundary(|| {
        check_result(least, "least")?;
        check_result(arena, "arena")?;
        let opened = GpuMemoryArena::open(ordinal_of(gpu)?, bytes).map_err(Failure::pool)?;
        // SAFETY: not null, and by this function's contract one u64 each of the caller's.
        unsafe {
            least.write(opened.bytes_min());
            arena.write(ARENAS.insert(opened));
        }
        Ok(())
    })
}

/// Closes an arena. What is free goes back to the driver, which waits for what uses it; what is
/// allocated stays, and goes back when it is freed.
#[unsafe(no_mangle)]
pub extern "C" fn tide_gpu_arena_close(arena: u64) -> i32 {
    boundary(|| {
        ARENAS.remove(arena)?.close();
        Ok(())
    })
}

/// Gives all that is free in an arena back to the driver, which waits for what uses it.
#[unsafe(no_mangle)]
pub extern "C" fn tide_gpu_arena_trim(arena: u64) -> i32 {
    boundary(|| {
        ARENAS.get(arena)?.trim();
        Ok(())
    })
}

/// Allocates memory. Returns 1, and `address` gets where it begins; 0 where the arena has no room,
/// the stream is being captured, or the driver has failed: another allocator is asked then. It may
/// be written by what is put into the stream `waits` from here on, which waits on the GPU for what
/// uses it still; `uses` is a stream that uses it until it is freed. Both may be the same, and null
/// is the default stream.
///
/// # Safety
/// `waits` and `uses` are null or a `CUstream` that is open, and `uses` as long as the memory is
/// allocated. `address` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_gpu_arena_allocate(
    arena: u64,
    bytes: u64,
    waits: *mut c_void,
    uses: *mut c_void,
    address: *mut u64,
) -> i32 {
    boundary(|| {
        check_result(address, "address")?;
        let arena = ARENAS.get(arena)?;
        // SAFETY: by this function's contract.
        let found = unsafe { arena.allocate(bytes, foreign(waits), foreign(uses)) };
        if let Some(found) = found {
            // SAFETY: not null, and by this function's contract one u64 of the caller's.
            unsafe { address.write(found) };
        }
        Ok(found.is_some())
    })
}

/// Notes that another stream uses the allocation at `address`, until it is freed. Returns 0 where
/// no arena has one there, else 1.
///
/// # Safety
/// `stream` is null or a `CUstream` that is open as long as the memory is allocated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_gpu_arena_use(address: u64, stream: *mut c_void) -> i32 {
    boundary(|| {
        let found = gpu_arena_at(address);
        if let Some(arena) = &found {
            arena.add_use(address, foreign(stream));
        }
        Ok(found.is_some())
    })
}

/// Frees the allocation at `address`, of whatever arena. Returns whether there was one: 1, or 0.
/// Its memory is given out again behind all that has been put into the streams that use it. An
/// event `behind` stands for the `count` streams at `covered`, and for what uses it elsewhere: then
/// only what the other streams have counts beside it.
///
/// # Safety
/// `covered` points to `count` handles of streams. `behind` is null or an event of CUDA's that is
/// recorded and open. Nobody uses the memory but what is in those streams, and before the event.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_gpu_arena_free(
    address: u64,
    covered: *const u64,
    count: usize,
    behind: *mut c_void,
) -> i32 {
    boundary(|| {
        let Some(arena) = gpu_arena_at(address) else { return Ok(false) };
        // SAFETY: by this function's contract.
        let covered = unsafe { array_argument(covered, count, "covered") }?;
        let covered: Vec<_> = covered.iter().map(|&handle| ForeignStream(handle)).collect();
        // SAFETY: by this function's contract.
        unsafe { arena.free(address, &covered, behind) };
        Ok(true)
    })
}

/// Frees the memory of a part of the allocation at `address`: `length` bytes from `begin` on. Its
/// addresses stay the allocation's, and nobody uses them until `tide_gpu_arena_allocate_part`. The
/// memory is given out again behind the event `behind`; null: at once. Returns whether an arena has
/// such a part: 1, or 0. A part begins and ends at multiples of 2 MiB, or where the allocation
/// does.
///
/// # Safety
/// `behind` is null or an event of CUDA's that is recorded and open. Nobody uses the part's memory
/// but what is before it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_gpu_arena_free_part(
    address: u64,
    begin: u64,
    length: u64,
    behind: *mut c_void,
) -> i32 {
    boundary(|| {
        let Some(arena) = gpu_arena_at(address) else { return Ok(false) };
        // SAFETY: by this function's contract.
        unsafe { arena.free_part(address, begin..begin.saturating_add(length), behind) };
        Ok(true)
    })
}

/// Allocates memory for a part that has freed it. Returns 1; 0 where the arena has no room, or no
/// such part. It may be written by what is put into the stream `waits` from here on, which waits on
/// the GPU for what uses the memory still.
///
/// # Safety
/// `waits` is null or a `CUstream` that is open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_gpu_arena_allocate_part(
    address: u64,
    begin: u64,
    length: u64,
    waits: *mut c_void,
) -> i32 {
    boundary(|| {
        let Some(arena) = gpu_arena_at(address) else { return Ok(false) };
        let part = begin..begin.saturating_add(length);
        // SAFETY: by this function's contract.
        Ok(unsafe { arena.allocate_part(address, part, foreign(waits)) })
    })
}

/// Writes figures of an arena to `buffer`, as JSON, in bytes: `capacity`, what it may have;
/// `reserved`, what it has of the driver's; `allocated` and `requested`, what is allocated of that,
/// with and without rounding; since it was opened: `allocations` and those that were `declined`,
/// `made`, what came from the driver, `remapped`, what was mapped at another address,
/// `stream_waits` and `host_waits`, the uses that streams and the host waited for; and `error`, the
/// driver's error after which all is declined, or null. Returns the text's length, 0 for an error.
///
/// # Safety
/// `buffer` is null or has `capacity` bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_gpu_arena_figures(
    arena: u64,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    let figures = || {
        let figures = ARENAS.get(arena)?.figures();
        serde_json::to_string(&figures).map_err(Failure::internal)
    };
    // SAFETY: by this function's contract.
    unsafe { write_answer(figures, buffer, capacity) }
}

fn foreign(stream: *mut c_void) -> ForeignStream {
    ForeignStream(stream as u64)
}
