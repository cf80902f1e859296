//! Reruns that the program names: it says which ops are the first run of a region, and which ones
//! run it again. That is more than a trace shows. Ops that read a parameter without changing
//! anything, such as views of it, run for other reasons, too.

use super::reruns::{Facts, Layers, Rerun};
use super::{LeftOut, RecomputeError, Reruns};
use crate::trace::{Identity, PlanStorage, Trace};
use crate::units::{Nanos, OpIndex};
use std::ops::Range;

/// Prefix of the names of ops that only name a tensor anew. Checkpointing runs them between the ops
/// of a second run.
const ALIASES: &str = "aten.detach";

/// A part of the model that the program runs twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointedRegion {
    /// The ops of its first run.
    pub first: Range<u32>,
    /// Ops of the second run, which may end earlier.
    pub again: Range<u32>,
}

/// Two ops of a step, the later of which writes the bytes that the first one wrote, as whoever
/// names them has compared: a parameter that is gathered from other ranks once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SameWrites {
    /// The op that wrote them first.
    pub first: u32,
    /// The op that writes them again.
    pub later: u32,
}

/// The reason why the second run of a region cannot be left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoRerun {
    /// The region does not run again, or for nothing.
    #[error("nothing that its second run makes is needed")]
    Nothing,
    /// The two runs differ.
    #[error("its second run does something else than its first one: {op}")]
    OtherOps {
        /// The first op that does.
        op: String,
    },
    /// A running mean, say, is changed twice.
    #[error("each of its runs changes {storage}")]
    Changes {
        /// Storage that is changed.
        storage: String,
    },
    /// The output of the second run lives on beyond the step.
    #[error("what its second run makes lives on after the step: {storage}")]
    LivesOn {
        /// Storage that lives on.
        storage: String,
    },
    /// The output of the first run differs from the second one's, or is still there.
    #[error(
        "what its first run has made is changed, or still in use, where it is needed: {storage}"
    )]
    Replaced {
        /// Storage that the second run makes.
        storage: String,
    },
    /// The two runs read other storages.
    #[error("its second run reads something that its first one does not: {storage}")]
    Reads {
        /// Storage that is read.
        storage: String,
    },
    /// The runs depend on something that changes between them.
    #[error("without its second run {why}")]
    Dependence {
        /// Storage that would be read.
        why: String,
    },
}

impl<'a> Reruns<'a> {
    /// The second runs of these regions of a step. For each region its place in [`Reruns::all`], or
    /// why it has none. Of `same` those count whose ops the step has, in their order.
    pub fn of_regions(
        program: &'a Trace,
        regions: &[CheckpointedRegion],
        same: &[SameWrites],
    ) -> (Self, Vec<Result<u32, NoRerun>>) {
        let mut same = same.to_vec();
        same.retain(|pair| pair.first < pair.later && (pair.later as usize) < program.ops.len());
        same.sort_unstable_by_key(|pair| pair.later);
        let (facts, mut layers) = (Facts::of(program), Layers::default());
        let mut in_order: Vec<usize> = (0..regions.len()).collect();
        in_order.sort_by_key(|region| regions[*region].again.start);
        let mut places: Vec<Result<u32, NoRerun>> = vec![Err(NoRerun::Nothing); regions.len()];
        let mut all: Vec<Rerun> = Vec::new();
        for region in in_order {
            let rerun = Rerun::of_region(&facts, &mut layers, &regions[region]);
            let found = rerun.and_then(|rerun| dependence(program, rerun, &same));
            places[region] = found.map(|rerun| {
                all.push(rerun);
                all.len() as u32 - 1
            });
        }
        (Self { program, all, same }, places)
    }
}

/// The rerun, if it can be left out alone.
fn dependence(program: &Trace, rerun: Rerun, same: &[SameWrites]) -> Result<Rerun, NoRerun> {
    let alone = Reruns { program, all: vec![rerun.clone()], same: same.to_vec() };
    match alone.without(&LeftOut(vec![0])) {
        Ok(_) => Ok(rerun),
        Err(RecomputeError::Dependence(why)) => Err(NoRerun::Dependence { why: why.to_string() }),
        Err(other) => Err(NoRerun::Dependence { why: other.to_string() }),
    }
}

/// The step without ops that only name a tensor anew, and where regions and ops that write the same
/// lie in it. Their time is that of the op before.
pub fn without_aliases(
    trace: &Trace,
    regions: &[CheckpointedRegion],
    same: &[SameWrites],
) -> (Trace, Vec<CheckpointedRegion>, Vec<SameWrites>) {
    let is_alias = |index: usize| {
        let op = &trace.ops[index];
        let modifies = op.uses.iter().any(|used| used.access.modifies());
        index > 0 && op.name.starts_with(ALIASES) && op.births.is_empty() && !modifies
    };
    let mut left = Trace { ops: Vec::with_capacity(trace.ops.len()), ..trace.clone() };
    let mut place = Vec::with_capacity(trace.ops.len() + 1);
    for (index, op) in trace.ops.iter().enumerate() {
        place.push(left.ops.len() as u32);
        match left.ops.last_mut().filter(|_| is_alias(index)) {
            Some(before) => {
                before.duration = Nanos(before.duration.0 + op.duration.0);
                before.deaths.extend_from_slice(&op.deaths);
            }
            None => left.ops.push(op.clone()),
        }
    }
    place.push(left.ops.len() as u32);
    for (index, op) in left.ops.iter().enumerate() {
        for birth in &op.births {
            let PlanStorage(storage) = birth.storage;
            let identity = &mut left.storages[storage as usize].identity;
            if let Identity::Output { op, .. } = identity {
                *op = OpIndex(index as u32);
            }
        }
    }
    let place_of = |op: u32| place[op.min(place.len() as u32 - 1) as usize];
    let at = |ops: &Range<u32>| place_of(ops.start)..place_of(ops.end);
    let regions = regions.iter().map(|CheckpointedRegion { first, again }| {
        let (first, again) = (at(first), at(again));
        CheckpointedRegion { first, again }
    });
    let regions = regions.collect();
    let moved =
        |pair: &SameWrites| SameWrites { first: place_of(pair.first), later: place_of(pair.later) };
    (left, regions, same.iter().map(moved).collect())
}
