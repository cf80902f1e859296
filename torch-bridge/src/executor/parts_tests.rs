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
    parts.use_them();
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

#[test]
fn what_is_out_moves_whole_until_an_op_has_brought_it_back() {
    let (mut machine, mut parts) = with_weight();
    let _ = machine.evict(WEIGHT).unwrap();
    carry_out(&mut machine);
    follow(&mut machine, &mut parts, 2 * MIB, vec![(PlanStorage(0), WEIGHT)]);
    assert_eq!(sizes(&machine, &parts, WEIGHT), [8]);
    assert!(parts.are_away(&machine, WEIGHT));
    let mut uses = Vec::new();
    parts.uses(&[OpUse { storage: WEIGHT, modifies: false }], &mut uses);
    let begin = OpBegin { index: Some(OpIndex(0)), uses: &uses, needs: Bytes(0) };
    assert_eq!(machine.op_begin(&begin), OpProgress::Waiting);
    carry_out(&mut machine);
    assert_eq!(machine.resume(), OpProgress::Ready);
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
    let made = Attributes { movable: true, birth: Some((OpIndex(0), 0)) };
    for _ in 0..3 {
        parts.born(&mut machine, MADE, 6 * MIB, made);
        assert_eq!(sizes(&machine, &parts, MADE), [2, 2, 2]);
        parts.died(&mut machine, MADE);
    }
}
