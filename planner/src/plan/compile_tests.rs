use super::*;
use crate::algorithm1::{Algorithm1Options, algorithm1};
use crate::migration::{MigrationDirection, Target};
use crate::testing::{machine, training};
use crate::trace::Storage;

/// A plan with rows, and its trace.
fn planned() -> (Plan, Trace) {
    let trace = training(12, 40, 100, 60);
    let plan = algorithm1(&trace, &machine(900), Algorithm1Options::default());
    assert!(plan.rows.len() > 4);
    (plan, trace)
}

#[test]
fn every_row_becomes_a_move_of_the_storage_it_names() {
    let (plan, trace) = planned();
    let schedule = compile(&plan, &trace).unwrap();
    let (mut moves, mut rows) = (schedule.moves().to_vec(), plan.rows.clone());
    moves.sort();
    rows.sort();
    assert_eq!(moves, rows);
}

#[test]
fn the_schedule_knows_names_births_and_uses() {
    let (plan, trace) = planned();
    let schedule = compile(&plan, &trace).unwrap();
    let schedule = schedule.step();
    assert_eq!(schedule.ops() as usize, trace.ops.len());
    assert_eq!(schedule.named("layer3.weight"), Some(PlanStorage(3)));
    assert_eq!(schedule.born_at(OpIndex(2), 0), Some(trace.ops[2].births[0].storage));
    assert_eq!(schedule.needs(OpIndex(2)), Bytes(100));
    for (index, op) in trace.ops.iter().enumerate() {
        assert_eq!(schedule.fingerprint(OpIndex(index as u32)), Some(op.fingerprint));
    }
    // Layer 3's weight: forward, backward, update, and forward of the next iteration.
    let next = |now| schedule.next_use(PlanStorage(3), 0, now);
    assert_eq!((next(0), next(3), next(20), next(27)), (Some(3), Some(20), Some(27), Some(39)));
}

#[test]
fn a_row_that_cannot_be_followed_is_refused_by_name() {
    let refusal = |storage: Identity, movable: bool| {
        let (mut plan, mut trace) = planned();
        trace.storages[0].movable = movable;
        plan.fingerprint = trace.fingerprint();
        let mut file = plan.named(&trace);
        file.rows[2].storage = storage.into();
        file.numbered(&trace).and_then(|plan| compile(&plan, &trace)).unwrap_err().to_string()
    };
    let unknown = refusal(Identity::Name("elsewhere".to_owned()), true);
    assert_eq!(unknown, "row 2 names elsewhere, which the trace does not have");
    assert!(refusal(Identity::Arrival, true).contains("cannot be planned"));
    let (plan, trace) = planned();
    let Storage { identity, .. } = trace.storages[0].clone();
    // Rows before the third may name it too; they all cannot move now.
    let fixed = refusal(identity, false);
    assert!(fixed.contains("layer0.weight, which cannot move"), "{fixed}");
    assert!(matches!(plan.rows[2].direction, MigrationDirection::Out | MigrationDirection::In));
    assert!(plan.rows.iter().all(|row| row.target == Target::Ssd));
}

#[test]
fn a_plan_for_other_ops_makes_no_schedule() {
    let (plan, _) = planned();
    let error = compile(&plan, &training(12, 41, 100, 60)).unwrap_err();
    assert!(matches!(error, PlanError::OtherTrace { .. }));
}

#[test]
fn without_moves_there_is_what_is_used_when() {
    let (_, mut trace) = planned();
    // A weight whose name is not known yet: it is used again all the same.
    trace.storages[3].identity = Identity::Arrival;
    let once = without_moves(&trace, &[]).unwrap();
    let again = without_moves(&trace, &[PlanStorage(3)]).unwrap();
    assert!(once.moves().is_empty() && again.moves().is_empty());
    let next = |schedule: &Schedule, now| schedule.step().next_use(PlanStorage(3), 0, now);
    assert_eq!((next(&once, 0), next(&once, 27)), (Some(3), None));
    assert_eq!((next(&again, 0), next(&again, 27)), (Some(3), Some(39)));
}
