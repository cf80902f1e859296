//! Pools and processes: who may open a share, and what is left when its holder is killed at any
//! moment.
//!
//! A test that needs another process runs this binary again with its own name and [`CHILD`] set.
#![allow(unsafe_code)]

mod common;

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use common::{Directory, devices, get, quick, small, stage};
use tidelog_engine::layout::TensorId;
use tidelog_engine::pool::{FormatError, FormatOptions, OpenError, OpenOptions, Pool};

/// Names the pool's directory to a child.
const CHILD: &str = "TIDELOG_TEST_CHILD";
/// Tells a child the number of its first commit.
const NEXT: &str = "TIDELOG_TEST_NEXT";
/// Prefix of a child's lines on its standard output, among what the test harness says.
const SAYS: &str = "child: ";

fn child_directory() -> Option<PathBuf> {
    std::env::var_os(CHILD).map(PathBuf::from)
}

fn say(what: impl std::fmt::Display) {
    println!("\n{SAYS}{what}");
}

/// Child process that runs this test, and its lines.
struct Other {
    child: Child,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

impl Other {
    fn start(test: &str, directory: &Path, next_commit: u64) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture"])
            .env(CHILD, directory)
            .env(NEXT, next_commit.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Self { child, lines }
    }

    /// The next thing the child says; `None` once it is gone.
    fn read_line(&mut self) -> Option<String> {
        self.lines
            .by_ref()
            .map_while(Result::ok)
            .find_map(|line| line.strip_prefix(SAYS).map(str::to_owned))
    }

    fn kill(&mut self) {
        // SIGKILL: no destructor runs.
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn open_share(specs: &[tidelog_engine::path::DeviceSpec], share: u32) -> Result<Pool, OpenError> {
    Pool::open(specs, &OpenOptions { share, ..quick() })
}

#[test]
fn a_held_share_is_refused_naming_its_holder_until_that_is_killed() {
    if let Some(directory) = child_directory() {
        let _pool = open_share(&devices(&directory), 0).unwrap();
        say("open");
        std::thread::sleep(Duration::from_secs(600));
        return;
    }
    let directory = Directory::new("held");
    let specs = directory.devices();
    Pool::format(&specs, &FormatOptions { share_count: 2, ..small() }).unwrap();
    let test = "a_held_share_is_refused_naming_its_holder_until_that_is_killed";
    let mut other = Other::start(test, &directory.0, 0);
    assert_eq!(other.read_line().as_deref(), Some("open"));

    let Err(error) = open_share(&specs, 0) else { panic!("two processes hold one share") };
    let OpenError::ShareHeld { share: 0, holder: Some(holder), .. } = &error else {
        panic!("refused for another reason: {error}");
    };
    assert_eq!(holder.process, other.child.id());
    assert!(holder.command.contains("pool_processes"), "{}", holder.command);
    let said = error.to_string();
    assert!(said.contains(&format!("held by process {}", other.child.id())), "{said}");
    open_share(&specs, 1).unwrap();
    let overwrite = FormatOptions { overwrite: true, ..small() };
    assert!(matches!(Pool::format(&specs, &overwrite), Err(FormatError::InUse { .. })));

    other.kill();
    let pool = open_share(&specs, 0).unwrap();
    let Err(OpenError::ShareHeld { holder: Some(holder), .. }) = open_share(&specs, 0) else {
        panic!("one process may not open a share twice");
    };
    assert_eq!(holder.process, std::process::id(), "the dead holder's name is gone");
    drop(pool);
    open_share(&specs, 0).unwrap();
}

/// A child of fork that does nothing, until this is dropped.
struct Idle(i32);

impl Idle {
    /// Forks a child by the C library, which has its say in it, or by the kernel alone.
    fn fork(by_the_kernel: bool) -> Self {
        // SAFETY: the child waits to be ended, and does nothing.
        let process = unsafe {
            if by_the_kernel {
                libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) as i32
            } else {
                libc::fork()
            }
        };
        assert!(process >= 0);
        if process != 0 {
            return Self(process);
        }
        loop {
            // SAFETY: as above.
            unsafe { libc::pause() };
        }
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        // SAFETY: the child is ours.
        unsafe {
            libc::kill(self.0, libc::SIGKILL);
            libc::waitpid(self.0, std::ptr::null_mut(), 0);
        }
    }
}

#[test]
fn a_share_that_is_closed_is_free_though_forked_children_live() {
    let directory = Directory::new("workers");
    let specs = directory.devices();
    Pool::format(&specs, &small()).unwrap();
    let mut children = Vec::new();
    for by_the_kernel in [false, true, false] {
        let pool = open_share(&specs, 0).unwrap();
        children.push(Idle::fork(by_the_kernel));
        // The child's copy of the descriptor takes nothing away from its parent.
        assert!(matches!(open_share(&specs, 0), Err(OpenError::ShareHeld { .. })));
        drop(pool);
    }
    // Who only has the descriptor may still write by it: what holds it up is said, and formatting
    // waits for the children.
    let overwrite = FormatOptions { overwrite: true, ..small() };
    let refused = Pool::format(&specs, &overwrite).unwrap_err().to_string();
    assert!(refused.contains("open for writing"), "{refused}");
    let pool = open_share(&specs, 0).unwrap();
    drop(children);
    assert!(matches!(open_share(&specs, 0), Err(OpenError::ShareHeld { .. })));
    drop(pool);
}

#[test]
fn a_child_that_drops_its_copy_of_a_pool_leaves_its_parent_the_share() {
    let directory = Directory::new("copy");
    let specs = directory.devices();
    Pool::format(&specs, &small()).unwrap();
    let pool = open_share(&specs, 0).unwrap();
    // SAFETY: the child drops its copy of the pool, and leaves by `_exit`.
    let process = unsafe { libc::fork() };
    if process == 0 {
        drop(pool);
        // SAFETY: nothing else of the parent's is dropped or flushed.
        unsafe { libc::_exit(0) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child and writes one integer.
    assert_eq!(unsafe { libc::waitpid(process, &raw mut status, 0) }, process);
    assert_eq!(status, 0, "the child did not come to its end");
    assert!(matches!(open_share(&specs, 0), Err(OpenError::ShareHeld { .. })));
    drop(pool);
    open_share(&specs, 0).unwrap();
}

/// Tensors of one commit: their names, and bytes that follow from the commit's number.
fn tensors_of(commit: u64) -> Vec<(String, Vec<u8>)> {
    (0..4_u64)
        .map(|index| {
            let length = 1000 + (commit * 7919 + index * 104_729) % 90_000;
            let bytes = (0..length).map(|at| (at ^ commit.wrapping_mul(31) ^ index) as u8);
            (format!("tensor {index}"), bytes.collect())
        })
        .collect()
}

/// Commits for ever, and says each one that has returned.
fn commit_for_ever(directory: &Path, first: u64) {
    let pool = Pool::open(&devices(directory), &quick()).unwrap();
    for commit in first.. {
        let mut batch = pool.batch();
        for (name, content) in tensors_of(commit) {
            stage(&mut batch, &name, content);
        }
        stage(&mut batch, "number", commit.to_le_bytes().to_vec());
        batch.commit().unwrap();
        say(commit);
    }
}

#[test]
fn every_commit_that_returned_survives_sigkill_at_any_moment() {
    if let Some(directory) = child_directory() {
        let next = std::env::var(NEXT).unwrap().parse().unwrap();
        return commit_for_ever(&directory, next);
    }
    let directory = Directory::new("sigkill");
    let specs = directory.devices();
    Pool::format(&specs, &small()).unwrap();
    let number = TensorId::from_name("number");
    let mut last_seen = 0;
    for life in 0..25_u64 {
        let test = "every_commit_that_returned_survives_sigkill_at_any_moment";
        let mut other = Other::start(test, &directory.0, last_seen + 1);
        // After its first commit the child dies at some moment of the ones that follow.
        let mut returned: u64 = other.read_line().expect("the child commits").parse().unwrap();
        std::thread::sleep(Duration::from_micros(life * 7_919 % 40_000));
        other.kill();
        while let Some(commit) = other.read_line() {
            returned = commit.parse().unwrap();
        }

        let pool = Pool::open(&specs, &quick()).unwrap();
        let found = u64::from_le_bytes(get(&pool, number).unwrap().try_into().unwrap());
        // The one that was under way may be there, though nobody heard of it.
        assert!(
            found == returned || found == returned + 1,
            "{returned} returned, {found} is there"
        );
        for (name, content) in tensors_of(found) {
            assert_eq!(
                get(&pool, TensorId::from_name(&name)).unwrap(),
                content,
                "{name} of {found}"
            );
        }
        let space = pool.audit().unwrap();
        assert!(space.free.0 > space.capacity.0 / 4, "life {life} leaked: {space:?}");
        last_seen = found;
    }
}
