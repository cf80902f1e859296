//! Random programs for tests: a small generator whose seed replays a failure.

/// A sequence that its seed determines: `SplitMix64`.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The seeds of a test: `count` fixed ones, or the one in `TIDELOG_SEED`.
    pub(crate) fn seeds(count: u64) -> Vec<u64> {
        match std::env::var("TIDELOG_SEED") {
            Ok(seed) => vec![seed.parse().expect("TIDELOG_SEED is a number")],
            Err(_) => (0..count).collect(),
        }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below `limit` (which is not zero).
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// True once in `of` times.
    pub(crate) fn chance(&mut self, of: u64) -> bool {
        self.below(of) == 0
    }
}
