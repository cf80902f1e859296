//! Reruns that the program names, held to those that its trace shows.

use super::*;
use crate::instances::CheckpointedStep;
use crate::trace::{Access, Identity, Op, PlanStorage, Use};
use crate::units::{Nanos, OpIndex};

/// Returns the regions of a trace that shows reruns: the whole first runs, of three ops each.
fn regions_of(trace: &Trace) -> Vec<CheckpointedRegion> {
    let reruns = Reruns::of(trace);
    let region = |rerun: &Rerun| CheckpointedRegion {
        first: rerun.first.start..rerun.first.start + 3,
        again: rerun.again.clone(),
    };
    reruns.all().iter().map(region).collect()
}

/// The trace with an op that makes and changes nothing after each other one.
fn with_aliases(trace: &Trace) -> Trace {
    let mut longer = Trace { ops: Vec::new(), ..trace.clone() };
    for op in &trace.ops {
        let alias = Op {
            name: "aten.detach.default".to_owned(),
            duration: Nanos(0),
            fingerprint: 7,
            uses: op.births.iter().map(|made| read(made.storage)).collect(),
            births: Vec::new(),
            deaths: op.deaths.clone(),
        };
        longer.ops.extend([Op { deaths: Vec::new(), ..op.clone() }, alias]);
    }
    for storage in &mut longer.storages {
        if let Identity::Output { op, .. } = &mut storage.identity {
            *op = OpIndex(op.0 * 2);
        }
    }
    longer.validate().unwrap();
    longer
}

fn read(storage: PlanStorage) -> Use {
    Use { storage, access: Access::Read, previous: false }
}

fn why(trace: &Trace, regions: &[CheckpointedRegion]) -> String {
    let (_, places) = Reruns::of_regions(trace, regions, &[]);
    places[0].as_ref().expect_err("it can be left out").to_string()
}

#[test]
fn regions_that_the_program_names_are_the_reruns_that_its_trace_shows() {
    let trace = CheckpointedStep::of(3, 2).checkpointed();
    let mut regions = regions_of(&trace);
    let shown = Reruns::of(&trace);
    regions.reverse();
    let (named, places) = Reruns::of_regions(&trace, &regions, &[]);
    assert_eq!(named.all(), shown.all());
    let places: Vec<u32> = places.into_iter().map(Result::unwrap).collect();
    assert_eq!(places, [5, 4, 3, 2, 1, 0]);
}

#[test]
fn ops_that_only_name_tensors_anew_are_left_out_of_both_runs() {
    let trace = CheckpointedStep::of(3, 2).checkpointed();
    let twice = |ops: &std::ops::Range<u32>| ops.start * 2..ops.end * 2;
    let longer = with_aliases(&trace);
    let regions = regions_of(&trace);
    let of_longer: Vec<CheckpointedRegion> = regions
        .iter()
        .map(|region| CheckpointedRegion {
            first: twice(&region.first),
            again: twice(&region.again),
        })
        .collect();
    let same = [SameWrites { first: 2, later: 6 }];
    let (short, at, moved) = without_aliases(&longer, &of_longer, &same);
    assert_eq!(short, trace);
    assert_eq!(moved, [SameWrites { first: 1, later: 3 }]);
    assert_eq!(at, regions);
}

#[test]
fn what_cannot_be_left_out_is_told() {
    let trace = CheckpointedStep::of(2, 1).checkpointed();
    let regions = regions_of(&trace);
    assert!(Reruns::of_regions(&trace, &regions, &[]).1.iter().all(Result::is_ok));
    let CheckpointedRegion { first, again } = regions[0].clone();
    let [first_op, again_op] = [&first, &again].map(|ops| ops.start as usize);
    let changed = |change: &dyn Fn(&mut Trace)| {
        let mut other = trace.clone();
        change(&mut other);
        why(&other, &regions)
    };
    let buffer = changed(&|trace| {
        for op in [first_op, again_op] {
            trace.ops[op].uses[0].access = Access::Update;
        }
    });
    assert!(buffer.starts_with("each of its runs changes "), "{buffer}");
    let other = changed(&|trace| trace.ops[again_op + 1].fingerprint += 1);
    assert!(other.contains("something else than its first one: forward1"), "{other}");
    // What the first run made is changed after it.
    let made = trace.ops[first_op].births[0].storage;
    let replaced = changed(&|trace| {
        let after = first.end as usize;
        trace.ops.iter_mut().for_each(|op| op.deaths.retain(|death| death.storage != made));
        trace.ops[after].uses.push(Use { access: Access::Update, ..read(made) });
        trace.ops[after].deaths.push(crate::trace::Death { storage: made, previous: false });
    });
    assert!(replaced.starts_with("what its first run has made is changed"), "{replaced}");
    // A parameter is changed between the runs.
    let weight = trace.ops[first_op].uses[0].storage;
    let between = changed(&|trace| {
        trace.ops[again_op - 1].uses.push(Use { access: Access::Update, ..read(weight) });
    });
    assert!(between.contains("would read other bytes of"), "{between}");
}

/// The step with ops that gather what a region reads of the model: one before the region's first
/// run, and one before its second. Returns their places, too, and the regions that are.
fn gathered_again() -> (Trace, Vec<CheckpointedRegion>, SameWrites) {
    let trace = CheckpointedStep::of(2, 1).checkpointed();
    let mut regions = regions_of(&trace);
    let [first, again] = [regions[0].first.start, regions[0].again.start];
    let weight = trace.ops[first as usize].uses[0].storage;
    let gather = Op {
        name: "gather".to_owned(),
        duration: Nanos(1),
        fingerprint: 9,
        uses: vec![Use { access: Access::Update, ..read(weight) }],
        births: Vec::new(),
        deaths: Vec::new(),
    };
    let mut longer = Trace { ops: Vec::new(), ..trace.clone() };
    let mut place = Vec::new();
    for (index, op) in trace.ops.iter().enumerate() {
        if [first, again].contains(&(index as u32)) {
            longer.ops.push(gather.clone());
        }
        place.push(longer.ops.len() as u32);
        longer.ops.push(op.clone());
    }
    for storage in &mut longer.storages {
        if let Identity::Output { op, .. } = &mut storage.identity {
            *op = OpIndex(place[op.0 as usize]);
        }
    }
    longer.validate().unwrap();
    let at = |op: u32| place[op as usize];
    for region in &mut regions {
        for ops in [&mut region.first, &mut region.again] {
            *ops = at(ops.start)..at(ops.end - 1) + 1;
        }
    }
    (longer, regions, SameWrites { first: at(first) - 1, later: at(again) - 1 })
}

#[test]
fn what_is_gathered_again_is_the_same_where_it_was_compared() {
    let (trace, regions, same) = gathered_again();
    let refused = why(&trace, &regions);
    assert!(refused.contains("would read other bytes of"), "{refused}");
    let (reruns, places) = Reruns::of_regions(&trace, &regions, &[same]);
    assert!(places.iter().all(Result::is_ok), "{places:?}");
    let kept = reruns.without(&reruns.every()).unwrap();
    assert!(kept.trace.ops.len() < trace.ops.len());
    // Neither does that say anything of what else is written in between, nor does a pair of other
    // ops.
    let weight = trace.ops[same.later as usize].uses[0].storage;
    let mut changed = trace.clone();
    changed.ops[same.later as usize + 1].uses.push(Use { access: Access::Update, ..read(weight) });
    let refused = |trace: &Trace, same: SameWrites| {
        let (_, places) = Reruns::of_regions(trace, &regions, &[same]);
        places[0].as_ref().expect_err("it can be left out").to_string()
    };
    let count = trace.ops.len() as u32;
    for said in [
        refused(&changed, same),
        refused(&trace, SameWrites { first: same.first, later: count }),
        refused(&trace, SameWrites { first: same.later, later: same.first }),
        refused(&trace, SameWrites { first: same.first - 1, later: same.later }),
    ] {
        assert!(!said.is_empty(), "{said}");
    }
}

/// A transfer that is under way holds what nothing uses any more.
#[test]
fn what_only_a_transfer_holds_is_not_kept() {
    let mut step = CheckpointedStep::of(2, 1);
    step.ops[1].saves.clear();
    let trace = step.checkpointed();
    let regions = regions_of(&trace);
    let (prompt, _) = Reruns::of_regions(&trace, &regions, &[]);
    for (number, rerun) in prompt.all().iter().enumerate() {
        // What the region's second op reads, and nothing after it.
        let [first, again] = [&rerun.first, &rerun.again].map(|ops| {
            let made = trace.ops[ops.start as usize].births[0].storage;
            (made, ops.end as usize)
        });
        let mut late = trace.clone();
        late.ops.iter_mut().for_each(|op| {
            op.deaths.retain(|death| ![first.0, again.0].contains(&death.storage));
        });
        for (storage, held_until) in [(first.0, rerun.again.start as usize), again] {
            late.ops[held_until].deaths.push(crate::trace::Death { storage, previous: false });
        }
        late.validate().unwrap();
        let (reruns, places) = Reruns::of_regions(&late, &regions, &[]);
        assert!(places.iter().all(Result::is_ok), "{places:?}");
        assert_eq!(reruns.all(), prompt.all());
        let kept = reruns.without(&LeftOut(vec![number as u32])).unwrap();
        check(&late, &[&reruns.all()[number]], &kept, &[]).unwrap();
    }
}

#[test]
fn regions_that_are_none_are_refused() {
    let trace = CheckpointedStep::of(2, 1).checkpointed();
    let count = trace.ops.len() as u32;
    for (first, again) in [(0..0, 0..0), (0..3, 1..2), (0..1, count - 1..count + 1)] {
        assert_eq!(
            why(&trace, &[CheckpointedRegion { first, again }]),
            NoRerun::Nothing.to_string()
        );
    }
}
