//! Callers of the C ABI: good ones, careless ones and hostile ones, whose decisions come from a
//! seed or from a fuzzer.
//!
//! A caller knows what every byte must be and what every call may answer, and panics where that
//! does not hold. It keeps the ABI's own rules about memory, which no callee can check; it breaks
//! all others.
#![allow(unsafe_code)]
// The names of a C library begin with its own: they are clear without a module's name before them.
#![allow(clippy::wildcard_imports)]

mod callbacks;
mod choices;
mod compute_device;
mod framework;
mod memory;
mod pool;
mod session;
mod storage;

use std::ptr::{null, null_mut};

use tidelog::abi::*;

pub use choices::Choices;
pub use framework::{CallerBehaviour, Delivery, Folder, Framework, STAGING, last_error};
pub use memory::Memory;
pub use pool::{open_pool, pool_options, try_open_pool, try_open_pool_with, walk_pool};
pub use session::walk_session;

/// Returns the statuses by which all functions that take a handle refuse a stale one. All other
/// arguments are null or nothing, so that whoever looks at them before the handle shows.
pub fn statuses_of_a_stale(handle: u64) -> Vec<i32> {
    // SAFETY: null is what the functions must withstand; a stale handle lets them reach no memory.
    unsafe {
        vec![
            tide_pool_close(handle),
            tide_pool_close_within(handle, 0),
            tide_pool_eventfd(handle, -1),
            tide_pool_capacity(handle, null_mut(), null_mut()),
            tide_pool_scrub(handle, null_mut()),
            tide_verify(handle, null()),
            tide_put(handle, null(), null(), 1, 0, null_mut()),
            tide_get(handle, null(), 0, null_mut(), 1, 0, null_mut()),
            tide_put_gpu(handle, null(), 1, 1, null_mut(), 0, null_mut()),
            tide_batch_put_gpu(handle, null(), 1, 1, null_mut()),
            tide_get_gpu(handle, null(), 0, 1, 1, null_mut(), null_mut(), 0, null_mut()),
            tide_delete(handle, null()),
            tide_length(handle, null(), null_mut()),
            tide_ticket_wait(handle, 0),
            tide_ticket_wait_any(&raw const handle, 1, 0, null_mut()),
            tide_ticket_cancel(handle),
            tide_ticket_released(handle),
            tide_ticket_drop(handle),
            tide_batch_begin(handle, null_mut()),
            tide_batch_put(handle, null(), null(), 1),
            tide_batch_delete(handle, null()),
            tide_batch_commit(handle),
            tide_batch_start_commit(handle, null_mut()),
            tide_batch_drop(handle),
            tide_session_close(handle),
            tide_session_set_budget(handle, 1),
            tide_session_set_write_budget(handle, 1),
            tide_session_throttle(handle, 0),
            tide_session_sync(handle, null(), 1, null(), 1),
            tide_session_name(handle, 0, 0, null()),
            tide_session_resized(handle, 0, 0),
            tide_session_modified(handle, 0),
            tide_session_pin(handle, 0, 1),
            tide_session_async_use(handle, 0, 1),
            tide_session_evict(handle, 0),
            tide_session_pause(handle),
            tide_session_go_on(handle, 1),
            tide_session_step(handle, 1),
            tide_session_op_begin(handle, 0, 0, null(), null(), 1, 0),
            tide_session_op_end(handle),
            tide_session_settle(handle),
            tide_session_resume(handle),
            tide_session_resume_or_refuse(handle),
            tide_session_wait(handle, 0),
            tide_session_next_action(handle, null_mut()),
            tide_session_action_done(handle, 0, 0, null_mut()),
            tide_session_allocated(handle, 0, 0, null_mut(), null_mut()),
            tide_session_set_callbacks(handle, null()),
            tide_session_durations(handle, null(), 1),
            tide_session_leave_plan(handle),
            tide_session_hold_plan(handle, 1),
            tide_session_use_parts(handle),
            tide_session_divisible(handle, 0),
            tide_session_part_begin(handle, 1, null_mut()),
            tide_session_plan(handle, null_mut(), null_mut()),
            tide_session_report(handle, null()),
            tide_session_trace(handle, null()),
        ]
    }
}
