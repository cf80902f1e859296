//! The trace of a schedule: ops in their new places, and lives that fit them.

use super::Placed;
use crate::trace::{Birth, Death, Identity, PlanStorage, StorageKind, Trace, TraceError, Use};
use crate::units::OpIndex;

/// Runs the ops of `base` as `schedule` says. `updates` are the ops that move as updates.
///
/// A storage dies where the program lets go of it, or after its last use where that is later. A
/// gradient whose update has moved dies with that update: nobody looks at it any more.
pub(super) fn rebuild(
    base: &Trace,
    schedule: &[Placed],
    updates: &[bool],
) -> Result<Trace, TraceError> {
    let positions = Positions::of(schedule);
    let mut trace = Trace {
        name: base.name.clone(),
        storages: base.storages.clone(),
        ops: schedule.iter().map(|placed| base.ops[placed.op as usize].clone()).collect(),
    };
    for (position, op) in trace.ops.iter_mut().enumerate() {
        for used in &mut op.uses {
            used.previous = positions.previous(base, schedule[position].op, *used);
        }
        for Birth { storage, slot } in &op.births {
            let identity = Identity::Output { op: OpIndex(position as u32), slot: *slot };
            trace.storages[storage.0 as usize].identity = identity;
        }
        op.deaths.clear();
    }
    for (storage, at) in deaths(base, &positions, updates).into_iter().enumerate() {
        let Some((position, previous)) = at else { continue };
        let storage = PlanStorage(storage as u32);
        trace.ops[position as usize].deaths.push(Death { storage, previous });
    }
    trace.validate()?;
    Ok(trace)
}

/// Position of each op of the program.
struct Positions {
    of_op: Vec<(u32, bool)>,
    ops: u64,
}

impl Positions {
    fn of(schedule: &[Placed]) -> Self {
        let mut of_op = vec![(0, false); schedule.len()];
        for (position, placed) in schedule.iter().enumerate() {
            of_op[placed.op as usize] = (position as u32, placed.late);
        }
        Self { of_op, ops: schedule.len() as u64 }
    }

    /// Returns the time at which an op of the program's iteration 0 or 1 runs, counted in ops from
    /// iteration 0 on.
    fn when(&self, op: u32, iteration: bool) -> u64 {
        let (position, late) = self.of_op[op as usize];
        u64::from(position) + self.ops * (u64::from(iteration) + u64::from(late))
    }

    /// The iteration in which a storage that the program makes in iteration 0 is made.
    fn made_in(&self, base: &Trace, storage: PlanStorage) -> u64 {
        match &base.storage(storage).identity {
            Identity::Output { op, .. } => u64::from(self.of_op[op.0 as usize].1),
            _ => 0,
        }
    }

    /// Returns whether a use is of the instance that was made one iteration before.
    fn previous(&self, base: &Trace, op: u32, used: Use) -> bool {
        if matches!(base.storage(used.storage).identity, Identity::Name(_)) {
            return false;
        }
        let runs_in = self.when(op, used.previous) / self.ops;
        runs_in > self.made_in(base, used.storage)
    }
}

/// End of a storage's life in the program's order.
#[derive(Clone, Copy, Default)]
struct End {
    death: Option<(u32, bool)>,
    last_use: Option<u64>,
    used_by_update: bool,
}

/// Returns the place of each storage's death in the new order, and whether one iteration after it
/// was made.
fn deaths(base: &Trace, positions: &Positions, updates: &[bool]) -> Vec<Option<(u32, bool)>> {
    let mut ends = vec![End::default(); base.storages.len()];
    // What an update happens to stand beside does not move with it.
    let mut last_other = 0;
    for (op, recorded) in base.ops.iter().enumerate() {
        let is_update = updates[op];
        let op = op as u32;
        for used in &recorded.uses {
            let end = &mut ends[used.storage.0 as usize];
            end.last_use = end.last_use.max(Some(positions.when(op, used.previous)));
            end.used_by_update |= is_update;
        }
        for birth in &recorded.births {
            let end = &mut ends[birth.storage.0 as usize];
            end.last_use = end.last_use.max(Some(positions.when(op, false)));
            end.used_by_update |= is_update;
        }
        if !is_update {
            last_other = op;
        }
        for death in &recorded.deaths {
            let end = &mut ends[death.storage.0 as usize];
            let stands_beside = is_update && !end.used_by_update;
            end.death = Some((if stands_beside { last_other } else { op }, death.previous));
        }
    }
    let of_storage = |(index, end): (usize, &End)| {
        let storage = PlanStorage(index as u32);
        let held = base.storage(storage);
        if matches!(held.identity, Identity::Name(_)) {
            return None;
        }
        let made_in = positions.made_in(base, storage);
        let outlives = end.last_use.is_some_and(|last| last / positions.ops > made_in);
        let is_done = held.kind == StorageKind::Gradient && end.used_by_update;
        let let_go = end.death.filter(|_| !is_done).map(|(op, late)| positions.when(op, late));
        if end.death.is_none() && !outlives && !is_done {
            return None;
        }
        // A trace has no word for a death two iterations later.
        let let_go = let_go.filter(|at| at / positions.ops <= made_in + 1);
        let at = let_go.max(end.last_use)?;
        Some(((at % positions.ops) as u32, at / positions.ops > made_in))
    };
    ends.iter().enumerate().map(of_storage).collect()
}
