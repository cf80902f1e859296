//! Tickets: what follows a transfer or a commit in flight, and who waits for it.

use std::time::Duration;

use tidelog_engine::pool::Commit;
use tidelog_engine::schedule::Ticket;

use super::handles::HandleTable;
use super::pool::OpenPool;
use super::{array_argument, boundary, check_result, write_result};
use crate::error::Failure;
use crate::executor::Readiness;

static TICKETS: HandleTable<InFlight> = HandleTable::new("ticket");

/// Timeout of a wait without one: until the end, however long that takes. As an `int` it is -1.
pub const TIDE_FOREVER: u32 = u32::MAX;

/// Operation that a ticket follows.
pub(super) enum InFlight {
    Transfer(Ticket),
    Commit(Commit),
}

impl From<Ticket> for InFlight {
    fn from(ticket: Ticket) -> Self {
        Self::Transfer(ticket)
    }
}

impl From<Commit> for InFlight {
    fn from(commit: Commit) -> Self {
        Self::Commit(commit)
    }
}

impl InFlight {
    /// Returns the ticket whose end is this one's.
    fn ticket(&self) -> &Ticket {
        match self {
            Self::Transfer(ticket) => ticket,
            Self::Commit(commit) => commit.ticket(),
        }
    }

    /// Waits for the end, and returns the result if it ended within `timeout`.
    fn wait(&self, timeout: Duration) -> Option<Result<(), Failure>> {
        match self {
            Self::Transfer(ticket) => {
                let ended = ticket.wait_timeout(timeout)?;
                Some(ended.map(drop).map_err(Failure::from))
            }
            Self::Commit(commit) => Some(commit.wait_timeout(timeout)?.map_err(Failure::from)),
        }
    }
}

/// The time that a number of milliseconds stands for.
pub(super) fn timeout_of(timeout_ms: u32) -> Duration {
    if timeout_ms == TIDE_FOREVER {
        return Duration::MAX;
    }
    Duration::from_millis(timeout_ms.into())
}

/// Waits at most `timeout_ms` for a ticket: `TIDE_READY` once its transfer or commit succeeded,
/// `TIDE_WAITING` while it has not ended, an error once it failed. A time-out of 0 only looks,
/// `TIDE_FOREVER` waits for the end.
#[unsafe(no_mangle)]
pub extern "C" fn tide_ticket_wait(ticket: u64, timeout_ms: u32) -> i32 {
    boundary(|| {
        let ended = TICKETS.get(ticket)?.wait(timeout_of(timeout_ms));
        ended.map_or(Ok(Readiness::Waiting), |ended| ended.map(|()| Readiness::Ready))
    })
}

/// Waits at most `timeout_ms` until one of `count` tickets has ended, well or not: `TIDE_READY`,
/// and in `index` which, the first of them in the list; `TIDE_WAITING` if none has. How it ended
/// `tide_ticket_wait` says; take it out of the list then, or it is found again. The tickets may be
/// of several pools. Nothing spins and no thread is started.
///
/// # Safety
/// `tickets` has `count` items; `index` points to one `size_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_ticket_wait_any(
    tickets: *const u64,
    count: usize,
    timeout_ms: u32,
    index: *mut usize,
) -> i32 {
    boundary(|| {
        // SAFETY: by this function's contract.
        let handles = unsafe { array_argument(tickets, count, "tickets") }?;
        if handles.is_empty() {
            return Err(Failure::invalid("count is 0: there is no ticket to wait for"));
        }
        let in_flight = TICKETS.get_all(handles)?;
        check_result(index, "index")?;
        let tickets: Vec<&Ticket> = in_flight.iter().map(|each| each.ticket()).collect();
        let Some(ended) = Ticket::wait_any(&tickets, timeout_of(timeout_ms)) else {
            return Ok(Readiness::Waiting);
        };
        // SAFETY: by this function's contract.
        unsafe { write_result(index, ended, "index") }?;
        Ok(Readiness::Ready)
    })
}

/// Stops a transfer as soon as its pieces in flight are back. Its ticket then ends with an error. A
/// commit that was started cannot be stopped: `TIDE_INVALID_ARGUMENT`.
#[unsafe(no_mangle)]
pub extern "C" fn tide_ticket_cancel(ticket: u64) -> i32 {
    boundary(|| match &*TICKETS.get(ticket)? {
        InFlight::Transfer(ticket) => {
            ticket.cancel();
            Ok(())
        }
        InFlight::Commit(_) => {
            Err(Failure::invalid("the ticket is a commit's: one that was started goes to its end"))
        }
    })
}

/// 1 once no device and no copy touches the transfer's memory any more, 0 before. Always 1 for a
/// commit, which has no memory of the caller's.
#[unsafe(no_mangle)]
pub extern "C" fn tide_ticket_released(ticket: u64) -> i32 {
    boundary(|| {
        Ok(match &*TICKETS.get(ticket)? {
            InFlight::Transfer(ticket) => ticket.released(),
            InFlight::Commit(_) => true,
        })
    })
}

/// Forgets a ticket. Its transfer or commit goes on, and its memory stays in use until it ends: to
/// know when, keep the ticket until it is released.
#[unsafe(no_mangle)]
pub extern "C" fn tide_ticket_drop(ticket: u64) -> i32 {
    boundary(|| {
        TICKETS.remove(ticket)?;
        Ok(())
    })
}

/// Hands out what was begun in a pool, whose eventfd hears of its end.
///
/// # Safety
/// `place` is null or points to one u64 of the caller's.
pub(super) unsafe fn give_out(
    pool: &OpenPool,
    begun: impl Into<InFlight>,
    place: *mut u64,
) -> Result<(), Failure> {
    let begun = begun.into();
    // A clone, so that nothing is told before the caller could know the ticket.
    let ticket = begun.ticket().clone();
    let handle = TICKETS.insert(begun);
    // SAFETY: by this function's contract.
    unsafe { write_result(place, handle, "ticket") }?;
    pool.watch(&ticket);
    Ok(())
}
