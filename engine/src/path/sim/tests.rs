//! The simulated disk itself: what tests of everything above it rest on.

use super::*;
use crate::memory::DmaPool;
use crate::path::{Extent, OperationKind, Status};
use crate::units::{ByteCount, DeviceIndex};

const BLOCK: usize = 4096;

struct Bench {
    disk: SimDisk,
    path: SimPath,
    pool: DmaPool,
}

impl Bench {
    fn new(profile: SimProfile) -> Self {
        Self::on(SimDisk::with_profile(ByteCount::mib(1), profile))
    }

    fn on(disk: SimDisk) -> Self {
        let path = SimPath::new(vec![disk.clone()], 64).unwrap();
        Self { disk, path, pool: DmaPool::new(ByteCount::mib(1), false).unwrap() }
    }

    fn submit(&mut self, tag: u64, extent: Extent, action: Action) {
        self.path.submit(Operation::new(tag, DeviceIndex(0), extent, action)).unwrap();
    }

    fn finish(&mut self) -> Vec<Completion> {
        let mut completions = Vec::new();
        while self.path.poll(&mut completions) > 0 {}
        completions
    }

    fn write(&mut self, block: u64, byte: u8, fua: bool) {
        let mut buffer = self.pool.take(BLOCK).unwrap();
        buffer.fill(byte);
        let extent = Extent::new(block * BLOCK as u64, BLOCK as u64);
        self.submit(block, extent, Action::write(buffer, fua));
    }

    fn flush(&mut self) {
        self.submit(99, Extent::NOTHING, Action::Flush);
    }

    /// The bytes of some blocks, one each; mixed blocks show as `None`.
    fn blocks(&self, count: usize) -> Vec<Option<u8>> {
        let bytes = self.disk.peek(0, count * BLOCK);
        let uniform = |block: &[u8]| block.iter().all(|&byte| byte == block[0]).then_some(block[0]);
        bytes.chunks(BLOCK).map(uniform).collect()
    }
}

#[test]
fn a_power_cut_keeps_what_was_flushed_or_written_through_and_drops_the_rest() {
    let mut bench = Bench::new(SimProfile::default());
    bench.write(0, 1, false);
    bench.finish();
    bench.flush();
    bench.finish();
    bench.write(0, 2, false);
    bench.write(1, 3, true);
    bench.write(2, 4, false);
    bench.finish();
    assert_eq!(bench.blocks(3), [Some(2), Some(3), Some(4)]);
    bench.disk.cut_power(PowerCut::DropAll);
    assert_eq!(bench.blocks(3), [Some(1), Some(3), Some(0)]);
}

#[test]
fn a_flush_does_not_cover_writes_that_had_not_completed_when_it_was_submitted() {
    let mut bench = Bench::new(SimProfile::default());
    bench.write(0, 1, false);
    bench.flush();
    bench.finish();
    bench.disk.cut_power(PowerCut::DropAll);
    assert_eq!(bench.blocks(1), [Some(0)]);
}

#[test]
fn a_flush_that_fails_keeps_nothing() {
    let mut bench = Bench::new(SimProfile::default());
    bench.write(0, 1, false);
    bench.finish();
    bench.disk.plan_fault(OperationKind::Flush, 0, Fault::Errno(libc::EIO));
    bench.flush();
    assert!(bench.finish()[0].result.is_err());
    bench.disk.cut_power(PowerCut::DropAll);
    assert_eq!(bench.blocks(1), [Some(0)]);
}

#[test]
fn a_torn_cache_keeps_whole_logical_blocks_chosen_by_the_seed() {
    let torn = |seed| {
        let mut bench = Bench::new(SimProfile::default());
        for block in 0..8 {
            bench.write(block, 0xAA, false);
        }
        bench.finish();
        bench.write(8, 0xAA, false);
        bench.disk.cut_power(PowerCut::Torn(seed));
        assert_eq!(bench.disk.in_flight(), 1, "the path has not seen it fail yet");
        bench.disk.peek(0, 9 * BLOCK)
    };
    let once = torn(5);
    assert_eq!(once, torn(5), "the same seed, the same damage");
    assert_ne!(once, torn(6));
    let kept = once.chunks(512).filter(|block| block.iter().all(|&byte| byte == 0xAA)).count();
    let lost = once.chunks(512).filter(|block| block.iter().all(|&byte| byte == 0)).count();
    assert_eq!(kept + lost, 9 * 8, "no logical block is half written");
    assert!(kept > 8 && lost > 8, "{kept} kept, {lost} lost");
}

#[test]
fn a_disk_without_power_fails_everything_until_it_is_opened_again() {
    let mut bench = Bench::new(SimProfile::default());
    bench.write(0, 1, false);
    bench.disk.cut_power(PowerCut::KeepAll);
    let failed = bench.finish()[0].result.unwrap_err();
    assert_eq!(failed.status, Status::Errno(libc::ENODEV));
    let mut bench = Bench::on(bench.disk);
    bench.write(0, 2, false);
    bench.finish()[0].result.unwrap();
    assert_eq!(bench.blocks(1), [Some(2)]);
}

#[test]
fn what_a_killed_process_had_in_flight_may_be_on_the_disk() {
    let mut bench = Bench::new(SimProfile::default());
    bench.write(0, 1, false);
    let disk = bench.disk.clone();
    drop(bench);
    assert_eq!(disk.peek(0, 1), [1]);
    disk.cut_power(PowerCut::DropAll);
    assert_eq!(disk.peek(0, 1), [0], "but it was never flushed");
}

#[test]
fn completions_are_reordered_by_the_seed_and_by_nothing_else() {
    let order = |seed, latency_ticks_max| {
        let mut bench = Bench::new(SimProfile { seed, latency_ticks_max, ..SimProfile::default() });
        for block in 0..20 {
            bench.write(block, 1, false);
        }
        bench.finish().iter().map(|completion| completion.tag).collect::<Vec<_>>()
    };
    assert_eq!(order(3, 64), order(3, 64));
    assert_ne!(order(3, 64), order(4, 64));
    assert_eq!(order(3, 1), (0..20).collect::<Vec<_>>(), "equal latencies keep the order");
}

#[test]
fn a_planned_fault_strikes_the_operation_it_was_planned_for_and_no_other() {
    let mut bench = Bench::new(SimProfile { latency_ticks_max: 1, ..SimProfile::default() });
    for block in 0..3 {
        bench.write(block, 1, false);
    }
    bench.finish();
    bench.disk.plan_fault(OperationKind::Read, 2, Fault::Errno(libc::EIO));
    bench.disk.plan_fault(OperationKind::Read, 1, Fault::Short(100));
    for tag in 0..4 {
        let buffer = bench.pool.take(BLOCK).unwrap();
        bench.submit(tag, Extent::new(0, BLOCK as u64), Action::read(buffer));
    }
    let ends: Vec<_> = bench
        .finish()
        .into_iter()
        .map(|completion| completion.result.err().map(|error| error.status))
        .collect();
    let (short, failed) = (Status::Short { moved: 0 }, Status::Errno(libc::EIO));
    assert_eq!(ends, [None, Some(short), Some(failed), None]);
}

#[test]
fn rot_lies_over_the_medium_until_the_byte_is_written_again() {
    let mut bench = Bench::new(SimProfile::default());
    bench.write(0, 0x0F, true);
    bench.finish();
    bench.disk.rot(10, 0xFF);
    assert_eq!(bench.disk.peek(9, 3), [0x0F, 0xF0, 0x0F]);
    bench.disk.cut_power(PowerCut::DropAll);
    assert_eq!(bench.disk.peek(10, 1), [0xF0], "no power cut heals it");
    let mut bench = Bench::on(bench.disk);
    bench.write(0, 1, false);
    bench.finish();
    assert_eq!(bench.disk.peek(10, 1), [1]);
}

#[test]
fn a_block_that_cannot_be_read_fails_each_read_of_it_until_a_write_is_on_the_medium() {
    let mut bench = Bench::new(SimProfile { latency_ticks_max: 1, ..SimProfile::default() });
    let read = |bench: &mut Bench, blocks: usize| {
        let buffer = bench.pool.take(blocks * BLOCK).unwrap();
        let extent = Extent::new(0, (blocks * BLOCK) as u64);
        bench.submit(7, extent, Action::read(buffer));
        bench.finish().pop().unwrap().result.map_err(|error| error.status)
    };
    bench.disk.make_unreadable(BLOCK as u64 + 5);
    for _ in 0..2 {
        assert!(read(&mut bench, 1).is_ok());
        assert_eq!(read(&mut bench, 2), Err(Status::Errno(libc::EIO)));
    }
    bench.write(1, 3, false);
    bench.finish();
    assert!(read(&mut bench, 2).is_ok(), "what is in the cache can be read");
    bench.disk.cut_power(PowerCut::DropAll);
    let mut bench = Bench::on(bench.disk);
    assert_eq!(read(&mut bench, 2), Err(Status::Errno(libc::EIO)), "and was lost with it");
    bench.write(1, 3, true);
    bench.finish();
    bench.disk.cut_power(PowerCut::DropAll);
    let mut bench = Bench::on(bench.disk);
    assert!(read(&mut bench, 2).is_ok());
    bench.disk.make_unreadable(0);
    bench.disk.restore(0);
    assert!(read(&mut bench, 2).is_ok());
}
