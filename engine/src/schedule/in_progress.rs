//! The transfers that a reactor has taken and not ended.

use super::active::Active;

/// Key of a transfer while the reactor has it. Afterwards it finds nothing, also once another
/// transfer has the place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct TransferKey {
    pub(super) slot: u32,
    /// Number of transfers that had the slot before.
    generation: u32,
}

#[cfg(test)]
impl TransferKey {
    /// Makes the key of the first transfer that a slot has.
    pub(super) const fn of_slot(slot: u32) -> Self {
        Self { slot, generation: 0 }
    }
}

/// Table of the transfers: each piece on its way asks for its own several times.
#[derive(Default)]
pub(super) struct InProgress {
    slots: Vec<Slot>,
    free: Vec<u32>,
}

struct Slot {
    generation: u32,
    /// The id of the transfer, or that of the last one.
    id: u64,
    active: Option<Box<Active>>,
}

impl InProgress {
    /// Takes a transfer in.
    pub(super) fn insert(&mut self, active: Box<Active>) -> TransferKey {
        let id = active.id();
        let Some(slot) = self.free.pop() else {
            self.slots.push(Slot { generation: 0, id, active: Some(active) });
            return TransferKey { slot: self.slots.len() as u32 - 1, generation: 0 };
        };
        let place = &mut self.slots[slot as usize];
        (place.id, place.active) = (id, Some(active));
        TransferKey { slot, generation: place.generation }
    }

    pub(super) fn get(&self, key: TransferKey) -> Option<&Active> {
        let slot = self.slots.get(key.slot as usize)?;
        slot.active.as_deref().filter(|_| slot.generation == key.generation)
    }

    pub(super) fn get_mut(&mut self, key: TransferKey) -> Option<&mut Active> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        slot.active.as_deref_mut().filter(|_| slot.generation == key.generation)
    }

    /// Takes a transfer out.
    pub(super) fn remove(&mut self, key: TransferKey) -> Option<Box<Active>> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        let active = slot.active.take_if(|_| slot.generation == key.generation)?;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(key.slot);
        Some(active)
    }

    /// Returns the key of the transfer that has this id. It looks at all of them, which is for what
    /// callers ask about few.
    pub(super) fn find(&self, id: u64) -> Option<TransferKey> {
        let has_id = |slot: &Slot| slot.id == id && slot.active.is_some();
        let slot = self.slots.iter().position(has_id)?;
        Some(TransferKey { slot: slot as u32, generation: self.slots[slot].generation })
    }

    /// Returns the keys of all transfers, in the order of their ids.
    pub(super) fn keys(&self) -> Vec<TransferKey> {
        let mut standing: Vec<u64> =
            self.slots.iter().filter(|slot| slot.active.is_some()).map(|slot| slot.id).collect();
        standing.sort_unstable();
        standing.into_iter().filter_map(|id| self.find(id)).collect()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::active::{Job, Order};
    use super::super::finish::Finish;
    use super::super::subject::Subject;
    use super::super::transfer::Urgency;
    use super::*;

    fn transfer(id: u64) -> Box<Active> {
        let mut active = Box::new(Active::spare());
        let (job, subject, finish) = (Job::Flush, Subject::default(), Finish::nothing());
        let order = Order { job, subject, urgency: Urgency::Ahead, finish, notify: None };
        active.begin(id, order, Vec::new());
        active
    }

    #[test]
    fn a_key_finds_its_own_transfer_and_nothing_once_that_has_ended() {
        let mut table = InProgress::default();
        let keys = [7, 3, 5].map(|id| table.insert(transfer(id)));
        assert_eq!(keys.map(|key| table.get(key).unwrap().id()), [7, 3, 5]);
        assert_eq!(table.keys(), [keys[1], keys[2], keys[0]]);
        assert_eq!(table.remove(keys[1]).unwrap().id(), 3);
        assert!(table.get(keys[1]).is_none() && table.find(3).is_none());
        let next = table.insert(transfer(9));
        assert_eq!((next.slot, table.find(9)), (keys[1].slot, Some(next)));
        assert!(table.get_mut(keys[1]).is_none() && table.remove(keys[1]).is_none());
        assert_eq!(table.get_mut(next).unwrap().id(), 9);
        for key in [keys[0], keys[2], next] {
            assert!(!table.is_empty());
            table.remove(key).unwrap();
        }
        assert!(table.is_empty() && table.keys().is_empty());
    }
}
