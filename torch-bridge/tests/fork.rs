//! Tests of handles, which are dead in a child of fork and say so. A test program of its own: a
//! fork copies only the thread that asks for it, so no other test may run beside.
#![allow(unsafe_code)]

use std::ffi::{CString, c_void};
use std::path::PathBuf;

use tidelog::abi::*;

/// The child's checks; each that does not hold sets a bit of its exit code.
fn child(session: u64, pool: u64, ticket: u64) -> i32 {
    let (mut text, mut index) = ([0_u8; 512], 0);
    // SAFETY: the name is NUL-terminated and no pointer is null that is followed; the buffer is
    // ours.
    let holds = unsafe {
        [
            tide_session_op_begin(session, -1, 0, c"op".as_ptr(), std::ptr::null(), 0, 0)
                == TIDE_FORKED,
            tide_session_close(session) == TIDE_FORKED,
            tide_session_attention(session).is_null(),
            tide_delete(pool, c"x".as_ptr()) == TIDE_FORKED,
            tide_pool_close(pool) == TIDE_FORKED,
            tide_ticket_wait(ticket, 1000) == TIDE_FORKED,
            tide_ticket_wait_any(&raw const ticket, 1, 1000, &raw mut index) == TIDE_FORKED,
            tide_pool_eventfd(pool, -1) == TIDE_FORKED,
            tide_last_error(text.as_mut_ptr().cast(), text.len(), std::ptr::null_mut()) > 0
                && String::from_utf8_lossy(&text).contains("forked"),
        ]
    };
    holds.iter().enumerate().map(|(bit, &held)| i32::from(!held) << bit).sum()
}

/// Forks; the child declines what it is asked for, and finds the session dead.
unsafe extern "C" fn fork(child: *mut c_void, _: *const tide_bytes, _: *mut tide_memory) -> i32 {
    // SAFETY: the child goes on in this thread alone; the context is a number of the caller's.
    unsafe {
        let process = libc::fork();
        *child.cast::<i32>() = process;
        let mut status = 0;
        if process != 0 {
            assert_eq!(libc::waitpid(process, &raw mut status, 0), process);
            assert_eq!(status, 0, "the child did not find the session dead");
        }
    }
    TIDE_READY
}

unsafe extern "C" fn nothing(_: *mut c_void, _: *const tide_bytes) -> i32 {
    TIDE_READY
}

unsafe extern "C" fn nothing_of_it(_: *mut c_void, _: *const tide_bytes, _: u64) -> i32 {
    TIDE_READY
}

/// A callback forks: the call goes on in the parent, and ends in the child.
fn fork_in_a_callback(session: u64) {
    let mut process = 0;
    let callbacks = tide_session_callbacks {
        size: size_of::<tide_session_callbacks>() as u64,
        context: (&raw mut process).cast(),
        evict: Some(fork),
        release: Some(nothing),
        allocate: Some(fork),
        settle: Some(nothing_of_it),
        wait_begins: None,
        wait_ends: None,
    };
    let birth = tide_birth { storage: 1, size: 1 << 16, place: u64::MAX };
    // SAFETY: the callbacks take these arguments and are taken back; there is one birth.
    let status = unsafe {
        let none = std::ptr::null();
        assert_eq!(tide_session_sync(session, &raw const birth, 1, none, 0), TIDE_READY);
        assert_eq!(tide_session_set_callbacks(session, &raw const callbacks), TIDE_READY);
        let status = tide_session_evict(session, 1);
        if process == 0 {
            libc::_exit(i32::from(status != TIDE_FORKED));
        }
        assert_eq!(tide_session_set_callbacks(session, std::ptr::null()), TIDE_READY);
        status
    };
    assert_eq!(status, TIDE_READY, "it cannot move now, which is no error");
}

#[test]
fn in_a_forked_child_every_handle_says_so_and_the_parent_goes_on() {
    let folder =
        PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("fork-{}", std::process::id()));
    let (first, second) = (folder.join("a"), folder.join("b"));
    let text = |path: &PathBuf| {
        std::fs::create_dir_all(path).unwrap();
        CString::new(path.to_str().unwrap()).unwrap()
    };
    let (first, second) = (text(&first), text(&second));
    let session_options = tide_session_options {
        size: size_of::<tide_session_options>() as u64,
        devices: first.as_ptr(),
        data_path: c"auto".as_ptr(),
        budget: 4 << 20,
        staging: 512 << 10,
        host_memory: 0,
        pool_size: 64 << 20,
        share: 0,
        buffered: 1,
        reactive: 0,
        policy: 0,
        gpu: 0,
        must_exist: 0,
        share_count: 0,
        sparse: 0,
        degraded: 0,
    };
    let pool_options = tide_pool_options {
        size: size_of::<tide_pool_options>() as u64,
        devices: second.as_ptr(),
        data_path: c"auto".as_ptr(),
        staging: 512 << 10,
        pool_size: 64 << 20,
        share: 0,
        buffered: 1,
        gpu: 0,
        arena: 0,
        arena_bytes: 0,
        must_exist: 0,
        read_only: 0,
        sparse: 0,
        degraded: 0,
    };
    let (mut session, mut pool, mut ticket) = (0, 0, 0);
    let bytes = vec![3_u8; 100_000];
    // SAFETY: texts are NUL-terminated, results are ours, and the bytes outlive the transfer.
    let status = unsafe {
        assert_eq!(tide_session_open(&raw const session_options, &raw mut session), TIDE_READY);
        assert_eq!(tide_pool_open(&raw const pool_options, &raw mut pool), TIDE_READY);
        let read = bytes.as_ptr().cast();
        assert_eq!(tide_put(pool, c"x".as_ptr(), read, 100_000, 0, &raw mut ticket), TIDE_READY);
        let process = libc::fork();
        if process == 0 {
            // Nothing of the parent's is dropped or flushed here.
            libc::_exit(child(session, pool, ticket));
        }
        let mut status = 0;
        assert_eq!(libc::waitpid(process, &raw mut status, 0), process);
        status
    };
    assert!(libc::WIFEXITED(status), "the child ended by signal {}", libc::WTERMSIG(status));
    assert_eq!(libc::WEXITSTATUS(status), 0, "bits of the checks that did not hold");
    fork_in_a_callback(session);
    assert_eq!(tide_ticket_wait(ticket, 10_000), TIDE_READY);
    assert_eq!(tide_session_settle(session), TIDE_READY);
    assert_eq!(tide_session_close(session), TIDE_READY);
    assert_eq!(tide_pool_close(pool), TIDE_READY);
    std::fs::remove_dir_all(&folder).unwrap();
}
