//! Readable versions by id: millions of versions in memory, so each is held once and found by the
//! id that it carries itself.

use std::sync::Arc;

use hashbrown::HashTable;

use crate::layout::TensorId;
use crate::log::version::Version;

/// The current version of each tensor.
#[derive(Debug, Default)]
pub(super) struct Index(HashTable<Arc<Version>>);

impl Index {
    pub(super) fn with_capacity(tensors: usize) -> Self {
        Self(HashTable::with_capacity(tensors))
    }

    pub(super) fn get(&self, id: TensorId) -> Option<&Arc<Version>> {
        self.0.find(hash(id), |version| version.entry.id == id)
    }

    /// Returns the version that it takes the place of.
    pub(super) fn insert(&mut self, version: Arc<Version>) -> Option<Arc<Version>> {
        let id = version.entry.id;
        if let Some(place) = self.0.find_mut(hash(id), |other| other.entry.id == id) {
            return Some(std::mem::replace(place, version));
        }
        self.insert_new(version);
        None
    }

    /// Inserts a version, as [`Self::insert`] does, for an id that has no version yet.
    pub(super) fn insert_new(&mut self, version: Arc<Version>) {
        debug_assert!(self.get(version.entry.id).is_none(), "{} twice", version.entry.id);
        self.0.insert_unique(hash(version.entry.id), version, |version| hash(version.entry.id));
    }

    pub(super) fn remove(&mut self, id: TensorId) -> Option<Arc<Version>> {
        let found = self.0.find_entry(hash(id), |version| version.entry.id == id);
        Some(found.ok()?.remove().0)
    }

    /// Iterates in no order, but always in the same after the same calls.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Arc<Version>> {
        self.0.iter()
    }
}

/// Ids made from names are hashes already; those that a caller counts up are not, whichever half it
/// counts in, so the halves are multiplied and the product folded.
fn hash(id: TensorId) -> u64 {
    let (high, low) = ((id.0 >> 64) as u64, id.0 as u64);
    // Digits of pi: no id that anybody means makes a factor zero.
    let product =
        u128::from(low ^ 0x243f_6a88_85a3_08d3) * u128::from(high ^ 0x1319_8a2e_0370_7344);
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counted_ids_spread_over_the_table_whichever_half_is_counted() {
        const BUCKETS: usize = 1024;
        for shift in [0, 12, 32, 64, 96] {
            // The table takes its bucket from the low bits and its tag from the high ones.
            for take in [|hash: u64| hash as usize % BUCKETS, |hash: u64| (hash >> 54) as usize] {
                let mut filled = vec![0_u32; BUCKETS];
                for count in 0..16 * BUCKETS {
                    filled[take(hash(TensorId((count as u128) << shift)))] += 1;
                }
                let most = *filled.iter().max().unwrap();
                assert!(most < 64, "{most} of {} ids in one of {BUCKETS} buckets", 16 * BUCKETS);
            }
        }
    }
}
