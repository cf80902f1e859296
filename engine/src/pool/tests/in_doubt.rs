//! Operations that never come back: whoever gave them to the devices keeps the locks, however it
//! ends.

use std::io;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

use super::*;
use crate::memory::DmaPool;
use crate::path::{
    Capabilities, Completion, DataPath, DeviceOpenError, MemberDevice, MemberError, MemberSource,
    OpenMode, OpenedPath, Operation, PathError, PathProvider, PathRequest, Refused, Waker,
};
use crate::pool::calibrate::CalibrateError;
use crate::pool::inspect::check;

/// A disk whose locks are counted, and whose data path dies.
#[derive(Clone)]
struct Mortal {
    disk: SimDisk,
    shared: Arc<State>,
}

#[derive(Default)]
struct State {
    /// Members that are open, which have the locks.
    locks: AtomicUsize,
    /// Operations that the paths take yet. The one after them never comes back, nor any other.
    left: AtomicUsize,
}

struct MortalMember {
    inner: Box<dyn MemberDevice>,
    shared: Arc<State>,
}

struct MortalDevices {
    inner: Box<dyn PathProvider>,
    shared: Arc<State>,
}

struct MortalPath {
    inner: Box<dyn DataPath>,
    shared: Arc<State>,
    dead: bool,
}

impl MemberSource for Mortal {
    fn name(&self, place: usize) -> String {
        self.disk.name(place)
    }

    fn open_member(
        &self,
        place: usize,
        shares: Range<u32>,
        mode: OpenMode,
    ) -> Result<Box<dyn MemberDevice>, MemberError> {
        let inner = self.disk.open_member(place, shares, mode)?;
        self.shared.locks.fetch_add(1, Relaxed);
        Ok(Box::new(MortalMember { inner, shared: Arc::clone(&self.shared) }))
    }
}

impl Drop for MortalMember {
    fn drop(&mut self) {
        self.shared.locks.fetch_sub(1, Relaxed);
    }
}

impl MemberDevice for MortalMember {
    fn name(&self) -> String {
        self.inner.name()
    }

    fn size(&self) -> ByteCount {
        self.inner.size()
    }

    fn endurance(&self) -> Result<crate::path::Endurance, String> {
        self.inner.endurance()
    }

    fn is_block_device(&self) -> bool {
        false
    }

    fn is_private(&self) -> bool {
        true
    }

    fn read(&self, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        self.inner.read(offset, length)
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.inner.write(offset, bytes)
    }

    fn provider(
        &self,
        members: &[&dyn MemberDevice],
        request: &PathRequest<'_>,
    ) -> Result<Box<dyn PathProvider>, DeviceOpenError> {
        fn inner<'a>(member: &&'a dyn MemberDevice) -> Option<&'a dyn MemberDevice> {
            let member: &'a dyn std::any::Any = *member;
            Some(&*member.downcast_ref::<MortalMember>()?.inner)
        }
        let members: Vec<_> = members.iter().filter_map(inner).collect();
        let inner = self.inner.provider(&members, request)?;
        Ok(Box::new(MortalDevices { inner, shared: Arc::clone(&self.shared) }))
    }
}

impl PathProvider for MortalDevices {
    fn open(self: Box<Self>, depth: u32) -> Result<OpenedPath, PathError> {
        let OpenedPath { path: inner, why_not } = self.inner.open(depth)?;
        Ok(OpenedPath {
            path: Box::new(MortalPath { inner, shared: self.shared, dead: false }),
            why_not,
        })
    }
}

impl MortalPath {
    fn heed(&self) -> io::Result<()> {
        if self.dead { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
    }
}

// SAFETY: every operation goes to the path inside, and its completion comes from there or never.
#[allow(unsafe_code)]
unsafe impl DataPath for MortalPath {
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }

    fn register(&mut self, region: &DmaPool) {
        self.inner.register(region);
    }

    fn submit(&mut self, operation: Operation) -> Result<(), Refused> {
        let left = &self.shared.left;
        self.dead |= left.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1)).is_err();
        self.inner.submit(operation)
    }

    fn ring(&mut self) -> io::Result<()> {
        self.heed()?;
        self.inner.ring()
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) -> usize {
        if self.dead { 0 } else { self.inner.poll(completions) }
    }

    fn wait(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        self.heed()?;
        self.inner.wait(timeout)
    }

    fn waker(&self) -> Waker {
        self.inner.waker()
    }

    fn abort(&mut self, tag: u64) {
        self.inner.abort(tag);
    }

    fn in_flight(&self) -> usize {
        self.inner.in_flight()
    }

    fn abort_all(&mut self) {
        self.inner.abort_all();
    }
}

const DISKS: usize = 2;

fn devices(size: ByteCount) -> Vec<Mortal> {
    let shared = Arc::<State>::default();
    let device = || Mortal { disk: SimDisk::new(size), shared: Arc::clone(&shared) };
    std::iter::repeat_with(device).take(DISKS).collect()
}

/// Lets the path die at its `step`th operation, for each step until `act` succeeds; what it then
/// says. Answers at how many steps it failed.
fn die_at_each_step<T, E: std::fmt::Display>(
    make: impl Fn() -> Vec<Mortal>,
    act: impl Fn(&[Mortal]) -> Result<T, E>,
) -> usize {
    for step in 0.. {
        let devices = make();
        let State { locks, left } = &*devices[0].shared;
        assert_eq!(locks.load(Relaxed), 0);
        left.store(step, Relaxed);
        let done = act(&devices);
        let held = locks.load(Relaxed);
        match done {
            Ok(_) if left.load(Relaxed) > 0 => {
                assert_eq!(held, 0, "nothing was left on its way, and the locks are kept");
                return step;
            }
            Ok(_) => assert!(held == 0 || held == DISKS, "at step {step}"),
            Err(error) => assert_eq!(held, DISKS, "at step {step}: {error}"),
        }
    }
    unreachable!()
}

fn formatted() -> Vec<Mortal> {
    let devices = devices(ByteCount::mib(4));
    devices[0].shared.left.store(usize::MAX, Relaxed);
    Pool::format(&devices, &small()).unwrap();
    let pool = Pool::open(&devices, &quick()).unwrap();
    commit(&pool, &[(1, &bytes(1, 100_000))], &[]).unwrap();
    pool.close().unwrap();
    devices
}

#[test]
fn formatting_keeps_the_locks_of_devices_from_which_something_never_came_back() {
    let steps = die_at_each_step(
        || devices(ByteCount::mib(4)),
        |devices| Pool::format(devices, &small()).map(drop),
    );
    assert!(steps > 8, "{steps}");
}

#[test]
fn opening_and_closing_keep_the_locks_of_devices_from_which_something_never_came_back() {
    let steps = die_at_each_step(formatted, |devices| {
        let options = OpenOptions { staging: ByteCount::kib(256), ..quick() };
        let pool = Pool::open(devices, &options).map_err(|error| error.to_string())?;
        pool.close().map_err(|error| error.to_string())
    });
    assert!(steps > 8, "{steps}");
}

#[test]
fn checking_keeps_the_locks_of_devices_from_which_something_never_came_back() {
    let steps = die_at_each_step(formatted, |devices| {
        let report = check(devices, false, &mut |_| ()).map_err(|error| error.to_string())?;
        let found = report.damage.first().map(ToString::to_string);
        found.map_or(Ok(()), Err)
    });
    assert!(steps > 4, "{steps}");
}

#[test]
fn calibrating_keeps_the_locks_of_devices_from_which_something_never_came_back() {
    let devices = || {
        let devices = devices(ByteCount::mib(64));
        devices[0].shared.left.store(usize::MAX, Relaxed);
        Pool::format(&devices, &FormatOptions::default()).unwrap();
        devices
    };
    let held = |devices: &[Mortal]| devices[0].shared.locks.load(Relaxed);
    // While the index is read, and while devices are measured: with one in flight on each, and with
    // many.
    for (step, measuring) in [(0, false), (40, true), (4_000, true)] {
        let devices = devices();
        devices[0].shared.left.store(step, Relaxed);
        let error = Pool::calibrate(&devices, false, &mut |_| ()).unwrap_err();
        assert_eq!(held(&devices), DISKS, "at step {step}: {error}");
        assert_eq!(matches!(error, CalibrateError::Left { .. }), measuring, "{error}");
    }
    let devices = devices();
    Pool::calibrate(&devices, false, &mut |_| ()).unwrap();
    assert_eq!(held(&devices), 0);
    // The same where a pool is made.
    devices[0].shared.left.store(200, Relaxed);
    let options = FormatOptions { calibrate: true, overwrite: true, ..FormatOptions::default() };
    let error = Pool::format(&devices, &options).unwrap_err();
    assert_eq!(held(&devices), DISKS, "{error}");
}

#[test]
fn a_close_that_is_given_a_time_waits_no_longer_for_a_device() {
    let soon = Duration::from_secs(5);
    for hangs in [false, true] {
        let disks = disks(2, ByteCount::mib(4));
        let pool = open(&disks);
        put(&pool, 1, &bytes(1, 50_000));
        if hangs {
            disks[1].hang();
        } else {
            // It heeds an abort.
            disks[1].hold();
        }
        let ticket = start_put(&pool, 2, &bytes(2, 200_000)).unwrap();
        // Whoever waits in a call meanwhile is not waited for any longer either.
        let scrubbing = std::thread::spawn({
            let pool = pool.clone();
            move || pool.scrub()
        });
        let begun = std::time::Instant::now();
        let closed = pool.close_within(Duration::from_millis(100));
        assert!(begun.elapsed() < soon, "it took {:?}", begun.elapsed());
        assert_eq!(matches!(closed, Err(CloseError::Drain(_))), hangs, "{closed:?}");
        assert!(ticket.poll().unwrap().is_err());
        assert!(scrubbing.join().unwrap().is_err());
        assert!(matches!(pool.close_within(soon), Err(CloseError::Unusable(Unusable::Closed))));
    }
    // Nothing is cut off that needs no time.
    let disks = disks(2, ByteCount::mib(4));
    let pool = open(&disks);
    commit(&pool, &[(3, b"durable")], &[]).unwrap();
    pool.close_within(soon).unwrap();
    let pool = open(&disks);
    assert_eq!(get(&pool, 3).unwrap(), b"durable");
    pool.close_within(Duration::MAX).unwrap();
}
