//! More freedom never gives a worse plan.

use super::*;
use crate::instances::{freer, small_steps};
use crate::testing::{machine, training};
use crate::units::{Bytes, Nanos};

/// The steps of `make paper`.
const SEED: u64 = 20_260;

/// Storages in pieces are in pieces of at most so much: they are up to 40 bytes large.
const PIECE: Bytes = Bytes(16);

fn shortest(trace: &Trace, machine: &Machine) -> Option<Nanos> {
    let mut search = Search::new(trace, machine, TidelogOptions::default()).ok()?;
    search.run(|_| true).ok()?;
    Some(search.prices()[0].time)
}

/// A plan that is slower with more freedom: the step's number, what is freer, and both times.
type Slower = (u32, &'static str, u64, u64);

/// How many plans with more freedom there are of the first `count` small steps, how many of them
/// are faster than without, and those that are slower.
fn compared(count: u32) -> (u32, u32, Vec<Slower>) {
    let (mut all, mut faster, mut slower) = (0, 0, Vec::new());
    for (number, trace, machine) in small_steps(SEED, count) {
        let time = shortest(&trace, &machine).expect("it runs");
        for (what, trace, machine) in freer(&trace, &machine, PIECE) {
            let found = shortest(&trace, &machine).expect("what runs with less runs with more");
            all += 1;
            faster += u32::from(found < time);
            if found > time {
                slower.push((number, what, time.0, found.0));
            }
        }
    }
    println!("of {all} {faster} are faster, {} slower: {slower:?}", slower.len());
    (all, faster, slower)
}

/// Those that are slower by more than what whole nanoseconds make of the times of a few transfers.
fn beyond_rounding(slower: &[Slower]) -> Vec<Slower> {
    slower.iter().filter(|(_, _, before, after)| after - before > 2).copied().collect()
}

#[test]
fn small_steps_are_no_slower_with_more_freedom() {
    let (all, faster, slower) = compared(100);
    assert!(all == 400 && faster > 50, "{all} compared, {faster} faster");
    assert_eq!(beyond_rounding(&slower), []);
}

/// All that `make paper` looks at. With more memory two begin an op sooner, and so see an eviction
/// end later: no plan can tell an op to wait.
#[test]
#[ignore = "takes minutes: a part of make test-slow"]
fn a_thousand_small_steps_are_no_slower_with_more_freedom() {
    let (all, faster, slower) = compared(1000);
    assert!(all == 4000 && faster > 1000, "{all} compared, {faster} faster");
    let beyond = beyond_rounding(&slower);
    assert!(beyond.len() <= 2, "{beyond:?}");
    assert!(beyond.iter().all(|(_, _, before, after)| 10 * after < 11 * before), "{beyond:?}");
}

/// What no op uses leaves once and never comes back, however little more memory there is: whether
/// it was made while memory was short must not decide that.
#[test]
fn what_no_op_uses_leaves_for_good() {
    let (_, trace, mut machine) = small_steps(SEED, 272).last().expect("there are so many");
    for budget in [75, 80] {
        machine.budget = Bytes(budget);
        assert_eq!(shortest(&trace, &machine), Some(trace.duration()), "in {budget} bytes");
    }
}

/// Transfers of pieces begin at ops, as those of the whole do, and a step may differ by a hair.
#[test]
fn a_training_step_is_no_slower_with_more_freedom() {
    let trace = training(10, 400_000, 1_000_000, 600_000);
    let machine = machine(9_000_000);
    let time = shortest(&trace, &machine).unwrap().0;
    assert!(time > trace.duration().0, "there is something to plan");
    for (what, trace, machine) in freer(&trace, &machine, Bytes(150_000)) {
        let found = shortest(&trace, &machine).unwrap().0;
        assert!(found <= time + time / 1000, "{what}: {found} ns, {time} before");
    }
}
