//! Guarantees of the machine, case by case, and then at random.

mod chance;
mod executor;
mod failures;
mod host;
mod lookahead;
mod planned;
mod random;
mod reactive;
mod speed;
mod world;

use super::*;
use crate::migration::{Migration, MigrationDirection, Target};
use crate::units::Bytes;

/// A machine with room for `limit` bytes and nothing kept free ahead of need.
fn machine(limit: u64) -> Residency {
    let (budget, staging) = (Bytes(limit + 7), Bytes(7));
    let none = Bytes(0);
    Residency::new(Config { headroom: none, ..Config::new(budget, staging) })
}

fn id(storage: u32) -> StorageId {
    StorageId(storage)
}

fn reads(storage: u32) -> OpUse {
    OpUse { storage: id(storage), modifies: false }
}

fn writes(storage: u32) -> OpUse {
    OpUse { storage: id(storage), modifies: true }
}

fn begin(machine: &mut Residency, uses: &[OpUse], needs: u64) -> OpProgress {
    machine.op_begin(&OpBegin { index: None, uses, needs: Bytes(needs) })
}

fn actions(machine: &mut Residency) -> Vec<ResidencyAction> {
    let mut taken = Vec::new();
    machine.take_actions(&mut taken);
    taken
}

/// The transfers that these actions begin.
fn begun(actions: &[ResidencyAction]) -> Vec<TransferId> {
    let transfer = |action: &ResidencyAction| match *action {
        ResidencyAction::Evict { transfer, .. } | ResidencyAction::Fetch { transfer, .. } => {
            Some(transfer)
        }
        _ => None,
    };
    actions.iter().filter_map(transfer).collect()
}

/// Births of `sizes`, numbered from 0.
fn populate(machine: &mut Residency, sizes: &[u64]) {
    for (index, &size) in sizes.iter().enumerate() {
        assert!(machine.born(id(index as u32), Bytes(size), Attributes::default()));
    }
}

/// Performs every action at once and well, until nothing is in flight.
fn perform(machine: &mut Residency) {
    loop {
        let taken = actions(machine);
        if taken.is_empty() && machine.in_flight() == 0 {
            return;
        }
        for action in taken {
            let (transfer, outcome) = match action {
                ResidencyAction::Evict { transfer, copy, .. } if copy != CopyKind::Write => {
                    (transfer, MigrationOutcome::Matched)
                }
                ResidencyAction::Evict { transfer, .. }
                | ResidencyAction::Fetch { transfer, .. } => (transfer, MigrationOutcome::Done),
                _ => continue,
            };
            machine.completed(transfer, outcome);
        }
    }
}

fn evict(storage: u32, transfer: u64, copy: CopyKind) -> ResidencyAction {
    let transfer = TransferId(transfer);
    ResidencyAction::Evict { storage: id(storage), transfer, copy, target: Target::Ssd }
}

fn fetch(storage: u32, transfer: u64) -> ResidencyAction {
    let transfer = TransferId(transfer);
    let target = Target::Ssd;
    ResidencyAction::Fetch { storage: id(storage), transfer, urgency: FetchUrgency::Urgent, target }
}

fn forget(storage: u32) -> ResidencyAction {
    ResidencyAction::Forget { storage: id(storage), target: Target::Ssd }
}

fn failed(message: &str) -> MigrationOutcome {
    MigrationOutcome::Failed(FailureInfo { message: message.to_owned() })
}

/// Storages of 10 bytes each, the first one out, in a machine with room for two.
fn first_one_out(clean: bool) -> Residency {
    let mut machine = machine(20);
    populate(&mut machine, &[10, 10]);
    assert_eq!(machine.evict(id(0)), Ok(OpProgress::Waiting));
    perform(&mut machine);
    if clean {
        assert_eq!(begin(&mut machine, &[reads(0)], 0), OpProgress::Waiting);
        perform(&mut machine);
        assert_eq!(machine.resume(), OpProgress::Ready);
        machine.op_end();
    }
    machine
}
