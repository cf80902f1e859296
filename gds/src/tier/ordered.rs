//! Puts for which the host does not wait: who uses the memory next waits on the GPU, for an event
//! behind the last look at it.
//!
//! Three streams, so that no checksum waits for one of another tensor, or for its copy:
//! - The first takes checksums, once the tensor's last known use is over.
//! - The second copies the bytes to host memory, behind these.
//! - The third takes checksums again, behind the copy and behind all that the caller had launched
//!   by then. Where the two differ, a kernel wrote the tensor of which nobody knew, and maybe
//!   before it was copied.
//!
//! Checksums lie in page-locked memory that is there from the start: to allocate some waits for all
//! that the GPU does.
//!
//! A thread reads both when they are there. Until then the copy is one that is on its way: what
//! reads it waits, and fails where the copy is of no use.
#![allow(unsafe_code)]

use std::collections::VecDeque;
use std::fmt;
use std::mem;
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tidelog_engine::memory::{GpuEvent, GpuRange, GpuSource};
use tidelog_engine::schedule::{Done, Notify, TransferError};

use super::copies::{PARTS, UNIT, units_of};
use super::host_copy::{HostCopy, bytes_of};
use super::space::{Room, TierSpace};
use super::{Books, HostTierError};
use crate::checksum::{Crc32c, sum_of};
use crate::cuda::{CopyTimer, CudaError, DevicePointer, Event, Gpu, HostMemory, HostWords, Stream};

/// Limits of the memory for checksums: enough for puts of gigabytes that are on their way at once.
const WORDS_BYTES: Range<usize> = 64 << 10..16 << 20;

/// Puts of which the host sees the end when it gets to that.
pub(super) struct OrderedPuts {
    gpu: Arc<Gpu>,
    streams: Mutex<PutStreams>,
    queue: Arc<Queue>,
    /// Memory for the checksums of puts, and what is free of it.
    words: Arc<HostWords>,
    free_words: TierSpace,
    thread: Option<JoinHandle<()>>,
}

struct PutStreams {
    copies: Stream,
    early_sums: Stream,
    late_sums: Stream,
    kernel: Crc32c,
    memory: Arc<HostMemory>,
}

#[derive(Debug, Default)]
struct Queue {
    puts: Mutex<Puts>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Puts {
    /// Puts in flight, in the order in which they end.
    on_the_way: VecDeque<OrderedPut>,
    /// Number of open puts: these, and the one whose end the thread waits for.
    open: usize,
    closed: bool,
}

/// A put whose end the host has not seen.
#[derive(Debug)]
struct OrderedPut {
    held: Arc<HostCopy>,
    /// Number of checksums, each of them twice in the words.
    units: u32,
    words: Option<PutWords>,
    timer: CopyTimer,
    done: Event,
    /// Queue that is notified of its end.
    notify: Notify,
}

/// Place of a put's checksums.
#[derive(Debug)]
struct PutWords {
    memory: Arc<HostWords>,
    /// The first of its words.
    first: u32,
    /// Room that it has in the memory of all puts; `None`: the memory is its own.
    _room: Option<Room>,
}

impl PutWords {
    fn address(&self, word: u32) -> DevicePointer {
        self.memory.address(self.first + word)
    }

    /// Returns a checksum of the put.
    fn sum(&self, unit: u32) -> u32 {
        sum_of(&self.memory, self.first + unit * PARTS, PARTS)
    }
}

impl OrderedPuts {
    /// Starts the thread. The time that copies take is added to `books`.
    pub(super) fn start(
        gpu: &Arc<Gpu>,
        memory: &Arc<HostMemory>,
        books: &Arc<Books>,
    ) -> Result<Self, HostTierError> {
        let of_all = units_of(memory.len()) as usize * 2 * PARTS as usize * size_of::<u32>();
        let bytes = of_all.clamp(WORDS_BYTES.start, WORDS_BYTES.end);
        let words = Arc::new(HostWords::new(gpu, (bytes / size_of::<u32>()) as u32)?);
        let streams = PutStreams {
            copies: Stream::new(gpu)?,
            early_sums: Stream::of_highest_priority(gpu)?,
            late_sums: Stream::of_highest_priority(gpu)?,
            kernel: Crc32c::new(gpu)?,
            memory: Arc::clone(memory),
        };
        let queue = Arc::new(Queue::default());
        let (gpu, books) = (Arc::clone(gpu), Arc::clone(books));
        let reader = Reader { gpu: Arc::clone(&gpu), queue: Arc::clone(&queue), books };
        let thread = thread::Builder::new().name("tidelog-tier-sums".to_owned());
        let thread = thread.spawn(move || reader.read());
        let thread = Some(thread.map_err(|error| HostTierError::Thread(error.to_string()))?);
        let (streams, free_words) = (Mutex::new(streams), TierSpace::new(bytes));
        Ok(Self { gpu, streams, queue, words, free_words, thread })
    }

    /// Puts a tensor into the streams, and returns its copy. The memory is free, and the event
    /// open, until `released` has happened, which is moved behind the last look at it. `notify`
    /// hears when the host has seen that, and what has come of it.
    pub(super) fn put(
        &self,
        source: &GpuSource,
        released: GpuEvent,
        room: Room,
        notify: Notify,
    ) -> Result<Arc<HostCopy>, HostTierError> {
        let units = units_of(source.range().length);
        let words = self.words_for(units.saturating_mul(2 * PARTS))?;
        let (copied, done) = (Event::new(&self.gpu)?, Event::awaited(&self.gpu)?);
        let timer = CopyTimer::new(&self.gpu)?;
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let events = PutEvents { released, timer: &timer, copied: &copied, done: &done };
        streams.begin(source.range(), &room, &words, units, &events)?;
        let held = Arc::new(HostCopy::coming(room, copied));
        let (copy, words) = (Arc::clone(&held), Some(words));
        let put = OrderedPut { held: copy, units, words, timer, done, notify };
        let mut puts = self.queue.lock();
        puts.on_the_way.push_back(put);
        puts.open += 1;
        drop(puts);
        self.queue.changed.notify_all();
        Ok(held)
    }

    /// Words for the checksums of a put. Where puts that are on their way have them all, it waits
    /// for one of these.
    fn words_for(&self, count: u32) -> Result<PutWords, HostTierError> {
        if self.queue.lock().closed {
            return Err(HostTierError::Closed);
        }
        let bytes = count.max(1) as usize * size_of::<u32>();
        loop {
            let room = self.free_words.take(bytes.max(1));
            if let Some(room) = room.filter(|room| room.pieces().len() == 1) {
                let first = (room.pieces()[0].start / size_of::<u32>()) as u32;
                return Ok(PutWords { memory: Arc::clone(&self.words), first, _room: Some(room) });
            }
            if !self.wait_for_one() {
                let memory = Arc::new(HostWords::new(&self.gpu, count)?);
                return Ok(PutWords { memory, first: 0, _room: None });
            }
        }
    }

    /// Waits for the end of one. `false`: there is none.
    pub(super) fn wait_for_one(&self) -> bool {
        let puts = self.queue.lock();
        let open = puts.open;
        if open == 0 {
            return false;
        }
        drop(self.queue.changed.wait_while(puts, |puts| puts.open >= open));
        true
    }

    /// Waits for all of them.
    pub(super) fn close(&self) {
        let mut puts = self.queue.lock();
        puts.closed = true;
        self.queue.changed.notify_all();
        drop(self.queue.changed.wait_while(puts, |puts| puts.open > 0));
    }
}

impl fmt::Debug for OrderedPuts {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "OrderedPuts({:?})", self.queue)
    }
}

impl Drop for OrderedPuts {
    fn drop(&mut self) {
        self.close();
        if let Some(thread) = self.thread.take() {
            // Its panic was told by the puts that it had.
            let _ = thread.join();
        }
    }
}

/// Events between the steps of a put.
struct PutEvents<'a> {
    released: GpuEvent,
    timer: &'a CopyTimer,
    copied: &'a Event,
    done: &'a Event,
}

impl PutStreams {
    /// Begins a put. If it fails, nothing touches the memory.
    fn begin(
        &self,
        range: GpuRange,
        room: &Room,
        words: &PutWords,
        units: u32,
        events: &PutEvents<'_>,
    ) -> Result<(), CudaError> {
        self.enqueue(range, room, words, units, events).inspect_err(|_| {
            // A part may be under way, and no event would tell when it is done. Where this fails
            // too, the context is lost and nothing runs in it.
            for stream in [&self.copies, &self.early_sums, &self.late_sums] {
                let _ = stream.synchronize();
            }
        })
    }

    fn enqueue(
        &self,
        GpuRange { address, length, after }: GpuRange,
        room: &Room,
        words: &PutWords,
        units: u32,
        &PutEvents { released, timer, copied, done }: &PutEvents<'_>,
    ) -> Result<(), CudaError> {
        let (memory, bytes) = (DevicePointer(address), length as u64);
        let sums = |stream: &Stream, first: u32| {
            // SAFETY: whoever gave the range keeps it until `released` has happened, which is
            // recorded behind this. A kernel that writes it meanwhile makes the two sums differ.
            // The words are enough for both (`OrderedPuts::put`), and nobody else's until `done`.
            unsafe { self.kernel.launch(stream, memory, bytes, UNIT, words.address(first)) }
        };
        // SAFETY: whoever gave the range keeps it, and its events, until `released` has happened,
        // which comes after all of these steps. The host memory is kept beside the streams, and
        // longer; the room is this put's alone, and its copy's.
        unsafe {
            if let Some(after) = after {
                self.copies.wait_for_raw(after.as_raw())?;
                self.early_sums.wait_for_raw(after.as_raw())?;
            }
            sums(&self.early_sums, 0)?;
            done.record(&self.early_sums)?;
            self.copies.wait_for(done)?;
            timer.begin(&self.copies)?;
            let mut from = memory;
            for piece in room.pieces() {
                let to = self.memory.at(piece.start, piece.len());
                self.copies.copy_out(from, to.as_ptr(), piece.len())?;
                from = from.offset(piece.len() as u64);
            }
            timer.end(&self.copies)?;
            copied.record(&self.copies)?;
            self.late_sums.wait_for(copied)?;
            self.late_sums.wait_for_raw(released.as_raw())?;
            sums(&self.late_sums, units * PARTS)?;
            self.late_sums.record_raw(released.as_raw())?;
        }
        done.record(&self.late_sums)
    }
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Puts> {
        // Nothing in between its changes panics, so none leaves the list half changed.
        self.puts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest put that is on its way. Waits for one; `None`: there will be none.
    fn next(&self) -> Option<OrderedPut> {
        let puts = self.lock();
        let waits = |puts: &mut Puts| puts.on_the_way.is_empty() && !puts.closed;
        let puts = self.changed.wait_while(puts, waits);
        puts.unwrap_or_else(PoisonError::into_inner).on_the_way.pop_front()
    }

    fn ended(&self) {
        let mut puts = self.lock();
        puts.open -= 1;
        drop(puts);
        self.changed.notify_all();
    }
}

/// Thread that reads checksums and reports ends.
struct Reader {
    gpu: Arc<Gpu>,
    queue: Arc<Queue>,
    books: Arc<Books>,
}

impl Reader {
    fn read(self) {
        // A failure shows in every put.
        let _ = self.gpu.stay();
        while let Some(mut put) = self.queue.next() {
            put.end(&self.books);
            put.words = None;
            drop(put);
            self.queue.ended();
        }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        // Those that it leaves behind, if it panics, end with an error.
        let mut puts = self.queue.lock();
        puts.closed = true;
        puts.on_the_way.clear();
        puts.open = 0;
        drop(puts);
        self.queue.changed.notify_all();
    }
}

impl OrderedPut {
    /// Waits until the GPU is done with it, and says what came of it.
    fn end(&mut self, books: &Books) {
        let sums = self.done.wait().map_err(|error| error.to_string());
        if sums.is_ok() {
            books.out.add(self.held.room().bytes() as u64, self.timer.took());
        }
        self.conclude(sums.and_then(|()| self.sums()));
    }

    /// Returns the checksums, which must be the same early and late.
    fn sums(&self) -> Result<Vec<u32>, String> {
        let Some(words) = &self.words else { return Ok(Vec::new()) };
        let sums = |first: u32| (first..first + self.units).map(|unit| words.sum(unit));
        let (early, late): (Vec<u32>, Vec<u32>) = (sums(0).collect(), sums(self.units).collect());
        let Some(unit) = early.iter().zip(&late).position(|(early, late)| early != late) else {
            return Ok(early);
        };
        let (begin, end) = bytes_of(unit, self.held.room().bytes());
        Err(format!(
            "bytes {begin} to {end} were written while they were copied to host memory, by a kernel that was launched \
             past torch's dispatcher; keep such a tensor in memory by tide.pinned"
        ))
    }

    fn conclude(&self, outcome: Result<Vec<u32>, String>) {
        let bytes = self.held.room().bytes() as u64;
        let told = outcome.as_ref().map(|_| Done {
            bytes,
            matched: true,
            waited: Duration::ZERO,
            healed: 0,
        });
        let told = told.map_err(|reason| TransferError::HostMemory { reason: reason.clone() });
        self.held.end(outcome);
        let (queue, tag) = &self.notify;
        queue.push(*tag, told);
    }
}

impl Drop for OrderedPut {
    fn drop(&mut self) {
        self.held.end(Err("the host tier's thread ended".to_owned()));
        // Kernels write them until then, where nobody has waited for that.
        if let Some(words) = self.words.take()
            && self.done.wait().is_err()
        {
            mem::forget(words);
        }
    }
}
