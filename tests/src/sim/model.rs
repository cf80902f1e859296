//! Model of a pool.

use std::collections::{BTreeMap, BTreeSet};

use tidelog_random::Random;

/// A tensor's bytes, as the two numbers that they are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Content {
    /// Length in bytes.
    pub length: u32,
    /// Salt that decides the bytes.
    pub salt: u32,
}

impl Content {
    /// The bytes.
    pub fn bytes(self) -> Vec<u8> {
        let mut random = Random::new(u64::from(self.salt) << 32 | u64::from(self.length));
        let mut bytes = vec![0; self.length as usize];
        let mut words = bytes.chunks_exact_mut(size_of::<u64>());
        for word in &mut words {
            word.copy_from_slice(&random.draw().to_le_bytes());
        }
        let rest = words.into_remainder();
        rest.copy_from_slice(&random.draw().to_le_bytes()[..rest.len()]);
        bytes
    }
}

/// Contents of a seal: by the tensor's number, and whether it was durable.
pub type Sealed = BTreeMap<(u16, bool), Content>;

/// Every seal by its number.
pub type Seals = BTreeMap<u8, Sealed>;

/// The tensors that are there.
#[derive(Clone, Debug, Default)]
pub struct Model {
    /// Scratch tensors that can be read.
    pub scratch: BTreeMap<u8, Content>,
    /// Durable tensors that can be read.
    pub durable: BTreeMap<u16, Content>,
    /// The durable tensors after a commit that may or may not be there when the pool is opened
    /// again.
    pub in_doubt: Option<BTreeMap<u16, Content>>,
    /// Contents of seals.
    pub seals: Seals,
    /// Contents of seals after a commit that may or may not be there.
    pub seals_in_doubt: Option<Seals>,
    /// Contents of seals whose commit is in doubt, until the pool is opened again.
    pub doubted: Vec<((u16, bool), Content)>,
    /// The order of the newest write or deletion of each scratch tensor.
    newest: BTreeMap<u8, u64>,
}

impl Model {
    /// A scratch write ended well. Older writes never take the place of newer ones.
    pub fn installed(&mut self, id: u8, content: Content, order: u64) {
        if order > self.newest(id) {
            self.newest.insert(id, order);
            self.scratch.insert(id, content);
        }
    }

    /// A scratch tensor was deleted.
    pub fn deleted(&mut self, id: u8, order: u64) {
        self.newest.insert(id, order);
        self.scratch.remove(&id);
    }

    /// The order of a scratch tensor's newest write or deletion.
    pub fn newest(&self, id: u8) -> u64 {
        self.newest.get(&id).copied().unwrap_or(0)
    }

    /// Returns the current content of an id.
    pub fn standing(&self, (id, durable): (u16, bool)) -> Option<Content> {
        let found = if durable { self.durable.get(&id) } else { self.scratch.get(&(id as u8)) };
        found.copied()
    }

    /// Every version that only seals hold: these, and those that are `coming`.
    pub fn held_alone(
        &self,
        coming: impl Iterator<Item = ((u16, bool), Content)>,
    ) -> BTreeSet<(u16, bool, Content)> {
        let sealed = self.seals.values().flatten().map(|(&key, &content)| (key, content));
        let versions = sealed.chain(self.doubted.iter().copied()).chain(coming);
        let alone = versions.filter(|(key, content)| self.standing(*key) != Some(*content));
        alone.map(|((id, durable), content)| (id, durable, content)).collect()
    }

    /// The process ended: scratch tensors are gone.
    pub fn restarted(&mut self) {
        self.scratch.clear();
        self.newest.clear();
        self.doubted.clear();
    }
}
