//! Contents of memory at the step after a recorded one.

use tidelog_planner::residency::{
    Attributes, Config, MigrationOutcome, OpBegin, OpProgress, OpUse, Residency, ResidencyAction,
};
use tidelog_planner::units::{Bytes, OpIndex};

use super::*;
use crate::executor::planning::profile_tests::Program;

/// The size of every storage that [`Program`] makes.
const SIZE: u64 = 64;
const WEIGHTS: usize = 16;
/// Three of four weights find room.
const BUDGET: u64 = WEIGHTS as u64 * SIZE * 3 / 4;

/// A step that was recorded, the first: it uses one weight after the other.
fn recorded() -> (LastStep, Vec<StorageId>) {
    let mut program = Program::new();
    let weights: Vec<StorageId> =
        (0..WEIGHTS).map(|index| program.parameter(&format!("weight {index}"))).collect();
    program.begin();
    for weight in &weights {
        program.op(&[*weight]);
    }
    let profiled = program.profile.step_ends(true, &program.storages).unwrap().unwrap();
    assert!(profiled.differs.is_some(), "there is none before it");
    (LastStep::of(&profiled, false).unwrap(), weights)
}

/// A machine with these storages in it, as far as there is room.
fn machine_with(storages: &[StorageId]) -> Residency {
    let config = Config { lookahead: 4, ..Config::new(Bytes(BUDGET), Bytes(0)) };
    let mut machine = Residency::new(config);
    for storage in storages {
        let begin = OpBegin { index: None, uses: &[], needs: Bytes(SIZE) };
        let progress = machine.op_begin(&begin);
        go_on(&mut machine, progress);
        machine.born(*storage, Bytes(SIZE), Attributes { movable: true, birth: None });
        machine.op_end();
    }
    machine
}

/// Transfers end at once, and ops wait for no others.
fn go_on(machine: &mut Residency, mut progress: OpProgress) {
    loop {
        let mut actions = Vec::new();
        machine.take_actions(&mut actions);
        for action in &actions {
            if let ResidencyAction::Evict { transfer, .. }
            | ResidencyAction::Fetch { transfer, .. } = action
            {
                machine.completed(*transfer, MigrationOutcome::Done);
            }
        }
        if progress == OpProgress::Waiting {
            progress = machine.resume();
        } else if actions.is_empty() {
            return assert_eq!(progress, OpProgress::Ready);
        }
    }
}

fn run(machine: &mut Residency, index: OpIndex, uses: &[StorageId]) {
    let uses: Vec<OpUse> = uses.iter().map(|&storage| OpUse { storage, modifies: true }).collect();
    let progress = machine.op_begin(&OpBegin { index: Some(index), uses: &uses, needs: Bytes(0) });
    go_on(machine, progress);
    machine.op_end();
    go_on(machine, OpProgress::Ready);
}

#[test]
fn what_the_last_step_used_comes_back_before_the_next_one_waits_for_it() {
    let (last, weights) = recorded();
    let mut machine = machine_with(&weights);
    let mut expected = last.expect_again(&mut machine, &StorageParts::default()).unwrap();
    for _ in 0..3 {
        machine.step_begin();
        expected.step_begins();
        for (index, weight) in weights.iter().enumerate() {
            assert!(machine.expect(OpIndex(index as u32), index as u64));
            run(&mut machine, OpIndex(index as u32), &[*weight]);
        }
        machine.step_end();
    }
    let stats = machine.stats();
    assert!(stats.fetches_ahead >= 3 * 4, "a quarter comes back in each step: {stats:?}");
    // But by the first op of all: nothing comes back before a step begins.
    assert!(stats.fetches_urgent <= 1 && stats.fetches_late == 0, "{stats:?}");
}

#[test]
fn of_a_step_that_was_as_expected_nothing_is_made_anew() {
    let (last, weights) = recorded();
    let mut machine = machine_with(&weights);
    last.expect_again(&mut machine, &StorageParts::default()).unwrap();
    let mut program = Program::new();
    let weight = program.parameter("weight");
    program.begin();
    program.op(&[weight]);
    let profiled = program.profile.step_ends(true, &program.storages).unwrap().unwrap();
    let again = LastStep::of(&profiled, true).unwrap();
    assert!(again.expect_again(&mut machine, &StorageParts::default()).is_none());
    // Who is who stays.
    assert!(weights.iter().all(|weight| machine.planned_as(*weight).is_some()));
}

#[test]
fn without_what_was_used_each_is_waited_for() {
    let (_, weights) = recorded();
    let mut machine = machine_with(&weights);
    machine.step_begin();
    for (index, weight) in weights.iter().enumerate() {
        run(&mut machine, OpIndex(index as u32), &[*weight]);
    }
    let stats = machine.stats();
    assert_eq!(stats.fetches_ahead, 0);
    assert!(stats.fetches_urgent > 4, "{stats:?}");
}

/// Makes a program whose step makes something after `views` views, and the same without them.
fn expected_after_views(views: u32) -> (ExpectedStep, Residency, u64) {
    let mut program = Program::new();
    let weight = program.parameter("weight");
    program.begin();
    (0..=views).for_each(|_| program.op(&[weight]));
    let made = program.make(&[weight]);
    program.op(&[made]);
    program.die(made);
    let profiled = program.profile.step_ends(true, &program.storages).unwrap().unwrap();
    let mut machine = machine_with(&[weight]);
    let last = LastStep::of(&profiled, false).unwrap();
    let expected = last.expect_again(&mut machine, &StorageParts::default()).unwrap();
    machine.step_begin();
    // What an op is known by is its number in the first step.
    (expected, machine, u64::from(views) + 1)
}

fn at(expected: &mut ExpectedStep, index: u32, fingerprint: u64) -> OpIndex {
    expected.op_begins(index, fingerprint);
    OpIndex(index + expected.skipped())
}

#[test]
fn views_that_are_left_out_change_nothing_for_what_follows() {
    let (mut expected, mut machine, makes) = expected_after_views(5);
    assert_eq!(at(&mut expected, 0, 0), OpIndex(0));
    let op = at(&mut expected, 1, makes);
    assert_eq!(op, OpIndex(6));
    assert!(machine.expect(op, makes));
    // What is made there is what was made there.
    let born = StorageId(77);
    run(&mut machine, op, &[]);
    machine.born(born, Bytes(SIZE), Attributes { movable: true, birth: Some((op, 0)) });
    assert!(machine.planned_as(born).is_some());
    let op = at(&mut expected, 2, makes + 1);
    assert_eq!(op, OpIndex(7));
    assert!(machine.expect(op, makes + 1));
    // The next step may have them again.
    expected.step_begins();
    assert_eq!(at(&mut expected, 1, 1), OpIndex(1));
}

#[test]
fn an_op_that_makes_something_is_not_left_out_nor_are_many() {
    let (mut expected, mut machine, makes) = expected_after_views(2);
    // The one that makes something would have to be left out for the last one.
    let op = at(&mut expected, 1, makes + 1);
    assert_eq!(op, OpIndex(1));
    assert!(!machine.expect(op, makes + 1), "it is another step");
    let (mut expected, _, makes) = expected_after_views(LEFT_OUT_MAX as u32 + 1);
    assert_eq!(at(&mut expected, 1, makes), OpIndex(1), "too many to leave out");
    let (mut at_most, _, makes) = expected_after_views(LEFT_OUT_MAX as u32);
    assert_eq!(at(&mut at_most, 1, makes), OpIndex(1 + LEFT_OUT_MAX as u32));
    assert_eq!(at(&mut expected, 90, 0), OpIndex(90), "beyond the step nothing is looked for");
}
