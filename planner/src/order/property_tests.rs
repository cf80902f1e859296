//! Orders of random steps against a graph of dependences that knows nothing of how orders are made.

use super::*;
use crate::instances::{LayeredStep, random_trace};
use crate::trace::{Identity, StorageKind};
use std::collections::HashMap;
use tidelog_random::Random;

/// An op of an iteration of the program.
type Instance = (u32, u32);

/// Returns pairs of instances, the first of which must run before the second, over `iterations`
/// iterations of the program's order: reads after what they read was written, writes after the
/// reads and the write before them.
fn dependences(trace: &Trace, iterations: u32) -> Vec<(Instance, Instance)> {
    let mut edges = Vec::new();
    let mut bytes: HashMap<(u32, u32), (Option<Instance>, Vec<Instance>)> = HashMap::new();
    for iteration in 1..=iterations {
        for (index, op) in trace.ops.iter().enumerate() {
            let me = (index as u32, iteration);
            let born = op.births.iter().map(|birth| (birth.storage, true, false));
            let uses = op.uses.iter().map(|u| (u.storage, u.access.modifies(), u.previous));
            for (storage, modifies, previous) in born.chain(uses) {
                let named = matches!(trace.storage(storage).identity, Identity::Name(_));
                let of = if named { 0 } else { iteration - u32::from(previous) };
                let (writer, readers) = bytes.entry((storage.0, of)).or_default();
                edges.extend(writer.iter().map(|writer| (*writer, me)));
                if modifies {
                    edges.extend(readers.drain(..).map(|reader| (reader, me)));
                    *writer = Some(me);
                } else {
                    readers.push(me);
                }
            }
        }
    }
    edges.retain(|(before, after)| before != after);
    edges
}

/// Returns the time at which each op of iteration 0 runs in the new order.
fn times(reordered: &Reordered) -> (Vec<u32>, u32) {
    let ops = reordered.schedule.len() as u32;
    let mut times = vec![0; reordered.schedule.len()];
    for (position, placed) in reordered.schedule.iter().enumerate() {
        times[placed.op as usize] = position as u32 + ops * u32::from(placed.late);
    }
    (times, ops)
}

fn keeps_dependences(reordered: &Reordered) -> Result<(), String> {
    reordered.trace.validate().map_err(|error| error.to_string())?;
    let (times, ops) = times(reordered);
    let when = |(op, iteration): Instance| times[op as usize] + ops * iteration;
    for (before, after) in dependences(&reordered.base, 3) {
        if when(before) >= when(after) {
            return Err(format!("{before:?} must run before {after:?}"));
        }
    }
    Ok(())
}

fn random_training(random: &mut Random) -> Trace {
    let mut training = LayeredStep::of(1 + random.below(4) as usize, 1 + random.below(4) as usize);
    training.fused = random.chance(2);
    training.clipped = random.chance(3);
    training.kept = random.chance(2);
    training.trace()
}

#[test]
fn every_order_of_training_steps_keeps_every_dependence() {
    let mut random = Random::new(27);
    let mut made = 0;
    for number in 0..400 {
        let trace = random_training(&mut random);
        for order in OpOrder::ALL {
            match order.of(&trace) {
                Ok(reordered) => {
                    made += 1;
                    if let Err(broken) = keeps_dependences(&reordered) {
                        panic!("step {number}, {order}: {broken}");
                    }
                }
                Err(OrderError::NoMicroBatches) => {}
                Err(other) => panic!("step {number}, {order}: {other}"),
            }
        }
    }
    assert!(made > 1_500, "{made}");
}

/// Checks steps in which any op uses optimizer state: a step that nobody would write, yet no order
/// breaks it.
#[test]
fn every_order_of_random_steps_keeps_every_dependence() {
    let mut random = Random::new(28);
    let (mut made, mut refused) = (0, 0);
    for number in 0..2_000 {
        let mut trace = random_trace(&mut random, 12, 8);
        for storage in &mut trace.storages {
            let kind = random.below(StorageKind::ALL.len() as u64) as usize;
            storage.kind = StorageKind::ALL[kind];
        }
        for order in OpOrder::ALL {
            match order.of(&trace) {
                Ok(reordered) => {
                    made += usize::from(reordered.trace.ops != trace.ops);
                    if let Err(broken) = keeps_dependences(&reordered) {
                        panic!("step {number}, {order}: {broken}\n{}", trace.to_json());
                    }
                }
                Err(
                    OrderError::NoOptimizer
                    | OrderError::NoMicroBatches
                    | OrderError::UpdatesInside { .. },
                ) => {}
                // Ops that use the same parameters need not be micro-batches: the check tells.
                Err(OrderError::Dependence(_) | OrderError::Trace(_))
                    if order.micro_batches == MicroBatches::LayerWise =>
                {
                    refused += 1;
                }
                Err(other) => panic!("step {number}, {order}: {other}\n{}", trace.to_json()),
            }
        }
    }
    assert!(made > 1_000 && refused > 0, "{made} made, {refused} refused");
}

/// The check and the graph agree on orders that somebody shuffled.
#[test]
fn the_check_accepts_what_keeps_every_dependence_and_finds_what_does_not() {
    let mut random = Random::new(29);
    let (mut kept, mut broken) = (0, 0);
    for _ in 0..2_000 {
        let trace = LayeredStep::of(1, 2).trace();
        let mut order = OpOrder::OWN.of(&trace).unwrap();
        for _ in 0..=random.below(3) {
            let at = random.below(order.schedule.len() as u64 - 1) as usize;
            order.schedule.swap(at, at + 1);
        }
        let updates = updates::of(&trace);
        let Ok(rebuilt) = rebuild::rebuild(&trace, &order.schedule, &updates) else { continue };
        order.trace = rebuilt;
        let agrees = keeps_dependences(&order).is_ok();
        assert_eq!(check(&order).is_ok(), agrees, "{:?}", order.schedule);
        *(if agrees { &mut kept } else { &mut broken }) += 1;
    }
    assert!(kept > 100 && broken > 50, "{kept} kept, {broken} broken");
}
