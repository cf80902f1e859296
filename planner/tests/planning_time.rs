//! A hundred thousand ops and as many storages are planned in seconds.

use std::time::{Duration, Instant};
use tidelog_planner::algorithm1::{Algorithm1Options, algorithm1};
use tidelog_planner::cost::{Machine, SsdLink};
use tidelog_planner::instances::deep_network;
use tidelog_planner::lifetime::Lifetimes;
use tidelog_planner::units::{Bandwidth, Bytes, Nanos};

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
    let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
    let took = began.elapsed();
    println!("{} rows, {} ops over, {took:?}", plan.rows.len(), plan.expects.ops_over_capacity);
    assert!(plan.rows.len() > 10_000, "{} rows", plan.rows.len());
    assert!(took < Duration::from_secs(20), "planning took {took:?} on this build");
}
