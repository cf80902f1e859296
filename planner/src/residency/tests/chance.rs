//! Chance that can be replayed.

/// Seeded, and the same everywhere.
pub(super) struct Random(tidelog_random::Random);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(tidelog_random::Random::new(seed))
    }

    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.0.below(end.max(1))
    }

    pub(super) fn percent(&mut self, chance: u64) -> bool {
        self.below(100) < chance
    }

    pub(super) fn pick<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| self.0.pick(from))
    }
}
