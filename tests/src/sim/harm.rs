//! Harm to single blocks: of a pool that is closed, by structure, and of one that is open; strewn
//! over a script from a sequence of their own.

use super::script::{Act, Cut};
use tidelog_random::Random;

/// The structure that is harmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A disk's first superblock.
    FirstSuperblock,
    /// A disk's second superblock.
    SecondSuperblock,
    /// A disk's holder block.
    Holder,
    /// A disk's owner block.
    Owner,
    /// The checkpoint that holds, in its slot.
    Checkpoint,
    /// Segments of a checkpoint that continues in them.
    Grown,
    /// A record of the change log that holds.
    Record,
    /// The last record.
    LastRecord,
    /// Tail of that change log, which may never have been written.
    Tail,
    /// The slot that does not hold.
    OtherSlot,
    /// Bytes of a durable tensor, or of one that a seal holds.
    Tensor,
}

impl Part {
    /// Returns whether the part is a part of the index that a crash may tear.
    pub(super) fn is_of_index(self) -> bool {
        matches!(self, Self::Checkpoint | Self::Grown | Self::Record | Self::LastRecord)
    }
}

/// Change of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How {
    /// Bits of one byte flip.
    Rot(u8),
    /// Block that cannot be read.
    Unreadable,
    /// Block of zeroes.
    Zeroes,
    /// Block of another device: its superblock of the pool is written over it.
    OfAnotherDevice,
    /// A superblock of another pool is written over it.
    OfAnotherPool,
}

/// Copies of the metadata that are harmed, where there are two.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HarmedCopies {
    /// One.
    One,
    /// Different blocks of the two copies: of each block one copy is whole.
    Apart,
    /// Identical blocks of the two copies.
    All,
}

/// One harm.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Harm {
    /// Part that is harmed.
    pub part: Part,
    /// Changes of the first copy that is harmed, and of the second.
    pub how: [How; 2],
    /// Copies that are harmed.
    pub copies: HarmedCopies,
    /// The disk, or the copy that is harmed first, modulo how many there are.
    pub disk: u8,
    /// Byte of the structure, in 65536ths, on each copy.
    pub at: [u16; 2],
}

/// Number of acts for one harm to a closed pool.
const EVERY: usize = 1500;
/// Number of acts for one block that is lost in an open pool.
const LOST_EVERY: usize = 900;

/// Adds harm. A quarter of the scripts get none, and lose what was to hurt a disk for good, so that
/// crashes are all that `check` can see there.
pub(super) fn strew(acts: &mut Vec<Act>, seed: u64, disks: u8) {
    let mut random = Random::new(seed ^ 0x0000_0000_6861_726D);
    if random.chance(4) {
        acts.iter_mut().filter(|act| act.hurts()).for_each(|act| *act = Act::Step(1));
        return;
    }
    let at = |random: &mut Random, acts: &[Act]| random.below(acts.len() as u64) as usize;
    // Where no disk ever damages a tensor, this does not either.
    let damages = acts.iter().any(Act::damages);
    for _ in 0..acts.len().div_ceil(LOST_EVERY) {
        let metadata = !damages || random.chance(2);
        let (disk, place) = (random.below(disks.into()) as u8, random.draw() as u16);
        let act = Act::Lose { disk, metadata, at: place };
        acts.insert(at(&mut random, acts), act);
    }
    for _ in 0..acts.len().div_ceil(EVERY) {
        let salt = random.draw() as u32;
        let cut = random.chance(4).then(|| random.pick(&[Cut::Drop, Cut::Keep, Cut::Torn(salt)]));
        let harm = harm(&mut random);
        let act = Act::Harm { harm, cut, repair: random.chance(3) };
        let place = at(&mut random, acts);
        acts.insert(place, act);
        // No record stands behind a checkpoint that opening has written.
        if matches!(harm.part, Part::Checkpoint | Part::Grown) && random.chance(2) {
            acts.insert(place, Act::Reopen);
        }
    }
}

fn harm(random: &mut Random) -> Harm {
    let part = match random.below(24) {
        0..4 => Part::LastRecord,
        4..6 => Part::Record,
        6..8 => Part::Tail,
        8..10 => Part::Checkpoint,
        10..12 => Part::Grown,
        12 => Part::OtherSlot,
        13..15 => Part::FirstSuperblock,
        15..17 => Part::SecondSuperblock,
        17..20 => Part::Holder,
        20 => Part::Owner,
        _ => Part::Tensor,
    };
    let rot = How::Rot(1 << random.below(8));
    let hows: &[How] = match part {
        Part::FirstSuperblock | Part::SecondSuperblock => &[
            rot,
            How::Unreadable,
            How::Zeroes,
            How::OfAnotherDevice,
            How::OfAnotherDevice,
            How::OfAnotherPool,
        ],
        Part::Holder => &[How::Zeroes, How::Zeroes, How::Unreadable, rot],
        Part::Tensor => &[rot, How::Unreadable],
        _ => &[rot, How::Unreadable, How::Unreadable, How::Zeroes],
    };
    let how = [random.pick(hows), random.pick(hows)];
    let copies = random.pick(&[
        HarmedCopies::One,
        HarmedCopies::One,
        HarmedCopies::Apart,
        HarmedCopies::All,
    ]);
    let disk = random.below(64) as u8;
    Harm { part, how, copies, disk, at: [random.draw() as u16, random.draw() as u16] }
}
