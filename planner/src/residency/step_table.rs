//! Uses of storages in one step: what every schedule of an iteration has in common.
//!
//! A schedule describes one iteration and repeats: op `i` of the `r`-th step is at time
//! `r * ops + i`. It is only ever a hint about what is used when. Whatever it says, an op runs when
//! its storages are in memory and there is room, and not before.

use super::schedule_error::{OPS_MAX, ScheduleError};
use crate::trace::PlanStorage;
use crate::units::{Bytes, OpIndex};

/// Uses of a storage.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduledUses {
    /// The ops that use it, ascending, each once. For a storage that is born in the iteration the
    /// uses of one instance: a use in the step after its birth counts on, as op + `ops`.
    pub ops: Vec<OpIndex>,
    /// True if the scheduled uses lives across steps, so that after the last use the first one
    /// comes again.
    pub cyclic: bool,
}

/// An output that the schedule knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledBirth {
    /// The op that makes it.
    pub op: OpIndex,
    /// Output slot of the op.
    pub slot: u16,
    /// Storage of that output.
    pub storage: PlanStorage,
}

/// Parts from which a [`StepTable`] is made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StepParts {
    /// Fingerprints of the ops: what must be equal for the step to be the one that was planned.
    pub fingerprints: Vec<u64>,
    /// Memory for the outputs of each op.
    pub needs: Vec<Bytes>,
    /// Uses of each storage.
    pub uses: Vec<ScheduledUses>,
    /// The outputs, in any order, each (op, slot) once.
    pub births: Vec<ScheduledBirth>,
    /// Storages that have a name, in any order, each name once.
    pub names: Vec<(String, PlanStorage)>,
}

/// The ops of a step, its storages and their uses. Immutable and checked: every index in it is
/// good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StepTable {
    fingerprints: Vec<u64>,
    needs: Vec<Bytes>,
    /// Uses of all storages one after the other, and where each storage's begin.
    use_ops: Vec<u32>,
    use_starts: Vec<usize>,
    cyclic: Vec<bool>,
    /// The storages of all ops' uses one op after the other, and where each op's begin.
    op_storages: Vec<PlanStorage>,
    op_starts: Vec<usize>,
    births: Vec<ScheduledBirth>,
    names: Vec<(String, PlanStorage)>,
}

impl StepTable {
    /// Checks the parts and puts them in order.
    pub fn new(parts: StepParts) -> Result<Self, ScheduleError> {
        let StepParts { fingerprints, needs, uses, mut births, mut names } = parts;
        let ops = count_ops(&fingerprints, &needs)?;
        let known = |what, storage| ScheduleError::unless_known(what, storage, uses.len());
        let within = |what, storage, op, limit| {
            ScheduleError::unless_within(what, storage, op, (limit, ops))
        };
        for birth in &births {
            known("a birth", birth.storage)?;
            within("birth", birth.storage, birth.op, ops)?;
        }
        for (_, storage) in &names {
            known("a name", *storage)?;
        }
        for (index, one) in uses.iter().enumerate() {
            let storage = PlanStorage(index as u32);
            let limit = if one.cyclic { ops } else { 2 * ops };
            for &op in &one.ops {
                within("use", storage, op, limit)?;
            }
            if let Some(pair) = one.ops.windows(2).find(|pair| pair[0] >= pair[1]) {
                return Err(ScheduleError::Unsorted { storage, op: pair[1] });
            }
        }

        births.sort_by_key(|birth| (birth.op, birth.slot));
        let same =
            |pair: &&[ScheduledBirth]| (pair[0].op, pair[0].slot) == (pair[1].op, pair[1].slot);
        if let Some(pair) = births.windows(2).find(same) {
            return Err(ScheduleError::AmbiguousBirth { op: pair[0].op, slot: pair[0].slot });
        }
        names.sort();
        if let Some(pair) = names.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            return Err(ScheduleError::AmbiguousName(pair[0].0.clone()));
        }
        let mut use_starts = Vec::with_capacity(uses.len() + 1);
        let mut use_ops = Vec::new();
        for one in &uses {
            use_starts.push(use_ops.len());
            use_ops.extend(one.ops.iter().map(|op| op.0));
        }
        use_starts.push(use_ops.len());
        let cyclic = uses.iter().map(|one| one.cyclic).collect();
        let (op_storages, op_starts) = by_op(&uses, ops);
        Ok(Self {
            fingerprints,
            needs,
            use_ops,
            use_starts,
            cyclic,
            op_storages,
            op_starts,
            births,
            names,
        })
    }

    /// Ops of the iteration, at least 1.
    pub fn ops(&self) -> u32 {
        self.fingerprints.len() as u32
    }

    /// Storages of the iteration.
    pub fn storages(&self) -> u32 {
        self.cyclic.len() as u32
    }

    /// Returns whether the other one has the same ops and storages, whatever they are called.
    pub fn same_steps(&self, other: &Self) -> bool {
        // Who uses what, op by op, follows from these.
        self.fingerprints == other.fingerprints
            && self.needs == other.needs
            && self.births == other.births
            && (&self.use_ops, &self.use_starts, &self.cyclic)
                == (&other.use_ops, &other.use_starts, &other.cyclic)
    }

    /// Returns the fingerprint of the op at `index`, if the iteration has it.
    pub fn fingerprint(&self, index: OpIndex) -> Option<u64> {
        self.fingerprints.get(index.0 as usize).copied()
    }

    /// Memory for the outputs of the op at `index`; 0 beyond the iteration.
    pub fn needs(&self, index: OpIndex) -> Bytes {
        self.needs.get(index.0 as usize).copied().unwrap_or_default()
    }

    /// The storages that the op at `index` uses; none beyond the iteration.
    pub fn used_by(&self, index: OpIndex) -> &[PlanStorage] {
        let index = index.0 as usize;
        match self.op_starts.get(index..index + 2) {
            Some(&[begin, end]) => &self.op_storages[begin..end],
            _ => &[],
        }
    }

    /// The storage that output `slot` of op `op` is.
    pub fn born_at(&self, op: OpIndex, slot: u16) -> Option<PlanStorage> {
        let at = self.births.binary_search_by_key(&(op, slot), |birth| (birth.op, birth.slot));
        at.ok().map(|at| self.births[at].storage)
    }

    /// The storage of that name.
    pub fn named(&self, name: &str) -> Option<PlanStorage> {
        let at = self.names.binary_search_by_key(&name, |(known, _)| known.as_str());
        at.ok().map(|at| self.names[at].1)
    }

    /// Every name with its storage, by name.
    pub fn names(&self) -> &[(String, PlanStorage)] {
        &self.names
    }

    /// The time of the next use after `now` of a storage whose instance was born in the step whose
    /// op 0 is at time `birth`. `None`: never again. Both times count from op 0 of step 0.
    pub fn next_use(&self, storage: PlanStorage, birth: u64, now: u64) -> Option<u64> {
        let index = storage.0 as usize;
        let end = *self.use_starts.get(index + 1)?;
        let uses = &self.use_ops[self.use_starts[index]..end];
        let ops = u64::from(self.ops());
        let origin = if self.cyclic[index] { now - now % ops } else { birth };
        let next = uses.partition_point(|&op| origin + u64::from(op) <= now);
        match uses.get(next) {
            Some(&op) => Some(origin + u64::from(op)),
            None if self.cyclic[index] => uses.first().map(|&op| origin + ops + u64::from(op)),
            None => None,
        }
    }
}

/// Turns uses by storage into uses by op: all storages in the order of ops, and where each op's
/// begin.
fn by_op(uses: &[ScheduledUses], ops: u32) -> (Vec<PlanStorage>, Vec<usize>) {
    let mut pairs = Vec::new();
    for (index, one) in uses.iter().enumerate() {
        pairs.extend(one.ops.iter().map(|op| (op.0 % ops, PlanStorage(index as u32))));
    }
    pairs.sort_unstable();
    let starts = (0..=ops).map(|op| pairs.partition_point(|&(at, _)| at < op)).collect();
    (pairs.into_iter().map(|(_, storage)| storage).collect(), starts)
}

fn count_ops(fingerprints: &[u64], needs: &[Bytes]) -> Result<u32, ScheduleError> {
    if fingerprints.len() != needs.len() {
        let (fingerprints, needs) = (fingerprints.len(), needs.len());
        return Err(ScheduleError::OpCount { fingerprints, needs });
    }
    match u32::try_from(fingerprints.len()) {
        Ok(0) => Err(ScheduleError::Empty),
        Ok(ops) if ops <= OPS_MAX => Ok(ops),
        _ => Err(ScheduleError::TooManyOps(fingerprints.len())),
    }
}
