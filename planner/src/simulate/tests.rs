use super::*;
use crate::algorithm1::{Algorithm1Options, algorithm1};
use crate::instances::small_steps;
use crate::lifetime::Lifetimes;
use crate::report::simulated;
use crate::testing::{Builder, machine, random_trace, training};
use crate::trace::Access;
use crate::units::Bandwidth;
use tidelog_random::Random;

fn time(trace: &Trace, machine: &Machine, policy: Policy<'_>) -> Nanos {
    simulate(trace, machine, policy).unwrap().time
}

/// One activation of 10 bytes that is idle over a peak which needs its memory.
fn one_peak() -> Trace {
    let mut b = Builder::default();
    b.ops(6, 10);
    let idle = b.birth(0, 10);
    let peak = b.birth(2, 15);
    b.death(3, peak, false);
    b.uses(5, idle, Access::Read);
    b.death(5, idle, false);
    b.finish()
}

#[test]
fn without_a_budget_nothing_waits_and_nothing_moves() {
    let mut random = Random::new(21);
    for case in 0..200 {
        let trace = random_trace(&mut random, 16, 8);
        let ideal = simulate(&trace, &machine(1), Policy::Ideal).unwrap();
        assert_eq!(ideal.time, trace.duration(), "case {case}");
        assert!(ideal.stalls.is_empty() && ideal.transfers.is_empty(), "case {case}");
        assert_eq!(ideal.peak, Lifetimes::of(&trace).peak(), "case {case}");
    }
}

#[test]
fn the_plan_hides_what_lru_waits_for() {
    let trace = one_peak();
    let mut machine = machine(20);
    machine.ssd.write = Bandwidth(2_000_000_000);
    let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
    let planned = simulate(&trace, &machine, Policy::Planned(&plan)).unwrap();
    assert_eq!((planned.time, planned.stalls.len()), (Nanos(60), 0));
    assert_eq!(planned.bytes.ssd_written, Bytes(10));
    assert_eq!(planned.bytes.ssd_read, Bytes(10));
    let lru = simulate(&trace, &machine, Policy::Lru).unwrap();
    // It writes when the peak wants the room (5 ns), and reads when the use is there (10 ns).
    assert_eq!((lru.time, lru.stall_time()), (Nanos(75), Nanos(15)));
    let waits: Vec<_> = lru.stalls.iter().map(|s| (s.op.0, s.waited_for)).collect();
    assert_eq!(waits, [(2, None), (5, Some(PlanStorage(0)))]);
}

#[test]
fn what_transfers_take_of_the_ops_thread_delays_ops_and_shortens_waits() {
    let trace = one_peak();
    let mut machine = machine(20);
    machine.ssd.write = Bandwidth(2_000_000_000);
    let runtime = Runtime { handling: Nanos(4), ..Runtime::default() };
    let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
    let planned = simulate_under(runtime, &trace, &machine, Policy::Planned(&plan)).unwrap();
    assert_eq!((planned.time, planned.stalls.len()), (Nanos(68), 0), "two transfers, no wait");
    let lru = simulate_under(runtime, &trace, &machine, Policy::Lru).unwrap();
    // Bytes move while the thread is busy with the transfer: of 5 and of 10 ns it waits for the
    // rest.
    assert_eq!((lru.time, lru.stall_time()), (Nanos(75), Nanos(7)));
    assert_eq!(lru.stalls[0].begin, Nanos(24), "a wait ends when its op begins");
}

#[test]
fn a_runtime_that_looks_ahead_makes_up_for_what_a_plan_leaves_out() {
    let trace = one_peak();
    let mut machine = machine(20);
    machine.ssd.write = Bandwidth(2_000_000_000);
    let nothing = Plan::new("nothing", &trace, &machine, Vec::new(), Expectation::default());
    let time = |lookahead| {
        let runtime = Runtime { lookahead, ..Runtime::default() };
        simulate_under(runtime, &trace, &machine, Policy::Planned(&nothing)).unwrap().time
    };
    assert_eq!([time(0), time(4)], [Nanos(75), Nanos(60)]);
}

#[test]
fn every_policy_stays_within_the_budget_and_above_the_ideal_time() {
    let mut random = Random::new(22);
    let (mut simulated, mut moved) = (0, 0);
    for case in 0..1500 {
        let trace = random_trace(&mut random, 14, 9);
        let lifetimes = Lifetimes::of(&trace);
        // Each op fits, and each storage can be made at all.
        let largest = trace.storages.iter().map(|storage| storage.size.0).max().unwrap();
        let least = lifetimes.largest_op().1.0.max(largest);
        let budget = least + random.below(lifetimes.peak().0 - least + 1);
        let mut machine = machine(budget);
        machine.ssd.read = Bandwidth(200_000_000 << random.below(4));
        machine.ssd.latency = Nanos(random.below(5));
        let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
        for policy in [Policy::Lru, Policy::Planned(&plan)] {
            // The simulator itself refuses to hold more than the budget.
            let result = simulate(&trace, &machine, policy);
            let context = format!("case {case}, {}", policy.name());
            let simulation = result.unwrap_or_else(|error| panic!("{context}: {error}"));
            assert_eq!(
                simulation.time.0,
                trace.duration().0 + simulation.stall_time().0,
                "{context}"
            );
            assert!(simulation.peak.0 <= budget, "{context}");
            assert_eq!(simulation.begins.len(), trace.ops.len(), "{context}");
            simulated += 1;
            moved += usize::from(!simulation.transfers.is_empty());
        }
    }
    assert_eq!(simulated, 3000);
    assert!(moved > 1000, "only {moved} simulations moved anything");
}

#[test]
fn an_op_that_can_never_fit_is_refused_with_the_figures() {
    let trace = training(3, 100, 100, 50);
    let (op, needed) = Lifetimes::of(&trace).largest_op();
    let error = simulate(&trace, &machine(needed.0 - 1), Policy::Lru).unwrap_err();
    let SimulateError::Refused { what, refusal, told: _ } = &error else { panic!("{error}") };
    assert!(what.contains(&format!("op {}", op.0)), "{what}");
    assert_eq!(refusal.smallest_budget, needed);
    assert!(simulate(&trace, &machine(needed.0), Policy::Lru).is_ok());
}

#[test]
fn the_same_input_gives_the_same_page() {
    let trace = training(12, 40, 100, 60);
    let machine = machine(900);
    let page = || {
        let simulation = simulate(&trace, &machine, Policy::Lru).unwrap();
        simulated(&trace, &machine, &simulation).to_html()
    };
    assert_eq!(page(), page());
}

#[test]
fn faster_ssds_never_make_a_plan_slower_on_a_training_step() {
    let trace = training(10, 60, 120, 80);
    let mut before = u64::MAX;
    for gigabytes in [1, 2, 4, 8, 16] {
        let mut machine = machine(Lifetimes::of(&trace).peak().0 / 2);
        let rate = Bandwidth(gigabytes * 1_000_000_000);
        (machine.ssd.read, machine.ssd.write) = (rate, rate);
        let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
        let now = time(&trace, &machine, Policy::Planned(&plan)).0;
        assert!(now <= before, "{gigabytes} GB/s: {now} ns after {before} ns");
        before = now;
    }
    assert_eq!(before, trace.duration().0, "16 GB/s hide everything");
}

/// Checks that a transfer that was in flight when the iteration began, or is when it ends, counts
/// with the bytes that it moves in it: no link carries more than its rate allows, and what an
/// iteration owes to the next it got from the one before.
#[test]
fn bytes_count_in_the_iteration_in_which_they_move() {
    let trace = training(12, 40_000, 100_000, 20_000);
    let machine = machine(700_000);
    let (mut partly, mut busiest) = (0, 0);
    for policy in
        [Policy::Lru, Policy::Planned(&algorithm1(&trace, &machine, Algorithm1Options::default()))]
    {
        let simulation = simulate(&trace, &machine, policy).unwrap();
        for (direction, complete) in [
            (MigrationDirection::Out, simulation.bytes.ssd_written.0),
            (MigrationDirection::In, simulation.bytes.ssd_read.0),
        ] {
            let of_way = |t: &&SimulatedTransfer| {
                t.direction == direction && matches!(t.ending, Ending::Moved | Ending::UnderWay)
            };
            let transfers = || simulation.transfers.iter().filter(of_way);
            let size = |t: &SimulatedTransfer| trace.storage(t.storage).size;
            partly += transfers().filter(|t| t.in_step.0 > 0 && t.in_step < size(t)).count();
            let moved: u64 = transfers().map(|t| t.in_step.0).sum();
            // A byte takes a nanosecond.
            assert!(moved <= simulation.time.0, "{moved} bytes in {:?}", simulation.time);
            assert_eq!(moved, complete, "the iterations are alike by now");
            busiest = busiest.max(moved * 100 / simulation.time.0);
        }
    }
    assert!(partly >= 2, "{partly} transfers cross the end of the iteration");
    assert!(busiest > 50, "the busiest link carries {busiest} % of what it could");
}

#[test]
fn expectations_say_what_the_simulation_found() {
    let trace = training(12, 40, 100, 60);
    let machine = machine(900);
    let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
    assert!(!plan.expects.simulated);
    let (plan, simulation) = with_expectations(plan, &trace, &machine).unwrap();
    assert!(plan.expects.simulated);
    assert_eq!(plan.expects.time, simulation.time);
    assert_eq!(plan.expects.bytes, simulation.bytes);
    assert_eq!(plan.expects.stall, simulation.stall_time());
    let text = plan.named(&trace).to_json();
    let read = crate::plan::PlanFile::from_json(&text).unwrap();
    assert_eq!(read.numbered(&trace).unwrap(), plan);
}

#[test]
fn storages_from_outside_the_ops_come_and_go_each_iteration() {
    let mut trace = training(4, 50, 80, 60);
    let batch = PlanStorage(trace.storages.len() as u32);
    let mut storage = trace.storages[0].clone();
    storage.identity = crate::trace::Identity::Arrival;
    trace.storages.push(storage);
    let read = crate::trace::Use { storage: batch, access: Access::Read, previous: false };
    trace.ops[0].uses.push(read);
    trace.validate().unwrap();
    let peak = Lifetimes::of(&trace).peak();
    let ideal = simulate(&trace, &machine(1), Policy::Ideal).unwrap();
    assert_eq!((ideal.time, ideal.peak), (trace.duration(), peak));
    let lru = simulate(&trace, &machine(peak.0 * 2 / 3), Policy::Lru).unwrap();
    assert!(lru.time > ideal.time);
}

#[test]
fn a_prefetch_whose_eviction_is_still_queued_keeps_the_memory_and_the_write_goes_on() {
    use crate::migration::{Migration, MigrationDirection, Target};
    let mut b = Builder::default();
    b.ops(4, 200);
    // The first takes the link for 300 ns, so that the second's write waits behind it for long.
    let (first, second) = (b.global("first", 300), b.global("second", 10));
    b.uses(0, first, Access::Update);
    b.uses(0, second, Access::Update);
    b.uses(3, second, Access::Read);
    let trace = b.finish();
    let row = |storage, direction, start, deadline| Migration {
        start: OpIndex(start),
        deadline: OpIndex(deadline),
        direction,
        target: Target::Ssd,
        storage,
        awaited: false,
        stays: false,
    };
    let rows = vec![
        row(first, MigrationDirection::Out, 1, 0),
        row(second, MigrationDirection::Out, 1, 2),
        row(second, MigrationDirection::In, 2, 3),
    ];
    let machine = machine(320);
    let plan = Plan::new("made", &trace, &machine, rows, Expectation::default());
    let found = simulate(&trace, &machine, Policy::Planned(&plan)).unwrap();
    let of = |storage, direction| {
        let all = found.transfers.iter();
        all.filter(move |it| it.storage == storage && it.direction == direction)
    };
    assert_eq!(of(second, MigrationDirection::In).count(), 0, "it never left, so nothing is read");
    assert!(of(second, MigrationDirection::Out).any(|it| it.ending == Ending::Moved), "{found:?}");
    assert!(found.stalls.iter().all(|stall| stall.op != OpIndex(3)), "{:?}", found.stalls);
    // The memory that the plan counts as free from op 2 on never was.
    assert!(found.memory.iter().all(|sample| sample.resident.0 + sample.moving.0 >= 10));
}

/// Checks a plan whose third iteration, long the one that was reported, is shorter than all others.
#[test]
fn what_is_reported_has_settled() {
    use crate::migration::{Migration, MigrationDirection, Target};
    let (_, trace, machine) = small_steps(20_260, 654).last().unwrap();
    let (out, back) = (MigrationDirection::Out, MigrationDirection::In);
    let rows = [
        (back, 2, 0, 1),
        (back, 4, 0, 1),
        (back, 3, 0, 6),
        (out, 0, 2, 2),
        (back, 0, 2, 3),
        (back, 0, 4, 1),
        (out, 0, 4, 4),
        (out, 4, 4, 5),
        (back, 2, 5, 6),
        (out, 4, 6, 6),
        (back, 4, 6, 8),
        (out, 3, 7, 0),
        (out, 5, 8, 9),
        (back, 5, 9, 7),
    ];
    let row = |(direction, storage, start, deadline)| Migration {
        start: OpIndex(start),
        deadline: OpIndex(deadline),
        direction,
        target: Target::Ssd,
        storage: PlanStorage(storage),
        awaited: false,
        stays: false,
    };
    let rows = rows.into_iter().map(row).collect();
    let plan = Plan::new("made", &trace, &machine, rows, Expectation::default());
    let policy = Policy::Planned(&plan);
    let after = |iterations| run_many(&trace, &machine, policy, iterations).unwrap().0.0;
    assert_eq!((after(3) - after(2), after(40) - after(39)), (460, 484));
    assert_eq!(time(&trace, &machine, policy), Nanos(484));
}
