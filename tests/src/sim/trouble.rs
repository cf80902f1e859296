//! Acts that befall whole disks, strewn over a script from a sequence of their own.

use super::script::{Act, Cut};
use tidelog_random::Random;

/// Number of acts for one of each kind.
const EVERY: usize = 250;
/// Limit of acts between a copy and its return.
const APART: u64 = 200;

/// Adds disks that stall, and disks that come back as copies of themselves made some acts before.
pub(super) fn strew(acts: &mut Vec<Act>, seed: u64, disks: u8) {
    let mut random = Random::new(seed ^ 0x0064_6576_6963_6573);
    for _ in 0..acts.len().div_ceil(EVERY) {
        let disk = random.below(disks.into()) as u8;
        let copied = random.below(acts.len() as u64) as usize;
        acts.insert(copied, Act::Copy { disk });
        let back = (copied + 1 + random.below(APART) as usize).min(acts.len());
        let salt = random.draw() as u32;
        let cut = random.chance(3).then(|| random.pick(&[Cut::Drop, Cut::Keep, Cut::Torn(salt)]));
        acts.insert(back, Act::Stale { disk, cut });
        let at = random.below(acts.len() as u64) as usize;
        let disk = random.below(disks.into()) as u8;
        acts.insert(at, Act::Stall { disk });
    }
}
