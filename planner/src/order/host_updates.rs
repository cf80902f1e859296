//! Updates that run on the host, or where the program has them: each parameter's is a choice of its
//! own.
//!
//! An update on the host saves the moves of its state, and costs a copy of the gradient and one of
//! the parameter in the stream of kernels, the host's time and its memory. Whose gradient is
//! complete longest before the parameter is used again waits least for the host: that ranks the
//! parameters. How many of the first are taken is found by trial, as with reruns.

use super::on_host::{some_on_host, time_of};
use super::{HostProcessor, HostStep, OpOrder, OrderError, Updates, split, updates};
use crate::bound::Skippable;
use crate::trace::{Identity, Op, PlanStorage, StorageKind, Trace};
use crate::trials::best_count;
use std::collections::HashMap;

/// A step's updates, each of which may run on a host.
#[derive(Clone, Debug)]
pub struct HostUpdates {
    /// The step, with one op or more for each parameter.
    base: Trace,
    /// Update that each op belongs to.
    update_of: Vec<Option<u32>>,
    all: Vec<OneUpdate>,
}

/// The update of a parameter, or of several that one op updates.
#[derive(Clone, Debug, Default)]
struct OneUpdate {
    ops: Vec<u32>,
    parameters: Vec<PlanStorage>,
}

/// A choice that was tried.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostChoice<C> {
    /// Updates that run on the host, by their numbers.
    pub on_host: Vec<u32>,
    /// Cost of the choice, by whoever tried it.
    pub cost: C,
}

impl HostUpdates {
    /// Finds the updates of a step in an order.
    ///
    /// # Errors
    /// Where the trace has no such order, no optimizer, or one that updates no parameter of its
    /// own; where updates wait for the next iteration.
    pub fn of(trace: &Trace, order: OpOrder) -> Result<Self, OrderError> {
        let reordered = order.of(trace)?;
        let (base, is_update) = match order.updates {
            Updates::Own => {
                let base = split::by_parameter(&reordered.trace);
                let is_update = updates::of(&base);
                (base, is_update)
            }
            // Among other ops they are not told from them.
            Updates::Early => {
                let is_update = updates::of(&reordered.base);
                let places = reordered.schedule.iter();
                let is_update = places.map(|placed| is_update[placed.op as usize]).collect();
                (reordered.trace, is_update)
            }
            Updates::Lazy => return Err(OrderError::LateOnHost),
        };
        Self::among(base, &is_update)
    }

    fn among(base: Trace, is_update: &[bool]) -> Result<Self, OrderError> {
        let mut together = Together((0..base.ops.len() as u32).collect());
        let mut user: Vec<Option<u32>> = vec![None; base.storages.len()];
        let of_updates = || base.ops.iter().enumerate().filter(|(index, _)| is_update[*index]);
        for (index, op) in of_updates() {
            for storage in linking(&base, op, is_update) {
                let user = user[storage.0 as usize].get_or_insert(index as u32);
                together.join(*user, index as u32);
            }
        }
        let mut numbers = HashMap::new();
        let mut updates = Self { update_of: vec![None; base.ops.len()], all: Vec::new(), base };
        for (index, op) in
            updates.base.ops.iter().enumerate().filter(|(index, _)| is_update[*index])
        {
            let number = *numbers.entry(together.root(index as u32)).or_insert_with(|| {
                updates.all.push(OneUpdate::default());
                updates.all.len() - 1
            });
            updates.update_of[index] = Some(number as u32);
            let update = &mut updates.all[number];
            update.ops.push(index as u32);
            for used in &op.uses {
                let is_parameter =
                    updates.base.storage(used.storage).kind == StorageKind::Parameter;
                if is_parameter && !update.parameters.contains(&used.storage) {
                    update.parameters.push(used.storage);
                }
            }
        }
        if updates.choosable().is_empty() {
            return Err(OrderError::NoOptimizer);
        }
        Ok(updates)
    }

    /// Returns the step that choices are about. Updates of many parameters at once are one op for
    /// each.
    pub fn base(&self) -> &Trace {
        &self.base
    }

    /// Returns the updates that have a choice, by their numbers: those of parameters.
    pub fn choosable(&self) -> Vec<u32> {
        let numbers = 0..self.all.len() as u32;
        numbers.filter(|number| !self.all[*number as usize].parameters.is_empty()).collect()
    }

    /// Returns the step with these updates on a host; nothing where there are none.
    ///
    /// # Errors
    /// Where the step contradicts itself then.
    pub fn on_host(
        &self,
        chosen: &[u32],
        processor: HostProcessor,
    ) -> Result<Option<HostStep>, OrderError> {
        if chosen.is_empty() {
            return Ok(None);
        }
        // What updates no parameter counts steps, say, and is needed for whichever stays.
        let all = chosen.len() == self.choosable().len();
        let is_moved = |update: &u32| {
            chosen.contains(update) || (all && self.all[*update as usize].parameters.is_empty())
        };
        let moved: Vec<bool> =
            self.update_of.iter().map(|update| update.as_ref().is_some_and(is_moved)).collect();
        some_on_host(&self.base, &moved, processor).map(Some)
    }

    /// Tries choices and returns them, the cheapest first: none and all are among them. `cost`
    /// plans a step, with what it takes of the host, or says that it cannot run.
    ///
    /// # Errors
    /// If `cost` fails, or a step contradicts itself.
    pub fn choose<C: Ord + Clone, E: From<OrderError>>(
        &self,
        processor: HostProcessor,
        mut cost: impl FnMut(&Trace, Option<&HostStep>) -> Result<Option<C>, E>,
    ) -> Result<Vec<HostChoice<C>>, E> {
        let ranking = self.by_slack();
        let mut found = Vec::new();
        best_count(ranking.len(), |count| -> Result<_, E> {
            let on_host = ranking[..count].to_vec();
            let step = self.on_host(&on_host, processor)?;
            let trace = step.as_ref().map_or(&self.base, |step| &step.trace);
            let cost = cost(trace, step.as_ref())?;
            found.extend(cost.clone().map(|cost| HostChoice { on_host, cost }));
            Ok(cost)
        })?;
        // Of two that cost the same, the one that asks less of the host.
        found.sort_by_key(|one: &HostChoice<C>| (one.cost.clone(), one.on_host.len()));
        Ok(found)
    }

    /// Returns the updates with a choice, first those whose parameters are used again the longest
    /// after their gradients are complete.
    fn by_slack(&self) -> Vec<u32> {
        let mut begins = Vec::with_capacity(self.base.ops.len());
        let mut now = 0;
        for op in &self.base.ops {
            begins.push(now);
            now += op.duration.0;
        }
        let slack = |update: &OneUpdate| {
            let used = update.parameters.iter().filter_map(|parameter| self.first_use(*parameter));
            let ready = update.ops.first().map_or(0, |op| begins[*op as usize]);
            let again = used.map(|op| begins[op as usize]).min();
            again.map_or(u64::MAX, |again| again + now - ready)
        };
        let mut ranking = self.choosable();
        ranking.sort_by_key(|number| std::cmp::Reverse(slack(&self.all[*number as usize])));
        ranking
    }

    /// Returns the first op that uses a parameter and is no update.
    fn first_use(&self, parameter: PlanStorage) -> Option<u32> {
        let ops = self.base.ops.iter().enumerate();
        let mut stays = ops.filter(|(index, _)| self.update_of[*index].is_none());
        let uses = |op: &Op| op.uses.iter().any(|used| used.storage == parameter);
        stays.find(|(_, op)| uses(op)).map(|(index, _)| index as u32)
    }

    /// Returns what the bound may leave out for the host: it holds whichever updates run there, in
    /// each iteration anew. That the host's time and memory have an end does not count.
    pub fn skippable(&self, processor: HostProcessor) -> Vec<Skippable> {
        let users = self.users();
        let groups = self.all.iter().enumerate().map(|(number, update)| {
            let mut group = Skippable { ops: update.ops.clone(), ..Skippable::default() };
            for (index, users) in users.iter().enumerate() {
                let storage = PlanStorage(index as u32);
                if users.updates != [number as u32] {
                    continue;
                }
                let described = self.base.storage(storage);
                match described.kind {
                    StorageKind::Parameter => {
                        group.shared.push(storage);
                        let back = time_of(described.size.0, processor.back);
                        group.instead.extend(users.first_other.map(|op| (op, back)));
                    }
                    StorageKind::Gradient => {
                        group.read.push(storage);
                        let out = time_of(described.size.0, processor.out);
                        group.instead.extend(users.first_update.map(|op| (op, out)));
                    }
                    _ if users.first_other.is_none() => group.own.push(storage),
                    _ => {}
                }
            }
            group
        });
        groups.collect()
    }

    /// Returns for each storage who uses it.
    fn users(&self) -> Vec<Users> {
        let mut all = vec![Users::default(); self.base.storages.len()];
        for (index, op) in self.base.ops.iter().enumerate() {
            let used = op.uses.iter().map(|used| used.storage);
            for storage in used.chain(op.births.iter().map(|birth| birth.storage)) {
                let users = &mut all[storage.0 as usize];
                match self.update_of[index] {
                    Some(update) => {
                        users.first_update.get_or_insert(index as u32);
                        if !users.updates.contains(&update) {
                            users.updates.push(update);
                        }
                    }
                    None => {
                        users.first_other.get_or_insert(index as u32);
                    }
                }
            }
        }
        all
    }
}

/// Users of a storage.
#[derive(Clone, Debug, Default)]
struct Users {
    updates: Vec<u32>,
    first_update: Option<u32>,
    first_other: Option<u32>,
}

/// The storages by which an op belongs to an update: what one parameter has, and what updates make.
fn linking<'a>(
    base: &'a Trace,
    op: &'a Op,
    is_update: &'a [bool],
) -> impl Iterator<Item = PlanStorage> + 'a {
    let of_one = |storage: &PlanStorage| {
        let described = base.storage(*storage);
        match described.kind {
            StorageKind::Parameter | StorageKind::Gradient | StorageKind::OptimizerState => true,
            _ => match described.identity {
                Identity::Output { op, .. } => is_update[op.0 as usize],
                _ => false,
            },
        }
    };
    let used = op.uses.iter().map(|used| used.storage);
    used.chain(op.births.iter().map(|birth| birth.storage)).filter(of_one)
}

/// Ops that belong together, each under the first of them.
struct Together(Vec<u32>);

impl Together {
    fn root(&mut self, op: u32) -> u32 {
        let mut root = op;
        while self.0[root as usize] != root {
            root = self.0[root as usize];
        }
        self.0[op as usize] = root;
        root
    }

    fn join(&mut self, one: u32, other: u32) {
        let (one, other) = (self.root(one), self.root(other));
        self.0[one.max(other) as usize] = one.min(other);
    }
}

#[cfg(test)]
#[path = "host_updates_tests.rs"]
mod tests;
