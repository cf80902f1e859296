//! Mixed segments come back, and nothing that lives in them is ever lost.

use super::*;
use crate::layout::BLOCK_BYTES;
use crate::path::OperationKind;
use crate::path::sim::Fault;

/// Tensors of a quarter segment each: the first of each four lives, the others die.
fn mixed(pool: &Pool, durable: bool) -> Vec<(u128, Vec<u8>)> {
    let geometry = &pool.description().geometry;
    let segment = geometry.segment_bytes * u64::from(geometry.devices);
    let mut kept = Vec::new();
    for id in 0..u128::from(geometry.segments) * 2 {
        let content = bytes(id as u64, segment as usize / 4 - 100);
        if durable {
            commit(pool, &[(id, &content)], &[]).unwrap();
        } else {
            put(pool, id, &content);
        }
        if id % 4 == 0 {
            kept.push((id, content));
        }
    }
    let dead: Vec<u128> = (0..u128::from(geometry.segments) * 2).filter(|id| id % 4 > 0).collect();
    if durable {
        commit(pool, &[], &dead).unwrap();
    } else {
        for id in dead {
            pool.delete(TensorId(id)).unwrap();
        }
    }
    kept
}

fn delete(pool: &Pool, tensors: &[(u128, Vec<u8>)]) {
    for (id, _) in tensors {
        pool.delete(TensorId(*id)).unwrap();
    }
}

fn check(pool: &Pool, kept: &[(u128, Vec<u8>)]) {
    for (id, content) in kept {
        assert!(get(pool, *id).unwrap() == *content, "tensor {id} has changed");
    }
}

#[test]
fn mixed_segments_come_back_whole_and_their_tensors_are_kept() {
    for durable in [false, true] {
        let disks = disks(2, ByteCount::mib(4));
        let pool = open(&disks);
        let kept = mixed(&pool, durable);
        let before = space(&pool);
        assert!(before.dead.0 > before.capacity.0 / 4, "{before:?}");
        let mut copied = 0;
        while let Some(reclaimed) = pool.reclaim_once().unwrap() {
            copied += reclaimed.copied.0;
            check(&pool, &kept);
        }
        let after = space(&pool);
        assert_eq!(after.live, before.live);
        // What is left can only be in the segment that the survivors' lane fills, and in the open
        // one.
        assert!(after.dead.0 < before.dead.0 / 8, "{after:?}");
        let stats = pool.stats().unwrap();
        assert_eq!(stats.written.moved.0, copied);
        assert!(stats.write_amplification().unwrap() > 1.1);
        drop(pool);
        if durable {
            let pool = open(&disks);
            check(&pool, &kept);
            assert_eq!(space(&pool).live, before.live);
        }
    }
}

#[test]
fn a_put_that_finds_the_pool_full_of_dead_space_makes_room() {
    for durable in [false, true] {
        let pool = open(&disks(2, ByteCount::mib(4)));
        let kept = mixed(&pool, durable);
        let space_before = space(&pool);
        // More than is free, and no more than there is once everything dead is back.
        let length = space_before.free.0 + space_before.dead.0 / 2;
        let content = bytes(7, length as usize);
        put(&pool, 1_000_000, &content);
        assert_eq!(get(&pool, 1_000_000).unwrap(), content);
        check(&pool, &kept);
        let refused = start_put(&pool, 1_000_001, &bytes(1, length as usize));
        assert!(matches!(refused, Err(PutError::PoolFull { .. })));
        space(&pool);
    }
}

#[test]
fn a_put_never_takes_the_reserve_and_reclamation_always_has_room() {
    let pool = open(&disks(2, ByteCount::mib(4)));
    let mut stored = 0;
    while let Ok(ticket) = start_put(&pool, stored, &bytes(stored as u64, 20_000)) {
        ticket.wait().unwrap();
        stored += 1;
    }
    let full = space(&pool);
    assert!(full.reclaim_reserve.0 > 0 && full.free.0 >= full.reclaim_reserve.0);
    assert_eq!(pool.reclaim_once().unwrap(), None, "nothing is dead");
    // One in eight dies: little comes back for much copying, but all of it does.
    for id in (0..stored).step_by(8) {
        pool.delete(TensorId(id)).unwrap();
    }
    let dead = space(&pool).dead.0;
    while pool.reclaim_once().unwrap().is_some() {
        assert!(space(&pool).reclaim_reserve >= full.reclaim_reserve);
    }
    assert!(space(&pool).dead.0 < dead / 8);
    for id in (0..stored).filter(|id| id % 8 > 0) {
        assert_eq!(get(&pool, id).unwrap(), bytes(id as u64, 20_000));
    }
}

#[test]
fn what_is_read_replaced_or_deleted_while_it_moves_is_right() {
    for durable in [false, true] {
        let disks = disks(2, ByteCount::mib(4));
        let pool = open(&disks);
        let kept = mixed(&pool, durable);
        let before = space(&pool);
        // The reads of one reclamation stand still; so do those of a user.
        disks.iter().for_each(SimDisk::hold);
        let read: Vec<_> =
            kept.iter().map(|(id, it)| start_get(&pool, *id, 0..it.len() as u64)).collect();
        let mover = std::thread::spawn({
            let pool = pool.clone();
            move || pool.reclaim_once()
        });
        // It has chosen what moves once there is room for it.
        while space(&pool).reserved.0 == 0 {
            std::thread::yield_now();
        }
        if !durable {
            delete(&pool, &kept);
            space(&pool);
        }
        disks.iter().for_each(SimDisk::release);
        let reclaimed = mover.join().unwrap().unwrap();
        assert_eq!(reclaimed.map(|it| it.tensors > 0), Some(durable), "{reclaimed:?}");
        for (ticket, (_, content)) in read.iter().zip(&kept) {
            ticket.wait().unwrap();
            assert!(ticket.take_bytes().unwrap() == *content);
        }
        let after = space(&pool);
        assert_eq!(after.reserved.0, 0);
        assert_eq!(after.live.0, if durable { before.live.0 } else { 0 });
    }
}

#[test]
fn a_reader_of_the_old_place_keeps_it_until_it_ends() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let kept = mixed(&pool, false);
    let versions: Vec<_> = kept
        .iter()
        .map(|(id, _)| held::Reading::start(&pool.0.shared, TensorId(*id)).unwrap())
        .collect();
    let reclaimed = pool.reclaim_once().unwrap().unwrap();
    let held = space(&pool);
    assert_eq!(held.reserved, reclaimed.copied.round_up(ByteCount(BLOCK_BYTES)));
    check(&pool, &kept);
    // New readers read the new place, and do not hold the old one back.
    let newer: Vec<_> = kept
        .iter()
        .map(|(id, _)| held::Reading::start(&pool.0.shared, TensorId(*id)).unwrap())
        .collect();
    drop(versions);
    assert_eq!(space(&pool).reserved.0, 0);
    delete(&pool, &kept);
    assert_eq!(space(&pool).reserved, held.live);
    drop(newer);
    let end = space(&pool);
    assert_eq!(end.free, end.capacity);
}

#[test]
fn a_tensor_that_cannot_be_read_stays_and_its_segment_is_left_alone() {
    for durable in [false, true] {
        let disks = disks(2, ByteCount::mib(4));
        let pool = open(&disks);
        let kept = mixed(&pool, durable);
        let bad = kept[1].0;
        let version = pool.current(TensorId(bad)).unwrap();
        let placement =
            pool.0.stripes.placements(&version.entry.runs, version.entry.length).next().unwrap();
        disks[usize::from(placement.device)].rot(placement.device_offset + 9, 1);
        let (mut errors, before) = (0, space(&pool));
        loop {
            match pool.reclaim_once() {
                Ok(None) => break,
                Ok(Some(reclaimed)) => assert_ne!(reclaimed.segment, version.entry.runs[0].segment),
                Err(ReclaimError::Unreadable { tensor, .. }) => {
                    assert_eq!(tensor.id, TensorId(bad));
                    errors += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(errors, 1);
        assert_eq!(space(&pool).live, before.live);
        assert!(start_get(&pool, bad, 0..10).wait().is_err(), "it is not given new checksums");
        let others: Vec<_> = kept.into_iter().filter(|(id, _)| *id != bad).collect();
        check(&pool, &others);
    }
}

#[test]
fn a_crash_at_any_write_or_flush_of_a_reclamation_keeps_every_durable_tensor() {
    let mut struck = 0;
    for kind in [OperationKind::Write, OperationKind::Flush] {
        for device in 0..2 {
            for nth in 0.. {
                // Small stripe units, so that there are many writes.
                let disks = [SimDisk::new(ByteCount::mib(3)), SimDisk::new(ByteCount::mib(3))];
                let unit = FormatOptions {
                    stripe_unit: ByteCount::kib(4),
                    segment_size: Some(ByteCount::kib(128)),
                    ..small()
                };
                Pool::format(&disks, &unit).unwrap();
                let pool = open(&disks);
                let kept = mixed(&pool, true);
                disks[device].plan_fault(kind, nth, Fault::Errno(5));
                let reclaimed = pool.reclaim_once();
                check(&pool, &kept);
                space(&pool);
                // What was free before must not have been written over: not even a commit in doubt
                // may reuse the victim.
                if matches!(reclaimed, Err(ReclaimError::Commit(CommitError::InDoubt(_)))) {
                    assert!(matches!(
                        pool.reclaim_once(),
                        Err(ReclaimError::Commit(_) | ReclaimError::Write { .. }) | Ok(None)
                    ));
                    check(&pool, &kept);
                }
                let cut = [PowerCut::DropAll, PowerCut::KeepAll, PowerCut::Torn(nth)];
                cut_power(&disks, cut[nth as usize % 3]);
                disks.iter().for_each(SimDisk::clear_faults);
                drop(pool);
                let pool = open(&disks);
                check(&pool, &kept);
                let space_after = space(&pool);
                while pool.reclaim_once().unwrap().is_some() {}
                check(&pool, &kept);
                assert_eq!(space(&pool).live, space_after.live);
                if reclaimed.is_ok() {
                    break;
                }
                struck += 1;
            }
        }
    }
    assert!(struck > 12, "only {struck} faults struck");
}

#[test]
fn a_power_cut_after_the_victim_was_reused_finds_the_moved_tensors() {
    for cut in [PowerCut::DropAll, PowerCut::Torn(1), PowerCut::Torn(2)] {
        let disks = disks(2, ByteCount::mib(4));
        let pool = open(&disks);
        let kept = mixed(&pool, true);
        // Every free segment is written over, among them the victims.
        while pool.reclaim_once().unwrap().is_some() {}
        let mut id = 1_000_000;
        while let Ok(ticket) = start_put(&pool, id, &bytes(3, 50_000)) {
            ticket.wait().unwrap();
            id += 1;
        }
        cut_power(&disks, cut);
        drop(pool);
        check(&open(&disks), &kept);
    }
}

#[test]
fn only_the_runs_in_the_victim_move_of_a_tensor_that_spans_many() {
    let pool = open(&disks(3, ByteCount::mib(8)));
    let geometry = &pool.description().geometry;
    let segment = (geometry.segment_bytes * u64::from(geometry.devices)) as usize;
    // A small tensor before the large one, so that neither end of it fills its segment.
    put(&pool, 1, &bytes(1, segment / 2 + 5));
    let large = bytes(2, 5 * segment + 777);
    put(&pool, 2, &large);
    put(&pool, 3, &bytes(3, segment));
    pool.delete(TensorId(1)).unwrap();
    let reclaimed = pool.reclaim_once().unwrap().unwrap();
    assert!(reclaimed.copied.0 < segment as u64 / 2, "{reclaimed:?}");
    assert_eq!(get(&pool, 2).unwrap(), large);
    let mut random = Random::new(1);
    for _ in 0..50 {
        let start = random.below(large.len() as u64);
        let end = start + random.below(large.len() as u64 - start + 1);
        assert!(get_range(&pool, 2, start..end) == large[start as usize..end as usize]);
    }
    space(&pool);
}
