use super::*;
use std::collections::{HashMap, HashSet};
use tidelog_random::Random;

const STREAMS: u32 = 3;

/// Memory granule by granule: which one is mapped at an address, what used it last, who has it.
struct Reference {
    mapped: HashMap<u32, usize>,
    granules: Vec<ReferenceGranule>,
    /// Allocations by address: their length.
    allocated: HashMap<u32, u32>,
    /// Addresses of allocations that have given their memory back.
    out: HashSet<u32>,
    /// Number of the last work of each stream that has happened.
    happened: [u64; STREAMS as usize],
    launched: u64,
}

#[derive(Clone, Default)]
struct ReferenceGranule {
    is_taken: bool,
    /// Last use in each stream.
    uses: [u64; STREAMS as usize],
}

impl Reference {
    fn new(memory: u32) -> Self {
        Self {
            mapped: (0..memory).map(|at| (at, at as usize)).collect(),
            granules: vec![ReferenceGranule::default(); memory as usize],
            allocated: HashMap::new(),
            out: HashSet::new(),
            happened: [0; STREAMS as usize],
            launched: 0,
        }
    }

    fn free(&self) -> u32 {
        self.granules.iter().filter(|granule| !granule.is_taken).count() as u32
    }

    fn has_happened(&self, one: StreamUse) -> bool {
        one.number <= self.happened[one.stream.0 as usize]
    }

    /// A new allocation.
    fn place(&mut self, placement: &ArenaPlacement, asked: u32, stream: StreamNumber) {
        let addresses: Vec<u32> = (placement.address.0..placement.address.0 + asked).collect();
        self.map(placement, &addresses, stream);
        let before = self.allocated.insert(placement.address.0, asked);
        assert_eq!(before, None, "two begin at one address");
    }

    /// A part of an allocation has memory again.
    fn place_part(&mut self, placement: &ArenaPlacement, part: ArenaRange, stream: StreamNumber) {
        let addresses = part.begin.0..part.begin.0 + part.length.0;
        let lacking: Vec<u32> = addresses.filter(|at| self.out.remove(at)).collect();
        self.map(placement, &lacking, stream);
    }

    /// The driver's part, and the streams': each step checks that it may be done.
    fn map(&mut self, placement: &ArenaPlacement, addresses: &[u32], stream: StreamNumber) {
        for one in &placement.host_waits {
            let seen = &mut self.happened[one.stream.0 as usize];
            *seen = (*seen).max(one.number);
        }
        for Remap { from, to, length } in &placement.remaps {
            for at in 0..length.0 {
                let granule = self.mapped.remove(&(from.0 + at)).expect("nothing is unmapped");
                let ReferenceGranule { is_taken, uses } = self.granules[granule].clone();
                assert!(!is_taken, "memory that somebody has is unmapped");
                let is_used = uses.iter().zip(self.happened).any(|(last, seen)| *last > seen);
                assert!(!is_used, "memory is unmapped that is used");
                let before = self.mapped.insert(to.0 + at, granule);
                assert_eq!(before, None, "memory is mapped over other memory");
            }
        }
        let mut waits = self.happened;
        waits[stream.0 as usize] = u64::MAX; // its own work is in order
        for one in &placement.waits {
            let seen = &mut waits[one.stream.0 as usize];
            *seen = (*seen).max(one.number);
        }
        for at in addresses {
            let granule = &mut self.granules[self.mapped[at]];
            assert!(!granule.is_taken, "two have one granule");
            granule.is_taken = true;
            let is_early = granule.uses.iter().zip(waits).any(|(last, seen)| *last > seen);
            assert!(!is_early, "memory is given away before its last use");
        }
    }

    /// Puts work into streams that uses an allocation, and lets go of it.
    fn let_go(&mut self, address: u32, streams: &[u32]) -> Vec<StreamUse> {
        let length = self.allocated.remove(&address).expect("one that is allocated");
        let uses = self.use_last(address..address + length, streams);
        self.out.retain(|at| !(address..address + length).contains(at));
        uses
    }

    /// Puts work into streams that uses a part, and lets go of its memory.
    fn let_go_of_part(&mut self, part: ArenaRange, streams: &[u32]) -> Vec<StreamUse> {
        let addresses = part.begin.0..part.begin.0 + part.length.0;
        let uses = self.use_last(addresses.clone(), streams);
        self.out.extend(addresses);
        uses
    }

    /// Returns how many granules there are of an allocation, or of a part.
    fn present(&self, addresses: std::ops::Range<u32>) -> Granules {
        Granules(addresses.filter(|at| !self.out.contains(at)).count() as u32)
    }

    fn use_last(&mut self, addresses: std::ops::Range<u32>, streams: &[u32]) -> Vec<StreamUse> {
        let mut uses = Vec::new();
        for stream in streams {
            self.launched += 1;
            uses.push(StreamUse { stream: StreamNumber(*stream), number: self.launched });
        }
        for at in addresses.filter(|at| !self.out.contains(at)) {
            let granule = &mut self.granules[self.mapped[&at]];
            granule.is_taken = false;
            for one in &uses {
                granule.uses[one.stream.0 as usize] = one.number;
            }
        }
        uses
    }
}

/// One run of a program: allocations that come, are used in streams and go, at random.
fn run(seed: u64) {
    let mut random = Random::new(seed);
    let memory = 1 + random.below(64) as u32;
    let size_max = 1 + random.below(u64::from(memory));
    let (mut arena, mut reference) = (GpuArena::new(Granules(memory)), Reference::new(memory));
    for _ in 0..300 {
        match random.below(10) {
            0..4 => {
                let asked = 1 + random.below(size_max) as u32;
                let stream = StreamNumber(random.below(u64::from(STREAMS)) as u32);
                let free = Granules(reference.free());
                let happened = |one| reference.has_happened(one);
                match arena.take(Granules(asked), stream, happened) {
                    Ok(placement) => reference.place(&placement, asked, stream),
                    Err(full) => {
                        assert_eq!(full, ArenaFull { asked: Granules(asked), free });
                        assert!(free < Granules(asked), "there was room");
                    }
                }
            }
            4..7 => {
                let Some((address, length)) = one_of(&mut random, &reference) else { continue };
                let streams: Vec<u32> = (0..STREAMS).filter(|_| random.chance(2)).collect();
                let present = reference.present(address..address + length);
                let uses = reference.let_go(address, &streams);
                assert_eq!(arena.give(ArenaAddress(address), &uses), present);
            }
            7..9 => {
                let Some((address, length)) = one_of(&mut random, &reference) else { continue };
                let begin = random.below(u64::from(length)) as u32;
                let count = 1 + random.below(u64::from(length - begin)) as u32;
                let (begin, length) = (ArenaAddress(address + begin), Granules(count));
                let part = ArenaRange { begin, length };
                let present = reference.present(begin.0..begin.0 + count);
                if random.chance(2) {
                    let streams: Vec<u32> = (0..STREAMS).filter(|_| random.chance(2)).collect();
                    let uses = reference.let_go_of_part(part, &streams);
                    assert_eq!(arena.give_part(part, &uses), present);
                } else {
                    let stream = StreamNumber(random.below(u64::from(STREAMS)) as u32);
                    let happened = |one| reference.has_happened(one);
                    let lacks = Granules(count - present.0);
                    match arena.take_part(part, stream, happened) {
                        Ok(placement) => reference.place_part(&placement, part, stream),
                        Err(full) => assert!(full.free < lacks, "there was room"),
                    }
                }
            }
            _ => {
                let stream = random.below(u64::from(STREAMS)) as usize;
                let progress = random.below(reference.launched + 1);
                let happened = &mut reference.happened[stream];
                *happened = progress.max(*happened);
            }
        }
        assert_eq!(arena.free(), Granules(reference.free()));
        let allocated: u32 = arena.allocated().map(|range| range.length.0).sum();
        assert_eq!(allocated, memory - arena.free().0);
    }
    let addresses = arena.addresses();
    assert!(addresses.0 <= 8 * memory, "{addresses:?} for {memory} granules");
}

/// An allocation and its length.
fn one_of(random: &mut Random, reference: &Reference) -> Option<(u32, u32)> {
    let mut addresses: Vec<u32> = reference.allocated.keys().copied().collect();
    addresses.sort_unstable();
    let address = (!addresses.is_empty()).then(|| random.pick(&addresses))?;
    Some((address, reference.allocated[&address]))
}

#[test]
fn each_allocation_has_its_own_memory_behind_its_last_uses_wherever_there_is_enough() {
    let seeds = std::env::var("TIDELOG_ARENA_SEEDS").ok().and_then(|seeds| seeds.parse().ok());
    for seed in 0..seeds.unwrap_or(2000) {
        let outcome = std::panic::catch_unwind(|| run(seed));
        assert!(outcome.is_ok(), "seed {seed}");
    }
}

fn stream(number: u32) -> StreamNumber {
    StreamNumber(number)
}

fn used(stream: u32, number: u64) -> StreamUse {
    StreamUse { stream: StreamNumber(stream), number }
}

#[test]
fn a_stream_waits_for_the_last_use_of_its_memory_and_for_nothing_else() {
    let mut arena = GpuArena::new(Granules(8));
    let [one, other] =
        [(); 2].map(|()| arena.take(Granules(4), stream(0), |_| false).unwrap().address);
    arena.give(one, &[used(0, 1), used(1, 5)]);
    arena.give(other, &[used(0, 3)]);
    let placement = arena.take(Granules(4), stream(0), |_| false).unwrap();
    assert_eq!((placement.address, placement.waits), (other, vec![]), "its own work is in order");
    let placement = arena.take(Granules(4), stream(0), |_| false).unwrap();
    assert_eq!((placement.address, placement.waits), (one, vec![used(1, 5)]));
    arena.give(one, &[]);
    let placement = arena.take(Granules(4), stream(2), |use_| use_.number < 5).unwrap();
    assert_eq!(placement.waits, [used(1, 5)], "it was never written, and may be read still");
    assert_eq!(placement.remaps, []);
}

#[test]
fn what_is_free_in_pieces_is_mapped_together_once_nobody_uses_it() {
    let mut arena = GpuArena::new(Granules(8));
    let mut take = |asked| arena.take(Granules(asked), stream(0), |_| false).unwrap();
    let addresses: Vec<_> = (0..8).map(|_| take(1).address).collect();
    for at in [1, 4, 6] {
        arena.give(addresses[at], &[used(0, at as u64)]);
    }
    let placement = arena.take(Granules(3), stream(0), |_| false).unwrap();
    let mapped: u32 = placement.remaps.iter().map(|remap| remap.length.0).sum();
    assert_eq!(mapped, 3, "the rest has memory at its address");
    assert_eq!(placement.host_waits, [used(0, 6)]);
    assert_eq!(arena.take(Granules(1), stream(0), |_| false).unwrap_err().free, Granules(0));
    arena.give(placement.address, &[used(0, 9)]);
    let again = arena.take(Granules(3), stream(0), |_| false).unwrap();
    assert_eq!((again.address, again.remaps), (placement.address, vec![]), "it stays mapped");
    assert_eq!(arena.addresses(), Granules(16));
}

#[test]
fn a_part_keeps_its_addresses_and_its_memory_until_somebody_wants_that() {
    let mut arena = GpuArena::new(Granules(8));
    let whole = arena.take(Granules(6), stream(0), |_| false).unwrap().address;
    let part = |begin, length| ArenaRange {
        begin: ArenaAddress(whole.0 + begin),
        length: Granules(length),
    };
    assert_eq!(arena.give_part(part(1, 2), &[used(1, 7)]), Granules(2));
    assert_eq!(arena.give_part(part(1, 2), &[used(1, 8)]), Granules(0), "it has none");
    let again = arena.take_part(part(0, 3), stream(0), |_| false).unwrap();
    assert_eq!((again.remaps, again.waits), (vec![], vec![used(1, 7)]), "it lay there still");
    arena.give_part(part(1, 2), &[used(0, 9)]);
    // Its addresses are nobody else's, its memory is.
    let other = arena.take(Granules(4), stream(0), |_| false).unwrap();
    assert!(other.address.0 >= whole.0 + 6, "{other:?}");
    let remap =
        Remap { from: part(1, 2).begin, to: ArenaAddress(whole.0 + 8), length: Granules(2) };
    assert_eq!((other.remaps, other.host_waits), (vec![remap], vec![used(1, 7), used(0, 9)]));
    let full = arena.take_part(part(1, 2), stream(0), |_| false).unwrap_err();
    assert_eq!((full.asked, full.free), (Granules(2), Granules(0)));
    assert_eq!(arena.give(other.address, &[]), Granules(4));
    assert_eq!(arena.grow_for_part(part(1, 2)), Granules(0), "there is memory for it");
    let back = arena.take_part(part(1, 2), stream(0), |_| true).unwrap();
    assert_eq!(back.remaps.iter().map(|remap| remap.length.0).sum::<u32>(), 2);
    arena.give_part(part(1, 4), &[used(1, 9)]);
    arena.take(Granules(5), stream(0), |_| true).unwrap();
    assert_eq!(arena.grow_for_part(part(1, 4)), Granules(3));
    let back = arena.take_part(part(1, 4), stream(0), |_| true).unwrap();
    assert_eq!(back.remaps, []);
    assert_eq!((arena.give(whole, &[]), arena.free()), (Granules(6), Granules(6)));
}

#[test]
#[should_panic(expected = "no part of an allocation")]
fn a_part_that_nobody_has_is_a_bug_of_the_caller() {
    let mut arena = GpuArena::new(Granules(8));
    let placement = arena.take(Granules(2), stream(0), |_| false).unwrap();
    arena.give_part(ArenaRange { begin: placement.address, length: Granules(3) }, &[]);
}

#[test]
#[should_panic(expected = "given back that is not allocated")]
fn memory_that_is_given_back_twice_is_a_bug_of_the_caller() {
    let mut arena = GpuArena::new(Granules(4));
    let placement = arena.take(Granules(2), stream(0), |_| false).unwrap();
    arena.give(placement.address, &[]);
    arena.give(placement.address, &[]);
}

#[test]
fn memory_without_end_is_as_much_as_can_be() {
    assert_eq!(Granules::holding(Bytes(GRANULE.0 + 1)), Granules(2));
    let mut arena = GpuArena::new(Granules::holding(Bytes(u64::MAX)));
    assert_eq!(arena.free(), MEMORY_MAX);
    assert_eq!(MEMORY_MAX.bytes(), Bytes(128 << 40));
    assert!(arena.take(MEMORY_MAX, stream(0), |_| false).is_ok());
}
