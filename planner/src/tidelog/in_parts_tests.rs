//! Plans in parts against those for whole storages, the bound, and every plan there is.

use super::in_parts::in_parts_of;
use super::*;
use crate::bound::{Effort, Relaxation, lower_bound};
use crate::cost::Machine;
use crate::instances::{every_plan, magnified, small_steps};
use crate::parts::{Cuts, PartedStep};
use crate::plan::PlanFile;
use crate::simulate::{Policy, run_many, simulate};
use crate::testing::{machine, training};
use crate::units::{Bytes, Nanos};

const MIB: u64 = 1 << 20;

/// Every op is an instant.
const FINE: Effort = Effort { instants: 1 << 20, steps: 60 };

/// Small steps whose storages are 1 to 40 MiB large.
fn steps(seed: u64, count: u32) -> impl Iterator<Item = (u32, Trace, Machine)> {
    small_steps(seed, count).map(|(number, trace, machine)| {
        let (trace, machine) = magnified(&trace, &machine, MIB);
        (number, trace, machine)
    })
}

/// The best by a goal is no worse: of the times within the goal's share of the shortest found, the
/// fewest bytes.
#[test]
fn parts_never_lead_to_a_worse_plan() {
    let (mut better, mut faster) = (0, 0);
    for (number, trace, machine) in steps(20_260, 30) {
        for goal in [Goal::Balanced, Goal::Time, Goal::Wear] {
            let options = TidelogOptions { goal, ..TidelogOptions::default() };
            let mut whole = Search::new(&trace, &machine, options).unwrap();
            whole.run(|_| true).unwrap();
            let known = whole.best().unwrap().1;
            let shortest = whole.prices()[0].time;
            let cuts = Cuts::into_parts_of(&trace, Bytes(8 * MIB));
            let Some(found) = in_parts_of(&whole, &cuts, |_| true).unwrap() else { continue };
            better += 1;
            let (time, written) = (found.simulation.time, found.simulation.bytes.ssd_written);
            faster += u32::from(time < shortest);
            let is_faster = time < known.time;
            let writes_less = written < known.bytes.ssd_written;
            assert!(is_faster || writes_less, "step {number}: {goal:?}");
            let within = match goal {
                Goal::Balanced => shortest.0 + shortest.0 / 100,
                Goal::Time => shortest.0 + shortest.0 / 1000,
                Goal::Wear => whole.best().unwrap().1.time.0.max(time.0),
                Goal::Budget(_) => unreachable!("none of these"),
            };
            assert!(time.0 <= within, "step {number}: {goal:?}, {time:?} of {shortest:?}");
            // What is told of the plan is what it does.
            let again =
                simulate(&found.step.trace, &machine, Policy::Planned(&found.plan)).unwrap();
            assert_eq!((again.time, again.bytes), (time, found.simulation.bytes));
            assert!(found.prices.iter().filter(|price| price.chosen).count() == 1);
            // And its file says all of it.
            let file = found.plan.named_in_parts(&found.step);
            let read = PlanFile::from_json(&file.to_json()).unwrap();
            assert_eq!(read, file);
            let (step, plan) = read.in_parts(&trace).unwrap();
            assert_eq!((step.trace, plan), (found.step.trace, found.plan));
        }
    }
    println!("{better} of 90 are better, {faster} faster than any with whole storages");
    assert!(better > 30 && faster > 15, "{better} better, {faster} faster");
}

/// Checks that cuts of storages do not change the bound: in the relaxed problem bytes move singly.
#[test]
fn the_bound_is_the_same_for_parts() {
    for (number, trace, machine) in steps(3, 200) {
        let cuts = Cuts::into_parts_of(&trace, Bytes(2 * MIB));
        let step = PartedStep::of(&trace, &cuts);
        let whole = lower_bound(&trace, &machine, FINE).unwrap();
        let parts = lower_bound(&step.trace, &machine, FINE).unwrap();
        assert_eq!((whole.time, &whole.prices), (parts.time, &parts.prices), "step {number}");
        let relaxation = Relaxation::new(&step.trace, &machine, FINE.instants);
        assert_eq!(relaxation.value(&whole.prices), Ok(whole.time));
    }
}

/// Checks the best of all plans in parts, over many iterations.
#[test]
fn no_plan_in_parts_beats_the_bound() {
    const ITERATIONS: u64 = 40;
    let (mut telling, mut plans_tried) = (0, 0);
    for (number, trace, machine) in steps(9, 150) {
        let cuts = Cuts::into_parts_of(&trace, Bytes(16 * MIB));
        let step = PartedStep::of(&trace, &cuts);
        let Some(plans) = every_plan(&step.trace, &machine) else { continue };
        let bound = lower_bound(&trace, &machine, FINE).unwrap().time;
        telling += u32::from(bound > trace.duration() && step.counts().0 > 0);
        // A run may owe to later iterations what memory holds at its end.
        let all = Bytes(trace.storages.iter().map(|storage| 2 * storage.size.0).sum());
        let owed = machine.ssd.read.time_for(all).0 + machine.ssd.write.time_for(all).0;
        for policy in plans.iter().map(Policy::Planned).chain([Policy::Lru]) {
            let (Nanos(time), _) =
                run_many(&step.trace, &machine, policy, ITERATIONS as u32).unwrap();
            plans_tried += 1;
            assert!(
                time + owed >= ITERATIONS * bound.0,
                "step {number}: {time} for {ITERATIONS} iterations, the bound is {bound:?} for one"
            );
        }
    }
    println!("{telling} bounds say something, {plans_tried} plans");
    assert!(telling > 10 && plans_tried > 4000, "{telling} bounds, {plans_tried} plans");
}

/// Checks that a part of a storage is enough where memory is short by less.
#[test]
fn a_part_is_enough_where_little_memory_is_missing() {
    let trace = training(6, 64 * MIB, 128 * MIB, 30_000_000);
    let mut machine = machine(0);
    let rate = crate::units::Bandwidth(16_000_000_000);
    (machine.ssd.read, machine.ssd.write) = (rate, rate);
    machine.budget.0 = crate::lifetime::Lifetimes::of(&trace).peak().0 - 16 * MIB;
    let mut whole = Search::new(&trace, &machine, TidelogOptions::thorough()).unwrap();
    whole.run(|_| true).unwrap();
    let found = in_parts(&whole, |_| true).unwrap().expect("a part is better");
    let written = found.simulation.bytes.ssd_written.0;
    let of_whole = whole.best().unwrap().1.bytes.ssd_written.0;
    assert!(written <= 32 * MIB && of_whole >= 64 * MIB, "{written} instead of {of_whole}");
}
