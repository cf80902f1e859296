//! The allocator alone, against a list of who holds what.

use super::*;
use crate::layout::{DeviceRates, DeviceTable, Geometry, GeometryRequest, SlotArea};
use crate::log::random::seeds;
use tidelog_random::Random;

const SEGMENT_BLOCKS: u64 = 8;

fn space(segments: u32) -> Space {
    let slot = SlotArea { checkpoint_offset: 0, checkpoint_bytes: 0, log_offset: 0, log_bytes: 0 };
    let area = ShareArea { first_segment: 3, segments, slots: [slot; 2] };
    Space::new(&area, SEGMENT_BLOCKS)
}

/// A space of three devices of which each has twice the rate of the one before.
fn unequal_space(segments: u32) -> Space {
    let geometry = Geometry::plan(&GeometryRequest {
        devices: 3,
        device_bytes: ByteCount::mib(8),
        stripe_unit: ByteCount::kib(4),
        segment_bytes: Some(ByteCount::kib(16)),
        shares: 1,
        copies: Copies::Two,
    });
    let rates = DeviceRates::of([100, 200, 400].map(ByteCount::mib));
    let table = DeviceTable::of_all(3).with_rates(rates);
    let map = StripeMap::over(&geometry.unwrap(), &table);
    let blocks = map.segment_blocks();
    Space { segment_blocks: blocks as u32, ..space(segments) }
        .striped_by(&map)
        .shared_out_by(&table)
}

fn scratch(class: LifetimeClass) -> Lane {
    Lane { durability: Durability::Scratch, class, copies: Copies::One }
}

fn allocate_within(
    space: &mut Space,
    lane: Lane,
    bytes: u64,
    reach: AllocationReach,
) -> Result<Runs, Full> {
    let mut runs = Runs::new();
    space.allocate(lane, bytes, reach, &mut runs).map(|()| runs)
}

fn allocate(space: &mut Space, lane: Lane, bytes: u64) -> Result<Runs, Full> {
    allocate_within(space, lane, bytes, AllocationReach::Sisters)
}

fn allocate_apart(space: &mut Space, lane: Lane, bytes: u64) -> Result<Runs, Full> {
    allocate_within(space, lane, bytes, AllocationReach::Lane)
}

fn allocate_survivor(space: &mut Space, lane: Lane, bytes: u64) -> Result<Runs, Full> {
    allocate_within(space, lane, bytes, AllocationReach::Reserve)
}

const STEP: Lane =
    Lane { durability: Durability::Scratch, class: LifetimeClass::Step, copies: Copies::One };
const DURABLE: Lane = Lane { durability: Durability::Durable, ..STEP };
const MIRRORED: Lane = Lane { copies: Copies::Two, ..DURABLE };

#[test]
fn tensors_with_two_copies_take_twice_their_blocks_in_segments_of_their_own() {
    let mut space = space(4);
    let single = allocate(&mut space, DURABLE, 1).unwrap();
    let two = allocate(&mut space, MIRRORED, 5 * BLOCK_BYTES).unwrap();
    let copies = Copies::Two;
    let expected = [
        Run { segment: 4, block: 0, blocks: 8, copies, set: 0 },
        Run { segment: 5, block: 0, blocks: 2, copies, set: 0 },
    ];
    assert_eq!(two[..], expected);
    let (reserved, held) = (space.space_use().reserved.0, Durability::Durable);
    assert_eq!(reserved, 11 * BLOCK_BYTES);
    // Of what is left a lane has its own segment's rest and what is free.
    let full = allocate(&mut space, MIRRORED, 8 * BLOCK_BYTES).unwrap_err();
    assert_eq!((full.needed.0, full.available.0), (16 * BLOCK_BYTES, 14 * BLOCK_BYTES));
    let reserved = single.iter().chain(&two).map(|run| (run, held));
    space.audit(std::iter::empty(), reserved, std::iter::empty()).unwrap();
    // Recovery sees which kind a segment is of.
    let mut space = self::space(4);
    space.adopt(&two, LifetimeClass::Step);
    space.adopt(&single, LifetimeClass::Step);
    space.resume();
    assert!(space.has_mirrors());
    let more = allocate(&mut space, MIRRORED, BLOCK_BYTES).unwrap();
    assert_eq!(more[..], [Run { segment: 5, block: 2, blocks: 2, copies, set: 0 }]);
    let more = allocate(&mut space, DURABLE, BLOCK_BYTES).unwrap();
    assert_eq!(more[..], [Run::single(3, 1, 1)]);
}

#[test]
fn small_tensors_share_a_segment_and_large_ones_span_several() {
    let mut space = space(4);
    let small = allocate(&mut space, STEP, 1).unwrap();
    assert_eq!(small[..], [Run::single(3, 0, 1)]);
    let large = allocate(&mut space, STEP, 10 * BLOCK_BYTES).unwrap();
    assert_eq!(large[..], [Run::single(3, 1, 7), Run::single(4, 0, 3)]);
    assert_eq!(allocate(&mut space, STEP, 0), Ok(Runs::new()));
}

#[test]
fn a_segment_is_free_again_exactly_when_its_last_tensor_dies() {
    let mut space = space(2);
    let first = allocate(&mut space, STEP, 4 * BLOCK_BYTES).unwrap();
    let second = allocate(&mut space, STEP, 4 * BLOCK_BYTES).unwrap();
    space.install(&first);
    space.install(&second);
    space.remove(&first);
    assert_eq!(space.space_use().dead.0, 4 * BLOCK_BYTES);
    assert_eq!(space.space_use().free.0, 8 * BLOCK_BYTES);
    space.retire(&second);
    assert_eq!(space.space_use().reserved.0, 4 * BLOCK_BYTES, "it is still being read");
    space.release(&second);
    assert_eq!(space.space_use().free, space.space_use().capacity);
}

#[test]
fn a_full_space_answers_with_figures_and_changes_nothing() {
    let mut space = space(2);
    let durable = allocate(&mut space, DURABLE, BLOCK_BYTES).unwrap();
    space.install(&durable);
    let before = space.space_use();
    let full = allocate(&mut space, STEP, 9 * BLOCK_BYTES).unwrap_err();
    assert_eq!(full.needed.0, 9 * BLOCK_BYTES);
    assert_eq!(full.available.0, 8 * BLOCK_BYTES, "the durable segment's rest is not for scratch");
    assert_eq!(full.space.free.0, 15 * BLOCK_BYTES);
    assert_eq!(space.space_use(), before);
    assert!(allocate(&mut space, STEP, 8 * BLOCK_BYTES).is_ok());
    assert!(allocate(&mut space, STEP, u64::MAX).is_err());
}

#[test]
fn lanes_of_one_durability_lend_each_other_their_rest_before_giving_up() {
    let mut space = space(2);
    allocate(&mut space, scratch(LifetimeClass::Transient), BLOCK_BYTES).unwrap();
    allocate(&mut space, STEP, BLOCK_BYTES).unwrap();
    let runs = allocate(&mut space, STEP, 14 * BLOCK_BYTES).unwrap();
    assert_eq!(runs.len(), 2);
    assert_eq!(space.space_use().free, ByteCount::ZERO);
}

#[test]
fn a_put_that_fails_over_and_over_costs_no_space() {
    let mut space = space(2);
    let kept = allocate(&mut space, STEP, BLOCK_BYTES).unwrap();
    space.install(&kept);
    for blocks in 1..13 {
        let one = allocate(&mut space, STEP, blocks * BLOCK_BYTES).unwrap();
        let two = allocate(&mut space, STEP, 2 * BLOCK_BYTES).unwrap();
        // In any order, over a segment's end or not.
        space.abandon(&one);
        space.abandon(&two);
        assert_eq!(space.space_use().free.0, 15 * BLOCK_BYTES, "{blocks} blocks");
        let runs = allocate(&mut space, STEP, BLOCK_BYTES).unwrap();
        assert_eq!(runs[..], [Run::single(3, 1, 1)], "{blocks} blocks");
        space.abandon(&runs);
    }
}

#[test]
fn recovery_goes_on_where_the_roomiest_segment_of_the_class_ends() {
    let mut space = space(4);
    space.adopt(&[Run::single(4, 2, 2)], LifetimeClass::Step);
    space.adopt(&[Run::single(5, 0, 6)], LifetimeClass::Step);
    space.resume();
    assert_eq!(space.space_use().dead.0, (2 + 2) * BLOCK_BYTES);
    let runs = allocate(&mut space, DURABLE, BLOCK_BYTES).unwrap();
    assert_eq!(runs[..], [Run::single(4, 4, 1)]);
    let runs = allocate(&mut space, STEP, BLOCK_BYTES).unwrap();
    assert!([3, 6].contains(&runs[0].segment), "scratch takes a free segment: {runs:?}");
}

/// A sealed segment of which `live` blocks are alive; returns the segment.
fn sealed(space: &mut Space, lane: Lane, live: u32) -> u32 {
    let runs = allocate_apart(space, lane, SEGMENT_BLOCKS * BLOCK_BYTES).unwrap();
    let [Run { segment, block: 0, blocks, .. }] = runs[..] else {
        panic!("not one segment: {runs:?}")
    };
    let part = |block, blocks| Run::single(segment, block, blocks);
    space.install(&[part(0, live), part(live, blocks - live)]);
    space.remove(&[part(live, blocks - live)]);
    segment
}

#[test]
fn the_victim_has_least_alive_among_equally_old_ones_and_the_first_of_equals() {
    let mut space = space(12);
    assert_eq!(space.victim(Wanted::ANY), None);
    let lives = [8, 5, 3, 6, 3].map(|live| sealed(&mut space, STEP, live));
    let durable = sealed(&mut space, DURABLE, 4);
    // Age counts, so time passes until all are old.
    for _ in 0..20 {
        let passing = allocate(&mut space, scratch(LifetimeClass::Transient), BLOCK_BYTES).unwrap();
        space.abandon(&passing);
    }
    let victim = space.victim(Wanted::ANY).unwrap();
    assert_eq!((victim.segment, victim.lane), (lives[2], STEP));
    assert_eq!((victim.live.0, victim.dead.0), (3 * BLOCK_BYTES, 5 * BLOCK_BYTES));
    let durables = Wanted { durability: Some(Durability::Durable), ..Wanted::ANY };
    assert_eq!(space.victim(durables).unwrap().segment, durable);
    let mostly_dead = Wanted { dead_eighths_min: 6, ..Wanted::ANY };
    assert_eq!(space.victim(mostly_dead), None);
    space.mark_unmovable(lives[2]);
    assert_eq!(space.victim(Wanted::ANY).unwrap().segment, lives[4]);
}

#[test]
fn a_segment_that_somebody_writes_or_reads_an_old_version_of_is_no_victim() {
    let mut space = space(4);
    let runs = allocate(&mut space, STEP, SEGMENT_BLOCKS * BLOCK_BYTES).unwrap();
    assert_eq!(space.victim(Wanted::ANY), None, "it is being written");
    let (kept, dead) = (Run { blocks: 4, ..runs[0] }, Run { block: 4, blocks: 4, ..runs[0] });
    space.install(&[kept, dead]);
    space.retire(&[dead]);
    assert_eq!(space.victim(Wanted::ANY), None, "it is being read");
    space.release(&[dead]);
    assert!(space.victim(Wanted::ANY).is_some());
}

#[test]
fn a_put_leaves_the_reserve_and_a_survivor_may_have_it() {
    let mut space = space(SEGMENTS_FOR_RESERVE);
    assert_eq!(space.space_use().reclaim_reserve.0, SEGMENT_BLOCKS * BLOCK_BYTES);
    let usable = u64::from(SEGMENTS_FOR_RESERVE - 1) * SEGMENT_BLOCKS;
    assert!(allocate(&mut space, STEP, (usable + 1) * BLOCK_BYTES).is_err());
    allocate(&mut space, STEP, usable * BLOCK_BYTES).unwrap();
    let full = allocate(&mut space, STEP, 1).unwrap_err();
    assert_eq!((full.available, full.space.free), (ByteCount::ZERO, full.space.reclaim_reserve));
    allocate_survivor(&mut space, STEP, SEGMENT_BLOCKS * BLOCK_BYTES).unwrap();
    assert_eq!(space.space_use().free, ByteCount::ZERO);
}

#[test]
fn a_put_can_be_kept_out_of_its_sisters_segments() {
    let mut space = space(1);
    allocate(&mut space, scratch(LifetimeClass::Transient), BLOCK_BYTES).unwrap();
    let refused = allocate_apart(&mut space, STEP, BLOCK_BYTES).unwrap_err();
    assert_eq!(refused.available, ByteCount::ZERO);
    allocate(&mut space, STEP, BLOCK_BYTES).unwrap();
}

#[test]
fn a_segment_that_is_discarded_is_nobodys_until_that_has_ended() {
    let mut space = space(2);
    let first = space.begin_discard().unwrap();
    assert!(allocate(&mut space, STEP, (SEGMENT_BLOCKS + 1) * BLOCK_BYTES).is_err());
    let none = std::iter::empty;
    assert_eq!(
        space.audit(none(), none(), std::iter::empty()).unwrap().free,
        space.space_use().capacity
    );
    space.end_discard(first);
    let second = space.begin_discard().unwrap();
    assert_ne!(first, second);
    space.end_discard(second);
    assert_eq!(space.begin_discard(), None, "devices know of both");
    let runs = allocate(&mut space, STEP, BLOCK_BYTES).unwrap();
    space.abandon(&runs);
    assert_eq!(space.begin_discard(), Some(runs[0].segment), "it has been written since");
}

/// Action of a random program on one allocation.
#[derive(Clone, Copy, PartialEq)]
enum Phase {
    Reserved,
    Live,
    Retired,
}

#[test]
fn no_random_program_breaks_the_accounting() {
    for seed in seeds(200) {
        let mut random = Random::new(seed);
        let segments = 1 + random.below(12) as u32;
        let is_unequal = random.chance(2);
        let mut space = if is_unequal { unequal_space(segments) } else { space(segments) };
        let mut held: Vec<(Runs, Durability, Phase)> = Vec::new();
        for step in 0..400 {
            let victim = random.below(held.len().max(1) as u64) as usize;
            match (random.below(10), held.get(victim).map(|held| held.2)) {
                (0..5, _) | (_, None) => {
                    let durability =
                        if random.chance(3) { Durability::Durable } else { Durability::Scratch };
                    let class = LifetimeClass::ALL[random.below(3) as usize];
                    let bytes = random.below(24 * BLOCK_BYTES);
                    let copies = random.pick(&Copies::ALL);
                    let lane = Lane { durability, class, copies };
                    if let Ok(runs) = allocate(&mut space, lane, bytes) {
                        let blocks: u64 = runs.iter().map(|run| u64::from(run.blocks)).sum();
                        let tensor = bytes.div_ceil(BLOCK_BYTES);
                        assert_eq!(blocks, tensor * u64::from(copies.count()));
                        held.push((runs, durability, Phase::Reserved));
                    }
                }
                (5..8, Some(Phase::Reserved)) => {
                    space.install(&held[victim].0);
                    held[victim].2 = Phase::Live;
                }
                (5, Some(Phase::Live)) => {
                    space.retire(&held[victim].0);
                    held[victim].2 = Phase::Retired;
                }
                (_, Some(Phase::Live)) => space.remove(&held.swap_remove(victim).0),
                (_, Some(Phase::Retired)) => space.release(&held.swap_remove(victim).0),
                (_, Some(Phase::Reserved)) => space.abandon(&held.swap_remove(victim).0),
            }
            let select = |live: bool| {
                held.iter()
                    .filter(move |(_, _, phase)| (*phase == Phase::Live) == live)
                    .flat_map(|(runs, durability, _)| runs.iter().map(|run| (run, *durability)))
            };
            if let Err(broken) = space.audit(select(true), select(false), std::iter::empty()) {
                panic!("TIDELOG_SEED={seed}, step {step}: {broken}");
            }
        }
        while let Some((runs, _, phase)) = held.pop() {
            match phase {
                Phase::Live => space.remove(&runs),
                Phase::Retired => space.release(&runs),
                Phase::Reserved => space.abandon(&runs),
            }
        }
        let end = space.space_use();
        assert_eq!(end.free, end.capacity, "TIDELOG_SEED={seed}: space leaked");
    }
}

#[test]
fn segments_are_shared_out_by_rate_while_there_is_plenty_of_space() {
    for lane in [STEP, MIRRORED] {
        let mut space = unequal_space(64);
        // Sixths of blocks on each device.
        let mut on = [0; 3];
        let mut taken = 0;
        while 4 * space.spare_segments() > 64 + 8 {
            let runs = allocate(&mut space, lane, 4 * BLOCK_BYTES).unwrap();
            for run in &runs {
                let devices: &[usize] = match run.set {
                    0 => &[0, 1, 2],
                    1 => &[1, 2],
                    _ => &[2],
                };
                for device in devices {
                    on[*device] += 6 * run.blocks / devices.len() as u32;
                }
                taken += run.blocks;
            }
        }
        let (all, parts) = match lane.copies {
            Copies::One => (7, [1, 2, 4]),
            // No segment has both copies on one device.
            Copies::Two => (5, [1, 2, 2]),
        };
        for (on, part) in on.into_iter().zip(parts) {
            let wanted = 6 * taken * part / all;
            assert!(on.abs_diff(wanted) < 6 * taken / 30, "{lane:?}: {on} of {taken}");
        }
        // The rest is striped over all.
        let mut last = None;
        while let Ok(runs) = allocate(&mut space, lane, 4 * BLOCK_BYTES) {
            last = runs.last().map(|run| run.set);
        }
        assert_eq!(last, Some(0), "{lane:?}");
    }
}

#[test]
fn an_allocation_gets_all_that_it_was_promised_whatever_its_turn() {
    for seed in seeds(50) {
        let mut random = Random::new(seed);
        let mut space = unequal_space(12);
        loop {
            let free = space.available(STEP, AllocationReach::Sisters);
            let bytes = (1 + random.below(40)).min(free.max(1)) * BLOCK_BYTES;
            match allocate(&mut space, STEP, bytes) {
                Ok(runs) => {
                    let blocks: u64 = runs.iter().map(|run| u64::from(run.blocks)).sum();
                    assert_eq!(blocks * BLOCK_BYTES, bytes, "TIDELOG_SEED={seed}");
                }
                Err(_) => break assert_eq!(free, 0, "TIDELOG_SEED={seed}"),
            }
        }
    }
}
