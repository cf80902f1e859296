//! The append streams of the log.

use crate::layout::{Copies, LifetimeClass};

/// Durability of a tensor beyond the process that wrote it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Durability {
    /// Scratch need not survive the process; it costs no metadata.
    Scratch,
    /// Durable tensors survive a crash once the commit that brought them has returned.
    Durable,
}

/// An append stream of the log: what it holds has the same durability and as many copies, and dies
/// at about the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Lane {
    /// Durability of the tensors.
    pub durability: Durability,
    /// Probable lifetime of the lane's tensors.
    pub class: LifetimeClass,
    /// Number of copies of each tensor.
    pub copies: Copies,
}

pub(super) const CLASSES: usize = LifetimeClass::ALL.len();
/// Number of lanes of a share, if they differ by lifetime.
pub const LANES: usize = 2 * Copies::ALL.len() * CLASSES;

impl Lane {
    /// Returns the place among all lanes.
    pub fn index(self) -> usize {
        let base = match self.durability {
            Durability::Scratch => 0,
            Durability::Durable => CLASSES,
        };
        let further = self.copies.count() as usize - 1;
        2 * CLASSES * further + base + self.class as usize
    }

    /// Iterates over this lane, then the others of its durability and copies.
    pub(super) fn family(self) -> impl Iterator<Item = Self> {
        let others = LifetimeClass::ALL.into_iter().filter(move |class| *class != self.class);
        std::iter::once(self.class).chain(others).map(move |class| Self { class, ..self })
    }
}
