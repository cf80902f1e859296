use super::*;
use crate::algorithm1::{Algorithm1Options, algorithm1};
use crate::cost::HostLink;
use crate::lifetime::Lifetimes;
use crate::simulate::{GpuCosts, GpuRuntime, Policy, Runtime, run_many, simulate_on_gpu};
use crate::testing::{Builder, machine, random_trace, training};
use crate::tidelog::tidelog;
use crate::trace::{Access, Identity};
use crate::units::{Bandwidth, Bytes};
use tidelog_random::Random;

/// Every op is an instant, and the search has work enough for a small trace.
const FINE: Effort = Effort { instants: 1 << 20, steps: 400 };

#[test]
fn without_pressure_the_bound_is_the_time_of_the_kernels() {
    let trace = training(4, 50, 80, 60);
    let bound = lower_bound(&trace, &machine(1 << 30), FINE).unwrap();
    assert_eq!(bound.time, trace.duration());
}

/// Two globals of 10 bytes that take turns under a budget for one: each use brings one in.
#[test]
fn what_must_come_in_takes_its_time() {
    let mut b = Builder::default();
    let (first, second) = (b.global("first", 10_000), b.global("second", 10_000));
    b.ops(2, 1);
    b.uses(0, first, Access::Read);
    b.uses(1, second, Access::Read);
    let bound = lower_bound(&b.finish(), &machine(10_000), FINE).unwrap();
    // Both are read once in an iteration.
    assert!((19_800..=20_000).contains(&bound.time.0), "{}", bound.time.0);
}

/// Checks for modified storages that what comes in while the other leaves shares no time with it.
#[test]
fn a_write_overlaps_a_read_only_as_far_as_memory_allows() {
    let mut b = Builder::default();
    let (first, second) = (b.global("first", 10_000), b.global("second", 10_000));
    b.ops(2, 1);
    b.uses(0, first, Access::Update);
    b.uses(1, second, Access::Update);
    let trace = b.finish();
    let bound = lower_bound(&trace, &machine(10_000), FINE).unwrap();
    assert!((19_800..=20_002).contains(&bound.time.0), "{}", bound.time.0);
    let (lru, _) = run_many(&trace, &machine(10_000), Policy::Lru, 50).unwrap();
    assert!(lru.0 >= 50 * bound.time.0);
}

/// Four modified globals of which memory holds one: each comes in and leaves in every iteration,
/// beside another.
#[test]
fn a_link_that_loses_rate_both_ways_at_once_takes_longer() {
    let mut b = Builder::default();
    let globals = ["first", "second", "third", "fourth"].map(|name| b.global(name, 10_000));
    b.ops(4, 1);
    for (op, global) in globals.into_iter().enumerate() {
        b.uses(op, global, Access::Update);
    }
    let (trace, machine) = (b.finish(), with_host(10_000));
    let bound = |out, back| {
        let rates = CopyRates { out: Bandwidth(out), back: Bandwidth(back) };
        let bound = with_both_ways(&trace, &machine, FINE, rates).unwrap();
        assert_eq!(bound.relaxation.value(&bound.prices), Ok(bound.time));
        let costs = GpuCosts { both_ways: Some(rates), ..GpuCosts::free() };
        let runtime = GpuRuntime { costs, ..GpuRuntime::in_step(Runtime::default()) };
        let step = simulate_on_gpu(runtime, &trace, &machine, Policy::Lru).unwrap();
        assert!(step.time >= bound.time, "{} of at least {}", step.time.0, bound.time.0);
        bound.time.0
    };
    let full = lower_bound(&trace, &machine, FINE).unwrap().time.0;
    assert_eq!(bound(1_000_000_000, 1_000_000_000), full);
    assert!((39_000..=40_004).contains(&full), "{full}");
    // Rates of 0.8 of the link's: 40,000 bytes each way take 50,000 ns. Less than half of them are
    // of no use: first one way, then the other is 80,000.
    for (rate, expected) in [(800_000_000, 50_000), (400_000_000, 80_000), (1, 80_000)] {
        let found = bound(rate, rate);
        assert!((expected * 97 / 100..=expected + 4).contains(&found), "{rate}: {found}");
    }
    // One way alone is slower: 50,000 ns. The search is slow to find prices for one way alone.
    let found = bound(1_000_000_000, 750_000_000);
    assert!((43_000..=50_004).contains(&found), "{found}");
}

#[test]
fn no_copies_beat_the_bound_of_a_link_that_loses_rate_both_ways_at_once() {
    let mut random = Random::new(2028);
    let mut above_full_rates = 0;
    for case in 0..400 {
        let trace = random_trace(&mut random, 12, 8);
        let budget = tight(&trace, &mut random).budget.0;
        let mut machine = with_host(budget);
        let host = machine.host.as_mut().unwrap();
        (host.read, host.write) =
            (Bandwidth(200_000_000 << random.below(4)), Bandwidth(200_000_000 << random.below(4)));
        let part = |rate: Bandwidth, random: &mut Random| {
            Bandwidth(rate.0 / 100 * (20 + random.below(81)))
        };
        let rates =
            CopyRates { out: part(host.write, &mut random), back: part(host.read, &mut random) };
        let effort = Effort { steps: 60, ..FINE };
        let full = lower_bound(&trace, &machine, effort).unwrap().time;
        let bound = with_both_ways(&trace, &machine, effort, rates).unwrap().time;
        above_full_rates += u32::from(bound.0 > full.0 + full.0 / 50);
        let costs = GpuCosts { both_ways: Some(rates), ..GpuCosts::free() };
        let runtime = GpuRuntime { costs, ..GpuRuntime::in_step(Runtime::default()) };
        let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
        for policy in [Policy::Lru, Policy::Planned(&plan)] {
            let step = simulate_on_gpu(runtime, &trace, &machine, policy).unwrap();
            // It is as long as the one before, to a thousandth.
            let time = step.time.0 + step.time.0 / 500 + 4;
            let name = policy.name();
            assert!(time >= bound.0, "case {case}: {name} takes {time}, the bound is {bound:?}");
        }
    }
    // Memory is so short in most of these steps that bytes hardly go both ways at once.
    assert!(above_full_rates > 0, "no bound says more than full rates do");
}

/// Makes a [`machine`] with host memory behind a link of a byte per nanosecond each way.
fn with_host(budget: u64) -> crate::cost::Machine {
    let machine = machine(budget);
    let (read, write) = (machine.ssd.read, machine.ssd.write);
    let host = HostLink { read, write, latency: Nanos(0), memory: Bytes(1 << 30) };
    let ssd = crate::cost::SsdLink { read: Bandwidth(1000), write: Bandwidth(1000), ..machine.ssd };
    crate::cost::Machine { ssd, host: Some(host), ..machine }
}

#[test]
fn prices_that_cost_more_than_time_prove_nothing() {
    let trace = training(3, 10, 10, 5);
    let bound = lower_bound(&trace, &machine(40), FINE).unwrap();
    assert_eq!(bound.relaxation.value(&bound.prices), Ok(bound.time));
    let mut prices = bound.prices.clone();
    // One byte takes one nanosecond.
    prices.read[1][0] = (1 << 32) + 1;
    assert_eq!(bound.relaxation.value(&prices), Err(BadPrices::Link { interval: 1 }));
    prices.read[1][0] = 1 << 50;
    assert_eq!(bound.relaxation.value(&prices), Err(BadPrices::TooHigh { interval: 1 }));
    prices.memory.pop();
    let found = prices.memory.len();
    assert_eq!(
        bound.relaxation.value(&prices),
        Err(BadPrices::Count { found, expected: found + 1 })
    );
}

#[test]
fn any_prices_at_all_prove_no_more_than_a_run_takes() {
    let mut random = Random::new(77);
    for case in 0..200 {
        let trace = random_trace(&mut random, 10, 6);
        let machine = tight(&trace, &mut random);
        let relaxation = Relaxation::new(&trace, &machine, 1 << 20);
        let count = relaxation.instants().len();
        let share = |random: &mut Random| random.below(1 << 30);
        let prices = Prices {
            memory: (0..count).map(|_| share(&mut random)).collect(),
            read: (0..count).map(|_| [share(&mut random) / 8, 0]).collect(),
            write: (0..count).map(|_| [share(&mut random) / 8, 0]).collect(),
            room: vec![0; count],
            write_penalty: 0,
        };
        if let Ok(proved) = relaxation.value(&prices) {
            never_beaten(&trace, &machine, Policy::Lru, proved.0, case);
        }
    }
}

fn tight(trace: &crate::trace::Trace, random: &mut Random) -> crate::cost::Machine {
    let lifetimes = Lifetimes::of(trace);
    let largest = trace.storages.iter().map(|storage| storage.size.0).max().unwrap_or(0);
    let least = lifetimes.largest_op().1.0.max(largest);
    let mut machine = machine(least + random.below(lifetimes.peak().0 - least + 1));
    machine.ssd.read = Bandwidth(200_000_000 << random.below(4));
    machine.ssd.write = Bandwidth(200_000_000 << random.below(4));
    machine
}

/// The bound is on the steady state: a run may owe later iterations what memory holds at its end.
fn never_beaten(
    trace: &crate::trace::Trace,
    machine: &crate::cost::Machine,
    policy: Policy<'_>,
    bound: u64,
    case: u32,
) {
    const ITERATIONS: u64 = 40;
    let all = crate::units::Bytes(trace.storages.iter().map(|storage| 2 * storage.size.0).sum());
    let owed = machine.ssd.read.time_for(all).0 + machine.ssd.write.time_for(all).0;
    let time = run_many(trace, machine, policy, ITERATIONS as u32).unwrap().0.0;
    assert!(
        time + owed >= ITERATIONS * bound,
        "case {case}: {} takes {time} for {ITERATIONS} iterations, the bound is {bound} for one",
        policy.name()
    );
}

#[test]
fn no_policy_beats_the_bound() {
    let mut random = Random::new(2026);
    let mut above_kernels = 0;
    for case in 0..1000 {
        let trace = random_trace(&mut random, 12, 8);
        let machine = tight(&trace, &mut random);
        let effort = Effort { steps: 60, ..FINE };
        let bound = lower_bound(&trace, &machine, effort).unwrap().time;
        above_kernels += u32::from(bound > trace.duration());
        let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
        let (ours, _) = tidelog(
            &trace,
            &machine,
            crate::tidelog::TidelogOptions {
                rounds: 1,
                published: 0,
                trials: 0,
                ..Default::default()
            },
        )
        .unwrap();
        for policy in [Policy::Lru, Policy::Planned(&plan), Policy::Planned(&ours)] {
            never_beaten(&trace, &machine, policy, bound.0, case);
        }
    }
    assert!(above_kernels > 200, "only {above_kernels} bounds say more than the kernels' time");
}

/// Checks that storages made between two iterations may leave before their use, as those that are
/// born in one may.
#[test]
fn no_policy_beats_the_bound_of_arrivals() {
    let mut random = Random::new(2027);
    let mut above_kernels = 0;
    for case in 0..500 {
        let mut trace = random_trace(&mut random, 12, 8);
        for storage in &mut trace.storages {
            if matches!(storage.identity, Identity::Name(_)) && random.chance(2) {
                storage.identity = Identity::Arrival;
            }
        }
        let machine = tight(&trace, &mut random);
        let effort = Effort { steps: 60, ..FINE };
        let bound = lower_bound(&trace, &machine, effort).unwrap().time;
        above_kernels += u32::from(bound > trace.duration());
        never_beaten(&trace, &machine, Policy::Lru, bound.0, case);
    }
    assert!(above_kernels > 100, "only {above_kernels} bounds say more than the kernels' time");
}

/// Checks two storages that leave changed in each iteration; no more is proved, and hardly less.
#[test]
fn what_is_changed_and_must_leave_is_written() {
    let mut b = Builder::default();
    let (first, second) = (b.global("first", 10_000), b.global("second", 10_000));
    b.ops(2, 1);
    b.uses(0, first, Access::Update);
    b.uses(1, second, Access::Update);
    let floor = floor(&b.finish(), &machine(10_000), Nanos(50_000));
    assert!((19_900..=20_000).contains(&floor), "{floor}");
}

#[test]
fn what_only_is_read_need_not_be_written() {
    let mut b = Builder::default();
    let (first, second) = (b.global("first", 10_000), b.global("second", 10_000));
    b.ops(2, 1);
    b.uses(0, first, Access::Read);
    b.uses(1, second, Access::Read);
    assert_eq!(floor(&b.finish(), &machine(10_000), Nanos(50_000)), 0);
}

#[test]
fn no_policy_writes_less_than_the_floor() {
    const ITERATIONS: u32 = 40;
    let mut random = Random::new(1122);
    let mut telling = 0;
    for case in 0..300 {
        let trace = random_trace(&mut random, 12, 8);
        let machine = tight(&trace, &mut random);
        let options = crate::tidelog::TidelogOptions {
            goal: crate::tidelog::Goal::Wear,
            ..Default::default()
        };
        let (ours, _) = tidelog(&trace, &machine, options).unwrap();
        for policy in [Policy::Lru, Policy::Planned(&ours)] {
            let (time, stats) = run_many(&trace, &machine, policy, ITERATIONS).unwrap();
            // What memory holds at the end need not have been written yet, nor have stalled
            // anything.
            let owed: u64 = trace.storages.iter().map(|storage| 2 * storage.size.0).sum();
            let owed_time = machine.ssd.write.time_for(Bytes(2 * owed)).0;
            let one = Nanos((time.0 + owed_time) / u64::from(ITERATIONS) + 1);
            let least = floor(&trace, &machine, one);
            telling += u32::from(least > 0);
            let (name, written) = (policy.name(), stats.bytes_written.0);
            assert!(
                written + owed >= u64::from(ITERATIONS) * least,
                "case {case}: {name} writes {written} in {ITERATIONS} iterations, the floor is {least} for one"
            );
        }
    }
    assert!(telling > 100, "only {telling} floors say anything");
}

fn floor(trace: &crate::trace::Trace, machine: &crate::cost::Machine, time: Nanos) -> u64 {
    let bound = write_floor(trace, machine, Effort { steps: 200, ..FINE }).unwrap();
    bound.relaxation.written_at_least(&bound.prices, time).unwrap().0
}
