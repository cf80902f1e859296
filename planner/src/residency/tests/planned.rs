//! Case by case, with a schedule.

use super::*;
use crate::trace::{PlanStorage, REMADE_FROM};
use crate::units::OpIndex;
use std::sync::Arc;

pub(super) fn uses(ops: &[u32], cyclic: bool) -> ScheduledUses {
    ScheduledUses { ops: ops.iter().copied().map(OpIndex).collect(), cyclic }
}

fn row(storage: u32, direction: MigrationDirection, start: u32, deadline: u32) -> Migration {
    let (start, deadline, storage) = (OpIndex(start), OpIndex(deadline), PlanStorage(storage));
    let (target, awaited, stays) = (Target::Ssd, false, false);
    Migration { start, deadline, direction, target, storage, awaited, stays }
}

/// Parts of a schedule.
#[derive(Clone, Default)]
pub(super) struct Parts {
    pub(super) step: StepParts,
    pub(super) moves: Vec<Migration>,
}

impl Parts {
    pub(super) fn schedule(self) -> Result<Arc<Schedule>, ScheduleError> {
        let step = Arc::new(StepTable::new(self.step)?);
        Ok(Arc::new(Schedule::new(step, self.moves)?))
    }
}

pub(super) fn parts(ops: usize, uses: Vec<ScheduledUses>, moves: Vec<Migration>) -> Parts {
    let step = StepParts {
        fingerprints: (0..ops as u64).collect(),
        needs: vec![Bytes(0); ops],
        uses,
        ..StepParts::default()
    };
    Parts { step, moves }
}

/// A machine of globals of `sizes`, bound by number, at the begin of its first planned step.
pub(super) fn planned(limit: u64, sizes: &[u64], parts: Parts) -> Residency {
    let mut machine = machine(limit);
    populate(&mut machine, sizes);
    machine.load_schedule(parts.schedule().expect("it is well formed"));
    for storage in 0..sizes.len() as u32 {
        assert!(machine.bind(PlanStorage(storage), id(storage)));
    }
    machine.step_begin();
    assert!(machine.in_sync());
    machine
}

pub(super) fn op(machine: &mut Residency, index: u32, uses: &[OpUse], needs: u64) -> OpProgress {
    machine.op_begin(&OpBegin { index: Some(OpIndex(index)), uses, needs: Bytes(needs) })
}

pub(super) fn out(machine: &mut Residency, storage: u32) {
    assert_eq!(machine.evict(id(storage)), Ok(OpProgress::Waiting));
    perform(machine);
    assert_eq!(machine.state(id(storage)), Some(StorageState::Evicted));
}

#[test]
fn what_is_filled_is_what_the_schedule_has_at_that_place() {
    let place = (OpIndex(0), REMADE_FROM);
    let mut parts = parts(3, vec![uses(&[0], false), uses(&[2], false)], vec![]);
    parts.step.births =
        vec![ScheduledBirth { op: place.0, slot: place.1, storage: PlanStorage(1) }];
    let mut machine = planned(30, &[10], parts);
    machine.born(id(1), Bytes(0), Attributes { movable: true, birth: None });
    assert_eq!(op(&mut machine, 0, &[reads(0)], 0), OpProgress::Ready);
    assert_eq!(machine.resized(id(1), Bytes(10)), Ok(()));
    machine.filled(id(1), (place.0, REMADE_FROM + 1));
    assert_eq!(machine.planned_as(id(1)), None);
    machine.filled(id(1), place);
    assert_eq!(machine.planned_as(id(1)), Some(PlanStorage(1)));
}

#[test]
fn moves_begin_at_their_start_and_a_right_plan_never_waits() {
    // Three globals of which two fit; each is used by two ops in turn.
    let moves = vec![
        row(0, MigrationDirection::Out, 2, 4),
        row(2, MigrationDirection::In, 3, 4),
        row(1, MigrationDirection::Out, 4, 0),
        row(0, MigrationDirection::In, 5, 0),
        row(2, MigrationDirection::Out, 0, 2),
        row(1, MigrationDirection::In, 1, 2),
    ];
    let uses = vec![uses(&[0, 1], true), uses(&[2, 3], true), uses(&[4, 5], true)];
    let mut machine = planned(20, &[10, 10, 10], parts(6, uses, moves));
    assert_eq!(machine.settle(), OpProgress::Waiting);
    perform(&mut machine);
    assert_eq!(machine.resume(), OpProgress::Ready);
    for step in 0..3 {
        for index in 0..6 {
            assert!(machine.expect(OpIndex(index), u64::from(index)));
            let progress = op(&mut machine, index, &[reads(index / 2)], 0);
            assert!(progress == OpProgress::Ready || step == 0, "step {step} op {index}");
            while machine.resume() == OpProgress::Waiting {
                perform(&mut machine);
            }
            perform(&mut machine);
            machine.op_end();
        }
        machine.step_end();
        assert_eq!(machine.desync(), None);
        machine.step_begin();
    }
    let stats = machine.stats();
    assert!(stats.evictions_planned >= 6, "{stats:?}");
    assert!(stats.fetches_ahead >= 6, "{stats:?}");
    // Nothing was modified: each storage was written once at most.
    assert!(stats.bytes_written <= Bytes(30), "{stats:?}");
}

#[test]
fn evictions_that_an_op_uses_are_passed_over() {
    let moves = vec![row(0, MigrationDirection::Out, 1, 3)];
    let mut machine = planned(20, &[10], parts(4, vec![uses(&[0, 1, 3], true)], moves));
    assert_eq!(op(&mut machine, 0, &[reads(0)], 0), OpProgress::Ready);
    assert_eq!(op(&mut machine, 1, &[reads(0)], 0), OpProgress::Ready);
    assert_eq!(actions(&mut machine), []);
}

#[test]
fn an_op_waits_for_an_eviction_that_is_awaited_though_it_has_room() {
    for (start, awaited, reader) in [(1, true, 1), (0, true, 1), (1, false, 1), (1, true, 0)] {
        let evicted = Migration { awaited, ..row(0, MigrationDirection::Out, start, 1) };
        let all = vec![uses(&[3], true), uses(&[1], true)];
        let mut machine = planned(30, &[10, 10], parts(4, all, vec![evicted]));
        assert_eq!(op(&mut machine, 0, &[], 0), OpProgress::Ready, "its deadline is not yet");
        machine.op_end();
        // An op that reads it keeps it: then nothing leaves that could be waited for.
        let waits = awaited && reader == 1;
        let expected = if waits { OpProgress::Waiting } else { OpProgress::Ready };
        assert_eq!(op(&mut machine, 1, &[reads(reader)], 0), expected, "{start} {awaited}");
        perform(&mut machine);
        assert_eq!(machine.resume(), OpProgress::Ready);
        machine.op_end();
        let out = machine.state(id(0)) == Some(StorageState::Evicted);
        assert_eq!(out, reader == 1);
        assert_eq!(op(&mut machine, 2, &[], 0), OpProgress::Ready, "that is over");
    }
}

#[test]
fn without_room_the_furthest_next_use_leaves() {
    // Used last at the same time; next uses at 5, 9 and, in the next step, 1.
    let uses = vec![uses(&[0, 5], true), uses(&[0, 9], true), uses(&[0, 1], true)];
    let mut machine = planned(30, &[10, 10, 10], parts(10, uses, vec![]));
    assert_eq!(op(&mut machine, 0, &[reads(0), reads(1), reads(2)], 0), OpProgress::Ready);
    assert_eq!(op(&mut machine, 1, &[reads(2)], 0), OpProgress::Ready);
    machine.op_end();
    let mut left = Vec::new();
    for needs in [10, 20, 30] {
        let _ = op(&mut machine, 2, &[], needs);
        for action in actions(&mut machine) {
            if let ResidencyAction::Evict { storage, transfer, .. } = action {
                left.push(storage.0);
                machine.completed(transfer, MigrationOutcome::Done);
            }
        }
        assert_eq!(machine.resume(), OpProgress::Ready);
        machine.op_end();
    }
    assert_eq!(left, [2, 1, 0]);
}

#[test]
fn a_prefetch_waits_for_room_and_the_earliest_deadline_goes_first() {
    let moves = vec![row(0, MigrationDirection::In, 0, 6), row(1, MigrationDirection::In, 0, 3)];
    let all = vec![uses(&[6], true), uses(&[3], true), uses(&[0, 7], true)];
    let mut machine = planned(30, &[10, 10, 10], parts(8, all, moves));
    out(&mut machine, 0);
    out(&mut machine, 1);
    assert_eq!(op(&mut machine, 0, &[reads(2)], 15), OpProgress::Ready);
    assert_eq!(actions(&mut machine), [], "the outputs' room is not a prefetch's");
    machine.born(id(3), Bytes(5), Attributes::default());
    machine.op_end();
    let taken = actions(&mut machine);
    assert!(
        matches!(
            taken[..],
            [ResidencyAction::Fetch { storage: StorageId(1), urgency: FetchUrgency::Ahead, .. }]
        ),
        "{taken:?}"
    );
    machine.died(id(3));
    machine.completed(begun(&taken)[0], MigrationOutcome::Done);
    let taken = actions(&mut machine);
    assert!(
        matches!(taken[..], [ResidencyAction::Fetch { storage: StorageId(0), .. }]),
        "{taken:?}"
    );
}

#[test]
fn a_prefetch_yields_to_an_op_and_is_tried_again() {
    let mut parts = parts(
        12,
        vec![uses(&[11], true), uses(&[1, 2, 3], true)],
        vec![row(0, MigrationDirection::In, 0, 11)],
    );
    parts.step.needs[2] = Bytes(20);
    let mut machine = planned(30, &[20, 10], parts);
    out(&mut machine, 0);
    assert_eq!(op(&mut machine, 0, &[], 0), OpProgress::Ready);
    let fetch = begun(&actions(&mut machine))[0];
    assert_eq!(machine.state(id(0)), Some(StorageState::Fetching));
    assert_eq!(op(&mut machine, 1, &[reads(1)], 20), OpProgress::Waiting);
    assert_eq!(actions(&mut machine), [ResidencyAction::Cancel { transfer: fetch }]);
    machine.completed(fetch, MigrationOutcome::Cancelled);
    assert_eq!(machine.resume(), OpProgress::Ready);
    assert_eq!(actions(&mut machine), [ResidencyAction::Release { storage: id(0) }]);
    // Once bitten: not again while an op close ahead needs the room.
    machine.op_end();
    assert_eq!(actions(&mut machine), []);
    for index in 2..12 {
        let needs = if index == 2 { 20 } else { 0 };
        assert_eq!(op(&mut machine, index, &[], needs), OpProgress::Ready);
        machine.op_end();
    }
    // The next step's op 2 is close ahead too: so it is the op itself that brings it back.
    assert_eq!(op(&mut machine, 11, &[reads(0)], 0), OpProgress::Waiting);
    assert_eq!(machine.stats().fetches_yielded, 1);
}

#[test]
fn a_prefetch_that_arrives_after_it_had_to_yield_leaves_at_once_and_unchecked() {
    let moves = vec![row(0, MigrationDirection::In, 1, 11)];
    let all = vec![uses(&[11], true), uses(&[0, 1, 2, 3], true)];
    let mut machine = planned(30, &[20, 10], parts(12, all, moves));
    // It left as a victim, so that only the fetch itself can make it one again.
    assert_eq!(op(&mut machine, 0, &[reads(1)], 20), OpProgress::Waiting);
    perform(&mut machine);
    assert_eq!(machine.resume(), OpProgress::Ready);
    machine.op_end();
    assert_eq!(op(&mut machine, 1, &[reads(1)], 0), OpProgress::Ready);
    perform_none_of(&mut machine);
    assert_eq!(op(&mut machine, 2, &[reads(1)], 20), OpProgress::Waiting);
    let taken = actions(&mut machine);
    let [ResidencyAction::Cancel { transfer }] = taken[..] else { panic!("{taken:?}") };
    machine.completed(transfer, MigrationOutcome::Done);
    assert_eq!(machine.resume(), OpProgress::Ready);
    assert_eq!(actions(&mut machine), [ResidencyAction::Release { storage: id(0) }]);
}

/// Takes the actions and leaves their transfers in flight.
fn perform_none_of(machine: &mut Residency) {
    assert!(!actions(machine).is_empty());
}

#[test]
fn a_prefetch_whose_deadline_passed_is_not_begun() {
    let moves = vec![row(0, MigrationDirection::In, 0, 1)];
    let mut machine = planned(30, &[20], parts(12, vec![uses(&[1, 9], true)], moves));
    out(&mut machine, 0);
    assert_eq!(op(&mut machine, 0, &[], 15), OpProgress::Ready);
    machine.born(id(1), Bytes(15), Attributes::default());
    assert_eq!(op(&mut machine, 2, &[], 0), OpProgress::Ready);
    machine.died(id(1));
    machine.op_end();
    assert_eq!(actions(&mut machine), []);
}

#[test]
fn an_op_that_reaches_its_prefetch_in_flight_hurries_it() {
    let moves = vec![row(0, MigrationDirection::In, 0, 2)];
    let mut machine = planned(30, &[10], parts(4, vec![uses(&[2], true)], moves));
    out(&mut machine, 0);
    assert_eq!(op(&mut machine, 0, &[], 0), OpProgress::Ready);
    let fetch = begun(&actions(&mut machine))[0];
    assert_eq!(op(&mut machine, 2, &[reads(0)], 0), OpProgress::Waiting);
    assert_eq!(actions(&mut machine), [ResidencyAction::Expedite { transfer: fetch }]);
    machine.completed(fetch, MigrationOutcome::Done);
    assert_eq!(machine.resume(), OpProgress::Ready);
    assert_eq!((machine.stats().fetches_late, machine.stats().stalls), (1, 1));
}

#[test]
fn a_prefetch_of_what_is_still_leaving_keeps_it() {
    let moves = vec![row(0, MigrationDirection::Out, 1, 3), row(0, MigrationDirection::In, 2, 3)];
    let mut machine = planned(30, &[10], parts(4, vec![uses(&[0, 3], true)], moves));
    assert_eq!(op(&mut machine, 1, &[], 0), OpProgress::Ready);
    let evict = begun(&actions(&mut machine))[0];
    assert_eq!(op(&mut machine, 2, &[], 0), OpProgress::Ready);
    machine.completed(evict, MigrationOutcome::Done);
    assert_eq!(machine.state(id(0)), Some(StorageState::Resident { clean: true }));
    assert_eq!(actions(&mut machine), []);
}

#[test]
fn births_are_bound_by_op_and_slot() {
    let mut parts = parts(4, vec![uses(&[3], false)], vec![row(0, MigrationDirection::Out, 1, 3)]);
    let (op_zero, storage) = (OpIndex(0), PlanStorage(0));
    parts.step.births = vec![ScheduledBirth { op: op_zero, slot: 1, storage }];
    let mut machine = planned(30, &[], parts);
    for round in 0..2 {
        assert_eq!(op(&mut machine, 0, &[], 20), OpProgress::Ready);
        for slot in [0, 1] {
            let attributes = Attributes { movable: true, birth: Some((op_zero, slot)) };
            assert!(machine.born(id(u32::from(slot)), Bytes(10), attributes));
        }
        machine.op_end();
        assert_eq!(op(&mut machine, 1, &[], 0), OpProgress::Ready);
        let taken = actions(&mut machine);
        let moved: Vec<_> =
            taken.iter().filter(|action| matches!(action, ResidencyAction::Evict { .. })).collect();
        assert!(
            matches!(moved[..], [ResidencyAction::Evict { storage: StorageId(1), .. }]),
            "round {round}: {taken:?}"
        );
        machine.completed(begun(&taken)[0], MigrationOutcome::Done);
        machine.died(id(0));
        machine.died(id(1));
        machine.step_begin();
    }
}

#[test]
fn outputs_get_the_room_the_schedule_expects_and_a_wrong_expectation_refuses_nothing() {
    let mut parts = parts(3, vec![uses(&[0], true), uses(&[1], true)], vec![]);
    parts.step.needs = vec![Bytes(0), Bytes(10), Bytes(1_000)];
    let mut machine = planned(20, &[10, 10], parts);
    assert_eq!(op(&mut machine, 0, &[reads(0)], 0), OpProgress::Ready);
    assert_eq!(op(&mut machine, 1, &[reads(1)], 0), OpProgress::Waiting);
    perform(&mut machine);
    assert_eq!(machine.resume(), OpProgress::Ready);
    assert_eq!(machine.committed(), Bytes(10));
    assert_eq!(op(&mut machine, 2, &[reads(1)], 10), OpProgress::Ready);
}

#[test]
fn another_op_ends_the_plan_for_the_rest_of_the_step_and_is_told_once() {
    let moves = vec![row(0, MigrationDirection::Out, 1, 3), row(1, MigrationDirection::Out, 2, 3)];
    let all = vec![uses(&[0], true), uses(&[0], true)];
    let mut machine = planned(30, &[10, 10], parts(4, all, moves));
    assert!(machine.expect(OpIndex(0), 0));
    assert_eq!(op(&mut machine, 0, &[reads(0), reads(1)], 0), OpProgress::Ready);
    assert!(machine.expect(OpIndex(1), 1));
    assert_eq!(op(&mut machine, 1, &[], 0), OpProgress::Ready);
    assert_eq!(begun(&actions(&mut machine)).len(), 1);
    assert!(!machine.expect(OpIndex(2), 77));
    assert!(!machine.expect(OpIndex(3), 78));
    assert_eq!(op(&mut machine, 2, &[], 0), OpProgress::Ready);
    assert_eq!(actions(&mut machine), []);
    let told = machine.desync().expect("told");
    assert_eq!(told, Desync::OtherOp { op: OpIndex(2), expected: 2, found: 77 });
    assert_eq!(machine.desync(), None);
    machine.step_end();
    assert_eq!(machine.desync(), None, "a step that was astray already does not end early");
    machine.step_begin();
    assert!(machine.in_sync());
}

#[test]
fn steps_that_are_longer_or_shorter_are_noticed() {
    let mut machine = planned(30, &[10], parts(2, vec![uses(&[0], true)], vec![]));
    for index in 0..2 {
        assert!(machine.expect(OpIndex(index), u64::from(index)));
    }
    assert!(!machine.expect(OpIndex(2), 2));
    assert_eq!(machine.desync(), Some(Desync::Longer { planned: 2 }));
    machine.step_end();
    machine.step_begin();
    assert!(machine.expect(OpIndex(0), 0));
    machine.step_end();
    assert_eq!(machine.desync(), Some(Desync::Shorter { ops: 1, planned: 2 }));
    machine.step_begin();
    assert_eq!(op(&mut machine, 5, &[], 0), OpProgress::Ready);
    assert_eq!(machine.desync(), Some(Desync::Longer { planned: 2 }));
    machine.clear_schedule("the model changed");
    let told = machine.desync().expect("told").to_string();
    assert!(told.contains("the model changed"), "{told}");
    assert!(!machine.expect(OpIndex(0), 0));
}

#[test]
fn next_uses_wrap_for_what_lives_on_and_end_for_what_does_not() {
    let all = vec![uses(&[2, 5], true), uses(&[3, 11], false), uses(&[], true)];
    let schedule = parts(8, all, vec![]).schedule().expect("it is well formed");
    let next =
        |storage: u32, birth, now| schedule.step().next_use(PlanStorage(storage), birth, now);
    assert_eq!(next(0, 0, 7), Some(8 + 2));
    assert_eq!(next(0, 0, 8 + 2), Some(8 + 5));
    assert_eq!(next(0, 0, 8 + 5), Some(16 + 2));
    assert_eq!(next(1, 8, 8 + 3), Some(8 + 11));
    assert_eq!(next(1, 8, 8 + 11), None);
    assert_eq!(next(2, 0, 0), None);
    assert_eq!(next(9, 0, 0), None);
}

#[test]
fn malformed_schedules_are_refused_with_the_place() {
    let good = || parts(4, vec![uses(&[0, 3], true), uses(&[1, 6], false)], vec![]);
    assert!(good().schedule().is_ok());
    let refused = |spoil: &dyn Fn(&mut Parts)| {
        let mut parts = good();
        spoil(&mut parts);
        parts.schedule().expect_err("it is malformed")
    };
    let storage = PlanStorage(7);
    assert_eq!(refused(&|parts| *parts = Parts::default()), ScheduleError::Empty);
    let counts = ScheduleError::OpCount { fingerprints: 4, needs: 3 };
    assert_eq!(refused(&|parts| parts.step.needs.truncate(3)), counts);
    let unknown = ScheduleError::UnknownStorage { what: "a move", storage, storages: 2 };
    assert_eq!(refused(&|parts| parts.moves.push(row(7, MigrationDirection::Out, 0, 1))), unknown);
    let unknown = ScheduleError::UnknownStorage { what: "a name", storage, storages: 2 };
    assert_eq!(refused(&|parts| parts.step.names.push(("w".to_owned(), storage))), unknown);
    for (start, deadline) in [(4, 0), (0, 4)] {
        let error =
            refused(&|parts| parts.moves.push(row(0, MigrationDirection::Out, start, deadline)));
        assert!(matches!(error, ScheduleError::OpOutOfRange { op: OpIndex(4), .. }), "{error}");
    }
    let late = refused(&|parts| parts.step.uses[1].ops.push(OpIndex(8)));
    assert!(matches!(late, ScheduleError::OpOutOfRange { op: OpIndex(8), .. }), "{late}");
    let late = refused(&|parts| parts.step.uses[0].ops.push(OpIndex(4)));
    assert!(matches!(late, ScheduleError::OpOutOfRange { op: OpIndex(4), .. }), "{late}");
    let unsorted = refused(&|parts| parts.step.uses[0].ops.push(OpIndex(3)));
    assert!(matches!(unsorted, ScheduleError::Unsorted { op: OpIndex(3), .. }), "{unsorted}");
    let birth = ScheduledBirth { op: OpIndex(1), slot: 2, storage: PlanStorage(0) };
    let twice = refused(&|parts| parts.step.births = vec![birth, birth]);
    assert_eq!(twice, ScheduleError::AmbiguousBirth { op: OpIndex(1), slot: 2 });
    let name = || ("w".to_owned(), PlanStorage(0));
    let twice = refused(&|parts| parts.step.names = vec![name(), name()]);
    assert_eq!(twice, ScheduleError::AmbiguousName("w".to_owned()));
}

#[test]
fn another_plan_of_the_same_steps_takes_over_between_two_of_them() {
    let once = || vec![uses(&[0], true), uses(&[1], true)];
    let early = vec![row(0, MigrationDirection::Out, 1, 0), row(0, MigrationDirection::In, 1, 0)];
    let mut machine = planned(20, &[10, 10], parts(2, once(), early));
    out(&mut machine, 0);
    assert_eq!(op(&mut machine, 1, &[reads(1)], 0), OpProgress::Ready);
    machine.step_end();

    let other = parts(2, vec![uses(&[0], true), uses(&[0, 1], true)], vec![]).schedule();
    assert!(!machine.exchange_schedule(other.unwrap()), "other steps");
    let later = vec![row(1, MigrationDirection::Out, 0, 1)];
    let later = parts(2, once(), later).schedule().unwrap();
    assert!(machine.exchange_schedule(later));
    machine.step_begin();
    assert!(machine.in_sync());
    assert_eq!(op(&mut machine, 0, &[reads(0)], 0), OpProgress::Waiting, "it was out");
    perform(&mut machine);
    assert_eq!(machine.resume(), OpProgress::Ready);
    let left = machine.state(id(1));
    assert_eq!(
        left,
        Some(StorageState::Evicted),
        "storages are known by the numbers of the plan before"
    );
}

/// A storage that op 0 writes, that a row cleans from op 1 on, op 2 uses, and that leaves at op 3.
fn cleaned() -> Residency {
    let clean = Migration { stays: true, ..row(0, MigrationDirection::Out, 1, 2) };
    let leaves = row(0, MigrationDirection::Out, 3, 5);
    let mut machine =
        planned(20, &[10], parts(6, vec![uses(&[0, 2, 5], true)], vec![leaves, clean]));
    assert_eq!(op(&mut machine, 0, &[writes(0)], 0), OpProgress::Ready);
    machine.op_end();
    assert_eq!(op(&mut machine, 1, &[], 0), OpProgress::Ready);
    machine.op_end();
    assert_eq!(machine.stats().cleanings, 1);
    machine
}

#[test]
fn what_a_row_cleans_stays_and_leaves_later_without_a_write() {
    let mut machine = cleaned();
    assert_eq!((machine.departing(), machine.committed()), (Bytes(0), Bytes(10)));
    assert_eq!(machine.state(id(0)), Some(StorageState::Evicting));
    assert_eq!(op(&mut machine, 2, &[reads(0)], 0), OpProgress::Ready, "it may be read meanwhile");
    machine.op_end();
    perform(&mut machine);
    assert_eq!(machine.state(id(0)), Some(StorageState::Resident { clean: true }));
    assert_eq!((machine.stats().releases, machine.stats().bytes_written), (0, Bytes(10)));
    assert_eq!(op(&mut machine, 3, &[], 0), OpProgress::Ready);
    let last = machine.transfers_begun - 1;
    assert_eq!(actions(&mut machine), [evict(0, last, CopyKind::Verify)]);
    machine.completed(TransferId(last), MigrationOutcome::Matched);
    assert_eq!(machine.state(id(0)), Some(StorageState::Evicted));
    assert_eq!(machine.stats().bytes_written, Bytes(10));
}

#[test]
fn a_later_write_makes_the_copy_of_what_stays_stale() {
    for is_complete in [true, false] {
        let mut machine = cleaned();
        if is_complete {
            perform(&mut machine);
        }
        let taken = begun(&actions(&mut machine));
        let progress = op(&mut machine, 2, &[writes(0)], 0);
        // One that is under way has to stop first.
        let waits = if is_complete { OpProgress::Ready } else { OpProgress::Waiting };
        assert_eq!(progress, waits);
        for transfer in taken {
            machine.completed(transfer, MigrationOutcome::Cancelled);
        }
        perform(&mut machine);
        assert_eq!(machine.resume(), OpProgress::Ready);
        machine.op_end();
        assert_eq!(machine.state(id(0)), Some(StorageState::Resident { clean: false }));
        assert_eq!(op(&mut machine, 3, &[], 0), OpProgress::Ready);
        let last = machine.transfers_begun - 1;
        let begins = actions(&mut machine);
        assert!(begins.contains(&evict(0, last, CopyKind::Write)), "{begins:?}");
    }
}

#[test]
fn a_storage_that_leaves_while_it_is_cleaned_is_written_once() {
    let mut machine = cleaned();
    assert_eq!(op(&mut machine, 3, &[], 0), OpProgress::Ready);
    perform(&mut machine);
    assert_eq!(machine.state(id(0)), Some(StorageState::Evicted));
    assert_eq!(machine.stats().bytes_written, Bytes(10));
}

#[test]
fn what_cannot_be_cleaned_is_passed_over() {
    // It is used by that op, or has a copy already.
    let clean = |start| Migration { stays: true, ..row(0, MigrationDirection::Out, start, 3) };
    let all = vec![uses(&[0, 1], true)];
    let mut machine = planned(20, &[10], parts(4, all, vec![clean(1), clean(2), clean(3)]));
    for (index, begun) in [(0, 0), (1, 0), (2, 1), (3, 1)] {
        let used: &[OpUse] = if index < 2 { &[writes(0)] } else { &[] };
        assert_eq!(op(&mut machine, index, used, 0), OpProgress::Ready);
        perform(&mut machine);
        machine.op_end();
        assert_eq!(machine.stats().cleanings, begun, "op {index}");
    }
}
