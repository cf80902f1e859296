//! Calibration of devices that are models, whose time is virtual, and of pools that hold something.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use super::sweep::{CalibrationSweep, STRIPE_UNITS, smallest_that_is_enough};
use super::*;
use crate::layout::TensorId;
use crate::memory::{Destination, DmaPool, Source};
use crate::path::sim::{Fault, SimDisk, SimPath};
use crate::path::{
    Capabilities, Completion, DataPath, OpenedPath, Operation, OperationKind, PathProvider,
    Refusal, Waker,
};
use crate::pool::members::{MemberAccess, Members};
use crate::pool::{FormatError, FormatOptions, OpenOptions, Pool, PutOptions};
use crate::schedule::Urgency;

/// Devices that take `each` for an operation, several at a time, and move `bandwidth` bytes in a
/// microsecond, one after the other.
struct Model {
    disks: Vec<SimDisk>,
    each: Duration,
    /// Bandwidth of each device.
    bandwidth: Vec<u64>,
    now: Arc<AtomicU64>,
    /// Number of operations that each device takes at once.
    places: u32,
}

struct ModelPath {
    inner: SimPath,
    model: Model,
    /// Time at which the bus of each device is free again.
    free_at: Vec<u64>,
    /// Operations in flight, with the time of their end.
    due: Vec<(u64, Operation)>,
}

impl PathProvider for Model {
    fn open(self: Box<Self>, depth: u32) -> Result<OpenedPath, PathError> {
        let inner = SimPath::new(self.disks.clone(), depth.min(self.places))?;
        let free_at = vec![0; self.disks.len()];
        let path = Box::new(ModelPath { inner, model: *self, free_at, due: Vec::new() });
        Ok(OpenedPath { path, why_not: Vec::new() })
    }
}

// SAFETY: an operation keeps its buffer until it completes, and nothing touches it. No byte is
// moved: who measures does not look at them.
#[allow(unsafe_code)]
unsafe impl DataPath for ModelPath {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn register(&mut self, region: &DmaPool) {
        self.inner.register(region);
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        if self.due.len() >= self.inner.capabilities().depth as usize {
            return Err(Refused { reason: Refusal::Full, operation });
        }
        let device = usize::from(operation.device.0);
        let free_at = &mut self.free_at[device];
        let moving = operation.extent.length.0 * 1000 / self.model.bandwidth[device];
        let ready = self.model.now.load(Relaxed) + self.model.each.as_nanos() as u64;
        *free_at = (*free_at).max(ready) + moving;
        self.due.push((*free_at, operation));
        Ok(())
    }

    fn ring(&mut self) -> io::Result<()> {
        Ok(())
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        let Some(next) = (0..self.due.len()).min_by_key(|&index| self.due[index].0) else {
            return 0;
        };
        let (due, Operation { tag, action, .. }) = self.due.swap_remove(next);
        self.model.now.fetch_max(due, Relaxed);
        let memory = action.into_memory();
        completions.push(Completion { tag, memory, checksum: None, result: Ok(()) });
        1
    }

    fn wait(&mut self, _timeout: Option<Duration>) -> io::Result<()> {
        Ok(())
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn abort(&mut self, _tag: u64) {}

    fn in_flight(&self) -> usize {
        self.due.len()
    }

    fn abort_all(&mut self) {}
}

fn calibrated(each: Duration, bandwidth: u64, units: &[ByteCount]) -> Calibration {
    calibrated_with(u32::MAX, each, vec![bandwidth; 2], units)
}

fn calibrated_with(
    places: u32,
    each: Duration,
    bandwidth: Vec<u64>,
    units: &[ByteCount],
) -> Calibration {
    let devices = bandwidth.len();
    let disks: Vec<SimDisk> = (0..devices).map(|_| SimDisk::new(ByteCount::mib(32))).collect();
    let now = Arc::new(AtomicU64::new(0));
    let model = Model { disks, each, bandwidth, now: Arc::clone(&now), places };
    let area = [Extent::new(1 << 20, 8 << 20), Extent::new(16 << 20, 16 << 20)];
    let clock = move || Duration::from_nanos(now.load(Relaxed));
    let sweep = CalibrationSweep { devices, area: &area, units, clock: &clock };
    sweep.run(Box::new(model), &mut |_| ()).unwrap()
}

#[test]
fn the_depth_is_what_latency_and_bandwidth_ask_for() {
    // A unit of 256 KiB moves in 65 us; at depth n, n of them take 1 ms and n times 65 us at least:
    // 16 hide it.
    let slow_answers = calibrated(Duration::from_millis(1), 4000, &[ByteCount::kib(256)]);
    assert_eq!((slow_answers.stripe_unit, slow_answers.depth), (ByteCount::kib(256), 16));
    let quick_answers = calibrated(Duration::from_micros(20), 4000, &[ByteCount::kib(256)]);
    assert_eq!(quick_answers.depth, 2);
    // Both devices of 4 GB/s each, and 1 ms + 65 us for a lone operation.
    let alone = slow_answers.measurements[0];
    assert_eq!(alone.depth, 1);
    assert!((4.5e8..5.1e8).contains(&alone.write), "{alone:?}");
    let fastest = slow_answers.measurements.iter().map(|it| it.read).fold(0.0, f64::max);
    assert!((7.5e9..8.01e9).contains(&fastest), "{fastest}");
}

#[test]
fn no_depth_is_tried_that_a_device_does_not_take() {
    for (places, deepest) in [(63, 32), (20, 16), (1, 1)] {
        let found =
            calibrated_with(places, Duration::from_millis(1), vec![40_000; 2], &STRIPE_UNITS);
        let mut depths = found.measurements.iter().map(|it| it.depth);
        assert!(depths.clone().all(|depth| depth <= places), "{found:?}");
        assert_eq!((found.depth, depths.next_back()), (deepest, Some(deepest)), "of {places}");
    }
}

#[test]
fn the_stripe_unit_is_the_smallest_that_hides_the_cost_of_an_operation() {
    // 32 in flight: units of 64 KiB (16 us each) cannot hide 3 ms, those of 512 KiB (131 us each)
    // can.
    let found = calibrated(Duration::from_millis(3), 4000, &STRIPE_UNITS);
    assert_eq!(found.stripe_unit, ByteCount::kib(512));
    let none = calibrated(Duration::ZERO, 4000, &STRIPE_UNITS);
    assert_eq!((none.stripe_unit, none.depth), (ByteCount::kib(64), 1));
}

#[test]
fn where_nothing_is_fast_both_ways_the_least_loss_is_taken() {
    let of = |depth, write, read| Measurement { chunk: ByteCount::kib(64), depth, write, read };
    let measured = [of(1, 10.0, 2.0), of(2, 8.0, 8.0), of(4, 2.0, 10.0)];
    assert_eq!(smallest_that_is_enough(&measured).map(|it| it.depth), Some(2));
    assert_eq!(smallest_that_is_enough(&[]), None);
}

fn disks(mib: u64) -> Vec<SimDisk> {
    (0..2).map(|_| SimDisk::new(ByteCount::mib(mib))).collect()
}

fn quick() -> OpenOptions {
    OpenOptions { huge_pages: false, ..OpenOptions::default() }
}

fn read(pool: &Pool, id: TensorId, length: u64) -> Vec<u8> {
    let memory = Destination::buffer(length as usize);
    let ticket = pool.get(id, 0..length, memory, Urgency::Urgent, None).unwrap();
    ticket.wait().unwrap();
    ticket.take_bytes().unwrap()
}

fn stored(disks: &[SimDisk]) -> Vec<Option<u32>> {
    let members = Members::open(disks, &MemberAccess::to_look(false)).unwrap();
    members.iter().map(|it| it.superblock().unwrap().depth).collect()
}

#[test]
fn a_pool_is_calibrated_and_keeps_every_tensor() {
    let disks = disks(64);
    Pool::format(&disks, &FormatOptions { share_count: 2, ..FormatOptions::default() }).unwrap();
    assert_eq!(stored(&disks), [None, None]);
    let content: Vec<u8> = (0..3_000_000_u32).map(|it| it as u8).collect();
    for share in 0..2 {
        let pool = Pool::open(&disks, &OpenOptions { share, ..quick() }).unwrap();
        let mut batch = pool.batch();
        let id = TensorId(share.into());
        batch.put(id, Source::from(content.clone()), PutOptions::default()).unwrap();
        batch.commit().unwrap();
        pool.close().unwrap();
    }
    let mut steps = Vec::new();
    let found = Pool::calibrate(&disks, false, &mut |step| steps.push(step)).unwrap();
    assert_eq!(found.stripe_unit, ByteCount::kib(256));
    assert_eq!(steps.last().map(|it| it.done), Some(steps.len()));
    assert_eq!(stored(&disks), [Some(found.depth); 2]);
    for share in 0..2 {
        let pool = Pool::open(&disks, &OpenOptions { share, ..quick() }).unwrap();
        assert!(read(&pool, TensorId(share.into()), 3_000_000) == content);
        // Room for as many operations on each of two disks.
        let depth = |pool: &Pool| pool.stats().unwrap().reactor.capabilities.depth;
        assert_eq!(depth(&pool), 2 * found.depth);
        pool.close().unwrap();
        let told = OpenOptions { share, depth: Some(3), ..quick() };
        assert_eq!(depth(&Pool::open(&disks, &told).unwrap()), 6, "who names one gets that");
    }
}

#[test]
fn a_device_that_fails_meanwhile_leaves_the_pool_as_it_was() {
    let disks = disks(64);
    Pool::format(&disks, &FormatOptions::default()).unwrap();
    let pool = Pool::open(&disks, &quick()).unwrap();
    let mut batch = pool.batch();
    batch.put(TensorId(1), Source::from(vec![5; 100_000]), PutOptions::default()).unwrap();
    batch.commit().unwrap();
    drop(pool);
    disks[1].plan_fault(OperationKind::Write, 200, Fault::Errno(libc::EIO));
    let failed = Pool::calibrate(&disks, false, &mut |_| ());
    assert!(matches!(failed, Err(CalibrateError::Failed(_))), "{failed:?}");
    assert_eq!(stored(&disks), [None, None]);
    let pool = Pool::open(&disks, &quick()).unwrap();
    assert_eq!(read(&pool, TensorId(1), 100_000), vec![5; 100_000]);
}

#[test]
fn a_pool_without_free_room_is_refused() {
    let disks = disks(4);
    let unit = FormatOptions { stripe_unit: ByteCount::kib(64), ..FormatOptions::default() };
    Pool::format(&disks, &unit).unwrap();
    let pool = Pool::open(&disks, &quick()).unwrap();
    let mut batch = pool.batch();
    for id in 0.. {
        let source = Source::from(vec![5; 256 << 10]);
        if batch.put(TensorId(id), source, PutOptions::default()).is_err() {
            break;
        }
    }
    batch.commit().unwrap();
    drop(pool);
    let refused = Pool::calibrate(&disks, false, &mut |_| ());
    assert!(matches!(refused, Err(CalibrateError::NoRoom)), "{refused:?}");
}

#[test]
fn formatting_takes_the_stripe_unit_that_was_measured() {
    let disks = disks(64);
    let options = FormatOptions { calibrate: true, ..FormatOptions::default() };
    let made = Pool::format(&disks, &options).unwrap();
    assert!(STRIPE_UNITS.contains(&ByteCount(made.geometry.stripe_unit)));
    assert!(matches!(stored(&disks)[..], [Some(first), Some(second)] if first == second));
    Pool::open(&disks, &quick()).unwrap();

    let small = [SimDisk::new(ByteCount::mib(1))];
    let refused = Pool::format(&small, &options);
    assert!(matches!(refused, Err(FormatError::Geometry(_))), "{refused:?}");
}

#[test]
fn a_slow_device_is_named_and_gets_fewer_segments() {
    let unit = [ByteCount::kib(256)];
    let each = Duration::from_micros(50);
    let measured = |bandwidth| calibrated_with(u32::MAX, each, bandwidth, &unit);
    let found = measured(vec![3000, 1000, 3000]);
    assert_eq!(found.slow(), [1]);
    assert!(found.is_shared_out());
    let [fast, slow] = [0, 1].map(|device| found.devices[device].write);
    assert!((2.5..3.2).contains(&(fast / slow)), "{:?}", found.devices);
    let equal = measured(vec![3000, 2800, 3000]);
    assert!(equal.slow().is_empty() && !equal.is_shared_out(), "{:?}", equal.devices);
}
