//! Memory that the library itself takes.

use std::process::Command;
use std::ptr::null_mut;

use tidelog::abi::*;

use tidelog_tests::abi::{Folder, last_error, open_pool};

/// Tells this test that it is the other process.
const CHILD: &str = "TIDELOG_TEST_CHILD";
const BYTES: usize = 64 << 20;
/// Limit of a put's memory: less than half of a copy.
const ROOM: u64 = 24 << 20;

/// The bytes of this process that count for `RLIMIT_DATA`.
fn data_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmData:")).unwrap();
    let kib: u64 = line.trim().strip_suffix(" kB").unwrap().parse().unwrap();
    kib << 10
}

#[test]
fn a_durable_put_takes_no_copy_of_the_tensor() {
    if std::env::var_os(CHILD).is_none() {
        // A limit is of the whole process, and other tests run in this one.
        let test = "memory::a_durable_put_takes_no_copy_of_the_tensor";
        let mut child = Command::new(std::env::current_exe().unwrap());
        let ended = child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").status().unwrap();
        assert!(ended.success(), "{ended}");
        return;
    }
    let folder = Folder::new("no-copy");
    let pool = open_pool(&folder, 2 * BYTES as u64);
    let (mut batch, name, mut length) = (0, c"large", 0);
    // SAFETY: new memory that can be read only, which counts for nobody; the results are ours, the
    // name is NUL-terminated.
    unsafe {
        let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let memory = libc::mmap(null_mut(), BYTES, libc::PROT_READ, kind, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        let limit = data_bytes() + ROOM;
        let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
        assert_eq!(libc::setrlimit(libc::RLIMIT_DATA, &raw const limit), 0);
        assert_eq!(tide_batch_begin(pool, &raw mut batch), TIDE_READY);
        let put = tide_batch_put(batch, name.as_ptr(), memory, BYTES as u64);
        assert_eq!(put, TIDE_READY, "{}", last_error());
        // It is the caller's again.
        assert_eq!(libc::munmap(memory, BYTES), 0);
        assert_eq!(tide_batch_commit(batch), TIDE_READY, "{}", last_error());
        assert_eq!(tide_length(pool, name.as_ptr(), &raw mut length), TIDE_READY);
    }
    assert_eq!(length, BYTES as u64);
    assert_eq!(tide_pool_close(pool), TIDE_READY, "{}", last_error());
}
