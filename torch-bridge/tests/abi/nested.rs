//! Ops inside ops, and inside requests that the caller has not answered yet.

use tidelog::abi::*;

use tidelog_tests::abi::{CallerBehaviour, Framework, STAGING, last_error};

const SIZE: usize = 64 << 10;
/// Three storages fill it.
const LIMIT: u64 = 3 * SIZE as u64;

/// A session that storages 0 to 2 fill.
fn full(name: &str) -> Framework {
    let mut framework = Framework::open(name, STAGING + LIMIT, 1, CallerBehaviour::default());
    for number in 0..3 {
        framework.make(number, SIZE, None);
    }
    framework.sync(); // without an op, after which some would leave ahead of need
    framework
}

/// Makes a framework in which the next request is for the release of storage 2.
fn about_to_release(name: &str) -> Framework {
    let mut framework = full(name);
    assert_eq!(tide_session_evict(framework.session, 2), TIDE_ACTION);
    assert!(framework.perform_one());
    let mut status = TIDE_WAITING;
    while status == TIDE_WAITING {
        status = tide_session_wait(framework.session, 1000);
    }
    assert_eq!(status, TIDE_ACTION, "{}", last_error());
    framework
}

/// Runs an op that uses nothing and makes nothing, but has space for `storages` storages.
fn room_for(framework: &mut Framework, storages: usize) -> i32 {
    let status = framework.begin_op((-1, "room", 0), &[], &[(99, storages * SIZE)]);
    let status = framework.drive(status);
    if status == TIDE_READY {
        let ended = tide_session_op_end(framework.session);
        assert_eq!(framework.drive(ended), TIDE_READY, "{}", last_error());
    }
    status
}

fn is_busy(status: i32) -> bool {
    status == TIDE_BUSY && last_error().contains("inside another op")
}

#[test]
fn what_is_settled_goes_on_after_an_op_inside_a_request_of_it() {
    let mut framework = full("nested-settle");
    framework.set_budget(STAGING + LIMIT - 1);
    assert_eq!(tide_session_settle(framework.session), TIDE_ACTION);
    assert_eq!(framework.perform_one_around(|inside| room_for(inside, 0)), TIDE_READY);
    let status = tide_session_resume(framework.session);
    assert_eq!(framework.drive(status), TIDE_READY, "{}", last_error());
    assert!(framework.stats()["resident_bytes"].as_u64() < Some(LIMIT), "the budget holds");
    framework.end();
}

#[test]
fn an_eviction_goes_on_after_an_op_inside_a_request_of_it() {
    let mut framework = full("nested-evict");
    assert_eq!(tide_session_evict(framework.session, 1), TIDE_ACTION);
    framework.perform_one_around(|_| ());
    let status = tide_session_resume(framework.session);
    assert_eq!(framework.drive(status), TIDE_READY, "{}", last_error());
    assert_eq!(framework.stats()["resident_bytes"].as_u64(), Some(LIMIT - SIZE as u64));
    framework.end();
}

#[test]
fn an_op_that_fits_no_longer_after_one_inside_is_told_so_where_it_waits() {
    let mut framework = full("nested-refused");
    let status = framework.begin_op((-1, "outer", 0), &[], &[(3, SIZE)]);
    assert_eq!(status, TIDE_ACTION);
    framework.perform_one_around(|inside| {
        assert_eq!(room_for(inside, 0), TIDE_READY, "{}", last_error());
        inside.set_budget(STAGING + SIZE as u64 - 1);
    });
    let status = tide_session_resume(framework.session);
    assert_eq!(framework.drive(status), TIDE_BUDGET_EXCEEDED);
    assert!(last_error().starts_with("outer does not fit"), "{}", last_error());
    framework.set_budget(STAGING + LIMIT);
    assert!(framework.op((-1, "outer", 0), &[], &[(3, SIZE)]));
    framework.end();
}

#[test]
fn an_op_that_waits_holds_nothing_back_from_those_inside() {
    let mut framework = full("nested-waits");
    framework.make(3, SIZE, None);
    let uses = [(0, true), (1, false), (2, false)];
    let status = framework.begin_op((-1, "outer", 0), &uses, &[]);
    assert_eq!(status, TIDE_ACTION, "storage 3 has to leave");
    let uses = [(0, false), (1, true), (2, true)];
    framework.perform_one_around(|inside| {
        assert!(inside.op((-1, "inside", 0), &uses[1..], &[]), "{}", last_error());
    });
    let status = tide_session_resume(framework.session);
    assert_eq!(framework.drive(status), TIDE_READY, "{}", last_error());
    framework.end();
}

#[test]
fn what_is_given_up_counts_until_the_request_is_answered() {
    let mut framework = about_to_release("nested-release");
    (0..2).for_each(|number| framework.pin(number, true));
    framework.perform_one_around(|inside| {
        assert!(is_busy(room_for(inside, 1)), "{}", last_error());
        assert_eq!(room_for(inside, 0), TIDE_READY, "{}", last_error());
    });
    assert_eq!(room_for(&mut framework, 1), TIDE_READY, "{}", last_error());
    (0..2).for_each(|number| framework.pin(number, false));
    framework.end();
}

#[test]
fn room_for_outputs_is_that_of_the_op_around() {
    let mut framework = about_to_release("nested-outputs");
    while framework.perform_one() {}
    (0..2).for_each(|number| framework.pin(number, true));
    let status = framework.begin_op((-1, "outer", 0), &[], &[(3, SIZE)]);
    assert_eq!(framework.drive(status), TIDE_READY, "{}", last_error());
    framework.inside(|inside| assert!(is_busy(room_for(inside, 1)), "{}", last_error()));
    framework.make(3, SIZE, None);
    framework.sync();
    let ended = tide_session_op_end(framework.session);
    assert_eq!(framework.drive(ended), TIDE_READY, "{}", last_error());
    (0..2).for_each(|number| framework.pin(number, false));
    framework.end();
}

#[test]
fn what_the_request_moves_is_refused_and_makes_no_room_for_the_next_op() {
    let mut framework = about_to_release("nested-moves");
    framework.perform_one_around(|inside| {
        let status = inside.begin_op((-1, "inside", 0), &[(2, false)], &[]);
        assert!(is_busy(inside.drive(status)), "{}", last_error());
        // Storage 2 is to come back. It would be the first to leave for another, but cannot here.
        assert_eq!(room_for(inside, 2), TIDE_READY, "{}", last_error());
    });
    assert!(framework.op((-1, "after", 0), &[(2, true)], &[]), "{}", last_error());
    framework.end();
}

#[test]
fn an_op_that_has_made_too_much_inside_a_request_ends_all_the_same() {
    let mut framework = full("nested-too-much");
    assert_eq!(tide_session_evict(framework.session, 0), TIDE_ACTION);
    framework.perform_one_around(|inside| {
        let status = inside.begin_op((-1, "inside", 0), &[], &[]);
        assert_eq!(inside.drive(status), TIDE_READY, "{}", last_error());
        inside.make(3, SIZE, None);
        inside.sync();
        let ended = tide_session_op_end(inside.session);
        assert_eq!(inside.drive(ended), TIDE_READY, "{}", last_error());
    });
    let status = tide_session_settle(framework.session);
    assert_eq!(framework.drive(status), TIDE_READY, "{}", last_error());
    assert!(framework.stats()["resident_bytes"].as_u64() <= Some(LIMIT), "the budget holds");
    framework.end();
}

#[test]
fn a_number_in_the_middle_of_a_request_is_given_to_no_other_storage() {
    let mut framework = about_to_release("nested-number");
    let birth = tide_birth { storage: 2, size: 1, place: u64::MAX };
    let born = |framework: &Framework| {
        // SAFETY: one birth of ours, and no deaths.
        unsafe { tide_session_sync(framework.session, &raw const birth, 1, [].as_ptr(), 0) }
    };
    framework.perform_one_around(|inside| {
        inside.kill(2);
        inside.sync();
        assert_eq!(born(inside), TIDE_INVALID_ARGUMENT);
        assert!(last_error().contains("take another number"), "{}", last_error());
    });
    assert_eq!(born(&framework), TIDE_READY, "{}", last_error());
    // SAFETY: one death of ours, and no births.
    let died = unsafe { tide_session_sync(framework.session, [].as_ptr(), 0, [2].as_ptr(), 1) };
    assert_eq!(died, TIDE_READY, "{}", last_error());
    framework.end();
}

#[test]
fn nothing_is_asked_for_a_storage_that_is_gone() {
    let mut framework = about_to_release("nested-gone");
    framework.kill(2);
    framework.sync();
    assert!(!framework.perform_one(), "its memory went with it");
    framework.end();
}
