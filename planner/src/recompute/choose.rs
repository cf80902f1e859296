//! Choice of the reruns to leave out: by the bound's prices, and by trial.
//!
//! Each rerun left out saves its time and costs memory from its first run to where the second one
//! would have been. What that is worth say the prices of the relaxed problem in which every rerun
//! may be left out. They rank the reruns; how many of the first are left out is found by trial,
//! since a plan of whole storages comes less close to the bound where memory is short.

use super::{LeftOut, Reruns};
use crate::bound::{self, Effort};
use crate::cost::{Machine, MachineError};
use crate::trace::Trace;
use crate::trials::best_count;
use std::collections::{BTreeMap, HashMap};

/// The prices only rank here.
const EFFORT: Effort = Effort { instants: 300, steps: 400 };

/// A choice that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice<C> {
    /// Reruns that are left out.
    pub left_out: LeftOut,
    /// Cost of the choice, by whoever tried it.
    pub cost: C,
}

/// Tries choices of reruns and returns them, the cheapest first. `cost` plans a step, or says that
/// it cannot run. Choices with none and with all left out are tried, too; one that would change
/// what an op reads is none.
///
/// # Errors
/// If `cost` fails, or the machine cannot be.
pub fn choose<C: Ord + Clone, E: From<MachineError>>(
    reruns: &Reruns<'_>,
    machine: &Machine,
    mut cost: impl FnMut(&Trace) -> Result<Option<C>, E>,
) -> Result<Vec<Choice<C>>, E> {
    let mut trials = Trials { reruns, known: HashMap::new(), cost: &mut cost };
    for ranking in rankings(reruns, machine)? {
        trials.of(&ranking)?;
    }
    let found = trials.known.into_iter();
    let mut found: Vec<Choice<C>> =
        found.filter_map(|(left_out, cost)| Some(Choice { left_out, cost: cost? })).collect();
    // Of two that cost the same, the one that keeps less.
    found.sort_by_key(|one| (one.cost.clone(), one.left_out.0.len(), one.left_out.0.clone()));
    Ok(found)
}

/// Returns the choices to plan in full after short searches: the `count` choices that look best,
/// and in any case all reruns and none, so that the best is never worse than either.
pub fn finalists<C>(
    reruns: &Reruns<'_>,
    found: impl IntoIterator<Item = Choice<C>>,
    count: usize,
) -> Vec<LeftOut> {
    let best = found.into_iter().take(count).map(|choice| choice.left_out);
    let mut finalists = vec![LeftOut::default()];
    for left_out in [reruns.every()].into_iter().chain(best) {
        if !finalists.contains(&left_out) {
            finalists.push(left_out);
        }
    }
    finalists
}

/// Orders in which reruns may be left out, each as groups: one by one by what the prices say, and
/// layer by layer, those first whose results are needed soonest.
fn rankings(reruns: &Reruns<'_>, machine: &Machine) -> Result<[Vec<Vec<u32>>; 2], MachineError> {
    let bound = bound::with_skips(reruns.program, machine, EFFORT, &reruns.skippable())?;
    let saved = bound.relaxation.saved_by_leaving_out(&bound.prices).unwrap_or_default();
    let mut by_price: Vec<u32> = (0..reruns.all.len() as u32).collect();
    by_price.sort_by_key(|rerun| {
        let (saved, rerun) = (saved.get(*rerun as usize), &reruns.all[*rerun as usize]);
        // Per byte that is kept.
        let bytes = i128::from(rerun.bytes.0.max(1));
        (saved.map_or(0, |saved| -saved / bytes), rerun.away())
    });
    let mut layers: BTreeMap<u32, (u32, Vec<u32>)> = BTreeMap::new();
    for (index, rerun) in reruns.all.iter().enumerate() {
        let (away, layer) = layers.entry(rerun.layer).or_insert((rerun.away(), Vec::new()));
        *away = rerun.away().min(*away);
        layer.push(index as u32);
    }
    let mut by_layer: Vec<(u32, Vec<u32>)> = layers.into_values().collect();
    by_layer.sort();
    let by_price = by_price.into_iter().map(|one| vec![one]).collect();
    Ok([by_price, by_layer.into_iter().map(|(_, layer)| layer).collect()])
}

struct Trials<'a, C, F> {
    reruns: &'a Reruns<'a>,
    known: HashMap<LeftOut, Option<C>>,
    cost: &'a mut F,
}

impl<C: Ord + Clone, F> Trials<'_, C, F> {
    /// Tries how many of a ranking's groups are best left out.
    fn of<E>(&mut self, ranking: &[Vec<u32>]) -> Result<(), E>
    where
        F: FnMut(&Trace) -> Result<Option<C>, E>,
    {
        best_count(ranking.len(), |groups| self.cost(&ranking[..groups]))
    }

    fn cost<E>(&mut self, groups: &[Vec<u32>]) -> Result<Option<C>, E>
    where
        F: FnMut(&Trace) -> Result<Option<C>, E>,
    {
        let mut left_out = LeftOut(groups.concat());
        left_out.0.sort_unstable();
        if let Some(known) = self.known.get(&left_out) {
            return Ok(known.clone());
        }
        let cost = match self.reruns.without(&left_out) {
            Ok(step) => (self.cost)(&step.trace)?,
            Err(_) => None,
        };
        self.known.insert(left_out, cost.clone());
        Ok(cost)
    }
}
