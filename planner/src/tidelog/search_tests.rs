//! Searches that are stopped and go on.

use super::*;
use crate::instances::deep_network;
use crate::lifetime::Lifetimes;
use crate::simulate::{Policy, simulate};
use crate::testing::{machine, training};
use crate::units::Nanos;

fn texts(search: &Search<'_>, trace: &Trace) -> Vec<String> {
    search.frontier().into_iter().map(|(plan, _)| plan.named(trace).to_json()).collect()
}

#[test]
fn a_search_that_is_stopped_goes_on_as_if_it_had_not_been() {
    let trace = training(12, 40_000, 100_000, 60_000);
    let machine = machine(900_000);
    let mut whole = Search::new(&trace, &machine, TidelogOptions::thorough()).unwrap();
    assert!(!whole.run(|_| true).unwrap());
    let mut parts = Search::new(&trace, &machine, TidelogOptions::thorough()).unwrap();
    let mut stops = 0;
    while parts.advance(3).unwrap() {
        stops += 1;
    }
    assert!(stops > 10, "{stops}");
    assert_eq!((parts.steps(), texts(&parts, &trace)), (whole.steps(), texts(&whole, &trace)));
    assert!(!parts.advance(1).unwrap(), "nothing is left");
}

/// Checks that a number of steps finds the same plans wherever they are made, and that more never
/// find worse ones.
#[test]
fn more_steps_never_end_with_a_worse_plan() {
    let trace = training(16, 40_000, 100_000, 30_000);
    let machine = machine(Lifetimes::of(&trace).peak().0 / 2);
    let mut search = Search::new(&trace, &machine, TidelogOptions::thorough()).unwrap();
    assert!(search.best().is_none() && search.prices().is_empty());
    let mut before = Nanos(u64::MAX);
    let mut better = 0;
    while search.advance(1).unwrap() {
        let fastest = search.prices()[0].time;
        assert!(fastest <= before, "{fastest:?} after {before:?} at step {}", search.steps());
        better += u32::from(fastest < before);
        before = fastest;
        let (plan, _) = search.best().expect("the first step makes a plan");
        let again = simulate(&trace, &machine, Policy::Planned(&plan)).unwrap();
        assert_eq!((plan.expects.time, plan.expects.bytes), (again.time, again.bytes));
    }
    assert!(better > 2, "{better} times better");
}

/// A plan that is followed already is given up for a better one only.
#[test]
fn a_search_that_knows_a_plan_never_ends_with_a_worse_one() {
    let trace = training(16, 40_000, 100_000, 30_000);
    let machine = machine(Lifetimes::of(&trace).peak().0 / 2);
    let (known, simulated) = tidelog(&trace, &machine, TidelogOptions::default()).unwrap();
    let mut search = Search::new(&trace, &machine, TidelogOptions::default()).unwrap();
    search.offer(&known.rows).unwrap();
    assert_eq!(search.best().unwrap().0.rows, known.rows);
    search.advance(1).unwrap();
    assert!(search.best_for(Goal::Time).unwrap().1.time <= simulated.time);
    assert_eq!(search.steps(), 1);
}

#[test]
fn a_step_costs_what_the_search_has_found_and_nothing_where_it_cannot_run() {
    let trace = training(16, 40_000, 100_000, 30_000);
    let roomy = machine(Lifetimes::of(&trace).peak().0 / 2);
    let mut search = Search::new(&trace, &roomy, TidelogOptions::default()).unwrap();
    search.advance(QUICK_STEPS).unwrap();
    let best = search.best().unwrap().1;
    let cost = |machine| step_cost(&trace, machine, TidelogOptions::default(), QUICK_STEPS);
    assert_eq!(cost(&roomy).unwrap(), Some((best.time, best.bytes.ssd_written)));
    assert_eq!(cost(&machine(1)).unwrap(), None);
}

#[test]
fn the_first_step_makes_a_plan_whatever_the_caller_says() {
    let trace = training(12, 40_000, 100_000, 60_000);
    let machine = machine(900_000);
    let mut search = Search::new(&trace, &machine, TidelogOptions::default()).unwrap();
    assert!(search.run(|_| false).unwrap());
    assert_eq!(search.steps(), 1);
    assert!(search.best().is_some());
}

/// A thorough search knows every plan that the quick one does, and those for less writing.
#[test]
fn a_thorough_search_never_ends_with_a_worse_plan_than_a_quick_one() {
    let trace = deep_network(40);
    let machine = machine(Lifetimes::of(&trace).peak().0 / 2);
    let found = |options| tidelog(&trace, &machine, options).unwrap().1;
    let quick = found(TidelogOptions { planned: 0, ..TidelogOptions::default() });
    let thorough = found(TidelogOptions::thorough());
    let (time, written) = (thorough.time.0, thorough.bytes.ssd_written);
    assert!(time <= quick.time.0, "{time} after {}", quick.time.0);
    let all = frontier(&trace, &machine, TidelogOptions::thorough()).unwrap();
    assert!(all[0].1.time.0 <= time);
    assert!(all[all.len() - 1].1.bytes.ssd_written <= written);
}

#[test]
fn the_prices_of_the_plans_fall_in_bytes_as_they_rise_in_time() {
    let trace = training(16, 40_000, 100_000, 30_000);
    let machine = machine(Lifetimes::of(&trace).peak().0 / 2);
    let mut search = Search::new(&trace, &machine, TidelogOptions::thorough()).unwrap();
    search.run(|_| true).unwrap();
    let prices = search.prices();
    assert!(prices.len() > 1, "{prices:?}");
    assert!(prices.is_sorted_by(|a, b| a.time < b.time && a.written > b.written), "{prices:?}");
    let chosen: Vec<_> = prices.iter().filter(|price| price.chosen).collect();
    let best = search.best().unwrap().1;
    assert_eq!(chosen.len(), 1);
    assert_eq!((chosen[0].time, chosen[0].written), (best.time, best.bytes.ssd_written));
}
