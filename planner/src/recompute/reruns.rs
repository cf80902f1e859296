//! The reruns of a step: ops that the backward pass runs again, since what they made was let go.

use super::repetitions::Repetitions;
use crate::bound::{MadeTwice, Skippable};
use crate::lifetime::{At, uses_by_storage};
use crate::trace::{Identity, PlanStorage, Trace};
use crate::units::{Bytes, Nanos};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Ops that the program runs again to have what they made the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rerun {
    /// The ops' first run.
    pub first: Range<u32>,
    /// The same ops again.
    pub again: Range<u32>,
    /// How long the second run takes.
    pub time: Nanos,
    /// What has to be kept so that it is not needed.
    pub bytes: Bytes,
    /// Reruns that use the same parameters, such as those of one layer in each micro-batch, are of
    /// one layer.
    pub layer: u32,
    /// What the second run makes, and what the first one made in its place.
    pub(super) made: Vec<MadeTwice>,
}

impl Rerun {
    /// Every rerun of a step, in the order of their second runs.
    ///
    /// A run of ops counts as one if it repeats an earlier one op by op, reads a parameter and
    /// something that the step has made, changes nothing but what it makes itself, and makes
    /// something that is used after it and that the first run has let go by then. Where more than
    /// two runs could be one another's repetition, none counts.
    pub fn all(trace: &Trace) -> Vec<Self> {
        let repetitions = Repetitions::of(trace);
        let facts = Facts::of(trace);
        let (mut taken, mut layers) = (vec![false; trace.ops.len()], HashMap::new());
        let mut found = Vec::new();
        for (first, again, ops) in repetitions.runs() {
            let (first, again) = (first..first + ops, again..again + ops);
            let mut both = first.clone().chain(again.clone());
            if both.any(|op| taken[op as usize]) {
                continue;
            }
            let Some(parameters) = facts.parameters(&repetitions, again.clone()) else { continue };
            let Some(made) = facts.made(first.clone(), again.clone()) else { continue };
            first.clone().chain(again.clone()).for_each(|op| taken[op as usize] = true);
            let next = layers.len() as u32;
            let layer = *layers.entry(parameters).or_insert(next);
            let kept = made.iter().filter(|one| one.outlives);
            let bytes = Bytes(kept.map(|one| trace.storage(one.first).size.0).sum());
            let ops = &trace.ops[again.start as usize..again.end as usize];
            let time = Nanos(ops.iter().map(|op| op.duration.0).sum());
            found.push(Self { first, again, time, bytes, layer, made });
        }
        found
    }

    /// How many ops what is kept has to wait.
    pub(super) fn away(&self) -> u32 {
        self.again.start - self.first.end
    }

    /// The second run as the lower bound sees it: ops that may be left out.
    pub fn skippable(&self) -> Skippable {
        Skippable { ops: self.again.clone(), made: self.made.clone() }
    }
}

/// What is asked of a trace again and again.
struct Facts<'a> {
    trace: &'a Trace,
    uses: Vec<Vec<At>>,
    /// Where each storage dies, if it does so in the iteration that makes it.
    deaths: Vec<Option<u32>>,
}

impl<'a> Facts<'a> {
    fn of(trace: &'a Trace) -> Self {
        let mut deaths = vec![None; trace.storages.len()];
        for (index, op) in trace.ops.iter().enumerate() {
            for death in op.deaths.iter().filter(|death| !death.previous) {
                deaths[death.storage.0 as usize] = Some(index as u32);
            }
        }
        Self { trace, uses: uses_by_storage(trace), deaths }
    }

    fn births(&self, ops: Range<u32>) -> impl Iterator<Item = PlanStorage> {
        let ops = &self.trace.ops[ops.start as usize..ops.end as usize];
        ops.iter().flat_map(|op| op.births.iter().map(|birth| birth.storage))
    }

    /// The named storages that the ops read; `None` where they are no part of a model that is run
    /// again.
    fn parameters(&self, repetitions: &Repetitions, ops: Range<u32>) -> Option<Vec<u32>> {
        let born: BTreeSet<u32> = self.births(ops.clone()).map(|storage| storage.0).collect();
        let (mut parameters, mut reads_made) = (BTreeSet::new(), false);
        for index in ops {
            let op = &self.trace.ops[index as usize];
            for used in op.uses.iter().filter(|used| !born.contains(&used.storage.0)) {
                if used.previous || used.access.modifies() {
                    return None;
                }
                if matches!(self.trace.storage(used.storage).identity, Identity::Name(_)) {
                    if repetitions.count(index) != 2 {
                        return None;
                    }
                    parameters.insert(used.storage.0);
                } else {
                    reads_made = true;
                }
            }
        }
        let is_model = reads_made && !parameters.is_empty();
        is_model.then(|| parameters.into_iter().collect())
    }

    /// What the second run makes and what the first made in its place; `None` where that cannot
    /// stand for it.
    fn made(&self, first: Range<u32>, again: Range<u32>) -> Option<Vec<MadeTwice>> {
        let births = self.births(again.clone()).zip(self.births(first.clone()));
        let made: Vec<MadeTwice> = births
            .map(|(again_made, first_made)| {
                let death = self.deaths[again_made.0 as usize]?;
                let outlives = death >= again.end;
                let one = MadeTwice { again: again_made, first: first_made, outlives };
                self.can_stand_in(one, first.end, again.start).then_some(one)
            })
            .collect::<Option<_>>()?;
        let of: HashMap<PlanStorage, PlanStorage> =
            made.iter().map(|one| (one.again, one.first)).collect();
        // Equal values in other storages are not what this is about.
        let uses = |ops: Range<u32>| {
            let ops = &self.trace.ops[ops.start as usize..ops.end as usize];
            ops.iter().flat_map(|op| op.uses.iter().map(|used| used.storage))
        };
        let mut both = uses(again).zip(uses(first));
        let is_alike = both.all(|(again, first)| *of.get(&again).unwrap_or(&again) == first);
        (is_alike && made.iter().any(|one| one.outlives)).then_some(made)
    }

    /// Whether what the first run has made holds the same bytes after it, and was let go before the
    /// second.
    fn can_stand_in(&self, one: MadeTwice, first_end: u32, again_begin: u32) -> bool {
        let [again, first] = [one.again, one.first].map(|storage| self.trace.storage(storage));
        let is_alike = (again.size, again.movable) == (first.size, first.movable);
        let is_let_go = self.deaths[one.first.0 as usize].is_some_and(|death| death < again_begin);
        let mut later = self.uses[one.first.0 as usize].iter().filter(|at| at.op >= first_end);
        is_alike && (!one.outlives || (is_let_go && !later.any(|at| at.modifies)))
    }
}
