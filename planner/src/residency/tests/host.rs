//! Case by case: host memory as a tier in front of the log.

use super::planned::{op, out, parts, planned, uses};
use super::*;
use crate::trace::PlanStorage;
use crate::units::OpIndex;
use std::sync::Arc;

/// Room for `limit` bytes, and for `host_memory` bytes of copies; storages of 10 bytes each.
fn tiered(limit: u64, host_memory: u64, storages: usize) -> Residency {
    let host_memory = Bytes(host_memory);
    let mut machine = Residency::new(Config { host_memory, ..machine(limit).config });
    populate(&mut machine, &vec![10; storages]);
    machine
}

/// Returns the destinations of the evictions among these actions.
fn sent(actions: &[ResidencyAction]) -> Vec<(u32, CopyKind, Target)> {
    let evictions = actions.iter().filter_map(|action| match *action {
        ResidencyAction::Evict { storage, copy, target, .. } => Some((storage.0, copy, target)),
        _ => None,
    });
    evictions.collect()
}

/// Brings a storage back and ends the op that read it.
fn back(machine: &mut Residency, storage: u32) {
    assert_eq!(begin(machine, &[reads(storage)], 0), OpProgress::Waiting);
    perform(machine);
    assert_eq!(machine.resume(), OpProgress::Ready);
    machine.op_end();
}

#[test]
fn what_does_not_fit_into_host_memory_goes_to_the_log() {
    let mut machine = tiered(40, 25, 4);
    for (storage, target) in [Target::Host, Target::Host, Target::Ssd].into_iter().enumerate() {
        let storage = storage as u32;
        assert_eq!(machine.evict(id(storage)), Ok(OpProgress::Waiting));
        let taken = actions(&mut machine);
        assert_eq!(sent(&taken), [(storage, CopyKind::Write, target)]);
        machine.completed(begun(&taken)[0], MigrationOutcome::Done);
        assert_eq!(machine.resume(), OpProgress::Ready);
    }
    assert_eq!((machine.hosted(), machine.host_peak()), (Bytes(20), Bytes(20)));
    actions(&mut machine);
    // And each comes back from where it is.
    assert_eq!(begin(&mut machine, &[reads(1), reads(2)], 0), OpProgress::Waiting);
    let fetched: Vec<Target> = actions(&mut machine)
        .iter()
        .filter_map(|action| match action {
            ResidencyAction::Fetch { target, .. } => Some(*target),
            _ => None,
        })
        .collect();
    assert_eq!(fetched, [Target::Host, Target::Ssd]);
    let stats = machine.stats();
    assert_eq!((stats.bytes_to_host, stats.bytes_written), (Bytes(20), Bytes(10)));
}

#[test]
fn a_clean_storage_leaves_for_host_memory_without_a_copy() {
    let mut machine = tiered(20, 10, 2);
    out(&mut machine, 0);
    back(&mut machine, 0);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    assert_eq!(sent(&actions(&mut machine)), [(0, CopyKind::Verify, Target::Host)]);
    assert_eq!(machine.stats().bytes_to_host, Bytes(10), "the first time only");
}

#[test]
fn a_copy_whose_storage_is_in_memory_makes_way_for_one_that_leaves() {
    let mut machine = tiered(30, 20, 3);
    for storage in [0, 1] {
        out(&mut machine, storage);
    }
    for storage in [0, 1] {
        back(&mut machine, storage);
    }
    assert_eq!(machine.hosted(), Bytes(20));
    assert_eq!(machine.evict(id(2)), Ok(OpProgress::Waiting));
    let taken = actions(&mut machine);
    // What came back last is in use; the other one may leave without a copy again.
    assert_eq!(taken[0], ResidencyAction::Forget { storage: id(1), target: Target::Host });
    assert_eq!(sent(&taken), [(2, CopyKind::Write, Target::Host)]);
    assert_eq!(machine.state(id(1)), Some(StorageState::Resident { clean: false }));
    assert_eq!(machine.stats().host_copies_given_up, 1);
}

#[test]
fn copies_are_not_given_up_where_that_would_not_do() {
    let mut machine = tiered(30, 15, 1);
    out(&mut machine, 0);
    back(&mut machine, 0);
    machine.born(id(1), Bytes(16), Attributes::default());
    assert_eq!(machine.evict(id(1)), Ok(OpProgress::Waiting));
    let taken = actions(&mut machine);
    assert_eq!(sent(&taken), [(1, CopyKind::Write, Target::Ssd)]);
    assert_eq!(taken.len(), 1, "{taken:?}");
}

#[test]
fn host_memory_is_given_back_by_death_by_change_and_by_failure() {
    let mut machine = tiered(40, 30, 4);
    for storage in [0, 1] {
        out(&mut machine, storage);
    }
    assert_eq!(machine.evict(id(2)), Ok(OpProgress::Waiting));
    assert_eq!(machine.hosted(), Bytes(30), "what is on its way counts");
    let transfer = begun(&actions(&mut machine))[0];
    machine.completed(transfer, failed("the GPU is gone"));
    assert_eq!(machine.hosted(), Bytes(20));
    machine.died(id(0));
    assert_eq!(machine.hosted(), Bytes(10));
    assert!(matches!(machine.resume(), OpProgress::Failed(_)));
    assert_eq!(begin(&mut machine, &[writes(1)], 0), OpProgress::Waiting);
    perform(&mut machine);
    assert_eq!(machine.resume(), OpProgress::Ready);
    let forgotten = ResidencyAction::Forget { storage: id(1), target: Target::Host };
    assert!(actions(&mut machine).contains(&forgotten));
    assert_eq!(machine.hosted(), Bytes(0));
}

#[test]
fn under_a_schedule_its_moves_have_the_host_memory_that_they_count_on() {
    let plan = |target| Migration {
        storage: PlanStorage(0),
        direction: MigrationDirection::Out,
        target,
        start: OpIndex(1),
        deadline: OpIndex(3),
        awaited: false,
        stays: false,
    };
    for (host_memory, expected) in [(10, Target::Host), (9, Target::Ssd)] {
        let all = vec![uses(&[0], true), uses(&[2], true), uses(&[3], true)];
        let schedule = parts(4, all, vec![plan(Target::Host)]).schedule().unwrap();
        let mut machine = tiered(30, host_memory, 3);
        machine.load_schedule(schedule);
        for storage in 0..3 {
            assert!(machine.bind(PlanStorage(storage), id(storage)));
        }
        machine.step_begin();
        assert_eq!(op(&mut machine, 0, &[reads(0)], 0), OpProgress::Ready);
        assert_eq!(op(&mut machine, 1, &[], 0), OpProgress::Ready);
        assert_eq!(sent(&actions(&mut machine)), [(0, CopyKind::Write, expected)]);
    }
    // What no move sends goes there as well, where all that moves send would still fit.
    for (counted_on, expected) in [(90, Target::Host), (91, Target::Ssd)] {
        let all = vec![uses(&[0], true), uses(&[2], true), uses(&[3], true)];
        let mut unplanned = planned(30, &[10, 10, 10], parts(4, all.clone(), vec![]));
        unplanned.config.host_memory = Bytes(100);
        let schedule = Arc::unwrap_or_clone(parts(4, all, vec![]).schedule().unwrap());
        assert!(unplanned.exchange_schedule(Arc::new(schedule.with_host_bytes(Bytes(counted_on)))));
        unplanned.step_begin();
        assert_eq!(op(&mut unplanned, 0, &[reads(0)], 10), OpProgress::Waiting);
        let left = sent(&actions(&mut unplanned));
        assert!(left.iter().all(|(_, _, target)| *target == expected) && !left.is_empty());
    }
}
