//! Superblocks that are another device's, on this one.

use super::*;
use crate::layout::{Geometry, SUPERBLOCK_OFFSET, Superblock, SuperblockError};
use crate::pool::inspect::{self, Damage};

/// A pool with a durable tensor, closed, and where its superblocks are.
fn closed(devices: usize) -> (Vec<SimDisk>, Vec<u8>, [u64; 2]) {
    let disks = disks(devices, ByteCount::mib(4));
    let (pool, content) = (open(&disks), bytes(1, 300_000));
    commit(&pool, &[(1, &content)], &[]).unwrap();
    pool.close().unwrap();
    let places = [SUPERBLOCK_OFFSET, geometry(&disks).second_superblock_offset()];
    (disks, content, places)
}

fn geometry(disks: &[SimDisk]) -> Geometry {
    inspect::inspect(disks).unwrap().superblock.geometry
}

fn superblock(disk: &SimDisk, place: u64) -> Superblock {
    Superblock::decode(&disk.peek(place, 4096)).unwrap()
}

fn contents(disks: &[SimDisk]) -> Vec<Vec<u8>> {
    disks.iter().map(|disk| disk.peek(0, disk.size().0 as usize)).collect()
}

/// The damage is named, and repairing it brings everything back.
fn shows_it_is_mended(disks: &[SimDisk], content: &[u8], at: (&str, char), whose: &str) {
    let report = inspect::check(disks, false, &mut |_| ()).unwrap();
    let [damage @ Damage::Superblock { device, copy, other: Some(other) }] = &report.damage[..]
    else {
        panic!("{:?}", report.damage);
    };
    assert_eq!(((device.as_str(), *copy), damage.is_repairable()), (at, true));
    assert!(other.contains(whose), "{other}");
    let repaired = inspect::repair(disks, &[], false, &mut |_| ()).unwrap();
    assert_eq!(repaired.after.damage, []);
    let pool = open(disks);
    assert_eq!(get(&pool, 1).unwrap(), content);
    assert!(pool.stats().unwrap().repaired_superblocks.is_empty());
    pool.close().unwrap();
}

#[test]
fn one_of_another_device_of_the_pool_is_damage_that_repair_mends() {
    for devices in [2, 3] {
        let (disks, content, places) = closed(devices);
        for (copy, place) in ['A', 'B'].into_iter().zip(places) {
            // Of now, and of a write of all superblocks that this device did not see.
            for generation in [1, 2] {
                let astray = Superblock { generation, ..superblock(&disks[0], SUPERBLOCK_OFFSET) };
                disks[1].overwrite(place, &astray.encode());
                shows_it_is_mended(&disks, &content, ("sim1", copy), "device 0's");
            }
        }
    }
}

#[test]
fn one_of_another_pool_is_told_by_the_other_devices_or_by_the_count_of_openings() {
    for devices in [1, 2] {
        let (disks, content, places) = closed(devices);
        for (size, generation) in [(4, 1), (4, 9), (3, 1)] {
            let others = self::disks(devices, ByteCount::mib(size));
            let astray = superblock(&others[devices - 1], SUPERBLOCK_OFFSET);
            let astray = Superblock { generation, ..astray };
            for (copy, place) in ['A', 'B'].into_iter().zip(places) {
                disks[devices - 1].overwrite(place, &astray.encode());
                let whose = format!("pool {:032x}", astray.pool);
                let name = format!("sim{}", devices - 1);
                shows_it_is_mended(&disks, &content, (&name, copy), &whose);
            }
        }
    }
}

#[test]
fn superblocks_of_which_nothing_tells_which_is_right_are_refused_and_nothing_is_written() {
    let shows_it_is_refused = |disks: &[SimDisk]| {
        let before = contents(disks);
        let refused = Pool::open(disks, &quick()).map(drop).unwrap_err();
        assert!(
            matches!(
                refused,
                OpenError::Superblock { source: SuperblockError::Disagree { .. }, .. }
            ),
            "{refused}"
        );
        assert!(inspect::check(disks, false, &mut |_| ()).is_err());
        assert!(inspect::repair(disks, &[], false, &mut |_| ()).is_err());
        assert!(Pool::format(disks, &small()).is_err(), "a pool's device is not blank");
        assert!(contents(disks) == before, "something was written");
    };
    // A pool that was never opened has no count.
    let disks = disks(1, ByteCount::mib(4));
    let others = self::disks(1, ByteCount::mib(4));
    disks[0].overwrite(SUPERBLOCK_OFFSET, &others[0].peek(SUPERBLOCK_OFFSET, 4096));
    shows_it_is_refused(&disks);
    // Each is the other by its first superblock, and itself by its second, and no tensor tells.
    let disks = self::disks(2, ByteCount::mib(4));
    open(&disks).close().unwrap();
    exchange(&disks, SUPERBLOCK_OFFSET);
    shows_it_is_refused(&disks);
}

/// Each of the first two devices has the other's block.
fn exchange(disks: &[SimDisk], place: u64) {
    let blocks = [0, 1].map(|disk: usize| disks[disk].peek(place, 4096));
    disks[0].overwrite(place, &blocks[1]);
    disks[1].overwrite(place, &blocks[0]);
}

#[test]
fn superblocks_that_two_devices_have_of_each_other_are_told_by_the_tensors() {
    for devices in [2, 3] {
        for copy in [0, 1] {
            let (disks, content, places) = closed(devices);
            exchange(&disks, places[copy]);
            let report = inspect::check(&disks, false, &mut |_| ()).unwrap();
            assert_eq!(report.damage.len(), 2, "{:?}", report.damage);
            let repaired = inspect::repair(&disks, &[], false, &mut |_| ()).unwrap();
            assert_eq!(repaired.after.damage, []);
            assert_eq!(get(&open(&disks), 1).unwrap(), content);
        }
    }
}

#[test]
fn one_that_came_while_the_pool_was_open_is_not_written_again_by_the_first_seal() {
    let (disks, content, _) = closed(2);
    let pool = open(&disks);
    let astray = Superblock { generation: 5, ..superblock(&disks[0], SUPERBLOCK_OFFSET) };
    disks[1].overwrite(SUPERBLOCK_OFFSET, &astray.encode());
    let mut batch = pool.batch();
    batch.seal("sealed", [TensorId(1)]).unwrap();
    batch.commit().unwrap();
    pool.close().unwrap();
    assert_eq!(inspect::check(&disks, false, &mut |_| ()).unwrap().damage, []);
    assert_eq!(get(&open(&disks), 1).unwrap(), content);
}

#[test]
fn a_first_superblock_that_a_crash_left_behind_the_second_is_no_damage() {
    for operations in 0..16 {
        let (disks, content, _) = closed(2);
        let pool = open(&disks);
        SimDisk::cut_power_at(&disks, operations, PowerCut::Torn(operations));
        let mut batch = pool.batch();
        // The first seal has the superblocks written again.
        let _ = batch.seal("x", [TensorId(1)]).map(|()| batch.commit());
        drop(pool);
        cut_power(&disks, PowerCut::Torn(operations));
        let report = inspect::check(&disks, false, &mut |_| ()).unwrap();
        assert_eq!(report.damage, [], "operation {operations}");
        assert_eq!(get(&open(&disks), 1).unwrap(), content);
        let report = inspect::check(&disks, false, &mut |_| ()).unwrap();
        assert_eq!((report.damage, report.unsettled.len()), (vec![], 0));
    }
}
