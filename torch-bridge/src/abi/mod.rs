//! The C ABI: what crosses it, and what never does.
//!
//! Pointers are checked for null and turned into slices here, and nowhere else. A panic stops at
//! this boundary and becomes [`TIDE_PANICKED`]. Handles are numbers looked up in a table, so a
//! stale one is an error.
#![allow(unsafe_code)]

// In the order of the header, which the blank lines keep.
mod error;

mod pool;

mod transfer;

mod ticket;

mod batch;

mod gpu;

mod session;

mod callbacks;

mod seal;

mod memory;

mod mapped;

mod gpu_arena;

mod drive;
mod eventfd;
mod handles;

pub use batch::*;
pub use callbacks::*;
pub use error::*;
pub use gpu::*;
pub use gpu_arena::*;
pub use mapped::*;
pub use memory::*;
pub use pool::*;
pub use seal::*;
pub use session::*;
pub use ticket::*;
pub use transfer::*;

use std::ffi::{CStr, c_char};
use std::mem::MaybeUninit;
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::error::Failure;
use crate::memory::MemoryPlace;

/// Type that a function returns in C when it has not failed.
trait ReturnCode {
    fn code(self) -> i32;
}

impl ReturnCode for () {
    fn code(self) -> i32 {
        TIDE_READY
    }
}

impl ReturnCode for bool {
    fn code(self) -> i32 {
        self.into()
    }
}

/// Runs the body of an ABI function: an error is remembered for [`tide_last_error`], a panic
/// becomes an error.
fn boundary<T: ReturnCode>(body: impl FnOnce() -> Result<T, Failure>) -> i32 {
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(done)) => done.code(),
        Ok(Err(failure)) => remember(failure),
        Err(payload) => {
            let text = payload
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| payload.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            remember(Failure::internal(text))
        }
    }
}

/// The place that an option means: CUDA's number of the GPU plus one, or 0.
fn place_numbered(gpu: u8) -> MemoryPlace {
    gpu.checked_sub(1).map_or(MemoryPlace::Host, MemoryPlace::Gpu)
}

/// A caller's text argument.
///
/// # Safety
/// `text` is null or points to a NUL-terminated string that outlives the returned reference.
unsafe fn text_argument<'a>(text: *const c_char, name: &str) -> Result<&'a str, Failure> {
    if text.is_null() {
        return Err(Failure::invalid(format!("{name} is a null pointer; pass a string")));
    }
    // SAFETY: not null, and by this function's contract NUL-terminated and alive for 'a.
    let text = unsafe { CStr::from_ptr(text) };
    text.to_str().map_err(|_| Failure::invalid(format!("{name} is not UTF-8 text")))
}

/// A caller's array argument; null is allowed where `count` is zero.
///
/// # Safety
/// `items` is null or points to `count` initialised items that outlive the returned slice.
unsafe fn array_argument<'a, T>(
    items: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    if items.is_null() || !items.is_aligned() || count > isize::MAX as usize / size_of::<T>().max(1)
    {
        return Err(Failure::invalid(format!(
            "{name} is null, misaligned or impossibly long ({count} items)"
        )));
    }
    // SAFETY: not null, aligned, of a possible size, and by this function's contract initialised
    // and alive for 'a; nobody writes it during the call.
    Ok(unsafe { std::slice::from_raw_parts(items, count) })
}

/// Options as they cross the ABI.
///
/// # Safety
/// Any initialised bytes are a value, zeros mean "as before this field existed", and the first
/// field is a `u64`: the length of the caller's version.
unsafe trait Options: Copy {
    /// Name in C.
    const NAME: &str;
    /// The length of the first version that was ever released.
    const LENGTH_MIN: usize;
}

/// A caller's options, of this version or another: what an older one lacks is zero, and what a
/// newer one has beyond ours must be.
///
/// # Safety
/// `options` is null or points to as many initialised bytes as its first `u64` says.
unsafe fn options_argument<T: Options>(options: *const T) -> Result<T, Failure> {
    const LENGTH_MAX: usize = 4096;
    // SAFETY: a `u64` is there by this function's contract.
    let stated = unsafe { array_argument(options.cast::<u64>(), 1, "options") }?[0];
    let ours = size_of::<T>();
    let length = usize::try_from(stated)
        .ok()
        .filter(|length| (T::LENGTH_MIN..=LENGTH_MAX).contains(length))
        .ok_or_else(|| {
            let name = T::NAME;
            Failure::invalid(format!(
                "options.size is {stated}: set it to sizeof({name}), {ours} in this version"
            ))
        })?;
    let beyond = length.saturating_sub(ours);
    // SAFETY: `length` initialised bytes are there by this function's contract, and these are the
    // last of them.
    let newer =
        unsafe { array_argument(options.cast::<u8>().wrapping_add(ours), beyond, "options") }?;
    if newer.iter().any(|&byte| byte != 0) {
        return Err(Failure::invalid(format!(
            "options have {length} bytes, and set something beyond the {ours} that this version knows: \
             use a newer library"
        )));
    }
    let mut value = MaybeUninit::<T>::zeroed();
    // SAFETY: at most `length` bytes are read, which are there by this function's contract, and at
    // most `ours` written into `value`, which is no caller's memory; any bytes are a value by the
    // trait's contract.
    unsafe {
        let (from, to) = (options.cast::<u8>(), value.as_mut_ptr().cast());
        std::ptr::copy_nonoverlapping(from, to, length.min(ours));
        Ok(value.assume_init())
    }
}

/// A caller's result argument.
///
/// # Safety
/// `place` is null or points to memory for one `T` that nobody else touches during the call.
unsafe fn write_result<T>(place: *mut T, value: T, name: &str) -> Result<(), Failure> {
    check_result(place, name)?;
    // SAFETY: not null, aligned, and ours to write by this function's contract.
    unsafe { place.write(value) };
    Ok(())
}

/// Refuses a result argument before anything happens whose result could then not be handed out.
fn check_result<T>(place: *mut T, name: &str) -> Result<(), Failure> {
    if place.is_null() || !place.is_aligned() {
        return Err(Failure::invalid(format!("{name} is null or misaligned")));
    }
    Ok(())
}

/// Refuses a length that no memory can have.
fn check_length(length: u64) -> Result<usize, Failure> {
    usize::try_from(length).ok().filter(|&length| isize::try_from(length).is_ok()).ok_or_else(
        || Failure::invalid(format!("length is {length} bytes: no memory is that large")),
    )
}

/// Copies text into a caller's buffer as a C string, cut where it is too small. Returns the
/// text's whole length, so that the caller can come back with a larger buffer.
///
/// # Safety
/// `buffer` is null or points to `capacity` bytes that nobody else touches during the call.
unsafe fn write_text(text: &str, buffer: *mut c_char, capacity: usize) -> usize {
    if !buffer.is_null() && capacity > 0 {
        let length = text.len().min(capacity - 1);
        // SAFETY: `length + 1 <= capacity` bytes are ours to write by this function's contract;
        // `text` is our own memory and cannot overlap a caller's exclusive buffer.
        unsafe {
            std::ptr::copy_nonoverlapping(text.as_ptr(), buffer.cast::<u8>(), length);
            buffer.add(length).write(0);
        }
    }
    text.len()
}

/// Copies the text that `answer` gives into a caller's buffer, as [`write_text`] does, and returns
/// its length; 0 for an error, which is remembered.
///
/// # Safety
/// As [`write_text`].
unsafe fn write_answer(
    answer: impl FnOnce() -> Result<String, Failure>,
    buffer: *mut c_char,
    capacity: usize,
) -> usize {
    let mut text = String::new();
    let status = boundary(|| {
        text = answer()?;
        Ok(())
    });
    // SAFETY: by this function's contract.
    if status == TIDE_READY { unsafe { write_text(&text, buffer, capacity) } } else { 0 }
}
