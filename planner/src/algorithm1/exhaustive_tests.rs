//! Tiny traces, every plan there is: how far the algorithm is from the best of them.

use super::*;
use crate::plan::Expectation;
use crate::simulate::{Policy, simulate};
use crate::testing::{Random, machine, random_trace};
use crate::units::Bandwidth;

/// More plans than this are not tried; the case is passed over.
const PLANS_MAX: usize = 1500;

/// The migrations that one period allows: none, or out at its beginning and back from some op on.
fn choices(trace: &Trace, period: &Period) -> Vec<Vec<Row>> {
    let ops = trace.ops.len() as u32;
    let storage = trace.storage(period.storage).identity.clone();
    let row = |action, start: u32, deadline: u32| Row {
        start: OpIndex(start % ops),
        deadline: OpIndex(deadline % ops),
        action,
        target: Target::Ssd,
        storage: storage.clone(),
    };
    let mut choices = vec![Vec::new()];
    for back in period.from + 1..period.to {
        let evict = row(Action::Evict, period.from, back);
        choices.push(vec![evict, row(Action::Prefetch, back, period.to)]);
    }
    choices
}

/// Every combination of the periods' choices; `None` if there are too many.
fn every_plan(trace: &Trace, machine: &Machine) -> Option<Vec<Plan>> {
    let mut plans: Vec<Vec<Row>> = vec![Vec::new()];
    let lifetimes = Lifetimes::of(trace);
    for period in lifetimes.periods.iter().filter(|period| period.end == PeriodEnd::Use) {
        let choices = choices(trace, period);
        if plans.len() * choices.len() > PLANS_MAX {
            return None;
        }
        plans = plans
            .iter()
            .flat_map(|rows| choices.iter().map(|choice| [rows.as_slice(), choice].concat()))
            .collect();
    }
    let plan = |rows| Plan::new("exhaustive", trace, machine, rows, Expectation::default());
    Some(plans.into_iter().map(plan).collect())
}

#[test]
fn the_algorithm_is_between_the_best_of_all_plans_and_a_little_more() {
    let mut random = Random(31);
    let (mut cases, mut best_found, mut sums) = (0u32, 0u32, [0u64; 4]);
    while cases < 150 {
        let trace = random_trace(&mut random, 8, 5);
        let lifetimes = Lifetimes::of(&trace);
        let least = trace.storages.iter().map(|storage| storage.size.0).max().unwrap();
        let least = least.max(lifetimes.largest_op().1.0);
        let mut machine = machine(least + random.below(lifetimes.peak().0 - least + 1));
        let rate = Bandwidth(1_000_000_000 << random.below(3));
        (machine.ssd.read, machine.ssd.write) = (rate, rate);
        let Some(plans) = every_plan(&trace, &machine) else { continue };
        let time = |policy| simulate(&trace, &machine, policy).unwrap().time;
        let lru = time(Policy::Lru);
        if plans.len() < 4 || lru == trace.duration() {
            continue;
        }
        let best = plans.iter().map(|plan| time(Policy::Planned(plan))).min().unwrap();
        let plan = algorithm1(&trace, &machine, Options::default());
        let found = time(Policy::Planned(&plan));
        let seed = format!("case {cases}");
        assert!(trace.duration() <= best && best <= found, "{seed}: best {best:?}, {found:?}");
        cases += 1;
        best_found += u32::from(found == best);
        for (sum, time) in sums.iter_mut().zip([trace.duration(), best, found, lru]) {
            *sum += time.0 * 1000 / trace.duration().0;
        }
    }
    let [ideal, best, found, lru] = sums.map(|sum| sum / u64::from(cases));
    println!(
        "per mille of ideal: {ideal}, best {best}, algorithm1 {found}, lru {lru}; best in {best_found}"
    );
    assert!(found < lru, "algorithm1 {found}, lru {lru}");
}
