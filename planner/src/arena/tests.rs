use super::*;
use std::collections::HashMap;
use tidelog_random::Random;

const STREAMS: u32 = 3;

/// Memory granule by granule: which one is mapped at an address, what used it last, who has it.
struct Reference {
    mapped: HashMap<u32, usize>,
    granules: Vec<ReferenceGranule>,
    /// Allocations by address: their length.
    allocated: HashMap<u32, u32>,
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

    /// The driver's part, and the streams': each step checks that it may be done.
    fn place(&mut self, placement: &ArenaPlacement, asked: u32, stream: StreamNumber) {
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
        for at in placement.address.0..placement.address.0 + asked {
            let granule = &mut self.granules[self.mapped[&at]];
            assert!(!granule.is_taken, "two have one granule");
            granule.is_taken = true;
            let is_early = granule.uses.iter().zip(waits).any(|(last, seen)| *last > seen);
            assert!(!is_early, "memory is given away before its last use");
        }
        let before = self.allocated.insert(placement.address.0, asked);
        assert_eq!(before, None, "two begin at one address");
    }

    /// Puts work into streams that uses an allocation, and lets go of it.
    fn let_go(&mut self, address: u32, streams: &[u32]) -> Vec<StreamUse> {
        let length = self.allocated.remove(&address).expect("one that is allocated");
        let mut uses = Vec::new();
        for stream in streams {
            self.launched += 1;
            uses.push(StreamUse { stream: StreamNumber(*stream), number: self.launched });
        }
        for at in address..address + length {
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
        match random.below(8) {
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
                let mut addresses: Vec<u32> = reference.allocated.keys().copied().collect();
                addresses.sort_unstable();
                if addresses.is_empty() {
                    continue;
                }
                let address = random.pick(&addresses);
                let streams: Vec<u32> = (0..STREAMS).filter(|_| random.chance(2)).collect();
                let length = reference.allocated[&address];
                let uses = reference.let_go(address, &streams);
                assert_eq!(arena.give(ArenaAddress(address), &uses), Granules(length));
            }
            _ => {
                let stream = random.below(u64::from(STREAMS)) as usize;
                let progress = random.below(reference.launched + 1);
                let happened = &mut reference.happened[stream];
                *happened = progress.max(*happened);
            }
        }
        assert_eq!(arena.free(), Granules(reference.free()));
    }
    let addresses = arena.addresses();
    assert!(addresses.0 <= 8 * memory, "{addresses:?} for {memory} granules");
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
