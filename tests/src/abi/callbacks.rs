//! The framework's callbacks.

use std::ffi::c_void;
use std::ptr::from_mut;

use tidelog::abi::*;

use super::Framework;

/// A session's callbacks, which reach this framework as long as nobody else does.
pub(super) fn of(framework: &mut Framework) -> tide_session_callbacks {
    tide_session_callbacks {
        size: size_of::<tide_session_callbacks>() as u64,
        context: from_mut(framework).cast(),
        evict: Some(evict),
        release: Some(release),
        allocate: Some(allocate),
        settle: Some(settle),
        wait_begins: Some(wait_begins),
        wait_ends: Some(wait_ends),
    }
}

/// Does what a request of this kind asks for.
///
/// # Safety
/// `context` is a framework that nobody else uses, `bytes` is readable, and `memory` null or
/// writable.
unsafe fn perform(
    context: *mut c_void,
    (whole, part): (u32, u32),
    bytes: *const tide_bytes,
    state: Option<u64>,
    memory: *mut tide_memory,
) -> i32 {
    // SAFETY: by this function's contract.
    let (framework, bytes) = unsafe { (&mut *context.cast::<Framework>(), &*bytes) };
    let kind = if bytes.is_part != 0 { part } else { whole };
    let size = state.unwrap_or(bytes.length);
    let action = tide_action { sequence: 0, size, kind, storage: bytes.storage };
    let (status, passed) = framework.called_back(&action, bytes.begin);
    if !memory.is_null() {
        // SAFETY: by this function's contract.
        unsafe { memory.write(passed) };
    }
    status
}

unsafe extern "C" fn evict(
    context: *mut c_void,
    bytes: *const tide_bytes,
    memory: *mut tide_memory,
) -> i32 {
    // SAFETY: as the library calls it.
    unsafe { perform(context, (TIDE_EVICT, TIDE_EVICT_PART), bytes, None, memory) }
}

unsafe extern "C" fn release(context: *mut c_void, bytes: *const tide_bytes) -> i32 {
    let memory = std::ptr::null_mut();
    // SAFETY: as the library calls it.
    unsafe { perform(context, (TIDE_RELEASE, TIDE_RELEASE_PART), bytes, None, memory) }
}

unsafe extern "C" fn allocate(
    context: *mut c_void,
    bytes: *const tide_bytes,
    memory: *mut tide_memory,
) -> i32 {
    // SAFETY: as the library calls it.
    unsafe { perform(context, (TIDE_ALLOCATE, TIDE_ALLOCATE_PART), bytes, None, memory) }
}

unsafe extern "C" fn settle(context: *mut c_void, bytes: *const tide_bytes, state: u64) -> i32 {
    let memory = std::ptr::null_mut();
    // SAFETY: as the library calls it.
    unsafe { perform(context, (TIDE_SETTLE, TIDE_SETTLE_PART), bytes, Some(state), memory) }
}

unsafe extern "C" fn wait_begins(context: *mut c_void) -> i32 {
    // SAFETY: as the library calls it, a framework that nobody else uses.
    let framework = unsafe { &mut *context.cast::<Framework>() };
    framework.about_to_wait().cast_signed()
}

unsafe extern "C" fn wait_ends(context: *mut c_void) -> i32 {
    // SAFETY: as for `wait_begins`.
    let framework = unsafe { &mut *context.cast::<Framework>() };
    framework.end_of_callback()
}
