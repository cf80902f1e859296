//! Commits in flight: several at once, in order, each whole.

use super::*;
use crate::path::sim::Fault;
use crate::path::{Feature, OperationKind};

/// A pool that moves only while somebody waits.
fn stepped(disks: &[SimDisk]) -> Pool {
    let options = OpenOptions { staging: ByteCount::kib(256), stepped: true, ..quick() };
    Pool::open(disks, &options).unwrap()
}

/// Starts a commit.
fn start(pool: &Pool, puts: &[(u128, &[u8])], deletes: &[u128]) -> Commit {
    batch(pool, puts, deletes).start_commit().unwrap()
}

fn stats(pool: &Pool) -> CommitStats {
    pool.stats().unwrap().commits
}

#[test]
fn commits_that_wait_together_share_one_record() {
    let pool = stepped(&disks(2, ByteCount::mib(4)));
    // The first finds the pipeline empty; the others gather behind it.
    let commits: Vec<Commit> =
        (0..8).map(|id| start(&pool, &[(id, &bytes(id as u64, 5000))], &[])).collect();
    commits.last().unwrap().wait().unwrap();
    assert!(commits.iter().all(|commit| matches!(commit.poll(), Some(Ok(())))));
    let stats = stats(&pool);
    assert_eq!(stats.commits, 8);
    // What two rounds have flushed while a record was on its way shares the next record.
    assert!(stats.records + stats.checkpoints <= stats.flush_rounds, "{stats:?}");
    assert!(stats.flush_rounds < 8 && stats.group_max > 1, "{stats:?}");
    space(&pool);
}

#[test]
fn a_commit_in_flight_is_waited_for_like_a_transfer() {
    let disks = disks(1, ByteCount::mib(4));
    let pool = open(&disks);
    let batch = batch(&pool, &[(1, b"bytes")], &[]);
    disks[0].hold();
    let commit = batch.start_commit().unwrap();
    assert!(commit.wait_timeout(Duration::from_millis(10)).is_none() && commit.poll().is_none());
    let read = {
        disks[0].release();
        commit.ticket().wait().unwrap();
        start_get(&pool, 1, 0..5)
    };
    assert!(matches!(commit.poll(), Some(Ok(()))), "it is known once the ticket has ended");
    assert!(matches!(commit.wait_timeout(Duration::ZERO), Some(Ok(()))));
    let both = [&read, commit.ticket()];
    read.wait().unwrap();
    assert_eq!(Ticket::wait_any(&both, Duration::MAX), Some(0));
    assert_eq!(Ticket::wait_any(&both[1..], Duration::MAX), Some(0));
}

#[test]
fn in_a_simulation_whoever_waits_for_the_first_moves_it() {
    let pool = stepped(&disks(2, ByteCount::mib(4)));
    let put = start_put(&pool, 7, &bytes(7, 50_000)).unwrap();
    let commit = start(&pool, &[(1, b"bytes")], &[]);
    let tickets = [&put, commit.ticket()];
    let first = Ticket::wait_any(&tickets, Duration::MAX).expect("something ends");
    assert!(tickets[first].poll().is_some());
    commit.wait().unwrap();
    put.wait().unwrap();
}

#[test]
fn the_next_groups_data_is_flushed_while_a_record_is_on_its_way() {
    let disks = disks(1, ByteCount::mib(4));
    let pool = stepped(&disks);
    let mut batches = [pool.batch(), pool.batch()];
    for (id, batch) in (1..).zip(&mut batches) {
        let source = Source::from(b"bytes".to_vec());
        batch.put(TensorId(id), source, PutOptions::default()).unwrap().wait().unwrap();
    }
    let [first, second] = batches;
    let flushes = disks[0].counters().flushes;
    let first = first.start_commit().unwrap();
    while disks[0].counters().flushes == flushes {
        assert!(pool.step(1).unwrap());
    }
    disks[0].hold();
    let second = second.start_commit().unwrap();
    pool.step(u64::MAX).unwrap();
    assert_eq!(disks[0].in_flight(), 2, "the record of one, the flush of the other");
    assert!(first.poll().is_none() && second.poll().is_none());
    disks[0].release();
    second.wait().unwrap();
    assert!(matches!(first.poll(), Some(Ok(()))));
    assert_eq!(disks[0].counters().forced_writes, 2);
}

#[test]
fn a_power_cut_leaves_the_commits_up_to_some_one() {
    let mut seen = std::collections::BTreeSet::new();
    for nth in 0.. {
        let disks = disks(2, ByteCount::mib(4));
        let pool = stepped(&disks);
        commit(&pool, &[(9, b"stays")], &[]).unwrap();
        SimDisk::cut_power_at(&disks, nth, PowerCut::Torn(nth));
        let mut commits = Vec::new();
        for id in 0..6 {
            let content = bytes(id as u64, 9000);
            let mut batch = pool.batch();
            let source = Source::from(content);
            batch.put(TensorId(id), source, PutOptions::default()).unwrap();
            commits.push(batch.start_commit().unwrap());
            pool.step(3).unwrap();
        }
        let ended: Vec<_> = commits.iter().map(Commit::wait).collect();
        if !disks[0].is_off() {
            break;
        }
        drop(pool);
        let pool = open(&disks);
        let there: Vec<bool> = (0..6).map(|id| pool.contains(TensorId(id))).collect();
        let count = there.iter().filter(|there| **there).count();
        assert!(there[..count].iter().all(|there| *there), "cut at {nth}: {there:?}");
        for (id, ended) in ended.iter().enumerate() {
            match ended {
                Ok(()) => assert!(there[id], "cut at {nth}: {id} was acknowledged"),
                Err(CommitError::InDoubt(_)) => (),
                Err(_) => assert!(!there[id], "cut at {nth}: {id} had failed"),
            }
            if there[id] {
                assert_eq!(get(&pool, id as u128).unwrap(), bytes(id as u64, 9000));
            }
        }
        assert_eq!(get(&pool, 9).unwrap(), b"stays");
        space(&pool);
        seen.insert(count);
    }
    assert!(seen.len() >= 3, "cuts left {seen:?} commits: there should be more to see");
}

#[test]
fn a_later_commit_in_flight_replaces_and_deletes_what_an_earlier_one_puts() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = stepped(&disks);
    commit(&pool, &[(1, b"old"), (2, b"two")], &[]).unwrap();
    let commits = [
        start(&pool, &[(1, b"new"), (3, b"three")], &[2]),
        start(&pool, &[(1, b"newer")], &[3]),
        start(&pool, &[(2, b"again")], &[1]),
    ];
    let mut batch = pool.batch();
    for gone in [1, 3] {
        assert_eq!(batch.delete(TensorId(gone)), Err(DeleteError::Unknown(TensorId(gone).into())));
    }
    batch.delete(TensorId(2)).unwrap();
    drop(batch);
    assert_eq!(get(&pool, 1).unwrap(), b"old", "nothing shows before it is durable");
    assert!(commits.iter().all(|commit| commit.wait().is_ok()));
    let state = |pool: &Pool| [get(pool, 1), get(pool, 2), get(pool, 3)];
    let expected = [None, Some(b"again".to_vec()), None];
    assert_eq!(state(&pool), expected);
    assert_eq!(space(&pool).live.0, 4096);
    cut_power(&disks, PowerCut::DropAll);
    drop(pool);
    assert_eq!(state(&open(&disks)), expected);
}

#[test]
fn a_commit_that_fails_takes_nobody_with_it_and_what_it_would_have_deleted_stays() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = stepped(&disks);
    commit(&pool, &[(1, b"one")], &[]).unwrap();
    let mut fails = pool.batch();
    fails.delete(TensorId(1)).unwrap();
    let ticket = fails.put(TensorId(2), Source::from(vec![7; 200_000]), PutOptions::default());
    ticket.unwrap().cancel();
    let fails = fails.start_commit().unwrap();
    let holds = start(&pool, &[(3, b"three")], &[]);
    holds.wait().unwrap();
    assert!(matches!(fails.poll(), Some(Err(CommitError::Write { .. }))), "{fails:?}");
    assert_eq!(get(&pool, 1).unwrap(), b"one");
    assert_eq!(space(&pool).live.0, 2 * 4096);
}

#[test]
fn a_commit_that_nobody_follows_is_carried_out_and_closing_waits_for_it() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = stepped(&disks);
    drop(start(&pool, &[(1, b"dropped")], &[]));
    pool.step(u64::MAX).unwrap();
    assert_eq!(get(&pool, 1).unwrap(), b"dropped");
    let mut batch = pool.batch();
    batch.put(TensorId(2), Source::from(b"closed".to_vec()), PutOptions::default()).unwrap();
    let commit = batch.start_commit().unwrap();
    let late = pool.batch();
    pool.close().unwrap();
    assert!(matches!(commit.poll(), Some(Ok(()))), "{commit:?}");
    assert!(matches!(late.start_commit(), Err(CommitError::Unusable(Unusable::Closed))));
    cut_power(&disks, PowerCut::DropAll);
    let pool = open(&disks);
    assert_eq!(get(&pool, 2).unwrap(), b"closed");
}

#[test]
fn after_a_record_that_fails_nothing_behind_it_is_there() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = stepped(&disks);
    commit(&pool, &[(1, b"one")], &[]).unwrap();
    let mut batches: Vec<Batch> = (2..5).map(|_| pool.batch()).collect();
    for (id, batch) in (2..5).zip(&mut batches) {
        let source = Source::from(b"new".to_vec());
        batch.put(TensorId(id), source, PutOptions::default()).unwrap().wait().unwrap();
    }
    disks[1].plan_fault(OperationKind::Write, 0, Fault::Errno(5));
    let commits: Vec<Commit> = batches.into_iter().map(|it| it.start_commit().unwrap()).collect();
    assert!(matches!(commits[0].wait(), Err(CommitError::InDoubt(_))));
    for later in &commits[1..] {
        assert!(matches!(later.wait(), Err(CommitError::Stopped(_))), "{later:?}");
    }
    let empty = pool.batch().commit();
    assert!(matches!(empty, Err(CommitError::Stopped(_))), "{empty:?}");
    assert!(stats(&pool).in_doubt.unwrap().contains("os error 5"), "{:?}", stats(&pool));
    assert_eq!(pool.durable_tensors().unwrap(), [(TensorId(1), None)]);
    space(&pool);
    let late = pool.batch();
    let closed = pool.close();
    assert!(matches!(closed, Err(CloseError::InDoubt(_))), "{closed:?}");
    assert!(matches!(late.commit(), Err(CommitError::Unusable(Unusable::Closed))));
    cut_power(&disks, PowerCut::KeepAll);
    let pool = open(&disks);
    assert_eq!(get(&pool, 1).unwrap(), b"one");
    assert!(!pool.contains(TensorId(3)) && !pool.contains(TensorId(4)));
}

#[test]
fn a_disk_without_a_volatile_cache_is_never_flushed_for_a_commit() {
    let durable = SimProfile { volatile_cache: false, ..SimProfile::default() };
    for (profiles, flushes, forced) in
        [([durable; 2], [0, 0], 0), ([durable, SimProfile::default()], [0, 1], 1)]
    {
        let disks = formatted(profiles);
        let pool = stepped(&disks);
        let before = [0, 1].map(|disk: usize| disks[disk].counters());
        commit(&pool, &[(1, &bytes(1, 50_000))], &[]).unwrap();
        for disk in [0, 1] {
            let now = disks[disk].counters();
            assert_eq!(now.flushes - before[disk].flushes, flushes[disk]);
            assert_eq!(now.forced_writes - before[disk].forced_writes, forced);
        }
        assert_eq!(stats(&pool).forced_records == Feature::On, forced == 1);
        cut_power(&disks, PowerCut::DropAll);
        drop(pool);
        assert_eq!(get(&open(&disks), 1).unwrap(), bytes(1, 50_000));
    }
}

#[test]
fn threads_that_commit_at_once_lose_nothing() {
    let disks = disks(2, ByteCount::mib(8));
    let pool = open(&disks);
    std::thread::scope(|scope| {
        for thread in 0..4_u128 {
            let pool = pool.clone();
            scope.spawn(move || {
                for round in 0..30 {
                    let content = bytes(round, 3000);
                    commit(&pool, &[(thread, &content), (thread + 10, &content)], &[]).unwrap();
                    assert_eq!(get(&pool, thread).unwrap(), content);
                }
            });
        }
    });
    assert_eq!(stats(&pool).commits, 120);
    space(&pool);
    cut_power(&disks, PowerCut::DropAll);
    drop(pool);
    let pool = open(&disks);
    for id in (0..4).chain(10..14) {
        assert_eq!(get(&pool, id).unwrap(), bytes(29, 3000));
    }
}

#[test]
fn a_panic_of_the_reactor_ends_every_commit() {
    let disks = disks(1, ByteCount::mib(4));
    let pool = open(&disks);
    commit(&pool, &[(9, b"nine")], &[]).unwrap();
    let mut flushing = pool.batch();
    let put = flushing.put(TensorId(1), Source::from(b"one".to_vec()), PutOptions::default());
    put.unwrap().wait().unwrap();
    disks[0].hold();
    let flushing = flushing.start_commit().unwrap();
    let waiting = start(&pool, &[(2, b"two")], &[]);
    let (late, empty) = (batch(&pool, &[], &[9]), pool.batch());
    let reactor = pool.0.reactor.read().unwrap();
    let nothing = Transfer::Write { source: Source::from(vec![]), pieces: vec![] };
    let panics = Finish::new(|_| panic!("on purpose"));
    let ended = reactor.as_ref().unwrap().submit(nothing, Urgency::Urgent, None, panics);
    ended.unwrap().wait().unwrap_err();
    drop(reactor);
    assert!(matches!(flushing.wait(), Err(CommitError::Flush(_))), "{flushing:?}");
    assert!(matches!(waiting.wait(), Err(CommitError::Write { .. })), "{waiting:?}");
    for refused in [empty.commit(), late.commit()] {
        assert!(matches!(refused, Err(CommitError::Submit(_))), "{refused:?}");
    }
    assert_eq!(stats(&pool).in_doubt, None, "nothing of them was written");
    // Taken or not, it comes to nothing.
    let put = start_put(&pool, 3, b"three").map(|put| put.wait());
    assert!(!matches!(put, Ok(Ok(_))), "{put:?}");
}
