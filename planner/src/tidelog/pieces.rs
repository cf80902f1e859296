//! The parts of one storage, planned as the whole.
//!
//! Parts are freer than the whole: each plan for it is one for them. So those plans are made, too.
//! Only what a trace calls parts is ([`crate::parts`]): storages that merely look alike, as the
//! outputs of one op do, belong together no more than others.

use crate::migration::Migration;
use crate::trace::{PlanStorage, Storage, Trace};
use crate::units::Bytes;

/// A trace in which the pieces of a tensor are one storage.
pub(super) struct Whole {
    pub(super) trace: Trace,
    /// Storages that each of its storages stands for.
    members: Vec<Vec<PlanStorage>>,
}

impl Whole {
    /// None where no storage is in pieces.
    pub(super) fn of(trace: &Trace) -> Option<Self> {
        let mut members: Vec<Vec<PlanStorage>> = Vec::new();
        let mut storages: Vec<Storage> = Vec::new();
        let mut of: Vec<u32> = Vec::new();
        for (index, storage) in trace.storages.iter().enumerate() {
            let before = index.checked_sub(1).map(|before| &trace.storages[before]);
            if !before.is_some_and(|before| are_parts(before, storage)) {
                storages.push(Storage { size: Bytes(0), part: None, ..storage.clone() });
                members.push(Vec::new());
            }
            let place = storages.len() - 1;
            storages[place].size.0 += storage.size.0;
            members[place].push(PlanStorage(index as u32));
            of.push(place as u32);
        }
        if members.len() == trace.storages.len() {
            return None;
        }
        let mut merged = Trace { storages, ..trace.clone() };
        // The first of each stands for all.
        let is_first =
            |storage: &PlanStorage| members[of[storage.0 as usize] as usize][0] == *storage;
        for op in &mut merged.ops {
            op.uses.retain(|used| is_first(&used.storage));
            op.births.retain(|birth| is_first(&birth.storage));
            op.deaths.retain(|death| is_first(&death.storage));
            let named = op.uses.iter_mut().map(|used| &mut used.storage);
            let named = named.chain(op.births.iter_mut().map(|birth| &mut birth.storage));
            for storage in named.chain(op.deaths.iter_mut().map(|death| &mut death.storage)) {
                storage.0 = of[storage.0 as usize];
            }
        }
        Some(Self { trace: merged, members })
    }

    /// The pieces that a storage stands for.
    pub(super) fn members(&self, storage: PlanStorage) -> &[PlanStorage] {
        &self.members[storage.0 as usize]
    }

    /// The rows of all that each storage stands for.
    pub(super) fn rows(&self, rows: &[Migration]) -> Vec<Migration> {
        let members = |row: &Migration| self.members[row.storage.0 as usize].iter().copied();
        rows.iter()
            .flat_map(|row| members(row).map(|storage| Migration { storage, ..*row }))
            .collect()
    }
}

/// Returns whether two storages are neighbouring parts of one.
fn are_parts(before: &Storage, storage: &Storage) -> bool {
    let follows = storage.part.is_some_and(|part| part.begin > Bytes(0));
    follows && before.part.is_some() && before.identity == storage.identity
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instances::{Builder, split};
    use crate::testing::training;
    use crate::trace::Access;

    #[test]
    fn parts_are_put_together_again() {
        let trace = training(6, 40 << 20, 100 << 20, 60_000);
        assert!(Whole::of(&trace).is_none(), "there are none");
        for size in [8 << 20, 10_000_000, 99 << 20] {
            let pieces = split(&trace, Bytes(size));
            assert!(pieces.storages.len() > trace.storages.len());
            let whole = Whole::of(&pieces).expect("there are pieces");
            assert_eq!(whole.trace.storages, trace.storages);
            assert_eq!(whole.members.concat().len(), pieces.storages.len());
            let uses = |trace: &Trace| -> Vec<_> {
                trace.ops.iter().map(|op| (op.uses.clone(), op.deaths.clone())).collect()
            };
            assert_eq!(uses(&whole.trace), uses(&trace));
        }
    }

    /// Two outputs of one op, and two weights whose names differ in a number, each pair of one size
    /// and used by the same ops.
    #[test]
    fn what_looks_like_pieces_is_none() {
        let mut b = Builder::default();
        b.op(5);
        b.op(5);
        for name in ["weight.0", "weight.1"] {
            let weight = b.global(name, 10);
            b.uses(0, weight, Access::Read);
            let output = b.birth(0, 10);
            b.uses(1, output, Access::Read);
            b.death(1, output, false);
        }
        assert!(Whole::of(&b.finish()).is_none());
    }
}
