use tidelog_planner::parts::Cuts;
use tidelog_planner::residency::{
    Config, MigrationOutcome, OpBegin, OpProgress, Residency, ResidencyAction, Schedule,
};
use tidelog_planner::trace::{Access, Identity, Op, Storage, StorageKind, Use};
use tidelog_planner::units::Nanos;

use super::*;

const MIB: u64 = 1 << 20;
/// The caller's numbers.
const WEIGHT: StorageId = StorageId(PART_NUMBERS);
const MADE: StorageId = StorageId(PART_NUMBERS + 1);

/// A step that reads a weight of 8 MiB, and makes 6 MiB of it.
fn trace() -> Trace {
    let storage = |identity, size| Storage {
        identity,
        size: Bytes(size),
        part: None,
        kind: StorageKind::Other,
        movable: true,
    };
    let made = Identity::Output { op: OpIndex(0), slot: 0 };
    let used = Use { storage: PlanStorage(0), access: Access::Read, previous: false };
    let op = Op {
        name: "op".to_owned(),
        duration: Nanos(10),
        fingerprint: 7,
        uses: vec![used],
        births: vec![Birth { storage: PlanStorage(1), slot: 0 }],
        deaths: Vec::new(),
    };
    let storages =
        vec![storage(Identity::Name("weight".to_owned()), 8 * MIB), storage(made, 6 * MIB)];
    Trace { name: String::new(), storages, ops: vec![op] }
}

/// A machine with the weight in it, and who cuts.
fn with_weight() -> (Residency, StorageParts) {
    let mut machine = Residency::new(Config::new(Bytes(100 * MIB), Bytes(0)));
    let mut parts = StorageParts::default();
    parts.use_them(Divisible::All);
    parts.born(&mut machine, WEIGHT, 8 * MIB, Attributes::default());
    (machine, parts)
}

/// The machine follows a plan whose parts are at most so large.
fn follow(machine: &mut Residency, parts: &mut StorageParts, largest: u64, bindings: Bindings) {
    let trace = trace();
    let step = Arc::new(PartedStep::of(&trace, &Cuts::into_parts_of(&trace, Bytes(largest))));
    let plan = tidelog_planner::plan::Plan {
        policy: String::new(),
        trace: String::new(),
        fingerprint: step.trace.fingerprint(),
        ops: 1,
        machine: tidelog_planner::cost::Machine {
            budget: Bytes(100 * MIB),
            staging: Bytes(0),
            ssd: tidelog_planner::cost::SsdLink {
                read: tidelog_planner::units::Bandwidth(1),
                write: tidelog_planner::units::Bandwidth(1),
                latency: Nanos(0),
            },
            host: None,
            verify: tidelog_planner::units::Bandwidth(1),
        },
        expects: tidelog_planner::plan::Expectation::default(),
        left_out: Vec::new(),
        rows_of_parts: 0,
        rows: Vec::new(),
    };
    let schedule: Schedule = tidelog_planner::plan::compile_in_parts(&plan, &step).unwrap();
    machine.load_schedule(Arc::new(schedule));
    parts.follow(machine, &trace, Some(&step), bindings);
    machine.step_begin();
}

fn sizes(machine: &Residency, parts: &StorageParts, storage: StorageId) -> Vec<u64> {
    parts.of(storage).map(|part| machine.size(part).unwrap().0 / MIB).collect()
}

/// Carries transfers out until the machine asks for none.
fn carry_out(machine: &mut Residency) {
    loop {
        let mut actions = Vec::new();
        machine.take_actions(&mut actions);
        if actions.is_empty() {
            return;
        }
        for action in actions {
            if let ResidencyAction::Evict { transfer, .. }
            | ResidencyAction::Fetch { transfer, .. } = action
            {
                machine.completed(transfer, MigrationOutcome::Done);
            }
        }
    }
}

#[test]
fn what_rests_is_cut_as_a_plan_is_taken_over_and_whole_again_by_another() {
    let (mut machine, mut parts) = with_weight();
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [2, 2, 2, 2]);
    assert_eq!(machine.committed(), Bytes(8 * MIB));
    assert!(!machine.knows(WEIGHT));
    let bindings = parts.bindings(&machine);
    assert_eq!(bindings, [(PlanStorage(0), WEIGHT)]);
    follow(&mut machine, &mut parts, 4 * MIB, bindings);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [4, 4]);
    let bindings = parts.bindings(&machine);
    follow(&mut machine, &mut parts, 8 * MIB, bindings);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [8]);
    assert!(machine.knows(WEIGHT));
    assert_eq!(parts.counts(), (0, 0));
}

/// An op uses the storage, for which all of it comes back; does not end it.
fn begin_op(machine: &mut Residency, parts: &StorageParts, storage: StorageId) {
    let mut uses = Vec::new();
    parts.uses(&[OpUse { storage, modifies: false }], &mut uses);
    let begin = OpBegin { index: None, uses: &uses, needs: Bytes(0) };
    assert_eq!(machine.op_begin(&begin), OpProgress::Waiting);
    carry_out(machine);
    assert_eq!(machine.resume(), OpProgress::Ready);
}

/// Returns the parts of a storage by their places in the plan.
fn planned_as(machine: &Residency, parts: &StorageParts, storage: StorageId) -> Vec<u32> {
    parts.of(storage).map(|part| machine.planned_as(part).unwrap().0).collect()
}

/// A storage that waits for its bytes to come back, to be cut.
fn with_weight_that_waits() -> (Residency, StorageParts) {
    let (mut machine, mut parts) = with_weight();
    let _ = machine.evict(WEIGHT).unwrap();
    carry_out(&mut machine);
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [8]);
    (machine, parts)
}

#[test]
fn what_is_out_moves_whole_until_an_op_has_brought_it_back() {
    let (mut machine, mut parts) = with_weight_that_waits();
    assert_eq!(planned_as(&machine, &parts, WEIGHT), [0], "its first part");
    assert!(parts.are_away(&machine, WEIGHT));
    begin_op(&mut machine, &parts, WEIGHT);
    parts.cut_waiting(&mut machine);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [8], "an op uses it");
    machine.op_end();
    parts.cut_waiting(&mut machine);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [2, 2, 2, 2]);
}

#[test]
fn what_an_op_makes_is_cut_at_once_if_it_is_what_was_planned() {
    let (mut machine, mut parts) = with_weight();
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    let made = Attributes { movable: true, birth: Some((OpIndex(0), 0)) };
    parts.born(&mut machine, MADE, 6 * MIB, made);
    assert_eq!(sizes(&machine, &parts, MADE), [2, 2, 2]);
    parts.died(&mut machine, MADE);
    assert_eq!((machine.committed(), parts.counts()), (Bytes(8 * MIB), (1, 4)));
    for (size, movable) in [(5 * MIB, true), (6 * MIB, false)] {
        parts.born(&mut machine, MADE, size, Attributes { movable, ..made });
        assert_eq!(sizes(&machine, &parts, MADE), [size / MIB]);
        parts.died(&mut machine, MADE);
    }
    machine.leave_schedule();
    parts.born(&mut machine, MADE, 6 * MIB, made);
    assert_eq!(sizes(&machine, &parts, MADE), [6]);
}

#[test]
fn without_a_plan_nothing_is_cut() {
    let (mut machine, mut parts) = with_weight();
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    machine.clear_schedule("steps are others");
    parts.follow_nothing();
    let made = Attributes { movable: true, birth: Some((OpIndex(0), 0)) };
    parts.born(&mut machine, MADE, 6 * MIB, made);
    parts.cut_waiting(&mut machine);
    assert_eq!(sizes(&machine, &parts, MADE), [6]);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [2, 2, 2, 2], "it moves in parts still");
    let expected = tidelog_planner::plan::without_moves(&trace(), &[]).unwrap();
    machine.load_schedule(Arc::new(expected));
    parts.bind_as_they_are(&mut machine, &vec![(PlanStorage(0), WEIGHT)]);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [2, 2, 2, 2], "also where steps are expected");
    assert!(parts.of(WEIGHT).all(|part| machine.planned_as(part) == Some(PlanStorage(0))));
}

#[test]
fn where_parts_are_is_the_worst_of_them() {
    let (mut machine, mut parts) = with_weight();
    follow(&mut machine, &mut parts, 4 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    let [first, second] = parts.of(WEIGHT).collect::<Vec<_>>()[..] else { panic!("two parts") };
    assert_eq!(parts.state(&machine, WEIGHT), PartState::Resident);
    let _ = machine.evict(first).unwrap();
    assert_eq!(parts.state(&machine, WEIGHT), PartState::Leaving);
    carry_out(&mut machine);
    assert_eq!(parts.state(&machine, WEIGHT), PartState::Away);
    let begin = OpBegin {
        index: None,
        uses: &[first, second].map(|storage| OpUse { storage, modifies: false }),
        needs: Bytes(0),
    };
    assert_eq!(machine.op_begin(&begin), OpProgress::Waiting);
    carry_out(&mut machine);
    assert_eq!(machine.resume(), OpProgress::Ready);
    assert_eq!(parts.state(&machine, WEIGHT), PartState::Copied);
    assert_eq!(parts.requested(second), RequestedBytes { storage: WEIGHT.0, part: Some(4 * MIB) });
    assert_eq!(parts.whole(second), WEIGHT);
}

#[test]
fn a_storage_that_is_resized_has_all_of_its_bytes_in_its_parts() {
    let (mut machine, mut parts) = with_weight();
    follow(&mut machine, &mut parts, 4 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    for (size, expected) in [(0, [0, 0]), (3, [3, 0]), (6, [4, 2]), (20, [4, 16])] {
        let sizes: Vec<_> =
            parts.sizes(WEIGHT, size * MIB).iter().map(|(_, size)| size / MIB).collect();
        assert_eq!(sizes, expected);
    }
}

#[test]
fn where_numbers_are_used_up_storages_stay_whole_and_numbers_come_back() {
    let (mut machine, mut parts) = with_weight();
    parts.next = PART_NUMBERS - 3;
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [8]);
    assert!(parts.waiting.is_empty(), "it rests, so there is nothing to wait for");
    let made = Attributes { movable: true, birth: Some((OpIndex(0), 0)) };
    for _ in 0..3 {
        parts.born(&mut machine, MADE, 6 * MIB, made);
        assert_eq!(sizes(&machine, &parts, MADE), [2, 2, 2]);
        parts.died(&mut machine, MADE);
    }
}

#[test]
fn what_waits_to_be_cut_does_so_for_one_plan_and_one_storage() {
    let forgets: [fn(&mut Residency, &mut StorageParts); 3] = [
        |machine, parts| {
            parts.died(machine, WEIGHT);
            parts.born(machine, WEIGHT, 8 * MIB, Attributes::default());
        },
        |machine, parts| follow(machine, parts, 2 * MIB, Vec::new()),
        |machine, parts| {
            machine.clear_schedule("steps are others");
            parts.follow_nothing();
        },
    ];
    for (case, forget) in forgets.into_iter().enumerate() {
        let (mut machine, mut parts) = with_weight_that_waits();
        forget(&mut machine, &mut parts);
        if parts.are_away(&machine, WEIGHT) {
            begin_op(&mut machine, &parts, WEIGHT);
            machine.op_end();
        }
        assert!(parts.waiting.is_empty(), "case {case}");
        parts.cut_waiting(&mut machine);
        assert_eq!(sizes(&machine, &parts, WEIGHT), [8], "case {case}");
    }
}

#[test]
fn what_is_out_in_part_is_cut_anew_when_all_of_it_is_back() {
    let (mut machine, mut parts) = with_weight();
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    let third = parts.of(WEIGHT).nth(2).unwrap();
    let _ = machine.evict(third).unwrap();
    carry_out(&mut machine);
    assert!(parts.are_away(&machine, WEIGHT), "a part of it");
    let bindings = parts.bindings(&machine);
    follow(&mut machine, &mut parts, 4 * MIB, bindings);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [2, 2, 2, 2]);
    assert_eq!(planned_as(&machine, &parts, WEIGHT), [0, 0, 0, 0], "of which there are two");
    begin_op(&mut machine, &parts, WEIGHT);
    assert!(!parts.are_away(&machine, WEIGHT));
    machine.op_end();
    parts.cut_waiting(&mut machine);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [4, 4]);
}

#[test]
fn what_is_cut_as_planned_keeps_its_copies_under_another_plan() {
    for (largest, expected) in [(8, vec![0]), (4, vec![0, 1])] {
        let (mut machine, mut parts) = with_weight();
        follow(&mut machine, &mut parts, largest * MIB, vec![(PlanStorage(0), WEIGHT)]);
        for part in parts.of(WEIGHT).collect::<Vec<_>>() {
            let _ = machine.evict(part).unwrap();
        }
        carry_out(&mut machine);
        begin_op(&mut machine, &parts, WEIGHT);
        machine.op_end();
        assert_eq!(parts.state(&machine, WEIGHT), PartState::Copied);
        machine.clear_schedule("there is a better plan");
        follow(&mut machine, &mut parts, largest * MIB, vec![(PlanStorage(0), WEIGHT)]);
        assert_eq!(parts.state(&machine, WEIGHT), PartState::Copied);
        assert_eq!(planned_as(&machine, &parts, WEIGHT), expected);
    }
}

#[test]
fn what_has_not_the_size_that_was_planned_for_is_whole_and_moves_as_the_first_part() {
    let (mut machine, mut parts) = with_weight();
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    // As what an op makes it has 6 MiB.
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(1), WEIGHT)]);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [8]);
    assert_eq!(planned_as(&machine, &parts, WEIGHT), [4], "behind four parts");
    let made = Attributes { movable: true, birth: Some((OpIndex(0), 0)) };
    parts.born(&mut machine, MADE, 5 * MIB, made);
    assert_eq!(planned_as(&machine, &parts, MADE), [4]);
    assert!(parts.waiting.is_empty(), "there is nothing to wait for");
}

#[test]
fn the_number_of_a_part_that_has_died_in_flight_is_free_when_that_has_ended() {
    let (mut machine, mut parts) = with_weight();
    parts.next = PART_NUMBERS - 4;
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    let _ = machine.evict(parts.of(WEIGHT).next().unwrap()).unwrap();
    let mut actions = Vec::new();
    machine.take_actions(&mut actions);
    let [ResidencyAction::Evict { transfer, .. }] = actions[..] else { panic!("{actions:?}") };
    parts.died(&mut machine, WEIGHT);
    follow(&mut machine, &mut parts, 2 * MIB, Vec::new());
    let made = Attributes { movable: true, birth: Some((OpIndex(0), 0)) };
    parts.born(&mut machine, MADE, 6 * MIB, made);
    assert_eq!(sizes(&machine, &parts, MADE), [2, 2, 2], "three are free");
    parts.born(&mut machine, WEIGHT, 8 * MIB, Attributes::default());
    follow(&mut machine, &mut parts, 4 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [8], "one number is taken still");
    machine.completed(transfer, MigrationOutcome::Cancelled);
    parts.died(&mut machine, MADE);
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [2, 2, 2, 2]);
}

#[test]
fn on_a_gpu_what_lives_on_is_cut_once_it_is_divisible_and_what_a_step_makes_is_not() {
    let (mut machine, mut parts) = with_weight();
    parts.use_them(Divisible::WhatLivesOn);
    assert!(parts.are_used());
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    let made = Attributes { movable: true, birth: Some((OpIndex(0), 0)) };
    parts.born(&mut machine, MADE, 6 * MIB, made);
    parts.cut_waiting(&mut machine);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [8]);
    assert_eq!(sizes(&machine, &parts, MADE), [6]);
    assert_eq!(planned_as(&machine, &parts, WEIGHT), [0], "its first part");
    parts.is_divisible(WEIGHT);
    parts.cut_waiting(&mut machine);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [2, 2, 2, 2]);
    // Another storage of that number is another storage.
    parts.died(&mut machine, WEIGHT);
    parts.born(&mut machine, WEIGHT, 8 * MIB, Attributes::default());
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    parts.cut_waiting(&mut machine);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [8]);
    // It is divisible, and that plan is followed no longer.
    parts.follow_nothing();
    parts.is_divisible(WEIGHT);
    parts.cut_waiting(&mut machine);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [8]);
}
