//! Random checkpointed steps: every choice of reruns against the step without checkpointing, and
//! against what the bound says of all of them.

use super::tests::sorted;
use super::*;
use crate::bound::{Effort, with_skips};
use crate::instances::{CheckpointedStep, random_machine};
use crate::simulate::{Policy, Runtime, run_many};
use crate::tidelog::{Goal, TidelogOptions, tidelog};
use crate::units::Nanos;
use tidelog_random::Random;

/// Plans enough to tell choices apart.
const FEW: TidelogOptions = TidelogOptions {
    rounds: 2,
    planned: 2_000,
    published: 0,
    goal: Goal::Balanced,
    trials: 2_000,
    runtime: Runtime { lookahead: 0, handling: Nanos(0) },
    gpu: None,
    without: None,
};

/// Every choice of a few reruns.
fn choices(count: usize) -> impl Iterator<Item = LeftOut> {
    (0..1u32 << count).map(move |bits| {
        LeftOut((0..count as u32).filter(|rerun| bits & (1 << rerun) != 0).collect())
    })
}

#[test]
fn random_steps_without_reruns_are_those_without_checkpointing() {
    let mut random = Random::new(6);
    let (mut found, mut made) = (0, 0);
    for number in 0..2_000 {
        let step = CheckpointedStep::random(&mut random);
        let (trace, plain) = (step.checkpointed(), step.plain());
        let reruns = Reruns::of(&trace);
        for left_out in choices(reruns.all().len()) {
            let kept = reruns.without(&left_out);
            let kept = kept.unwrap_or_else(|error| panic!("step {number}: {error}\n{step:?}"));
            let saved: u64 =
                left_out.0.iter().map(|rerun| reruns.all()[*rerun as usize].time.0).sum();
            assert_eq!(kept.trace.duration().0 + saved, trace.duration().0);
            made += 1;
        }
        if reruns.all().len() == step.blocks * step.micro_batches {
            found += 1;
            let kept = reruns.without(&reruns.every()).unwrap().trace;
            assert_eq!(sorted(kept.ops), sorted(plain.ops), "step {number}: {step:?}");
            assert_eq!(kept.storages, plain.storages, "step {number}");
        }
    }
    assert!(found > 1_000 && made > 10_000, "{found} with all reruns found, {made} choices");
}

/// Checks that no choice in any iteration is shorter than the bound.
#[test]
fn no_choice_of_reruns_beats_the_bound() {
    const ITERATIONS: u64 = 40;
    let mut random = Random::new(7);
    let (mut telling, mut runs) = (0, 0);
    for case in 0..100 {
        let step = CheckpointedStep::random(&mut random);
        let trace = step.checkpointed();
        let reruns = Reruns::of(&trace);
        if reruns.all().is_empty() || reruns.all().len() > 3 {
            continue;
        }
        let machine = random_machine(&mut random, &trace);
        let effort = Effort { instants: 1 << 20, steps: 60 };
        let bound = with_skips(&trace, &machine, effort, &reruns.skippable()).unwrap().time;
        let all_left_out = reruns.without(&reruns.every()).unwrap().trace.duration();
        telling += u32::from(bound > all_left_out);
        let bytes = trace.storages.iter().map(|storage| 2 * storage.size.0).sum();
        let bytes = crate::units::Bytes(bytes);
        let owed = machine.ssd.read.time_for(bytes).0 + machine.ssd.write.time_for(bytes).0;
        for left_out in choices(reruns.all().len()) {
            let kept = reruns.without(&left_out).unwrap().trace;
            let Ok((plan, _)) = tidelog(&kept, &machine, FEW) else {
                continue;
            };
            for policy in [Policy::Lru, Policy::Planned(&plan)] {
                let Ok((Nanos(time), _)) = run_many(&kept, &machine, policy, ITERATIONS as u32)
                else {
                    continue;
                };
                runs += 1;
                assert!(
                    time + owed >= ITERATIONS * bound.0,
                    "case {case}, without {left_out}: {time} for {ITERATIONS} iterations, the bound is {bound:?}"
                );
            }
        }
    }
    assert!(telling > 10 && runs > 200, "{telling} bounds say something, {runs} runs");
}

/// Checks the result of the search against every choice there is.
#[test]
fn the_best_choice_is_found_among_all() {
    let mut random = Random::new(8);
    let (mut cases, mut best_found, mut worst) = (0, 0, 1000);
    for _ in 0..80 {
        let step = CheckpointedStep::random(&mut random);
        let trace = step.checkpointed();
        let reruns = Reruns::of(&trace);
        if !(2..=5).contains(&reruns.all().len()) {
            continue;
        }
        let machine = random_machine(&mut random, &trace);
        let plan = |trace: &Trace| {
            Ok::<_, crate::cost::MachineError>(
                tidelog(trace, &machine, FEW).ok().map(|found| found.1.time),
            )
        };
        let every: Vec<Nanos> = choices(reruns.all().len())
            .filter_map(|left_out| plan(&reruns.without(&left_out).unwrap().trace).unwrap())
            .collect();
        let found = choose(&reruns, &machine, plan).unwrap();
        let (best, found) = (every.iter().min().unwrap().0, found[0].cost.0);
        cases += 1;
        best_found += u32::from(found == best);
        worst = worst.max(found * 1000 / best);
    }
    println!("{best_found} of {cases} are the best, worst {worst} per mille");
    assert!(cases > 25 && worst <= 1_200, "{cases} cases, worst {worst} per mille");
}
