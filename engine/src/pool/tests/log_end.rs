//! Tests of the end of a share's log: a record or checkpoint that a crash tore is told from one
//! that rotted.

use super::*;
use crate::layout::{BLOCK_BYTES, Geometry, RECORD_HEADER_BYTES, SUPERBLOCK_OFFSET, Superblock};
use crate::pool::inspect::{CheckReport, Damage, check};

/// Formatted disks of which one pool has made and committed three tensors.
fn with_three_commits(count: usize) -> Vec<SimDisk> {
    let disks = disks(count, ByteCount::mib(8));
    let pool = open(&disks);
    commit_three(&pool);
    pool.close().unwrap();
    disks
}

fn commit_three(pool: &Pool) {
    for id in 1..=3 {
        commit(pool, &[(id, &bytes(id as u64, 5000))], &[]).unwrap();
    }
}

fn geometry(disks: &[SimDisk]) -> Geometry {
    let block = disks[0].peek(SUPERBLOCK_OFFSET, BLOCK_BYTES as usize);
    Superblock::decode(&block).unwrap().geometry
}

/// Returns the offset of the record of the third commit.
fn third_record(disks: &[SimDisk]) -> u64 {
    let at = geometry(disks).share(0).unwrap().slots[0].log_offset + 2 * BLOCK_BYTES;
    assert_eq!(disks[0].peek(at, 8), b"TIDECHNG");
    at
}

/// Flips these bits of a byte on all disks, or none any more.
fn rot_everywhere(disks: &[SimDisk], at: u64, mask: u8) {
    for disk in disks {
        disk.rot(at, mask);
    }
}

fn checked(disks: &[SimDisk]) -> CheckReport {
    check(disks, false, &mut |_| ()).unwrap()
}

fn tensors(disks: &[SimDisk]) -> usize {
    open(disks).durable_tensors().unwrap().len()
}

#[test]
fn a_last_record_that_rots_after_a_closing_is_damage_by_name_and_no_end_of_the_log() {
    for count in [1, 2] {
        // Its magic, its header, its content.
        for byte in [3, 50, RECORD_HEADER_BYTES as u64 + 26] {
            let disks = with_three_commits(count);
            let at = third_record(&disks) + byte;
            rot_everywhere(&disks, at, 1);
            let report = checked(&disks);
            let [Damage::Index { share: 0, why }] = &report.damage[..] else {
                panic!("{report:?}")
            };
            assert!(why.contains("change record 3 of epoch 1 is damaged"), "{why}");
            let refused = Pool::open(&disks, &quick()).err().unwrap().to_string();
            assert!(refused.contains("change record 3 of epoch 1 is damaged"), "{refused}");
            rot_everywhere(&disks, at, 0);
            assert_eq!(tensors(&disks), 3);
        }
    }
}

#[test]
fn a_record_that_rots_in_one_copy_is_damage_of_that_copy_after_a_closing_alone() {
    let disks = with_three_commits(2);
    disks[1].rot(third_record(&disks) + 90, 1);
    let report = checked(&disks);
    let [Damage::IndexCopy { device, why, .. }] = &report.damage[..] else { panic!("{report:?}") };
    assert!(device == "sim1" && why.contains("change record 3 of epoch 1"), "{why}");
    assert_eq!(tensors(&disks), 3);
    let report = checked(&disks);
    assert_eq!((report.damage, report.unsettled), (vec![], vec![]));
}

#[test]
fn a_last_record_that_is_not_whole_after_a_kill_is_a_note_and_settled_by_the_next_opening() {
    for count in [1, 2] {
        let disks = disks(count, ByteCount::mib(8));
        let pool = open(&disks);
        commit_three(&pool);
        cut_power(&disks, PowerCut::KeepAll);
        drop(pool);
        let at = third_record(&disks) + 90;
        rot_everywhere(&disks, at, 1);
        let report = checked(&disks);
        assert_eq!(report.damage, []);
        assert_eq!(report.unsettled.len(), count, "{report:?}");
        let note = report.unsettled[0].to_string();
        assert!(note.contains("change record 3 of epoch 1 is not whole"), "{note}");
        assert_eq!(tensors(&disks), 2);
        let report = checked(&disks);
        assert_eq!((report.damage, report.unsettled), (vec![], vec![]));
    }
}

#[test]
fn a_first_record_that_is_not_whole_is_not_there_after_the_next_closing() {
    let disks = disks(1, ByteCount::mib(8));
    let pool = open(&disks);
    commit(&pool, &[(1, &bytes(1, 5000))], &[]).unwrap();
    cut_power(&disks, PowerCut::KeepAll);
    drop(pool);
    let log = geometry(&disks).share(0).unwrap().slots[0].log_offset;
    disks[0].rot(log + 90, 1);
    assert_eq!(tensors(&disks), 0);
    let report = checked(&disks);
    assert_eq!((report.damage, report.unsettled), (vec![], vec![]));
}

#[test]
fn a_checkpoint_that_a_crash_cuts_off_anywhere_is_no_damage() {
    for count in [1, 2] {
        let disks: Vec<SimDisk> = disks(count, ByteCount::mib(16));
        let pool = open(&disks);
        let mut batch = pool.batch();
        for number in 0..400 {
            let name = format!("a tensor with a name of some length, number {number}");
            batch.put(&*name, Source::from(vec![1; 8]), PutOptions::default()).unwrap();
        }
        batch.commit().unwrap();
        pool.close().unwrap();
        let mut before: Vec<_> = disks.iter().map(SimDisk::snapshot).collect();
        let mut torn = 0;
        for seed in 0.. {
            for (disk, before) in disks.iter().zip(&mut before) {
                disk.swap(before);
                *before = disk.snapshot();
            }
            // Opening writes what stands in the change log as a checkpoint.
            let cut = if seed % 2 == 0 { PowerCut::KeepAll } else { PowerCut::Torn(seed) };
            SimDisk::cut_power_at(&disks, seed / 4, cut);
            let opened = Pool::open(&disks, &quick());
            if !disks[0].is_off() {
                break;
            }
            drop(opened);
            let report = checked(&disks);
            assert_eq!(report.damage, [], "{count} disk(s), seed {seed}");
            assert_eq!(report.tensors, 400, "{count} disk(s), seed {seed}");
            torn += report.unsettled.len();
        }
        assert!(torn > 0, "no cut left anything to settle");
    }
}
