//! Metadata of which blocks cannot be read, or are not what was written: every block that one copy
//! has is taken from there, and what no copy has is named.

use super::index::Raw;
use super::*;
use crate::layout::LogMark;
use crate::layout::{BLOCK_BYTES, Geometry, SUPERBLOCK_OFFSET, SlotArea, Superblock};
use crate::log::{LogPlace, recover};
use crate::pool::inspect::{CheckReport, Damage, check, repair};

fn geometry(disks: &[SimDisk]) -> Geometry {
    let block = disks[0].peek(SUPERBLOCK_OFFSET, BLOCK_BYTES as usize);
    Superblock::decode(&block).unwrap().geometry
}

/// The slots of the one share.
fn slots(disks: &[SimDisk]) -> [SlotArea; 2] {
    geometry(disks).share(0).unwrap().slots
}

fn checked(disks: &[SimDisk]) -> CheckReport {
    check(disks, false, &mut |_| ()).unwrap()
}

fn is_clean(disks: &[SimDisk]) -> bool {
    let report = checked(disks);
    report.damage.is_empty() && report.unsettled.is_empty()
}

/// Disks with three commits in the log of the first slot; a process has closed them or was killed.
fn with_three_commits(count: usize, closed: bool) -> Vec<SimDisk> {
    let disks = disks(count, ByteCount::mib(8));
    let pool = open(&disks);
    for id in 1..=3 {
        commit(&pool, &[(id, &bytes(id as u64, 5000))], &[]).unwrap();
    }
    if closed {
        pool.close().unwrap();
    } else {
        cut_power(&disks, PowerCut::KeepAll);
        drop(pool);
    }
    disks
}

fn assert_all_three(pool: &Pool) {
    for id in 1..=3 {
        assert_eq!(get(pool, id).unwrap(), bytes(id as u64, 5000));
    }
}

#[test]
fn a_block_of_the_log_that_was_never_written_locks_no_pool_and_is_written_by_the_next_opening() {
    for (count, closed, block) in [(1, true, 3), (1, true, 5), (1, false, 5), (2, false, 3)] {
        for slot in [0, 1] {
            let disks = with_three_commits(count, closed);
            let at = slots(&disks)[slot].log_offset + block * BLOCK_BYTES;
            disks[0].make_unreadable(at);
            let report = checked(&disks);
            // The log of a slot that never had a checkpoint is of interest as well.
            let [Damage::IndexCopy { device, why, .. }] = &report.damage[..] else {
                panic!("{count} {closed} {block} {slot}: {report:?}")
            };
            assert!(device == "sim0" && why.contains(&format!("byte {at} ")), "{why}");
            assert_eq!(report.tensors, 3);
            let repaired = repair(&disks, &[], false, &mut |_| ()).unwrap();
            assert_eq!(repaired.after.damage, [], "{count} {closed} {block} {slot}");
            assert!(is_clean(&disks));
            assert_all_three(&open(&disks));
        }
    }
}

#[test]
fn a_block_that_may_be_the_next_record_refuses_a_killed_pool_by_its_place() {
    let disks = with_three_commits(1, false);
    let at = slots(&disks)[0].log_offset + 3 * BLOCK_BYTES;
    disks[0].make_unreadable(at);
    let refused = Pool::open(&disks, &quick()).err().unwrap().to_string();
    assert!(refused.contains(&format!("byte {at} ")), "{refused}");
    assert!(refused.contains("change record 4 of epoch 1"), "{refused}");
    assert!(matches!(checked(&disks).damage[..], [Damage::Index { .. }]));
    disks[0].restore(at);
    assert_all_three(&open(&disks));
}

#[test]
fn blocks_that_cannot_be_read_on_one_device_each_are_read_on_the_other_and_written_again() {
    for closed in [true, false] {
        let disks = with_three_commits(2, closed);
        let slot = slots(&disks)[0];
        disks[0].make_unreadable(slot.checkpoint_offset);
        disks[0].make_unreadable(slot.log_offset + BLOCK_BYTES);
        disks[1].make_unreadable(slot.log_offset);
        disks[1].make_unreadable(slot.log_offset + 2 * BLOCK_BYTES);
        let report = checked(&disks);
        assert!(matches!(report.damage[..], [Damage::IndexCopy { .. }, Damage::IndexCopy { .. }]));
        assert_eq!(report.tensors, 3);
        assert_all_three(&open(&disks));
        assert!(is_clean(&disks), "{:?}", checked(&disks));
    }
}

#[test]
fn a_device_that_cannot_be_read_is_not_written_over_while_it_may_have_the_last_record() {
    let disks = with_three_commits(2, false);
    let slot = slots(&disks)[0];
    let log = || (slot.log_offset..slot.log_offset + slot.log_bytes).step_by(BLOCK_BYTES as usize);
    log().for_each(|at| disks[0].make_unreadable(at));
    disks[1].rot(slot.log_offset + 2 * BLOCK_BYTES + 90, 1);
    let before = disks[0].counters().bytes_written;
    let refused = Pool::open(&disks, &quick()).err().unwrap().to_string();
    assert!(refused.contains("change record 3 of epoch 1"), "{refused}");
    // The name on the door, and nothing else.
    assert!(disks[0].counters().bytes_written <= before + BLOCK_BYTES);
    log().for_each(|at| disks[0].restore(at));
    assert_all_three(&open(&disks));
    assert!(is_clean(&disks));
}

/// Disks with an index that goes on in segments, seals, deletions, and records in the log.
struct Everything {
    disks: Vec<SimDisk>,
    closed: bool,
    /// States after each number of records.
    states: Vec<PoolContents>,
    /// Offset of the first record; the others follow, a block each.
    log: u64,
    /// The blocks of the index that holds, on each of its devices at the same place.
    blocks: Vec<(u8, u64)>,
}

/// Readable contents of a pool.
type PoolContents = (Vec<(TensorId, Option<String>)>, Vec<String>, Vec<Option<Vec<u8>>>);

fn contents(pool: &Pool) -> PoolContents {
    let seals = pool.seals().unwrap().into_iter().map(|seal| seal.name).collect();
    (pool.durable_tensors().unwrap(), seals, (0..12).map(|id| get(pool, id)).collect())
}

impl Everything {
    fn new(count: usize, closed: bool) -> Self {
        let disks = disks(count, ByteCount::mib(8));
        let pool = open(&disks);
        for part in 0..12 {
            let mut batch = pool.batch();
            for number in 0..200 {
                let name = format!("a tensor with a name of some length, {part}, number {number}");
                batch.put(&*name, Source::from(Vec::new()), PutOptions::default()).unwrap();
            }
            let source = Source::from(bytes(part as u64, 3000));
            batch.put(TensorId(part), source, PutOptions::default()).unwrap();
            batch.commit().unwrap();
        }
        drop(pool);
        let pool = open(&disks);
        let mut states = vec![contents(&pool)];
        for part in 0..6 {
            seals::seal(&pool, &format!("seal {part}"), &[part, 6]).unwrap();
            states.push(contents(&pool));
            commit(&pool, &[(part, &bytes(100 + part as u64, 4000))], &[11 - part]).unwrap();
            states.push(contents(&pool));
        }
        if closed {
            pool.close().unwrap();
        } else {
            cut_power(&disks, PowerCut::KeepAll);
            drop(pool);
        }
        let (log, blocks) = Self::blocks(&disks);
        Self { disks, closed, states, log, blocks }
    }

    /// Returns the offset of the log, and the blocks that count.
    fn blocks(disks: &[SimDisk]) -> (u64, Vec<(u8, u64)>) {
        let block = disks[0].peek(SUPERBLOCK_OFFSET, BLOCK_BYTES as usize);
        let superblock = Superblock::decode(&block).unwrap();
        let (pool, geometry) = (superblock.pool, &superblock.geometry);
        let place = LogPlace::new(pool, 0, geometry, superblock.block_format()).unwrap();
        let found = recover(place, LogMark::NONE, &Raw(disks)).unwrap();
        let slot = 1 - found.log.next_slot();
        let (area, segments) = (place.area.slots[slot], &found.index_segments[slot]);
        assert!(!segments.is_empty() && found.log.records() == 12);
        let length = area.checkpoint_bytes + 2 * BLOCK_BYTES;
        let checkpoint = place.parts(0, slot, (segments, 0), length);
        let log = std::iter::once((0, area.log_offset, (found.log.records() + 1) * BLOCK_BYTES));
        let each = |(device, offset, bytes): (u8, u64, u64)| {
            (offset..offset + bytes).step_by(BLOCK_BYTES as usize).map(move |at| (device, at))
        };
        // The last records and what goes on in segments as often as the rest.
        let log: Vec<_> = log.flat_map(each).collect();
        let all = checkpoint.flat_map(each).chain(log.iter().copied().cycle().take(40));
        (area.log_offset, all.collect())
    }

    /// Spoils some blocks; returns those of which no good copy is left, and says which all were.
    fn spoil(&self, random: &mut Random) -> (Vec<u64>, String) {
        let copies = if self.disks.len() > 1 { 2 } else { 1 };
        let (mut lost, mut spoiled) = (Vec::new(), Vec::new());
        let both = random.chance(3);
        for _ in 0..=random.below(6) {
            let (device, at) = self.blocks[random.below(self.blocks.len() as u64) as usize];
            if spoiled.iter().any(|(_, other, _)| *other == at) {
                continue;
            }
            let first = device + random.below(copies) as u8;
            let other = Some(first ^ 1).filter(|_| copies == 2 && both && random.chance(2));
            lost.extend(Some(at).filter(|_| copies == 1 || other.is_some()));
            for device in std::iter::once(first).chain(other) {
                let disk = &self.disks[usize::from(device)];
                let how = random.below(4);
                match how {
                    0 => disk.overwrite(at, &[0; BLOCK_BYTES as usize]),
                    1 => disk.overwrite(at, &bytes(random.draw(), BLOCK_BYTES as usize)),
                    2 => disk.rot(at + random.below(BLOCK_BYTES), 1 << random.below(8)),
                    _ => disk.make_unreadable(at),
                }
                spoiled.push((device, at, how));
            }
        }
        (lost, format!("{} disks, closed: {}, {spoiled:?}", self.disks.len(), self.closed))
    }
}

/// Returns the number of corrupted pools that are checked.
fn corruptions() -> u64 {
    let wanted = std::env::var("TIDELOG_CORRUPTIONS").ok();
    wanted.map_or(240, |it| it.parse().expect("TIDELOG_CORRUPTIONS is a number"))
}

#[test]
fn nothing_is_lost_while_one_good_copy_of_each_block_is_there_and_what_is_lost_is_named() {
    let pools = [(1, true), (1, false), (2, true), (2, false), (3, true), (3, false)];
    let pools = pools.map(|(count, closed)| Everything::new(count, closed));
    let (mut refused, mut whole) = (0, 0);
    for seed in 0..corruptions() {
        let pool = &pools[seed as usize % pools.len()];
        let disks = &pool.disks;
        let before: Vec<_> = disks.iter().map(SimDisk::snapshot).collect();
        let (gone, told) = pool.spoil(&mut Random::new(seed));
        let report = checked(disks);
        match Pool::open(disks, &OpenOptions { staging: ByteCount::kib(256), ..quick() }) {
            Ok(opened) => {
                let found = contents(&opened);
                // Of a pool that was killed the last records, if none of them is left, may be what
                // the kill tore or what was never there.
                let is_lost = |record: &u64| gone.contains(&(pool.log + record * BLOCK_BYTES));
                let last = (0..12).rev().take_while(|it| !pool.closed && is_lost(it)).count();
                let states = pool.states.iter().rev().take(last + 1);
                assert!(states.into_iter().any(|state| found == *state), "seed {seed}: {told}");
                let named = |damage: &Damage| matches!(damage, Damage::Index { .. });
                assert!(!report.damage.iter().any(named), "seed {seed}: {told}: {report:?}");
                opened.close().unwrap();
                assert!(is_clean(disks), "seed {seed}: {told}: {:?}", checked(disks));
                whole += 1;
            }
            Err(error) => {
                assert!(!gone.is_empty(), "seed {seed}: {told}: {error}");
                let why = error.to_string();
                let named = |damage: &Damage| matches!(damage, Damage::Index { why: named, .. } if why.contains(named));
                assert!(report.damage.iter().any(named), "seed {seed}: {told}: {why}");
                refused += 1;
            }
        }
        for (disk, mut before) in disks.iter().zip(before) {
            disk.swap(&mut before);
        }
    }
    assert!(refused > 0 && whole > 0, "{refused} refused, {whole} whole");
}
