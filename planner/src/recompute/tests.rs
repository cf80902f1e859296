use super::*;
use crate::bound::{Effort, lower_bound, with_skips};
use crate::instances::{CheckpointedStep, LayeredStep};
use crate::testing::machine;
use crate::tidelog::{TidelogOptions, tidelog};
use crate::trace::{Access, Op, PlanStorage, Use};
use crate::units::{Bytes, Nanos};

/// Sorts the deaths beside each op, which have no order.
pub(super) fn sorted(mut ops: Vec<Op>) -> Vec<Op> {
    for op in &mut ops {
        op.deaths.sort_by_key(|death| death.storage);
    }
    ops
}

#[test]
fn reruns_are_what_runs_twice() {
    let step = CheckpointedStep::of(3, 2);
    let trace = step.checkpointed();
    let reruns = Reruns::of(&trace);
    let all = reruns.all();
    assert_eq!(all.len(), 6);
    // The last block is run again first; what its last op makes is not needed for its backward.
    assert_eq!(all[0].again.len(), 2);
    assert_eq!(all[0].first, 7..9);
    assert_eq!(all[0].again, 11..13);
    assert_eq!((all[0].time, all[0].bytes), (Nanos(22_000), Bytes(80_000)));
    let layers: Vec<u32> = all.iter().map(|rerun| rerun.layer).collect();
    assert_eq!(layers, [0, 1, 2, 0, 1, 2]);
}

#[test]
fn a_step_that_runs_nothing_twice_has_no_reruns() {
    assert!(Reruns::of(&CheckpointedStep::of(3, 2).plain()).all().is_empty());
    assert!(Reruns::of(&LayeredStep::of(3, 4).trace()).all().is_empty());
}

#[test]
fn without_any_rerun_the_step_is_the_one_without_checkpointing() {
    let step = CheckpointedStep::of(3, 2);
    let trace = step.checkpointed();
    let reruns = Reruns::of(&trace);
    let kept = reruns.without(&reruns.every()).unwrap().trace;
    let plain = step.plain();
    assert_eq!(kept.storages, plain.storages);
    assert_eq!(sorted(kept.ops.clone()), sorted(plain.ops.clone()));
    assert_eq!(kept.fingerprint(), plain.fingerprint());
    assert_eq!(reruns.without(&LeftOut::default()).unwrap().trace, trace);
}

/// A block that changes something of its own twice, such as a running mean, does it twice.
#[test]
fn what_changes_more_than_it_makes_is_no_rerun() {
    let mut trace = CheckpointedStep::of(2, 1).checkpointed();
    let changed: Vec<_> = trace.ops.iter_mut().filter(|op| op.name == "forward0").collect();
    for op in changed {
        op.uses[0].access = Access::Update;
    }
    assert!(Reruns::of(&trace).all().is_empty());
}

/// Two passes over the same batch, as contrastive learning has them, are not one another's rerun:
/// they may draw other random numbers.
#[test]
fn what_runs_more_than_twice_is_no_rerun() {
    let mut trace = CheckpointedStep::of(2, 2).checkpointed();
    assert_eq!(Reruns::of(&trace).all().len(), 4);
    let loads: Vec<usize> =
        (0..trace.ops.len()).filter(|op| trace.ops[*op].name == "load").collect();
    let [first, second] = [0, 1].map(|index| trace.ops[loads[index]].births[0].storage);
    // The second micro-batch reads what the first one does, which lives as long as both.
    for op in &mut trace.ops {
        op.deaths.retain(|death| death.storage != first);
        op.uses.iter_mut().filter(|used| used.storage == second).for_each(|used| {
            used.storage = first;
        });
    }
    assert!(Reruns::of(&trace).all().is_empty());
}

/// A planted mistake: what the first run has made is changed before the backward pass.
#[test]
fn a_step_that_reads_something_else_is_found() {
    let trace = CheckpointedStep::of(2, 1).checkpointed();
    let reruns = Reruns::of(&trace);
    let left_out = [&reruns.all()[0]];
    let mut step = reruns.without(&LeftOut(vec![0])).unwrap();
    check(&trace, &left_out, &step, &[]).unwrap();
    let saved: PlanStorage = left_out[0].made[0].first;
    let reader = left_out[0].first.end as usize;
    step.trace.ops[reader].uses.push(Use {
        storage: saved,
        access: Access::Update,
        previous: false,
    });
    let broken = check(&trace, &left_out, &step, &[]).unwrap_err();
    assert!(broken.to_string().contains("would read other bytes of"), "{broken}");
}

#[test]
fn a_number_that_is_no_rerun_is_refused() {
    let trace = CheckpointedStep::of(2, 1).checkpointed();
    let error = Reruns::of(&trace).without(&LeftOut(vec![0, 2])).unwrap_err();
    assert!(error.to_string().contains("no rerun 2: the step has 2"), "{error}");
}

#[test]
fn numbers_are_told_as_runs() {
    assert_eq!(LeftOut(vec![0, 1, 2, 3, 7, 9, 10]).to_string(), "0-3, 7, 9-10");
    assert_eq!(LeftOut::default().to_string(), "");
}

/// Checks that with memory for some of what the blocks make, the best is neither all nor nothing,
/// and no plan of any choice beats the bound.
#[test]
fn the_best_choice_lies_between_all_and_none_where_memory_does() {
    let trace = CheckpointedStep::of(8, 1).checkpointed();
    let reruns = Reruns::of(&trace);
    let mut machine = machine(1_250_000);
    // Links are slow: what leaves is dear.
    (machine.ssd.read.0, machine.ssd.write.0) = (100_000_000, 100_000_000);
    let plan = |trace: &Trace| tidelog(trace, &machine, TidelogOptions::default()).unwrap().1.time;
    let found =
        choose(&reruns, &machine, |trace| Ok::<_, crate::cost::MachineError>(Some(plan(trace))));
    let found = found.unwrap();
    let time = |left_out: &LeftOut| {
        found.iter().find(|one| one.left_out == *left_out).expect("it is tried").cost
    };
    let (own, none) = (time(&LeftOut::default()), time(&reruns.every()));
    let best = &found[0];
    let count = best.left_out.0.len();
    assert!(best.cost < own && best.cost < none, "{best:?}, {own:?}, {none:?}");
    assert!((1..8).contains(&count), "{best:?}");
    let effort = Effort { instants: 400, steps: 600 };
    let bound = with_skips(&trace, &machine, effort, &reruns.skippable()).unwrap().time;
    assert!(bound <= best.cost, "{bound:?} {best:?}");
    assert!(bound.0 * 100 >= best.cost.0 * 85, "{bound:?} {best:?}");
    // Nor could any plan with all reruns, or with none.
    let of_own = lower_bound(&trace, &machine, effort).unwrap().time;
    assert!(bound < of_own);
}

/// A program that checkpoints nothing, with cheap blocks that save much, and a slow SSD: those for
/// which there is no memory are best run again, and no plan in which all run once could be as fast,
/// by the bound.
#[test]
fn cheap_blocks_run_again_where_the_ssd_is_slow() {
    let mut step = CheckpointedStep::of(6, 1);
    step.ops.iter_mut().for_each(|op| op.time /= 10);
    let trace = step.checkpointed();
    let reruns = Reruns::of(&trace);
    let program = reruns.without(&reruns.every()).unwrap().trace;
    let mut machine = machine(600_000);
    (machine.ssd.read.0, machine.ssd.write.0) = (100_000_000, 100_000_000);
    let plan = |trace: &Trace| tidelog(trace, &machine, TidelogOptions::default()).unwrap().1.time;
    let cost = |trace: &Trace| Ok::<_, crate::cost::MachineError>(Some(plan(trace)));
    let best = choose(&reruns, &machine, cost).unwrap().swap_remove(0);
    let own = plan(&program);
    assert!(best.left_out.0.len() <= 3 && best.cost.0 * 2 < own.0, "{best:?} {own:?}");
    let effort = Effort { instants: 400, steps: 600 };
    let of_own = lower_bound(&program, &machine, effort).unwrap().time;
    let of_all = with_skips(&trace, &machine, effort, &reruns.skippable()).unwrap().time;
    assert!(of_all <= best.cost && best.cost < of_own, "{of_all:?} {best:?} {of_own:?}");
}
