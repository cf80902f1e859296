//! A plan in the form that the machine follows: storages by number, times by op.
//!
//! A schedule describes one iteration and repeats: op `i` of the `r`-th step is at time
//! `r * ops + i`. It is only ever a hint about what is used when. Whatever it says, an op runs when
//! its storages are in memory and there is room, and not before.

use crate::plan::{Action, Target};
use crate::trace::PlanStorage;
use crate::units::{Bytes, OpIndex};

/// One migration in one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledMove {
    /// Whose memory.
    pub storage: PlanStorage,
    /// Out or back.
    pub action: Action,
    /// Where to, or where from.
    pub target: Target,
    /// The op before which it begins.
    pub start: OpIndex,
    /// The op before which it is complete; smaller than `start` where it lies in the next step.
    pub deadline: OpIndex,
}

/// When a storage is used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduledUses {
    /// The ops that use it, ascending, each once. For a storage that is born in the iteration the
    /// uses of one instance: a use in the step after its birth counts on, as op + `ops`.
    pub ops: Vec<OpIndex>,
    /// Whether it lives across steps, so that after the last use the first one comes again.
    pub cyclic: bool,
}

/// An output that the schedule knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduledBirth {
    /// The op that makes it.
    pub op: OpIndex,
    /// Which of its outputs.
    pub slot: u16,
    /// Which storage that is.
    pub storage: PlanStorage,
}

/// What a [`Schedule`] is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScheduleParts {
    /// Per op: what must be equal for the step to be the one that was planned.
    pub fingerprints: Vec<u64>,
    /// Per op: memory for its outputs.
    pub needs: Vec<Bytes>,
    /// The migrations, in any order.
    pub moves: Vec<ScheduledMove>,
    /// Per storage: its uses.
    pub uses: Vec<ScheduledUses>,
    /// The outputs, in any order, each (op, slot) once.
    pub births: Vec<ScheduledBirth>,
    /// Storages that have a name, in any order, each name once.
    pub names: Vec<(String, PlanStorage)>,
}

/// Why parts make no schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// An iteration needs ops.
    #[error("the schedule has no ops")]
    Empty,
    /// More ops than an op index can count.
    #[error("the schedule has {0} ops, more than {max}", max = Schedule::OPS_MAX)]
    TooManyOps(usize),
    /// Two tables that are per op disagree.
    #[error("{fingerprints} fingerprints, but output sizes of {needs} ops")]
    OpCount {
        /// The length of the one.
        fingerprints: usize,
        /// The length of the other.
        needs: usize,
    },
    /// A storage that has no row in `uses`.
    #[error("{what} names storage {}, but there are {storages}", storage.0)]
    UnknownStorage {
        /// Who names it.
        what: &'static str,
        /// Which.
        storage: PlanStorage,
        /// How many there are.
        storages: usize,
    },
    /// An op beyond the iteration.
    #[error("{what} of storage {} at op {}, but the iteration has {ops} ops", storage.0, op.0)]
    OpOutOfRange {
        /// What is there.
        what: &'static str,
        /// Whose.
        storage: PlanStorage,
        /// Where.
        op: OpIndex,
        /// How many ops there are.
        ops: u32,
    },
    /// Uses that do not ascend.
    #[error("the uses of storage {} do not ascend at op {}", storage.0, op.0)]
    Unsorted {
        /// Whose.
        storage: PlanStorage,
        /// Where.
        op: OpIndex,
    },
    /// An output that is two storages.
    #[error("output {slot} of op {} is two storages", op.0)]
    AmbiguousBirth {
        /// Which op.
        op: OpIndex,
        /// Which output.
        slot: u16,
    },
    /// A name for two storages.
    #[error("{0:?} names two storages")]
    AmbiguousName(String),
}

/// A plan in the form that the machine follows. Immutable and checked: every index in it is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    fingerprints: Vec<u64>,
    needs: Vec<Bytes>,
    /// By start; evictions before prefetches, which may want their room.
    moves: Vec<ScheduledMove>,
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

impl Schedule {
    /// The most ops an iteration may have: one more step must still be countable.
    pub const OPS_MAX: u32 = u32::MAX / 2;

    /// Checks the parts and puts them in order.
    pub fn new(parts: ScheduleParts) -> Result<Self, ScheduleError> {
        let ScheduleParts { fingerprints, needs, mut moves, uses, mut births, mut names } = parts;
        let ops = count_ops(&fingerprints, &needs)?;
        let known = |what, storage: PlanStorage| {
            if (storage.0 as usize) < uses.len() {
                return Ok(());
            }
            Err(ScheduleError::UnknownStorage { what, storage, storages: uses.len() })
        };
        let within = |what, storage, op: OpIndex, limit: u32| {
            if op.0 < limit {
                return Ok(());
            }
            Err(ScheduleError::OpOutOfRange { what, storage, op, ops })
        };

        for row in &moves {
            known("a move", row.storage)?;
            within("start of a move", row.storage, row.start, ops)?;
            within("deadline of a move", row.storage, row.deadline, ops)?;
        }
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
        moves.sort_by_key(|row| {
            (row.start, row.action == Action::Prefetch, row.deadline, row.storage)
        });

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
            moves,
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

    /// Whether the other one plans the same ops and storages, whatever it moves.
    pub fn same_steps(&self, other: &Self) -> bool {
        // Who uses what, op by op, follows from these.
        self.fingerprints == other.fingerprints
            && self.needs == other.needs
            && self.births == other.births
            && (&self.use_ops, &self.use_starts, &self.cyclic)
                == (&other.use_ops, &other.use_starts, &other.cyclic)
    }

    /// What the op at `index` looks like, if the iteration has it.
    pub fn fingerprint(&self, index: OpIndex) -> Option<u64> {
        self.fingerprints.get(index.0 as usize).copied()
    }

    /// Memory for the outputs of the op at `index`; 0 beyond the iteration.
    pub fn needs(&self, index: OpIndex) -> Bytes {
        self.needs.get(index.0 as usize).copied().unwrap_or_default()
    }

    /// The migrations, by start.
    pub fn moves(&self) -> &[ScheduledMove] {
        &self.moves
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

/// Turns uses by storage into uses by op: all storages in the order of ops, and where each op's begin.
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
        Ok(ops) if ops <= Schedule::OPS_MAX => Ok(ops),
        _ => Err(ScheduleError::TooManyOps(fingerprints.len())),
    }
}
