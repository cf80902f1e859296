use super::*;
use crate::algorithm1::{Algorithm1Options, algorithm1};
use crate::migration::{Migration, MigrationDirection};
use crate::plan::Expectation;
use crate::simulate::{simulate, with_expectations};
use crate::testing::{Builder, machine, training};
use crate::trace::Access;
use crate::units::Bytes;

/// Two globals of 60 bytes in turn, and room for one and a half; a byte takes a nanosecond.
fn two_in_turn() -> Trace {
    let mut b = Builder::default();
    let (a, c) = (b.global("a", 60), b.global("b", 60));
    b.ops(4, 20);
    b.uses(0, a, Access::Update);
    b.uses(2, c, Access::Update);
    b.finish()
}

fn rows(trace: &Trace, list: &[(u32, u32, MigrationDirection, &str)]) -> Vec<Migration> {
    let row =
        |(start, deadline, direction, name): &(u32, u32, MigrationDirection, &str)| Migration {
            start: OpIndex(*start),
            deadline: OpIndex(*deadline),
            direction: *direction,
            target: Target::Ssd,
            storage: find(trace, name)[0],
            awaited: false,
            stays: false,
        };
    list.iter().map(row).collect()
}

fn planned(
    trace: &Trace,
    machine: &Machine,
    list: &[(u32, u32, MigrationDirection, &str)],
) -> (Plan, Simulation) {
    let plan = Plan::new("by hand", trace, machine, rows(trace, list), Expectation::default());
    with_expectations(plan, trace, machine).unwrap()
}

const IN_TURN: [(u32, u32, MigrationDirection, &str); 4] = [
    (1, 2, MigrationDirection::Out, "a"),
    (1, 2, MigrationDirection::In, "b"),
    (3, 0, MigrationDirection::Out, "b"),
    (3, 0, MigrationDirection::In, "a"),
];

#[test]
fn an_eviction_is_explained_by_the_ops_that_would_not_fit() {
    let trace = two_in_turn();
    let machine = machine(90);
    let (plan, simulation) = planned(&trace, &machine, &IN_TURN);
    let case =
        Case { trace: &trace, machine: &machine, plan: Some(&plan), simulation: &simulation };
    let answer = case.storage(find(&trace, "a")[0]).unwrap();
    let [absence] = answer.absences.as_slice() else { panic!("{answer:?}") };
    assert!(absence.planned && absence.out.moved);
    assert_eq!((absence.last_use, absence.next_use), (Some(OpIndex(0)), Some(OpIndex(0))));
    // 120 bytes are alive at each of the three ops between its uses.
    assert_eq!((absence.ops_over_capacity, absence.over_capacity), (3, Bytes(30)));
    assert_eq!((absence.better_left, absence.out_already), (0, 0));
    // Held in memory it leaves no room for the other, whatever is evicted.
    let held = answer.held.clone().unwrap();
    assert!(held.time.is_none() && held.refused.is_some(), "{held:?}");
    assert!(answer.to_string().contains("It must leave"), "{answer}");
}

#[test]
fn a_wait_is_for_what_the_op_uses_or_for_room() {
    let trace = two_in_turn();
    let machine = machine(90);
    let (plan, simulation) = planned(&trace, &machine, &IN_TURN);
    let case =
        Case { trace: &trace, machine: &machine, plan: Some(&plan), simulation: &simulation };
    // Out for 60 ns, then in for 60 ns, behind an op of 20 ns: each change waits 100 ns.
    let waits = case.longest_waits();
    assert_eq!(waits.len(), 2, "{:?}", simulation.stalls);
    for op in waits {
        let answer = case.op(op);
        let Some(Cause::Full { awaited, least_room }) = answer.cause.clone() else {
            panic!("{answer:?}")
        };
        assert_eq!((awaited.needs, least_room), (Nanos(60), Bytes(30)));
        assert!(awaited.planned);
    }
    let sum = case.waited();
    assert_eq!(sum.full, simulation.stall_time());
    assert!(case.op(OpIndex(1)).cause.is_none());
}

/// Checks two globals that fit only after op 1 is done with its output, and reading takes longer
/// than what is left.
#[test]
fn a_link_that_never_rested_since_there_was_room_is_the_limit() {
    let mut b = Builder::default();
    let (a, c) = (b.global("a", 60), b.global("b", 60));
    b.ops(4, 70);
    let made = b.birth(0, 100);
    b.death(0, made, false);
    b.uses(2, a, Access::Read);
    b.uses(2, c, Access::Read);
    let trace = b.finish();
    let machine = machine(130);
    let list = [
        (3, 0, MigrationDirection::Out, "a"),
        (3, 0, MigrationDirection::Out, "b"),
        (1, 2, MigrationDirection::In, "a"),
        (1, 2, MigrationDirection::In, "b"),
    ];
    let (plan, simulation) = planned(&trace, &machine, &list);
    let case =
        Case { trace: &trace, machine: &machine, plan: Some(&plan), simulation: &simulation };
    let answer = case.op(OpIndex(2));
    let Some(Cause::Reads { awaited }) = answer.cause.clone() else { panic!("{answer:?}") };
    assert_eq!((awaited.possible_before, awaited.link_busy_per_mille), (Nanos(70), 1000));
    assert_eq!(answer.waited, Nanos(50));
}

#[test]
fn an_output_waits_for_room_that_is_being_written() {
    let mut b = Builder::default();
    let weight = b.global("w", 60);
    b.ops(2, 10);
    b.uses(0, weight, Access::Update);
    let made = b.birth(1, 60);
    b.death(1, made, false);
    let trace = b.finish();
    let machine = machine(100);
    let simulation = simulate(&trace, &machine, crate::simulate::Policy::Lru).unwrap();
    let case = Case { trace: &trace, machine: &machine, plan: None, simulation: &simulation };
    let answer = case.op(OpIndex(1));
    let Some(Cause::Room { leaving, link_busy_per_mille }) = answer.cause.clone() else {
        panic!("{answer:?}")
    };
    assert_eq!(leaving, [Named { name: "w".to_owned(), size: Bytes(60) }]);
    assert_eq!((answer.waited, link_busy_per_mille), (Nanos(60), 1000));
}

#[test]
fn every_wait_has_a_cause_and_the_causes_sum_up() {
    let trace = training(6, 50, 40, 30);
    for budget in [300, 400, 500] {
        let machine = machine(budget);
        let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
        let (plan, simulation) = with_expectations(plan, &trace, &machine).unwrap();
        let case =
            Case { trace: &trace, machine: &machine, plan: Some(&plan), simulation: &simulation };
        let sum = case.waited();
        let all = sum.reads.0 + sum.full.0 + sum.late.0 + sum.room.0;
        assert_eq!(all, simulation.stall_time().0);
        let written: u64 = case.most_written().iter().map(|(_, bytes)| bytes.0).sum();
        assert_eq!(written, simulation.bytes.ssd_written.0);
        for (storage, _) in case.most_written() {
            let answer = case.storage(storage).unwrap();
            assert!(!answer.absences.is_empty() && answer.held.is_some());
        }
    }
}

#[test]
fn more_hardware_is_planned_again() {
    let trace = training(6, 50, 40, 30);
    let machine = machine(400);
    let simulator = |trace: &Trace, machine: &Machine| {
        let plan = algorithm1(trace, machine, Algorithm1Options::default());
        Ok(with_expectations(plan, trace, machine)?.1)
    };
    let now = simulator(&trace, &machine).unwrap();
    let changes = [
        MachineChange::Ssds { present: 1, wanted: 4 },
        MachineChange::Memory(Bytes(10_000)),
        MachineChange::HostMemory(Bytes(100)),
    ];
    let found = what_if(&trace, &machine, &changes, &simulator).unwrap();
    assert_eq!(found.len(), 2, "there is no host memory to change");
    assert!(now.time > trace.duration());
    assert!(found[0].time.unwrap() < now.time);
    assert_eq!(found[1].time, Some(trace.duration()));
}

#[test]
fn a_storage_is_found_by_its_name_or_a_part_of_it() {
    let trace = training(3, 5, 5, 5);
    assert_eq!(find(&trace, "layer1.weight").len(), 1);
    assert_eq!(find(&trace, "layer1").len(), 2);
    assert_eq!(find(&trace, "output 0 of op 2").len(), 1);
    assert!(find(&trace, "nothing").is_empty());
}
