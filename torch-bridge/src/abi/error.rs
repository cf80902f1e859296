//! Status codes, and the text behind the last error of each thread.

use std::cell::RefCell;
use std::ffi::{CStr, c_char};

use super::{write_result, write_text};
use crate::error::{Failure, FailureKind};

// What functions answer. Zero and above: a state. Below zero: an error.

/// Done; nothing is asked of the caller.
pub const TIDE_READY: i32 = 0;
/// Take requests with `tide_session_next_action`, then call `tide_session_resume`. Never where the
/// session has callbacks.
pub const TIDE_ACTION: i32 = 1;
/// Transfers are in flight: call `tide_session_wait`, or `tide_ticket_wait` again. Of a session's
/// functions never where it has callbacks.
pub const TIDE_WAITING: i32 = 2;
/// An argument was wrong; nothing happened.
pub const TIDE_INVALID_ARGUMENT: i32 = -1;
/// The pool cannot be formatted, opened, read or written, for none of the reasons that have codes
/// of their own.
pub const TIDE_POOL_FAILED: i32 = -2;
/// A device failed a transfer (I/O error).
pub const TIDE_DEVICE_FAILED: i32 = -3;
/// One op's storages exceed the budget.
pub const TIDE_BUDGET_EXCEEDED: i32 = -4;
/// The handle belongs to the parent of this forked process.
pub const TIDE_FORKED: i32 = -5;
/// No such handle: closed already, or never given out.
pub const TIDE_STALE_HANDLE: i32 = -6;
/// An internal error was caught at the boundary.
pub const TIDE_PANICKED: i32 = -7;
/// The pool has no tensor of this name.
pub const TIDE_NOT_FOUND: i32 = -8;
/// The pool has no room for it; delete something and try again.
pub const TIDE_FULL: i32 = -9;
/// Status: another process or host has the share or the device.
pub const TIDE_HELD: i32 = -10;
/// The range is not within the tensor; nothing was read.
pub const TIDE_OUT_OF_RANGE: i32 = -11;
/// A device gave back other bytes than were written, twice: they are lost.
pub const TIDE_CHECKSUM: i32 = -12;
/// The transfer was cancelled before its end.
pub const TIDE_CANCELLED: i32 = -13;
/// The pool is open for reading only; nothing happened.
pub const TIDE_READ_ONLY: i32 = -14;
/// An op around this one has, or is in the middle of moving, what it needs: it can run when that
/// has ended. Or another thread is in the middle of a call of the session.
pub const TIDE_BUSY: i32 = -15;
/// Status of callbacks that end the function which calls them, because of Ctrl-C for one. What was
/// asked for is asked for again.
pub const TIDE_INTERRUPTED: i32 = -16;

/// "No storage" where an error is about none.
pub const TIDE_NO_STORAGE: u32 = u32::MAX;

/// The number by which C knows a kind of failure.
fn code_of(kind: FailureKind) -> i32 {
    match kind {
        FailureKind::InvalidArgument => TIDE_INVALID_ARGUMENT,
        FailureKind::Pool => TIDE_POOL_FAILED,
        FailureKind::NotFound => TIDE_NOT_FOUND,
        FailureKind::ReadOnly => TIDE_READ_ONLY,
        FailureKind::Full => TIDE_FULL,
        FailureKind::Held => TIDE_HELD,
        FailureKind::OutOfRange => TIDE_OUT_OF_RANGE,
        FailureKind::Transfer => TIDE_DEVICE_FAILED,
        FailureKind::Checksum => TIDE_CHECKSUM,
        FailureKind::Cancelled => TIDE_CANCELLED,
        FailureKind::BudgetExceeded => TIDE_BUDGET_EXCEEDED,
        FailureKind::Busy => TIDE_BUSY,
        FailureKind::Forked => TIDE_FORKED,
        FailureKind::StaleHandle => TIDE_STALE_HANDLE,
        FailureKind::Callback(status) => status,
        FailureKind::Internal => TIDE_PANICKED,
    }
}

thread_local! {
    static LAST: RefCell<Option<Failure>> = const { RefCell::new(None) };
}

/// Keeps the error for [`tide_last_error`] and returns its code.
pub(super) fn remember(failure: Failure) -> i32 {
    let code = code_of(failure.kind());
    LAST.with(|last| *last.borrow_mut() = Some(failure));
    code
}

/// The version of this header: functions and fields are added with the second number (the first
/// while that is 0), and nothing that stands is changed before the first one.
pub const TIDE_VERSION_MAJOR: i32 = 0;
/// Minor version of the C ABI.
pub const TIDE_VERSION_MINOR: i32 = 2;
/// Patch version of the C ABI: corrections.
pub const TIDE_VERSION_PATCH: i32 = 0;

/// The version of the library, as text: "0.2.0".
#[unsafe(no_mangle)]
pub extern "C" fn tide_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => c"",
        };
    VERSION.as_ptr()
}

/// The text of this thread's last error, written to `buffer` (at most `capacity` bytes with the
/// closing NUL), and in `storage`, unless null, the storage it is about or `TIDE_NO_STORAGE`.
/// Returns the text's length.
///
/// # Safety
/// `buffer` is null or has `capacity` bytes; `storage` is null or points to one `uint32_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_last_error(
    buffer: *mut c_char,
    capacity: usize,
    storage: *mut u32,
) -> usize {
    LAST.with(|last| {
        let last = last.borrow();
        let text = last.as_ref().map_or("", Failure::text);
        let about = last.as_ref().and_then(Failure::storage).unwrap_or(TIDE_NO_STORAGE);
        if !storage.is_null() {
            // SAFETY: by this function's contract it points to one u32 of the caller's; a
            // misaligned one is refused by `write_result` and left as it was.
            let _ = unsafe { write_result(storage, about, "storage") };
        }
        // SAFETY: by this function's contract the buffer has `capacity` bytes of the caller's.
        unsafe { write_text(text, buffer, capacity) }
    })
}
