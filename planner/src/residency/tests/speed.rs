//! Costs of an op with ten thousand storages. The bounds are several times what was measured on one
//! slow core in this profile, and the best of many rounds counts, so that only a change of order
//! fails: work per op that grows with the number of storages costs hundreds of times more.

use super::chance::Random;
use super::*;
use crate::trace::PlanStorage;
use crate::units::OpIndex;
use std::sync::Arc;
use std::time::{Duration, Instant};

const STORAGES: u32 = 10_000;
const OPS: u32 = 100_000;

fn three(random: &mut Random) -> [OpUse; 3] {
    [(); 3].map(|()| reads(random.below(u64::from(STORAGES)) as u32))
}

/// The best time per op over rounds of a thousand.
fn best(mut op: impl FnMut(u32)) -> Duration {
    const ROUND: u32 = 1_000;
    let rounds = (0..OPS / ROUND).map(|round| {
        let start = Instant::now();
        (0..ROUND).for_each(|index| op(round * ROUND + index));
        start.elapsed() / ROUND
    });
    rounds.min().expect("there are rounds")
}

#[test]
fn an_op_with_nothing_to_do_costs_less_than_a_microsecond() {
    let mut machine = machine(u64::from(STORAGES) * 10);
    populate(&mut machine, &vec![10; STORAGES as usize]);
    let mut random = Random::new(1);
    let cost = best(|_| {
        let uses = three(&mut random);
        assert_eq!(begin(&mut machine, &uses, 0), OpProgress::Ready);
        machine.op_end();
    });
    assert!(cost < Duration::from_micros(1), "{cost:?}");
}

#[test]
fn choosing_victims_does_not_look_at_every_storage_and_pays_with_a_schedule() {
    let mut releases = Vec::new();
    for planned in [false, true] {
        let mut machine = machine(u64::from(STORAGES) * 5);
        populate(&mut machine, &vec![10; STORAGES as usize]);
        let mut random = Random::new(2);
        let uses: Vec<[OpUse; 3]> = (0..OPS).map(|_| three(&mut random)).collect();
        if planned {
            follow(&mut machine, &uses);
        }
        let mut progress = machine.settle();
        let cost = best(|index| {
            let op = &uses[index as usize];
            let index = planned.then_some(OpIndex(index));
            progress = machine.op_begin(&OpBegin { index, uses: op, needs: Bytes(0) });
            while progress == OpProgress::Waiting {
                perform(&mut machine);
                progress = machine.resume();
            }
            assert_eq!(progress, OpProgress::Ready);
            machine.op_end();
        });
        releases.push(machine.stats().releases);
        assert!(cost < Duration::from_micros(10), "{cost:?}");
    }
    let [reactive, planned] = releases[..] else { panic!("two runs") };
    assert!(planned > u64::from(OPS / 4), "room was short all the time: {planned}");
    assert!(planned * 10 < reactive * 7, "{planned} with knowledge, {reactive} without");
}

/// A right schedule of these uses, without moves.
fn follow(machine: &mut Residency, uses: &[[OpUse; 3]]) {
    let mut parts = StepParts {
        fingerprints: vec![0; uses.len()],
        needs: vec![Bytes(0); uses.len()],
        uses: vec![ScheduledUses { ops: vec![], cyclic: true }; STORAGES as usize],
        ..StepParts::default()
    };
    for (index, op) in uses.iter().enumerate() {
        for one in op {
            let ops = &mut parts.uses[one.storage.0 as usize].ops;
            if ops.last() != Some(&OpIndex(index as u32)) {
                ops.push(OpIndex(index as u32));
            }
        }
    }
    let step = Arc::new(StepTable::new(parts).expect("it is well formed"));
    machine.load_schedule(Arc::new(Schedule::new(step, Vec::new()).expect("nothing moves")));
    for storage in 0..STORAGES {
        assert!(machine.bind(PlanStorage(storage), id(storage)));
    }
    machine.step_begin();
}
