//! Shares of which commits are lost: refused, told, and gone on with once that is accepted.

use super::*;
use crate::layout::{BLOCK_BYTES, SUPERBLOCK_OFFSET, SlotArea, Superblock};
use crate::pool::inspect::{LostShare, accept_lost_commits, check, lost_commits};

fn slots(disks: &[SimDisk]) -> [SlotArea; 2] {
    let block = disks[0].peek(SUPERBLOCK_OFFSET, BLOCK_BYTES as usize);
    Superblock::decode(&block).unwrap().geometry.share(0).unwrap().slots
}

fn name(pool: &Pool, name: &str, length: usize) {
    let mut batch = pool.batch();
    batch.put(name, Source::from(vec![7; length]), PutOptions::default()).unwrap();
    batch.commit().unwrap();
}

/// Disks with five commits in the log of the first slot, closed: two tensors, a seal, two tensors.
fn with_five_commits(count: usize) -> Vec<SimDisk> {
    let disks = disks(count, ByteCount::mib(8));
    let pool = open(&disks);
    name(&pool, "one", 5000);
    name(&pool, "two", 5000);
    let mut batch = pool.batch();
    batch.seal("first", ["one", "two"].map(TensorId::from_name)).unwrap();
    batch.commit().unwrap();
    name(&pool, "two", 6000);
    name(&pool, "three", 5000);
    pool.close().unwrap();
    disks
}

fn rot_everywhere(disks: &[SimDisk], at: u64) {
    for disk in disks {
        disk.rot(at, 1);
    }
}

fn lost(disks: &[SimDisk]) -> LostShare {
    let mut lost = lost_commits(disks, false, &mut |_| ()).unwrap();
    assert_eq!(lost.len(), 1, "{lost:?}");
    lost.remove(0)
}

fn names(disks: &[SimDisk]) -> Vec<String> {
    let tensors = open(disks).durable_tensors().unwrap().into_iter();
    let mut names: Vec<String> = tensors.filter_map(|(_, name)| name).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_share_goes_on_without_lost_commits_and_gives_up_what_was_told() {
    for count in [1, 2] {
        let disks = with_five_commits(count);
        assert!(lost_commits(&disks, false, &mut |_| ()).unwrap().is_empty());
        rot_everywhere(&disks, slots(&disks)[0].log_offset + 2 * BLOCK_BYTES + 100);
        assert!(Pool::open(&disks, &quick()).is_err());
        let share = lost(&disks);
        let LostShare { share: number, commits, tensors, damaged } = &share;
        assert_eq!((*number, *tensors, damaged.len()), (0, 2, 0));
        assert!(commits.why.to_string().contains("change record 3 of epoch 1"), "{commits:?}");
        assert_eq!((commits.kept.sequence, commits.last.sequence), (2, 5));
        // The seal stood in the block that is lost.
        let changes: Vec<&str> = commits.changes.iter().map(String::as_str).collect();
        assert_eq!(changes, ["\"three\"", "\"two\""]);

        // Nothing else than that is given up.
        let mut other = share.clone();
        other.commits.last.sequence = 4;
        let before: Vec<Vec<u8>> = disks.iter().map(|disk| disk.peek(262_144, 1 << 20)).collect();
        let refused = accept_lost_commits(&disks, false, &[other]).unwrap_err().to_string();
        assert!(refused.contains("other commits are lost"), "{refused}");
        let after: Vec<Vec<u8>> = disks.iter().map(|disk| disk.peek(262_144, 1 << 20)).collect();
        assert!(before == after);

        accept_lost_commits(&disks, false, &[share]).unwrap();
        assert_eq!(names(&disks), ["one", "two"]);
        let report = check(&disks, false, &mut |_| ()).unwrap();
        assert_eq!((report.damage, report.unsettled, report.tensors), (vec![], vec![], 2));
        assert!(accept_lost_commits(&disks, false, &[]).is_ok());
        // What was lost never comes back.
        for round in 0..6 {
            let pool = open(&disks);
            name(&pool, &format!("new {round}"), 100);
            assert_eq!(pool.length(TensorId::from_name("two")), Some(5000));
            pool.close().unwrap();
            assert_eq!(names(&disks).len(), 3 + round);
        }
    }
}

#[test]
fn a_share_goes_back_behind_a_lost_checkpoint_and_no_record_that_continued_it_comes_back() {
    for count in [1, 2] {
        let disks = with_five_commits(count);
        let pool = open(&disks);
        name(&pool, "four", 5000);
        name(&pool, "five", 5000);
        pool.close().unwrap();
        rot_everywhere(&disks, slots(&disks)[1].checkpoint_offset + 200);
        let share = lost(&disks);
        let commits = &share.commits;
        assert_eq!((commits.kept.epoch, commits.kept.sequence, share.tensors), (1, 5, 3));
        assert_eq!((commits.last.epoch, commits.last.sequence), (2, 2));
        let changes: Vec<&str> = commits.changes.iter().map(String::as_str).collect();
        assert_eq!(changes, ["\"five\"", "\"four\""]);
        accept_lost_commits(&disks, false, &[share]).unwrap();
        for round in 0..4 {
            assert_eq!(names(&disks).len(), 3 + round);
            let pool = open(&disks);
            assert_eq!(pool.seals().unwrap().len(), 1);
            name(&pool, &format!("new {round}"), 100);
            pool.close().unwrap();
        }
        assert_eq!(check(&disks, false, &mut |_| ()).unwrap().damage, []);
    }
}

#[test]
fn tensors_of_what_is_left_whose_places_were_used_since_are_told() {
    let disks = disks(1, ByteCount::mib(4));
    let pool = open(&disks);
    commit(&pool, &[(1, &bytes(1, 1_500_000))], &[]).unwrap();
    commit(&pool, &[], &[1]).unwrap();
    commit(&pool, &[(2, &bytes(2, 1_500_000))], &[]).unwrap();
    commit(&pool, &[], &[2]).unwrap();
    commit(&pool, &[(3, &bytes(3, 1_500_000))], &[]).unwrap();
    pool.close().unwrap();
    rot_everywhere(&disks, slots(&disks)[0].log_offset + BLOCK_BYTES + 70);
    let share = lost(&disks);
    assert_eq!((share.tensors, share.damaged.len()), (1, 1), "{share:?}");
    assert_eq!(share.damaged[0].id, TensorId(1));
    accept_lost_commits(&disks, false, &[share]).unwrap();
    let report = check(&disks, false, &mut |_| ()).unwrap();
    assert_eq!(report.damaged_tensors().count(), 1);
    assert_eq!(report.damage.len(), 1, "{report:?}");
}
