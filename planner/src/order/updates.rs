//! Times at which parameters are updated: the ops do it, and where else they may run.

use super::Placed;
use crate::trace::{Identity, Op, PlanStorage, StorageKind, Trace, Use};

/// Returns for each op whether it is an update: those that use optimizer state, and those that work
/// for them alone, on what an update has made or will read.
pub(super) fn of(trace: &Trace) -> Vec<bool> {
    let kind = |used: &Use| trace.storage(used.storage).kind;
    let uses_state = |op: &Op| op.uses.iter().any(|used| kind(used) == StorageKind::OptimizerState);
    let mut is_update: Vec<bool> = trace.ops.iter().map(uses_state).collect();
    let Some(first) = is_update.iter().position(|is| *is) else { return is_update };
    let mut made_by_update = vec![false; trace.storages.len()];
    for (index, op) in trace.ops.iter().enumerate().skip(first) {
        let reads_made = op.uses.iter().any(|used| made_by_update[used.storage.0 as usize]);
        is_update[index] |= reads_made;
        if is_update[index] {
            op.births.iter().for_each(|birth| made_by_update[birth.storage.0 as usize] = true);
        }
    }
    prepare(trace, first, &mut is_update);
    is_update
}

/// Takes in what makes ready for updates just before them, such as a gradient in single precision:
/// ops that read one storage and make what updates alone use.
fn prepare(trace: &Trace, first: usize, is_update: &mut [bool]) {
    // Per storage: whether updates use it, and whether anything else does.
    let mut users = vec![[false; 2]; trace.storages.len()];
    for index in (0..trace.ops.len()).rev() {
        let Op { uses, births, .. } = &trace.ops[index];
        let only_updates = |storage: PlanStorage| users[storage.0 as usize] == [true, false];
        let reads_one = uses.len() == 1 && !uses[0].access.modifies();
        let makes = births.iter().all(|birth| only_updates(birth.storage));
        is_update[index] |= reads_one && makes && !births.is_empty();
        // Before the first update they stand in a row.
        if index < first && !is_update[index] {
            return;
        }
        for used in uses {
            users[used.storage.0 as usize][usize::from(!is_update[index])] = true;
        }
    }
}

/// Last uses of a storage so far, in slots between the ops that stay.
#[derive(Clone, Copy, Default)]
struct Seen {
    used: usize,
    modified: usize,
}

/// Every update as soon as all that it needs is there. `order` is that of all ops.
pub(super) fn early(trace: &Trace, order: &[u32], updates: &[bool]) -> Vec<Placed> {
    let mut seen = vec![Seen::default(); trace.storages.len()];
    // The ops that stay run in slots 1, 2, ...; an update runs at the end of a slot.
    let mut slots = Vec::with_capacity(order.len());
    let mut stayed = 0;
    for op in order {
        let Op { uses, births, .. } = &trace.ops[*op as usize];
        let is_update = updates[*op as usize];
        let slot = if is_update {
            let needed = uses.iter().map(|used| {
                let seen = seen[used.storage.0 as usize];
                if used.access.modifies() { seen.used } else { seen.modified }
            });
            // What uses nothing stays with the op before it.
            needed.max().unwrap_or(stayed)
        } else {
            stayed += 1;
            stayed
        };
        let born = births.iter().map(|birth| (birth.storage, true));
        let uses = uses.iter().map(|used| (used.storage, used.access.modifies()));
        for (storage, modifies) in uses.chain(born) {
            let seen = &mut seen[storage.0 as usize];
            seen.used = seen.used.max(slot);
            if modifies {
                seen.modified = seen.modified.max(slot);
            }
        }
        slots.push((slot, is_update, *op));
    }
    // Stable: updates of one slot keep their order.
    slots.sort_by_key(|(slot, is_update, _)| (*slot, *is_update));
    slots.into_iter().map(|(_, _, op)| Placed { op, late: false }).collect()
}

/// Next uses of a storage, in slots before the ops that stay: `0..count` in this iteration, and
/// `count` for the end of it; the slots of the next iteration begin with `count + 1`.
#[derive(Clone, Copy)]
struct Ahead {
    used: usize,
    modified: usize,
}

impl Ahead {
    const NEVER: Self = Self { used: usize::MAX, modified: usize::MAX };

    fn note(&mut self, slot: usize, modifies: bool) {
        self.used = self.used.min(slot);
        if modifies {
            self.modified = self.modified.min(slot);
        }
    }
}

/// Every update just before the first op that could tell, in the next iteration.
pub(super) fn lazy(trace: &Trace, order: &[u32], updates: &[bool]) -> Vec<Placed> {
    let mut moving = updates.to_vec();
    loop {
        let placed = lazy_round(trace, order, &moving);
        let count = moving.iter().filter(|moves| **moves).count();
        for placed in placed.iter().filter(|placed| !placed.late) {
            moving[placed.op as usize] = false;
        }
        // An update that has to stay is one more op that others must not pass.
        if moving.iter().filter(|moves| **moves).count() == count {
            return placed;
        }
    }
}

fn lazy_round(trace: &Trace, order: &[u32], updates: &[bool]) -> Vec<Placed> {
    let stay: Vec<u32> = order.iter().copied().filter(|op| !updates[*op as usize]).collect();
    let count = stay.len();
    let mut ahead = next_uses(trace, &stay);
    let mut placed = Vec::with_capacity(order.len());
    let mut own = count;
    for op in order.iter().rev() {
        let Op { uses, births, .. } = &trace.ops[*op as usize];
        let is_update = updates[*op as usize];
        own -= usize::from(!is_update);
        let slot = if is_update { latest(trace, *op, &ahead, count, own) } else { own };
        for used in uses {
            ahead[used.storage.0 as usize].note(slot, used.access.modifies());
        }
        for birth in births {
            // Before it there is another instance, of the iteration before.
            ahead[birth.storage.0 as usize] = Ahead::NEVER;
        }
        let late = slot > count;
        let slot = if late { slot - count - 1 } else { slot };
        // Late ones come first: they belong to the iteration before.
        placed.push(((slot, !is_update, !late), Placed { op: *op, late }));
    }
    placed.reverse();
    placed.sort_by_key(|(key, _)| *key);
    placed.into_iter().map(|(_, placed)| placed).collect()
}

/// The last slot in which an update may run that has `own` where the program runs it.
fn latest(trace: &Trace, op: u32, ahead: &[Ahead], count: usize, own: usize) -> usize {
    let Op { uses, births, .. } = &trace.ops[op as usize];
    // A batch is gone by the next iteration, and what is from the iteration before by the one
    // after.
    let arrived = |used: &Use| trace.storage(used.storage).identity == Identity::Arrival;
    if uses.iter().any(|used| used.previous || arrived(used)) {
        return own;
    }
    let of_use = |used: &Use| {
        let ahead = ahead[used.storage.0 as usize];
        if used.access.modifies() { ahead.used } else { ahead.modified }
    };
    let of_births = births.iter().map(|birth| ahead[birth.storage.0 as usize].used);
    match uses.iter().map(of_use).chain(of_births).min() {
        // Nobody ever looks: at once in the next iteration.
        Some(usize::MAX) => count + 1,
        Some(slot) if slot > count => slot,
        _ => own,
    }
}

/// The first use of each storage in the next iteration by an op that stays.
fn next_uses(trace: &Trace, stay: &[u32]) -> Vec<Ahead> {
    let mut ahead = vec![Ahead::NEVER; trace.storages.len()];
    for (slot, op) in stay.iter().enumerate() {
        for used in &trace.ops[*op as usize].uses {
            let is_named = matches!(trace.storage(used.storage).identity, Identity::Name(_));
            if is_named || used.previous {
                let slot = stay.len() + 1 + slot;
                ahead[used.storage.0 as usize].note(slot, used.access.modifies());
            }
        }
    }
    ahead
}
