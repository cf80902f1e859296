//! The index: full, grown into segments, emptied, and in pools that are older than its growth.

use std::convert::Infallible;

use super::*;
use crate::layout::{
    BLOCK_BYTES, BlockFormat, Change, Checksums, Geometry, LogMark, Run, Runs, SUPERBLOCK_OFFSET,
    Superblock, TensorEntry,
};
use crate::log::{ChangeLog, IndexUse, LogMedia, LogPlace, recover};
use crate::pool::inspect;

/// A tensor without bytes whose entry takes about a KiB of the index.
fn filler(number: usize) -> String {
    format!("{number:0>1000}")
}

fn fill(pool: &Pool, numbers: Range<usize>) -> Result<(), PutError> {
    let mut batch = pool.batch();
    for number in numbers {
        let nothing = Source::from(Vec::new());
        batch.put(filler(number).as_str(), nothing, PutOptions::default())?;
    }
    batch.commit().unwrap();
    Ok(())
}

fn empty(pool: &Pool, numbers: Range<usize>) -> Result<(), CommitError> {
    let mut batch = pool.batch();
    for number in numbers {
        batch.delete(TensorId::from_name(&filler(number))).unwrap();
    }
    batch.commit()
}

fn index(pool: &Pool) -> IndexUse {
    pool.stats().unwrap().index
}

fn fillers(pool: &Pool) -> usize {
    pool.durable_tensors().unwrap().len()
}

/// Puts `at_once` fillers at a time until one finds no room; returns how many there are.
fn fill_up(pool: &Pool, at_once: usize) -> usize {
    let mut count = fillers(pool);
    loop {
        match fill(pool, count..count + at_once) {
            Ok(()) => count += at_once,
            Err(full @ PutError::PoolFull { needed, available, for_index, .. }) => {
                assert!(needed > available);
                let what = if for_index { "the index is full: for " } else { "the pool is full: " };
                assert!(full.to_string().starts_with(what), "{full}");
                return count;
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn of_a_pool_that_its_index_has_filled_the_index_is_named() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    // One at a time, so that it ends when a put finds its own block and the index no segment.
    let refused = (0..).find_map(|number| fill(&pool, number..number + 1).err()).unwrap();
    assert!(matches!(refused, PutError::PoolFull { for_index: true, .. }), "{refused}");
    let text = refused.to_string();
    assert!(text.starts_with("the index is full: for ") && text.contains("grow by"), "{text}");
}

#[test]
fn a_pool_whose_commits_succeeded_opens_again_however_full_its_index_is() {
    // What an attack has found: every call and the close succeeded, and the pool was never opened
    // again.
    let disks = disks(2, ByteCount::mib(96));
    let pool = open(&disks);
    for commit in 0..78_u64 {
        let mut batch = pool.batch();
        for number in 0..50 {
            let source = Source::from(bytes(number, 4096));
            let name = format!("layer.{}.weight", commit * 50 + number);
            batch.put(name.as_str(), source, PutOptions::default()).unwrap();
        }
        batch.commit().unwrap();
    }
    let before = index(&pool);
    assert!(before.live.0 > pool.description().geometry.slot_bytes * 3 / 4, "{before:?}");
    assert!(before.live < before.room && before.segments > 0, "{before:?}");
    pool.close().unwrap();
    let report = inspect::check(&disks, false, &mut |_| ()).unwrap();
    assert_eq!((report.damage.as_slice(), report.tensors), (&[][..], 3900));

    let pool = open(&disks);
    assert_eq!(fillers(&pool), 3900);
    let last = TensorId::from_name("layer.3899.weight").0;
    assert_eq!(get(&pool, last).unwrap(), bytes(49, 4096));
    space(&pool);
}

#[test]
fn an_index_is_limited_by_space_alone_and_deletions_always_fit() {
    for at_once in [1, 40] {
        for devices in [1, 2, 3] {
            let disks = disks(devices, ByteCount::mib(3));
            let pool = open(&disks);
            let count = fill_up(&pool, at_once);
            let full = index(&pool);
            assert!(full.segments > 2 && full.live.0 > 300 << 10, "{full:?}");
            assert!(space(&pool).index.0 > 0);
            pool.close().unwrap();

            let pool = open(&disks);
            assert_eq!(fillers(&pool), count);
            assert!(fill(&pool, count..count + at_once).is_err(), "it is as full as before");
            // One by one, past many checkpoints.
            (0..count / 2).for_each(|number| empty(&pool, number..number + 1).unwrap());
            space(&pool);
            fill(&pool, 0..at_once).unwrap();
            empty(&pool, count / 2..count).unwrap();
            cut_power(&disks, PowerCut::DropAll);
            drop(pool);

            let pool = open(&disks);
            assert_eq!(fillers(&pool), at_once);
            empty(&pool, 0..at_once).unwrap();
            pool.close().unwrap();
            // A checkpoint in each slot releases what that slot does not need.
            for _ in 0..2 {
                let pool = open(&disks);
                fill(&pool, 0..1).unwrap();
                empty(&pool, 0..1).unwrap();
            }
            let pool = open(&disks);
            assert_eq!(index(&pool), IndexUse { room: index(&pool).room, ..IndexUse::default() });
            let usable = space(&pool).free.0 - space(&pool).reclaim_reserve.0;
            put(&pool, 1, &bytes(1, usable as usize));
        }
    }
}

#[test]
fn what_is_given_up_gives_its_room_in_the_index_back() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    fill(&pool, 0..100).unwrap();
    let before = index(&pool);
    for _ in 0..3 {
        let mut batch = pool.batch();
        for number in 100..400 {
            let nothing = Source::from(Vec::new());
            batch.put(filler(number).as_str(), nothing, PutOptions::default()).unwrap();
        }
        assert!(index(&pool).coming > before.live);
        drop(batch);
        // Its writes end on the reactor's thread.
        while index(&pool).coming.0 > 0 {
            std::thread::yield_now();
        }
    }
    assert_eq!(index(&pool).live, before.live);
    space(&pool);
    // The next checkpoint releases what it does not need.
    drop(pool);
    fill(&open(&disks), 400..401).unwrap();
    assert_eq!(index(&open(&disks)).segments, 0);
}

#[test]
fn segments_of_an_emptied_index_come_back_when_the_pool_is_opened() {
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    fill(&pool, 0..600).unwrap();
    empty(&pool, 0..600).unwrap();
    pool.close().unwrap();
    for _ in 0..2 {
        open(&disks).close().unwrap();
    }
    assert_eq!(index(&open(&disks)).segments, 0);
    assert_eq!(inspect::check(&disks, false, &mut |_| ()).unwrap().damage, []);
}

#[test]
fn a_pool_whose_index_has_just_grown_is_calibrated_and_keeps_it() {
    let disks = disks(2, ByteCount::mib(16));
    let pool = open(&disks);
    (0..8).for_each(|part| fill(&pool, part * 30..part * 30 + 30).unwrap());
    assert!(index(&pool).segments > 0);
    pool.close().unwrap();
    Pool::calibrate(&disks, false, &mut |_| ()).unwrap();
    assert_eq!(fillers(&open(&disks)), 240);
    assert_eq!(inspect::check(&disks, false, &mut |_| ()).unwrap().damage, []);
}

#[test]
fn a_crash_at_any_write_or_flush_of_a_grown_index_loses_no_commit() {
    let cuts = (0..40).flat_map(|nth| [(nth, PowerCut::DropAll), (nth, PowerCut::Torn(nth))]);
    for (nth, cut) in cuts {
        let disks = disks(2, ByteCount::mib(4));
        let pool = open(&disks);
        fill(&pool, 0..170).unwrap();
        SimDisk::cut_power_at(&disks, nth, cut);
        let mut acknowledged = 170;
        for first in (170..400).step_by(30) {
            let mut batch = pool.batch();
            let staged = (first..first + 30).try_for_each(|number| {
                let nothing = Source::from(Vec::new());
                batch.put(filler(number).as_str(), nothing, PutOptions::default()).map(drop)
            });
            if staged.is_err() || batch.commit().is_err() {
                break;
            }
            acknowledged = first + 30;
        }
        drop(pool);
        cut_power(&disks, cut);
        let pool = open(&disks);
        let found = fillers(&pool);
        assert!(found == acknowledged || found == acknowledged + 30, "{nth} {cut:?}: {found}");
        space(&pool);
        drop(pool);
        assert_eq!(inspect::check(&disks, false, &mut |_| ()).unwrap().damage, [], "{nth} {cut:?}");
    }
}

#[test]
fn each_copy_of_a_grown_index_is_enough_and_the_one_before_it_is_kept() {
    let disks = disks(4, ByteCount::mib(4));
    let pool = open(&disks);
    fill(&pool, 0..600).unwrap();
    drop(pool);
    // Settled: a checkpoint that nothing continues, and the one before it in the other slot.
    drop(open(&disks));
    let Superblock { pool, geometry, .. } = superblocks(&disks)[0];
    let place = LogPlace::new(pool, 0, &geometry, BlockFormat::Checked).unwrap();
    let recovered = recover(place, LogMark::NONE, &Raw(&disks)).unwrap();
    let newest = 1 - recovered.log.next_slot();
    let segments = &recovered.index_segments[newest];
    assert!(!segments.is_empty());
    let (offset, _) = place.stripes.slice(segments[0]);
    disks[1].rot(offset + 9, 1);
    let report = inspect::check(&disks, false, &mut |_| ()).unwrap();
    assert!(
        matches!(report.damage.as_slice(), [inspect::Damage::IndexCopy { .. }]),
        "{:?}",
        report.damage
    );
    drop(open(&disks));
    assert_eq!(inspect::check(&disks, false, &mut |_| ()).unwrap().damage, []);

    let recovered = recover(place, LogMark::NONE, &Raw(&disks)).unwrap();
    let newest = 1 - recovered.log.next_slot();
    let (offset, _) = place.stripes.slice(recovered.index_segments[newest][0]);
    for disk in &disks[..2] {
        disk.rot(offset + 9, 1);
    }
    let pool = open(&disks);
    assert_eq!(fillers(&pool), 600, "the checkpoint before holds the same");
    space(&pool);
}

#[test]
fn a_pool_from_before_grows_once_it_is_opened_and_never_without_saying_so() {
    let disks = disks(2, ByteCount::mib(4));
    set_index_in_segments(&disks, false);
    let pool = open(&disks);
    let full = (0..).find_map(|number| fill(&pool, number..number + 1).err());
    assert!(matches!(full, Some(PutError::IndexFull { .. })), "{full:?}");
    let count = fillers(&pool);
    assert!(count > 150 && space(&pool).index.0 == 0);
    empty(&pool, 0..1).unwrap();
    fill(&pool, 0..1).unwrap();
    pool.close().unwrap();
    assert!(superblocks(&disks).iter().all(|superblock| !superblock.index_in_segments));

    let pool = open(&disks);
    assert!(superblocks(&disks).iter().all(|superblock| superblock.index_in_segments));
    fill(&pool, count..count + 200).unwrap();
    pool.close().unwrap();
    assert_eq!(fillers(&open(&disks)), count + 200);
}

#[test]
fn a_pool_with_an_index_that_was_never_written_whole_opens_and_is_emptied() {
    // As versions before this one left it: acknowledged records of an index that fits no
    // checkpoint.
    let disks = disks(2, ByteCount::mib(4));
    let place = overfull(&disks, false);
    let report = inspect::check(&disks, false, &mut |_| ()).unwrap();
    assert_eq!(report.damage, []);
    assert!(
        matches!(report.unsettled.as_slice(), [inspect::Unsettled::Index { share: 0, .. }]),
        "{:?}",
        report.unsettled
    );
    let pool = open(&disks);
    assert_eq!(fillers(&pool), 230);
    assert!(index(&pool).segments > 0);
    empty(&pool, 0..230).unwrap();
    pool.close().unwrap();
    assert!(recover(place, LogMark::NONE, &Raw(&disks)).unwrap().index.tensors.is_empty());

    // The same where no segment is free.
    let disks = super::disks(2, ByteCount::mib(4));
    overfull(&disks, true);
    let pool = open(&disks);
    assert_eq!(fillers(&pool), 231);
    assert!(matches!(fill(&pool, 300..301), Err(PutError::PoolFull { .. })));
    let few = empty(&pool, 0..1).unwrap_err();
    assert!(matches!(few, CommitError::IndexFull { .. }), "{few}");
    assert_eq!(fillers(&pool), 231);
    empty(&pool, 0..100).unwrap();
    commit(&pool, &[], &[7]).unwrap();
    fill(&pool, 300..301).unwrap();
    space(&pool);
    pool.close().unwrap();
    assert_eq!(fillers(&open(&disks)), 131);
}

/// Records that no checkpoint has room for; with `crowded` a tensor 7 holds every segment.
fn overfull(disks: &[SimDisk], crowded: bool) -> LogPlace {
    set_index_in_segments(disks, false);
    let superblock = superblocks(disks)[0];
    let geometry = superblock.geometry;
    let format = superblock.block_format();
    let place = LogPlace::new(superblock.pool, 0, &geometry, format).unwrap();
    let raw = Raw(disks);
    let mut log: ChangeLog = recover(place, LogMark::NONE, &raw).unwrap().log;
    let entry = |number| TensorEntry {
        id: TensorId::from_name(&filler(number)),
        name: Some(filler(number).into()),
        length: 0,
        class: LifetimeClass::Step,
        runs: Runs::new(),
        checksums: Checksums::new(),
    };
    let mut tensors: Vec<TensorEntry> = (0..170).map(entry).collect();
    if crowded {
        tensors.push(everything(&place, &geometry));
    }
    log.checkpoint(&raw, &tensors, &[]).unwrap();
    let more = (170..230).map(|number| Change::Put(entry(number))).collect();
    log.append(&raw, more, |_| panic!("the log has room")).unwrap();
    place
}

fn everything(place: &LogPlace, geometry: &Geometry) -> TensorEntry {
    let blocks = geometry.segment_blocks() as u32;
    let run = |segment| Run::single(segment, 0, blocks);
    let runs: Runs = place.segments().map(run).collect();
    let length = u64::from(geometry.segments) * geometry.segment_blocks() * BLOCK_BYTES;
    let checksums: Checksums = (0..place.stripes.count(&runs) as u32).collect();
    let class = LifetimeClass::Persistent;
    TensorEntry { id: TensorId(7), name: None, length, class, runs, checksums }
}

fn superblocks(disks: &[SimDisk]) -> Vec<Superblock> {
    let read = |disk: &SimDisk| {
        Superblock::decode(&disk.peek(SUPERBLOCK_OFFSET, BLOCK_BYTES as usize)).unwrap()
    };
    disks.iter().map(read).collect()
}

fn set_index_in_segments(disks: &[SimDisk], index_in_segments: bool) {
    for (disk, superblock) in disks.iter().zip(superblocks(disks)) {
        let block = Superblock { index_in_segments, ..superblock }.encode();
        disk.overwrite(SUPERBLOCK_OFFSET, &block);
        disk.overwrite(superblock.geometry.second_superblock_offset(), &block);
    }
}

/// Raw access to the disks, without a reactor.
pub(super) struct Raw<'a>(pub(super) &'a [SimDisk]);

impl LogMedia for Raw<'_> {
    type Error = Infallible;

    fn is_of_block(error: &Infallible) -> bool {
        match *error {}
    }

    fn read(&self, device: u8, offset: u64, length: u64) -> Result<Vec<u8>, Infallible> {
        Ok(self.0[usize::from(device)].peek(offset, length as usize))
    }

    fn write(&self, device: u8, offset: u64, bytes: Vec<u8>) -> Result<(), Infallible> {
        self.0[usize::from(device)].overwrite(offset, &bytes);
        Ok(())
    }

    fn flush(&self, _: u8) -> Result<(), Infallible> {
        Ok(())
    }
}
