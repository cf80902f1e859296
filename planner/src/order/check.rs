//! True if every op reads the same bytes in another order.

use super::Reordered;
use crate::trace::{Access, Identity, Op, Trace};

/// Number of iterations that are followed, counted from 1 since a late op belongs to the one
/// before. What an op of the compared iteration reads was written in that one or the one before,
/// and all of both is over by the end in either order.
const ITERATIONS: u32 = 4;
const COMPARED: u32 = 3;

/// An op that would read something else, or run with a storage that is not there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("op {op} ({name}) would read other bytes of {storage}")]
pub struct BrokenDependence {
    /// The op in the program's order.
    pub op: u32,
    /// Name of the op.
    pub name: String,
    /// Storage that it would read.
    pub storage: String,
}

impl BrokenDependence {
    /// The op at `op` of a program's step, and which of its uses differs.
    pub(crate) fn of(program: &Trace, op: usize, used: usize) -> Self {
        let Op { name, uses, .. } = &program.ops[op];
        let storage = uses.get(used).map_or_else(String::new, |used| program.label(used.storage));
        Self { op: op as u32, name: name.clone(), storage }
    }
}

/// An op of an iteration of the program.
pub(crate) type Instance = (u32, u32);

/// Writers of what each op and use reads; `None` for what was there before.
pub(crate) type Writers = Vec<Vec<Option<Instance>>>;

/// Follows both orders over several iterations and compares who wrote what each op reads.
///
/// # Errors
/// The first op that would read something else.
pub fn check(reordered: &Reordered) -> Result<(), BrokenDependence> {
    let Reordered { base, trace, schedule } = reordered;
    let count = base.ops.len();
    let as_programmed = written_by(base, count, |position, iteration| (position, iteration));
    let mut found = written_by(trace, count, |position, iteration| {
        let placed = schedule[position as usize];
        (placed.op, iteration - u32::from(placed.late))
    });
    for (op, expected) in as_programmed.into_iter().enumerate() {
        let found = std::mem::take(&mut found[op]);
        let differs = (0..expected.len().max(found.len()))
            .find(|index| expected.get(*index) != found.get(*index));
        if let Some(index) = differs {
            return Err(BrokenDependence::of(base, op, index));
        }
    }
    Ok(())
}

/// Returns the writers of what each op of the compared iteration reads. `program` tells which of
/// the program's `ops`, of which iteration, runs at a position of an iteration.
pub(crate) fn written_by(
    trace: &Trace,
    ops: usize,
    program: impl Fn(u32, u32) -> Instance,
) -> Writers {
    let mut writers: Writers = vec![Vec::new(); ops];
    // Per storage and iteration of its birth: who modified it last.
    let mut last: Vec<[Option<Instance>; ITERATIONS as usize + 1]> =
        vec![Default::default(); trace.storages.len()];
    for iteration in 1..=ITERATIONS {
        for (position, op) in trace.ops.iter().enumerate() {
            let instance = program(position as u32, iteration);
            for birth in &op.births {
                last[birth.storage.0 as usize][iteration as usize] = Some(instance);
            }
            for used in &op.uses {
                let at = used.storage.0 as usize;
                let named = matches!(trace.storages[at].identity, Identity::Name(_));
                let born = if named { 0 } else { iteration - u32::from(used.previous) };
                let slot = &mut last[at][born as usize];
                if instance.1 == COMPARED {
                    let read = slot.filter(|_| used.access != Access::Write);
                    writers[instance.0 as usize].push(read);
                }
                if used.access.modifies() {
                    *slot = Some(instance);
                }
            }
        }
    }
    writers
}
