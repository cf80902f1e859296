//! Small puts and gets in a second on one core, through the pool as anybody uses it: `cargo bench -p tidelog-engine --bench puts`.
//!
//! Put, stripe, submit, the simulated disk, complete: the caller's thread and the reactor's share one core, so nothing of
//! the engine is hidden on another. Ends non-zero where fewer puts than [`MARK`] were reached.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, DmaBuffer, Source};
use tidelog_engine::path::sim::{SimDisk, SimProfile};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::{CompletionQueue, Notify, Ticket, Urgency};
use tidelog_engine::units::ByteCount;

/// Puts in a second.
const MARK: f64 = 1e6;
/// One block, and so within one stripe unit.
const BYTES: usize = 4096;
const TENSORS: u64 = 1024;
/// Operations in flight.
const DEPTH: usize = 64;
/// Long enough to be a measurement, short enough to be repeated.
const ROUND: Duration = Duration::from_millis(500);
const ROUNDS: usize = 9;

/// The pool, and what was submitted to it and has not ended.
struct Caller {
    pool: Pool,
    queue: CompletionQueue,
    flying: Vec<Option<Ticket>>,
    turn: u64,
}

impl Caller {
    fn new() -> Self {
        // In order and without a cache: a disk that does as little as it can.
        let profile =
            SimProfile { volatile_cache: false, latency_ticks_max: 1, ..SimProfile::default() };
        let disks = [SimDisk::with_profile(ByteCount::mib(64), profile)];
        Pool::format_sim(&disks, &FormatOptions::default()).expect("a fresh disk is formatted");
        let options = OpenOptions {
            verify_reads: false,
            buffers: ByteCount((BYTES * DEPTH) as u64),
            depth: DEPTH as u32,
            ..OpenOptions::default()
        };
        let pool = Pool::open_sim(&disks, &options).expect("a fresh pool opens");
        let flying = std::iter::repeat_with(|| None).take(DEPTH).collect();
        Self { pool, queue: CompletionQueue::new(), flying, turn: 0 }
    }

    /// Operations in a second, with as many in flight as there may be.
    fn rate(
        &mut self,
        mut submit: impl FnMut(&Pool, TensorId, Option<DmaBuffer>, Notify) -> Ticket,
    ) -> f64 {
        let begun = Instant::now();
        let mut ended = 0;
        let mut submit_into = |caller: &mut Self, slot: usize, buffer| {
            caller.turn += 1;
            let id = TensorId(u128::from(caller.turn % TENSORS));
            let notify = (caller.queue.clone(), slot as u64);
            caller.flying[slot] = Some(submit(&caller.pool, id, buffer, notify));
        };
        for slot in 0..DEPTH {
            submit_into(self, slot, None);
        }
        while begun.elapsed() < ROUND {
            // The clock is not what is measured.
            for _ in 0..1024 {
                let (slot, buffer) = self.next();
                ended += 1;
                submit_into(self, slot, buffer);
            }
        }
        for _ in 0..DEPTH {
            self.next();
            ended += 1;
        }
        f64::from(ended) / begun.elapsed().as_secs_f64()
    }

    /// The next operation that ends: its place, and its buffer.
    fn next(&mut self) -> (usize, Option<DmaBuffer>) {
        let (slot, outcome) = self.queue.wait_pop(Duration::MAX).expect("something is in flight");
        outcome.expect("a simulated disk without faults");
        let ticket = self.flying[slot as usize].take().expect("its ticket");
        (slot as usize, ticket.take_buffer())
    }
}

fn main() -> ExitCode {
    let core = pin().expect("a process may choose among its cores");
    let mut caller = Caller::new();
    let bytes: Arc<[u8]> = vec![0x5A; BYTES].into();
    let mut rates = [const { Vec::new() }; 3];
    for _ in 0..ROUNDS {
        rates[0].push(caller.rate(|pool, id, buffer, notify| {
            let options = PutOptions { notify: Some(notify), ..PutOptions::default() };
            let buffer = buffer.or_else(|| pool.buffer(BYTES).expect("the pool is open"));
            let source =
                Source::Dma { buffer: buffer.expect("there is one for each"), length: BYTES };
            pool.put(id, source, options).expect("there is room")
        }));
        rates[1].push(caller.rate(|pool, id, _, notify| {
            let options = PutOptions { notify: Some(notify), ..PutOptions::default() };
            pool.put(id, Source::Shared(Arc::clone(&bytes)), options).expect("there is room")
        }));
        rates[2].push(caller.rate(|pool, id, buffer, notify| {
            let buffer = buffer.or_else(|| pool.buffer(BYTES).expect("the pool is open"));
            let buffer = buffer.expect("there is one for each");
            let destination = Destination::Dma { buffer, length: BYTES };
            let range = 0..BYTES as u64;
            pool.get(id, range, destination, Urgency::Ahead, Some(notify)).expect("it was put")
        }));
    }
    println!(
        "one core ({core}), {DEPTH} in flight, {BYTES} bytes each, medians of {ROUNDS} rounds:"
    );
    let medians = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[ROUNDS / 2]
    });
    for (what, rate) in
        ["puts from buffers of the pool", "puts of other memory", "gets to buffers of the pool"]
            .iter()
            .zip(medians)
    {
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
