//! Seals, strewn over a script from a sequence of their own.

use super::script::{Act, Population};
use tidelog_random::Random;

/// Names that a script has for seals.
const NAMES: u64 = 4;
/// Number of acts for one act on seals.
const EVERY: usize = 10;

/// Has every other script make, read and drop seals, some of them together in flight.
pub(super) fn strew(acts: &mut Vec<Act>, seed: u64, tensors: Population) {
    let mut random = Random::new(seed ^ 0x0000_0073_6561_6C73);
    if random.chance(2) {
        return;
    }
    for _ in 0..acts.len() / EVERY {
        let mut at = random.below(acts.len() as u64) as usize;
        let together = if random.chance(4) { 1 + random.below(4) } else { 1 };
        for _ in 0..together {
            acts.insert(at, act(&mut random, tensors));
            at = (at + random.below(3) as usize).min(acts.len());
        }
    }
}

fn act(random: &mut Random, tensors: Population) -> Act {
    let name = random.below(NAMES) as u8;
    let mut some = |most: u64| -> Vec<u8> {
        (0..random.below(most)).map(|_| random.below(tensors.ids) as u8).collect()
    };
    let (scratch, durable) = (some(6), some(4));
    match random.below(18) {
        0..8 => {
            let dropped = random.chance(4).then(|| random.below(NAMES) as u8);
            Act::Seal { name, scratch, durable, dropped, flight: random.chance(2) }
        }
        8 => Act::GiveUpSeal { name, scratch },
        9..12 => Act::DropSeal { name, flight: random.chance(2) },
        12..14 => {
            let id = |random: &mut Random| random.below(tensors.ids) as u8;
            let puts = (0..=random.below(3))
                .map(|_| (id(random), tensors.content(random), random.below(3) as u8));
            let puts = puts.collect();
            Act::PutAndSeal { name, puts, durable, flight: random.chance(2) }
        }
        _ => Act::GetSealed { name, nth: random.below(10) as u8 },
    }
}
