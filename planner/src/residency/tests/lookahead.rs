//! Tests of lookahead: what the ops ahead use comes back, and gets its room, without a move that
//! says so.

use super::planned::{op, out, parts, planned, uses};
use super::*;
use crate::trace::PlanStorage;
use crate::units::OpIndex;

const NEAR: u32 = 4;

/// A machine that looks 4 of 20 ops ahead and has room for 160 bytes, of which a fetch ahead may
/// take 20.
fn looking(sizes: &[u64], used: &[&[u32]]) -> Residency {
    let all = used.iter().map(|ops| uses(ops, true)).collect();
    let mut machine = planned(160, sizes, parts(20, all, vec![]));
    machine.set_lookahead(NEAR);
    machine
}

fn fetched(taken: &[ResidencyAction]) -> Vec<u32> {
    let ahead = |action: &ResidencyAction| match *action {
        ResidencyAction::Fetch { storage, urgency: FetchUrgency::Ahead, .. } => Some(storage.0),
        _ => None,
    };
    taken.iter().filter_map(ahead).collect()
}

fn evicted(taken: &[ResidencyAction]) -> Vec<u32> {
    let out = |action: &ResidencyAction| match *action {
        ResidencyAction::Evict { storage, .. } => Some(storage.0),
        _ => None,
    };
    taken.iter().filter_map(out).collect()
}

#[test]
fn what_an_op_ahead_uses_comes_back_in_time() {
    let mut machine = looking(&[10], &[&[7]]);
    out(&mut machine, 0);
    for index in 0..7 {
        assert_eq!(op(&mut machine, index, &[], 0), OpProgress::Ready);
        let expected: &[u32] = if index == 7 - NEAR { &[0] } else { &[] };
        let taken = actions(&mut machine);
        assert_eq!(fetched(&taken), expected, "op {index}");
        for transfer in begun(&taken) {
            machine.completed(transfer, MigrationOutcome::Done);
        }
        machine.op_end();
    }
    assert_eq!(op(&mut machine, 7, &[reads(0)], 0), OpProgress::Ready);
}

/// A caller who moves two storages out finds both out, whatever the schedule would rather have.
#[test]
fn what_the_caller_moved_out_comes_back_when_an_op_begins() {
    let mut machine = looking(&[10, 10], &[&[3], &[4]]);
    for storage in 0..2 {
        out(&mut machine, storage);
    }
    assert_eq!(op(&mut machine, 0, &[], 0), OpProgress::Ready);
    for transfer in begun(&actions(&mut machine)) {
        machine.completed(transfer, MigrationOutcome::Done);
    }
    machine.op_end();
    for storage in 0..2 {
        machine.op_end();
        assert_eq!(machine.settle(), OpProgress::Ready);
        out(&mut machine, storage);
        let fetched = fetched(&actions(&mut machine));
        assert!(fetched.is_empty(), "{fetched:?}, and storage {storage} has just left");
    }
    assert_eq!(op(&mut machine, 1, &[], 0), OpProgress::Ready);
    assert_eq!(fetched(&actions(&mut machine)), [0, 1]);
}

#[test]
fn the_nearest_comes_first_and_what_comes_at_once_is_bounded() {
    let mut machine = looking(&[10, 10, 10, 50], &[&[4], &[2], &[3], &[12]]);
    for storage in 0..4 {
        out(&mut machine, storage);
    }
    assert_eq!(op(&mut machine, 0, &[], 0), OpProgress::Ready);
    let taken = actions(&mut machine);
    assert_eq!(fetched(&taken), [1, 2]);
    machine.op_end();
    assert_eq!(actions(&mut machine), []);
    machine.completed(begun(&taken)[0], MigrationOutcome::Done);
    let taken_next = actions(&mut machine);
    assert_eq!(fetched(&taken_next), [0]);
    machine.completed(begun(&taken)[1], MigrationOutcome::Done);
    machine.completed(begun(&taken_next)[0], MigrationOutcome::Done);
    assert_eq!(op(&mut machine, 8, &[], 0), OpProgress::Ready);
    assert_eq!(fetched(&actions(&mut machine)), [3], "more than the bound comes alone");
}

#[test]
fn room_is_made_by_what_is_used_later_only() {
    let mut machine = looking(&[20, 80, 80], &[&[2], &[3], &[12]]);
    out(&mut machine, 0);
    assert_eq!(op(&mut machine, 0, &[], 0), OpProgress::Ready);
    let taken = actions(&mut machine);
    assert_eq!((evicted(&taken), fetched(&taken)), (vec![2], vec![]));
    for transfer in begun(&taken) {
        machine.completed(transfer, MigrationOutcome::Done);
    }
    assert_eq!(op(&mut machine, 1, &[], 0), OpProgress::Ready);
    assert_eq!(fetched(&actions(&mut machine)), [0]);
}

#[test]
fn what_is_used_soon_is_not_given_for_what_is_used_sooner() {
    let mut machine = looking(&[20, 160], &[&[2], &[3]]);
    out(&mut machine, 0);
    assert_eq!(op(&mut machine, 0, &[], 0), OpProgress::Ready);
    assert_eq!(actions(&mut machine), []);
}

#[test]
fn outputs_of_the_ops_ahead_have_their_room_before_they_come() {
    let mut machine = {
        let mut parts = parts(20, vec![uses(&[0], true), uses(&[15], true)], vec![]);
        parts.step.needs[3] = Bytes(100);
        planned(160, &[80, 80], parts)
    };
    machine.set_lookahead(NEAR);
    assert_eq!(op(&mut machine, 0, &[reads(0)], 0), OpProgress::Ready);
    assert_eq!(evicted(&actions(&mut machine)), [1], "the other one is in use");
    machine.op_end();
    assert_eq!(op(&mut machine, 1, &[], 0), OpProgress::Ready);
    assert_eq!(evicted(&actions(&mut machine)), [0]);
}

#[test]
fn what_leaves_after_it_was_looked_at_is_looked_at_again() {
    let mut machine = looking(&[10], &[&[4]]);
    assert_eq!(op(&mut machine, 0, &[], 0), OpProgress::Ready);
    machine.op_end();
    out(&mut machine, 0);
    assert_eq!(op(&mut machine, 1, &[], 0), OpProgress::Ready);
    assert_eq!(fetched(&actions(&mut machine)), [0]);
}

#[test]
fn what_is_not_used_again_stays_out_and_other_steps_are_reactive() {
    let mut machine =
        planned(160, &[10, 10], parts(20, vec![uses(&[1], false), uses(&[6], true)], vec![]));
    machine.set_lookahead(NEAR);
    out(&mut machine, 0);
    out(&mut machine, 1);
    assert_eq!(op(&mut machine, 1, &[], 0), OpProgress::Ready);
    assert!(fetched(&actions(&mut machine)).is_empty(), "its only use is this one");
    machine.leave_schedule();
    assert_eq!(op(&mut machine, 2, &[], 0), OpProgress::Ready);
    assert!(fetched(&actions(&mut machine)).is_empty());
    assert!(machine.bind(PlanStorage(1), id(1)));
    machine.step_begin();
    assert_eq!(op(&mut machine, 2, &[], 0), OpProgress::Ready);
    assert_eq!(fetched(&actions(&mut machine)), [1]);
}

#[test]
fn what_is_small_leaves_last() {
    const LARGE: u64 = 64 << 10;
    let mut machine = machine(10 + 2 * LARGE);
    populate(&mut machine, &[10, LARGE, LARGE]);
    for storage in [1, 2] {
        assert_eq!(begin(&mut machine, &[reads(storage)], 0), OpProgress::Ready);
        machine.op_end();
    }
    assert_eq!(begin(&mut machine, &[], LARGE), OpProgress::Waiting);
    assert_eq!(evicted(&actions(&mut machine)), [1], "older, and too small to bring room");
}

#[test]
fn ops_know_their_storages() {
    let all = vec![uses(&[0, 3], true), uses(&[3, 6], false)];
    let schedule = parts(4, all, vec![]).schedule().expect("it is well formed");
    let used = |op: u32| schedule.step().used_by(OpIndex(op)).to_vec();
    assert_eq!(used(0), [PlanStorage(0)]);
    assert_eq!(used(1), []);
    assert_eq!(used(2), [PlanStorage(1)], "in the step after its birth");
    assert_eq!(used(3), [PlanStorage(0), PlanStorage(1)]);
    assert_eq!(used(4), []);
}
