//! Pools that are used while a device is made again.

use super::degraded::{copy_of, without};
use super::*;
use crate::layout::{SUPERBLOCK_OFFSET, Superblock};
use crate::pool::inspect::check;
use crate::units::DeviceIndex;

const SIZE: ByteCount = ByteCount::mib(6);

fn mirrored(count: usize) -> Vec<SimDisk> {
    let disks: Vec<SimDisk> = (0..count).map(|_| SimDisk::new(SIZE)).collect();
    Pool::format(&disks, &FormatOptions { copies: Copies::Two, ..small() }).unwrap();
    disks
}

fn degraded() -> OpenOptions {
    OpenOptions { degraded: true, staging: ByteCount::kib(256), ..quick() }
}

/// Begins to replace a disk. Returns all disks with the new one in its place.
fn begin(disks: &[SimDisk], lost: usize) -> Vec<SimDisk> {
    let (new, left) = (SimDisk::new(SIZE), without(disks, lost));
    let begun = begin_replacement(&new, &left, &ReplaceOptions::default()).unwrap();
    assert_eq!(begun, (lost as u32, false));
    let mut all = disks.to_vec();
    all[lost] = new;
    all
}

fn rebuild(pool: &Pool) -> Rebuild {
    pool.rebuild(ByteCount::ZERO).unwrap().unwrap()
}

fn seal(pool: &Pool, name: &str, ids: &[u128]) {
    let mut batch = pool.batch();
    batch.seal(name, ids.iter().map(|id| TensorId(*id))).unwrap();
    batch.commit().unwrap();
}

fn get_sealed(pool: &Pool, name: &str, id: u128, length: usize) -> Vec<u8> {
    let (memory, range) = (Destination::buffer(length), 0..length as u64);
    let ticket = pool.get_sealed(name, TensorId(id), range, memory, Urgency::Urgent, None).unwrap();
    ticket.wait().unwrap();
    ticket.take_bytes().unwrap()
}

/// Opens the pool without each of its devices in turn, on disks of its own.
fn without_each(disks: &[SimDisk], look: impl Fn(&Pool)) {
    assert!(disks.iter().all(|disk| {
        let block = disk.peek(SUPERBLOCK_OFFSET, 4096);
        Superblock::decode(&block).unwrap().missing.is_empty()
    }));
    let report = check(disks, true, &mut |_| ()).unwrap();
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    for lost in 0..disks.len() {
        let left: Vec<SimDisk> = without(disks, lost).iter().map(copy_of).collect();
        let pool = Pool::open(&left, &degraded()).unwrap();
        look(&pool);
        assert_eq!(pool.scrub().unwrap().damaged, []);
        pool.close().unwrap();
    }
}

#[test]
fn a_pool_is_used_while_a_device_is_made_again_and_has_all_in_two_copies_then() {
    for count in [2, 3, 4] {
        for lost in 0..count {
            let disks = mirrored(count);
            let pool = open(&disks);
            for id in 1..12_u64 {
                commit(&pool, &[(id.into(), &bytes(id, 90_000))], &[]).unwrap();
            }
            seal(&pool, "kept", &[1, 2]);
            pool.close().unwrap();
            let disks = begin(&disks, lost);
            let refused = Pool::open(&disks, &quick()).err().unwrap();
            assert!(matches!(refused, OpenError::Unreplaced { .. }), "{refused}");
            let pool = Pool::open(&disks, &degraded()).unwrap();
            assert!(pool.description().missing.iter().eq([DeviceIndex(lost as u8)]));
            let (mut rebuild, mut turns) = (rebuild(&pool), 0);
            while rebuild.step().unwrap().is_some() {
                turns += 1;
                let id = 12 + turns % 4;
                commit(&pool, &[(id.into(), &bytes(turns, 40_000))], &[]).unwrap();
                put(&pool, 100 + u128::from(id), &bytes(turns, 30_000));
                assert!(get(&pool, 100 + u128::from(id)).unwrap() == bytes(turns, 30_000));
                assert!(get(&pool, 1).unwrap() == bytes(1, 90_000));
                pool.reclaim_once().unwrap();
                space(&pool);
            }
            assert!(turns > 1, "{turns}");
            rebuild.finish().unwrap();
            let stats = pool.stats().unwrap().rebuild.unwrap();
            assert!(stats.is_whole && stats.progress.done == stats.progress.total, "{stats:?}");
            assert!(pool.rebuild(ByteCount::ZERO).unwrap().is_none());
            // It goes on as it was opened, and no superblock takes back what it says now.
            seal(&pool, "later", &[3]);
            commit(&pool, &[(20, &bytes(20, 60_000))], &[]).unwrap();
            pool.close().unwrap();
            without_each(&disks, |pool| {
                for id in (1..12).chain([20]) {
                    let length = if id == 20 { 60_000 } else { 90_000 };
                    assert!(get(pool, id.into()).unwrap() == bytes(id, length), "{id}");
                }
                assert!(get_sealed(pool, "later", 3, 90_000) == bytes(3, 90_000));
            });
        }
    }
}

#[test]
fn what_a_seal_holds_that_was_replaced_meanwhile_is_made_again_too() {
    for lost in 0..2 {
        let disks = mirrored(2);
        let pool = open(&disks);
        // The first fills a step, so that the others come later.
        commit(&pool, &[(1, &bytes(1, 1 << 20)), (2, &bytes(2, 50_000))], &[]).unwrap();
        commit(&pool, &[(3, &bytes(3, 50_000)), (4, &bytes(4, 50_000))], &[]).unwrap();
        pool.close().unwrap();
        let disks = begin(&disks, lost);
        let pool = Pool::open(&disks, &degraded()).unwrap();
        let mut rebuild = rebuild(&pool);
        rebuild.step().unwrap();
        seal(&pool, "kept", &[2, 3]);
        commit(&pool, &[(2, &bytes(5, 20_000))], &[3]).unwrap();
        while rebuild.step().unwrap().is_some() {}
        rebuild.finish().unwrap();
        pool.close().unwrap();
        without_each(&disks, |pool| {
            assert!(get(pool, 2).unwrap() == bytes(5, 20_000));
            for id in [2, 3] {
                assert!(get_sealed(pool, "kept", id, 50_000) == bytes(id as u64, 50_000));
            }
        });
    }
}

#[test]
fn a_process_that_is_killed_while_it_makes_a_device_again_has_lost_nothing() {
    for (count, lost) in [(2, 1), (3, 0)] {
        let disks = mirrored(count);
        let pool = open(&disks);
        commit(&pool, &[(1, &bytes(1, 300_000)), (2, &bytes(2, 5000))], &[]).unwrap();
        pool.close().unwrap();
        let (mut nth, mut is_over) = (0, false);
        while !is_over {
            let copies: Vec<SimDisk> = disks.iter().map(copy_of).collect();
            let copies = begin(&copies, lost);
            SimDisk::cut_power_at(&copies, nth, PowerCut::Torn(nth));
            let mut acknowledged = Vec::new();
            if let Ok(pool) = Pool::open(&copies, &degraded()) {
                let mut rebuild = pool.rebuild(ByteCount::ZERO).ok().flatten();
                let mut step = || match &mut rebuild {
                    Some(rebuild) => match rebuild.step() {
                        Ok(None) => rebuild.finish().is_ok(),
                        Ok(Some(_)) => true,
                        Err(_) => false,
                    },
                    None => false,
                };
                for id in 10..14 {
                    let goes_on = step();
                    if commit(&pool, &[(id, &bytes(id as u64, 30_000))], &[]).is_ok() {
                        acknowledged.push(id);
                    }
                    if !goes_on {
                        break;
                    }
                }
                is_over = !copies.iter().any(SimDisk::is_off) && pool.close().is_ok();
            }
            SimDisk::cut_power_at(&copies, u64::MAX - 1, PowerCut::KeepAll);
            let look = |pool: &Pool| {
                assert!(get(pool, 1).unwrap() == bytes(1, 300_000), "{nth}");
                for &id in &acknowledged {
                    assert!(get(pool, id).unwrap() == bytes(id as u64, 30_000), "{nth}: {id}");
                }
            };
            // The same again, or the command that does it while nobody has the pool open.
            if let Ok(pool) = Pool::open(&copies, &quick()) {
                look(&pool);
                pool.close().unwrap();
            } else if nth % 2 == 0 {
                let pool = Pool::open(&copies, &degraded()).unwrap();
                look(&pool);
                let mut rebuild = rebuild(&pool);
                while rebuild.step().unwrap().is_some() {}
                rebuild.finish().unwrap();
                pool.close().unwrap();
            } else {
                let left = without(&copies, lost);
                replace(&copies[lost], &left, &ReplaceOptions::default(), &mut |_| ()).unwrap();
            }
            without_each(&copies, look);
            nth += 3;
        }
        assert!(nth > 40, "{nth}");
    }
}

#[test]
fn what_cannot_be_made_again_is_told_and_nothing_is_called_whole() {
    let disks = mirrored(3);
    let pool = open(&disks);
    let one = PutOptions { copies: Some(Copies::One), ..PutOptions::default() };
    let mut batch = pool.batch();
    batch.put(TensorId(1), Source::from(bytes(1, 200_000)), one).unwrap();
    batch.commit().unwrap();
    commit(&pool, &[(2, &bytes(2, 200_000))], &[]).unwrap();
    let place = {
        let version = pool.current(TensorId(2)).unwrap();
        let all = pool.0.stripes.placements(&version.entry.runs, version.entry.length);
        let both = |it: &crate::log::Placement| it.device != 1 && it.mirror.unwrap().0 == 1;
        all.into_iter().find(both).unwrap()
    };
    pool.close().unwrap();
    let disks = begin(&disks, 1);
    // The only copy that is left of this piece has rotted.
    disks[usize::from(place.device)].rot(place.device_offset + 7, 4);
    let pool = Pool::open(&disks, &degraded()).unwrap();
    let mut rebuild = rebuild(&pool);
    while rebuild.step().unwrap().is_some() {}
    let Err(ReshapeError::Lost(lost)) = rebuild.finish() else { panic!("it is whole") };
    assert_eq!(lost, [TensorId(1).into(), TensorId(2).into()]);
    assert!(!pool.stats().unwrap().rebuild.unwrap().is_whole);
    commit(&pool, &[(2, &[5; 100])], &[1]).unwrap();
    rebuild.finish().unwrap();
    pool.close().unwrap();
    without_each(&disks, |pool| assert!(get(pool, 2).unwrap() == [5; 100]));
}

#[test]
fn where_one_more_is_missing_or_others_have_shares_nothing_is_begun_or_taken_in() {
    let disks = mirrored(3);
    open(&disks).close().unwrap();
    let disks = begin(&disks, 0);
    let refused = Pool::open(&disks[..2], &degraded()).err().unwrap();
    assert!(matches!(refused, OpenError::Missing { .. }), "{refused}");
    // To read only is as without it.
    let pool = Pool::open(&disks, &OpenOptions { read_only: true, ..degraded() }).unwrap();
    assert!(pool.rebuild(ByteCount::ZERO).unwrap().is_none());
    pool.close().unwrap();
    let shared: Vec<SimDisk> = (0..2).map(|_| SimDisk::new(SIZE)).collect();
    let format = FormatOptions { share_count: 2, copies: Copies::Two, ..small() };
    Pool::format(&shared, &format).unwrap();
    let (new, options) = (SimDisk::new(SIZE), ReplaceOptions::default());
    let refused = begin_replacement(&new, &shared[..1], &options).unwrap_err();
    assert!(matches!(refused, ReshapeError::Shares(2)), "{refused}");
    open(&shared).close().unwrap();
}

#[test]
fn who_replaces_a_device_of_a_closed_pool_does_not_make_way_for_the_opening_before() {
    let disks: Vec<SimDisk> = (0..2).map(|_| SimDisk::new(ByteCount::mib(32))).collect();
    let format = FormatOptions { copies: Copies::Two, ..FormatOptions::default() };
    Pool::format(&disks, &format).unwrap();
    let pool = open(&disks);
    for id in 1..9 {
        commit(&pool, &[(id.into(), &bytes(id, 1 << 20))], &[]).unwrap();
    }
    pool.close().unwrap();
    let new = SimDisk::new(ByteCount::mib(32));
    replace(&new, &disks[..1], &ReplaceOptions::default(), &mut |_| ()).unwrap();
    // 8 MiB in the small pieces that let others through are 128 writes.
    let writes = new.counters().writes;
    assert!((32..100).contains(&writes), "{writes}");
}
