//! Repetitions: ops that compute what an earlier op has computed: the same op of the same values.
//!
//! A value is what a storage holds at some time. It is named by where it comes from: what a storage
//! holds at the beginning, or which op of which values has made it.

use crate::trace::{Access, Op, Trace};
use std::collections::HashMap;

/// Value that a storage holds.
type Value = u64;

/// Values that ops have made, those from the iteration before, and one for what nobody reads.
const MADE: Value = 1 << 63;
const CARRIED: Value = 1 << 62;
const UNREAD: Value = Value::MAX;

/// An op makes fewer values than two to this.
const PLACE_BITS: u32 = 20;

/// An op of values. Two that are equal make equal values.
#[derive(PartialEq, Eq, Hash)]
struct Computation<'a> {
    name: &'a str,
    fingerprint: u64,
    reads: Vec<(Value, Access)>,
    births: usize,
}

/// Repeated ops: for each op the earlier one that computes the same.
pub(super) struct Repetitions {
    earlier: Vec<Option<u32>>,
    /// The computation of each op, and how many ops have it.
    computation: Vec<u32>,
    count: Vec<u32>,
}

impl Repetitions {
    pub(super) fn of(trace: &Trace) -> Self {
        let mut numbering = Numbering::of(trace);
        for op in &trace.ops {
            numbering.add(op);
        }
        let Numbering { earlier, computation, ops, .. } = numbering;
        let count = ops.iter().map(|ops| ops.len() as u32).collect();
        Self { earlier, computation, count }
    }

    /// Returns the number of ops of the iteration that compute the same as this one.
    pub(super) fn count(&self, op: u32) -> u32 {
        self.count[self.computation[op as usize] as usize]
    }

    /// Runs of ops, each as long as it can be, that repeat an earlier run op by op: where the
    /// earlier one begins, where this one does, and how many ops they have.
    pub(super) fn runs(&self) -> Vec<(u32, u32, u32)> {
        let count = self.earlier.len() as u32;
        let (mut runs, mut again) = (Vec::new(), 0);
        while again < count {
            let Some(first) = self.earlier[again as usize] else {
                again += 1;
                continue;
            };
            let goes_on = |ops: &u32| {
                let next = (again + ops) as usize;
                first + ops < again && self.earlier.get(next) == Some(&Some(first + ops))
            };
            let ops = 1 + (1..count).take_while(goes_on).count() as u32;
            runs.push((first, again, ops));
            again += ops;
        }
        runs
    }
}

struct Numbering<'a> {
    trace: &'a Trace,
    /// Value that each storage holds by now.
    holds: Vec<Value>,
    known: HashMap<Computation<'a>, u32>,
    /// The ops of each computation.
    ops: Vec<Vec<u32>>,
    computation: Vec<u32>,
    earlier: Vec<Option<u32>>,
}

impl<'a> Numbering<'a> {
    fn of(trace: &'a Trace) -> Self {
        let (known, ops, computation, earlier) = Default::default();
        let holds = (0..trace.storages.len() as Value).collect();
        Self { trace, holds, known, ops, computation, earlier }
    }

    fn add(&mut self, op: &'a Op) {
        let index = self.computation.len() as u32;
        // Where the run that the op before repeats goes on.
        let follows = self.earlier.last().copied().flatten().map(|before| before + 1);
        let number =
            if op.uses.is_empty() { self.source(op, follows) } else { self.computation(op) };
        let same = &mut self.ops[number as usize];
        let earlier = follows.filter(|follows| same.contains(follows)).or(same.last().copied());
        same.push(index);
        self.earlier.push(earlier);
        self.computation.push(number);
        self.make(op, number);
    }

    fn computation(&mut self, op: &'a Op) -> u32 {
        let reads = op.uses.iter().map(|used| match (used.access, used.previous) {
            (Access::Write, _) => (UNREAD, used.access),
            (access, true) => (CARRIED | Value::from(used.storage.0), access),
            (access, false) => (self.holds[used.storage.0 as usize], access),
        });
        let computation = Computation {
            name: &op.name,
            fingerprint: op.fingerprint,
            reads: reads.collect(),
            births: op.births.len(),
        };
        let next = self.ops.len() as u32;
        let number = *self.known.entry(computation).or_insert(next);
        if number == next {
            self.ops.push(Vec::new());
        }
        number
    }

    /// Returns the value of an op without inputs (memory, a constant, a batch): it repeats only as
    /// part of a run that is repeated.
    fn source(&mut self, op: &Op, follows: Option<u32>) -> u32 {
        let of = |op: &Op| (op.uses.len(), op.births.len(), op.fingerprint);
        let like = follows.filter(|follows| {
            let before = &self.trace.ops[*follows as usize];
            of(before) == of(op) && before.name == op.name
        });
        if let Some(like) = like {
            return self.computation[like as usize];
        }
        self.ops.push(Vec::new());
        self.ops.len() as u32 - 1
    }

    /// Notes what the op leaves in storages.
    fn make(&mut self, op: &Op, number: u32) {
        let made = |place: usize| MADE | Value::from(number) << PLACE_BITS | place as Value;
        for (place, used) in op.uses.iter().enumerate() {
            if used.access.modifies() && !used.previous {
                self.holds[used.storage.0 as usize] = made(place);
            }
        }
        for (place, birth) in op.births.iter().enumerate() {
            self.holds[birth.storage.0 as usize] = made(op.uses.len() + place);
        }
    }
}
