//! Cuts of storages into parts.

use super::{PART_UNIT, parts_at};
use crate::cost::Machine;
use crate::trace::{Identity, PlanStorage, REMADE_FROM, Storage, Trace};
use crate::units::{ByteRange, Bytes};
use std::collections::BTreeMap;

/// Storages are cut until their parts are no larger than this part of memory: 80 MiB of 80 GiB. Of
/// recorded steps parts twice and half as large lead to about as good plans; the smaller they are,
/// the longer planning takes.
const SMALLEST_SHARE: u64 = 1024;

/// Cuts of storages: the first byte of each part, of those storages that are cut.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cuts(BTreeMap<PlanStorage, Vec<Bytes>>);

impl Cuts {
    /// Cuts where plans are looked for: storages are cut in halves until the parts are small beside
    /// memory.
    pub fn of(trace: &Trace, machine: &Machine) -> Self {
        Self::into_parts_of(trace, Bytes(machine.capacity().0 / SMALLEST_SHARE))
    }

    /// Cuts only storages that are alive across the iteration alone: what a step makes is whole.
    pub fn of_what_lives_on(trace: &Trace, machine: &Machine) -> Self {
        let mut cuts = Self::of(trace, machine);
        let lives_on = |storage| matches!(trace.storage(storage).identity, Identity::Name(_));
        cuts.0.retain(|storage, _| lives_on(*storage));
        cuts
    }

    /// Storages are cut in halves, as far as multiples of [`PART_UNIT`] allow, until no part is
    /// larger than this.
    pub fn into_parts_of(trace: &Trace, largest: Bytes) -> Self {
        let mut cuts = Self::default();
        let is_made = |storage: &Storage| match storage.identity {
            Identity::Name(_) => true,
            Identity::Output { slot, .. } => slot < REMADE_FROM,
            Identity::Arrival => false,
        };
        let can_move = |storage: &Storage| storage.movable && is_made(storage);
        for (index, storage) in trace.storages.iter().enumerate().filter(|(_, one)| can_move(one)) {
            let mut length = storage.size.0;
            while length > largest.0.max(PART_UNIT) {
                length = length.div_ceil(2).next_multiple_of(PART_UNIT);
            }
            if length < storage.size.0 {
                let begins = (0..storage.size.0).step_by(length as usize).map(Bytes);
                cuts.cut(PlanStorage(index as u32), begins);
            }
        }
        cuts
    }

    /// Returns whether every storage is whole.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Cuts a storage before each of these bytes.
    pub(crate) fn cut(&mut self, storage: PlanStorage, before: impl Iterator<Item = Bytes>) {
        let begins = self.0.entry(storage).or_insert_with(|| vec![Bytes(0)]);
        begins.extend(before);
        begins.sort_unstable();
        begins.dedup();
    }

    /// The parts of a storage of this size; one that is not cut is its only part.
    pub(super) fn parts(
        &self,
        storage: PlanStorage,
        size: Bytes,
    ) -> impl Iterator<Item = Option<ByteRange>> {
        let begins = self.0.get(&storage).map_or(&[][..], Vec::as_slice);
        let whole = begins.is_empty().then_some(None);
        whole.into_iter().chain(parts_at(begins, size).map(Some))
    }
}
