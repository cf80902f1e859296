//! The seeds of random programs in tests.

/// The seeds of a test: `count` fixed ones, or the one in `TIDELOG_SEED`, which replays a failure.
pub(crate) fn seeds(count: u64) -> Vec<u64> {
    match std::env::var("TIDELOG_SEED") {
        Ok(seed) => vec![seed.parse().expect("TIDELOG_SEED is a number")],
        Err(_) => (0..count).collect(),
    }
}
