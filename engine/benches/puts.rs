//! Small puts and gets in a second on one core, through the pool as anybody uses it: `cargo bench
//! -p tidelog-engine --bench puts`.
//!
//! Put, stripe, checksum, submit, the simulated disk, complete: the caller's thread and the
//! reactor's share one core, so nothing of the engine is hidden on another. Reads are not verified.
//! Ends non-zero where fewer puts than [`MARK`] were reached.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, DmaBuffer, Source};
use tidelog_engine::path::sim::{SimDisk, SimProfile};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, Put, PutOptions};
use tidelog_engine::schedule::{CompletionQueue, Notify, Ticket, Urgency};
use tidelog_engine::units::ByteCount;

/// Puts in a second.
const MARK: f64 = 1e6;
/// One block, and so within one stripe unit.
const BYTES: usize = 4096;
const TENSORS: u64 = 256;
const DISK: ByteCount = ByteCount::mib(8);
/// Operations in flight.
const DEPTH: usize = 128;
/// Long enough to be a measurement, short enough to be repeated.
const ROUND: Duration = Duration::from_millis(500);
const ROUNDS: usize = 9;

/// A caller that starts together what has room in flight, and then takes all that has ended: the
/// engine is what is measured, not the kernel's switching between two threads.
struct Caller {
    pool: Pool,
    queue: CompletionQueue,
    /// Operation in flight of each slot, and a buffer while none is.
    tickets: Vec<Option<Ticket>>,
    buffers: Vec<Option<DmaBuffer>>,
    /// Slots with nothing in flight.
    ready: Vec<usize>,
    started: Vec<Ticket>,
    turn: u64,
}

impl Caller {
    fn new() -> Self {
        // Hardly more than a processor's cache holds, as what the memory of a disk costs is
        // nobody's business here.
        let disks = [SimDisk::with_profile(DISK, SimProfile::plain())];
        Pool::format(&disks, &FormatOptions::default()).expect("a fresh disk is formatted");
        let options = OpenOptions {
            verify_reads: false,
            buffers: ByteCount((BYTES * DEPTH) as u64),
            depth: Some(DEPTH as u32),
            ..OpenOptions::default()
        };
        let pool = Pool::open(&disks, &options).expect("a fresh pool opens");
        let buffer = |_| pool.buffer(BYTES).expect("the pool is open");
        let buffers = (0..DEPTH).map(buffer).collect();
        let tickets = std::iter::repeat_with(|| None).take(DEPTH).collect();
        let (ready, started) = ((0..DEPTH).collect(), Vec::with_capacity(DEPTH));
        Self { pool, queue: CompletionQueue::new(), tickets, buffers, ready, started, turn: 0 }
    }

    /// Operations in a second; `start` has one begin in each slot that is ready.
    fn rate(&mut self, start: impl Fn(&mut Self)) -> f64 {
        let (begun, mut count) = (Instant::now(), 0_u32);
        while begun.elapsed() < ROUND {
            // The clock is not what is measured.
            for _ in 0..64 {
                count += self.ready.len() as u32;
                start(self);
                for (slot, ticket) in self.ready.drain(..).zip(self.started.drain(..)) {
                    self.tickets[slot] = Some(ticket);
                }
                self.reap();
            }
        }
        while self.ready.len() < DEPTH {
            self.reap();
        }
        f64::from(count) / begun.elapsed().as_secs_f64()
    }

    /// Waits until something has ended, and takes all that has.
    fn reap(&mut self) {
        while self.queue.is_empty() {
            std::thread::yield_now();
        }
        while let Some((slot, outcome)) = self.queue.try_pop() {
            outcome.expect("a simulated disk without faults");
            let ticket = self.tickets[slot as usize].take().expect("its ticket");
            self.ready.push(slot as usize);
            if let Some(buffer) = ticket.take_buffer() {
                self.buffers[slot as usize] = Some(buffer);
            }
        }
    }

    fn puts(&mut self, source: impl Fn(&mut Option<DmaBuffer>) -> Source) {
        let Self { pool, queue, buffers, ready, started, turn, .. } = self;
        let puts = ready.iter().map(|&slot| {
            let options = PutOptions { notify: Some(notify(queue, slot)), ..PutOptions::default() };
            Put { key: next(turn).into(), source: source(&mut buffers[slot]), options }
        });
        pool.put_all(puts, started).expect("there is room");
    }

    /// Each with a wake-up of its own, where the reactor sleeps.
    fn puts_alone(&mut self) {
        let Self { pool, queue, buffers, ready, started, turn, .. } = self;
        for &slot in &*ready {
            let options = PutOptions { notify: Some(notify(queue, slot)), ..PutOptions::default() };
            let ticket = pool.put(next(turn), from_buffer(&mut buffers[slot]), options);
            started.push(ticket.expect("there is room"));
        }
    }

    fn gets(&mut self) {
        let Self { pool, queue, buffers, ready, started, turn, .. } = self;
        for &slot in &*ready {
            let buffer = buffers[slot].take().expect("nothing else has it");
            let (memory, range) = (Destination::Dma { buffer, length: BYTES }, 0..BYTES as u64);
            let ticket =
                pool.get(next(turn), range, memory, Urgency::Ahead, Some(notify(queue, slot)));
            started.push(ticket.expect("it was put"));
        }
    }
}

fn from_buffer(place: &mut Option<DmaBuffer>) -> Source {
    Source::Dma { buffer: place.take().expect("nothing else has it"), length: BYTES }
}

fn notify(queue: &CompletionQueue, slot: usize) -> Notify {
    (queue.clone(), slot as u64)
}

fn next(turn: &mut u64) -> TensorId {
    *turn += 1;
    TensorId(u128::from(*turn % TENSORS))
}

fn main() -> ExitCode {
    let core = pin().expect("a process may choose among its cores");
    let mut caller = Caller::new();
    let bytes: Arc<[u8]> = vec![0x5A; BYTES].into();
    let mut rates = [const { Vec::new() }; 4];
    for _ in 0..ROUNDS {
        rates[0].push(caller.rate(|caller| caller.puts(from_buffer)));
        rates[1].push(caller.rate(|caller| caller.puts(|_| Source::Shared(Arc::clone(&bytes)))));
        rates[2].push(caller.rate(Caller::puts_alone));
        rates[3].push(caller.rate(Caller::gets));
    }
    println!(
        "one core ({core}), {DEPTH} in flight, {BYTES} bytes each, medians of {ROUNDS} rounds:"
    );
    let medians = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[ROUNDS / 2]
    });
    let rows = [
        "puts from buffers, together",
        "puts of other memory, together",
        "puts from buffers",
        "gets to buffers",
    ];
    for (what, rate) in rows.iter().zip(medians) {
        println!("{what:30} {rate:12.0} in a second   {:.3} of the mark", rate / MARK);
    }
    if medians[0] >= MARK { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Keeps this process, and every thread that it starts, on the last of its cores.
fn pin() -> nix::Result<usize> {
    let allowed = sched_getaffinity(Pid::this())?;
    let is_allowed = |core: &usize| allowed.is_set(*core).unwrap_or(false);
    let core = (0..CpuSet::count()).rfind(is_allowed).unwrap_or(0);
    let mut one = CpuSet::new();
    one.set(core)?;
    sched_setaffinity(Pid::this(), &one)?;
    Ok(core)
}
