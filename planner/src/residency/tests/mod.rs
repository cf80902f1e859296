//! What the machine promises, case by case, and then at random.

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
use crate::migration::{Direction, Migration, Target};
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

fn reads(storage: u32) -> Use {
    Use { storage: id(storage), modifies: false }
}

fn writes(storage: u32) -> Use {
    Use { storage: id(storage), modifies: true }
}

fn begin(machine: &mut Residency, uses: &[Use], needs: u64) -> Progress {
    machine.op_begin(&OpBegin { index: None, uses, needs: Bytes(needs) })
}

fn actions(machine: &mut Residency) -> Vec<Action> {
    let mut taken = Vec::new();
    machine.take_actions(&mut taken);
    taken
}

/// The transfers that these actions begin.
fn begun(actions: &[Action]) -> Vec<TransferId> {
    let transfer = |action: &Action| match *action {
        Action::Evict { transfer, .. } | Action::Fetch { transfer, .. } => Some(transfer),
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
                Action::Evict { transfer, copy: CopyKind::Verify, .. } => {
                    (transfer, Outcome::Matched)
                }
                Action::Evict { transfer, .. } | Action::Fetch { transfer, .. } => {
                    (transfer, Outcome::Done)
                }
                _ => continue,
            };
            machine.completed(transfer, outcome);
        }
    }
}

fn evict(storage: u32, transfer: u64, copy: CopyKind) -> Action {
    let transfer = TransferId(transfer);
    Action::Evict { storage: id(storage), transfer, copy, target: Target::Ssd }
}

fn fetch(storage: u32, transfer: u64) -> Action {
    let transfer = TransferId(transfer);
    let target = Target::Ssd;
    Action::Fetch { storage: id(storage), transfer, urgency: Urgency::Urgent, target }
}

fn forget(storage: u32) -> Action {
    Action::Forget { storage: id(storage), target: Target::Ssd }
}

fn failed(message: &str) -> Outcome {
    Outcome::Failed(FailureInfo { message: message.to_owned() })
}

/// Storages of 10 bytes each, the first one out, in a machine with room for two.
fn first_one_out(clean: bool) -> Residency {
    let mut machine = machine(20);
    populate(&mut machine, &[10, 10]);
    assert_eq!(machine.evict(id(0)), Ok(Progress::Waiting));
    perform(&mut machine);
    if clean {
        assert_eq!(begin(&mut machine, &[reads(0)], 0), Progress::Waiting);
        perform(&mut machine);
        assert_eq!(machine.resume(), Progress::Ready);
        machine.op_end();
    }
    machine
}
