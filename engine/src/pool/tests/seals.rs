//! Seals: what stood when they were made is there as it was, whatever happens to the tensors.

use super::*;
use crate::path::OperationKind;
use crate::path::sim::Fault;

pub(super) fn seal(pool: &Pool, name: &str, ids: &[u128]) -> Result<(), CommitError> {
    let mut batch = pool.batch();
    batch.seal(name, ids.iter().map(|id| TensorId(*id))).unwrap();
    batch.commit()
}

pub(super) fn drop_seal(pool: &Pool, name: &str) {
    let mut batch = pool.batch();
    batch.drop_seal(name).unwrap();
    batch.commit().unwrap();
}

pub(super) fn get_sealed(pool: &Pool, name: &str, id: u128) -> Vec<u8> {
    let tensors = pool.sealed_tensors(name).unwrap();
    let length = tensors.iter().find(|it| it.id == TensorId(id)).unwrap().length.0;
    let memory = Destination::buffer(length as usize);
    let (range, urgency) = (0..length, Urgency::Urgent);
    let ticket = pool.get_sealed(name, TensorId(id), range, memory, urgency, None).unwrap();
    ticket.wait().unwrap();
    ticket.take_bytes().unwrap()
}

fn names(pool: &Pool) -> Vec<String> {
    pool.seals().unwrap().into_iter().map(|seal| seal.name).collect()
}

#[test]
fn what_a_seal_holds_outlives_updates_deletions_and_the_process() {
    let disks = disks(2, ByteCount::mib(8));
    let pool = open(&disks);
    let (scratch, durable) = (bytes(1, 100_000), bytes(2, 50_001));
    put(&pool, 1, &scratch);
    commit(&pool, &[(2, &durable)], &[]).unwrap();
    let before = pool.stats().unwrap();
    seal(&pool, "first", &[1, 2]).unwrap();
    let after = pool.stats().unwrap();
    assert_eq!(after.written.scratch, before.written.scratch);
    assert_eq!(
        (after.written.durable, after.space.live),
        (before.written.durable, before.space.live)
    );
    assert_eq!(after.space.sealed.0, 0, "all that it holds stands");
    put(&pool, 1, &bytes(3, 100_000));
    commit(&pool, &[], &[2]).unwrap();
    let check = |pool: &Pool| {
        assert_eq!(get_sealed(pool, "first", 1), scratch);
        assert_eq!(get_sealed(pool, "first", 2), durable);
        assert!(pool.stats().unwrap().space.sealed.0 >= 150_000);
        pool.audit().unwrap();
    };
    check(&pool);
    assert_eq!(get(&pool, 1).unwrap(), bytes(3, 100_000));
    drop(pool);
    let pool = open(&disks);
    check(&pool);
    assert_eq!(get(&pool, 1), None, "scratch tensors end with the process");
    let [described] = &pool.seals().unwrap()[..] else { panic!("one seal") };
    assert_eq!((described.tensors, described.bytes.0), (2, 150_001));
    assert_eq!(described.alone, pool.stats().unwrap().space.sealed);
    drop_seal(&pool, "first");
    assert_eq!((names(&pool), space(&pool).live.0), (vec![], 0));
    assert!(matches!(pool.sealed_tensors("first"), Err(SealError::Absent(_))));
}

#[test]
fn a_seal_of_a_seal_holds_what_that_one_does_and_of_the_rest_what_stands() {
    let disks = disks(2, ByteCount::mib(8));
    let pool = open(&disks);
    let (old, gone, new) = (bytes(1, 70_000), bytes(2, 40_000), bytes(3, 70_000));
    put(&pool, 1, &old);
    put(&pool, 2, &gone);
    put(&pool, 3, &bytes(4, 60_000));
    seal(&pool, "staged", &[1, 2, 3]).unwrap();
    put(&pool, 1, &new);
    pool.delete(TensorId(2)).unwrap();
    put(&pool, 4, &bytes(5, 9));
    let from = |from: &str, ids: &[u128]| {
        let mut batch = pool.batch();
        batch.seal_from("part", from, ids.iter().map(|id| TensorId(*id)))?;
        batch.drop_seal("staged")?;
        batch.commit().unwrap();
        Ok(())
    };
    assert!(matches!(from("missing", &[1]), Err(SealError::Absent(name)) if name == "missing"));
    assert!(matches!(from("staged", &[5]), Err(SealError::Unknown { .. })));
    assert_eq!(names(&pool), ["staged"]);
    from("staged", &[1, 2, 4]).unwrap();
    let check = |pool: &Pool| {
        assert_eq!(names(pool), ["part"]);
        for (id, wanted) in [(1, &old), (2, &gone), (4, &bytes(5, 9))] {
            assert_eq!(&get_sealed(pool, "part", id), wanted, "{id}");
        }
        pool.audit().unwrap();
    };
    check(&pool);
    assert_eq!(get(&pool, 1), Some(new));
    drop(pool);
    let pool = open(&disks);
    check(&pool);
    drop_seal(&pool, "part");
    assert_eq!(space(&pool).live.0, 0);
}

#[test]
fn a_version_stays_until_its_last_seal_is_gone() {
    let disks = disks(1, ByteCount::mib(8));
    let pool = open(&disks);
    let old = bytes(1, 70_000);
    put(&pool, 1, &old);
    put(&pool, 2, &bytes(2, 5));
    seal(&pool, "a", &[1]).unwrap();
    let index = pool.stats().unwrap().index.live.0;
    seal(&pool, "b", &[1, 2]).unwrap();
    seal(&pool, "c", &[1]).unwrap();
    let more = pool.stats().unwrap().index.live.0 - index;
    assert!(more < 250, "what is held already costs its number, not {more} bytes");
    put(&pool, 1, &bytes(3, 70_000));
    for (dropped, left) in [("a", vec!["b", "c"]), ("c", vec!["b"])] {
        drop_seal(&pool, dropped);
        assert_eq!(names(&pool), left);
        assert_eq!(get_sealed(&pool, "b", 1), old);
    }
    drop(pool);
    let pool = open(&disks);
    assert_eq!(get_sealed(&pool, "b", 1), old);
    drop_seal(&pool, "b");
    assert_eq!(space(&pool).live.0, 0);
}

#[test]
fn a_seal_takes_the_place_of_the_one_of_its_name() {
    let disks = disks(2, ByteCount::mib(8));
    let pool = open(&disks);
    for round in 0..200 {
        put(&pool, 1, &bytes(round, 200_000));
        seal(&pool, "latest", &[1]).unwrap();
    }
    assert_eq!(names(&pool), ["latest"]);
    drop(pool);
    let pool = open(&disks);
    assert_eq!(get_sealed(&pool, "latest", 1), bytes(199, 200_000));
    assert!(space(&pool).live.0 < 250_000);
}

#[test]
fn what_cannot_be_sealed_is_refused_and_nothing_changes() {
    let disks = disks(1, ByteCount::mib(8));
    let pool = open(&disks);
    put(&pool, 1, &bytes(1, 10));
    let seal = |name: &str, ids: &[u128]| {
        let ids: Vec<_> = ids.iter().map(|id| TensorId(*id)).collect();
        pool.batch().seal(name, ids).map_err(|error| error.to_string())
    };
    assert!(seal("x", &[1, 7]).unwrap_err().contains("there is no tensor 00000000000000"));
    assert!(seal("x", &[1, 1]).unwrap_err().contains("is named twice"));
    assert!(seal("", &[1]).unwrap_err().contains("1 to 1024 bytes"));
    assert!(seal(&"x".repeat(1025), &[1]).unwrap_err().contains("not 1025"));
    assert!(matches!(pool.batch().drop_seal("x"), Err(SealError::Absent(_))));
    seal("x", &[1]).unwrap(); // and given up
    pool.delete(TensorId(1)).unwrap();
    assert_eq!((names(&pool), space(&pool).live.0), (vec![], 0));
    let usage = pool.stats().unwrap().index;
    assert_eq!((usage.live.0, usage.coming.0), (0, 0));
    let unknown =
        pool.get_sealed("x", TensorId(1), 0..0, Destination::buffer(0), Urgency::Urgent, None);
    assert!(matches!(unknown, Err(GetError::NoSeal(_))));
}

#[test]
fn pools_without_seals_stay_as_they_are_and_the_first_seal_marks_them() {
    let disks = disks(2, ByteCount::mib(8));
    let marks = || {
        let view = inspect::inspect(&disks).unwrap();
        let copies = view.devices.into_iter().flat_map(|(_, device)| device.copies);
        copies.map(|copy| copy.state.unwrap().seals).collect::<Vec<_>>()
    };
    let pool = open(&disks);
    commit(&pool, &[(1, &bytes(1, 10))], &[]).unwrap();
    assert_eq!(marks(), [false; 4]);
    seal(&pool, "x", &[1]).unwrap();
    assert_eq!(marks(), [true; 4]);
    drop(pool);
    // The owner of another share wrote what it had read before.
    for (at, disk) in disks.iter().enumerate() {
        let view = inspect::inspect(&disks).unwrap();
        let copies = &view.devices[at].1.copies;
        for copy in copies {
            let superblock = copy.state.clone().unwrap();
            let old = crate::layout::Superblock { seals: false, ..superblock };
            disk.overwrite(copy.offset.0, &old.encode());
        }
    }
    assert_eq!(marks(), [false; 4]);
    drop(open(&disks));
    assert_eq!(marks(), [true; 4], "beside a seal it is set again");
}

#[test]
fn a_full_index_refuses_a_seal_with_figures_and_a_drop_always_fits() {
    let disks = disks(1, ByteCount::mib(4));
    let pool = open(&disks);
    for id in 0..300 {
        put(&pool, id, &bytes(id as u64, 1));
    }
    let ids: Vec<u128> = (0..300).collect();
    seal(&pool, "kept", &ids).unwrap();
    let mut seals = 0;
    let refused = loop {
        let name = format!("{seals:0>1000}");
        let mut batch = pool.batch();
        match batch.seal(&name, ids.iter().map(|id| TensorId(*id))) {
            Ok(()) => batch.commit().unwrap(),
            Err(refused) => break refused,
        }
        seals += 1;
        assert!(seals < 5000, "the index has no end");
    };
    let SealError::PoolFull { needed, available, .. } = refused else { panic!("{refused}") };
    assert!(needed > available);
    pool.audit().unwrap();
    drop(pool);
    // The owner is not locked out: neither after a kill nor after a proper end.
    for _ in 0..2 {
        let pool = open(&disks);
        assert_eq!(pool.seals().unwrap().len(), seals + 1);
        pool.close().unwrap();
    }
    let pool = open(&disks);
    for dropped in 0..seals {
        drop_seal(&pool, &format!("{dropped:0>1000}"));
    }
    assert_eq!(names(&pool), ["kept"]);
    seal(&pool, "again", &[]).unwrap();
    assert_eq!(get_sealed(&pool, "kept", 299), bytes(299, 1));
}

#[test]
fn a_power_cut_leaves_a_seal_whole_or_not_at_all() {
    for operations in 0..8 {
        let disks = formatted([SimProfile::default(), SimProfile::default()]);
        let content = bytes(9, 60_000);
        let pool = open(&disks);
        put(&pool, 1, &content);
        seal(&pool, "before", &[]).unwrap();
        SimDisk::cut_power_at(&disks, operations, PowerCut::DropAll);
        let mut batch = pool.batch();
        let begun = batch.seal("x", [TensorId(1)]);
        let returned = begun.is_ok() && batch.commit().is_ok();
        drop(pool);
        cut_power(&disks, PowerCut::DropAll);
        let pool = open(&disks);
        let there = names(&pool).contains(&"x".to_owned());
        assert!(there || !returned, "operation {operations}: it had returned");
        if there {
            assert_eq!(get_sealed(&pool, "x", 1), content, "operation {operations}");
        }
        pool.audit().unwrap();
    }
}

#[test]
fn a_commit_in_doubt_keeps_what_its_seal_holds() {
    let disks = disks(1, ByteCount::mib(8));
    let pool = open(&disks);
    let content = bytes(4, 30_000);
    put(&pool, 1, &content);
    seal(&pool, "before", &[]).unwrap();
    // The first makes the data durable; the record is a forced write.
    disks[0].plan_fault(OperationKind::Write, 0, Fault::Errno(5));
    let ended = seal(&pool, "x", &[1]);
    pool.delete(TensorId(1)).unwrap();
    let live = space(&pool).live.0;
    assert!(matches!(ended, Err(CommitError::InDoubt(_))), "{ended:?}");
    assert!(live >= 30_000, "the old version may be sealed");
    drop(pool);
    let pool = open(&disks);
    if names(&pool).contains(&"x".to_owned()) {
        assert_eq!(get_sealed(&pool, "x", 1), content);
    }
}

#[test]
fn a_reader_sees_seals_and_writes_nothing() {
    let disks = disks(1, ByteCount::mib(8));
    let pool = open(&disks);
    put(&pool, 1, &bytes(1, 9000));
    seal(&pool, "x", &[1]).unwrap();
    drop(pool);
    let options = OpenOptions { read_only: true, ..quick() };
    let pool = Pool::open(&disks, &options).unwrap();
    assert_eq!(get_sealed(&pool, "x", 1), bytes(1, 9000));
    assert!(matches!(pool.batch().seal("y", [TensorId(1)]), Err(SealError::ReadOnly(_))));
    assert!(matches!(pool.batch().drop_seal("x"), Err(SealError::ReadOnly(_))));
}

#[test]
fn versions_without_bytes_are_told_apart_though_they_lie_nowhere() {
    let disks = disks(1, ByteCount::mib(8));
    let pool = open(&disks);
    for round in 0..3 {
        commit(&pool, &[(1, &[])], &[]).unwrap();
        seal(&pool, &format!("round {round}"), &[1]).unwrap();
    }
    drop(pool);
    let pool = open(&disks);
    pool.audit().unwrap();
    assert_eq!(pool.stats().unwrap().seals.versions, 3);
    drop_seal(&pool, "round 1");
    assert_eq!(get_sealed(&pool, "round 2", 1), []);
    pool.audit().unwrap();
}

#[test]
fn seals_have_the_order_of_their_commits_whatever_their_names_and_clock() {
    let disks = disks(2, ByteCount::mib(8));
    let pool = open(&disks);
    let order = |pool: &Pool| {
        let mut seals = pool.seals().unwrap();
        assert!(seals.iter().all(|seal| seal.order > 0));
        seals.sort_by_key(|seal| seal.order);
        seals.into_iter().map(|seal| seal.name).collect::<Vec<_>>()
    };
    put(&pool, 1, &bytes(1, 10_000));
    // Held in one order, committed in the other.
    let begun = |name: &str| {
        let mut batch = pool.batch();
        batch.seal(name, [TensorId(1)]).unwrap();
        batch
    };
    let [first, second] = ["step 9", "step 10"].map(begun);
    second.commit().unwrap();
    first.commit().unwrap();
    seal(&pool, "a", &[]).unwrap();
    assert_eq!(order(&pool), ["step 10", "step 9", "a"]);
    seal(&pool, "step 10", &[1]).unwrap();
    // In one record.
    let begun = ["z", "y"].map(begun).map(|batch| batch.start_commit().unwrap());
    for commit in &begun {
        commit.wait().unwrap();
    }
    let wanted = ["step 9", "a", "step 10", "z", "y"];
    assert_eq!(order(&pool), wanted);
    drop(pool);
    let pool = open(&disks);
    assert_eq!(order(&pool), wanted);
    drop_seal(&pool, "y");
    drop(pool);
    let pool = open(&disks);
    seal(&pool, "b", &[]).unwrap();
    assert_eq!(order(&pool), ["step 9", "a", "step 10", "z", "b"]);
    pool.audit().unwrap();
}
