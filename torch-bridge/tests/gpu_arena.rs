//! A GPU's memory out of an arena, through the C ABI, on a GPU whose copies are late.
#![allow(unsafe_code, missing_docs)]
#![allow(clippy::wildcard_imports)]

use std::ffi::{c_char, c_void};
use std::ptr::{null, null_mut};
use std::sync::Arc;

use tidelog::abi::*;
use tidelog_gds::Gpu;
use tidelog_gds::cuda::{DevicePointer, Event, Stream};
use tidelog_random::Random;
use tidelog_tests::abi::last_error;
use tidelog_tests::machine::FakeGpu;

const GRANULE: u64 = 2 << 20;
/// Bytes of an allocation that a test looks at.
const SEEN: usize = 4096;

struct OpenArena(u64);

impl OpenArena {
    fn new(granules: u64) -> Self {
        let (mut least, mut arena) = (0, 0);
        // SAFETY: both are one u64.
        let opened =
            unsafe { tide_gpu_arena_open(1, granules * GRANULE, &raw mut least, &raw mut arena) };
        assert_eq!(opened, TIDE_READY, "{}", last_error());
        assert_eq!(least, GRANULE / 2);
        Self(arena)
    }

    fn take(&self, bytes: u64, waits: &Stream, uses: &Stream) -> Option<u64> {
        let mut address = 0;
        // SAFETY: tests have their streams open.
        let found = unsafe {
            tide_gpu_arena_allocate(self.0, bytes, raw(waits), raw(uses), &raw mut address)
        };
        assert!(found >= 0, "{}", last_error());
        (found == 1).then_some(address)
    }

    fn figures(&self) -> serde_json::Value {
        let mut text = vec![0_u8; 4096];
        // SAFETY: the buffer has as many bytes.
        let length = unsafe {
            tide_gpu_arena_figures(self.0, text.as_mut_ptr().cast::<c_char>(), text.len())
        };
        serde_json::from_slice(&text[..length]).unwrap()
    }

    fn close(self) {
        assert_eq!(tide_gpu_arena_close(self.0), TIDE_READY);
    }
}

fn raw(stream: &Stream) -> *mut c_void {
    stream.foreign().0 as *mut c_void
}

fn free(address: u64) {
    // SAFETY: tests put all uses into streams before.
    assert_eq!(unsafe { tide_gpu_arena_free(address, null(), 0, null_mut()) }, 1);
}

/// Frees memory that is used still by what comes before an event, and by these streams before that.
fn free_behind(address: u64, covered: &[&Stream], event: &Event) {
    let covered: Vec<u64> = covered.iter().map(|stream| stream.foreign().0).collect();
    // SAFETY: as above, and the event is recorded.
    let freed =
        unsafe { tide_gpu_arena_free(address, covered.as_ptr(), covered.len(), event.as_raw()) };
    assert_eq!(freed, 1);
}

fn streams<const COUNT: usize>(gpu: &Arc<Gpu>) -> [Stream; COUNT] {
    std::array::from_fn(|_| Stream::new(gpu).unwrap())
}

fn assert_nothing_is_left(fake: &FakeGpu) {
    assert_eq!((fake.count("mapped_bytes"), fake.count("allocated")), (0, 0));
    fake.assert_lawful();
}

/// Bytes that a test writes into an allocation and reads back, both late.
struct Written {
    bytes: Vec<u8>,
    read: Vec<u8>,
}

impl Written {
    fn new(number: usize) -> Self {
        let bytes = (0..SEEN).map(|at| (at * 7 + number * 131) as u8).collect();
        Self { bytes, read: vec![0; SEEN] }
    }

    /// Writes the last bytes of an allocation in a stream.
    fn put(&self, at: u64, length: u64, stream: &Stream) {
        let to = DevicePointer(at + length - SEEN as u64);
        // SAFETY: the memory is allocated; what is written lives until all is done.
        unsafe { stream.copy_in(self.bytes.as_ptr(), to, SEEN) }.unwrap();
    }

    fn get(&mut self, at: u64, length: u64, stream: &Stream) {
        let from = DevicePointer(at + length - SEEN as u64);
        // SAFETY: as above.
        unsafe { stream.copy_out(from, self.read.as_mut_ptr(), SEEN) }.unwrap();
    }
}

/// A program that allocates on one of three streams, writes, lets a second one read, and frees at
/// once; or has a copy of what is there made by a fourth stream, as evictions do, and frees behind
/// that. Fetches ask on a fifth.
fn run(seed: u64) {
    let fake = FakeGpu::start(seed, (seed % 6) as u32);
    let gpu = fake.gpu();
    let mut random = Random::new(seed);
    let all: [Stream; 5] = streams(&gpu);
    let [out, fetch] = [&all[3], &all[4]];
    let arena = OpenArena::new(12);
    let (mut written, mut live, mut declined) = (Vec::new(), Vec::new(), 0);
    for number in 0..120 {
        let home = &all[random.below(3) as usize];
        let length = GRANULE * (1 + random.below(5)) - random.below(2) * 1000;
        let asks = if random.chance(3) { fetch } else { home };
        let Some(address) = arena.take(length, asks, home) else {
            declined += 1;
            let (address, ..): (u64, u64) =
                live.swap_remove(random.below(live.len() as u64) as usize);
            free(address);
            continue;
        };
        let mut it = Written::new(number);
        it.put(address, length, asks);
        if std::ptr::eq(asks, fetch) {
            let landed = Event::new(&gpu).unwrap();
            landed.record(fetch).unwrap();
            home.wait_for(&landed).unwrap();
        }
        match random.below(4) {
            0 => {
                it.get(address, length, home);
                free(address);
            }
            1 => {
                let other = &all[random.below(3) as usize];
                let made = Event::new(&gpu).unwrap();
                made.record(home).unwrap();
                other.wait_for(&made).unwrap();
                // SAFETY: the stream is open.
                assert_eq!(unsafe { tide_gpu_arena_use(address, raw(other)) }, 1);
                it.get(address, length, other);
                free(address);
            }
            2 => {
                let (made, read) = (Event::new(&gpu).unwrap(), Event::new(&gpu).unwrap());
                made.record(home).unwrap();
                out.wait_for(&made).unwrap();
                it.get(address, length, out);
                read.record(out).unwrap();
                free_behind(address, &[home], &read);
            }
            _ => {
                it.get(address, length, home);
                live.push((address, length));
            }
        }
        written.push(it);
    }
    for (address, _) in live {
        free(address);
    }
    let figures = arena.figures();
    assert_eq!((&figures["allocated"], &figures["requested"]), (&0.into(), &0.into()));
    assert_eq!(figures["declined"], declined);
    assert_eq!(figures["error"], serde_json::Value::Null);
    arena.close();
    gpu.synchronize().unwrap();
    for (number, it) in written.iter().enumerate() {
        assert!(it.bytes == it.read, "seed {seed}: allocation {number} was written by another one");
    }
    assert_nothing_is_left(&fake);
}

#[test]
fn each_allocation_is_its_own_until_its_last_use_in_any_stream() {
    for seed in 0..60 {
        run(seed);
    }
}

#[test]
fn a_step_that_was_seen_asks_the_driver_for_nothing() {
    let fake = FakeGpu::start(5, 4);
    let gpu = fake.gpu();
    let [home, fetch]: [Stream; 2] = streams(&gpu);
    let arena = OpenArena::new(20);
    let mut counts = Vec::new();
    for _ in 0..12 {
        let kept: Vec<_> =
            (1..5).map(|size| arena.take(size * GRANULE, &home, &home).unwrap()).collect();
        free(kept[1]);
        let fetched = arena.take(2 * GRANULE, &fetch, &home).unwrap();
        for address in [kept[0], kept[3], fetched, kept[2]] {
            free(address);
        }
        counts.push((fake.count("creations"), fake.count("unmappings")));
    }
    // As long as there is memory that nobody has used, a stream need not wait for any.
    assert!(counts[11].0 - counts[0].0 < 20, "{counts:?}");
    assert!(counts[6..].iter().all(|count| *count == counts[6]), "{counts:?}");
    arena.close();
    assert_nothing_is_left(&fake);
}

#[test]
fn what_is_free_in_pieces_is_one_again() {
    let fake = FakeGpu::start(7, 3);
    let gpu = fake.gpu();
    let [home, fetch]: [Stream; 2] = streams(&gpu);
    let arena = OpenArena::new(8);
    let all: Vec<_> = (0..8).map(|_| arena.take(GRANULE, &home, &home).unwrap()).collect();
    for address in all.iter().step_by(2) {
        free(*address);
    }
    assert_eq!(arena.take(5 * GRANULE, &fetch, &home), None, "there is not so much");
    let together = arena.take(4 * GRANULE, &fetch, &home).expect("there is as much");
    let mut it = Written::new(1);
    it.put(together, 4 * GRANULE, &fetch);
    it.get(together, 4 * GRANULE, &fetch);
    fetch.synchronize().unwrap();
    assert!(it.bytes == it.read);
    let figures = arena.figures();
    assert_eq!(figures["remapped"], 4 * GRANULE);
    assert_eq!(figures["made"], 8 * GRANULE);
    assert_eq!(figures["declined"], 1);
    for address in all.iter().skip(1).step_by(2).chain([&together]) {
        free(*address);
    }
    arena.close();
    assert_nothing_is_left(&fake);
}

#[test]
fn what_the_driver_refuses_ends_the_arena_and_loses_nothing() {
    for call in ["create", "map", "access", "unmap", "record", "query"] {
        let fake = FakeGpu::start(9, 0);
        let gpu = fake.gpu();
        let [home]: [Stream; 1] = streams(&gpu);
        let arena = OpenArena::new(10);
        let kept: Vec<_> = (0..4).map(|_| arena.take(2 * GRANULE, &home, &home).unwrap()).collect();
        let mut it = Written::new(2);
        it.put(kept[1], 2 * GRANULE, &home);
        if call == "record" {
            fake.plan(call, 0, 999, 1);
        }
        free(kept[0]);
        free(kept[2]);
        if call != "record" {
            fake.plan(call, 0, 999, 1);
        }
        assert_eq!(arena.take(4 * GRANULE, &home, &home), None, "{call}");
        assert_eq!(arena.take(GRANULE, &home, &home), None, "{call}: it goes on");
        let error = arena.figures()["error"].to_string();
        assert!(error.contains("999"), "{call}: {error}");
        it.get(kept[1], 2 * GRANULE, &home);
        home.synchronize().unwrap();
        assert!(it.bytes == it.read, "{call}");
        free(kept[1]);
        arena.close();
        free(kept[3]);
        assert_nothing_is_left(&fake);
    }
}

#[test]
fn where_the_gpu_has_no_memory_left_another_allocator_is_asked() {
    let fake = FakeGpu::start(9, 0);
    let gpu = fake.gpu();
    let set_capacity: unsafe extern "C" fn(u64) = fake.get("fake_capacity");
    // SAFETY: declared so in mapping.c.
    unsafe { set_capacity(3 * GRANULE) };
    let [home]: [Stream; 1] = streams(&gpu);
    let arena = OpenArena::new(8);
    let first = arena.take(2 * GRANULE, &home, &home).unwrap();
    assert_eq!(arena.take(2 * GRANULE, &home, &home), None);
    assert_eq!(arena.figures()["error"], serde_json::Value::Null);
    free(first);
    assert_eq!(tide_gpu_arena_trim(arena.0), TIDE_READY);
    assert_eq!(fake.count("mapped_bytes"), 0, "what is free was kept");
    // SAFETY: as above.
    unsafe { set_capacity(8 * GRANULE) };
    let all = arena.take(8 * GRANULE, &home, &home).unwrap();
    free(all);
    arena.close();
    assert_nothing_is_left(&fake);
}

#[test]
fn what_is_allocated_stays_when_the_arena_is_closed() {
    let fake = FakeGpu::start(11, 5);
    let gpu = fake.gpu();
    let [home]: [Stream; 1] = streams(&gpu);
    let arena = OpenArena::new(8);
    let kept: Vec<_> = (0..3).map(|_| arena.take(2 * GRANULE, &home, &home).unwrap()).collect();
    free(kept[1]);
    let number = arena.0;
    arena.close();
    assert_eq!(fake.count("mapped_bytes"), 4 * GRANULE, "what was free is the driver's again");
    let mut address = 0;
    // SAFETY: the streams are open.
    let asked = unsafe {
        tide_gpu_arena_allocate(number, GRANULE, raw(&home), raw(&home), &raw mut address)
    };
    assert_eq!(asked, TIDE_STALE_HANDLE);
    let mut it = Written::new(3);
    it.put(kept[2], 2 * GRANULE, &home);
    it.get(kept[2], 2 * GRANULE, &home);
    free(kept[2]);
    assert_eq!(fake.count("mapped_bytes"), 2 * GRANULE);
    assert!(it.bytes == it.read, "its memory went before its last use");
    free(kept[0]);
    // SAFETY: nothing is there.
    unsafe {
        assert_eq!(tide_gpu_arena_free(kept[0], null(), 0, null_mut()), 0, "it is not there");
        assert_eq!(tide_gpu_arena_use(kept[0], raw(&home)), 0);
    }
    assert_nothing_is_left(&fake);
}

/// A part has no other allocator, and behind a block all tensors come back.
#[test]
fn a_part_comes_back_to_a_closed_arena_that_is_full() {
    let fake = FakeGpu::start(21, 5);
    let gpu = fake.gpu();
    let [home]: [Stream; 1] = streams(&gpu);
    let arena = OpenArena::new(6);
    let whole = arena.take(4 * GRANULE, &home, &home).unwrap();
    // SAFETY: nothing uses the part, and the stream is open.
    let freed = unsafe { tide_gpu_arena_free_part(whole, GRANULE, 2 * GRANULE, null_mut()) };
    assert_eq!(freed, 1);
    let other = arena.take(4 * GRANULE, &home, &home).unwrap();
    // SAFETY: the stream is open.
    let comes = || unsafe { tide_gpu_arena_allocate_part(whole, GRANULE, 2 * GRANULE, raw(&home)) };
    assert_eq!(comes(), 0, "another has the memory");
    arena.close();
    assert_eq!(comes(), 1, "{}", last_error());
    let mut it = Written::new(4);
    it.put(whole, 3 * GRANULE, &home);
    it.get(whole, 3 * GRANULE, &home);
    free(whole);
    assert!(it.bytes == it.read, "its memory went before its last use");
    free(other);
    assert_nothing_is_left(&fake);
}

#[test]
fn nothing_is_asked_of_a_stream_that_is_captured() {
    let fake = FakeGpu::start(13, 0);
    let gpu = fake.gpu();
    let [home, other]: [Stream; 2] = streams(&gpu);
    let arena = OpenArena::new(2);
    let kept = arena.take(2 * GRANULE, &home, &home).unwrap();
    let begin: unsafe extern "C" fn(*mut c_void, i32) -> i32 = fake.get("cuStreamBeginCapture_v2");
    let end: unsafe extern "C" fn(*mut c_void, *mut *mut c_void) -> i32 =
        fake.get("cuStreamEndCapture");
    // SAFETY: declared so in capture.c.
    assert_eq!(unsafe { begin(raw(&home), 0) }, 0);
    assert_eq!(arena.take(GRANULE, &home, &home), None, "a graph has memory of its own");
    free(kept);
    assert_eq!(arena.take(GRANULE, &other, &other), None, "its last use is not known");
    let mut graph = null_mut();
    // SAFETY: as above.
    assert_eq!(unsafe { end(raw(&home), &raw mut graph) }, 0, "the capture was spoiled");
    free(arena.take(GRANULE, &other, &other).expect("it is known now"));
    assert_eq!(arena.figures()["error"], serde_json::Value::Null);
    arena.close();
    assert_nothing_is_left(&fake);
}

#[test]
fn threads_allocate_and_free_at_once() {
    let fake = FakeGpu::start(15, 2);
    let gpu = fake.gpu();
    let arena = OpenArena::new(16);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (gpu, arena) = (&gpu, &arena);
            scope.spawn(move || {
                let home = Stream::new(gpu).unwrap();
                let mut written = Vec::new();
                for number in 0..30 {
                    let Some(address) = arena.take(2 * GRANULE, &home, &home) else { continue };
                    let mut it = Written::new(thread * 100 + number);
                    it.put(address, 2 * GRANULE, &home);
                    it.get(address, 2 * GRANULE, &home);
                    free(address);
                    written.push(it);
                }
                home.synchronize().unwrap();
                assert!(written.iter().all(|it| it.bytes == it.read));
            });
        }
    });
    arena.close();
    assert_nothing_is_left(&fake);
}

#[test]
fn a_child_of_fork_has_none_of_it() {
    let fake = FakeGpu::start(17, 0);
    let gpu = fake.gpu();
    let [home]: [Stream; 1] = streams(&gpu);
    let arena = OpenArena::new(4);
    let kept = arena.take(GRANULE, &home, &home).unwrap();
    let (stream, mut address) = (raw(&home), 0);
    // SAFETY: the child calls functions that ask no lock of the parent's, and leaves by `_exit`.
    let child = unsafe { libc::fork() };
    if child == 0 {
        // SAFETY: as above.
        let are_right = unsafe {
            tide_gpu_arena_allocate(arena.0, GRANULE, stream, stream, &raw mut address)
                == TIDE_FORKED
                && tide_gpu_arena_free(kept, null(), 0, null_mut()) == 0
                && tide_gpu_arena_use(kept, stream) == 0
        };
        // SAFETY: ends the process without running anything of the parent's.
        unsafe { libc::_exit(i32::from(!are_right)) };
    }
    let mut status = 0;
    // SAFETY: waits for our own child and writes one integer.
    assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
    assert_eq!(status, 0);
    free(kept);
    arena.close();
    assert_nothing_is_left(&fake);
}
