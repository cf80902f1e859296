//! Marks of this project. The marks of the table are with its columns; those of small instances and
//! of growth are here.

use super::growth::Size;
use super::small::Small;

/// Small instances: the most that tidelog's plan may take over the best of all.
const OVER_BEST: f64 = 1.1;

/// Limit for plans with more freedom, such as more memory: the most that a plan may take over the
/// plan without it, and how many of 1000 may take longer.
const OVER_LESS_FREEDOM: f64 = 1.0;
const SLOWER_PER_MILLE: f64 = 0.0;

/// Limit for recorded steps.
pub(super) const OVER_LESS_FREEDOM_OF_STEPS: f64 = 1.005;

/// Planning: how much faster than kernels x log(tensors) its time may grow from the smallest to the
/// largest size, how many kernels that one has, and what memory it may take.
const GROWTH: f64 = 2.0;
const KERNELS: usize = 1_000_000;
const MEMORY_GIB: f64 = 4.0;

/// Says that a figure is above its limit, where it is.
pub(super) fn exceeded(what: &str, found: f64, most: f64) -> Option<String> {
    (found > most).then(|| format!("{what} is {found:.3}, at most {most:.3}"))
}

/// The marks that the small instances do not reach.
pub(super) fn missed_by_small(small: &Small) -> Vec<String> {
    #[allow(clippy::cast_precision_loss, reason = "a small count")]
    let beaten = small.beaten.len() as f64;
    let worst = f64::from(small.worst_per_mille) / 1000.0;
    #[allow(clippy::cast_precision_loss, reason = "for a ratio")]
    let freed = small.worst_freed_per_mille as f64 / 1000.0;
    let slower = 1000.0 * f64::from(small.slower) / f64::from(small.freed.max(1));
    let missed = [
        exceeded("the number of bounds that a policy beats", beaten, 0.0),
        exceeded("the worst time over the best plan there is", worst, OVER_BEST),
        exceeded("the worst time over that with less freedom", freed, OVER_LESS_FREEDOM),
        exceeded("slower with more freedom, in 1000", slower, SLOWER_PER_MILLE),
    ];
    missed.into_iter().flatten().map(|missed| format!("small instances: {missed}")).collect()
}

/// The marks that planning does not reach as traces grow.
pub(super) fn missed_by_growth(sizes: &[Size]) -> Vec<String> {
    let [first, .., last] = sizes else { return Vec::new() };
    let grown = (last.seconds / last.work()) / (first.seconds / first.work());
    let missed = [
        exceeded("planning time over kernels x log(tensors)", grown, GROWTH),
        exceeded("memory in GiB", last.memory_gib, MEMORY_GIB),
    ];
    let too_long = || format!("planning {KERNELS} kernels takes too long to be tried");
    let missed =
        missed.into_iter().flatten().map(|missed| format!("{} kernels: {missed}", last.kernels));
    missed.chain((last.kernels < KERNELS).then(too_long)).collect()
}
