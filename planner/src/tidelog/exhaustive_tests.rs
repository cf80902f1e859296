//! Tiny traces, every plan there is: tidelog's against the best of them.

use super::*;
use crate::lifetime::Lifetimes;
use crate::simulate::{Policy, simulate};
use crate::testing::{every_plan, machine, random_trace};
use crate::units::Bandwidth;
use tidelog_random::Random;

#[test]
fn tidelog_is_close_to_the_best_of_all_plans() {
    let mut random = Random::new(47);
    let (mut cases, mut best_found, mut worst, mut beyond) = (0u32, 0u32, 0, 0);
    while cases < 100 {
        let trace = random_trace(&mut random, 8, 5);
        let lifetimes = Lifetimes::of(&trace);
        let least = trace.storages.iter().map(|storage| storage.size.0).max().unwrap();
        let least = least.max(lifetimes.largest_op().1.0);
        let mut machine = machine(least + random.below(lifetimes.peak().0 - least + 1));
        let rate = Bandwidth(1_000_000_000 << random.below(3));
        (machine.ssd.read, machine.ssd.write) = (rate, rate);
        let Some(plans) = every_plan(&trace, &machine) else { continue };
        let time = |policy| simulate(&trace, &machine, policy).unwrap().time.0;
        if plans.len() < 4 || time(Policy::Lru) == trace.duration().0 {
            continue;
        }
        let best = plans.iter().map(|plan| time(Policy::Planned(plan))).min().unwrap();
        let found = tidelog(&trace, &machine, TidelogOptions::default()).unwrap().1.time.0;
        cases += 1;
        best_found += u32::from(found <= best);
        beyond += u32::from(found * 10 > best * 11);
        worst = worst.max(found * 1000 / best);
    }
    println!("{best_found} of {cases} are the best, {beyond} beyond 1.1, worst {worst} per mille");
    assert_eq!(beyond, 0, "worst {worst} per mille of the best");
}
