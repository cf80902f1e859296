//! What seals hold, in segments that are reclaimed, scrubbed and checked.

use super::seals::{drop_seal, get_sealed, seal};
use super::*;
use crate::layout::BLOCK_BYTES;

/// Tensors of a quarter segment each, of which every fourth is sealed before all are put again;
/// returns what was sealed.
fn sealed_in_mixed_segments(pool: &Pool, durable: bool) -> Vec<(u128, Vec<u8>)> {
    let geometry = &pool.description().geometry;
    let quarter = (geometry.segment_bytes * u64::from(geometry.devices)) as usize / 4 - 100;
    let count = u128::from(geometry.segments);
    let all: Vec<(u128, Vec<u8>)> = (0..count).map(|id| (id, bytes(id as u64, quarter))).collect();
    for (id, content) in &all {
        if durable {
            commit(pool, &[(*id, content)], &[]).unwrap();
        } else {
            put(pool, *id, content);
        }
    }
    let kept: Vec<_> = all.into_iter().filter(|(id, _)| id % 4 == 1).collect();
    let ids: Vec<u128> = kept.iter().map(|(id, _)| *id).collect();
    seal(pool, "one", &ids).unwrap();
    seal(pool, "two", &ids[1..]).unwrap();
    for id in 0..count {
        if durable {
            commit(pool, &[(id, &bytes(id as u64 + 1000, 10))], &[]).unwrap();
        } else {
            put(pool, id, &bytes(id as u64 + 1000, 10));
        }
    }
    kept
}

#[test]
fn sealed_versions_move_with_their_segments_and_are_found_after_a_crash() {
    for durable in [false, true] {
        let disks = disks(2, ByteCount::mib(8));
        let pool = open(&disks);
        let kept = sealed_in_mixed_segments(&pool, durable);
        let before = space(&pool);
        let mut moved = 0;
        while let Some(reclaimed) = pool.reclaim_once().unwrap() {
            moved += reclaimed.tensors;
            pool.audit().unwrap();
            for (id, content) in &kept {
                assert!(get_sealed(&pool, "one", *id) == *content, "tensor {id} has changed");
            }
        }
        assert!(moved >= kept.len(), "{moved} of {} were moved", kept.len());
        let after = space(&pool);
        assert_eq!((after.live, after.sealed), (before.live, before.sealed));
        assert!(after.dead.0 < before.dead.0 / 4, "{after:?}");
        drop(pool);
        cut_power(&disks, PowerCut::DropAll);
        let pool = open(&disks);
        drop_seal(&pool, "one");
        for (id, content) in &kept[1..] {
            assert!(get_sealed(&pool, "two", *id) == *content, "tensor {id} has changed");
        }
        drop_seal(&pool, "two");
        assert_eq!(space(&pool).sealed.0, 0);
    }
}

#[test]
fn a_tensor_that_stands_and_is_sealed_moves_once_and_stays_one() {
    for durable in [false, true] {
        let disks = disks(1, ByteCount::mib(4));
        let pool = open(&disks);
        let content = bytes(7, 3 * BLOCK_BYTES as usize);
        if durable {
            commit(&pool, &[(500, &content)], &[]).unwrap();
        } else {
            put(&pool, 500, &content);
        }
        seal(&pool, "x", &[500]).unwrap();
        let segment = pool.description().geometry.segment_bytes as usize;
        for id in 0..8 {
            let filler = bytes(id, segment / 4);
            if durable {
                commit(&pool, &[(u128::from(id), &filler)], &[]).unwrap();
                commit(&pool, &[], &[u128::from(id)]).unwrap();
            } else {
                put(&pool, u128::from(id), &filler);
                pool.delete(TensorId(u128::from(id))).unwrap();
            }
        }
        let live = space(&pool).live;
        while pool.reclaim_once().unwrap().is_some() {}
        let stats = pool.stats().unwrap();
        assert!(stats.written.moved.0 > 0, "nothing was moved");
        assert_eq!((space(&pool).live, stats.space.sealed.0), (live, 0), "they share their bytes");
        assert_eq!(get(&pool, 500).unwrap(), content);
        drop(pool);
        let pool = open(&disks);
        assert_eq!(space(&pool).live, live);
        assert_eq!(get_sealed(&pool, "x", 500), content);
        assert_eq!(get(&pool, 500).is_some(), durable);
    }
}

#[test]
fn scrub_and_check_read_what_only_seals_hold_and_name_the_seal() {
    let disks = disks(1, ByteCount::mib(8));
    let pool = open(&disks);
    let content = bytes(3, 40_000);
    put(&pool, 1, &content);
    seal(&pool, "x", &[1]).unwrap();
    let version = pool.current(TensorId(1)).unwrap();
    let place = pool.0.stripes.placements(&version.entry.runs, 40_000).next().unwrap();
    put(&pool, 1, &bytes(4, 40_000));
    let report = pool.scrub().unwrap();
    assert_eq!((report.tensors, report.bytes.0, report.damaged.len()), (2, 80_000, 0));
    disks[0].rot(place.device_offset, 1);
    let report = pool.scrub().unwrap();
    let [damaged] = &report.damaged[..] else { panic!("{report:?}") };
    assert_eq!((&damaged.seals[..], damaged.current), (&["x".to_owned()][..], false));
    pool.close().unwrap();
    let report = inspect::check(&disks, false, &mut |_| ()).unwrap();
    assert_eq!((report.tensors, report.sealed), (1, 1));
    let damaged: Vec<_> = report.damaged_tensors().collect();
    assert_eq!(damaged.len(), 1);
    assert!(damaged[0].to_string().contains("as seals hold it (x)"), "{}", damaged[0]);
    // Dropping the tensor by its id says nothing about the seal, which has the damage.
    let id = format!("{:032x}", 1);
    assert!(inspect::repair(&disks, &[id], false, &mut |_| ()).is_err());
    let repaired = inspect::repair(&disks, &["x".to_owned()], false, &mut |_| ()).unwrap();
    assert_eq!((repaired.dropped.len(), repaired.after.damage.len()), (1, 0));
    assert!(open(&disks).seals().unwrap().is_empty());
}
