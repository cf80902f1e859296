//! Updates of many parameters in one op, as one op for each parameter.
//!
//! torch's fused and foreach optimizers take lists: of parameters, of their gradients, of each kind
//! of state. What they do with the first of each list has nothing to do with the second of any,
//! since these optimizers work element by element. So one call is as many as the lists are long.

use crate::trace::{Birth, Identity, Op, PlanStorage, Trace};
use crate::units::{Nanos, OpIndex};

/// The names of ops that take lists; what sums over its list is none of them.
const LISTS: [&str; 2] = ["_fused_", "_foreach_"];
const SUMS: [&str; 1] = ["norm"];

/// The trace with each such update as one op for each parameter.
pub(super) fn by_parameter(trace: &Trace) -> Trace {
    let mut split =
        Trace { name: trace.name.clone(), storages: trace.storages.clone(), ops: Vec::new() };
    for op in &trace.ops {
        let length = list_length(trace, op);
        let bytes: Vec<u64> = (0..length).map(|index| bytes_of(trace, op, index, length)).collect();
        let all = bytes.iter().sum::<u64>().max(1);
        let first = split.ops.len();
        let mut time = op.duration.0;
        for (index, bytes) in bytes.iter().enumerate() {
            let of_all = (u128::from(op.duration.0) * u128::from(*bytes) / u128::from(all)) as u64;
            let is_last = index + 1 == length;
            let duration = if is_last { time } else { of_all.min(time) };
            time -= duration;
            split.ops.push(piece(op, index, length, Nanos(duration)));
        }
        for (at, op) in split.ops.iter_mut().enumerate().skip(first) {
            for Birth { storage, slot } in &op.births {
                let identity = Identity::Output { op: OpIndex(at as u32), slot: *slot };
                split.storages[storage.0 as usize].identity = identity;
            }
        }
    }
    split
}

/// Returns the number of tensors in the op's lists; 1 where it is not such an op.
fn list_length(trace: &Trace, op: &Op) -> usize {
    let named = |names: &[&str]| names.iter().any(|name| op.name.contains(name));
    if !named(&LISTS) || named(&SUMS) {
        return 1;
    }
    // The first list is as long as its kind goes on.
    let Some(first) = op.uses.first().map(|used| trace.storage(used.storage).kind) else {
        return 1;
    };
    let of_kind = |used: &&crate::trace::Use| trace.storage(used.storage).kind == first;
    let length = op.uses.iter().take_while(of_kind).count();
    let size = |storage: PlanStorage| trace.storage(storage).size;
    let whole = |count: usize| length > 0 && count.is_multiple_of(length);
    // The lists of one op are alike, but for those of scalars, such as steps.
    let fits = |list: &[PlanStorage]| {
        let scalars = list.iter().all(|one| size(*one) == size(list[0]));
        scalars || list.iter().zip(&op.uses).all(|(one, used)| size(*one) == size(used.storage))
    };
    let used: Vec<PlanStorage> = op.uses.iter().map(|used| used.storage).collect();
    let born: Vec<PlanStorage> = op.births.iter().map(|birth| birth.storage).collect();
    let alike = [&used, &born]
        .into_iter()
        .all(|all| whole(all.len()) && all.chunks(length.max(1)).all(fits));
    // Two kinds of state in a row would look like one list twice as long.
    let is_one_list = op.uses.len() > length || same_kind_of_state(trace, &used);
    if alike && is_one_list { length } else { 1 }
}

/// Returns whether names end alike, as `exp_avg` of every parameter; what is born has none.
fn same_kind_of_state(trace: &Trace, list: &[PlanStorage]) -> bool {
    let ending = |storage: &PlanStorage| match &trace.storage(*storage).identity {
        Identity::Name(name) => name.rsplit('.').next(),
        _ => None,
    };
    list.iter().all(|storage| ending(storage) == ending(&list[0]))
}

fn bytes_of(trace: &Trace, op: &Op, index: usize, length: usize) -> u64 {
    op.uses.iter().skip(index).step_by(length).map(|used| trace.storage(used.storage).size.0).sum()
}

/// Returns the part of the op with the tensors at `index` of its lists.
fn piece(op: &Op, index: usize, length: usize, duration: Nanos) -> Op {
    if length == 1 {
        return op.clone();
    }
    let mine = |at: &usize| at % length == index;
    let births = op.births.iter().enumerate().filter(|(at, _)| mine(at));
    Op {
        name: op.name.clone(),
        duration,
        fingerprint: op.fingerprint.rotate_left(17).wrapping_add(index as u64 + 1),
        uses: op
            .uses
            .iter()
            .enumerate()
            .filter(|(at, _)| mine(at))
            .map(|(_, used)| *used)
            .collect(),
        births: births.map(|(_, birth)| *birth).collect(),
        // What dies with the op dies with its last piece.
        deaths: if index + 1 == length { op.deaths.clone() } else { Vec::new() },
    }
}
