//! The fuzz targets without a fuzzer: the committed corpus, so that what was found once stays
//! found, and as many of its mutants as `fuzz/executions` names.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidelog_tests::fuzzing::{TARGETS, Target, corpus, mutant};

/// No size on a device is trusted: who allocates as much has done so.
const ALLOCATION_MAX: usize = 256 << 20;
/// One input takes milliseconds.
const HANGS_AFTER: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(20);

thread_local! {
    /// Target and input in progress, for the process's last words.
    static RUNNING: Cell<(&'static str, u64)> = const { Cell::new(("", 0)) };
}

struct Distrusting;

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Distrusting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        look_at(layout.size());
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        look_at(layout.size());
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        look_at(size);
        // SAFETY: the caller's contract is the same.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static DISTRUSTING: Distrusting = Distrusting;

fn look_at(bytes: usize) {
    if bytes > ALLOCATION_MAX {
        let (target, number) = RUNNING.get();
        give_up(target, number, format_args!("allocates {bytes} bytes"));
    }
}

/// Reports an input and ends the process, where no panic can be caught.
fn give_up(target: &str, number: u64, does: std::fmt::Arguments) -> ! {
    eprintln!("{}", Finding { target, number, does });
    std::process::abort()
}

struct Finding<'a> {
    target: &'a str,
    number: u64,
    does: std::fmt::Arguments<'a>,
}

impl std::fmt::Display for Finding<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter) -> std::fmt::Result {
        let Self { target, number, does } = self;
        write!(
            formatter,
            "mutant {number} of {target} {does}; again: cargo run -p tidelog-tests --bin \
             tidelog-corpus -- mutant {target} {number}"
        )
    }
}

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz")
}

fn executions(target: &str) -> u64 {
    let listed = std::fs::read_to_string(fuzz().join("executions")).unwrap();
    let mut counts = listed.lines().filter_map(|line| line.split_once(' '));
    let (_, count) = counts.find(|(name, _)| *name == target).expect("each target has a line");
    count.parse().unwrap()
}

fn replay(target: &Target) {
    let corpus = corpus(target.name);
    assert!(!corpus.is_empty(), "{} has no inputs", target.name);
    for (path, bytes) in &corpus {
        let ran = catch_unwind(|| (target.run)(bytes));
        assert!(ran.is_ok(), "{} breaks a rule: see the panic above", path.display());
    }
    let running = Arc::new(AtomicU64::new(0));
    let watched = watch(target.name, &running);
    for number in 0..executions(target.name) {
        running.store(number, Ordering::Relaxed);
        RUNNING.set((target.name, number));
        let bytes = mutant(&corpus, number);
        if catch_unwind(AssertUnwindSafe(|| (target.run)(&bytes))).is_err() {
            let does = format_args!("breaks a rule: see the panic above");
            panic!("{}", Finding { target: target.name, number, does });
        }
    }
    drop(running);
    watched.join().unwrap();
}

/// Ends the process where one input runs on and on.
fn watch(target: &'static str, running: &Arc<AtomicU64>) -> std::thread::JoinHandle<()> {
    let running = Arc::downgrade(running);
    std::thread::spawn(move || {
        let (mut last, mut looks) = (0, 0_u128);
        while let Some(number) = running.upgrade().map(|running| running.load(Ordering::Relaxed)) {
            looks = if number == last { looks + 1 } else { 0 };
            last = number;
            if looks == HANGS_AFTER.as_millis() / LOOK.as_millis() {
                give_up(target, number, format_args!("runs for {HANGS_AFTER:?}"));
            }
            std::thread::sleep(LOOK);
        }
    })
}

#[test]
fn every_target_has_a_corpus_and_a_binary_and_no_corpus_is_without_a_target() {
    let names = |folder: PathBuf| -> BTreeSet<String> {
        let listed = std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path());
        listed.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    };
    let targets: BTreeSet<_> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(names(fuzz().join("corpus")), targets);
    assert_eq!(names(fuzz().join("targets")), targets);
}

macro_rules! replays {
    ($($target:ident),+) => {
        $(
            #[test]
            fn $target() {
                let target = TARGETS.iter().find(|target| target.name == stringify!($target));
                replay(target.expect("it is a target"));
            }
        )+

        #[test]
        fn every_target_is_replayed() {
            let replayed = [$(stringify!($target)),+];
            assert_eq!(TARGETS.map(|target| target.name).as_slice(), replayed.as_slice());
        }
    };
}

replays!(superblock, record, index, recovery, device, trace, plan, machine, abi);
