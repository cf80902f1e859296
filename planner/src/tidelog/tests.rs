use super::*;
use crate::algorithm1;
use crate::cost::SsdLink;
use crate::endurance::WriteBudget;
use crate::instances::random_machine;
use crate::lifetime::Lifetimes;
use crate::simulate::{Policy, run_many, simulate, simulate_under};
use crate::testing::{Builder, every_plan, machine, random_trace, training};
use crate::trace::Access;
use crate::units::{Bandwidth, Bytes, Nanos};
use tidelog_random::Random;

fn time(trace: &Trace, machine: &Machine) -> u64 {
    let options = TidelogOptions { goal: Goal::Time, ..TidelogOptions::default() };
    tidelog(trace, machine, options).expect("it can be simulated").1.time.0
}

#[test]
fn a_plan_made_for_what_transfers_take_is_faster_where_they_take_it() {
    let mut random = Random::new(77);
    let runtime = Runtime { lookahead: 0, handling: Nanos(3) };
    let (mut told, mut untold) = (0, 0);
    for _ in 0..100 {
        let trace = random_trace(&mut random, 14, 9);
        let machine = random_machine(&mut random, &trace);
        let options = TidelogOptions { trials: 0, ..TidelogOptions::default() };
        let Ok((plan, _)) = tidelog(&trace, &machine, options) else { continue };
        let (_, simulation) =
            tidelog(&trace, &machine, TidelogOptions { runtime, ..options }).unwrap();
        told += simulation.time.0;
        let policy = Policy::Planned(&plan);
        untold += simulate_under(runtime, &trace, &machine, policy).unwrap().time.0;
    }
    assert!(told < untold, "{told} ns, {untold} ns without being told");
}

/// Checks the steps for which a session waits: the published algorithm's plans, which move few
/// storages, are among those.
#[test]
fn where_transfers_take_their_time_the_first_plans_are_of_few() {
    let trace = training(400, 4_000, 2_000, 20_000);
    let machine = machine(Lifetimes::of(&trace).peak().0 / 2);
    let runtime = Runtime { lookahead: 32, handling: Nanos(10_000) };
    let options = TidelogOptions { runtime, ..TidelogOptions::default() };
    let mut search = Search::new(&trace, &machine, options).unwrap();
    search.advance(QUICK_STEPS).unwrap();
    let (_, best) = search.best_for(Goal::Time).unwrap();
    for score in algorithm1::Score::ALL {
        let options = algorithm1::Algorithm1Options { score, ..Default::default() };
        let plan = algorithm1::algorithm1(&trace, &machine, options);
        let published = simulate_under(runtime, &trace, &machine, Policy::Planned(&plan)).unwrap();
        assert!(best.time <= published.time, "{score:?}: {:?}, {:?}", best.time, published.time);
    }
}

#[test]
fn what_fits_stays() {
    let trace = training(6, 40, 60, 50);
    let (plan, simulation) = tidelog(&trace, &machine(1 << 20), TidelogOptions::default()).unwrap();
    assert!(plan.rows.is_empty(), "{:?}", plan.rows);
    assert_eq!(simulation.time, trace.duration());
}

/// A global that is only read is written never: the copy that it began with is good for ever.
#[test]
fn what_nothing_modifies_is_never_written_again() {
    let mut b = Builder::default();
    let weights: Vec<_> = (0..6).map(|n| b.global(&format!("weight{n}"), 1_000)).collect();
    b.ops(6, 2_000);
    for (op, weight) in weights.iter().enumerate() {
        b.uses(op, *weight, Access::Read);
    }
    let trace = b.finish();
    let (_, simulation) = tidelog(&trace, &machine(3_000), TidelogOptions::default()).unwrap();
    assert_eq!(simulation.bytes.ssd_written, Bytes(0));
    assert_eq!(simulation.time, trace.duration(), "reads hide behind ops twice as long");
}

#[test]
fn a_training_step_is_no_slower_than_as_published() {
    for (layers, weight, activation, op_time) in
        [(12, 40, 100, 60), (30, 90, 40, 70), (20, 10, 300, 200)]
    {
        let trace = training(layers, weight * 1_000, activation * 1_000, op_time * 1_000);
        let machine = machine(Lifetimes::of(&trace).peak().0 / 2);
        let ours = time(&trace, &machine);
        for score in [
            algorithm1::Score::PerTransferTime,
            algorithm1::Score::PerByte,
            algorithm1::Score::Benefit,
        ] {
            let options =
                algorithm1::Algorithm1Options { score, ..algorithm1::Algorithm1Options::default() };
            let plan = algorithm1::algorithm1(&trace, &machine, options);
            let published = simulate(&trace, &machine, Policy::Planned(&plan)).unwrap().time.0;
            assert!(ours <= published, "{layers} layers, {score:?}: {ours} after {published}");
        }
    }
}

#[test]
fn any_trace_that_fits_at_all_gets_a_plan_that_runs() {
    let mut random = Random::new(99);
    let (mut ours, mut reactive) = (0, 0);
    let options = TidelogOptions { published: 0, trials: 0, ..TidelogOptions::default() };
    for case in 0..600 {
        let trace = random_trace(&mut random, 14, 9);
        let lifetimes = Lifetimes::of(&trace);
        let largest = trace.storages.iter().map(|storage| storage.size.0).max().unwrap();
        let least = lifetimes.largest_op().1.0.max(largest);
        let mut machine = machine(least + random.below(lifetimes.peak().0 - least + 1));
        machine.ssd.write = Bandwidth(200_000_000 << random.below(4));
        let planned = tidelog(&trace, &machine, options);
        let (plan, _) = planned.unwrap_or_else(|error| panic!("case {case}: {error}"));
        ours += run_many(&trace, &machine, Policy::Planned(&plan), 10).unwrap().0.0;
        reactive += run_many(&trace, &machine, Policy::Lru, 10).unwrap().0.0;
    }
    assert!(ours < reactive, "{ours} with plans, {reactive} without");
}

/// The small one of two that could leave is the better one, but not from a plan that moves the
/// other.
#[test]
fn trials_find_what_changing_one_period_of_the_best_plan_does_not() {
    let mut b = Builder::default();
    let weight = b.global("weight", 38);
    let state = b.global("state", 16);
    b.ops(7, 1);
    let activation = b.birth(0, 14);
    let scratch = b.birth(3, 16);
    b.uses(1, state, Access::Update);
    b.uses(3, state, Access::Write);
    b.death(3, scratch, false);
    b.uses(4, activation, Access::Update);
    b.uses(5, activation, Access::Write);
    b.uses(6, weight, Access::Read);
    b.uses(6, state, Access::Write);
    b.death(6, activation, false);
    let mut trace = b.finish();
    for (op, duration) in trace.ops.iter_mut().zip([28, 25, 1, 15, 5, 4, 3]) {
        op.duration = Nanos(duration);
    }
    let mut machine = machine(72);
    machine.ssd = SsdLink {
        read: Bandwidth(1_000_000_000),
        write: Bandwidth(4_000_000_000),
        latency: Nanos(0),
    };
    let plans = every_plan(&trace, &machine).expect("it is small");
    let time_of = |plan| simulate(&trace, &machine, Policy::Planned(plan)).unwrap().time.0;
    let best = plans.iter().map(time_of).min().unwrap();
    assert_eq!(time(&trace, &machine), best, "of {} plans", plans.len());
}

#[test]
fn the_frontier_goes_from_the_shortest_time_to_the_fewest_bytes() {
    let trace = training(8, 50, 40, 30);
    let options = TidelogOptions { trials: 0, ..TidelogOptions::default() };
    let found = frontier(&trace, &machine(500), options).unwrap();
    for pair in found.windows(2) {
        assert!(pair[0].1.time < pair[1].1.time);
        assert!(pair[0].1.bytes.ssd_written > pair[1].1.bytes.ssd_written);
    }
    let (_, fastest) = tidelog(&trace, &machine(500), options).unwrap();
    let wear = TidelogOptions { goal: Goal::Wear, ..options };
    let (_, thrifty) = tidelog(&trace, &machine(500), wear).unwrap();
    assert!(found[0].1.time <= fastest.time);
    assert!(found.iter().any(|(_, one)| (one.time, one.bytes) == (thrifty.time, thrifty.bytes)));
}

#[test]
fn the_same_trace_gives_the_same_plan() {
    let trace = training(12, 40_000, 100_000, 60_000);
    let machine = machine(900_000);
    let text =
        || tidelog(&trace, &machine, TidelogOptions::default()).unwrap().0.named(&trace).to_json();
    assert_eq!(text(), text());
}

/// A hundredth of time is worth fewer bytes; not more of it, and never more than is published.
#[test]
fn the_default_goal_gives_a_hundredth_of_time_for_fewer_bytes() {
    // Trials may find one plan that is the best in both, or writes of what stays.
    let without = Some(Idea::Cleaning);
    let options = TidelogOptions { trials: 0, without, ..TidelogOptions::thorough() };
    let (mut spared, mut cases) = (0, 0);
    for (layers, op_time, budget) in [(12, 60, 900_000), (16, 20, 1_500_000), (16, 40, 1_000_000)] {
        let trace = training(layers, 40_000, 100_000, op_time * 1_000);
        let machine = machine(budget);
        let mut search = Search::new(&trace, &machine, options).unwrap();
        search.run(|_| true).unwrap();
        let [fast, balanced, thrifty] = [Goal::Time, Goal::default(), Goal::Wear]
            .map(|goal| search.best_for(goal).expect("it is searched").1);
        let shortest = search.prices()[0].time.0;
        assert!(balanced.time.0 <= shortest + shortest / 100);
        assert!(balanced.bytes.ssd_written <= fast.bytes.ssd_written);
        let allowed = search.frontier().into_iter().map(|(_, one)| one);
        let allowed = allowed.filter(|one| one.time <= balanced.time);
        let fewest = allowed.map(|one| one.bytes.ssd_written).min();
        assert_eq!(fewest, Some(balanced.bytes.ssd_written));
        assert!(thrifty.bytes.ssd_written.0 > 0 && balanced.time.0 < 2 * thrifty.time.0);
        spared += u32::from(balanced.bytes.ssd_written < fast.bytes.ssd_written);
        cases += 1;
    }
    assert!(spared > 0, "of {cases} steps");
}

/// A budget that is kept anyway changes nothing; a smaller one leads to the shortest step with its
/// pause that any plan has, down to one that no plan keeps to.
#[test]
fn a_write_budget_leads_to_the_shortest_step_with_its_pause() {
    const DAY: u64 = 86_400 * 1_000_000_000;
    let trace = training(8, 50, 40, 30);
    let machine = machine(500);
    let options = TidelogOptions { trials: 0, ..TidelogOptions::default() };
    let (free, fast) = tidelog(&trace, &machine, options).unwrap();
    let all = frontier(&trace, &machine, options).unwrap();
    let beside = Nanos(7);
    let (mut paused, mut slower) = (0, 0);
    for percent in [200, 101, 95, 80, 60, 40, 20, 5] {
        let per_step = fast.bytes.ssd_written.0 * percent / 100;
        let per_day = Bytes(DAY / (fast.time.0 + beside.0) * per_step);
        let goal = Goal::Budget(WriteBudget { per_day, beside });
        let (plan, found) = tidelog(&trace, &machine, TidelogOptions { goal, ..options }).unwrap();
        let length = |one: &Simulation| goal.length(one.time, one.bytes.ssd_written);
        if percent > 100 {
            assert_eq!(plan.rows, free.rows);
        }
        let shortest = all.iter().map(|(_, one)| length(one)).min().unwrap();
        assert!(length(&found).0 <= shortest.0 + shortest.0 / 100, "{percent} %");
        slower += u32::from(found.time > fast.time);
        paused += u32::from(length(&found).0 > found.time.0 + beside.0);
        let written = u128::from(found.bytes.ssd_written.0) * u128::from(DAY);
        assert!(written <= u128::from(per_day.0) * u128::from(length(&found).0), "{percent} %");
    }
    assert!(slower > 0 && paused > 0, "{slower} slower, {paused} with pauses");
}
