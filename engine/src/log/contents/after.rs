//! The index as it will be once changes are applied.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::Contents;
use crate::layout::{Change, HeldVersion, IndexParts, Seal, TensorEntry, TensorId};
use crate::log::space::Durability;

/// The last change of each id, of each number and of each name, which decides.
struct LastChanges<'a> {
    tensors: HashMap<TensorId, Option<&'a TensorEntry>>,
    held: BTreeMap<u64, &'a TensorEntry>,
    seals: BTreeMap<&'a str, Option<&'a Seal>>,
}

impl<'a> LastChanges<'a> {
    fn new(changes: &'a [Change]) -> Self {
        let (tensors, held, seals) = (HashMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut last = Self { tensors, held, seals };
        for change in changes {
            match change {
                Change::Put(entry) => drop(last.tensors.insert(entry.id, Some(entry))),
                Change::Delete(id) => drop(last.tensors.insert(*id, None)),
                Change::Hold(HeldVersion { number, entry }) => {
                    last.held.insert(*number, entry);
                }
                Change::Seal(seal) => drop(last.seals.insert(&seal.name, Some(seal))),
                Change::Drop(name) => drop(last.seals.insert(name, None)),
            }
        }
        last
    }
}

impl Contents {
    /// Returns all durable entries as they will be once `changes` are applied, tensors in the order
    /// of ids.
    pub fn durable_after<'a>(&'a self, changes: &'a [Change]) -> IndexParts<'a> {
        let last = LastChanges::new(changes);
        let kept = self.durable().map(|version| &version.entry);
        let kept = kept.filter(|entry| !last.tensors.contains_key(&entry.id));
        // With the ids beside them, since sorting would look up each many times.
        let put = last.tensors.values().flatten().copied();
        let mut tensors: Vec<(TensorId, &TensorEntry)> =
            kept.chain(put).map(|entry| (entry.id, entry)).collect();
        tensors.sort_unstable_by_key(|(id, _)| *id);
        let tensors = tensors.into_iter().map(|(_, entry)| entry).collect();
        let (held, seals) = self.seals_after(&last);
        IndexParts { tensors, held, seals }
    }

    /// The bytes of a checkpoint that the index uses once `changes` are applied.
    pub fn index_bytes_after(&self, changes: &[Change]) -> u64 {
        let last = LastChanges::new(changes);
        let current = |id: &TensorId| {
            let version = self.current(*id)?;
            let durable = version.durability == Durability::Durable;
            durable.then(|| self.room.bytes_of(&version.entry))
        };
        let before: u64 = last.tensors.keys().filter_map(current).sum();
        let put = last.tensors.values().flatten().map(|entry| self.room.bytes_of(entry));
        let after: u64 = put.sum();
        let tensors = self.room.live() - before + after;
        if last.held.is_empty() && last.seals.is_empty() {
            return tensors;
        }
        let bytes = |(held, seals): (Vec<(u64, &TensorEntry)>, Vec<&Seal>)| {
            let held = held.iter().map(|(_, entry)| self.room.bytes_of(entry));
            held.sum::<u64>() + seals.iter().map(|seal| seal.encoded_bytes() as u64).sum::<u64>()
        };
        let nothing = LastChanges::new(&[]);
        tensors - bytes(self.seals_after(&nothing)) + bytes(self.seals_after(&last))
    }

    /// The versions that are held then, and the seals that hold them.
    fn seals_after<'a>(
        &'a self,
        last: &LastChanges<'a>,
    ) -> (Vec<(u64, &'a TensorEntry)>, Vec<&'a Seal>) {
        let kept = self.seals().filter(|seal| !last.seals.contains_key(&*seal.name));
        let seals: Vec<&Seal> = kept.chain(last.seals.values().flatten().copied()).collect();
        let named: HashSet<u64> = seals.iter().flat_map(|seal| &seal.versions).copied().collect();
        let recorded = self.seals.all_held().filter(|(_, held)| held.is_recorded());
        let mut held: BTreeMap<u64, &TensorEntry> =
            recorded.map(|(number, held)| (number, &held.version.entry)).collect();
        held.extend(&last.held);
        held.retain(|number, _| named.contains(number));
        (held.into_iter().collect(), seals)
    }
}
