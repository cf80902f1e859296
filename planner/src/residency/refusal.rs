//! The reason why something does not fit: the figures that a person needs to choose another budget.

use super::types::StorageId;
use crate::units::Bytes;
use std::fmt;

/// Limit of storages that a refusal names.
pub const CONTRIBUTORS_MAX: usize = 8;

/// A storage that must be in memory, and its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contributor {
    /// Id of the storage.
    pub storage: StorageId,
    /// The size.
    pub size: Bytes,
    /// True if the op uses it; otherwise it is here because it cannot leave.
    pub used: bool,
}

/// Refusal of an op that needs more memory at once than the budget allows, whatever is evicted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BudgetRefusal {
    /// All memory there may be.
    pub budget: Bytes,
    /// Smallest budget that is enough: the sum of the next seven.
    pub smallest_budget: Bytes,
    /// The staging ring.
    pub staging: Bytes,
    /// Storages that the op uses and that could leave otherwise.
    pub uses: Bytes,
    /// The op's outputs.
    pub outputs: Bytes,
    /// Storages that are pinned or cannot move.
    pub unmovable: Bytes,
    /// Storages whose last write failed, so that only memory has them.
    pub unwritable: Bytes,
    /// Storages that ops use which have ended, and may wait for this one: sends and receives.
    pub asynchronous: Bytes,
    /// Bytes for others: [`Residency::keep_for_others`](super::Residency::keep_for_others).
    pub others: Bytes,
    /// The largest of these storages, largest first.
    pub largest: Vec<Contributor>,
}

impl BudgetRefusal {
    /// The figures in words, with each storage as `name` calls it.
    pub fn told(&self, name: impl Fn(StorageId) -> String) -> String {
        let mut text = String::new();
        // Nothing that is written to a string fails.
        let _ = self.tell(&mut text, name);
        text
    }

    fn tell(&self, out: &mut impl fmt::Write, name: impl Fn(StorageId) -> String) -> fmt::Result {
        write!(
            out,
            "{} must be in memory at once, but the budget is {}: {} that the op uses, {} of \
             outputs, {} pinned or not movable",
            self.smallest_budget, self.budget, self.uses, self.outputs, self.unmovable
        )?;
        if self.unwritable.0 > 0 {
            write!(out, ", {} whose write failed", self.unwritable)?;
        }
        if self.asynchronous.0 > 0 {
            write!(out, ", {} in use by communication that may wait for it", self.asynchronous)?;
        }
        if self.others.0 > 0 {
            write!(out, ", {} of an op around it", self.others)?;
        }
        write!(out, ", {} of staging", self.staging)?;
        for (index, contributor) in self.largest.iter().enumerate() {
            let before = if index == 0 { "; largest:" } else { "," };
            write!(out, "{before} {} ({})", name(contributor.storage), contributor.size)?;
        }
        let Self { smallest_budget, .. } = self;
        write!(
            out,
            "; the smallest budget that would do is {} bytes ({smallest_budget})",
            smallest_budget.0
        )
    }
}

impl fmt::Display for BudgetRefusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tell(out, |storage| storage.to_string())
    }
}

impl std::error::Error for BudgetRefusal {}
