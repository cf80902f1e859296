//! Lifetimes of storages, and the periods in which their memory only waits.
//!
//! Times are op indices on a line of two iterations: with `K` ops, op `k` of the next iteration is
//! `K + k`. A period that wraps therefore ends beyond `K`, and every range is `from..to`.

use crate::migration::{Migration, MigrationDirection, Target};
use crate::trace::{Identity, PlanStorage, Trace};
use crate::units::{Bytes, OpIndex};

/// End of an inactive period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum PeriodEnd {
    /// Use of the storage: what was taken out has to be back by then.
    Use,
    /// The storage is never used again: it dies, or it is alive and nobody looks at it.
    Unused,
}

/// A stretch of ops in which a storage is alive and not used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Period {
    /// Storage whose memory waits.
    pub storage: PlanStorage,
    /// Size of the memory.
    pub size: Bytes,
    /// The first op that does not use it, below `K`.
    pub from: u32,
    /// The op that uses it next (or the end of its life), unrolled: below `2 K`.
    pub to: u32,
    /// End of the period.
    pub end: PeriodEnd,
    /// Version of the bytes in this period, counted by modifications: a copy made in one period is
    /// good in every other with the same version (the period is *clean* there).
    pub version: ContentVersion,
    /// True if the contents come from the iteration before: nothing in this one has modified them
    /// yet.
    pub carried: bool,
}

impl Period {
    /// Orders the periods in which the storage has the same contents: which of them comes first
    /// after the modification, also where these contents last into the next iteration.
    pub(crate) fn order(&self) -> (bool, u32) {
        (self.carried, self.from)
    }

    /// Returns the possible moves in an iteration of `ops` ops: nothing, or out to `target` at its
    /// beginning and, if it ends with a use, back from some op on.
    pub(crate) fn choices(self, ops: u32, target: Target) -> impl Iterator<Item = Vec<Migration>> {
        let Self { storage, from, to, end, .. } = self;
        let way =
            move |direction, when| Migration::unrolled(storage, (direction, target), when, ops);
        let leaving = (from + 1..to).map(move |back| {
            vec![
                way(MigrationDirection::Out, (from, back)),
                way(MigrationDirection::In, (back, to)),
            ]
        });
        let returning = leaving.filter(move |_| end == PeriodEnd::Use);
        let for_good = vec![way(MigrationDirection::Out, (from, to))];
        let for_good = (end == PeriodEnd::Unused).then_some(for_good);
        [Vec::new()].into_iter().chain(returning).chain(for_good)
    }
}

/// The contents of a storage during a period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ContentVersion {
    /// Constant contents, which nothing in the iteration modifies it: one copy, made once, serves
    /// every iteration.
    Constant,
    /// The contents after this many modifications in the iteration. A global's contents before the
    /// first modification are those after the last one of the iteration before.
    After(u32),
}

/// One storage's life on the line of two iterations.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The op that makes it; `None` where it is there before op 0.
    pub birth: Option<u32>,
    /// The op after which it is gone, unrolled; `None` for a global. A storage that is born in the
    /// iteration and never seen to die counts until the end of the iteration.
    pub death: Option<u32>,
}

impl Lifetime {
    /// The ops during which its memory is taken, unrolled.
    fn alive(self, ops: u32) -> (u32, u32) {
        (self.birth.unwrap_or(0), self.death.map_or(ops, |death| death + 1))
    }
}

/// Facts that follow from a trace before any decision is made.
#[derive(Clone, Debug)]
pub struct Lifetimes {
    /// Lifetimes of the storages.
    pub lifetimes: Vec<Lifetime>,
    /// Bytes alive while each op runs, nothing evicted.
    pub memory: Vec<Bytes>,
    /// Bytes that each op uses or makes; no plan brings the op below that.
    pub active: Vec<Bytes>,
    /// Every inactive period of the storages that can move and be named, by storage, then time.
    pub periods: Vec<Period>,
}

/// One use on the line of two iterations.
#[derive(Clone, Copy)]
pub(crate) struct At {
    pub(crate) op: u32,
    pub(crate) modifies: bool,
}

impl Lifetimes {
    /// Walks a valid trace once; cost grows with its uses.
    pub fn of(trace: &Trace) -> Self {
        let ops = trace.ops.len() as u32;
        let uses = uses_by_storage(trace);
        let lifetimes = lives(trace);
        let mut periods = Vec::new();
        for (index, storage) in trace.storages.iter().enumerate() {
            let plannable = storage.movable
                && storage.size.0 > 0
                && !matches!(storage.identity, Identity::Arrival);
            if plannable {
                let storage = PlanStorage(index as u32);
                collect_periods(trace, storage, lifetimes[index], &uses[index], &mut periods);
            }
        }
        let memory = sum_over_ops(
            ops,
            lifetimes.iter().zip(&trace.storages).map(|(life, storage)| {
                let (from, to) = life.alive(ops);
                (from, to, storage.size)
            }),
        );
        let active = trace.ops.iter().map(|op| active_bytes(trace, op)).collect();
        Self { lifetimes, memory, active, periods }
    }

    /// The most bytes alive at any op.
    pub fn peak(&self) -> Bytes {
        self.memory.iter().copied().max().unwrap_or_default()
    }

    /// The op whose own storages need the most memory, and how much: the smallest budget that can
    /// do at all, staging apart.
    pub fn largest_op(&self) -> (OpIndex, Bytes) {
        let largest = self.active.iter().enumerate().rev().max_by_key(|(_, bytes)| **bytes);
        largest.map_or((OpIndex(0), Bytes(0)), |(op, bytes)| (OpIndex(op as u32), *bytes))
    }
}

/// Returns for each storage the ops that use it in the order of their times, births included.
pub(crate) fn uses_by_storage(trace: &Trace) -> Vec<Vec<At>> {
    let ops = trace.ops.len() as u32;
    let mut uses: Vec<Vec<At>> = vec![Vec::new(); trace.storages.len()];
    for (index, op) in trace.ops.iter().enumerate() {
        for birth in &op.births {
            uses[birth.storage.0 as usize].push(At { op: index as u32, modifies: true });
        }
        for used in &op.uses {
            let of_storage = &mut uses[used.storage.0 as usize];
            let at = index as u32 + if used.previous { ops } else { 0 };
            match of_storage.last_mut() {
                Some(last) if last.op == at => last.modifies |= used.access.modifies(),
                _ => of_storage.push(At { op: at, modifies: used.access.modifies() }),
            }
        }
    }
    for of_storage in &mut uses {
        // Uses of a previous instance come early in the trace and late in the life.
        of_storage.sort_by_key(|at| at.op);
    }
    uses
}

fn lives(trace: &Trace) -> Vec<Lifetime> {
    let ops = trace.ops.len() as u32;
    let mut lifetimes: Vec<Lifetime> = trace
        .storages
        .iter()
        .map(|storage| match storage.identity {
            Identity::Name(_) => Lifetime { birth: None, death: None },
            Identity::Arrival => Lifetime { birth: None, death: Some(ops - 1) },
            Identity::Output { op, .. } => Lifetime { birth: Some(op.0), death: Some(ops - 1) },
        })
        .collect();
    for (index, op) in trace.ops.iter().enumerate() {
        for death in &op.deaths {
            let at = index as u32 + if death.previous { ops } else { 0 };
            lifetimes[death.storage.0 as usize].death = Some(at);
        }
    }
    lifetimes
}

fn collect_periods(
    trace: &Trace,
    storage: PlanStorage,
    life: Lifetime,
    uses: &[At],
    periods: &mut Vec<Period>,
) {
    let ops = trace.ops.len() as u32;
    let size = trace.storage(storage).size;
    let modifications = uses.iter().filter(|at| at.modifies).count() as u32;
    let mut version = 0;
    let mut push = |from: u32, to: u32, end, (version, carried)| {
        // One that begins with the next iteration is, in this one, of the instance before.
        let (from, to) = if from < ops { (from, to) } else { (from - ops, to - ops) };
        if from < to && from < ops {
            periods.push(Period { storage, size, from, to, end, version, carried });
        }
    };
    let global = life.death.is_none();
    if global && uses.is_empty() {
        push(0, ops, PeriodEnd::Unused, (ContentVersion::Constant, true));
    }
    for (index, at) in uses.iter().enumerate() {
        version += u32::from(at.modifies);
        let contents = match (modifications, version) {
            (0, _) => (ContentVersion::Constant, true),
            // The iteration before left these bytes.
            (_, 0) => (ContentVersion::After(modifications), true),
            _ => (ContentVersion::After(version), false),
        };
        match (uses.get(index + 1), life.death) {
            // An instance of the iteration before cannot be told from the next one by its name.
            (Some(next), Some(_)) if next.op >= ops + life.birth.unwrap_or(0) => break,
            (Some(next), _) => push(at.op + 1, next.op, PeriodEnd::Use, contents),
            (None, None) => push_wrapped(at.op + 1, ops, uses[0].op, contents, &mut push),
            (None, Some(death)) => {
                let known_until = ops + life.birth.unwrap_or(0);
                push(at.op + 1, (death + 1).min(known_until), PeriodEnd::Unused, contents);
            }
        }
    }
}

/// Adds the period from a global's last use to its first of the next iteration. After a last use by
/// the last op the period begins with op 0, and is not unrolled.
fn push_wrapped(
    from: u32,
    ops: u32,
    first: u32,
    (version, carried): (ContentVersion, bool),
    push: &mut impl FnMut(u32, u32, PeriodEnd, (ContentVersion, bool)),
) {
    if from == ops {
        // In the line of this iteration the period is one that the iteration before began.
        push(0, first, PeriodEnd::Use, (version, true));
    } else {
        push(from, ops + first, PeriodEnd::Use, (version, carried));
    }
}

fn active_bytes(trace: &Trace, op: &crate::trace::Op) -> Bytes {
    let size = |storage: PlanStorage| trace.storage(storage).size.0;
    let born = op.births.iter().map(|birth| size(birth.storage));
    let is_born = |storage| op.births.iter().any(|birth| birth.storage == storage);
    let used = op.uses.iter().filter(|used| used.previous || !is_born(used.storage));
    Bytes(born.chain(used.map(|used| size(used.storage))).sum())
}

/// Adds `size` to each op of each unrolled range, folded back into one iteration.
pub(crate) fn sum_over_ops(
    ops: u32,
    ranges: impl Iterator<Item = (u32, u32, Bytes)>,
) -> Vec<Bytes> {
    let mut steps = vec![0i128; 2 * ops as usize + 1];
    for (from, to, size) in ranges {
        steps[from as usize] += i128::from(size.0);
        steps[to as usize] -= i128::from(size.0);
    }
    let mut line = Vec::with_capacity(2 * ops as usize);
    let mut sum = 0i128;
    for step in &steps[..2 * ops as usize] {
        sum += step;
        line.push(sum);
    }
    let (this, next) = line.split_at(ops as usize);
    this.iter()
        .zip(next)
        .map(|(a, b)| Bytes(u64::try_from(a + b).expect("every range is added before it is taken")))
        .collect()
}

#[cfg(test)]
mod tests;
