//! The caller's callbacks: what a session asks of its caller while one of its functions runs.
#![allow(non_camel_case_types, reason = "types of functions have names as C has them, too")]

use std::ffi::c_void;
use std::time::Duration;

use super::drive::drive_with;
use super::session::{TIDE_PARTS_COPIED, TIDE_PARTS_RESIDENT, state_number};
use super::{Options, options_argument};
use crate::error::{Failure, FailureKind};
use crate::memory::{CallerMemory, MemoryAction, MemoryRequest};

/// The bytes that a callback is about: a storage, or a part of it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tide_bytes {
    /// Start of the bytes in the storage. Of a part: a multiple of 2 MiB.
    pub begin: u64,
    /// Number of bytes.
    pub length: u64,
    /// The storage's number.
    pub storage: u32,
    /// Non-zero for a part. Others of its parts may be out, or in flight. Only after
    /// `tide_session_use_parts`.
    pub is_part: u32,
}

/// Memory that a callback passes. The callback is called with zeros in it.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tide_memory {
    /// Address of the bytes, on the session's GPU if it has one. 0: there is none, or they cannot
    /// move now.
    pub address: u64,
    /// The `CUevent` after which the memory may be touched: behind the last kernel so far that
    /// writes an evicted storage, or that uses what the memory of an allocated one was before.
    /// Null: at once.
    pub after: *mut c_void,
    /// Event of an allocation on a GPU: the `CUevent` that the library records behind the last
    /// copy. The storage may be settled or released before it has happened, and every stream that
    /// uses the bytes or the memory waits for it. It may be the event that `after` is. Null: the
    /// storage is settled once its bytes are there. Of an eviction on a GPU, the same for what is
    /// copied out: the event that `after` is, which the library records behind the last look at the
    /// memory. Null: the storage is released once that was.
    pub landed: *mut c_void,
    /// Event of an eviction on a GPU: a `CUevent` behind the last kernel that is known to use the
    /// storage, where that is earlier than `after`. Bytes that are written are read from then on.
    /// They are compared with the memory from `after` on, before its release: what a kernel wrote
    /// that nobody knew of is written again. Null: all waits for `after`.
    pub last_use: *mut c_void,
}

/// Writes to `memory` where these bytes of the storage are.
pub type tide_memory_callback = Option<
    unsafe extern "C" fn(
        context: *mut c_void,
        bytes: *const tide_bytes,
        memory: *mut tide_memory,
    ) -> i32,
>;

/// Frees the memory of these bytes.
pub type tide_release_callback =
    Option<unsafe extern "C" fn(context: *mut c_void, bytes: *const tide_bytes) -> i32>;

/// Takes these bytes back: no transfer touches them.
pub type tide_settle_callback =
    Option<unsafe extern "C" fn(context: *mut c_void, bytes: *const tide_bytes, state: u64) -> i32>;

/// Is called before or after a wait.
pub type tide_wait_callback = Option<unsafe extern "C" fn(context: *mut c_void) -> i32>;

/// Callbacks of a session, called while one of its functions runs, on the thread that called the
/// function.
///
/// A callback returns 0 or more where it has done what it is for. Below 0 it ends the function,
/// which returns that number: `TIDE_INTERRUPTED` for Ctrl-C. What it was asked for is asked for
/// again by the next call, so what it had done by then must do no harm when it is done twice. It
/// may call every function of the library. Ops that it begins are inside the one that waits: see
/// `tide_session_nest`. It must not unwind (C++ exceptions) or jump out (`longjmp`).
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct tide_session_callbacks {
    /// `sizeof` this struct: tells which version of it the caller was built with.
    pub size: u64,
    /// The first argument of each.
    pub context: *mut c_void,
    /// The bytes are about to be copied out: keep them alive. Address 0: they cannot move now, and
    /// are not asked for again before the next op. Others of the storage's parts may be out, and
    /// those bytes are somewhere in memory all the same.
    pub evict: tide_memory_callback,
    /// The bytes are in the log, or in host memory: free their memory and guard the storage. Of a
    /// part give back its pages alone: the others keep theirs, whether in memory or in flight, so
    /// the storage keeps its address.
    pub release: tide_release_callback,
    /// The bytes are coming: allocate memory, keep it alive and guarded. Address 0: there is no
    /// memory. Other storages leave and it is asked again; where none is left that could leave, the
    /// op that needs it fails.
    pub allocate: tide_memory_callback,
    /// The bytes are in memory, and no transfer touches them. `state` says where all bytes of the
    /// storage are, `TIDE_PARTS_RESIDENT` to `TIDE_PARTS_AWAY`. Unless it is `TIDE_PARTS_AWAY`,
    /// lift the guard.
    pub settle: tide_settle_callback,
    /// The thread is about to wait: a caller whose threads share a lock gives it up. Returns how
    /// many milliseconds to wait at most; no wait is longer than 50, which is also what null means.
    /// 0: uses that the caller reported by `tide_session_async_use` may wait for the caller; what
    /// waits for them alone is refused, as by `tide_session_resume_or_refuse`.
    pub wait_begins: tide_wait_callback,
    /// The wait has ended: the place to take the lock again, and to look for Ctrl-C. Null: nothing
    /// is called.
    pub wait_ends: tide_wait_callback,
}

// SAFETY: numbers, a pointer, and functions of which zeros are none; `size` comes first.
unsafe impl Options for tide_session_callbacks {
    const NAME: &str = "tide_session_callbacks";
    const LENGTH_MIN: usize = size_of::<Self>();
}

/// The longest wait between two looks for Ctrl-C.
const SLICE_MAX: Duration = Duration::from_millis(50);

/// The callbacks of one session.
#[derive(Clone, Copy)]
pub(super) struct Callbacks(tide_session_callbacks);

// SAFETY: the context is the caller's, who lets only one thread call the session's functions at a
// time, by the contract of `tide_session_set_callbacks`.
unsafe impl Send for Callbacks {}

impl Callbacks {
    /// Has the caller do what a request asks for.
    pub(super) fn perform(&self, request: &MemoryRequest) -> Result<CallerMemory, Failure> {
        let tide_session_callbacks { context, evict, release, allocate, settle, .. } = self.0;
        let MemoryRequest { sequence, action, of, size: length } = *request;
        let bytes = tide_bytes {
            begin: of.part.unwrap_or(0),
            length,
            storage: of.storage,
            is_part: of.part.is_some().into(),
        };
        let null = std::ptr::null_mut();
        let mut memory = tide_memory { address: 0, after: null, landed: null, last_use: null };
        let (bytes, place) = (&raw const bytes, &raw mut memory);
        // SAFETY: functions that take these arguments, by the contract of
        // `tide_session_set_callbacks`; bytes and memory live across the call.
        let (name, status) = unsafe {
            match action {
                MemoryAction::Evict => ("evict", evict.map(|call| call(context, bytes, place))),
                MemoryAction::Release => ("release", release.map(|call| call(context, bytes))),
                MemoryAction::Allocate => {
                    ("allocate", allocate.map(|call| call(context, bytes, place)))
                }
                MemoryAction::Settle { clean } => {
                    let state = if clean { TIDE_PARTS_COPIED } else { TIDE_PARTS_RESIDENT };
                    ("settle", settle.map(|call| call(context, bytes, state)))
                }
                MemoryAction::SettlePart { state } => {
                    ("settle", settle.map(|call| call(context, bytes, state_number(state))))
                }
            }
        };
        check(name, status).map_err(|failure| failure.about(of.storage))?;
        // SAFETY: the caller keeps memory and events as it would those that it reports by
        // `tide_session_allocated`, by the contract of `tide_session_set_callbacks`.
        Ok(unsafe {
            CallerMemory::new(sequence, memory.address, memory.after)
                .with_landed(memory.landed)
                .with_last_use(memory.last_use)
        })
    }

    /// A wait begins. Returns how long it may be; `None`: what waits for asynchronous uses alone is
    /// to be refused.
    pub(super) fn wait_begins(&self) -> Result<Option<Duration>, Failure> {
        // SAFETY: a function of this type, by the contract of `tide_session_set_callbacks`.
        let answer = self.0.wait_begins.map(|call| unsafe { call(self.0.context) });
        let Some(milliseconds) = answer else { return Ok(Some(SLICE_MAX)) };
        check("wait_begins", answer)?;
        let wait = Duration::from_millis(milliseconds.unsigned_abs().into());
        Ok((milliseconds > 0).then_some(wait.min(SLICE_MAX)))
    }

    /// A wait has ended.
    pub(super) fn wait_ends(&self) -> Result<(), Failure> {
        // SAFETY: a function of this type, by the contract of `tide_session_set_callbacks`.
        let answer = self.0.wait_ends.map(|call| unsafe { call(self.0.context) });
        answer.map_or(Ok(()), |status| check("wait_ends", Some(status)))
    }
}

/// Checks the result of a callback; `None`: there is none.
fn check(name: &str, status: Option<i32>) -> Result<(), Failure> {
    match status {
        Some(0..) => Ok(()),
        Some(status) => Err(Failure::new(
            FailureKind::Callback(status),
            format!("the caller's callback {name} returned {status}"),
        )),
        None => Err(Failure::invalid(format!("the session has no callback {name}"))),
    }
}

/// Gives a session callbacks, or with null takes them from it. With them, each function of the
/// session that returns `TIDE_ACTION` or `TIDE_WAITING` without them performs all requests and
/// waits itself, and returns `TIDE_READY` or an error: `tide_session_op_begin`, `_op_end`, `_step`,
/// `_settle`, `_evict`, `_pause`, `_go_on`, `_resume`, `_resume_or_refuse` and `_wait`.
/// `tide_session_nest` returns at once all the same. No lock of the library is held while a
/// callback runs.
///
/// One thread at a time may call these functions: another one gets `TIDE_BUSY`. So does a callback
/// that calls one of them without `tide_session_nest`.
///
/// # Safety
/// `callbacks` is null or points to as many bytes as its `size` says; each function in it is null
/// or takes the arguments of its type, and may be called until the session is closed or gets
/// others. What a callback writes to a `tide_memory` holds as for `tide_session_action_done` and
/// `tide_session_allocated`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_session_set_callbacks(
    session: u64,
    callbacks: *const tide_session_callbacks,
) -> i32 {
    drive_with(session, || {
        if callbacks.is_null() {
            return Ok(None);
        }
        // SAFETY: by this function's contract as long as its size says.
        let callbacks = unsafe { options_argument(callbacks) }?;
        let tide_session_callbacks { evict, release, allocate, settle, .. } = callbacks;
        let named = [
            ("evict", evict.is_some()),
            ("release", release.is_some()),
            ("allocate", allocate.is_some()),
            ("settle", settle.is_some()),
        ];
        match named.into_iter().find(|(_, is_there)| !is_there) {
            Some((name, _)) => Err(Failure::invalid(format!(
                "the callback {name} is null: without evict, release, allocate and settle nothing \
                 can move"
            ))),
            None => Ok(Some(Callbacks(callbacks))),
        }
    })
}
