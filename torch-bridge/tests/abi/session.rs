//! A session under a framework that follows the rules, and under one that is careless with them:
//! no byte is lost, the budget holds, nothing crashes.
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicU32, Ordering};

use tidelog::abi::*;

use super::training::Training;
use tidelog_tests::abi::{
    CallerBehaviour, Choices, Delivery, Folder, Framework, STAGING, last_error, walk_pool,
    walk_session,
};

const KIB: usize = 1 << 10;

/// A seeded walk that moves something.
fn walk(seed: u64, steps: u32, manners: CallerBehaviour) {
    let name = format!("walk-{seed}");
    let stats = walk_session(&name, Choices::of_seed(seed), steps, manners);
    for counter in ["evictions", "fetches"] {
        assert!(stats[counter].as_u64() > Some(0), "the walk tried nothing: no {counter}");
    }
}

#[test]
fn no_byte_is_lost_whatever_is_called() {
    for seed in 0..12 {
        walk(seed, 400, CallerBehaviour::default());
    }
}

#[test]
fn no_byte_is_lost_when_requests_come_twice_are_refused_or_misreported() {
    for seed in 100..112 {
        walk(
            seed,
            400,
            CallerBehaviour {
                redelivered: 20,
                refused: 15,
                misreported: 20,
                ..CallerBehaviour::default()
            },
        );
    }
}

#[test]
fn no_byte_is_lost_when_ops_run_inside_ops_and_requests() {
    for seed in 200..224 {
        let careless = seed % 2 * 10;
        walk(
            seed,
            400,
            CallerBehaviour {
                nested: 15,
                redelivered: careless,
                refused: careless,
                misreported: careless,
                ..CallerBehaviour::default()
            },
        );
    }
}

#[test]
fn no_byte_is_lost_with_callbacks() {
    let faithful = CallerBehaviour { delivery: Delivery::Callbacks, ..CallerBehaviour::default() };
    for seed in 300..312 {
        walk(seed, 400, faithful);
    }
    for seed in 400..412 {
        walk(seed, 400, CallerBehaviour { interrupted: 15, refused: 15, ..faithful });
    }
    for seed in 500..524 {
        let careless = seed % 2 * 10;
        walk(
            seed,
            400,
            CallerBehaviour { nested: 15, interrupted: careless, refused: careless, ..faithful },
        );
    }
}

#[test]
fn a_pool_answers_with_the_right_bytes_whatever_is_called() {
    let moved: u64 = (0..12)
        .map(|seed| walk_pool(&format!("pool-walk-{seed}"), Choices::of_seed(seed), 400))
        .sum();
    assert!(moved > 100, "the walks read {moved} tensors");
}

#[test]
fn a_repeated_step_is_planned_and_its_report_tells_what_moved() {
    let budget = STAGING + (448 << 10);
    let framework = Framework::open("trained", budget, 5, CallerBehaviour::default());
    let mut training = Training::new(framework, 64 * KIB);
    training.steps(6);
    let framework = training.framework;
    let (mut due, mut ops) = (std::ptr::null(), 0);
    // SAFETY: both places are ours.
    let asked = unsafe { tide_session_plan(framework.session, &raw mut due, &raw mut ops) };
    assert_eq!((asked, ops), (TIDE_READY, 16), "sixteen ops are planned");
    // SAFETY: the session is open, so the plan's bytes are where it said, as many as it said.
    let due = unsafe { std::slice::from_raw_parts(due, ops as usize) };
    assert!(due.contains(&1), "not all of it fits, so something is due");

    let stats = framework.stats();
    assert!(["uring", "posix"].contains(&stats["data_path"].as_str().unwrap()), "{stats}");
    assert!(stats["staging_backing"].is_string() && stats["why_not"].is_array(), "{stats}");
    assert!(stats["pool"]["capacity"].as_u64() >= stats["pool"]["free"].as_u64(), "{stats}");
    let device = &stats["devices"][0];
    assert!(device["bytes_written"].as_u64() >= stats["totals"]["bytes_written"].as_u64());
    assert_eq!(device["errors"], 0);
    let plan = &stats["plan"];
    assert!(plan["simulated_ns"].as_u64() >= plan["compute_ns"].as_u64(), "{plan}");
    assert!(stats["last_step"]["bytes_read"].as_u64() > Some(0), "{stats}");
    assert_eq!(plan["policy"], "tidelog", "the default");
    assert!(
        plan["handling_ns"].as_u64() > Some(0),
        "answering requests takes the caller's time: {plan}"
    );

    let folder = Folder::new("reports");
    let path = folder.0.join("step.html");
    let text = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path is NUL-terminated.
    assert_eq!(unsafe { tide_session_report(framework.session, text.as_ptr()) }, TIDE_READY);
    let page = std::fs::read_to_string(&path).unwrap();
    for told in ["measured, step 6", "layer.3.weight", "aten.mm_backward", "tidelog", "data path"] {
        assert!(page.contains(told), "the report does not tell {told:?}");
    }
    let path = folder.0.join("trace.json");
    let text = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path is NUL-terminated.
    assert_eq!(unsafe { tide_session_trace(framework.session, text.as_ptr()) }, TIDE_READY);
    let trace: serde_json::Value =
        serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    assert_eq!(trace["format"], "tidelog-trace");
    assert_eq!(trace["ops"].as_array().unwrap().len() as u64, ops);
    // SAFETY: the path is NUL-terminated.
    let failed = unsafe { tide_session_report(framework.session, c"/nonexistent/x.html".as_ptr()) };
    assert_eq!(failed, TIDE_INVALID_ARGUMENT);
    assert!(last_error().contains("/nonexistent/"), "{}", last_error());
    framework.end();
}

#[test]
fn steps_go_on_while_the_first_plan_is_made() {
    let budget = STAGING + (448 << 10);
    let framework = Framework::open("planning", budget, 15, CallerBehaviour::default());
    let mut training = Training::new(framework, 64 * KIB);
    let mut reactive = 0;
    while training.framework.stats()["plan"].is_null() {
        training.step();
        reactive += 1;
        assert!(reactive < 100_000, "no plan: {}", training.framework.stats());
    }
    training.steps(2);
    let stats = training.framework.stats();
    assert_eq!(stats["planning"], false, "{stats}");
    assert!(!stats["notices"].to_string().contains("left the plan"), "{stats}");
    training.framework.end();
}

#[test]
fn a_step_that_followed_its_plan_is_simulated_at_its_own_pace() {
    let budget = STAGING + (448 << 10);
    let framework = Framework::open("simulated", budget, 16, CallerBehaviour::default());
    let mut training = Training::new(framework, 64 * KIB);
    training.steps(1);
    assert!(training.framework.simulated().is_null(), "there is no plan yet");
    training.steps(7);
    let (simulated, stats) = (training.framework.simulated(), training.framework.stats());
    let figure = |key: &str| simulated[key].as_u64().unwrap();
    let ops = stats["plan"]["compute_ns"].as_u64().unwrap();
    assert!(figure("time_ns") > figure("stall_ns") && ops > 0, "{simulated}");
    assert!(figure("bytes_read") > 0 && figure("bytes_written") > 0, "{simulated}");
    training.framework.end();
}

#[test]
fn a_report_before_any_step_says_how_to_mark_one() {
    let framework =
        Framework::open("unmarked", STAGING + (64 << 10), 6, CallerBehaviour::default());
    let folder = Folder::new("unmarked-report");
    let path = folder.0.join("none.html");
    let text = CString::new(path.to_str().unwrap()).unwrap();
    // SAFETY: the path is NUL-terminated.
    assert_eq!(unsafe { tide_session_report(framework.session, text.as_ptr()) }, TIDE_READY);
    assert!(std::fs::read_to_string(&path).unwrap().contains("tide.step()"));
    framework.end();
}

/// A transfer's bytes were moved and written, whatever has become of its storage since.
#[test]
fn what_was_written_counts_where_the_storage_died_meanwhile() {
    const SIZE: usize = 64 * KIB;
    let framework =
        Framework::open("died-on-its-way", STAGING + (448 << 10), 3, CallerBehaviour::default());
    let session = framework.session;
    let (memory, mut action) = (vec![7_u8; SIZE], tide_action::default());
    let birth = tide_birth { storage: 9, size: SIZE as u64, place: u64::MAX };
    // SAFETY: the birth and the action are ours; the memory lives until the session is closed.
    unsafe {
        let none = std::ptr::null();
        assert_eq!(tide_session_sync(session, &raw const birth, 1, none, 0), TIDE_READY);
        assert_eq!(tide_session_evict(session, 9), TIDE_ACTION);
        assert_eq!(tide_session_next_action(session, &raw mut action), TIDE_ACTION);
        assert_eq!((action.kind, action.size), (TIDE_EVICT, SIZE as u64));
        let address = memory.as_ptr().addr() as u64;
        let done = tide_session_action_done(session, action.sequence, address, null_mut());
        assert_eq!(done, TIDE_READY, "{}", last_error());
        // It has completed, and nobody has looked.
        let attention = tide_session_attention(session).cast::<AtomicU32>();
        while (*attention).load(Ordering::Acquire) == 0 {
            std::thread::yield_now();
        }
        assert_eq!(tide_session_sync(session, std::ptr::null(), 0, &9, 1), TIDE_READY);
    }
    assert_eq!(tide_session_settle(session), TIDE_READY, "{}", last_error());
    let stats = framework.stats();
    assert_eq!(stats["evictions"], 1);
    assert_eq!(stats["totals"]["bytes_written"], SIZE as u64, "{stats}");
    framework.end();
}

/// A size that was refused changes nothing: the storage comes back as large as it left.
#[test]
fn a_storage_that_is_out_keeps_its_size() {
    const SIZE: usize = 64 * KIB;
    let framework =
        Framework::open("resized-while-out", STAGING + (448 << 10), 4, CallerBehaviour::default());
    let session = framework.session;
    let memory = vec![7_u8; SIZE];
    let birth = tide_birth { storage: 9, size: SIZE as u64, place: u64::MAX };
    let next = || {
        let mut action = tide_action::default();
        // SAFETY: the action is ours.
        let status = unsafe { tide_session_next_action(session, &raw mut action) };
        assert_eq!(status, TIDE_ACTION);
        action
    };
    let done = |action: tide_action| {
        let address = memory.as_ptr().expose_provenance() as u64;
        // SAFETY: the memory lives until the session is closed, and nobody looks at its bytes.
        unsafe { tide_session_action_done(session, action.sequence, address, null_mut()) }
    };
    // SAFETY: the birth is ours.
    let born = unsafe { tide_session_sync(session, &raw const birth, 1, std::ptr::null(), 0) };
    assert_eq!(born, TIDE_READY);
    assert_eq!(tide_session_evict(session, 9), TIDE_ACTION);
    assert_eq!(done(next()), TIDE_READY, "{}", last_error());
    let mut status = tide_session_resume(session);
    while status == TIDE_WAITING {
        status = tide_session_wait(session, 50);
    }
    let release = next();
    assert_eq!((status, release.kind), (TIDE_ACTION, TIDE_RELEASE));
    assert_eq!(done(release), TIDE_READY);

    assert_eq!(tide_session_resized(session, 9, 1), TIDE_INVALID_ARGUMENT);
    // SAFETY: the name is NUL-terminated and the storage's number is ours.
    let begun = unsafe { tide_session_op_begin(session, -1, 0, c"op".as_ptr(), &9, 1, 0) };
    assert_eq!(begun, TIDE_ACTION, "{}", last_error());
    let allocate = next();
    assert_eq!((allocate.kind, allocate.size), (TIDE_ALLOCATE, SIZE as u64));
    framework.end();
}
