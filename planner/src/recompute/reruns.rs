//! The reruns of a step: ops that the backward pass runs again, since their activations were freed.

use super::CheckpointedRegion;
use super::regions::NoRerun;
use super::repetitions::Repetitions;
use crate::bound::{MadeTwice, Skippable};
use crate::lifetime::{At, uses_by_storage};
use crate::trace::{Identity, Op, PlanStorage, Trace};
use crate::units::{Bytes, Nanos};
use std::collections::{BTreeSet, HashMap};
use std::ops::Range;

/// Ops that the program runs again to have what they made the first time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rerun {
    /// The ops' first run.
    pub first: Range<u32>,
    /// Second run of the ops.
    pub again: Range<u32>,
    /// Duration of the second run.
    pub time: Nanos,
    /// Bytes to keep so that it is not needed.
    pub bytes: Bytes,
    /// Reruns that use the same parameters, such as those of one layer in each micro-batch, are of
    /// one layer.
    pub layer: u32,
    /// Storages that the second run makes, and what the first one made in its place.
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
        let (mut taken, mut layers) = (vec![false; trace.ops.len()], Layers::default());
        let mut found = Vec::new();
        for (first, again, ops) in repetitions.runs() {
            let (first, again) = (first..first + ops, again..again + ops);
            let mut both = first.clone().chain(again.clone());
            if both.any(|op| taken[op as usize]) {
                continue;
            }
            let Some(parameters) = facts.parameters(&repetitions, again.clone()) else { continue };
            let Ok(made) = facts.made(first.clone(), again.clone()) else { continue };
            first.clone().chain(again.clone()).for_each(|op| taken[op as usize] = true);
            found.push(facts.rerun(first, again, layers.of(parameters), made));
        }
        found
    }

    /// The second run of a region that the program names, if it can be left out.
    pub(super) fn of_region(
        facts: &Facts<'_>,
        layers: &mut Layers,
        region: &CheckpointedRegion,
    ) -> Result<Self, NoRerun> {
        let again = region.again.clone();
        // The second run may end before the first did: with the last that is needed of it.
        let first = region.first.start..(region.first.start + again.len() as u32);
        facts.same_ops(region, &first)?;
        let parameters = facts.named(again.clone());
        facts.changes_nothing_else(again.clone())?;
        let made = facts.made(first.clone(), again.clone())?;
        Ok(facts.rerun(first, again, layers.of(parameters), made))
    }

    /// Returns the number of ops for which the kept bytes wait.
    pub(super) fn away(&self) -> u32 {
        self.again.start - self.first.end
    }

    /// The second run as the lower bound sees it: ops that may be left out.
    pub fn skippable(&self) -> Skippable {
        Skippable {
            ops: self.again.clone().collect(),
            made: self.made.clone(),
            ..Skippable::default()
        }
    }
}

/// Numbers layers by the parameters that they use.
#[derive(Default)]
pub(super) struct Layers(HashMap<Vec<u32>, u32>);

impl Layers {
    fn of(&mut self, parameters: Vec<u32>) -> u32 {
        let next = self.0.len() as u32;
        *self.0.entry(parameters).or_insert(next)
    }
}

/// Facts of a trace that are used many times.
pub(super) struct Facts<'a> {
    trace: &'a Trace,
    uses: Vec<Vec<At>>,
    /// Death of each storage, if it does so in the iteration that makes it.
    deaths: Vec<Option<u32>>,
}

impl<'a> Facts<'a> {
    pub(super) fn of(trace: &'a Trace) -> Self {
        let mut deaths = vec![None; trace.storages.len()];
        for (index, op) in trace.ops.iter().enumerate() {
            for death in op.deaths.iter().filter(|death| !death.previous) {
                deaths[death.storage.0 as usize] = Some(index as u32);
            }
        }
        Self { trace, uses: uses_by_storage(trace), deaths }
    }

    fn ops(&self, ops: Range<u32>) -> &'a [Op] {
        &self.trace.ops[ops.start as usize..ops.end as usize]
    }

    fn births(&self, ops: Range<u32>) -> impl Iterator<Item = PlanStorage> {
        self.ops(ops).iter().flat_map(|op| op.births.iter().map(|birth| birth.storage))
    }

    fn rerun(
        &self,
        first: Range<u32>,
        again: Range<u32>,
        layer: u32,
        made: Vec<MadeTwice>,
    ) -> Rerun {
        let kept = made.iter().filter(|one| one.outlives);
        let bytes = Bytes(kept.map(|one| self.trace.storage(one.first).size.0).sum());
        let ops = self.ops(again.clone());
        let time = Nanos(ops.iter().map(|op| op.duration.0).sum());
        Rerun { first, again, time, bytes, layer, made }
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

    /// The named storages that the ops use.
    fn named(&self, ops: Range<u32>) -> Vec<u32> {
        let used = self.ops(ops).iter().flat_map(|op| op.uses.iter().map(|used| used.storage));
        let is_named = |storage: &PlanStorage| {
            matches!(self.trace.storage(*storage).identity, Identity::Name(_))
        };
        let named: BTreeSet<u32> = used.filter(is_named).map(|storage| storage.0).collect();
        named.into_iter().collect()
    }

    /// Checks that both runs of a region, as far as the second one goes, are of the same ops.
    fn same_ops(&self, region: &CheckpointedRegion, first: &Range<u32>) -> Result<(), NoRerun> {
        let CheckpointedRegion { first: whole, again } = region;
        let is_in_order = whole.start <= whole.end && whole.end <= again.start;
        if again.is_empty() || !is_in_order || again.end as usize > self.trace.ops.len() {
            return Err(NoRerun::Nothing);
        }
        let pairs = self.ops(first.clone()).iter().zip(self.ops(again.clone()));
        let is_alike = |(one, other): (&Op, &Op)| {
            let of = |op: &Op| (op.fingerprint, op.births.len(), op.uses.len());
            let accesses = |op: &Op| op.uses.iter().map(|used| used.access).collect::<Vec<_>>();
            one.name == other.name && of(one) == of(other) && accesses(one) == accesses(other)
        };
        match pairs.clone().position(|pair| !is_alike(pair)) {
            None if first.end <= whole.end => Ok(()),
            at => {
                let at = at.unwrap_or(whole.len());
                let op = self.ops(again.clone()).get(at).map_or("", |op| op.name.as_str());
                Err(NoRerun::OtherOps { op: op.to_owned() })
            }
        }
    }

    /// The ops change nothing but what they make themselves.
    fn changes_nothing_else(&self, ops: Range<u32>) -> Result<(), NoRerun> {
        let born: BTreeSet<u32> = self.births(ops.clone()).map(|storage| storage.0).collect();
        let mut all = self.ops(ops).iter().flat_map(|op| &op.uses);
        match all.find(|used| used.access.modifies() && !born.contains(&used.storage.0)) {
            Some(used) => Err(NoRerun::Changes { storage: self.trace.label(used.storage) }),
            None => Ok(()),
        }
    }

    /// Returns the storages that the second run makes and what the first made in its place, where
    /// that can stand for it.
    fn made(&self, first: Range<u32>, again: Range<u32>) -> Result<Vec<MadeTwice>, NoRerun> {
        let births = self.births(again.clone()).zip(self.births(first.clone()));
        let made: Vec<MadeTwice> = births
            .map(|(again_made, first_made)| {
                let label = || self.trace.label(again_made);
                if self.deaths[again_made.0 as usize].is_none() {
                    return Err(NoRerun::LivesOn { storage: label() });
                }
                // Not by its death: a transfer that is under way holds what nothing uses any more.
                let uses = &self.uses[again_made.0 as usize];
                let outlives = uses.iter().any(|at| at.op >= again.end);
                let one = MadeTwice { again: again_made, first: first_made, outlives };
                let can = self.can_stand_in(one, first.end, again.start);
                if can { Ok(one) } else { Err(NoRerun::Replaced { storage: label() }) }
            })
            .collect::<Result<_, _>>()?;
        let of: HashMap<PlanStorage, PlanStorage> =
            made.iter().map(|one| (one.again, one.first)).collect();
        // Equal values in other storages are not what this is about.
        let uses = |ops: Range<u32>| {
            self.ops(ops).iter().flat_map(|op| op.uses.iter().map(|used| used.storage))
        };
        let mut both = uses(again).zip(uses(first));
        let other = both.find(|(again, first)| of.get(again).unwrap_or(again) != first);
        if let Some((again, _)) = other {
            return Err(NoRerun::Reads { storage: self.trace.label(again) });
        }
        if made.iter().any(|one| one.outlives) { Ok(made) } else { Err(NoRerun::Nothing) }
    }

    /// Returns whether what the first run has made holds the same bytes after it, and was let go
    /// before the second.
    fn can_stand_in(&self, one: MadeTwice, first_end: u32, again_begin: u32) -> bool {
        let [again, first] = [one.again, one.first].map(|storage| self.trace.storage(storage));
        let is_alike = (again.size, again.movable) == (first.size, first.movable);
        let is_let_go = self.deaths[one.first.0 as usize].is_some_and(|death| death < again_begin);
        let mut later = self.uses[one.first.0 as usize].iter().filter(|at| at.op >= first_end);
        is_alike && (!one.outlives || (is_let_go && !later.any(|at| at.modifies)))
    }
}
