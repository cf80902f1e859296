//! True if every op reads the same bytes where some reruns are left out.

use super::{KeptStep, Rerun, SameWrites};
use crate::order::{BrokenDependence, Instance, written_by};
use crate::trace::Trace;

/// Follows both steps over several iterations and compares who wrote what each op reads. The second
/// run of an op counts as its first one, for which it must read the same itself. What writes the
/// same bytes again counts as what wrote them first.
///
/// # Errors
/// The first op that would read something else.
pub fn check(
    base: &Trace,
    kept: &[&Rerun],
    step: &KeptStep,
    same: &[SameWrites],
) -> Result<(), BrokenDependence> {
    let mut runs_as: Vec<u32> = (0..base.ops.len() as u32).collect();
    for rerun in kept {
        for (first, again) in rerun.first.clone().zip(rerun.again.clone()) {
            runs_as[again as usize] = first;
        }
    }
    let mut writes_as = runs_as.clone();
    for SameWrites { first, later } in same {
        writes_as[*later as usize] = writes_as[*first as usize];
    }
    let count = base.ops.len();
    let mut expected = written_by(base, count, |position, iteration| (position, iteration));
    let mut found = written_by(&step.trace, count, |position, iteration| {
        (step.schedule[position as usize], iteration)
    });
    for (op, _) in expected.iter_mut().chain(&mut found).flatten().flatten() {
        *op = writes_as[*op as usize];
    }
    for op in 0..count {
        let first = runs_as[op] as usize;
        let found: &[Option<Instance>] = if first == op { &found[op] } else { &expected[first] };
        let expected = &expected[op];
        let differs = (0..expected.len().max(found.len()))
            .find(|index| expected.get(*index) != found.get(*index));
        if let Some(index) = differs {
            return Err(BrokenDependence::of(base, op, index));
        }
    }
    Ok(())
}
