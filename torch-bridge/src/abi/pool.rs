//! Pools, for frameworks that do their own residency: open, close, figures, scrub.

use std::ffi::c_char;
use std::ops::Deref;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};
use tidelog_engine::pool::Pool;
use tidelog_engine::schedule::Ticket;
use tidelog_gds::CallerRegion;
use tidelog_gds::cuda::DevicePointer;

use super::eventfd::EventFd;
use super::handles::HandleTable;
use super::ticket::timeout_of;
use super::{
    Options, boundary, check_result, options_argument, place_numbered, text_argument, write_answer,
    write_result,
};
use crate::error::Failure;
use crate::pool::{PoolConfig, open_pool, pool_figures};

pub(super) static POOLS: HandleTable<OpenPool> = HandleTable::new("pool");

/// A pool, and whom to tell when something ends that was begun in it.
pub(super) struct OpenPool {
    pool: Pool,
    eventfd: Mutex<Option<Arc<EventFd>>>,
    /// True if the pool is a session's, which closes it.
    of_session: bool,
}

impl OpenPool {
    /// A session's pool.
    pub(super) fn of_session(pool: Pool) -> Self {
        Self { pool, eventfd: Mutex::default(), of_session: true }
    }

    /// Has this eventfd signalled from now on, or none.
    fn tell(&self, eventfd: Option<Arc<EventFd>>) {
        *self.eventfd.lock().unwrap_or_else(PoisonError::into_inner) = eventfd;
    }

    /// Has the pool's eventfd, if it has one, signalled when this ends.
    pub(super) fn watch(&self, ticket: &Ticket) {
        let eventfd = self.eventfd.lock().unwrap_or_else(PoisonError::into_inner);
        eventfd.iter().for_each(|eventfd| ticket.listen(eventfd));
    }
}

impl Deref for OpenPool {
    type Target = Pool;

    fn deref(&self) -> &Pool {
        &self.pool
    }
}

/// Options to open a pool.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tide_pool_options {
    /// `sizeof` this struct: tells which version of it the caller was built with.
    pub size: u64,
    /// Devices of the pool, separated by commas: directories, files or block devices. `\,` is a
    /// comma that is part of a name, and `\\` a backslash.
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
    /// Address of the GPU's memory that transfers by "gds" read and write in place, without a copy,
    /// from multiples of 4 KiB on: an arena of `cuMemAlloc`'s. It stays allocated until
    /// `tide_pool_close` has returned. What cuFile refuses to register is copied like other memory
    /// (the data path's notes in the statistics say why). 0: none.
    pub arena: u64,
    /// The bytes.
    pub arena_bytes: u64,
    /// Non-zero refuses a pool that is not there. Otherwise one is made where none of its devices
    /// exists; and where a file system is not mounted, its directory is empty, and the pool would
    /// be made on another disk.
    pub must_exist: u64,
    /// Non-zero opens a pool that is there for reading, and writes nothing to its devices. Several
    /// processes may have a share open like that; while one has, nobody opens it to write. Puts,
    /// deletions and batches return `TIDE_READ_ONLY`.
    pub read_only: u64,
    /// Non-zero leaves the files of a pool that is made sparse: no space of them is reserved, and a
    /// write fails once the file system is full. Otherwise all is; with zeroes, where the file
    /// system cannot reserve, which takes as long as it takes to write them.
    pub sparse: u64,
    /// Non-zero opens a pool of which one device is missing, if it may have tensors with two
    /// copies: those are whole, and the pool goes on without the device, which is stale from then
    /// on. Otherwise that is an error which says what is missing.
    pub degraded: u64,
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
            sparse: options.sparse != 0,
            read_only: options.read_only != 0,
            degraded: options.degraded != 0,
            share_count: 1,
            place: place_numbered(options.gpu),
            // SAFETY: by this function's contract it stays until the pool is closed.
            arena: unsafe { arena_of(&options) },
        };
        let (opened, eventfd) = (open_pool(&config)?.pool, Mutex::default());
        let handle = POOLS.insert(OpenPool { pool: opened, eventfd, of_session: false });
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

/// Closes a pool: waits for its transfers and releases the share. Of one that
/// `tide_session_pool` gave out only the handle ends.
#[unsafe(no_mangle)]
pub extern "C" fn tide_pool_close(pool: u64) -> i32 {
    boundary(|| close(pool, Duration::MAX))
}

fn close(pool: u64, timeout: Duration) -> Result<(), Failure> {
    let pool = POOLS.remove(pool)?;
    let closed = if pool.of_session { Ok(()) } else { pool.close_within(timeout) };
    // A batch that is still open keeps the pool's memory, not the caller's eventfd.
    pool.tell(None);
    closed.map_err(Failure::pool)
}

/// Closes, as `tide_pool_close` does, waiting at most `timeout_ms` for devices: transfers in flight
/// end as stopped then, commits that were begun are in doubt until the pool is opened again, and
/// the call returns half a second later at most. Devices that may still do something keep their
/// memory and the share until the process ends, which the error says. `TIDE_FOREVER` is
/// `tide_pool_close`.
#[unsafe(no_mangle)]
pub extern "C" fn tide_pool_close_within(pool: u64, timeout_ms: u32) -> i32 {
    boundary(|| close(pool, timeout_of(timeout_ms)))
}

/// Adds 1 to the caller's eventfd(2) `fd` whenever a put, a get or a commit of this pool has ended,
/// for those that are begun from now on: so epoll, and whatever is built on it, can wait for
/// transfers. Which one it was, `tide_ticket_wait_any` says. It takes the place of an earlier one,
/// which is signalled no more; -1: none. The library keeps a duplicate until the pool is closed, so
/// `fd` may be closed at any time. Several pools may have the same one.
///
/// # Safety
/// `fd` is -1 or a file descriptor of this process that nobody closes during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_pool_eventfd(pool: u64, fd: i32) -> i32 {
    boundary(|| {
        let pool = POOLS.get(pool)?;
        // SAFETY: by this function's contract.
        let eventfd = if fd == -1 { None } else { Some(unsafe { EventFd::duplicate(fd) }?.into()) };
        pool.tell(eventfd);
        Ok(())
    })
}

/// Figures of the pool since it was opened as JSON, written to `buffer`: `data_path` and `why_not`
/// a better one; `pool` with `capacity`, `live`, of that `sealed` by seals alone, `dead`, `free`
/// and `index` in bytes; `devices` with `reads`, `writes`, `flushes`, `bytes_read`,
/// `bytes_written` and `errors` of each, `checksum_retries` (reads whose checksum did not match the
/// first time), `checksum_failures` (nor the second), `in_flight`, the `latency` of `read`, `write`
/// and `flush` (`usual_ns`, `recent_ns`; null before the first), and `slow`: how far it is off its
/// own history, null if it is not; `endurance` as the devices count it; `scrubbed` with `tensors`,
/// `bytes` and `damaged`: what scrubs and `tide_verify` have found. Returns the text's length, 0
/// for an error.
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

/// The bytes that the share's tensors may take, in `capacity`, and how many of them are free, in
/// `free`; each may be null. Bytes of deleted tensors are free once their segment is reclaimed,
/// which a put that needs them waits for.
///
/// # Safety
/// Each is null or points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_pool_capacity(pool: u64, capacity: *mut u64, free: *mut u64) -> i32 {
    boundary(|| {
        let space = POOLS.get(pool)?.stats()?.space;
        for (place, name, bytes) in
            [(capacity, "capacity", space.capacity), (free, "free", space.free)]
        {
            if !place.is_null() {
                // SAFETY: by this function's contract.
                unsafe { write_result(place, bytes.0, name) }?;
            }
        }
        Ok(())
    })
}

/// Reads every tensor of the share and compares it with its checksums; `damaged` is how many have
/// lost bytes. Which, and where on which device, `tide_pool_stats` lists under `scrubbed`. Nothing
/// is repaired: there is one copy. It returns at the end, which takes as long as reading everything
/// does; other threads use the pool meanwhile.
///
/// # Safety
/// `damaged` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_pool_scrub(pool: u64, damaged: *mut u64) -> i32 {
    boundary(|| {
        let pool = POOLS.get(pool)?;
        check_result(damaged, "damaged")?;
        let report = pool.scrub()?;
        // SAFETY: by this function's contract.
        unsafe { write_result(damaged, report.damaged.len() as u64, "damaged") }
    })
}
