//! What an operation allocates, counted: alone in its process, so that nobody else's allocations are.
#![allow(unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
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

/// Space and pieces of the log; the ticket, what is to be done when it ends, and what goes to the reactor's thread;
/// checksums; the entry of the index; and the simulated disk's copy.
const PUT_MAX: u64 = 15;
/// The same without space, checksums, entry and copy.
const GET_MAX: u64 = 7;
const OPERATIONS: u64 = 2000;
const TENSORS: u64 = 64;
const BYTES: usize = 4096;

fn pool() -> Pool {
    // Without a cache, and in order: a disk that does as little as it can.
    let profile =
        SimProfile { volatile_cache: false, latency_ticks_max: 1, ..SimProfile::default() };
    let disks = [SimDisk::with_profile(ByteCount::mib(32), profile)];
    Pool::format_sim(&disks, &FormatOptions::default()).unwrap();
    let options = OpenOptions { buffers: ByteCount::mib(1), ..OpenOptions::default() };
    Pool::open_sim(&disks, &options).unwrap()
}

fn id(turn: u64) -> TensorId {
    TensorId(u128::from(turn % TENSORS))
}

/// What one operation allocates, once everything that grows has grown.
fn allocations(mut operation: impl FnMut(u64)) -> u64 {
    (0..OPERATIONS).for_each(&mut operation);
    let before = ALLOCATIONS.load(Ordering::Relaxed);
    (0..OPERATIONS).for_each(&mut operation);
    (ALLOCATIONS.load(Ordering::Relaxed) - before).div_ceil(OPERATIONS)
}

fn ended(ticket: &Ticket) -> DmaBuffer {
    ticket.wait().unwrap();
    ticket.take_buffer().expect("it comes back")
}

/// None is what it should be. What is counted is named, so that one more is noticed, and one less, too.
#[test]
fn an_operation_allocates_what_is_known_and_nothing_that_grows_with_its_bytes() {
    let pool = pool();
    let queue = CompletionQueue::new();
    let mut kept = Some(pool.buffer(BYTES).unwrap().expect("there is room"));
    let puts = allocations(|turn| {
        let buffer = kept.take().expect("the last put gave it back");
        let options = PutOptions { notify: Some((queue.clone(), turn)), ..PutOptions::default() };
        let ticket = pool.put(id(turn), Source::Dma { buffer, length: BYTES }, options).unwrap();
        kept = Some(ended(&ticket));
        queue.wait_pop(Duration::MAX).unwrap().1.unwrap();
    });
    let gets = allocations(|turn| {
        let buffer = kept.take().expect("the last get gave it back");
        let (memory, bytes) = (Destination::Dma { buffer, length: BYTES }, 0..BYTES as u64);
        let notify = Some((queue.clone(), turn));
        let ticket = pool.get(id(turn), bytes, memory, Urgency::Urgent, notify).unwrap();
        kept = Some(ended(&ticket));
        queue.wait_pop(Duration::MAX).unwrap().1.unwrap();
    });
    println!("{puts} allocations in a put, {gets} in a get");
    assert!(puts <= PUT_MAX, "{puts} allocations in a put");
    assert!(gets <= GET_MAX, "{gets} allocations in a get");
}
