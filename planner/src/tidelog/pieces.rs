//! Pieces of one tensor, planned as the whole.
//!
//! Pieces are freer than the whole: each plan for it is one for them. So those plans are made, too.
//! Pieces are the parts of a storage ([`crate::parts`]). In a trace without parts they are
//! neighbours of one size (the last may be smaller) that the same ops make, use and free, and whose
//! names differ in a number at their end; outputs have no names.

use crate::migration::Migration;
use crate::trace::{Identity, PlanStorage, Storage, Trace};
use crate::units::Bytes;

/// A trace in which the pieces of a tensor are one storage.
pub(super) struct Whole {
    pub(super) trace: Trace,
    /// Of each of its storages those that it stands for.
    members: Vec<Vec<PlanStorage>>,
}

impl Whole {
    /// None where no storage is in pieces.
    pub(super) fn of(trace: &Trace) -> Option<Self> {
        let lives = lives(trace);
        let is_in_parts = trace.is_in_parts();
        let mut members: Vec<Vec<PlanStorage>> = Vec::new();
        let mut storages: Vec<Storage> = Vec::new();
        let mut of: Vec<u32> = Vec::new();
        for (index, storage) in trace.storages.iter().enumerate() {
            let goes_on = index > 0 && {
                let before = &trace.storages[index - 1];
                let first = &trace.storages[members[members.len() - 1][0].0 as usize];
                let look_alike = || {
                    lives[index] == lives[index - 1]
                        && before.size == first.size
                        && storage.size <= first.size
                        && are_pieces(before, storage)
                };
                if is_in_parts { are_parts(before, storage) } else { look_alike() }
            };
            if !goes_on {
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

/// What an op does to a storage.
type Event = (u32, u8, bool);

/// Whether the identities of two storages could be those of neighbouring pieces.
fn are_pieces(before: &Storage, storage: &Storage) -> bool {
    let is_alike = match (&before.identity, &storage.identity) {
        (Identity::Name(before), Identity::Name(name)) => stem(before) == stem(name),
        (Identity::Output { op: before, .. }, Identity::Output { op, .. }) => before == op,
        _ => false,
    };
    is_alike && before.movable && storage.movable
}

/// Whether two storages are neighbouring parts of one.
fn are_parts(before: &Storage, storage: &Storage) -> bool {
    let both = before.part.is_some() && storage.part.is_some();
    both && before.identity == storage.identity
}

/// A name without the number at its end, and what is around that.
fn stem(name: &str) -> &str {
    let is_mark = |c: char| !c.is_alphanumeric();
    let numbered = name.trim_end_matches(is_mark);
    let stem = numbered.trim_end_matches(|c: char| c.is_ascii_digit());
    if stem.len() == numbered.len() { name } else { stem.trim_end_matches(is_mark) }
}

/// All that happens to each storage, by op.
fn lives(trace: &Trace) -> Vec<Vec<Event>> {
    let mut lives = vec![Vec::new(); trace.storages.len()];
    for (index, op) in trace.ops.iter().enumerate() {
        let index = index as u32;
        for birth in &op.births {
            lives[birth.storage.0 as usize].push((index, 0, false));
        }
        for used in &op.uses {
            let access = if used.access.modifies() { 2 } else { 1 };
            lives[used.storage.0 as usize].push((index, access, used.previous));
        }
        for death in &op.deaths {
            lives[death.storage.0 as usize].push((index, 3, death.previous));
        }
    }
    lives
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::instances::split;
    use crate::parts::{Cuts, PartedStep};
    use crate::testing::training;

    fn sizes(trace: &Trace) -> Vec<u64> {
        trace.storages.iter().map(|storage| storage.size.0).collect()
    }

    #[test]
    fn pieces_are_put_together_again() {
        let trace = training(6, 40_000, 100_000, 60_000);
        assert!(Whole::of(&trace).is_none(), "no two of them are pieces");
        for size in [30_000, 50_000, 99_999] {
            let pieces = split(&trace, Bytes(size));
            pieces.validate().expect("it is a step like the other");
            assert!(pieces.storages.len() > trace.storages.len());
            let whole = Whole::of(&pieces).expect("there are pieces");
            whole.trace.validate().expect("so is this");
            assert_eq!(sizes(&whole.trace), sizes(&trace));
            assert_eq!(whole.members.concat().len(), pieces.storages.len());
        }
    }

    /// Two storages that only look like pieces stay apart where there are parts.
    #[test]
    fn parts_are_put_together_again() {
        let trace = training(6, 40 << 20, 100 << 20, 60_000);
        let pieces = split(&trace, Bytes(24 << 20));
        for trace in [trace, pieces] {
            let step = PartedStep::of(&trace, &Cuts::into_parts_of(&trace, Bytes(8 << 20)));
            assert!(step.trace.is_in_parts());
            let whole = Whole::of(&step.trace).expect("there are parts");
            assert_eq!(whole.trace.storages, trace.storages);
            let uses = |trace: &Trace| -> Vec<_> {
                trace.ops.iter().map(|op| (op.uses.clone(), op.deaths.clone())).collect()
            };
            assert_eq!(uses(&whole.trace), uses(&trace));
        }
    }

    #[test]
    fn a_name_without_its_number_is_its_stem() {
        for (name, wanted) in [
            ("layers.0.weight[12]", "layers.0.weight"),
            ("weight.part3", "weight.part"),
            ("weight#0", "weight"),
            ("exp_avg", "exp_avg"),
            ("exp_avg_sq", "exp_avg_sq"),
            ("7", ""),
        ] {
            assert_eq!(stem(name), wanted, "{name}");
        }
    }
}
