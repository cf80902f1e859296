//! A child of fork opens pools and sessions of its own whatever the parent's threads were doing: no
//! lock that one of them held is waited for.
//!
//! A program of its own, that begins as C and Python do: the runtime of a Rust program has a lock
//! in each thread's start (for its message of a stack's overflow), which no library can keep a
//! child from waiting for. So there is no `main` of Rust's here.
#![no_main]
#![allow(unsafe_code)]
#![allow(clippy::wildcard_imports)]

use std::ffi::CString;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidelog::abi::*;
use tidelog_tests::abi::{Folder, STAGING, last_error, pool_options};

const FORKS: u32 = 150;
const POOL_SIZE: u64 = 16 << 20;
/// A child takes some hundredths of a second; one that hangs does so for ever.
const TIMEOUT: Duration = Duration::from_secs(120);
const LENGTH: u64 = 5000;

fn session_options(devices: &CString) -> tide_session_options {
    tide_session_options {
        size: size_of::<tide_session_options>() as u64,
        devices: devices.as_ptr(),
        data_path: c"auto".as_ptr(),
        budget: 4 << 20,
        staging: STAGING,
        host_memory: 0,
        pool_size: POOL_SIZE,
        share: 0,
        buffered: 1,
        reactive: 0,
        policy: 0,
        gpu: 0,
        must_exist: 0,
        share_count: 0,
        sparse: 0,
        degraded: 0,
    }
}

/// Puts a tensor and waits for it; whether all went well.
fn put(pool: u64) -> bool {
    let (bytes, mut ticket) = ([7_u8; LENGTH as usize], 0);
    // SAFETY: the name is NUL-terminated, the bytes stay until the put has ended, the result is
    // ours.
    let begun =
        unsafe { tide_put(pool, c"x".as_ptr(), bytes.as_ptr().cast(), LENGTH, 0, &raw mut ticket) };
    begun == TIDE_READY
        && tide_ticket_wait(ticket, 60_000) == TIDE_READY
        && tide_ticket_drop(ticket) == TIDE_READY
}

fn open_and_close_session(devices: &CString) -> bool {
    let (options, mut session) = (session_options(devices), 0);
    // SAFETY: the texts are NUL-terminated, and the result is ours.
    let opened = unsafe { tide_session_open(&raw const options, &raw mut session) };
    opened == TIDE_READY
        && tide_session_settle(session) == TIDE_READY
        && tide_session_close(session) == TIDE_READY
}

fn open_pool(devices: &CString) -> u64 {
    let (options, mut pool) = (pool_options(devices, POOL_SIZE, 0, c"auto"), 0);
    // SAFETY: the texts are NUL-terminated, and the result is ours.
    let opened = unsafe { tide_pool_open(&raw const options, &raw mut pool) };
    assert_eq!(opened, TIDE_READY, "{}", last_error());
    pool
}

/// Runs the child; the first thing that does not go well is its exit code.
fn child(parents_pool: u64, pool: &CString, session: &CString) -> i32 {
    if tide_pool_close(parents_pool) != TIDE_FORKED {
        return 1;
    }
    let pool = open_pool(pool);
    let steps = [
        put(pool),
        open_and_close_session(session),
        tide_pool_close(pool) == TIDE_READY,
        tide_pool_close(pool) == TIDE_STALE_HANDLE,
    ];
    (2..).zip(steps).find(|(_, well)| !well).map_or(0, |(step, _)| step)
}

/// The child's exit code; `None` if it hangs, and is ended.
fn end_of(process: i32) -> Option<i32> {
    let until = Instant::now() + TIMEOUT;
    let mut status = 0;
    loop {
        // SAFETY: waits for our own child and writes one integer.
        match unsafe { libc::waitpid(process, &raw mut status, libc::WNOHANG) } {
            0 if Instant::now() < until => std::thread::sleep(Duration::from_millis(1)),
            0 => {
                // SAFETY: the child is ours.
                unsafe { libc::kill(process, libc::SIGKILL) };
                // SAFETY: as above.
                unsafe { libc::waitpid(process, &raw mut status, 0) };
                return None;
            }
            _ if libc::WIFEXITED(status) => return Some(libc::WEXITSTATUS(status)),
            _ => panic!("the child ended by signal {}", libc::WTERMSIG(status)),
        }
    }
}

/// Begins the program, called by the C library. A panic ends the program with a signal.
#[unsafe(no_mangle)]
extern "C" fn main() -> i32 {
    a_child_opens_pools_of_its_own_whatever_its_parents_threads_were_doing();
    0
}

fn a_child_opens_pools_of_its_own_whatever_its_parents_threads_were_doing() {
    let folders = ["pool", "session", "child-pool", "child-session"]
        .map(|name| Folder::new(&format!("fork-under-load-{name}")));
    let [pool, session, child_pool, child_session] = folders.each_ref().map(Folder::text);
    let pool = open_pool(&pool);
    let over = AtomicBool::new(false);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    assert!(put(pool), "{}", last_error());
                }
            });
        }
        threads.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                assert!(open_and_close_session(&session), "{}", last_error());
            }
        });
        let ends: Vec<_> = (0..FORKS)
            .map(|_| {
                // SAFETY: the child leaves by `_exit`.
                let process = unsafe { libc::fork() };
                if process == 0 {
                    let end = child(pool, &child_pool, &child_session);
                    // SAFETY: nothing of the parent's is dropped or flushed.
                    unsafe { libc::_exit(end) };
                }
                end_of(process)
            })
            .take_while(Option::is_some)
            .collect();
        over.store(true, Ordering::Relaxed);
        assert_eq!(ends.len() as u32, FORKS, "a child hangs");
        assert!(ends.iter().all(|end| *end == Some(0)), "{ends:?}");
    });
    assert_eq!(tide_pool_close(pool), TIDE_READY, "{}", last_error());
}
