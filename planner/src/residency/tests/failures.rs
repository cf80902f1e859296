//! Case by case: what fails, what cannot be done, what is told twice.

use super::*;

#[test]
fn a_failed_write_keeps_the_memory_is_told_once_and_not_tried_again_before_a_retry() {
    let mut machine = machine(20);
    populate(&mut machine, &[10, 10]);
    assert_eq!(begin(&mut machine, &[reads(1)], 10), OpProgress::Waiting);
    actions(&mut machine);
    machine.completed(TransferId(0), failed("no space"));
    let OpProgress::Failed(failure) = machine.resume() else { panic!("not reported") };
    assert_eq!((failure.storage, failure.direction), (id(0), MigrationDirection::Out));
    assert!(failure.to_string().contains("no space"), "{failure}");
    assert_eq!(machine.state(id(0)), Some(StorageState::Resident { clean: false }));
    let OpProgress::Refused(refusal) = begin(&mut machine, &[reads(1)], 10) else {
        panic!("a storage that cannot be written was chosen again")
    };
    assert_eq!((refusal.unwritable, refusal.unmovable), (Bytes(10), Bytes(0)));
    assert_eq!(actions(&mut machine), []);
    machine.step_begin();
    assert_eq!(begin(&mut machine, &[reads(1)], 10), OpProgress::Waiting);
    assert_eq!(begun(&actions(&mut machine)), [TransferId(1)]);
}

#[test]
fn a_failed_fetch_is_told_at_every_touch_and_costs_no_memory() {
    let mut machine = first_one_out(false);
    for transfer in 1..4 {
        assert_eq!(begin(&mut machine, &[reads(0)], 0), OpProgress::Waiting);
        assert_eq!(actions(&mut machine), [fetch(0, transfer)]);
        machine.completed(TransferId(transfer), failed("bad block"));
        let OpProgress::Failed(failure) = machine.resume() else { panic!("not reported") };
        assert_eq!((failure.storage, failure.direction), (id(0), MigrationDirection::In));
        assert_eq!(actions(&mut machine), [ResidencyAction::Release { storage: id(0) }]);
        assert_eq!(machine.committed(), Bytes(10));
    }
    assert_eq!(begin(&mut machine, &[reads(1)], 0), OpProgress::Ready);
}

fn no_memory() -> MigrationOutcome {
    MigrationOutcome::NoMemory(FailureInfo { message: "no memory".to_owned() })
}

#[test]
fn a_fetch_without_memory_is_asked_for_again_when_others_have_left() {
    let mut machine = machine(100);
    populate(&mut machine, &[10, 10, 10, 10]);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    actions(&mut machine);
    machine.completed(TransferId(0), MigrationOutcome::Done);
    assert_eq!(machine.resume(), OpProgress::Ready);
    actions(&mut machine);

    assert_eq!(begin(&mut machine, &[reads(0)], 0), OpProgress::Waiting);
    assert_eq!(actions(&mut machine), [fetch(0, 1)]);
    // There is room by the budget, and others leave all the same: one, then twice as much.
    let mut asked = 1;
    for leaving in [1, 2] {
        machine.completed(TransferId(asked), no_memory());
        assert_eq!(machine.resume(), OpProgress::Waiting);
        let told = actions(&mut machine);
        let evictions = begun(&told);
        assert_eq!(evictions.len(), leaving);
        for &eviction in &evictions {
            assert_eq!(machine.resume(), OpProgress::Waiting);
            machine.completed(eviction, MigrationOutcome::Done);
        }
        assert_eq!(machine.resume(), OpProgress::Waiting);
        asked += leaving as u64 + 1;
        assert!(actions(&mut machine).contains(&fetch(0, asked)), "it is asked for again");
    }
    // Nothing is left that could leave.
    machine.completed(TransferId(asked), no_memory());
    let OpProgress::Failed(failure) = machine.resume() else { panic!("it asks for ever") };
    assert_eq!((failure.storage, failure.direction), (id(0), MigrationDirection::In));
    actions(&mut machine);
    assert_eq!(machine.in_flight(), 0);
    // The next op asks anew.
    assert_eq!(begin(&mut machine, &[reads(0)], 0), OpProgress::Waiting);
    let told = actions(&mut machine);
    machine.completed(begun(&told)[0], MigrationOutcome::Done);
    assert_eq!(machine.resume(), OpProgress::Ready);
}

#[test]
fn a_completion_told_twice_changes_nothing() {
    let mut machine = first_one_out(true);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    actions(&mut machine);
    assert!(machine.completed(TransferId(2), MigrationOutcome::Matched));
    assert!(!machine.completed(TransferId(2), MigrationOutcome::Matched));
    assert!(!machine.completed(TransferId(77), MigrationOutcome::Done));
    assert_eq!(actions(&mut machine), [ResidencyAction::Release { storage: id(0) }]);
}

#[test]
fn an_eviction_that_the_executor_gave_up_is_a_failure_and_not_begun_for_ever() {
    let mut machine = machine(20);
    populate(&mut machine, &[10, 10]);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    actions(&mut machine);
    machine.completed(TransferId(0), MigrationOutcome::Cancelled);
    assert!(matches!(machine.resume(), OpProgress::Failed(_)));
    assert_eq!(machine.in_flight(), 0);
}

#[test]
fn a_refusal_says_what_would_do() {
    let mut machine = machine(40);
    populate(&mut machine, &[10, 10, 10]);
    machine.born(id(3), Bytes(5), Attributes { movable: false, birth: None });
    machine.pin(id(0));
    let OpProgress::Refused(refusal) = begin(&mut machine, &[reads(1), reads(2), reads(1)], 20)
    else {
        panic!("it cannot fit")
    };
    assert_eq!(refusal.smallest_budget, Bytes(7 + 15 + 20 + 20));
    let figures = (refusal.staging, refusal.unmovable, refusal.uses, refusal.outputs);
    assert_eq!(figures, (Bytes(7), Bytes(15), Bytes(20), Bytes(20)));
    let named: Vec<u32> = refusal.largest.iter().map(|one| one.storage.0).collect();
    assert_eq!(named, [0, 1, 2, 3]);
    assert_eq!(actions(&mut machine), [], "nothing moves for an op that cannot run");
    machine.set_budget(refusal.smallest_budget);
    assert_eq!(begin(&mut machine, &[reads(1), reads(2)], 20), OpProgress::Ready);
}
