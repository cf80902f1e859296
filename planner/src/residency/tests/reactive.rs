//! Case by case, without a schedule.

use super::*;

#[test]
fn an_op_with_everything_at_hand_needs_nothing() {
    let mut machine = machine(30);
    populate(&mut machine, &[10, 10]);
    assert_eq!(begin(&mut machine, &[reads(0), writes(1)], 10), OpProgress::Ready);
    assert_eq!(actions(&mut machine), []);
}

#[test]
fn the_least_recently_used_makes_room_and_comes_back_when_touched() {
    let mut machine = machine(30);
    populate(&mut machine, &[10, 10, 10]);
    for storage in [1, 0, 2] {
        assert_eq!(begin(&mut machine, &[reads(storage)], 0), OpProgress::Ready);
        machine.op_end();
    }
    assert_eq!(begin(&mut machine, &[reads(2)], 10), OpProgress::Waiting);
    assert_eq!(actions(&mut machine), [evict(1, 0, CopyKind::Write)]);
    assert_eq!(machine.committed(), Bytes(30));
    machine.completed(TransferId(0), MigrationOutcome::Done);
    assert_eq!(machine.resume(), OpProgress::Ready);
    assert_eq!(actions(&mut machine), [ResidencyAction::Release { storage: id(1) }]);
    assert_eq!(machine.committed(), Bytes(20));
    machine.op_end();
    assert_eq!(begin(&mut machine, &[reads(1)], 0), OpProgress::Waiting);
    assert_eq!(actions(&mut machine), [fetch(1, 1)]);
    assert_eq!(machine.committed(), Bytes(30));
    machine.completed(TransferId(1), MigrationOutcome::Done);
    assert_eq!(machine.resume(), OpProgress::Ready);
    assert_eq!(machine.stats().stalls, 2);
}

#[test]
fn a_clean_storage_is_checked_and_not_written_again() {
    let mut machine = first_one_out(true);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    assert_eq!(actions(&mut machine), [evict(0, 2, CopyKind::Verify)]);
    machine.completed(TransferId(2), MigrationOutcome::Matched);
    assert_eq!(machine.resume(), OpProgress::Ready);
    assert_eq!(actions(&mut machine), [ResidencyAction::Release { storage: id(0) }]);
    assert_eq!(machine.stats().verify_hits, 1);
    assert_eq!(machine.stats().bytes_written, Bytes(10));
}

#[test]
fn what_the_caller_has_written_leaves_without_a_write_until_it_is_modified() {
    let mut machine = machine(30);
    populate(&mut machine, &[10, 10, 10]);
    assert_eq!(machine.copy_in_log(id(0)), CopyInLog::NotYet);
    let copy = |machine: &mut Residency, storage| {
        machine.begin_copy(id(storage)) && machine.adopt_copy(id(storage))
    };
    assert!(!machine.adopt_copy(id(0)), "nobody has begun");
    assert!(copy(&mut machine, 0) && copy(&mut machine, 1));
    assert_eq!(machine.copy_in_log(id(0)), CopyInLog::InMemory);
    assert!(!copy(&mut machine, 0), "it has one");
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    assert_eq!(actions(&mut machine), [evict(0, 0, CopyKind::Verify)]);
    machine.completed(TransferId(0), MigrationOutcome::Matched);
    assert_eq!(machine.resume(), OpProgress::Ready);
    assert_eq!(actions(&mut machine), [ResidencyAction::Release { storage: id(0) }]);
    assert_eq!((machine.copy_in_log(id(0)), copy(&mut machine, 0)), (CopyInLog::Out, false));
    machine.modified(id(1)).unwrap();
    assert_eq!(actions(&mut machine), [forget(1)]);
    assert_eq!(machine.copy_in_log(id(1)), CopyInLog::NotYet);
    // What somebody may change unseen, or an op is changing, has no copy.
    machine.pin(id(1));
    assert_eq!((machine.copy_in_log(id(1)), copy(&mut machine, 1)), (CopyInLog::Not, false));
    assert_eq!(begin(&mut machine, &[writes(2)], 0), OpProgress::Ready);
    assert_eq!((machine.copy_in_log(id(2)), copy(&mut machine, 2)), (CopyInLog::Not, false));
    machine.op_end();
    assert!(machine.begin_copy(id(2)));
    machine.modified(id(2)).unwrap();
    assert!(!machine.adopt_copy(id(2)), "it has changed meanwhile");
    assert!(copy(&mut machine, 2));
    assert_eq!(machine.copy_in_log(id(7)), CopyInLog::Not);
}

#[test]
fn among_equals_the_one_with_a_copy_leaves() {
    for clean in [0, 1, 2] {
        let mut machine = machine(30);
        populate(&mut machine, &[10, 10, 10]);
        assert_eq!(machine.evict(id(clean)), Ok(OpProgress::Waiting));
        perform(&mut machine);
        let uses = [reads(0), reads(1), reads(2)];
        assert_eq!(begin(&mut machine, &uses, 0), OpProgress::Waiting);
        perform(&mut machine);
        assert_eq!(machine.resume(), OpProgress::Ready);
        machine.op_end();
        assert_eq!(begin(&mut machine, &[], 10), OpProgress::Waiting);
        assert_eq!(actions(&mut machine), [evict(clean, 2, CopyKind::Verify)]);
    }
}

#[test]
fn a_check_that_differs_turns_into_a_write() {
    let mut machine = first_one_out(true);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    actions(&mut machine);
    machine.completed(TransferId(2), MigrationOutcome::Differs);
    assert_eq!(machine.resume(), OpProgress::Waiting);
    let expected = [forget(0), evict(0, 3, CopyKind::Write)];
    assert_eq!(actions(&mut machine), expected);
    machine.completed(TransferId(3), MigrationOutcome::Done);
    assert_eq!(machine.state(id(0)), Some(StorageState::Evicted));
}

#[test]
fn what_was_written_is_checked_again_before_its_memory_goes() {
    let mut machine = Residency::new(Config { recheck: true, ..machine(20).config });
    populate(&mut machine, &[10]);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    assert_eq!(actions(&mut machine), [evict(0, 0, CopyKind::Write)]);
    // A kernel that nobody reported wrote it meanwhile: what was written is obsolete.
    machine.completed(TransferId(0), MigrationOutcome::Done);
    assert_eq!(actions(&mut machine), [evict(0, 1, CopyKind::Recheck)]);
    machine.completed(TransferId(1), MigrationOutcome::Differs);
    assert_eq!(actions(&mut machine), [forget(0), evict(0, 2, CopyKind::Write)]);
    machine.completed(TransferId(2), MigrationOutcome::Done);
    assert_eq!(actions(&mut machine), [evict(0, 3, CopyKind::Recheck)]);
    machine.completed(TransferId(3), MigrationOutcome::Matched);
    assert_eq!(actions(&mut machine), [ResidencyAction::Release { storage: id(0) }]);
    let stats = machine.stats();
    assert_eq!([stats.verify_hits, stats.verify_misses, stats.releases], [0, 1, 1]);

    // A clean copy is checked once.
    assert_eq!(begin(&mut machine, &[reads(0)], 0), OpProgress::Waiting);
    perform(&mut machine);
    assert_eq!(machine.resume(), OpProgress::Ready);
    machine.op_end();
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    assert_eq!(actions(&mut machine), [evict(0, 5, CopyKind::Verify)]);
    machine.completed(TransferId(5), MigrationOutcome::Matched);
    assert_eq!(actions(&mut machine), [ResidencyAction::Release { storage: id(0) }]);
}

#[test]
fn an_op_is_not_refused_for_what_a_transfer_keeps_alive() {
    for dies in [true, false] {
        let mut machine = machine(30);
        populate(&mut machine, &[10, 10, 10]);
        assert_eq!(machine.evict(id(2)), Ok(OpProgress::Waiting));
        machine.pin(id(2)); // an alias came while it was being written: it stays
        assert_eq!(begin(&mut machine, &[reads(0)], 20), OpProgress::Waiting);
        perform(&mut machine);
        if dies {
            machine.died(id(2));
            assert_eq!(machine.resume(), OpProgress::Ready);
        } else {
            assert!(matches!(machine.resume(), OpProgress::Refused(_)));
        }
    }
}

#[test]
fn what_an_op_goes_on_to_use_stays_until_that_use_ends() {
    let mut machine = machine(30);
    populate(&mut machine, &[10, 10, 10]);
    assert_eq!(begin(&mut machine, &[writes(0), writes(1)], 0), OpProgress::Ready);
    machine.async_use_begins(id(0));
    machine.async_use_begins(id(1));
    machine.op_end();
    assert_eq!(machine.evict(id(0)), Err(EvictError::AsyncUse(id(0))));
    assert_eq!(begin(&mut machine, &[], 20), OpProgress::Waiting);
    assert_eq!(actions(&mut machine), [evict(2, 0, CopyKind::Write)]);
    machine.completed(TransferId(0), MigrationOutcome::Done);
    assert_eq!(machine.resume(), OpProgress::Waiting);
    assert_eq!(actions(&mut machine), [ResidencyAction::Release { storage: id(2) }]);
    machine.async_use_ends(id(0));
    assert_eq!(machine.resume(), OpProgress::Waiting);
    assert_eq!(actions(&mut machine), [evict(0, 1, CopyKind::Write)]);
    machine.completed(TransferId(1), MigrationOutcome::Done);
    assert_eq!(machine.resume(), OpProgress::Ready);
}

#[test]
fn an_op_that_an_asynchronous_use_may_wait_for_is_refused_with_figures() {
    let mut machine = machine(30);
    populate(&mut machine, &[10, 10]);
    machine.async_use_begins(id(0));
    assert_eq!(begin(&mut machine, &[reads(1)], 15), OpProgress::Waiting);
    let OpProgress::Refused(refusal) = machine.resume_or_refuse() else { panic!("not refused") };
    assert_eq!((refusal.asynchronous, refusal.uses), (Bytes(10), Bytes(10)));
    assert_eq!(refusal.smallest_budget, Bytes(42));
}

#[test]
fn a_reader_takes_what_is_being_evicted_without_waiting() {
    let mut machine = machine(20);
    populate(&mut machine, &[10, 10]);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    actions(&mut machine);
    assert_eq!(begin(&mut machine, &[reads(0)], 0), OpProgress::Ready);
    machine.op_end();
    machine.completed(TransferId(0), MigrationOutcome::Done);
    assert_eq!(machine.state(id(0)), Some(StorageState::Resident { clean: true }));
    assert_eq!(actions(&mut machine), []);
    assert_eq!(machine.stats().kept_by_reader, 1);
}

#[test]
fn what_a_reader_kept_leaves_with_the_same_transfer_when_room_is_short() {
    let mut machine = machine(20);
    populate(&mut machine, &[10, 10]);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    actions(&mut machine);
    assert_eq!(begin(&mut machine, &[reads(0)], 0), OpProgress::Ready);
    machine.op_end();
    assert_eq!(begin(&mut machine, &[reads(1)], 10), OpProgress::Waiting);
    assert_eq!(actions(&mut machine), []);
    machine.completed(TransferId(0), MigrationOutcome::Done);
    assert_eq!(machine.resume(), OpProgress::Ready);
    assert_eq!(actions(&mut machine), [ResidencyAction::Release { storage: id(0) }]);
}

#[test]
fn a_writer_waits_until_nothing_copies_its_storage() {
    for outcome in [MigrationOutcome::Cancelled, MigrationOutcome::Done] {
        let mut machine = machine(20);
        populate(&mut machine, &[10, 10]);
        assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
        actions(&mut machine);
        assert_eq!(begin(&mut machine, &[writes(0)], 0), OpProgress::Waiting);
        assert_eq!(actions(&mut machine), [ResidencyAction::Cancel { transfer: TransferId(0) }]);
        assert_eq!(machine.resume(), OpProgress::Waiting);
        assert_eq!(actions(&mut machine), []);
        machine.completed(TransferId(0), outcome.clone());
        assert_eq!(machine.resume(), OpProgress::Ready);
        // If it was too late to cancel, the log has a copy of what the op is about to change.
        let copied = outcome == MigrationOutcome::Done;
        let expected: &[ResidencyAction] = if copied { &[forget(0)] } else { &[] };
        assert_eq!(actions(&mut machine), expected);
        assert_eq!(machine.state(id(0)), Some(StorageState::Resident { clean: false }));
    }
}

#[test]
fn a_write_makes_the_copy_obsolete() {
    let mut machine = first_one_out(true);
    assert_eq!(begin(&mut machine, &[reads(0), writes(0)], 0), OpProgress::Ready);
    assert_eq!(actions(&mut machine), [forget(0)]);
}

#[test]
fn a_change_behind_an_eviction_is_not_taken_for_a_copy() {
    let mut machine = machine(20);
    populate(&mut machine, &[10, 10]);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    actions(&mut machine);
    assert_eq!(machine.modified(id(0)), Ok(()));
    assert_eq!(actions(&mut machine), [ResidencyAction::Cancel { transfer: TransferId(0) }]);
    machine.completed(TransferId(0), MigrationOutcome::Done);
    assert_eq!(actions(&mut machine), [forget(0)]);
    assert_eq!(machine.state(id(0)), Some(StorageState::Resident { clean: false }));
}

#[test]
fn what_is_out_cannot_have_changed() {
    let mut machine = first_one_out(false);
    assert_eq!(machine.modified(id(0)), Err(ProtocolError::NotResident(id(0))));
    assert_eq!(machine.resized(id(0), Bytes(4)), Err(ProtocolError::NotResident(id(0))));
    assert_eq!(machine.modified(id(9)), Err(ProtocolError::Unknown(id(9))));
    assert_eq!(machine.state(id(0)), Some(StorageState::Evicted));
}

#[test]
fn a_death_in_flight_counts_until_the_transfer_ends() {
    for outcome in [MigrationOutcome::Cancelled, MigrationOutcome::Done, failed("gone")] {
        let mut machine = machine(20);
        populate(&mut machine, &[10, 10]);
        assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
        actions(&mut machine);
        machine.died(id(0));
        machine.died(id(0));
        assert_eq!(actions(&mut machine), [ResidencyAction::Cancel { transfer: TransferId(0) }]);
        assert_eq!((machine.state(id(0)), machine.knows(id(0))), (None, true));
        assert_eq!(machine.committed(), Bytes(20));
        machine.completed(TransferId(0), outcome.clone());
        assert_eq!(machine.committed(), Bytes(10));
        let copied = outcome == MigrationOutcome::Done;
        let expected: &[ResidencyAction] = if copied { &[forget(0)] } else { &[] };
        assert_eq!(actions(&mut machine), expected);
        assert!(!machine.knows(id(0)));
        assert_eq!(machine.resume(), OpProgress::Ready);
    }
}

#[test]
fn a_death_before_the_transfer_was_taken_withdraws_it() {
    let mut machine = machine(20);
    populate(&mut machine, &[10, 10]);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    machine.died(id(0));
    assert_eq!(actions(&mut machine), []);
    assert_eq!((machine.in_flight(), machine.committed()), (0, Bytes(10)));
}

#[test]
fn a_death_leaves_nobody_to_release_and_no_copy() {
    let mut machine = machine(20);
    populate(&mut machine, &[10, 10]);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    actions(&mut machine);
    machine.completed(TransferId(0), MigrationOutcome::Done);
    machine.died(id(0));
    assert_eq!(actions(&mut machine), [forget(0)]);
}

#[test]
fn settling_brings_births_within_the_budget() {
    let mut machine = machine(20);
    populate(&mut machine, &[10, 10, 10]);
    assert_eq!(machine.committed(), Bytes(30));
    assert_eq!(machine.settle(), OpProgress::Waiting);
    assert_eq!(actions(&mut machine).len(), 1);
    machine.completed(TransferId(0), MigrationOutcome::Done);
    assert_eq!(machine.resume(), OpProgress::Ready);
    assert_eq!(machine.committed(), Bytes(20));
    machine.set_budget(Bytes(17));
    assert_eq!(machine.settle(), OpProgress::Waiting);
    perform(&mut machine);
    assert_eq!((machine.resume(), machine.committed()), (OpProgress::Ready, Bytes(10)));
    machine.pin(id(0));
    machine.pin(id(1));
    machine.pin(id(2));
    machine.set_budget(Bytes(8));
    assert!(matches!(machine.settle(), OpProgress::Refused(_)));
}

#[test]
fn headroom_is_made_while_the_op_runs() {
    let limit = Bytes(40);
    let mut machine = Residency::new(Config::new(limit, Bytes(0)));
    machine.set_headroom(Bytes(10));
    populate(&mut machine, &[10, 10, 10, 10]);
    assert_eq!(begin(&mut machine, &[reads(3)], 0), OpProgress::Ready);
    assert_eq!(begun(&actions(&mut machine)).len(), 1);
    assert_eq!(machine.departing(), Bytes(10));
    machine.op_end();
    assert_eq!(begin(&mut machine, &[reads(3)], 0), OpProgress::Ready);
    assert_eq!(actions(&mut machine), [], "what is on its way is enough");
}

#[test]
fn an_op_that_replaces_one_that_waits_takes_over_its_room() {
    let mut machine = machine(20);
    populate(&mut machine, &[10, 10, 10]);
    assert_eq!(machine.settle(), OpProgress::Waiting);
    perform(&mut machine);
    assert_eq!(machine.resume(), OpProgress::Ready);
    let out = (0..3).find(|&storage| machine.state(id(storage)) == Some(StorageState::Evicted));
    let out = out.expect("one had to leave");
    let others: Vec<OpUse> = (0..3).filter(|&storage| storage != out).map(reads).collect();
    assert_eq!(begin(&mut machine, &[reads(out)], 0), OpProgress::Waiting);
    perform(&mut machine);
    // The first op never came back: the other two are wanted instead.
    assert_eq!(begin(&mut machine, &others, 0), OpProgress::Waiting);
    perform(&mut machine);
    while machine.resume() == OpProgress::Waiting {
        perform(&mut machine);
    }
    for one in others {
        assert!(matches!(machine.state(one.storage), Some(StorageState::Resident { .. })));
    }
    assert_eq!(machine.state(id(out)), Some(StorageState::Evicted));
}

#[test]
fn pinned_and_used_storages_cannot_be_evicted() {
    let mut machine = machine(40);
    populate(&mut machine, &[10, 10]);
    machine.born(id(2), Bytes(10), Attributes { movable: false, birth: None });
    machine.pin(id(0));
    machine.pin(id(0));
    machine.unpin(id(0));
    assert_eq!(begin(&mut machine, &[reads(1)], 0), OpProgress::Ready);
    assert_eq!(machine.evict(id(0)), Err(EvictError::Pinned(id(0))));
    assert_eq!(machine.evict(id(1)), Err(EvictError::InUse(id(1))));
    assert_eq!(machine.evict(id(2)), Err(EvictError::Unmovable(id(2))));
    assert_eq!(machine.evict(id(3)), Err(EvictError::Unknown(id(3))));
    machine.unpin(id(0));
    machine.op_end();
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    assert_eq!(machine.evict(id(1)), Ok(OpProgress::Waiting));
}

#[test]
fn a_pin_keeps_what_is_being_evicted() {
    let mut machine = machine(40);
    populate(&mut machine, &[10, 10]);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    actions(&mut machine);
    machine.pin(id(0));
    machine.completed(TransferId(0), MigrationOutcome::Done);
    assert_eq!(machine.state(id(0)), Some(StorageState::Resident { clean: true }));
    assert_eq!(machine.resume(), OpProgress::Ready);
}

#[test]
fn a_resize_makes_the_copy_obsolete_and_counts_from_now_on() {
    let mut machine = first_one_out(true);
    assert_eq!(machine.resized(id(0), Bytes(10)), Ok(()));
    assert_eq!(actions(&mut machine), []);
    assert_eq!(machine.resized(id(0), Bytes(14)), Ok(()));
    assert_eq!(actions(&mut machine), [forget(0)]);
    assert_eq!(machine.committed(), Bytes(24));
    assert_eq!(machine.settle(), OpProgress::Waiting);
}

#[test]
fn a_birth_told_twice_is_one_birth() {
    let mut machine = machine(20);
    assert!(machine.born(id(0), Bytes(10), Attributes::default()));
    assert!(!machine.born(id(0), Bytes(3), Attributes::default()));
    assert_eq!(machine.committed(), Bytes(10));
    machine.died(id(0));
    machine.died(id(0));
    assert_eq!(machine.committed(), Bytes(0));
    assert_eq!(machine.stats().bytes_never_written, Bytes(10));
}

#[test]
fn what_is_suspended_is_told_and_what_others_have_is_not_given_away() {
    let mut machine = machine(30);
    populate(&mut machine, &[10, 10]);
    assert_eq!(begin(&mut machine, &[reads(0)], 10), OpProgress::Ready);
    let (pending, reserve) = (Pending::Nothing, Bytes(10));
    assert_eq!(machine.suspend(), Suspended { pending, reserve }, "the op has its room yet");
    machine.pin(id(0));
    machine.keep_for_others(reserve);
    let OpProgress::Refused(refusal) = begin(&mut machine, &[reads(1)], 10) else {
        panic!("the op around has that room");
    };
    assert_eq!((refusal.smallest_budget, refusal.others), (Bytes(47), Bytes(10)));
    assert!(refusal.to_string().contains("of an op around it"), "{refusal}");
    assert_eq!(begin(&mut machine, &[writes(1)], 0), OpProgress::Ready);
    machine.keep_for_others(Bytes(0));
    machine.go_on(reserve);
    machine.born(id(2), Bytes(10), Attributes::default());
    assert_eq!(machine.settle(), OpProgress::Ready);
    machine.set_budget(Bytes(20));
    assert_eq!(machine.settle(), OpProgress::Waiting);
    assert_eq!(machine.suspend(), Suspended { pending: Pending::Settle, reserve: Bytes(0) });
    assert_eq!((machine.pending(), machine.resume()), (Pending::Nothing, OpProgress::Ready));
}

#[test]
fn what_the_caller_is_in_the_middle_of_makes_no_room() {
    let mut machine = machine(30);
    populate(&mut machine, &[10, 10, 10]);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    assert_eq!(actions(&mut machine), [evict(0, 0, CopyKind::Write)]);
    machine.in_hand(id(0), true);
    machine.in_hand(id(2), true);
    machine.in_hand(id(7), true);
    assert_eq!(begin(&mut machine, &[], 10), OpProgress::Waiting);
    assert_eq!(actions(&mut machine), [evict(1, 1, CopyKind::Write)], "the one that can leave now");
    machine.completed(TransferId(1), MigrationOutcome::Done);
    assert_eq!(machine.resume(), OpProgress::Ready);
    machine.op_end();
    assert_eq!(actions(&mut machine), [ResidencyAction::Release { storage: id(1) }]);
    machine.in_hand(id(0), false);
    machine.in_hand(id(2), false);
    assert_eq!(begin(&mut machine, &[], 30), OpProgress::Waiting);
    assert_eq!(actions(&mut machine), [evict(2, 2, CopyKind::Write)], "both leave as ever");
}

#[test]
fn in_a_pause_all_is_out_that_can_leave_and_nothing_comes_back() {
    let mut machine = machine(40);
    populate(&mut machine, &[10, 10, 10, 10]);
    machine.pin(id(3));
    assert_eq!(begin(&mut machine, &[reads(0), writes(1)], 0), OpProgress::Ready);
    machine.async_use_begins(id(2));
    assert_eq!(machine.pause(), Err(EvictError::AsyncUse(id(2))));
    assert!(!machine.is_paused(), "a collective may write it");
    machine.async_use_ends(id(2));
    assert_eq!(machine.pause(), Ok(()));
    assert_eq!(machine.settle(), OpProgress::Waiting);
    let left = actions(&mut machine);
    assert_eq!(left.len(), 3, "the pin stays: {left:?}");
    for transfer in 0..3 {
        machine.completed(TransferId(transfer), MigrationOutcome::Done);
    }
    assert_eq!(machine.resume(), OpProgress::Ready);
    assert_eq!((machine.committed(), machine.evicted()), (Bytes(10), Bytes(30)));
    assert_eq!(machine.pause(), Ok(()), "asked for again");
    assert_eq!(machine.settle(), OpProgress::Ready);
    actions(&mut machine);
    assert_eq!(machine.go_on_after_pause(), (0..4).map(id).collect::<Vec<_>>());
    assert_eq!(machine.settle(), OpProgress::Ready);
    assert_eq!(actions(&mut machine), [], "nobody has asked for anything");
    assert_eq!(begin(&mut machine, &[reads(0)], 0), OpProgress::Waiting);
    assert_eq!(machine.go_on_after_pause(), []);
}

#[test]
fn what_could_not_be_written_is_tried_again_in_a_pause() {
    let mut machine = machine(20);
    populate(&mut machine, &[10, 10]);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    let failed = FailureInfo { message: "no".into() };
    machine.completed(TransferId(0), MigrationOutcome::Failed(failed.clone()));
    assert!(matches!(machine.resume(), OpProgress::Failed(_)));
    assert_eq!(machine.pause(), Ok(()));
    assert_eq!(machine.settle(), OpProgress::Waiting);
    machine.completed(TransferId(1), MigrationOutcome::Failed(failed));
    machine.completed(TransferId(2), MigrationOutcome::Done);
    assert!(matches!(machine.resume(), OpProgress::Failed(_)), "the pause has failed");
    machine.go_on_after_pause();
    assert_eq!(machine.settle(), OpProgress::Ready);
}
