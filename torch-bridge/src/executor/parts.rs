//! Storages in parts: what is one storage to the caller is several to the residency machine.
//!
//! Under a plan that moves parts each of them is a storage of the machine's own, under a number
//! that the caller never gives. What the caller says of a storage is said of all its parts, so an
//! op has all of them in memory; what the machine decides of a part is asked of the caller as bytes
//! of the storage.
//!
//! What a step makes is cut when it is born. What lives on is cut where it lies in memory and
//! nothing touches it: when the plan is taken over, or after the op that has brought it back. Until
//! then it moves whole, as its first part would.
//!
//! A GPU's memory can be given back in parts where the caller has mapped it by itself, which it
//! says of each storage. What a step makes is not cut there.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use tidelog_planner::parts::PartedStep;
use tidelog_planner::residency::{Attributes, OpUse, Residency, StorageId, StorageState};
use tidelog_planner::trace::{Birth, PlanStorage, Trace};
use tidelog_planner::units::{Bytes, OpIndex};

use crate::memory::{PartState, RequestedBytes};

/// Numbers below this are parts', where plans may move parts.
pub(crate) const PART_NUMBERS: u32 = 1 << 12;

/// The live storages that named ones of a trace with whole storages are.
pub(super) type Bindings = Vec<(PlanStorage, StorageId)>;

/// Storages that plans may move in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Divisible {
    #[default]
    None,
    /// Storages that are alive across steps, once the caller has called them divisible.
    WhatLivesOn,
    All,
}

/// Storages in parts.
#[derive(Default)]
pub(super) struct StorageParts {
    used_for: Divisible,
    /// Storages that the caller has called divisible, where that matters.
    divisible: HashSet<StorageId>,
    /// The step of the plan that is followed, if that moves parts.
    step: Option<Arc<PartedStep>>,
    /// Births of such a step, where that is not as in the step with whole storages.
    births: HashMap<(OpIndex, u16), Vec<PartToBe>>,
    /// The parts of a storage, in their order.
    parts: HashMap<StorageId, Vec<PartNow>>,
    /// The storage of a part, and where the part begins.
    wholes: HashMap<StorageId, (StorageId, u64)>,
    /// Storages to cut, each as soon as it rests.
    waiting: BTreeMap<StorageId, PlanStorage>,
    /// Storages to cut, each as soon as it is divisible.
    not_divisible: HashMap<StorageId, PlanStorage>,
    /// Numbers that are free once the machine has forgotten them.
    given_back: Vec<u32>,
    next: u32,
}

/// A part of a live storage.
#[derive(Clone, Copy, PartialEq, Eq)]
struct PartNow {
    id: StorageId,
    begin: u64,
}

/// A part, as the plan has it.
#[derive(Clone, Copy)]
struct PartToBe {
    plan: PlanStorage,
    begin: u64,
    length: u64,
}

impl StorageParts {
    /// Lets plans move parts of these storages.
    pub(super) fn use_them(&mut self, of: Divisible) {
        self.used_for = of;
    }

    pub(super) fn are_used(&self) -> bool {
        self.used_for != Divisible::None
    }

    /// The caller can give back parts of a storage's memory from here on.
    pub(super) fn is_divisible(&mut self, storage: StorageId) {
        self.divisible.insert(storage);
        if let Some(plan) = self.not_divisible.remove(&storage) {
            self.waiting.insert(storage, plan);
        }
    }

    /// Returns the number of storages in parts now, and of their parts.
    pub(super) fn counts(&self) -> (usize, usize) {
        (self.parts.len(), self.wholes.len())
    }

    /// Iterates over the machine's storages for a storage: its parts, or the storage itself.
    pub(super) fn of(&self, storage: StorageId) -> impl Iterator<Item = StorageId> + '_ {
        let parts = self.parts.get(&storage).map_or(&[][..], Vec::as_slice);
        let whole = parts.is_empty().then_some(storage);
        whole.into_iter().chain(parts.iter().map(|part| part.id))
    }

    /// The caller's storage that this is, or is a part of.
    pub(super) fn whole(&self, id: StorageId) -> StorageId {
        self.wholes.get(&id).map_or(id, |(whole, _)| *whole)
    }

    /// Returns the bytes that the caller is asked for where the machine names this one.
    pub(super) fn requested(&self, id: StorageId) -> RequestedBytes {
        match self.wholes.get(&id) {
            Some(&(StorageId(storage), begin)) => RequestedBytes { storage, part: Some(begin) },
            None => RequestedBytes { storage: id.0, part: None },
        }
    }

    /// The uses of an op as the machine has them.
    pub(super) fn uses(&self, uses: &[OpUse], into: &mut Vec<OpUse>) {
        let parts = uses
            .iter()
            .flat_map(|one| self.of(one.storage).map(|storage| OpUse { storage, ..*one }));
        into.extend(parts);
    }

    /// Returns whether some of a storage's bytes are not in memory.
    pub(super) fn are_away(&self, machine: &Residency, storage: StorageId) -> bool {
        self.of(storage).any(|part| is_away(machine.state(part)))
    }

    /// Returns the state of a storage's parts, in a word.
    pub(super) fn state(&self, machine: &Residency, storage: StorageId) -> PartState {
        let state = |part| match machine.state(part) {
            Some(StorageState::Evicted | StorageState::Fetching) => PartState::Away,
            Some(StorageState::Evicting) => PartState::Leaving,
            Some(StorageState::Resident { clean: true }) => PartState::Copied,
            Some(StorageState::Resident { clean: false }) | None => PartState::Resident,
        };
        self.of(storage).map(state).max().unwrap_or(PartState::Resident)
    }

    /// A storage comes into being.
    pub(super) fn born(
        &mut self,
        machine: &mut Residency,
        storage: StorageId,
        size: u64,
        attributes: Attributes,
    ) {
        let planned = attributes.birth.and_then(|place| self.births.get(&place)).cloned();
        let Some(planned) = planned else {
            machine.born(storage, Bytes(size), attributes);
            return;
        };
        let follows = machine.in_sync();
        let can_be_cut = attributes.movable && self.can_be_cut(storage);
        if follows && can_be_cut && self.cut(machine, storage, size, &planned) {
            return;
        }
        machine.born(storage, Bytes(size), Attributes { birth: None, ..attributes });
        if follows {
            machine.bind(planned[0].plan, storage);
        }
    }

    /// A storage is gone.
    pub(super) fn died(&mut self, machine: &mut Residency, storage: StorageId) {
        self.waiting.remove(&storage);
        self.not_divisible.remove(&storage);
        self.divisible.remove(&storage);
        self.forget(machine, storage);
    }

    /// A storage has another size; its last part has what is more.
    pub(super) fn sizes(&self, storage: StorageId, size: u64) -> Vec<(StorageId, u64)> {
        let Some(parts) = self.parts.get(&storage) else { return vec![(storage, size)] };
        let ends = parts.iter().skip(1).map(|next| next.begin.min(size)).chain([size]);
        parts
            .iter()
            .zip(ends)
            .map(|(part, end)| (part.id, end.saturating_sub(part.begin)))
            .collect()
    }

    /// The live storages that the plan's are, by their numbers in the step with whole storages.
    pub(super) fn bindings(&self, machine: &Residency) -> Bindings {
        let whole = |plan| self.step.as_ref().map_or(plan, |step| step.whole(plan));
        let bound = machine.storages().filter_map(|(id, ..)| {
            let begins = self.wholes.get(&id).is_none_or(|(_, begin)| *begin == 0);
            begins.then(|| Some((whole(machine.planned_as(id)?), self.whole(id))))?
        });
        bound.collect()
    }

    /// Follows a plan from the next step on, with whole storages or in parts.
    pub(super) fn follow(
        &mut self,
        machine: &mut Residency,
        trace: &Trace,
        step: Option<&Arc<PartedStep>>,
        bindings: Bindings,
    ) {
        self.births = step.map(|step| births(trace, step)).unwrap_or_default();
        self.step = step.cloned();
        self.cut_nothing();
        for (plan, storage) in bindings {
            self.bind(machine, plan, storage);
        }
    }

    /// Follows no plan: what is in parts stays so, and nothing else is cut.
    pub(super) fn follow_nothing(&mut self) {
        self.step = None;
        self.births.clear();
        self.cut_nothing();
    }

    /// Binds storages without a plan: it is known who is who.
    pub(super) fn bind_as_they_are(&self, machine: &mut Residency, bindings: &Bindings) {
        for &(plan, storage) in bindings {
            for part in self.of(storage) {
                machine.bind(plan, part);
            }
        }
    }

    fn cut_nothing(&mut self) {
        self.waiting.clear();
        self.not_divisible.clear();
    }

    /// Cuts what waits for that and rests by now.
    pub(super) fn cut_waiting(&mut self, machine: &mut Residency) {
        if self.waiting.is_empty() {
            return;
        }
        for (storage, plan) in std::mem::take(&mut self.waiting) {
            self.bind(machine, plan, storage);
        }
    }

    fn bind(&mut self, machine: &mut Residency, plan: PlanStorage, storage: StorageId) {
        let size: u64 = self.of(storage).filter_map(|part| Some(machine.size(part)?.0)).sum();
        let planned = self.planned(plan, size);
        if self.is_cut_so(storage, &planned) {
            for (part, planned) in self.of(storage).zip(&planned) {
                machine.bind(planned.plan, part);
            }
            return;
        }
        let rests = self.of(storage).all(|part| machine.rests(part));
        let can_be_cut = planned.len() == 1 || self.can_be_cut(storage);
        if rests && can_be_cut && self.cut(machine, storage, size, &planned) {
            return;
        }
        for part in self.of(storage) {
            machine.bind(planned[0].plan, part);
        }
        if !can_be_cut {
            self.not_divisible.insert(storage, plan);
        } else if !rests {
            self.waiting.insert(storage, plan);
        }
    }

    fn can_be_cut(&self, storage: StorageId) -> bool {
        self.used_for == Divisible::All || self.divisible.contains(&storage)
    }

    /// The parts of a storage of the step with whole storages; it is whole where it has not the
    /// size that was planned for.
    fn planned(&self, plan: PlanStorage, size: u64) -> Vec<PartToBe> {
        let whole = |plan| vec![PartToBe { plan, begin: 0, length: size }];
        let Some(step) = &self.step else { return whole(plan) };
        let parts: Vec<_> = parts_to_be(step, plan).collect();
        if length_of(&parts) == size { parts } else { whole(parts[0].plan) }
    }

    fn is_cut_so(&self, storage: StorageId, planned: &[PartToBe]) -> bool {
        match self.parts.get(&storage) {
            Some(parts) => {
                parts.iter().map(|part| part.begin).eq(planned.iter().map(|it| it.begin))
            }
            None => planned.len() == 1,
        }
    }

    /// Has the machine take a storage for these parts, which are in memory and have no copies.
    /// `false`: they are not all of it, or there are no numbers for them.
    fn cut(
        &mut self,
        machine: &mut Residency,
        storage: StorageId,
        size: u64,
        planned: &[PartToBe],
    ) -> bool {
        if length_of(planned) != size {
            return false;
        }
        let Some(parts) = self.numbered(machine, storage, planned) else { return false };
        self.forget(machine, storage);
        for (part, planned) in parts.iter().zip(planned) {
            let attributes = Attributes { movable: true, birth: None };
            machine.born(part.id, Bytes(planned.length), attributes);
            machine.bind(planned.plan, part.id);
        }
        if planned.len() > 1 {
            self.wholes.extend(parts.iter().map(|part| (part.id, (storage, part.begin))));
            self.parts.insert(storage, parts);
        }
        true
    }

    /// The parts with numbers; what is whole has its own.
    fn numbered(
        &mut self,
        machine: &Residency,
        storage: StorageId,
        planned: &[PartToBe],
    ) -> Option<Vec<PartNow>> {
        if let [whole] = planned {
            return Some(vec![PartNow { id: storage, begin: whole.begin }]);
        }
        let mut parts = Vec::with_capacity(planned.len());
        for part in planned {
            let Some(id) = self.free_number(machine) else {
                self.given_back.extend(parts.iter().map(|part: &PartNow| part.id.0));
                return None;
            };
            parts.push(PartNow { id, begin: part.begin });
        }
        Some(parts)
    }

    fn free_number(&mut self, machine: &Residency) -> Option<StorageId> {
        // A part that has died with a transfer in flight is known until that ends.
        let free = |number: &u32| !machine.knows(StorageId(*number));
        if let Some(at) = self.given_back.iter().position(free) {
            return Some(StorageId(self.given_back.swap_remove(at)));
        }
        let number = self.next;
        (number < PART_NUMBERS).then(|| {
            self.next += 1;
            StorageId(number)
        })
    }

    /// The machine has a storage no longer, in whichever parts it was.
    fn forget(&mut self, machine: &mut Residency, storage: StorageId) {
        for part in self.of(storage) {
            machine.died(part);
        }
        for part in self.parts.remove(&storage).unwrap_or_default() {
            self.wholes.remove(&part.id);
            self.given_back.push(part.id.0);
        }
    }
}

fn is_away(state: Option<StorageState>) -> bool {
    matches!(state, Some(StorageState::Evicted | StorageState::Fetching))
}

fn parts_to_be(step: &PartedStep, plan: PlanStorage) -> impl Iterator<Item = PartToBe> + '_ {
    step.ranges(plan).map(|(plan, range)| {
        let size = step.trace.storage(plan).size.0;
        let (begin, length) = range.map_or((0, size), |range| (range.begin.0, range.length.0));
        PartToBe { plan, begin, length }
    })
}

fn length_of(parts: &[PartToBe]) -> u64 {
    parts.iter().map(|part| part.length).sum()
}

/// Returns the births of a step's ops of which something is in parts. There are more outputs then,
/// so their slots say nothing of them.
fn births(trace: &Trace, step: &PartedStep) -> HashMap<(OpIndex, u16), Vec<PartToBe>> {
    let ops = trace.ops.iter().zip(&step.trace.ops).enumerate();
    let cut = ops.filter(|(_, (whole, parted))| whole.births.len() != parted.births.len());
    let births = cut.flat_map(|(index, (whole, _))| {
        let op = OpIndex(index as u32);
        let parts = |birth: &Birth| parts_to_be(step, birth.storage).collect();
        whole.births.iter().map(move |birth| ((op, birth.slot), parts(birth)))
    });
    births.collect()
}

#[cfg(test)]
#[path = "parts_tests.rs"]
mod tests;
