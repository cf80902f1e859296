//! Pools that go on without a device, devices that come back stale, and replacements.

use super::*;
use crate::layout::{SUPERBLOCK_OFFSET, Superblock};
use crate::log::Placement;
use crate::pool::inspect::{Damage, check, check_degraded, inspect};
use crate::schedule::TransferError;
use crate::units::DeviceIndex;

fn mirrored(count: usize) -> Vec<SimDisk> {
    let disks: Vec<SimDisk> = (0..count).map(|_| SimDisk::new(ByteCount::mib(6))).collect();
    Pool::format(&disks, &FormatOptions { copies: Copies::Two, ..small() }).unwrap();
    disks
}

/// All disks but this one.
pub(super) fn without(disks: &[SimDisk], lost: usize) -> Vec<SimDisk> {
    let others = disks.iter().enumerate().filter(|(at, _)| *at != lost);
    others.map(|(_, disk)| disk.clone()).collect()
}

fn degraded() -> OpenOptions {
    OpenOptions { degraded: true, staging: ByteCount::kib(256), ..quick() }
}

fn open_degraded(disks: &[SimDisk]) -> Pool {
    Pool::open(disks, &degraded()).unwrap()
}

fn placements(pool: &Pool, id: u128) -> Vec<Placement> {
    let version = pool.current(TensorId(id)).unwrap();
    pool.0.stripes.placements(&version.entry.runs, version.entry.length).collect()
}

fn superblock(disk: &SimDisk) -> Superblock {
    Superblock::decode(&disk.peek(SUPERBLOCK_OFFSET, 4096)).unwrap()
}

fn put_one_copy(pool: &Pool, id: u128, content: &[u8]) {
    let one = PutOptions { copies: Some(Copies::One), ..PutOptions::default() };
    let mut batch = pool.batch();
    batch.put(TensorId(id), Source::from(content.to_vec()), one).unwrap();
    batch.commit().unwrap();
}

fn replace_in(disks: &[SimDisk], lost: usize, new: &SimDisk) -> Result<Replaced, ReshapeError> {
    replace(new, &without(disks, lost), &ReplaceOptions::default(), &mut |_| ())
}

#[test]
fn any_one_device_may_be_missing_and_what_has_two_copies_is_whole() {
    for count in [2, 3, 4, 5] {
        for lost in 0..count {
            let disks = mirrored(count);
            let pool = open(&disks);
            let content = bytes(1, 300_001);
            commit(&pool, &[(1, &content), (2, &[7; 9])], &[]).unwrap();
            let mut batch = pool.batch();
            batch.seal("kept", [TensorId(1)]).unwrap();
            batch.commit().unwrap();
            commit(&pool, &[(1, &content[1..])], &[]).unwrap();
            pool.close().unwrap();
            let left = without(&disks, lost);
            let refused = Pool::open(&left, &quick()).err().unwrap();
            assert!(matches!(refused, OpenError::Missing { count: 1, .. }), "{refused}");
            let said = refused.to_string();
            assert!(said.contains(&format!("device {lost} is missing")), "{said}");
            assert!(said.contains("degraded") && said.contains("replace"), "{said}");
            let pool = open_degraded(&left);
            let place = DeviceIndex(lost as u8);
            assert!(pool.description().missing.iter().eq([place]));
            assert!(pool.description().devices[lost].contains("missing"));
            assert_eq!(pool.stats().unwrap().lost, 0);
            assert!(get(&pool, 1).unwrap() == content[1..]);
            assert_eq!(pool.scrub().unwrap().damaged, []);
            // It goes on, commits survive, and nothing is put where the device was.
            for id in 10..20 {
                commit(&pool, &[(id, &bytes(id as u64, 70_000))], &[]).unwrap();
                put(&pool, 100 + id, &bytes(id as u64 + 9, 50_000));
                assert!(get(&pool, 100 + id).unwrap() == bytes(id as u64 + 9, 50_000));
                let all = placements(&pool, id).into_iter().chain(placements(&pool, 100 + id));
                assert!(all.into_iter().all(|it| usize::from(it.device) != lost));
                let has_two = placements(&pool, id).iter().all(|it| it.mirror.is_some());
                assert_eq!(has_two, count > 2, "two copies where there are two devices");
            }
            space(&pool);
            pool.close().unwrap();
            let pool = open_degraded(&left);
            for id in 10..20 {
                assert!(get(&pool, id).unwrap() == bytes(id as u64, 70_000));
            }
            pool.close().unwrap();
        }
    }
}

#[test]
fn a_pool_that_went_on_refuses_the_device_that_comes_back() {
    let disks = mirrored(3);
    let pool = open(&disks);
    commit(&pool, &[(1, &vec![1; 90_000])], &[]).unwrap();
    pool.close().unwrap();
    for lost in [1, 2] {
        let disks: Vec<SimDisk> = disks.iter().map(copy_of).collect();
        open_degraded(&without(&disks, lost)).close().unwrap();
        assert!(superblock(&disks[0]).missing.contains(DeviceIndex(lost as u8)));
        let accept = OpenOptions { accept_older_copies: true, ..quick() };
        for options in [quick(), degraded(), accept, OpenOptions { read_only: true, ..quick() }] {
            match Pool::open(&disks, &options) {
                Err(OpenError::Stale { device, place }) => {
                    assert_eq!((device, place), (format!("sim{lost}"), lost as u32));
                }
                Err(error) => panic!("refused otherwise: {error}"),
                Ok(_) => panic!("a stale device was mixed in"),
            }
        }
        // Both have gone on without the other one: neither is taken for the pool.
        let apart = [disks[lost].clone(), disks[0].clone()];
        assert!(Pool::open(&apart, &degraded()).is_err());
    }
}

/// Takes back a power cut that has not come.
fn never_cut(disks: &[SimDisk]) {
    SimDisk::cut_power_at(disks, u64::MAX - 1, PowerCut::KeepAll);
}

/// Makes another disk with the same bytes.
pub(super) fn copy_of(disk: &SimDisk) -> SimDisk {
    let copy = SimDisk::new(disk.size());
    copy.swap(&mut disk.snapshot());
    copy
}

#[test]
fn devices_that_went_on_apart_are_never_one_pool_again() {
    let disks = mirrored(2);
    let pool = open(&disks);
    commit(&pool, &[(1, &vec![1; 50_000])], &[]).unwrap();
    pool.close().unwrap();
    for disk in &disks {
        let pool = open_degraded(std::slice::from_ref(disk));
        assert!(get(&pool, 1).unwrap() == vec![1; 50_000]);
        pool.close().unwrap();
    }
    for options in [quick(), degraded()] {
        let refused = Pool::open(&disks, &options).err().unwrap();
        assert!(matches!(refused, OpenError::Stale { .. }), "{refused}");
    }
}

#[test]
fn a_killed_opening_without_a_device_is_known_by_its_events() {
    let disks = mirrored(2);
    let pool = open(&disks);
    commit(&pool, &[(1, &vec![1; 50_000])], &[]).unwrap();
    pool.close().unwrap();
    for nth in 0..12 {
        let disks: Vec<SimDisk> = disks.iter().map(copy_of).collect();
        let left = &disks[..1];
        SimDisk::cut_power_at(left, nth, PowerCut::KeepAll);
        let opened = Pool::open(left, &degraded());
        if let Ok(pool) = opened {
            let _ = pool.close();
        }
        never_cut(left);
        match Pool::open(&disks, &quick()) {
            Ok(pool) => {
                // Until the opening is confirmed nothing was written without the other one.
                assert!(nth < 4, "the device was used without the other one: {nth}");
                assert!(get(&pool, 1).unwrap() == vec![1; 50_000]);
            }
            Err(OpenError::Stale { .. } | OpenError::OlderCopy { .. }) => (),
            Err(error) => panic!("{nth}: {error}"),
        }
    }
}

#[test]
fn what_has_one_copy_on_the_missing_device_is_lost_and_told() {
    let disks = mirrored(3);
    let pool = open(&disks);
    let content = bytes(1, 100_000);
    put_one_copy(&pool, 1, &content);
    commit(&pool, &[(2, &content)], &[]).unwrap();
    put_one_copy(&pool, 3, &[5; 100]);
    let small = usize::from(placements(&pool, 3)[0].device);
    pool.close().unwrap();
    let lost = (small + 1) % 3;
    let left = without(&disks, lost);
    let pool = open_degraded(&left);
    assert_eq!(pool.stats().unwrap().lost, 1);
    assert_eq!(pool.lost_tensors().unwrap(), [TensorId(1).into()]);
    let read = start_get(&pool, 1, 0..100_000);
    assert!(matches!(read.wait(), Err(TransferError::Device { .. })));
    assert!(get(&pool, 2).unwrap() == content && get(&pool, 3).unwrap() == [5; 100]);
    assert_eq!(pool.scrub().unwrap().damaged.len(), 1);
    pool.close().unwrap();
    let report = check_degraded(&left, true, &mut |_| ()).unwrap();
    let [Damage::Missing { device }, Damage::Tensor(tensor)] = &report.damage[..] else {
        panic!("{report:?}")
    };
    assert!(device.contains(&format!("device {lost}")) && tensor.id == TensorId(1));
    assert!(matches!(check(&left, true, &mut |_| ()), Err(OpenError::Missing { .. })));
    let view = inspect(&left).unwrap();
    assert_eq!(view.missing, [lost as u32]);
    assert!(view.shares.iter().all(|share| share.index.is_ok() && share.older.is_empty()));
    // A replacement would be without it, and says so before anything else.
    let new = SimDisk::new(ByteCount::mib(6));
    let refused = replace_in(&disks, lost, &new).unwrap_err();
    let ReshapeError::Lost(tensors) = refused else { panic!("{refused}") };
    assert_eq!(tensors, [TensorId(1).into()]);
    let options = ReplaceOptions { accept_loss: true, ..ReplaceOptions::default() };
    let replaced = replace(&new, &left, &options, &mut |_| ()).unwrap();
    assert_eq!(replaced.lost, [TensorId(1).into()]);
    let mut all = left;
    all.push(new);
    let report = check(&all, true, &mut |_| ()).unwrap();
    assert!(matches!(&report.damage[..], [Damage::Tensor(it)] if it.id == TensorId(1)));
}

#[test]
fn more_than_one_device_and_pools_of_single_copies_are_refused() {
    let disks = mirrored(4);
    let refused = Pool::open(&disks[..2], &degraded()).err().unwrap();
    let said = refused.to_string();
    assert!(said.contains("devices 2, 3 are missing"), "{said}");
    let disks = super::disks(2, ByteCount::mib(4));
    let refused = Pool::open(&disks[..1], &degraded()).err().unwrap();
    assert!(matches!(refused, OpenError::NotOnePool(_)), "{refused}");
}

#[test]
fn reading_a_degraded_pool_only_writes_nothing() {
    let disks = mirrored(3);
    let pool = open(&disks);
    commit(&pool, &[(1, &vec![3; 70_000])], &[]).unwrap();
    pool.close().unwrap();
    let left = without(&disks, 1);
    let before: Vec<Superblock> = left.iter().map(superblock).collect();
    let pool = Pool::open(&left, &OpenOptions { read_only: true, ..degraded() }).unwrap();
    assert!(get(&pool, 1).unwrap() == vec![3; 70_000]);
    pool.close().unwrap();
    assert!(left.iter().map(superblock).eq(before));
    open(&disks).close().unwrap();
}

#[test]
fn space_comes_back_while_a_device_is_missing() {
    for (count, lost) in [(2, 0), (3, 1), (4, 3)] {
        let disks = mirrored(count);
        let pool = open(&disks);
        commit(&pool, &[(1, &bytes(1, 200_000))], &[]).unwrap();
        pool.close().unwrap();
        let pool = open_degraded(&without(&disks, lost));
        // Far more than fits at once.
        for round in 0..60_u64 {
            let id = 10 + u128::from(round % 3);
            commit(&pool, &[(id, &bytes(round, 150_000))], &[]).unwrap();
            put(&pool, 100 + id, &bytes(round, 90_000));
            if round % 7 == 0 {
                pool.reclaim_once().unwrap();
            }
            space(&pool);
        }
        assert!(get(&pool, 1).unwrap() == bytes(1, 200_000));
        for round in 57..60_u64 {
            let id = 10 + u128::from(round % 3);
            assert!(get(&pool, id).unwrap() == bytes(round, 150_000));
        }
    }
}

#[test]
fn a_replacement_has_all_that_the_old_device_had_and_the_old_one_is_stale() {
    for count in [2, 3, 4] {
        for lost in 0..count {
            let disks = mirrored(count);
            let pool = open(&disks);
            let content = bytes(1, 300_000);
            commit(&pool, &[(1, &content), (2, &bytes(2, 5000))], &[]).unwrap();
            let mut batch = pool.batch();
            batch.seal("kept", [TensorId(2)]).unwrap();
            batch.commit().unwrap();
            commit(&pool, &[(2, &bytes(3, 5000))], &[]).unwrap();
            pool.close().unwrap();
            let pool = open_degraded(&without(&disks, lost));
            commit(&pool, &[(4, &bytes(4, 80_000))], &[]).unwrap();
            pool.close().unwrap();
            let new = SimDisk::new(ByteCount::mib(7));
            let mut told = Vec::new();
            let options = ReplaceOptions::default();
            let left = without(&disks, lost);
            let done = replace(&new, &left, &options, &mut |it| told.push(it)).unwrap();
            assert_eq!((done.place as usize, done.was_whole), (lost, false));
            let last = told.last().unwrap();
            assert!(last.done == last.total && last.total.0 > 0, "{last:?}");
            let mut whole = disks.clone();
            whole[lost] = new.clone();
            assert!(whole.iter().all(|disk| superblock(disk).missing.is_empty()));
            let generation = superblock(&new).generation;
            assert!(whole.iter().all(|disk| superblock(disk).generation == generation));
            let report = check(&whole, true, &mut |_| ()).unwrap();
            assert!(report.damage.is_empty(), "{:?}", report.damage);
            // The old one is refused in its place and beside it.
            let refused = Pool::open(&disks, &quick()).err().unwrap();
            let is_older = matches!(refused, OpenError::OlderCopy { .. } | OpenError::Stale { .. });
            assert!(is_older, "{refused}");
            let mut both = whole.clone();
            both.push(disks[lost].clone());
            assert!(matches!(Pool::open(&both, &quick()), Err(OpenError::NotOnePool(_))));
            // Any other one may go now.
            for next in 0..count {
                let pool =
                    open_degraded(&without(&whole, next).iter().map(copy_of).collect::<Vec<_>>());
                assert!(get(&pool, 1).unwrap() == content);
                assert!(get(&pool, 2).unwrap() == bytes(3, 5000));
                assert!(get(&pool, 4).unwrap() == bytes(4, 80_000));
                assert_eq!(pool.scrub().unwrap().damaged, []);
            }
            // The same again has nothing to do.
            assert!(replace_in(&disks, lost, &new).unwrap().was_whole);
        }
    }
}

#[test]
fn a_replacement_that_is_killed_at_any_write_is_finished_by_the_same_again() {
    for (count, lost) in [(2, 1), (3, 0), (3, 2)] {
        let disks = mirrored(count);
        let pool = open(&disks);
        let content = bytes(1, 200_000);
        commit(&pool, &[(1, &content), (2, &bytes(2, 5000))], &[]).unwrap();
        pool.close().unwrap();
        let mut nth = 0;
        loop {
            let mut copies: Vec<SimDisk> = disks.iter().map(copy_of).collect();
            let old = std::mem::replace(&mut copies[lost], SimDisk::new(ByteCount::mib(6)));
            SimDisk::cut_power_at(&copies, nth, PowerCut::Torn(nth));
            let done = replace_in(&copies, lost, &copies[lost]);
            let killed = copies.iter().any(SimDisk::is_off);
            never_cut(&copies);
            assert!(done.is_ok() || killed, "{:?}", done.err());
            // Until it is finished the pool is used without it, or with it once it is whole.
            let goes_on = nth % 3 == 0;
            if goes_on {
                match Pool::open(&without(&copies, lost), &degraded()) {
                    Ok(pool) => {
                        assert!(get(&pool, 1).unwrap() == content);
                        commit(&pool, &[(3, &[9; 9000])], &[]).unwrap();
                        pool.close().unwrap();
                    }
                    Err(error) => panic!("{nth}: {error}"),
                }
            }
            // What had become whole and was left out again is stale.
            let again = ReplaceOptions { overwrite: goes_on, ..ReplaceOptions::default() };
            let left = without(&copies, lost);
            replace(&copies[lost], &left, &again, &mut |_| ())
                .unwrap_or_else(|error| panic!("{count} disks, {lost} lost, {nth}: {error}"));
            let report = check(&copies, true, &mut |_| ()).unwrap();
            assert!(report.damage.is_empty(), "{nth}: {:?}", report.damage);
            let pool = open(&copies);
            assert!(get(&pool, 1).unwrap() == content);
            pool.close().unwrap();
            copies[lost] = old;
            assert!(Pool::open(&copies, &quick()).is_err(), "the old one is stale");
            if !killed {
                break;
            }
            nth += 1;
        }
        assert!(nth > 30, "{nth} writes");
    }
}

#[test]
fn a_replacement_must_be_blank_large_and_beside_a_pool_that_lacks_one() {
    let disks = mirrored(3);
    open(&disks).close().unwrap();
    let new = SimDisk::new(ByteCount::mib(6));
    let refused = replace(&new, &disks, &ReplaceOptions::default(), &mut |_| ()).unwrap_err();
    assert!(matches!(refused, ReshapeError::NoneMissing), "{refused}");
    let small = SimDisk::new(ByteCount::mib(5));
    let refused = replace_in(&disks, 1, &small).unwrap_err();
    assert!(matches!(refused, ReshapeError::TooSmall { .. }), "{refused}");
    new.overwrite(1 << 20, &[1; 4096]);
    let refused = replace_in(&disks, 1, &new).unwrap_err();
    assert!(matches!(refused, ReshapeError::New(FormatError::HoldsData { .. })), "{refused}");
    // Nothing has been changed by any of these.
    open(&disks).close().unwrap();
    // The old device may take its own place, if that is said.
    open_degraded(&without(&disks, 1)).close().unwrap();
    let refused = replace_in(&disks, 1, &disks[1]).unwrap_err();
    assert!(matches!(refused, ReshapeError::New(FormatError::HoldsPool { .. })), "{refused}");
    let overwrite = ReplaceOptions { overwrite: true, ..ReplaceOptions::default() };
    replace(&disks[1], &without(&disks, 1), &overwrite, &mut |_| ()).unwrap();
    assert!(check(&disks, true, &mut |_| ()).unwrap().damage.is_empty());
    let single = super::disks(2, ByteCount::mib(4));
    let refused = replace_in(&single, 1, &SimDisk::new(ByteCount::mib(4))).unwrap_err();
    assert!(matches!(refused, ReshapeError::Open(OpenError::NotOnePool(_))), "{refused}");
}
