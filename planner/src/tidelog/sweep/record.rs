//! Records of a pass for every storage: where it is, which use comes next, who may leave.

use super::line::SweepLine;
use super::{ITERATIONS, signed};
use crate::lifetime::{At, Lifetimes, uses_by_storage};
use crate::migration::Target;
use crate::trace::{Identity, Trace};
use std::collections::BTreeSet;

/// A storage smaller than one part in this many of the capacity is left where it is.
const SMALL_PARTS: u64 = 1 << 14;

/// A copy that serves more periods than this costs hardly less per period.
const SERVED_MAX: u8 = 32;

/// Costs of an eviction: nothing to write, or a write shared by at least so many periods.
pub(super) const SERVED: [u32; 5] = [0, 1, 2, 4, 8];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SweepPlace {
    Gone,
    In,
    Leaving,
    Out,
    Coming,
}

/// A storage's present instance.
#[derive(Clone, Copy, Debug)]
pub(super) struct StorageInstance {
    pub(super) place: SweepPlace,
    /// The tier that holds a valid copy.
    pub(super) copy: Option<Target>,
    /// Next of its uses, and the op 0 that uses are counted from.
    next: u32,
    origin: u32,
}

impl StorageInstance {
    const GONE: Self = Self { place: SweepPlace::Gone, copy: None, next: 0, origin: 0 };

    pub(super) fn new(place: SweepPlace, copy: Option<Target>, origin: u32) -> Self {
        Self { place, copy, next: 0, origin }
    }
}

/// The inactive period that ends with a use.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    /// Number of periods from this one on that a copy made in it would serve.
    serves: u8,
    /// True if the contents are those of the period before: a copy may be there.
    kept: bool,
}

pub(super) struct Record<'a> {
    trace: &'a Trace,
    ops: u32,
    uses: Vec<Vec<At>>,
    before: Vec<Vec<Before>>,
    pub(super) death: Vec<Option<u32>>,
    pub(super) movable: Vec<bool>,
    pub(super) instances: Vec<StorageInstance>,
    /// Storages in memory and able to leave, by what that costs, then by next use.
    pub(super) here: [BTreeSet<(u32, u32)>; SERVED.len()],
    /// Storages out and used again, by next use.
    pub(super) absent: BTreeSet<(u32, u32)>,
}

impl<'a> Record<'a> {
    pub(super) fn new(
        trace: &'a Trace,
        lifetimes: &Lifetimes,
        capacity: u64,
        line: &mut SweepLine,
        expects_drops: bool,
    ) -> Self {
        let small = capacity / SMALL_PARTS;
        let can_move = |storage: &crate::trace::Storage| {
            storage.movable
                && storage.size.0 > small
                && !matches!(storage.identity, Identity::Arrival)
        };
        let mut record = Self {
            trace,
            ops: trace.ops.len() as u32,
            uses: uses_by_storage(trace),
            before: Vec::new(),
            death: lifetimes.lifetimes.iter().map(|life| life.death).collect(),
            movable: trace.storages.iter().map(can_move).collect(),
            instances: vec![StorageInstance::GONE; 2 * trace.storages.len()],
            here: Default::default(),
            absent: BTreeSet::new(),
        };
        record.before = (0..trace.storages.len())
            .map(|storage| record.periods(storage, line, expects_drops))
            .collect();
        record
    }

    /// Looks at each period of a storage. Those of globals whose copy is likely to be there already
    /// are told to the line.
    fn periods(&self, storage: usize, line: &mut SweepLine, expects_drops: bool) -> Vec<Before> {
        let uses = &self.uses[storage];
        let size = self.trace.storages[storage].size.0;
        let is_global = self.death[storage].is_none();
        let mut periods = vec![Before::default(); uses.len() + 1];
        let Some(last) = uses.last() else { return periods };
        // A global's count goes around once more, to see what comes after its last use.
        for _ in 0..=u32::from(is_global) {
            if is_global {
                periods[uses.len()] = periods[0];
            }
            for index in (0..uses.len()).rev() {
                let (from, to) = match index.checked_sub(1) {
                    Some(before) => (uses[before].op, uses[index].op),
                    None if is_global => (last.op, uses[0].op + self.ops),
                    None => (uses[0].op, uses[0].op),
                };
                let is_long = line.time((from + 1).min(to), to) > line.round_trip(size);
                let later = if uses[index].modifies { 0 } else { periods[index + 1].serves };
                periods[index].serves = (later + u8::from(is_long)).min(SERVED_MAX);
                let earlier = index.checked_sub(1).map_or(*last, |before| uses[before]);
                periods[index].kept = is_global && is_long && !earlier.modifies;
            }
        }
        if expects_drops && self.movable[storage] {
            for index in (0..uses.len()).filter(|index| periods[*index].kept) {
                let (from, to) = match index.checked_sub(1) {
                    Some(before) => (uses[before].op, uses[index].op),
                    None => (last.op, uses[0].op + self.ops),
                };
                for round in 0..=ITERATIONS {
                    let start = round * self.ops;
                    line.expect_drop(start + from + 1, start + to, size);
                }
                if index == 0 {
                    line.expect_drop(0, uses[0].op, size);
                }
            }
        }
        periods
    }

    /// Returns whether leaving now was expected to cost no write.
    pub(super) fn is_expected_drop(&self, instance: u32) -> bool {
        let next = self.instances[instance as usize].next as usize;
        self.before[self.storage_of(instance) as usize][next].kept
    }

    pub(super) fn is_global(&self, storage: u32) -> bool {
        matches!(self.trace.storages[storage as usize].identity, Identity::Name(_))
    }

    pub(super) fn is_used(&self, storage: u32) -> bool {
        !self.uses[storage as usize].is_empty()
    }

    /// The instance that a name means in an iteration: two of those that are born in one may be
    /// alive.
    pub(super) fn instance_of(&self, storage: u32, iteration: u32) -> u32 {
        let parity = if self.is_global(storage) { 0 } else { iteration & 1 };
        storage + parity * self.trace.storages.len() as u32
    }

    pub(super) fn storage_of(&self, instance: u32) -> u32 {
        instance % self.trace.storages.len() as u32
    }

    pub(super) fn size(&self, instance: u32) -> i64 {
        signed(self.trace.storages[self.storage_of(instance) as usize].size.0)
    }

    pub(super) fn is_used_again(&self, instance: u32) -> bool {
        let storage = self.storage_of(instance) as usize;
        self.death[storage].is_none()
            || (self.instances[instance as usize].next as usize) < self.uses[storage].len()
    }

    /// The op of the line that uses it next; the one after its death if none does.
    pub(super) fn next_use(&self, instance: u32) -> u32 {
        let storage = self.storage_of(instance) as usize;
        let one = &self.instances[instance as usize];
        let uses = &self.uses[storage];
        match (uses.get(one.next as usize), self.death[storage]) {
            (Some(at), _) => one.origin + at.op,
            (None, Some(death)) => one.origin + death + 1,
            (None, None) => {
                uses.first().map_or((ITERATIONS + 1) * self.ops, |at| one.origin + self.ops + at.op)
            }
        }
    }

    /// Counts on to the first use after `at`, and lists it.
    pub(super) fn list_after(&mut self, instance: u32, at: u32) {
        let storage = self.storage_of(instance) as usize;
        let one = &mut self.instances[instance as usize];
        let uses = &self.uses[storage];
        while uses.get(one.next as usize).is_some_and(|next| one.origin + next.op <= at) {
            one.next += 1;
        }
        if one.next as usize == uses.len() && self.death[storage].is_none() {
            one.next = 0;
            one.origin += self.ops;
        }
        self.list(instance);
    }

    pub(super) fn list(&mut self, instance: u32) {
        let storage = self.storage_of(instance) as usize;
        if self.instances[instance as usize].place == SweepPlace::In && self.movable[storage] {
            let entry = (self.next_use(instance), instance);
            self.here[self.class(instance)].insert(entry);
        }
    }

    pub(super) fn unlist(&mut self, instance: u32) {
        let entry = (self.next_use(instance), instance);
        self.here[self.class(instance)].remove(&entry);
    }

    /// Returns the place in [`SERVED`].
    fn class(&self, instance: u32) -> usize {
        let one = &self.instances[instance as usize];
        if one.copy.is_some() {
            return 0;
        }
        let serves = self.before[self.storage_of(instance) as usize][one.next as usize].serves;
        SERVED.partition_point(|served| *served <= u32::from(serves.max(1))) - 1
    }
}
