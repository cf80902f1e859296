use super::*;
use crate::instances::{magnified, small_steps};
use crate::lifetime::Lifetimes;
use crate::migration::{MigrationDirection, Target};
use crate::simulate::{Policy, simulate};
use crate::testing::{Builder, machine, training};
use crate::trace::{Access, Identity};

const MIB: u64 = 1 << 20;

/// Small steps whose storages are 1 to 40 MiB large.
fn steps(count: u32) -> impl Iterator<Item = (Trace, crate::cost::Machine)> {
    small_steps(27, count).map(|(_, trace, machine)| magnified(&trace, &machine, MIB))
}

#[test]
fn storages_are_cut_in_halves_at_multiples_of_the_unit() {
    let mut b = Builder::default();
    let sizes = [1, 2, 3, 20, 21, 64 * MIB, 100 * MIB - 1, 100 * MIB + 1]
        .map(|size| b.global(&format!("of {size}"), size));
    b.ops(2, 10);
    let trace = b.finish();
    for largest in [1, 10 * MIB, 16 * MIB, 30 * MIB] {
        let step = PartedStep::of(&trace, &Cuts::into_parts_of(&trace, Bytes(largest)));
        for whole in sizes {
            let parts: Vec<&Storage> =
                step.parts(whole).map(|part| step.trace.storage(part)).collect();
            let [first @ .., last] = parts.as_slice() else { panic!("there is a part") };
            let all: u64 = parts.iter().map(|part| part.size.0).sum();
            assert_eq!(all, trace.storage(whole).size.0, "all bytes are in a part");
            assert!(first.iter().all(|part| part.size.0.is_multiple_of(PART_UNIT)));
            let most = largest.max(PART_UNIT).next_multiple_of(PART_UNIT);
            assert!(parts.iter().all(|part| part.size.0 <= most));
            let mut at = 0;
            for part in &parts {
                let range = part.part.unwrap_or(ByteRange { begin: Bytes(0), length: last.size });
                assert_eq!((range.begin.0, range.length), (at, part.size));
                at += part.size.0;
            }
        }
    }
}

/// Memory, op by op, is that of whole storages.
#[test]
fn a_step_in_parts_is_the_same_step() {
    let mut cut = 0;
    for (trace, _) in steps(200) {
        let step = PartedStep::of(&trace, &Cuts::into_parts_of(&trace, Bytes(4 * MIB)));
        let (whole, parts) = (Lifetimes::of(&trace), Lifetimes::of(&step.trace));
        assert_eq!((whole.memory, whole.active), (parts.memory, parts.active));
        assert_eq!(step.trace.duration(), trace.duration());
        cut += step.counts().0;
        // Nobody has cut anything.
        let same = PartedStep::of(&trace, &Cuts::default());
        assert_eq!((&same.trace, same.counts()), (&trace, (0, 0)));
    }
    assert!(cut > 500, "{cut}");
}

/// Checks that parts leave one by one, as needed: never more bytes than storages have. With all its
/// memory the step never waits.
#[test]
fn steps_in_parts_are_simulated() {
    let mut fewer = 0;
    for (trace, machine) in steps(200) {
        let step = PartedStep::of(&trace, &Cuts::into_parts_of(&trace, Bytes(2 * MIB)));
        let ideal = simulate(&step.trace, &machine, Policy::Ideal).unwrap();
        assert_eq!(ideal.time, trace.duration());
        let [whole, parts] =
            [&trace, &step.trace].map(|trace| simulate(trace, &machine, Policy::Lru).unwrap());
        fewer += u32::from(parts.bytes.ssd_written < whole.bytes.ssd_written);
    }
    assert!(fewer > 50, "{fewer} write fewer bytes");
}

#[test]
fn what_a_step_makes_is_whole_where_only_what_lives_on_is_cut() {
    let (mut cut, mut whole) = (0, 0);
    for (trace, machine) in steps(50) {
        let all = PartedStep::of(&trace, &Cuts::of(&trace, &machine));
        let some = PartedStep::of(&trace, &Cuts::of_what_lives_on(&trace, &machine));
        for index in 0..trace.storages.len() as u32 {
            let storage = PlanStorage(index);
            let lives_on = matches!(trace.storage(storage).identity, Identity::Name(_));
            let parts = all.parts(storage).count();
            assert_eq!(some.parts(storage).count(), if lives_on { parts } else { 1 });
            *(if lives_on { &mut cut } else { &mut whole }) += usize::from(parts > 1);
        }
    }
    assert!(cut > 0 && whole > 0, "{cut} cut, {whole} whole");
}

#[test]
fn neighbours_that_move_alike_become_one_part() {
    let trace = training(4, 12 * MIB, 8 * MIB, 60_000);
    let step = PartedStep::of(&trace, &Cuts::into_parts_of(&trace, Bytes(2 * MIB)));
    let whole = PlanStorage(0);
    let parts: Vec<PlanStorage> = step.parts(whole).collect();
    assert_eq!(parts.len(), 6);
    let row = |storage: PlanStorage, back: u32| {
        let ops = trace.ops.len() as u32;
        let row =
            |direction, when| Migration::unrolled(storage, (direction, Target::Ssd), when, ops);
        [row(MigrationDirection::Out, (1, 3)), row(MigrationDirection::In, (back, 7))]
    };
    // The first stays; two leave; one more is back earlier; the last two leave.
    let rows: Vec<Migration> = [(1, 5), (2, 5), (3, 4), (4, 5), (5, 5)]
        .into_iter()
        .flat_map(|(part, back)| row(parts[part], back))
        .collect();
    let (joined, moves) = step.joined(&trace, &rows);
    assert_eq!(joined.counts(), (1, 4));
    let sizes = joined.parts(whole).map(|part| joined.trace.storage(part).size.0 / MIB);
    assert_eq!(sizes.collect::<Vec<_>>(), [2, 4, 2, 4]);
    let wanted: Vec<Migration> = [(1, 5), (2, 4), (3, 5)]
        .into_iter()
        .flat_map(|(part, back)| row(PlanStorage(part), back))
        .collect();
    assert_eq!(moves, wanted);
    // All parts alike are the whole.
    let all: Vec<Migration> = parts.iter().flat_map(|part| row(*part, 5)).collect();
    let (joined, moves) = step.joined(&trace, &all);
    assert_eq!((joined.trace, moves), (trace.clone(), row(whole, 5).to_vec()));
    assert_eq!(step.rows(&row(whole, 5)).len(), all.len());
}

/// An op waits for all parts of what it uses, and a part that is not out is not fetched.
#[test]
fn an_op_needs_all_parts() {
    let mut b = Builder::default();
    let weight = b.global("weight", 8 * MIB);
    b.ops(6, 3000);
    b.uses(0, weight, Access::Read);
    let trace = b.finish();
    let mut machine = machine(8 * MIB);
    (machine.ssd.read, machine.ssd.write) =
        (crate::units::Bandwidth(MIB * 1_000_000), crate::units::Bandwidth(MIB * 1_000_000));
    let step = PartedStep::of(&trace, &Cuts::into_parts_of(&trace, Bytes(4 * MIB)));
    let row =
        |direction, when| Migration::unrolled(PlanStorage(1), (direction, Target::Ssd), when, 6);
    let rows = vec![row(MigrationDirection::Out, (1, 2)), row(MigrationDirection::In, (5, 6))];
    let plan = crate::plan::Plan::new(
        "made",
        &step.trace,
        &machine,
        rows,
        crate::plan::Expectation::default(),
    );
    let simulation = simulate(&step.trace, &machine, Policy::Planned(&plan)).unwrap();
    // It comes back during the last op and a microsecond more: 4 MiB at a MiB in one.
    assert_eq!(simulation.bytes.ssd_read, Bytes(4 * MIB));
    assert_eq!(simulation.stall_time().0, 1000);
    let least = simulation.memory.iter().map(|sample| sample.resident.0 + sample.moving.0).min();
    assert_eq!(least, Some(4 * MIB), "the other part stays");
}
