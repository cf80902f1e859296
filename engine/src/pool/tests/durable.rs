//! Batches: whole or not at all, whatever fails when.

use super::*;
use crate::layout::{BLOCK_BYTES, NAME_BYTES_MAX};
use crate::path::sim::Fault;
use crate::path::{Feature, OperationKind};

#[test]
fn a_committed_batch_survives_a_power_cut_and_an_uncommitted_one_leaves_nothing() {
    let disks = disks(3, ByteCount::mib(4));
    let (one, two) = (bytes(1, 100_000), bytes(2, 7));
    let pool = open(&disks);
    commit(&pool, &[(1, &one), (2, &two)], &[]).unwrap();
    let mut open_batch = pool.batch();
    let source = Source::from(one.clone());
    open_batch.put(TensorId(3), source, PutOptions::default()).unwrap().wait().unwrap();
    put(&pool, 4, &one);
    cut_power(&disks, PowerCut::DropAll);
    drop(open_batch);
    drop(pool);

    let pool = open(&disks);
    assert_eq!(get(&pool, 1).unwrap(), one);
    assert_eq!(get(&pool, 2).unwrap(), two);
    assert!(!pool.contains(TensorId(3)) && !pool.contains(TensorId(4)));
    assert_eq!(space(&pool).live.0, one.len() as u64 / BLOCK_BYTES * BLOCK_BYTES + 2 * BLOCK_BYTES);

    commit(&pool, &[(1, &two)], &[2]).unwrap();
    cut_power(&disks, PowerCut::DropAll);
    drop(pool);
    let pool = open(&disks);
    assert_eq!(get(&pool, 1).unwrap(), two);
    assert!(!pool.contains(TensorId(2)));
    space(&pool);
}

#[test]
fn nothing_of_a_batch_shows_before_its_commit() {
    let pool = open(&disks(2, ByteCount::mib(4)));
    commit(&pool, &[(1, b"old")], &[]).unwrap();
    let before = space(&pool);
    let mut batch = pool.batch();
    let options = PutOptions::default;
    batch.put(TensorId(1), Source::from(b"new".to_vec()), options()).unwrap().wait().unwrap();
    batch.put(TensorId(2), Source::from(b"two".to_vec()), options()).unwrap();
    assert_eq!(get(&pool, 1).unwrap(), b"old");
    assert!(!pool.contains(TensorId(2)));
    drop(batch);
    // The second write may still be on its way; closing waits for it.
    pool.0.reactor.write().unwrap().take().unwrap().close().unwrap();
    assert_eq!(pool.0.shared.contents().audit().unwrap(), before);
}

#[test]
fn the_last_change_of_an_id_in_a_batch_counts() {
    let pool = open(&disks(2, ByteCount::mib(4)));
    commit(&pool, &[(1, b"one"), (2, b"two")], &[]).unwrap();
    let mut batch = pool.batch();
    let source = |text: &str| Source::from(text.as_bytes().to_vec());
    batch.put(TensorId(1), source("first"), PutOptions::default()).unwrap();
    batch.put(TensorId(1), source("second"), PutOptions::default()).unwrap();
    batch.delete(TensorId(2)).unwrap();
    batch.put(TensorId(2), source("again"), PutOptions::default()).unwrap();
    batch.put(TensorId(3), source("gone"), PutOptions::default()).unwrap();
    batch.delete(TensorId(3)).unwrap();
    assert_eq!(batch.delete(TensorId(4)), Err(DeleteError::Unknown(TensorId(4).into())));
    batch.commit().unwrap();
    assert_eq!(get(&pool, 1).unwrap(), b"second");
    assert_eq!(get(&pool, 2).unwrap(), b"again");
    assert!(!pool.contains(TensorId(3)));
    assert_eq!(space(&pool).live.0, 2 * BLOCK_BYTES);
}

#[test]
fn scratch_and_durable_keep_out_of_each_others_way() {
    let pool = open(&disks(2, ByteCount::mib(4)));
    commit(&pool, &[(1, b"durable")], &[]).unwrap();
    assert!(matches!(start_put(&pool, 1, b"scratch"), Err(PutError::IsDurable(_))));
    assert_eq!(pool.delete(TensorId(1)), Err(DeleteError::IsDurable(TensorId(1).into())));
    put(&pool, 2, b"scratch");
    assert_eq!(pool.batch().delete(TensorId(2)), Err(DeleteError::Unknown(TensorId(2).into())));
    commit(&pool, &[(2, b"durable now")], &[]).unwrap();
    assert_eq!(get(&pool, 2).unwrap(), b"durable now");
    // The audit refuses segments that hold both kinds.
    space(&pool);
}

#[test]
fn names_are_stored_and_long_ones_refused() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let mut batch = pool.batch();
    batch.put("layer.0.weight", Source::from(vec![1]), PutOptions::default()).unwrap();
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    let refused = batch.put(long.as_str(), Source::from(vec![1]), PutOptions::default());
    assert!(matches!(refused, Err(PutError::NameTooLong(1025))));
    batch.commit().unwrap();
    drop(pool);
    let pool = open(&disks);
    let id = TensorId::from_name("layer.0.weight");
    assert_eq!(pool.durable_tensors().unwrap(), [(id, Some("layer.0.weight".into()))]);
    let mut batch = pool.batch();
    let impostor = TensorKey { id, name: Some("layer.1.weight".into()) };
    let refused = batch.put(impostor, Source::from(vec![1]), PutOptions::default());
    assert!(matches!(refused, Err(PutError::NameCollision { .. })));
}

#[test]
fn a_write_that_fails_fails_its_batch_and_costs_nothing() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    commit(&pool, &[(1, b"old")], &[]).unwrap();
    let before = space(&pool);
    disks[0].plan_fault(OperationKind::Write, 0, Fault::Errno(5));
    let content = bytes(1, 200_000);
    let failed = commit(&pool, &[(1, &content), (2, &content)], &[]);
    assert!(matches!(failed, Err(CommitError::Write { .. })), "{failed:?}");
    assert_eq!(get(&pool, 1).unwrap(), b"old");
    drop(pool);
    let pool = open(&disks);
    assert_eq!(get(&pool, 1).unwrap(), b"old");
    assert_eq!(space(&pool).live, before.live);
}

#[test]
fn a_commit_whose_log_write_fails_is_in_doubt_until_the_pool_is_opened_again() {
    // Data flushes of two devices come first, then the writes of the log: forced, or, where the
    // first commit has found out that the disks refuse that, written and flushed.
    let (write, flush) = (OperationKind::Write, OperationKind::Flush);
    for (forced_writes, kind, nth) in
        [(true, flush, 0), (true, write, 1), (false, write, 1), (false, flush, 1)]
    {
        for device in 0..2 {
            for cut in [PowerCut::DropAll, PowerCut::KeepAll, PowerCut::Torn(nth)] {
                let profile = SimProfile { forced_writes, ..SimProfile::default() };
                let disks = formatted([profile; 2]);
                let pool = open(&disks);
                commit(&pool, &[(1, b"old"), (2, b"kept")], &[]).unwrap();
                let forced = pool.stats().unwrap().commits.forced_records;
                assert_eq!(forced == Feature::On, forced_writes, "{forced:?}");
                // One piece of data on each device, so that counting is easy.
                let new = bytes(9, 20_000);
                disks[device].plan_fault(kind, nth, Fault::Errno(5));
                let failed = commit(&pool, &[(1, &new), (3, b"new")], &[2]);
                assert!(failed.is_err(), "{kind} {nth} of disk {device}");
                assert_eq!(get(&pool, 1).unwrap(), b"old");
                assert_eq!(get(&pool, 2).unwrap(), b"kept");
                if matches!(failed, Err(CommitError::InDoubt(_))) {
                    let again = commit(&pool, &[], &[2]);
                    assert!(matches!(again, Err(CommitError::Stopped(_))), "{again:?}");
                }
                space(&pool);
                cut_power(&disks, cut);
                drop(pool);

                let pool = open(&disks);
                let state = [get(&pool, 1), get(&pool, 2), get(&pool, 3)];
                let before = [Some(b"old".to_vec()), Some(b"kept".to_vec()), None];
                let after = [Some(new), None, Some(b"new".to_vec())];
                assert!(
                    state == before || state == after,
                    "{kind} {nth} of disk {device}, {cut:?}"
                );
                space(&pool);
                commit(&pool, &[(1, b"newer")], &[]).unwrap();
            }
        }
    }
}

#[test]
fn after_a_commit_in_doubt_each_device_alone_has_the_index_again() {
    let mut halves = 0;
    for (broken, kept) in [(0, 1), (1, 0)] {
        for nth in 0..4 {
            let disks = disks(2, ByteCount::mib(4));
            let pool = open(&disks);
            commit(&pool, &[(1, b"old")], &[]).unwrap();
            drop(pool);
            let pool = open(&disks);
            commit(&pool, &[(1, b"older")], &[]).unwrap();
            disks[broken].plan_fault(OperationKind::Write, nth, Fault::Errno(5));
            let failed = commit(&pool, &[(2, b"new")], &[]);
            cut_power(&disks, PowerCut::KeepAll);
            disks.iter().for_each(SimDisk::clear_faults);
            drop(pool);
            let pool = open(&disks);
            // Its record is on one device only.
            let half = matches!(failed, Err(CommitError::InDoubt(_))) && pool.contains(TensorId(2));
            halves += u32::from(half);
            commit(&pool, &[(3, b"newest")], &[]).unwrap();
            let survives = pool.contains(TensorId(2));
            drop(pool);

            let geometry = Pool::open(&disks, &quick()).unwrap().description().geometry;
            for slot in geometry.share(0).unwrap().slots {
                disks[kept].rot(slot.checkpoint_offset, 1);
                for block in 0..slot.log_bytes / BLOCK_BYTES {
                    disks[kept].rot(slot.log_offset + block * BLOCK_BYTES, 1);
                }
            }
            let pool = open(&disks);
            assert_eq!(pool.contains(TensorId(2)), survives, "write {nth} of disk {broken}");
            assert_eq!(get(&pool, 3).unwrap(), b"newest");
        }
    }
    assert!(halves > 0, "no fault struck between the two copies");
}

#[test]
fn many_commits_and_reopenings_leak_nothing() {
    let disks = disks(2, ByteCount::mib(4));
    let content = bytes(5, 9_000);
    for round in 0..60 {
        let pool = open(&disks);
        for step in 0..20 {
            commit(&pool, &[(step % 3, &content), (step % 2 + 10, b"x")], &[]).unwrap();
        }
        let space = space(&pool);
        assert_eq!(space.live.0, (3 * 3 + 2) * BLOCK_BYTES, "round {round}");
        assert!(space.free.0 > space.capacity.0 / 2, "round {round}: {space:?}");
    }
}

#[test]
fn a_damaged_superblock_copy_is_repaired_and_reported() {
    let disks = disks(2, ByteCount::mib(4));
    let second = Pool::open(&disks, &quick()).unwrap().description().geometry;
    disks[0].rot(BLOCK_BYTES + 40, 1);
    disks[1].rot(second.second_superblock_offset() + 9, 1);
    let pool = open(&disks);
    let repaired = pool.stats().unwrap().repaired_superblocks;
    assert_eq!(repaired, ["sim0 copy A", "sim1 copy B"]);
    drop(pool);
    assert!(open(&disks).stats().unwrap().repaired_superblocks.is_empty());
}
