//! A hundred thousand ops and as many storages are planned in seconds.

use std::time::{Duration, Instant};
use tidelog_planner::algorithm1::{Options, algorithm1};
use tidelog_planner::cost::{Machine, SsdLink};
use tidelog_planner::lifetime::Lifetimes;
use tidelog_planner::trace::{
    Access, Birth, Death, Identity, Kind, Op, PlanStorage, Storage, Trace, Use,
};
use tidelog_planner::units::{Bandwidth, Bytes, Nanos, OpIndex};

/// Forward and backward over `half` ops each: every forward op saves an activation that its mirror
/// image reads, and reads a weight that the mirror image updates.
fn deep_network(half: usize) -> Trace {
    let mut trace = Trace { name: "deep".to_owned(), ..Trace::default() };
    let storage = |identity, size, kind| Storage { identity, size, kind, movable: true };
    for op in 0..half {
        let weight = Identity::Name(format!("weight{op}"));
        trace.storages.push(storage(weight, Bytes(1_000_000 + op as u64), Kind::Parameter));
        let saved = Identity::Output { op: OpIndex(op as u32), slot: 0 };
        trace.storages.push(storage(saved, Bytes(2_000_000 + op as u64), Kind::Activation));
    }
    for index in 0..2 * half {
        let layer = index.min(2 * half - 1 - index) as u32;
        let (weight, saved) = (PlanStorage(2 * layer), PlanStorage(2 * layer + 1));
        let (forward, access) = (index < half, [Access::Update, Access::Read]);
        let read = Use { storage: saved, access: Access::Read, previous: false };
        let weight = Use { storage: weight, access: access[usize::from(forward)], previous: false };
        let mut op = Op {
            name: format!("op{index}"),
            duration: Nanos(100_000 + index as u64 % 7),
            fingerprint: index as u64,
            uses: vec![weight],
            births: Vec::new(),
            deaths: Vec::new(),
        };
        if forward {
            op.births.push(Birth { storage: saved, slot: 0 });
        } else {
            op.uses.push(read);
            op.deaths.push(Death { storage: saved, previous: false });
        }
        trace.ops.push(op);
    }
    trace
}

#[test]
fn a_hundred_thousand_ops_and_storages_are_planned_in_seconds() {
    let trace = deep_network(50_000);
    trace.validate().expect("the network is a valid trace");
    assert_eq!((trace.ops.len(), trace.storages.len()), (100_000, 100_000));
    let rate = Bandwidth(16_000_000_000);
    let machine = Machine {
        budget: Bytes(Lifetimes::of(&trace).peak().0 / 2),
        staging: Bytes(64 << 20),
        ssd: SsdLink { read: rate, write: rate, latency: Nanos(80_000) },
        host: None,
        verify: Bandwidth(50_000_000_000),
    };
    let began = Instant::now();
    let plan = algorithm1(&trace, &machine, Options::default());
    let took = began.elapsed();
    println!("{} rows, {} ops over, {took:?}", plan.rows.len(), plan.expects.ops_over_capacity);
    assert!(plan.rows.len() > 10_000, "{} rows", plan.rows.len());
    assert!(took < Duration::from_secs(20), "planning took {took:?} on this build");
}
