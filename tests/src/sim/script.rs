//! Script of a run: acts that stand on their own, so that any of them can be left out.

use super::harm::{self, Harm};
use super::model::Content;
use super::{sealing, trouble};
use tidelog_engine::layout::Copies;
use tidelog_random::Random;

/// One act. Ids and numbers are what they are whatever happened before.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs, reason = "the fields' names say it")]
pub enum Act {
    /// Starts to write a scratch tensor.
    Put { id: u8, content: Content, class: u8, urgent: bool },
    /// Cancels the oldest write in flight.
    Cancel,
    /// Waits for every write in flight.
    Settle,
    /// Lets the reactor go round this number of times.
    Step(u8),
    /// Reads a part of a tensor, in 256ths, and waits for it.
    Get { id: u8, durable: bool, from: u8, to: u8 },
    /// Starts to read a tensor, which may take long; [`Act::Land`] compares.
    Begin { id: u8, durable: bool, slow: bool },
    /// Waits for every read in flight and compares.
    Land,
    /// Compares memory with the checksums of a tensor; the memory differs if `flipped`.
    Verify { id: u8, flipped: bool },
    /// Deletes a scratch tensor.
    Delete { id: u8 },
    /// Durable changes, committed or given up.
    Batch { puts: Vec<(u8, Content, u8)>, deletes: Vec<u8>, commit: bool },
    /// Durable changes, the commit of which is left in flight.
    Start { puts: Vec<(u8, Content, u8)>, deletes: Vec<u8> },
    /// Commits tensors that take much of the index, and nothing of the data: so many from the
    /// `first` on.
    FillIndex { first: u16, count: u8, flight: bool },
    /// Deletes those of them that are there.
    EmptyIndex { first: u16, count: u8 },
    /// Waits for a commit in flight: this one of them, modulo their number, counted from the last.
    Follow(u8),
    /// Seals those of these tensors that are there, and drops another seal in the same commit,
    /// which may be left in flight.
    Seal { name: u8, scratch: Vec<u8>, durable: Vec<u8>, dropped: Option<u8>, flight: bool },
    /// Puts tensors and seals them, and others that are there, in one commit.
    PutAndSeal { name: u8, puts: Vec<(u8, Content, u8)>, durable: Vec<u8>, flight: bool },
    /// Begins a seal and gives it up.
    GiveUpSeal { name: u8, scratch: Vec<u8> },
    /// Drops a seal.
    DropSeal { name: u8, flight: bool },
    /// Reads one of the tensors that a seal holds: the `nth`, modulo their number.
    GetSealed { name: u8, nth: u8 },
    /// Copies what lives in a mixed segment forward.
    Reclaim,
    /// Reads and verifies every tensor.
    Scrub,
    /// Closes the pool and opens it again.
    Reopen,
    /// Cuts the power now.
    Crash(Cut),
    /// Cuts the power at the `nth` write or flush from now on, then does the next act.
    CrashAt { nth: u8, cut: Cut },
    /// Cuts the power now, and again at the `nth` write or flush of the recovery.
    CrashTwice { nth: u8, cut: Cut },
    /// Plans a fault for the `nth` operation of its kind on a disk.
    Fault { disk: u8, nth: u8, see_fault: OneTimeFault },
    /// Rots one byte, at a place in 65536ths of the disk's data or metadata.
    Rot { disk: u8, metadata: bool, at: u16, mask: u8 },
    /// Loses a block, which cannot be read from now on, at a place in 65536ths of the disk's data
    /// or metadata.
    Lose { disk: u8, metadata: bool, at: u16 },
    /// Closes the pool, or cuts the power, harms a block, and looks at what becomes of it: by
    /// opening the pool, or by `repair` before that.
    Harm { harm: Harm, cut: Option<Cut>, repair: bool },
    /// A disk is gone, until the pool is opened again.
    Vanish { disk: u8 },
    /// Makes a copy of a disk, in the place of the last one.
    Copy { disk: u8 },
    /// Closes the pool, or cuts the power, and puts the copy of a disk in its place, where it stays
    /// unless it is refused.
    Stale { disk: u8, cut: Option<Cut> },
    /// A disk does not respond while others are read.
    Stall { disk: u8 },
}

impl Act {
    /// Returns whether the act may leave a tensor unreadable.
    pub(super) fn damages(&self) -> bool {
        match self {
            Self::Rot { metadata, .. } | Self::Lose { metadata, .. } => !metadata,
            Self::Fault { see_fault, .. } => {
                matches!(see_fault, OneTimeFault::WriteLost | OneTimeFault::WriteMisdirected(_))
            }
            _ => false,
        }
    }

    /// Returns whether the act leaves something on a disk that no crash leaves.
    pub(super) fn hurts(&self) -> bool {
        self.damages() || matches!(self, Self::Rot { .. } | Self::Stale { .. })
    }
}

/// Remains of unflushed writes when the power goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// None.
    Drop,
    /// All writes.
    Keep,
    /// Each block by chance of this seed.
    Torn(u32),
}

/// Fault that a disk has once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum OneTimeFault {
    /// A read fails.
    ReadError,
    /// A read moves a part.
    ReadShort,
    /// A read returns with a bit flipped.
    ReadCorrupt,
    /// A read returns with another place's bytes.
    ReadMisdirected(u16),
    /// A read takes long.
    ReadSlow,
    /// A write fails.
    WriteError,
    /// A write moves a part and says so.
    WriteShort,
    /// A write claims success and is lost.
    WriteLost,
    /// A write goes to another place.
    WriteMisdirected(u16),
    /// A write takes long.
    WriteSlow,
    /// A flush fails.
    FlushError,
}

/// A seed's disks and acts.
#[derive(Clone, Debug)]
pub struct Script {
    /// Seed of the script; also decides the disks' latencies.
    pub seed: u64,
    /// Number of disks.
    pub disks: u8,
    /// The smallest unit that the disks write whole: 512 or 4096.
    pub logical_block: u32,
    /// Bytes of one stripe unit, in KiB.
    pub stripe_kib: u64,
    /// True if tensors have two copies, most durable ones and some others.
    pub mirrors: bool,
    /// Acts of the run.
    pub acts: Vec<Act>,
}

/// Number of tensors that a script knows of each kind, and how long they are.
#[derive(Clone, Copy)]
pub(super) struct Population {
    pub(super) ids: u64,
    /// Lengths in bytes, one of which bounds each tensor's.
    lengths: [u64; 4],
}

impl Population {
    /// Many small tensors in much room; as many as hardly fit; or a few large ones, so that
    /// segments empty and serve again all the time.
    fn draw(random: &mut Random, disks: u8) -> Self {
        let room = u64::from(disks);
        match random.below(3) {
            0 => Self { ids: 24, lengths: [0, 5_000, 20_000, 150_000] },
            1 => Self { ids: 24, lengths: [5_000, 40_000, 80_000, 80_000].map(|it| it * room) },
            _ => Self { ids: 3, lengths: [10_000, 100_000, 300_000, 400_000].map(|it| it * room) },
        }
    }

    fn id(self, random: &mut Random) -> u8 {
        random.below(self.ids) as u8
    }

    pub(super) fn content(self, random: &mut Random) -> Content {
        let longest = random.pick(&self.lengths);
        Content { length: random.below(longest + 1) as u32, salt: random.draw() as u32 }
    }
}

/// Crashes and faults that every script has at least, evenly among its acts.
const CRASHES: usize = 4;
const FAULTS: usize = 8;

/// Number of acts for one burst of commits.
const BURST_EVERY: usize = 40;

impl Script {
    /// Returns the copies that a tensor has.
    pub(super) fn copies(&self, durable: bool, content: Content) -> Copies {
        let has_two = if durable { !content.salt.is_multiple_of(4) } else { content.salt % 4 == 1 };
        if self.mirrors && has_two { Copies::Two } else { Copies::One }
    }

    /// Makes the script of a seed, with `length` acts.
    pub fn new(seed: u64, length: usize) -> Self {
        let mut random = Random::new(seed ^ 0x0074_6964_656C_6F67);
        let disks = 1 + random.below(4) as u8;
        let logical_block = random.pick(&[512, 4096]);
        let stripe_kib = 4 << random.below(4);
        let tensors = Population::draw(&mut random, disks);
        let acts = (0..length).map(|_| ordinary(&mut random, disks, tensors));
        let mut acts: Vec<Act> = acts.collect();
        for part in 0..CRASHES {
            let at = part * length / CRASHES + random.below((length / CRASHES) as u64) as usize;
            acts[at] = crash(&mut random);
        }
        for part in 0..FAULTS {
            let at = part * length / FAULTS + random.below((length / FAULTS) as u64) as usize;
            acts.insert(at, fault(&mut random, disks));
        }
        // Commits in flight together, and then anything: most acts wait for something, and end
        // them.
        for _ in 0..length / BURST_EVERY {
            let at = random.below(acts.len() as u64) as usize;
            let burst: Vec<Act> = burst(&mut random, tensors);
            acts.splice(at..at, burst);
        }
        if random.chance(3) {
            fill_index(&mut random, &mut acts);
        }
        if random.chance(2) {
            // Where no disk ever damages a tensor, every checksum that does not match is our own
            // doing.
            for act in acts.iter_mut().filter(|act| act.damages()) {
                *act = Act::Step(1);
            }
            for _ in 0..FAULTS {
                let see_fault = random.pick(&[
                    OneTimeFault::ReadError,
                    OneTimeFault::WriteError,
                    OneTimeFault::FlushError,
                ]);
                let disk = random.below(u64::from(disks)) as u8;
                let at = random.below(acts.len() as u64) as usize;
                acts.insert(at, Act::Fault { disk, nth: random.below(6) as u8, see_fault });
            }
        }
        sealing::strew(&mut acts, seed, tensors);
        trouble::strew(&mut acts, seed, disks);
        harm::strew(&mut acts, seed, disks);
        // From a sequence of its own: other scripts are what they were.
        let mirrors = disks > 1 && Random::new(seed ^ 0x6D69_7272_6F72).chance(3);
        Self { seed, disks, logical_block, stripe_kib, mirrors, acts }
    }
}

fn ordinary(random: &mut Random, disks: u8, tensors: Population) -> Act {
    let id = tensors.id(random);
    match random.below(1000) {
        0..300 => {
            let (class, urgent) = (random.below(3) as u8, random.chance(4));
            Act::Put { id, content: tensors.content(random), class, urgent }
        }
        300..320 => Act::Cancel,
        320..420 => Act::Settle,
        420..520 => Act::Step(random.below(20) as u8),
        520..680 => {
            let (from, to) = (random.below(256) as u8, random.below(256) as u8);
            Act::Get { id, durable: random.chance(2), from: from.min(to), to: from.max(to) }
        }
        680..730 => Act::Begin { id, durable: random.chance(2), slow: random.chance(2) },
        730..760 => Act::Land,
        760..780 => Act::Verify { id, flipped: random.chance(2) },
        780..840 => Act::Delete { id },
        840..915 => batch(random, tensors),
        915..935 => start(random, tensors),
        935..945 => Act::Follow(random.below(8) as u8),
        945..960 => Act::Reclaim,
        960..962 => Act::Scrub,
        962..975 => Act::Reopen,
        975..980 => crash(random),
        _ => fault(random, disks),
    }
}

fn batch(random: &mut Random, tensors: Population) -> Act {
    let (puts, deletes) = changes(random, tensors);
    Act::Batch { puts, deletes, commit: !random.chance(8) }
}

fn start(random: &mut Random, tensors: Population) -> Act {
    let (puts, deletes) = changes(random, tensors);
    Act::Start { puts, deletes }
}

fn changes(random: &mut Random, tensors: Population) -> (Vec<(u8, Content, u8)>, Vec<u8>) {
    let puts = (0..random.below(4)).map(|_| {
        let id = tensors.id(random);
        (id, tensors.content(random), random.below(3) as u8)
    });
    let puts = puts.collect();
    (puts, (0..random.below(3)).map(|_| tensors.id(random)).collect())
}

/// Commits left in flight, with steps between them or none, and what may come upon them.
fn burst(random: &mut Random, tensors: Population) -> Vec<Act> {
    let mut acts = Vec::new();
    for _ in 0..2 + random.below(5) {
        acts.push(start(random, tensors));
        if random.chance(2) {
            acts.push(Act::Step(random.below(12) as u8));
        }
    }
    if random.chance(4) {
        // What was acknowledged a moment ago must be there.
        acts.push(Act::Follow(random.below(2) as u8));
        acts.push(Act::Crash(cut(random)));
        return acts;
    }
    acts.push(match random.below(8) {
        0 => crash(random),
        1 | 2 => Act::Follow(random.below(8) as u8),
        3 => Act::Reclaim,
        4 => Act::Reopen,
        5 => start(random, tensors),
        _ => Act::Step(random.below(20) as u8),
    });
    acts
}

/// Has the index outgrow its place and, in the smaller pools, all space that there is; then some of
/// it goes.
fn fill_index(random: &mut Random, acts: &mut Vec<Act>) {
    let commits = 6 + random.below(20) as u16;
    let mut at = random.below(acts.len() as u64) as usize;
    let go_on = |random: &mut Random, at: &mut usize, acts: &mut Vec<Act>, act: Act| {
        *at = (*at + random.below(8) as usize).min(acts.len());
        acts.insert(*at, act);
    };
    for commit in 0..commits {
        let (count, flight) = (30 + random.below(60) as u8, random.chance(4));
        go_on(random, &mut at, acts, Act::FillIndex { first: 90 * commit, count, flight });
    }
    for _ in 0..random.below(5) {
        let cut = cut(random);
        let act = match random.below(3) {
            0 => Act::Reopen,
            1 => Act::Crash(cut),
            _ => Act::CrashAt { nth: random.below(12) as u8, cut },
        };
        go_on(random, &mut at, acts, act);
        let (first, count) = (random.below(90 * u64::from(commits)) as u16, 200);
        go_on(random, &mut at, acts, Act::EmptyIndex { first, count });
    }
}

fn crash(random: &mut Random) -> Act {
    let cut = cut(random);
    match random.below(4) {
        0 => Act::Crash(cut),
        1 => Act::CrashTwice { nth: random.below(24) as u8, cut },
        _ => Act::CrashAt { nth: random.below(24) as u8, cut },
    }
}

fn cut(random: &mut Random) -> Cut {
    let salt = random.draw() as u32;
    random.pick(&[Cut::Drop, Cut::Keep, Cut::Torn(salt), Cut::Torn(salt)])
}

fn fault(random: &mut Random, disks: u8) -> Act {
    let disk = random.below(u64::from(disks)) as u8;
    let at = random.draw() as u16;
    match random.below(20) {
        0..5 => Act::Rot { disk, metadata: random.chance(3), at, mask: 1 << random.below(8) },
        5 => Act::Vanish { disk },
        _ => {
            let see_fault = random.pick(&[
                OneTimeFault::ReadError,
                OneTimeFault::ReadShort,
                OneTimeFault::ReadCorrupt,
                OneTimeFault::ReadMisdirected(at),
                OneTimeFault::ReadSlow,
                OneTimeFault::WriteError,
                OneTimeFault::WriteShort,
                OneTimeFault::WriteLost,
                OneTimeFault::WriteMisdirected(at),
                OneTimeFault::WriteSlow,
                OneTimeFault::FlushError,
            ]);
            Act::Fault { disk, nth: random.below(6) as u8, see_fault }
        }
    }
}
