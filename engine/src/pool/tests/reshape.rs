//! Devices that a pool gets and gives up.

use super::degraded::{copy_of, without};
use super::*;
use crate::layout::{SUPERBLOCK_OFFSET, Superblock};
use crate::pool::inspect::{check, check_degraded};
use crate::units::{DeviceIndex, DeviceSet};

const SIZE: ByteCount = ByteCount::mib(6);
const TENSORS: u128 = 12;

fn pool_of(count: usize, options: &FormatOptions) -> Vec<SimDisk> {
    let disks: Vec<SimDisk> = (0..count).map(|_| SimDisk::new(SIZE)).collect();
    Pool::format(&disks, options).unwrap();
    disks
}

fn with_copies(copies: Copies) -> FormatOptions {
    FormatOptions { copies, ..small() }
}

fn content(id: u128) -> Vec<u8> {
    bytes(id as u64, 100_000 + 3000 * id as usize)
}

/// Puts tensors, of which a seal holds one that stands no more.
fn fill(disks: &[SimDisk]) {
    let pool = open(disks);
    commit(&pool, &[(1, &content(99))], &[]).unwrap();
    let mut batch = pool.batch();
    batch.seal("kept", [TensorId(1)]).unwrap();
    batch.commit().unwrap();
    for id in 0..TENSORS {
        commit(&pool, &[(id, &content(id))], &[]).unwrap();
    }
    pool.close().unwrap();
}

fn assert_whole(pool: &Pool) {
    for id in 0..TENSORS {
        assert!(get(pool, id).unwrap() == content(id), "tensor {id}");
    }
    let length = content(99).len();
    let memory = Destination::buffer(length);
    let range = 0..length as u64;
    let ticket = pool.get_sealed("kept", TensorId(1), range, memory, Urgency::Urgent, None);
    let ticket = ticket.unwrap();
    ticket.wait().unwrap();
    assert!(ticket.take_bytes().unwrap() == content(99), "what the seal holds");
    space(pool);
}

fn assert_sound(disks: &[SimDisk]) {
    let report = check(disks, true, &mut |_| ()).unwrap();
    assert!(report.damage.is_empty() && report.unsettled.is_empty(), "{report:?}");
    let pool = open(disks);
    assert_whole(&pool);
    pool.close().unwrap();
}

fn options() -> ReshapeOptions {
    ReshapeOptions::default()
}

fn add_to(disks: &mut Vec<SimDisk>, new: SimDisk) -> Reshaped {
    let added = add(&new, disks, &options(), &mut |_| ()).unwrap();
    disks.push(new);
    added
}

/// The devices on which any part of a durable tensor lies.
fn used(pool: &Pool) -> DeviceSet {
    let contents = pool.0.shared.contents();
    let held = contents.held_alone().filter_map(|number| contents.held(number));
    let versions = contents.durable().chain(held);
    let each = versions.map(|version| pool.0.stripes.devices_of(&version.entry.runs));
    each.fold(DeviceSet::default(), DeviceSet::union)
}

fn set(devices: &[u8]) -> DeviceSet {
    devices.iter().copied().map(DeviceIndex).collect()
}

fn superblock(disk: &SimDisk) -> Superblock {
    Superblock::decode(&disk.peek(SUPERBLOCK_OFFSET, 4096)).unwrap()
}

#[test]
fn new_segments_are_striped_over_a_device_that_was_added() {
    for (count, copies) in [(1, Copies::One), (2, Copies::One), (2, Copies::Two)] {
        let mut disks = pool_of(count, &with_copies(copies));
        fill(&disks);
        let before = open(&disks).description().capacity;
        let added = add_to(&mut disks, SimDisk::new(SIZE));
        assert_eq!((added.place, added.was_done), (count as u32, false));
        assert_eq!(added.devices.len(), count + 1);
        assert_sound(&disks);
        let pool = open(&disks);
        assert_eq!(pool.description().capacity.0 / (count as u64 + 1), before.0 / count as u64);
        assert!(!used(&pool).contains(DeviceIndex(count as u8)), "what is there stays");
        commit(&pool, &[(77, &bytes(77, 900_000))], &[]).unwrap();
        assert!(used(&pool).contains(DeviceIndex(count as u8)), "what is new uses it");
        assert!(get(&pool, 77).unwrap() == bytes(77, 900_000));
        pool.close().unwrap();
        assert_sound(&disks);
        // The same again changes nothing.
        let (new, others) = disks.split_last().unwrap();
        let again = add(new, others, &options(), &mut |_| ()).unwrap();
        assert_eq!((again.place, again.was_done), (count as u32, true));
        assert_sound(&disks);
        let refused = Pool::open(others, &quick()).err().unwrap();
        assert!(refused.to_string().contains("missing"), "{refused}");
    }
}

#[test]
fn a_device_that_is_evacuated_has_nothing_of_the_pool() {
    for copies in [Copies::One, Copies::Two] {
        for gone in 0..3 {
            let disks = pool_of(3, &with_copies(copies));
            fill(&disks);
            let mut seen = Vec::new();
            let done = evacuate(&disks, gone, &options(), &mut |it| seen.push(it)).unwrap();
            assert!(!done.was_done && done.moved.0 > 0);
            assert!(seen.windows(2).all(|it| it[0].done <= it[1].done));
            assert_eq!(seen.last().unwrap().done, seen.last().unwrap().total);
            assert_sound(&disks);
            let others: DeviceSet = set(&[0, 1, 2]).without(set(&[gone as u8]));
            let pool = open(&disks);
            assert_eq!(used(&pool), others);
            assert_eq!(pool.description().table.used(), others);
            pool.close().unwrap();
            let again = evacuate(&disks, gone, &options(), &mut |_| ()).unwrap();
            assert!(again.was_done);
            // Nothing needs it: whatever becomes of it, the pool is whole.
            disks[gone as usize].remove_device();
            let left = without(&disks, gone as usize);
            let degraded = OpenOptions { degraded: true, ..quick() };
            let pool = Pool::open(&left, &degraded).unwrap();
            assert_whole(&pool);
            assert_eq!(pool.stats().unwrap().lost, 0);
            pool.close().unwrap();
        }
    }
}

#[test]
fn a_device_that_was_removed_is_refused_for_ever() {
    for copies in [Copies::One, Copies::Two] {
        for gone in 0..3 {
            let mut disks = pool_of(3, &with_copies(copies));
            fill(&disks);
            let before = copy_of(&disks[gone as usize]);
            let done = remove(&disks, gone, &options(), &mut |_| ()).unwrap();
            assert!(!done.was_done && done.devices.len() == 3, "{done:?}");
            let old = disks.remove(gone as usize);
            assert_sound(&disks);
            for other in [&old, &before] {
                let all: Vec<SimDisk> = disks.iter().chain([other]).cloned().collect();
                for accept_older_copies in [false, true] {
                    let lies = OpenOptions { accept_older_copies, degraded: true, ..quick() };
                    let refused = Pool::open(&all, &lies).err().unwrap();
                    assert!(matches!(refused, OpenError::Removed { .. }), "{refused}");
                }
            }
            let alone = Pool::open(std::slice::from_ref(&old), &quick()).err().unwrap();
            assert!(matches!(alone, OpenError::Removed { .. }), "{alone}");
            let refused = add(&old, &disks, &options(), &mut |_| ()).unwrap_err();
            assert!(matches!(refused, ReshapeError::New(FormatError::HoldsPool { .. })));
            // As a new device it gets a place of its own.
            let lost = ReshapeOptions { overwrite: true, ..options() };
            let added = add(&old, &disks, &lost, &mut |_| ()).unwrap();
            assert_eq!(added.place, 3);
            disks.push(old);
            assert_sound(&disks);
            let all: Vec<SimDisk> = disks.iter().chain([&before]).cloned().collect();
            let refused = Pool::open(&all, &quick()).err().unwrap();
            assert!(matches!(refused, OpenError::Removed { .. }), "{refused}");
        }
    }
}

#[test]
fn a_lost_device_is_removed_and_what_had_two_copies_has_them_again() {
    let mut disks = pool_of(4, &with_copies(Copies::Two));
    fill(&disks);
    let lost = disks.remove(0);
    let done = remove(&disks, 0, &options(), &mut |_| ()).unwrap();
    assert!(done.moved.0 > 0);
    assert_sound(&disks);
    let again = remove(&disks, 0, &options(), &mut |_| ()).unwrap();
    assert!(again.was_done);
    let all: Vec<SimDisk> = disks.iter().chain([&lost]).cloned().collect();
    let refused = Pool::open(&all, &quick()).err().unwrap();
    assert!(matches!(refused, OpenError::Removed { .. }), "{refused}");
    // Any other may be lost now.
    disks.remove(1);
    let report = check_degraded(&disks, true, &mut |_| ()).unwrap();
    assert_eq!(report.damaged_tensors().count(), 0);
    let pool = Pool::open(&disks, &OpenOptions { degraded: true, ..quick() }).unwrap();
    assert_whole(&pool);
    pool.close().unwrap();
}

#[test]
fn a_pool_moves_to_other_devices_one_by_one() {
    for copies in [Copies::One, Copies::Two] {
        let first = if copies == Copies::One { 1 } else { 2 };
        let mut disks = pool_of(first, &with_copies(copies));
        fill(&disks);
        // More often than there are numbers of sets.
        for round in 0..20 {
            add_to(&mut disks, SimDisk::new(SIZE));
            let gone = superblock(&disks[0]).device;
            remove(&disks, gone, &options(), &mut |_| ()).unwrap();
            disks.remove(0);
            assert_eq!(superblock(&disks[0]).geometry.devices as usize, first + round + 1);
        }
        assert_sound(&disks);
    }
}

#[test]
fn sets_of_devices_without_a_number_left_are_emptied() {
    let mut disks =
        pool_of(1, &FormatOptions { segment_size: Some(ByteCount::kib(64)), ..small() });
    fill(&disks);
    for round in 0..18_u128 {
        add_to(&mut disks, SimDisk::new(SIZE));
        let pool = open(&disks);
        commit(&pool, &[(200 + round, &content(3))], &[]).unwrap();
        pool.close().unwrap();
    }
    assert_sound(&disks);
    let pool = open(&disks);
    let table = pool.description().table;
    assert_eq!(table.current_set().len(), 19);
    assert!(table.sets.iter().filter(|set| !set.is_empty()).count() < 16, "{table:?}");
    for round in 0..18 {
        assert!(get(&pool, 200 + round).unwrap() == content(3));
    }
}

#[test]
fn what_cannot_be_is_refused_before_anything_is_written() {
    let disks = pool_of(2, &with_copies(Copies::Two));
    fill(&disks);
    let before: Vec<Superblock> = disks.iter().map(superblock).collect();
    let few = evacuate(&disks, 1, &options(), &mut |_| ()).unwrap_err();
    assert!(matches!(few, ReshapeError::TooFew { left: 1, needed: 2 }), "{few}");
    let no_place = remove(&disks, 7, &options(), &mut |_| ()).unwrap_err();
    assert!(matches!(no_place, ReshapeError::NoPlace { .. }), "{no_place}");
    let small_one = SimDisk::new(ByteCount::mib(5));
    let small = add(&small_one, &disks, &options(), &mut |_| ()).unwrap_err();
    assert!(matches!(small, ReshapeError::TooSmall { .. }), "{small}");
    let other = pool_of(1, &super::small());
    let held = add(&other[0], &disks, &options(), &mut |_| ()).unwrap_err();
    assert!(matches!(held, ReshapeError::New(FormatError::HoldsPool { .. })), "{held}");
    assert_eq!(disks.iter().map(superblock).collect::<Vec<_>>(), before);

    let full = pool_of(2, &super::small());
    let pool = open(&full);
    let capacity = pool.description().capacity.0 as usize;
    commit(&pool, &[(1, &bytes(1, capacity * 3 / 4))], &[]).unwrap();
    pool.close().unwrap();
    let no_space = evacuate(&full, 0, &options(), &mut |_| ()).unwrap_err();
    assert!(matches!(no_space, ReshapeError::NoSpace { .. }), "{no_space}");
    assert_eq!(superblock(&full[0]).table, None);
    let pool = open(&full);
    assert!(get(&pool, 1).unwrap() == bytes(1, capacity * 3 / 4));
}

#[test]
fn a_pool_that_has_filled_up_half_way_is_whole_and_goes_on_once_there_is_space() {
    for is_removal in [false, true] {
        let disks = pool_of(3, &super::small());
        fill(&disks);
        let attempt = || {
            let change = if is_removal { remove } else { evacuate };
            change(&disks, 2, &options(), &mut |_| ())
        };
        // The process ends once something has moved.
        SimDisk::cut_power_at(&disks, 60, PowerCut::KeepAll);
        attempt().unwrap_err();
        SimDisk::cut_power_at(&disks, u64::MAX - 1, PowerCut::KeepAll);
        let pool = open(&disks);
        assert!(!pool.description().table.current_set().contains(DeviceIndex(2)));
        let filled = (1000..2000).find(|id| {
            let (mut batch, source) = (pool.batch(), Source::from(bytes(*id as u64, 40_000)));
            let put = batch.put(TensorId(*id), source, PutOptions::default());
            put.is_err() || batch.commit().is_err()
        });
        let filled = filled.unwrap();
        pool.close().unwrap();
        let refused = attempt().unwrap_err();
        assert!(matches!(refused, ReshapeError::NoSpace { .. }), "{refused}");
        let pool = open(&disks);
        assert_whole(&pool);
        for id in 1000..filled {
            assert!(get(&pool, id).unwrap() == bytes(id as u64, 40_000), "tensor {id}");
        }
        commit(&pool, &[], &(1000..filled).collect::<Vec<_>>()).unwrap();
        pool.close().unwrap();
        attempt().unwrap();
        let left = if is_removal { &disks[..2] } else { &disks[..] };
        assert_sound(left);
    }
}

#[test]
fn whatever_ends_the_process_the_same_call_finishes_it() {
    let mut random = Random::new(55);
    let mut kills = 0;
    for round in 0..36 {
        let copies = Copies::ALL[round % 2];
        let mut disks = pool_of(3, &with_copies(copies));
        fill(&disks);
        // Some are larger than the others.
        let new = SimDisk::new(ByteCount(SIZE.0 + (round as u64 % 4 / 2) * (1 << 20)));
        let act = round / 2 % 3;
        for attempt in 0_u64.. {
            let all: Vec<SimDisk> = disks.iter().chain([&new]).cloned().collect();
            let nth = if attempt < 8 { random.below(30 << attempt) } else { u64::MAX - 1 };
            SimDisk::cut_power_at(&all, nth, PowerCut::Torn(random.draw()));
            let done = match act {
                0 => add(&new, &disks, &options(), &mut |_| ()),
                1 => evacuate(&disks, round as u32 % 3, &options(), &mut |_| ()),
                _ => remove(&disks, round as u32 % 3, &options(), &mut |_| ()),
            };
            let is_off = all.iter().any(SimDisk::is_off);
            SimDisk::cut_power_at(&all, u64::MAX - 1, PowerCut::KeepAll);
            match done {
                Ok(_) => break,
                Err(error) => {
                    assert!(is_off && attempt < 8, "round {round}, attempt {attempt}: {error}");
                }
            }
            kills += 1;
        }
        match act {
            0 => disks.push(new),
            1 => (),
            _ => drop(disks.remove(round % 3)),
        }
        assert_sound(&disks);
    }
    assert!(kills > 40, "{kills}");
}
