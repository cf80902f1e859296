//! Storages that a step empties and fills again, as FSDP2 does with gathered parameters: it resizes
//! them. Nothing is kept while one is empty. So in a trace each time from when it is filled until
//! it is empty is a storage of its own, made by the op before it.

use rustc_hash::FxHashMap;
use tidelog_planner::residency::StorageId;
use tidelog_planner::trace::REMADE_FROM;
use tidelog_planner::units::OpIndex;

/// Numbers of such times go down from here: no caller gives a storage one of them.
const LAST_NUMBER: u32 = u32::MAX;

/// The op that has begun last, and how many storages were filled since.
#[derive(Clone, Copy, Default)]
pub(super) struct FillPlace {
    op: Option<OpIndex>,
    filled: u16,
}

impl FillPlace {
    pub(super) fn op_begins(&mut self, index: u32) {
        *self = Self { op: Some(OpIndex(index)), filled: 0 };
    }

    /// Returns the place at which a storage is filled now, and which nothing else has.
    pub(super) fn next(&mut self) -> Option<(OpIndex, u16)> {
        let slot = REMADE_FROM.checked_add(self.filled)?;
        self.filled += 1;
        Some((self.op?, slot))
    }
}

/// The time from when a storage was filled until it was empty.
pub(super) struct FilledTime {
    pub(super) number: StorageId,
    pub(super) born: (OpIndex, u16),
    pub(super) size: u64,
    /// The last op before it was empty.
    pub(super) died: OpIndex,
}

/// The times of a step.
#[derive(Default)]
pub(super) struct Remade {
    storages: FxHashMap<StorageId, Times>,
    count: u32,
}

/// The times of a storage that was empty before the first, and where it is filled now.
struct Times {
    past: Vec<FilledTime>,
    filled: Option<((OpIndex, u16), u64)>,
    /// True for a storage that was empty when the step began, and was filled at known places.
    is_known: bool,
}

impl Times {
    fn new(is_known: bool) -> Self {
        Self { past: Vec::new(), filled: None, is_known }
    }
}

impl Remade {
    pub(super) fn clear(&mut self) {
        self.storages.clear();
        self.count = 0;
    }

    /// A storage that was empty has this size.
    pub(super) fn filled(&mut self, storage: StorageId, size: u64, at: Option<(OpIndex, u16)>) {
        let times = self.storages.entry(storage).or_insert_with(|| Times::new(true));
        times.is_known &= at.is_some();
        times.filled = at.map(|place| (place, size));
    }

    /// A storage that is not empty has another size.
    pub(super) fn grows(&mut self, storage: StorageId, size: u64) {
        let filled = self.storages.get_mut(&storage).and_then(|times| times.filled.as_mut());
        if let Some((_, most)) = filled {
            *most = size.max(*most);
        }
    }

    /// A storage is empty, from the end of this op on.
    pub(super) fn emptied(&mut self, storage: StorageId, after: Option<OpIndex>) {
        let times = self.storages.entry(storage).or_insert_with(|| Times::new(false));
        match (times.filled.take(), after) {
            (Some((born, size)), Some(died)) => {
                let number = StorageId(LAST_NUMBER - self.count);
                self.count += 1;
                times.past.push(FilledTime { number, born, size, died });
            }
            _ => times.is_known = false,
        }
    }

    /// A storage has died: its last time has not ended by being empty.
    pub(super) fn died(&mut self, storage: StorageId) {
        self.storages.insert(storage, Times::new(false));
    }

    /// Takes the storages that were empty when the step began, and are empty, with their times.
    pub(super) fn take(&mut self) -> Vec<(StorageId, Vec<FilledTime>)> {
        let are_whole = |times: &Times| times.is_known && times.filled.is_none();
        let taken = std::mem::take(&mut self.storages).into_iter();
        let mut found: Vec<_> = taken
            .filter_map(|(storage, times)| are_whole(&times).then_some((storage, times.past)))
            .collect();
        found.sort_unstable_by_key(|&(storage, _)| storage);
        found
    }
}
