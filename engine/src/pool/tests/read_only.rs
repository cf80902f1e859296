//! A pool that is open for reading only: everything durable can be read, and nothing is written.

use super::*;

fn to_read() -> OpenOptions {
    OpenOptions { staging: ByteCount::kib(256), read_only: true, ..quick() }
}

fn images(disks: &[SimDisk]) -> Vec<Vec<u8>> {
    disks.iter().map(|disk| disk.peek(0, disk.size().0 as usize)).collect()
}

/// Writes, flushes and everything else that is no read.
fn changes(disks: &[SimDisk]) -> Vec<u64> {
    let of = |disk: &SimDisk| {
        let counted = disk.counters();
        counted.writes + counted.flushes
    };
    disks.iter().map(of).collect()
}

#[test]
fn it_reads_and_scrubs_what_is_durable_and_refuses_changes_by_name() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    let content = bytes(1, 100_000);
    commit(&pool, &[(1, &content), (2, b"small")], &[]).unwrap();
    put(&pool, 3, b"scratch");
    pool.close().unwrap();
    let (before, counted) = (images(&disks), changes(&disks));

    let pool = Pool::open(&disks, &to_read()).unwrap();
    assert!(pool.is_read_only());
    assert_eq!(get(&pool, 1).unwrap(), content);
    assert_eq!(get(&pool, 2).unwrap(), b"small");
    assert_eq!(get(&pool, 3), None, "scratch tensors are of the process that put them");
    assert_eq!(pool.durable_tensors().unwrap().len(), 2);
    assert_eq!(pool.scrub().unwrap().tensors, 2);
    space(&pool);

    let refused = start_put(&pool, 4, b"more").unwrap_err();
    assert!(matches!(refused, PutError::ReadOnly(_)), "{refused}");
    let mut batch = pool.batch();
    let source = || Source::from(b"more".to_vec());
    let refused = batch.put("layer.0", source(), PutOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("\"layer.0\" cannot be put"), "{refused}");
    assert_eq!(
        batch.delete(TensorId(1)),
        Err(DeleteError::ReadOnly(TensorId(1).into())),
        "a durable one"
    );
    assert_eq!(pool.delete(TensorId(1)), Err(DeleteError::ReadOnly(TensorId(1).into())));
    batch.commit().unwrap();
    assert_eq!(pool.reclaim_once().unwrap(), None);
    assert_eq!(pool.reclaim_ahead().unwrap(), None);
    assert_eq!(pool.discard_once().unwrap(), None);
    assert_eq!(get(&pool, 1).unwrap(), content);
    pool.close().unwrap();
    assert!(images(&disks) == before, "a byte has changed");
    assert_eq!(changes(&disks), counted, "not even a flush");
}

#[test]
fn what_a_crash_left_is_read_as_the_next_writer_will_find_it_and_stays() {
    for seed in 0..40 {
        let disks = disks(2, ByteCount::mib(4));
        let pool = open(&disks);
        commit(&pool, &[(1, &bytes(1, 30_000))], &[]).unwrap();
        SimDisk::cut_power_at(&disks, seed % 20, PowerCut::Torn(seed));
        for id in 2..6 {
            let content = bytes(id as u64, 20_000);
            let mut batch = pool.batch();
            // After the power cut nothing is taken any more.
            let put = batch.put(TensorId(id), Source::from(content), PutOptions::default());
            let _ = put.is_ok() && batch.delete(TensorId(1)).is_ok();
            let _ = batch.commit();
        }
        drop(pool);
        assert!(disks[0].is_off(), "seed {seed}");
        let before = images(&disks);
        let seen = {
            let pool = Pool::open(&disks, &to_read()).unwrap();
            let tensors = pool.durable_tensors().unwrap();
            tensors.iter().map(|(id, _)| (*id, get(&pool, id.0))).collect::<Vec<_>>()
        };
        assert!(images(&disks) == before, "a byte has changed");
        let pool = open(&disks);
        let found = pool.durable_tensors().unwrap();
        let found: Vec<_> = found.iter().map(|(id, _)| (*id, get(&pool, id.0))).collect();
        assert_eq!(seen, found, "seed {seed}");
    }
}

#[test]
fn a_damaged_superblock_is_read_past_and_not_repaired() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    commit(&pool, &[(1, b"bytes")], &[]).unwrap();
    pool.close().unwrap();
    disks[1].rot(crate::layout::SUPERBLOCK_OFFSET, 0xFF);
    let before = images(&disks);
    let pool = Pool::open(&disks, &to_read()).unwrap();
    assert_eq!(get(&pool, 1).unwrap(), b"bytes");
    assert!(pool.stats().unwrap().repaired_superblocks.is_empty());
    drop(pool);
    assert!(images(&disks) == before, "a byte has changed");
    assert_eq!(open(&disks).stats().unwrap().repaired_superblocks.len(), 1);
}

#[test]
fn an_older_copy_of_a_device_is_refused_to_readers_too() {
    let disks = disks(2, ByteCount::mib(4));
    drop(open(&disks));
    let old = disks[1].peek(0, disks[1].size().0 as usize);
    let pool = open(&disks);
    commit(&pool, &[(1, b"bytes")], &[]).unwrap();
    pool.close().unwrap();
    disks[1].overwrite(0, &old);
    let refused = Pool::open(&disks, &to_read()).map(drop).unwrap_err();
    assert!(matches!(refused, OpenError::OlderCopy { .. }), "{refused}");
    let accepting = OpenOptions { accept_older_copies: true, ..to_read() };
    assert!(Pool::open(&disks, &accepting).is_ok());
}
