//! Tiny traces, every plan there is: how far the algorithm is from the best of them.

use super::*;
use crate::simulate::{Policy, simulate};
use crate::testing::{every_plan, machine, random_trace};
use crate::units::Bandwidth;
use tidelog_random::Random;

#[test]
fn the_algorithm_is_between_the_best_of_all_plans_and_a_little_more() {
    let mut random = Random::new(31);
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
        let plan = algorithm1(&trace, &machine, Algorithm1Options::default());
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
