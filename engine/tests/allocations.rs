//! Allocations of an operation, counted: alone in its process and without the test harness, whose
//! thread allocates too.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, DmaBuffer, Source};
use tidelog_engine::path::sim::{SimDisk, SimProfile};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::{CompletionQueue, Ticket, Urgency};
use tidelog_engine::units::ByteCount;

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is passed on to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is the same.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const OPERATIONS: u64 = 2000;
const DISK: ByteCount = ByteCount::mib(32);
/// Number of puts, more than the disk has blocks: it takes memory for each when that is first
/// written.
const WARM_UP: u64 = 2 * DISK.0 / BYTES as u64;
const TENSORS: u64 = 64;
const BYTES: usize = 4096;

fn pool() -> Pool {
    let disks = [SimDisk::with_profile(DISK, SimProfile::plain())];
    Pool::format(&disks, &FormatOptions::default()).unwrap();
    let options = OpenOptions { buffers: ByteCount::mib(1), ..OpenOptions::default() };
    Pool::open(&disks, &options).unwrap()
}

fn id(turn: u64) -> TensorId {
    TensorId(u128::from(turn % TENSORS))
}

/// Asserts that an operation allocates nothing, once everything that grows has grown.
fn allocates_nothing(what: &str, mut operation: impl FnMut(u64)) {
    (0..WARM_UP).for_each(&mut operation);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..OPERATIONS).for_each(&mut operation);
    let after = ALLOCATIONS.load(Ordering::Relaxed);
    assert_eq!(after - before, 0, "{OPERATIONS} times: {what}");
    println!("{what}: no allocation");
}

/// A caller that has one operation in flight, and one buffer for all of them.
struct Caller {
    pool: Pool,
    queue: CompletionQueue,
    kept: Option<DmaBuffer>,
}

impl Caller {
    fn put(&mut self, turn: u64) {
        let buffer = self.kept.take().expect("the last operation gave it back");
        let notify = Some((self.queue.clone(), turn));
        let options = PutOptions { notify, ..PutOptions::default() };
        let source = Source::Dma { buffer, length: BYTES };
        let ticket = self.pool.put(id(turn), source, options).unwrap();
        self.end(&ticket);
    }

    fn get(&mut self, turn: u64) {
        let buffer = self.kept.take().expect("the last operation gave it back");
        let (memory, bytes) = (Destination::Dma { buffer, length: BYTES }, 0..BYTES as u64);
        let notify = Some((self.queue.clone(), turn));
        let ticket = self.pool.get(id(turn), bytes, memory, Urgency::Urgent, notify).unwrap();
        self.end(&ticket);
    }

    fn end(&mut self, ticket: &Ticket) {
        ticket.wait().unwrap();
        self.kept = ticket.take_buffer();
        self.queue.wait_pop(Duration::MAX).unwrap().1.unwrap();
    }
}

/// Counts with checksums, and on the reactor's thread and in the simulated disk as well as here.
fn main() {
    let pool = pool();
    let kept = Some(pool.buffer(BYTES).unwrap().expect("there is room"));
    let mut caller = Caller { pool, queue: CompletionQueue::new(), kept };
    let shared: Arc<[u8]> = vec![7; BYTES].into();
    allocates_nothing("put", |turn| caller.put(turn));
    allocates_nothing("get", |turn| caller.get(turn));
    allocates_nothing("put, then get", |turn| {
        caller.put(turn);
        caller.get(turn);
    });
    allocates_nothing("put, and then another over it", |turn| {
        caller.put(turn / 2);
    });
    allocates_nothing("put of other memory, by the staging ring", |turn| {
        let source = Source::Shared(Arc::clone(&shared));
        caller.pool.put(id(turn), source, PutOptions::default()).unwrap().wait().unwrap();
    });
    allocates_nothing("put, then delete", |turn| {
        caller.put(turn);
        caller.pool.delete(id(turn)).unwrap();
    });
}
