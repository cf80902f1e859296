//! Tests that plans are the same bytes on every run, machine and build: plans of fixed traces
//! against digests written down.

use super::*;
use crate::lifetime::Lifetimes;
use crate::testing::{machine, random_trace, training};
use tidelog_random::Random;

/// FNV-1a: enough to tell any difference.
fn digest(text: &str) -> u64 {
    let mix = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    text.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Digest that a change of the policy on purpose changes, and nothing else may.
const STEP: u64 = 0xd69c_ce68_3690_174d;
const THRIFTY: u64 = 0x10cd_15fe_af58_38cc;
const RANDOM: u64 = 0x0de2_7e3b_93cc_5a1b;

/// Debug and release builds run this with the same constants.
#[test]
fn plans_are_the_same_bytes_in_debug_and_release() {
    let trace = training(12, 40_000, 100_000, 60_000);
    let machine_of = |budget| machine(budget);
    let (plan, _) = tidelog(&trace, &machine_of(900_000), TidelogOptions::default()).unwrap();
    let step = digest(&plan.named(&trace).to_json());
    // Its prices are searched in floating point.
    let options = TidelogOptions { goal: Goal::Wear, ..TidelogOptions::default() };
    let (plan, _) = tidelog(&trace, &machine_of(900_000), options).unwrap();
    let thrifty = digest(&plan.named(&trace).to_json());
    let mut random = Random::new(12);
    let mut all = String::new();
    for _ in 0..40 {
        let trace = random_trace(&mut random, 14, 9);
        let lifetimes = Lifetimes::of(&trace);
        let largest = trace.storages.iter().map(|storage| storage.size.0).max().unwrap();
        let least = lifetimes.largest_op().1.0.max(largest);
        let budget = least + (lifetimes.peak().0 - least) / 2;
        let (plan, _) = tidelog(&trace, &machine_of(budget), TidelogOptions::default()).unwrap();
        all += &plan.named(&trace).to_json();
    }
    let random = digest(&all);
    let found = (step, thrifty, random);
    assert_eq!(found, (STEP, THRIFTY, RANDOM), "{step:#018x} {thrifty:#018x} {random:#018x}");
}
