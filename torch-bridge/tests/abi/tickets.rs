//! Several things in flight: who waits for the first, and who is told by an eventfd.

use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use tidelog::abi::*;

use tidelog_tests::abi::{Folder, last_error, open_pool};

const MIB: usize = 1 << 20;
const WAIT_MS: u32 = 20_000;

fn ok(status: i32) {
    assert_eq!(status, TIDE_READY, "{}", last_error());
}

/// A new eventfd, which does not block.
fn eventfd() -> File {
    // SAFETY: the number is a new descriptor's, which nobody else closes.
    unsafe {
        let fd = libc::eventfd(0, libc::EFD_NONBLOCK | libc::EFD_CLOEXEC);
        assert!(fd >= 0);
        File::from_raw_fd(fd)
    }
}

/// Returns the count of an eventfd since the last read.
fn told(eventfd: &mut File) -> u64 {
    let mut count = [0; 8];
    match eventfd.read(&mut count) {
        Ok(_) => u64::from_ne_bytes(count),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => 0,
        Err(error) => panic!("{error}"),
    }
}

/// Waits by poll(2), as an event loop does.
fn is_readable(file: &File, timeout_ms: u32) -> bool {
    let mut fd = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
    // SAFETY: one descriptor, as is said.
    unsafe { libc::poll(&raw mut fd, 1, timeout_ms.cast_signed()) == 1 }
}

fn put(pool: u64, bytes: &[u8]) -> u64 {
    let mut ticket = 0;
    // SAFETY: the bytes outlive the transfer: callers wait for it.
    ok(unsafe {
        let (memory, length) = (bytes.as_ptr().cast(), bytes.len() as u64);
        tide_put(pool, c"x".as_ptr(), memory, length, 0, &raw mut ticket)
    });
    ticket
}

fn batch(pool: u64, bytes: &[u8]) -> u64 {
    let mut batch = 0;
    // SAFETY: the results are ours, the bytes as many as is said.
    unsafe {
        ok(tide_batch_begin(pool, &raw mut batch));
        ok(tide_batch_put(batch, c"w".as_ptr(), bytes.as_ptr().cast(), bytes.len() as u64));
    }
    batch
}

fn start_commit(batch: u64) -> u64 {
    let mut ticket = 0;
    // SAFETY: the result is ours.
    ok(unsafe { tide_batch_start_commit(batch, &raw mut ticket) });
    ticket
}

fn wait_any(tickets: &[u64], timeout_ms: u32) -> Result<usize, i32> {
    let mut index = usize::MAX;
    // SAFETY: as many tickets as is said; the result is ours.
    let status = unsafe {
        tide_ticket_wait_any(tickets.as_ptr(), tickets.len(), timeout_ms, &raw mut index)
    };
    if status == TIDE_READY { Ok(index) } else { Err(status) }
}

#[test]
fn whoever_waits_for_any_gets_each_once_and_a_commit_is_one_of_them() {
    let folder = Folder::new("wait-any");
    let pool = open_pool(&folder, 64 << 20);
    let bytes = vec![5; MIB];
    let mut tickets: Vec<u64> = (0..8).map(|_| put(pool, &bytes)).collect();
    let commit = start_commit(batch(pool, &bytes));
    tickets.push(commit);
    let mut commits = 0;
    while !tickets.is_empty() {
        let timeout = [TIDE_FOREVER, WAIT_MS][tickets.len() % 2];
        let ended = tickets.remove(wait_any(&tickets, timeout).unwrap());
        ok(tide_ticket_wait(ended, 0));
        assert_eq!(tide_ticket_released(ended), 1);
        commits += u32::from(ended == commit);
        ok(tide_ticket_drop(ended));
    }
    assert_eq!(commits, 1);
    let mut length = 0;
    // SAFETY: the name is NUL-terminated, the result ours.
    ok(unsafe { tide_length(pool, c"w".as_ptr(), &raw mut length) });
    assert_eq!(length, MIB as u64, "what a ready commit holds is there");
    ok(tide_pool_close(pool));
}

#[test]
fn of_several_that_have_ended_the_first_of_the_list_is_told_also_where_it_failed() {
    let folder = Folder::new("wait-any-ended");
    let pool = open_pool(&folder, 64 << 20);
    let bytes = vec![5; MIB];
    let tickets = [put(pool, &bytes), put(pool, &bytes)];
    for &ticket in &tickets {
        ok(tide_ticket_wait(ticket, TIDE_FOREVER));
    }
    assert_eq!(wait_any(&tickets, 0), Ok(0));
    assert_eq!(wait_any(&[tickets[1], tickets[0]], 0), Ok(0));
    assert_eq!(wait_any(&[tickets[1], tickets[1]], 0), Ok(0));
    // A pool that is closed has ended everything; how, each ticket says.
    let stopped = put(pool, &bytes);
    ok(tide_pool_close(pool));
    assert_eq!(wait_any(&[stopped], WAIT_MS), Ok(0));
    for ticket in [tickets[0], tickets[1], stopped] {
        ok(tide_ticket_drop(ticket));
    }
    assert_eq!(wait_any(&tickets, 0), Err(TIDE_STALE_HANDLE));
    assert_eq!(wait_any(&[], 0), Err(TIDE_INVALID_ARGUMENT));
    assert!(last_error().contains("count is 0"), "{}", last_error());
    let mut index = 0;
    // SAFETY: null and misaligned pointers are refused.
    unsafe {
        let refused = tide_ticket_wait_any(null(), 1, 0, &raw mut index);
        assert_eq!(refused, TIDE_INVALID_ARGUMENT, "{}", last_error());
        let most = usize::MAX;
        let refused = tide_ticket_wait_any(tickets.as_ptr(), most, 0, &raw mut index);
        assert_eq!(refused, TIDE_INVALID_ARGUMENT, "{}", last_error());
    }
}

#[test]
fn tickets_of_several_pools_are_waited_for_without_spinning() {
    let folders = [Folder::new("wait-any-one"), Folder::new("wait-any-other")];
    let pools = folders.each_ref().map(|folder| open_pool(folder, 64 << 20));
    let bytes = vec![5; 16 * MIB];
    let mut tickets: Vec<u64> = pools.iter().map(|&pool| put(pool, &bytes)).collect();
    let (begun, spent) = (Instant::now(), processor_time());
    while !tickets.is_empty() {
        let ended = wait_any(&tickets, WAIT_MS).unwrap_or_else(|_| panic!("{}", last_error()));
        ok(tide_ticket_drop(tickets.remove(ended)));
    }
    let (spent, took) = (processor_time().saturating_sub(spent), begun.elapsed());
    assert!(spent < took / 2 + Duration::from_millis(5), "{spent:?} of {took:?}");
    for &pool in &pools {
        ok(tide_pool_close(pool));
    }
}

/// Returns the processor time of this thread.
fn processor_time() -> Duration {
    // SAFETY: any bytes are a time, and the place is ours.
    unsafe {
        let mut time: libc::timespec = std::mem::zeroed();
        libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time);
        let nanoseconds = u32::try_from(time.tv_nsec).expect("less than a second");
        Duration::new(time.tv_sec.cast_unsigned(), nanoseconds)
    }
}

#[test]
fn an_eventfd_counts_what_ends_and_wakes_poll() {
    let folder = Folder::new("eventfd");
    let pool = open_pool(&folder, 64 << 20);
    let (mut events, bytes) = (eventfd(), vec![5; MIB]);
    let before = put(pool, &bytes);
    ok(tide_ticket_wait(before, WAIT_MS));
    // SAFETY: ours, and open.
    ok(unsafe { tide_pool_eventfd(pool, events.as_raw_fd()) });
    assert!(!is_readable(&events, 0) && told(&mut events) == 0, "nothing was begun since");
    let mut tickets: Vec<u64> = (0..5).map(|_| put(pool, &bytes)).collect();
    tickets.push(start_commit(batch(pool, &bytes)));
    let mut ends = 0;
    let deadline = Instant::now() + Duration::from_secs(20);
    while ends < 6 {
        assert!(Instant::now() < deadline, "{ends} of 6 were told");
        if is_readable(&events, 1000) {
            ends += told(&mut events);
        }
    }
    // What was told has ended: looking is enough.
    for &ticket in &tickets {
        ok(tide_ticket_wait(ticket, 0));
    }
    assert_eq!((ends, told(&mut events)), (6, 0), "each once");
    // Of a ticket that is dropped, too.
    ok(tide_ticket_drop(put(pool, &bytes)));
    assert!(is_readable(&events, WAIT_MS) && told(&mut events) == 1);
    // No more: not after it was taken back, nor once the caller's is closed.
    // SAFETY: -1 is none.
    ok(unsafe { tide_pool_eventfd(pool, -1) });
    let last = put(pool, &bytes);
    ok(tide_ticket_wait(last, WAIT_MS));
    assert_eq!(told(&mut events), 0);
    // SAFETY: ours, and open.
    ok(unsafe { tide_pool_eventfd(pool, events.as_raw_fd()) });
    drop(events);
    tickets.extend([before, last, put(pool, &bytes)]);
    ok(tide_pool_close(pool));
    for &ticket in &tickets {
        ok(tide_ticket_drop(ticket));
    }
}

#[test]
fn what_is_no_eventfd_is_refused_and_the_one_before_stays() {
    let folder = Folder::new("no-eventfd");
    let pool = open_pool(&folder, 64 << 20);
    let mut events = eventfd();
    // SAFETY: ours, and open.
    ok(unsafe { tide_pool_eventfd(pool, events.as_raw_fd()) });
    let (reader, writer) = std::io::pipe().unwrap();
    let file = File::open("/dev/null").unwrap();
    // SAFETY: the number is a new descriptor's, which nobody else closes.
    let epoll = unsafe { File::from_raw_fd(libc::epoll_create1(libc::EPOLL_CLOEXEC)) };
    let fds =
        [reader.as_raw_fd(), writer.as_raw_fd(), file.as_raw_fd(), epoll.as_raw_fd(), 9999, -2];
    for fd in fds {
        // SAFETY: nobody closes them meanwhile; two never were open.
        let refused = unsafe { tide_pool_eventfd(pool, fd) };
        assert_eq!(refused, TIDE_INVALID_ARGUMENT, "{fd}");
        assert!(last_error().contains(&format!("fd {fd} is no eventfd")), "{}", last_error());
    }
    let ticket = put(pool, &[1; 100]);
    assert!(is_readable(&events, WAIT_MS) && told(&mut events) == 1);
    ok(tide_ticket_drop(ticket));
    ok(tide_pool_close(pool));
}

#[test]
fn a_commit_in_flight_is_not_cancelled_and_closing_waits_for_it() {
    let folder = Folder::new("async-commit");
    let pool = open_pool(&folder, 64 << 20);
    let bytes = vec![5; MIB];
    let begun = batch(pool, &bytes);
    // SAFETY: null is refused.
    let refused = unsafe { tide_batch_start_commit(begun, null_mut()) };
    assert_eq!(refused, TIDE_INVALID_ARGUMENT, "{}", last_error());
    // That has not ended the batch; a commit does.
    let ticket = start_commit(begun);
    assert_eq!(tide_batch_commit(begun), TIDE_STALE_HANDLE);
    assert_eq!(tide_batch_drop(begun), TIDE_STALE_HANDLE);
    assert_eq!(tide_ticket_cancel(ticket), TIDE_INVALID_ARGUMENT);
    assert!(last_error().contains("commit"), "{}", last_error());
    assert_eq!(tide_ticket_released(ticket), 1);
    ok(tide_pool_close(pool));
    ok(tide_ticket_wait(ticket, 0));
    ok(tide_ticket_drop(ticket));
    let pool = open_pool(&folder, 64 << 20);
    // SAFETY: the name is NUL-terminated.
    ok(unsafe { tide_verify(pool, c"w".as_ptr()) });
    ok(tide_pool_close(pool));
}
