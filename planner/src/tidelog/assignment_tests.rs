//! Steps whose SSDs are just fast enough, if host memory has its part of what leaves in every
//! stretch.

use super::*;
use crate::cost::{HostLink, SsdLink};
use crate::lifetime::Lifetimes;
use crate::testing::{Builder, machine};
use crate::trace::Access;
use crate::units::Bandwidth;

/// The stages of a convolutional network: how many layers, what each saves for the backward pass,
/// how long it runs. The first ones save most, in the least time.
const STAGES: [(usize, u64, u64); 4] =
    [(6, 120_000, 90_000), (16, 80_000, 70_000), (72, 40_000, 80_000), (6, 20_000, 80_000)];

fn convolutional() -> Trace {
    let mut b = Builder::default();
    let mut saved = Vec::new();
    for (layers, bytes, time) in STAGES {
        for _ in 0..layers {
            let op = b.op(time);
            if let Some((input, _)) = saved.last() {
                b.uses(op, *input, Access::Read);
            }
            saved.push((b.birth(op, bytes), time));
        }
    }
    while let Some((activation, time)) = saved.pop() {
        let op = b.op(time * 7 / 10);
        b.uses(op, activation, Access::Read);
        b.death(op, activation, false);
    }
    b.finish()
}

/// A machine whose host memory takes half of what leaves.
fn with_host(trace: &Trace) -> Machine {
    let peak = Lifetimes::of(trace).peak().0;
    let budget = peak * 15 / 100;
    let (rate, memory) = (Bandwidth(2_000_000_000), Bytes((peak - budget) / 2));
    let host = Some(HostLink { read: rate, write: rate, latency: Nanos(0), memory });
    let slow = Bandwidth(500_000_000);
    let ssd = SsdLink { read: slow, write: slow, latency: Nanos(0) };
    Machine { ssd, host, ..machine(budget) }
}

#[test]
fn host_memory_has_a_part_of_every_stretch() {
    let trace = convolutional();
    let machine = with_host(&trace);
    let waits = |without| {
        let options = TidelogOptions { goal: Goal::Time, without, ..TidelogOptions::default() };
        tidelog(&trace, &machine, options).unwrap().1.time.0 - trace.duration().0
    };
    let (with, without) = (waits(None), waits(Some(Idea::AssigningTiers)));
    assert!(2 * with < without, "ops wait {with} ns, {without} ns without");
}
