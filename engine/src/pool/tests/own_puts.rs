//! Seals of what their own batch puts.

use super::seals::{drop_seal, get_sealed};
use super::*;
use crate::path::OperationKind;
use crate::path::sim::Fault;

/// A pool in which tensor 1 stands, as version 0.
fn pool_with_one() -> (Vec<SimDisk>, Pool) {
    let disks = disks(2, ByteCount::mib(8));
    let pool = open(&disks);
    commit(&pool, &[(1, &version(0))], &[]).unwrap();
    (disks, pool)
}

fn version(number: u64) -> Vec<u8> {
    bytes(100 + number, 70_000)
}

fn add(batch: &mut Batch, id: u128, content: &[u8]) -> Ticket {
    batch.put(TensorId(id), Source::from(content.to_vec()), PutOptions::default()).unwrap()
}

fn seal(batch: &mut Batch, name: &str, ids: &[u128]) {
    batch.seal(name, ids.iter().map(|id| TensorId(*id))).unwrap();
}

/// Checks both now and once the pool was opened again.
fn shows(disks: &[SimDisk], pool: &Pool, check: impl Fn(&Pool)) -> Pool {
    pool.audit().unwrap();
    check(pool);
    pool.close().unwrap();
    assert_eq!(inspect::check(disks, false, &mut |_| ()).unwrap().damage, []);
    let pool = open(disks);
    pool.audit().unwrap();
    check(&pool);
    pool
}

#[test]
fn a_seal_holds_what_its_batch_has_put_before_it_and_else_what_stands() {
    let (disks, pool) = pool_with_one();
    put(&pool, 3, &bytes(3, 5_000));
    let mut batch = pool.batch();
    add(&mut batch, 1, &version(1));
    add(&mut batch, 2, &bytes(2, 9_000));
    seal(&mut batch, "after", &[2, 3, 1]);
    batch.commit().unwrap();
    let pool = shows(&disks, &pool, |pool| {
        assert_eq!(get(pool, 1), Some(version(1)));
        assert_eq!(get_sealed(pool, "after", 1), version(1));
        assert_eq!(get_sealed(pool, "after", 2), bytes(2, 9_000));
        assert_eq!(get_sealed(pool, "after", 3), bytes(3, 5_000));
    });
    assert_eq!(pool.stats().unwrap().space.sealed.0, 8192, "of what stands nothing is twice");
    // What is put after it is not in it.
    let mut batch = pool.batch();
    seal(&mut batch, "before", &[1]);
    add(&mut batch, 1, &version(2));
    batch.commit().unwrap();
    let pool = shows(&disks, &pool, |pool| {
        assert_eq!(get(pool, 1), Some(version(2)));
        assert_eq!(get_sealed(pool, "before", 1), version(1));
    });
    drop_seal(&pool, "after");
    drop_seal(&pool, "before");
    commit(&pool, &[], &[1, 2]).unwrap();
    assert_eq!(space(&pool).live.0, 0);
}

#[test]
fn what_the_batch_changes_again_is_held_as_it_was_sealed() {
    let (disks, pool) = pool_with_one();
    let mut batch = pool.batch();
    add(&mut batch, 1, &version(1));
    seal(&mut batch, "first", &[1]);
    seal(&mut batch, "twin", &[1]);
    add(&mut batch, 1, &version(2));
    seal(&mut batch, "second", &[1]);
    add(&mut batch, 1, &version(3));
    add(&mut batch, 2, &[]);
    add(&mut batch, 4, &version(4));
    seal(&mut batch, "gone", &[2, 4]);
    batch.delete(TensorId(2)).unwrap();
    batch.delete(TensorId(4)).unwrap();
    batch.commit().unwrap();
    let pool = shows(&disks, &pool, |pool| {
        assert_eq!((get(pool, 1), get(pool, 2), get(pool, 4)), (Some(version(3)), None, None));
        for (name, number) in [("first", 1), ("twin", 1), ("second", 2)] {
            assert_eq!(get_sealed(pool, name, 1), version(number), "{name}");
        }
        assert_eq!(get_sealed(pool, "gone", 2), []);
        assert_eq!(get_sealed(pool, "gone", 4), version(4));
    });
    let rounded = 70_000_u64.next_multiple_of(4096);
    assert_eq!(space(&pool).live.0, 4 * rounded);
    for (name, left) in [("twin", 4), ("first", 3), ("second", 2), ("gone", 1)] {
        drop_seal(&pool, name);
        assert_eq!(space(&pool).live.0, left * rounded, "without {name}");
    }
}

#[test]
fn seals_that_the_batch_takes_back_hold_nothing_of_it() {
    let (disks, pool) = pool_with_one();
    let mut batch = pool.batch();
    add(&mut batch, 1, &version(1));
    seal(&mut batch, "a", &[1]);
    add(&mut batch, 1, &version(2));
    seal(&mut batch, "a", &[1]);
    seal(&mut batch, "b", &[1]);
    batch.drop_seal("b").unwrap();
    batch.commit().unwrap();
    let pool = shows(&disks, &pool, |pool| {
        assert_eq!(get_sealed(pool, "a", 1), version(2));
        assert_eq!(pool.seals().unwrap().len(), 1);
        assert_eq!(space(pool).live.0, 70_000_u64.next_multiple_of(4096));
    });
    // So does a batch that is given up.
    let before = pool.stats().unwrap().index;
    let mut batch = pool.batch();
    let first = add(&mut batch, 1, &version(3));
    seal(&mut batch, "c", &[1]);
    let second = add(&mut batch, 1, &version(4));
    drop(batch);
    assert!([first, second].iter().all(|write| write.wait().is_ok()));
    pool.audit().unwrap();
    assert_eq!(pool.stats().unwrap().index, before);
}

#[test]
fn what_the_batch_has_deleted_is_refused_and_a_seal_to_make_it_from_comes_first() {
    let (disks, pool) = pool_with_one();
    let mut batch = pool.batch();
    seal(&mut batch, "old", &[1]);
    batch.commit().unwrap();
    let mut batch = pool.batch();
    batch.delete(TensorId(1)).unwrap();
    let refused = batch.seal("x", [TensorId(1)]);
    assert!(matches!(refused, Err(SealError::Unknown { .. })), "{refused:?}");
    add(&mut batch, 1, &version(1));
    add(&mut batch, 2, &version(2));
    batch.seal_from("mixed", "old", [TensorId(1), TensorId(2)]).unwrap();
    batch.commit().unwrap();
    shows(&disks, &pool, |pool| {
        assert_eq!(get_sealed(pool, "mixed", 1), version(0));
        assert_eq!(get_sealed(pool, "mixed", 2), version(2));
        assert_eq!(get(pool, 1), Some(version(1)));
    });
}

#[test]
fn a_power_cut_leaves_puts_and_their_seal_together_or_neither() {
    for operations in 0..12 {
        let disks = formatted([SimProfile::default(), SimProfile::default()]);
        let pool = open(&disks);
        commit(&pool, &[(1, &version(0))], &[]).unwrap();
        let mut batch = pool.batch();
        seal(&mut batch, "old", &[1]);
        batch.commit().unwrap();
        SimDisk::cut_power_at(&disks, operations, PowerCut::Torn(operations));
        let mut batch = pool.batch();
        let source = Source::from(version(1));
        let returned = batch.put(TensorId(1), source, PutOptions::default()).is_ok()
            && batch.seal("new", [TensorId(1)]).is_ok()
            && batch.commit().is_ok();
        drop(pool);
        cut_power(&disks, PowerCut::Torn(operations));
        let pool = open(&disks);
        let there = pool.seals().unwrap().iter().any(|seal| seal.name == "new");
        assert!(there || !returned, "operation {operations}: it had returned");
        assert_eq!(get(&pool, 1), Some(version(u64::from(there))), "operation {operations}");
        if there {
            assert_eq!(get_sealed(&pool, "new", 1), version(1), "operation {operations}");
        }
        pool.audit().unwrap();
    }
}

#[test]
fn a_write_that_fails_fails_its_batch_with_the_seal_and_costs_nothing() {
    let (disks, pool) = pool_with_one();
    let before = (pool.stats().unwrap().index, space(&pool));
    disks[0].plan_fault(OperationKind::Write, 0, Fault::Errno(libc::EREMOTEIO));
    let mut batch = pool.batch();
    let write = add(&mut batch, 1, &version(1));
    let sealed = batch.seal("x", [TensorId(1)]);
    // Also while the put has failed, and the batch has not.
    write.wait().unwrap_err();
    pool.audit().unwrap();
    let ended = batch.commit();
    assert!(matches!(ended, Err(CommitError::Write { .. })), "{sealed:?} {ended:?}");
    assert_eq!(get(&pool, 1), Some(version(0)));
    assert!(pool.seals().unwrap().is_empty());
    assert_eq!((pool.stats().unwrap().index, space(&pool)), before);
}

#[test]
fn a_commit_in_doubt_keeps_the_puts_that_its_seal_holds() {
    let (disks, pool) = pool_with_one();
    let mut batch = pool.batch();
    seal(&mut batch, "old", &[1]);
    batch.commit().unwrap();
    let mut batch = pool.batch();
    add(&mut batch, 1, &version(1));
    seal(&mut batch, "new", &[1]);
    add(&mut batch, 1, &version(2));
    let written = space(&pool);
    assert!(written.live.0 > 0);
    for disk in &disks {
        disk.plan_fault(OperationKind::Flush, 0, Fault::Errno(libc::EIO));
    }
    let ended = batch.commit();
    assert!(ended.is_err(), "{ended:?}");
    pool.audit().unwrap();
    drop(pool);
    let pool = open(&disks);
    let there = pool.seals().unwrap().iter().any(|seal| seal.name == "new");
    assert_eq!(get(&pool, 1), Some(version(if there { 2 } else { 0 })));
    if there {
        assert_eq!(get_sealed(&pool, "new", 1), version(1));
    }
}
