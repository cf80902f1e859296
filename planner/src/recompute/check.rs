//! True if every op reads the same bytes where some reruns are left out.

use super::{KeptStep, Rerun};
use crate::order::{BrokenDependence, Instance, written_by};
use crate::trace::Trace;

/// Follows both steps over several iterations and compares who wrote what each op reads. The second
/// run of an op counts as its first one, for which it must read the same itself.
///
/// # Errors
/// The first op that would read something else.
pub fn check(base: &Trace, kept: &[&Rerun], step: &KeptStep) -> Result<(), BrokenDependence> {
    let mut stands_for: Vec<u32> = (0..base.ops.len() as u32).collect();
    for rerun in kept {
        for (first, again) in rerun.first.clone().zip(rerun.again.clone()) {
            stands_for[again as usize] = first;
        }
    }
    let count = base.ops.len();
    let mut expected = written_by(base, count, |position, iteration| (position, iteration));
    for (op, iteration) in expected.iter_mut().flatten().flatten() {
        (*op, *iteration) = (stands_for[*op as usize], *iteration);
    }
    let found = written_by(&step.trace, count, |position, iteration| {
        (step.schedule[position as usize], iteration)
    });
    for op in 0..count {
        let first = stands_for[op] as usize;
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
