//! Tests of seals in segments that are reclaimed, scrubbed and checked.

use super::seals::{drop_seal, get_sealed, seal};
use super::*;
use crate::layout::{BLOCK_BYTES, TensorKey};
use crate::pool::inspect::{DropError, DropName, RepairError};

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
    let drop = |name: &str| {
        let name = DropName::parse(name).unwrap();
        inspect::repair(&disks, &[name], false, &mut |_| ())
    };
    let refused = drop(&format!("{:032x}", 1));
    let Err(RepairError::Drop(DropError::OnlySealed { seals, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(seals, "seal:x");
    assert_eq!(DropName::of(damaged[0]), [DropName::Seal("x".into())]);
    let repaired = drop("x").unwrap();
    assert_eq!((repaired.dropped.len(), repaired.after.damage.len()), (1, 0));
    assert!(open(&disks).seals().unwrap().is_empty());
}

/// A damaged tensor `x`, which seals `x` and `y` hold, too.
fn tensor_and_seal_of_one_name() -> Vec<SimDisk> {
    let disks = disks(1, ByteCount::mib(8));
    let pool = open(&disks);
    let mut batch = pool.batch();
    batch.put("x", Source::from(bytes(3, 40_000)), PutOptions::default()).unwrap();
    batch.put("whole", Source::from(bytes(4, 40_000)), PutOptions::default()).unwrap();
    batch.seal("x", [TensorKey::from("x"), TensorKey::from("whole")]).unwrap();
    batch.seal("y", [TensorKey::from("x")]).unwrap();
    batch.seal("whole", [TensorKey::from("whole")]).unwrap();
    batch.commit().unwrap();
    let version = pool.current(TensorId::from_name("x")).unwrap();
    let place = pool.0.stripes.placements(&version.entry.runs, 40_000).next().unwrap();
    pool.close().unwrap();
    disks[0].rot(place.device_offset, 1);
    disks
}

#[test]
fn a_tensor_and_a_seal_of_one_name_are_dropped_apart_and_a_bare_name_is_refused() {
    let left = |names: &[&str]| {
        let disks = tensor_and_seal_of_one_name();
        let names: Vec<_> = names.iter().map(|name| DropName::parse(name).unwrap()).collect();
        let repaired = inspect::repair(&disks, &names, false, &mut |_| ())?;
        let pool = open(&disks);
        let seals: Vec<String> = pool.seals().unwrap().into_iter().map(|it| it.name).collect();
        let stands = pool.contains(TensorId::from_name("x"));
        assert!(pool.contains(TensorId::from_name("whole")));
        Ok::<_, RepairError>((stands, seals.join(" "), repaired.after.damage.len()))
    };
    let is = |stands: bool, seals: &str, damage| Ok((stands, seals.to_owned(), damage));
    let text = |it: Result<_, RepairError>| it.map_err(|error| error.to_string());
    assert_eq!(text(left(&["tensor:x"])), is(false, "whole x y", 1), "seals hold it still");
    assert_eq!(text(left(&["seal:x"])), is(true, "whole y", 1));
    let id = format!("id:{:032x}", TensorId::from_name("x").0);
    assert_eq!(text(left(&[&id, "seal:x", "y", "seal:y"])), is(false, "whole", 0));
    for (names, why) in [
        (&["y", "x"][..], "may be tensor:x or seal:x"),
        (&["tensor:x", "seal:whole"], "no damaged tensor"),
        (&["tensor:whole"], "no damaged tensor"),
        (&["tensor:y"], "no damaged tensor"),
    ] {
        let refused = left(names).unwrap_err().to_string();
        assert!(refused.contains(why) && refused.contains("nothing was changed"), "{refused}");
    }
}

#[test]
fn a_refusal_drops_nothing_of_what_was_named_with_it() {
    let disks = tensor_and_seal_of_one_name();
    let names = ["seal:y", "x"].map(|name| DropName::parse(name).unwrap());
    let before = disks[0].peek(0, disks[0].size().0 as usize);
    assert!(inspect::repair(&disks, &names, false, &mut |_| ()).is_err());
    assert!(disks[0].peek(0, disks[0].size().0 as usize) == before, "something was written");
    assert!(DropName::parse("id:12").is_err(), "an id has 32 digits");
}
