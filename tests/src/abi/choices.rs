//! Source of a caller's decisions.

use crate::sim::Random;

/// Decisions, one after the other.
pub enum Choices {
    /// Decisions of a seed; they never end.
    Seeded(Random),
    /// Decisions that somebody else has made, as bytes, and numbers for what is no decision.
    Given {
        /// Remaining bytes, the next one last.
        bytes: Vec<u8>,
        /// Numbers that decide nothing but which bytes a tensor has.
        contents: Random,
    },
}

impl Choices {
    /// The decisions of a seed.
    pub fn of_seed(seed: u64) -> Self {
        Self::Seeded(Random::new(seed))
    }

    /// The decisions that these bytes spell.
    pub fn of_bytes(bytes: &[u8]) -> Self {
        Self::Given { bytes: bytes.iter().rev().copied().collect(), contents: Random::new(1) }
    }

    /// Returns whether none is left.
    pub fn are_over(&self) -> bool {
        matches!(self, Self::Given { bytes, .. } if bytes.is_empty())
    }

    /// A number below `end`. Where decisions are over it is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        match self {
            Self::Seeded(random) => random.below(end),
            Self::Given { bytes, .. } => {
                let digits = (u64::BITS - (end - 1).leading_zeros()).div_ceil(8);
                let number = (0..digits)
                    .fold(0, |number, _| number << 8 | u64::from(bytes.pop().unwrap_or_default()));
                number % end
            }
        }
    }

    /// Returns whether something happens that does so `chance` times of 100.
    pub fn percent(&mut self, chance: u64) -> bool {
        chance > 0 && self.below(100) < chance
    }

    /// A seed for a tensor's bytes.
    pub fn content(&mut self) -> u64 {
        match self {
            Self::Seeded(random) | Self::Given { contents: random, .. } => random.draw(),
        }
    }
}
