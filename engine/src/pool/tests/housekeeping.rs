//! Tests of a pool's background work, each chore alone and then all of them on the thread.

use std::sync::Weak;
use std::time::{Duration, Instant};

use super::*;
use crate::log::Placement;

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "{what} did not come about");
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn places(pool: &Pool, id: u128) -> Vec<Placement> {
    let version = pool.current(TensorId(id)).unwrap();
    pool.0.stripes.placements(&version.entry.runs, version.entry.length).collect()
}

/// Fills the pool with tensors and deletes every other one, so that free segments are scarce and
/// the others are half dead; returns the ids of the rest.
fn fill_half(pool: &Pool) -> Vec<u128> {
    let scarce = || pool.0.shared.contents().space_is_scarce();
    let mut ids = 0_u128..;
    let mut fill = || -> Vec<u128> {
        let more = ids.by_ref().take_while(|_| !scarce());
        more.inspect(|id| put(pool, *id, &bytes(*id as u64, 20_000))).collect()
    };
    let mut kept = fill();
    for id in kept.extract_if(.., |id| *id % 2 == 0) {
        pool.delete(TensorId(id)).unwrap();
    }
    // Some deletion may have emptied the last segment.
    kept.extend(fill());
    kept
}

#[test]
fn space_is_reclaimed_ahead_only_while_it_is_scarce() {
    let pool = open(&disks(2, ByteCount::mib(4)));
    put(&pool, 1_000_000, &bytes(1, 300_000));
    put(&pool, 1_000_001, &bytes(1, 300_000));
    pool.delete(TensorId(1_000_000)).unwrap();
    assert_eq!(pool.reclaim_ahead().unwrap(), None, "there is plenty");
    let kept = fill_half(&pool);
    assert!(pool.0.shared.contents().space_is_scarce());
    while pool.reclaim_ahead().unwrap().is_some() {}
    assert!(!pool.0.shared.contents().space_is_scarce());
    assert!(space(&pool).dead.0 > 0, "no more than was needed");
    for id in kept {
        assert_eq!(get(&pool, id).unwrap(), bytes(id as u64, 20_000));
    }
}

#[test]
fn free_segments_are_discarded_once_and_nothing_else_is() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let (kept, gone) = (bytes(1, 300_000), bytes(2, 300_000));
    put(&pool, 1, &kept);
    put(&pool, 2, &gone);
    let old = places(&pool, 2);
    pool.delete(TensorId(2)).unwrap();
    let before = space(&pool);
    let mut segments = Vec::new();
    while let Some(segment) = pool.discard_once().unwrap() {
        segments.push(segment);
        assert_eq!(space(&pool), before);
    }
    let free = before.free.0 / (2 * pool.description().geometry.segment_bytes);
    segments.sort_unstable();
    segments.dedup();
    assert_eq!(segments.len() as u64, free);
    // A simulated disk returns zeroes for what was discarded. The ends of the tensor share segments
    // with others.
    let middle = old[old.len() / 2];
    let bytes_there = disks[usize::from(middle.device)].peek(middle.device_offset, 4096);
    assert_eq!(bytes_there, [0; 4096]);
    assert_eq!(get(&pool, 1).unwrap(), kept);
    // What is written and deleted again is discarded again.
    put(&pool, 3, &gone);
    pool.delete(TensorId(3)).unwrap();
    assert!(pool.discard_once().unwrap().is_some());
}

#[test]
fn a_put_takes_a_segment_only_once_its_discard_has_ended() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let usable = (space(&pool).free.0 - space(&pool).reclaim_reserve.0) as usize;
    disks.iter().for_each(SimDisk::hold);
    let discarding = std::thread::spawn({
        let pool = pool.clone();
        move || pool.discard_once()
    });
    eventually("a discard", || disks.iter().any(|disk| disk.in_flight() > 0));
    // It needs every segment, so it waits for the one that is being discarded.
    let content = bytes(1, usable);
    let putting = std::thread::spawn({
        let (pool, content) = (pool.clone(), content.clone());
        move || put(&pool, 1, &content)
    });
    std::thread::sleep(Duration::from_millis(20));
    space(&pool);
    disks.iter().for_each(SimDisk::release);
    assert!(discarding.join().unwrap().unwrap().is_some());
    putting.join().unwrap();
    assert_eq!(get(&pool, 1).unwrap(), content);
}

#[test]
fn the_housekeeper_reclaims_and_scrubs_by_itself_and_ends_with_the_last_handle() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    pool.start_housekeeper(Housekeeping {
        scrub_rate: ByteCount::mib(64),
        ..Housekeeping::default()
    })
    .unwrap();
    let kept = fill_half(&pool);
    // The next put finds space scarce, and wakes it.
    put(&pool, 1_000_000, &[1]);
    eventually("free space", || !pool.0.shared.contents().space_is_scarce());
    let bad = kept[3];
    let piece = places(&pool, bad)[0];
    disks[usize::from(piece.device)].rot(piece.device_offset, 1);
    let damaged = || pool.stats().unwrap().scrubbed.damaged;
    eventually("a finding", || damaged().iter().any(|found| found.id == TensorId(bad)));
    // Once it is written anew it is whole again.
    put(&pool, bad, &bytes(1, 20_000));
    eventually("a clean scrub", || damaged().is_empty());
    space(&pool);
    let inner: Weak<Inner> = Arc::downgrade(&pool.0);
    let second = pool.clone();
    drop(pool);
    assert!(second.stats().is_ok());
    drop(second);
    assert!(inner.upgrade().is_none(), "its thread has ended before the drop returns");
}

#[test]
fn closing_ends_the_housekeeper_and_simulated_pools_have_none() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    assert!(pool.0.housekeeper.lock().unwrap().is_none());
    pool.start_housekeeper(Housekeeping::default()).unwrap();
    pool.close().unwrap();
    assert!(pool.0.housekeeper.lock().unwrap().is_none());
    assert!(matches!(pool.discard_once(), Err(DiscardError::Unusable(Unusable::Closed))));
    assert!(matches!(pool.reclaim_ahead(), Err(ReclaimError::Unusable(Unusable::Closed))));
}
