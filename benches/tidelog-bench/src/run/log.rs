//! The log level: puts and gets of tensors of a pool.

mod pools;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, DmaBuffer, Source};
use tidelog_engine::path::Capabilities;
use tidelog_engine::pool::{Pool, PutOptions, Unusable};
use tidelog_engine::schedule::{CompletionQueue, Outcome, Ticket, Urgency};
use tidelog_engine::units::ByteCount;

use super::budget::Budget;
use super::start::Ended;
use crate::exit::BenchError;
use crate::load::{BadBlock, Permutation, STAMP_BYTES, check, stamp};
use crate::option::{JobOptions, Sizes};
use crate::stats::{Direction, Recorder};

pub(super) use pools::Pools;
pub use pools::make_pool;

/// A log job that is ready to run.
pub(super) struct LogJob {
    job: JobOptions,
    pool: Pool,
    capabilities: Capabilities,
    tensors: Vec<Tensor>,
    order: Option<Permutation>,
    budget: Budget,
    random: fastrand::Rng,
    /// Transfers in flight, by tag.
    flights: Vec<Option<Flight>>,
    idle: Vec<usize>,
    ends: CompletionQueue,
    memory: Memory,
    /// The turn of the next tensor in this pass.
    turn: u64,
    generation: u64,
    ended: Ended,
}

#[derive(Clone, Copy)]
struct Tensor {
    id: TensorId,
    length: u64,
    /// Whether it can be read.
    put: bool,
}

struct Flight {
    tensor: usize,
    direction: Direction,
    begun: Instant,
    issued: Instant,
    ticket: Ticket,
}

/// Memory that is written from and read into, so that none is mapped anew while a job is measured.
struct Memory {
    /// Registered with the devices, as much for each operation in flight as the largest takes.
    registered: Vec<DmaBuffer>,
    /// Where none is registered: what puts are made of, by tag and length; as many as are in flight, so that they do not all come
    /// from a cache.
    written: BTreeMap<(usize, u64), Arc<[u8]>>,
    /// And what gets go to, by length.
    read: BTreeMap<u64, Vec<Vec<u8>>>,
    random: fastrand::Rng,
}

impl LogJob {
    /// Decides on the tensors; puts them, if the job reads.
    pub(super) fn prepare(
        job: &JobOptions,
        clone: u32,
        generation: u64,
        pool: Option<Pool>,
    ) -> Result<Self, BenchError> {
        let failed = |why: String| BenchError::Pool { what: job.name.clone(), why };
        let pool = pool.ok_or_else(|| failed("its pool was not opened".to_owned()))?;
        let stats = pool.stats().map_err(|error| failed(error.to_string()))?;
        let capacity = pool.description().capacity;
        let tensors = tensors(job, clone, capacity)?;
        let pass = tensors.iter().map(|tensor| tensor.length).sum();
        let depth = job.iodepth as usize;
        let seed = job.randseed.wrapping_add(u64::from(clone) << 32);
        let count = tensors.len() as u64;
        let mut prepared = Self {
            capabilities: stats.reactor.capabilities,
            order: job.load.random.then(|| Permutation::new(count, seed)),
            budget: Budget::new(job, pass),
            random: fastrand::Rng::with_seed(seed ^ 1),
            flights: std::iter::repeat_with(|| None).take(depth).collect(),
            idle: (0..depth).collect(),
            ends: CompletionQueue::new(),
            memory: Memory::new(job, &pool, seed).map_err(|error| failed(error.to_string()))?,
            turn: 0,
            generation,
            ended: Ended::default(),
            job: job.clone(),
            pool,
            tensors,
        };
        if job.load.reads {
            prepared.lay_out()?;
        }
        prepared.memory.warm(job, depth);
        Ok(prepared)
    }

    /// The data path under the pool.
    pub(super) fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    /// Runs the job, checks what it wrote if that was asked for, and deletes its tensors.
    pub(super) fn run(mut self, recorder: &mut Recorder) -> Ended {
        loop {
            let now = Instant::now();
            recorder.tick(now);
            let before = self.idle.len();
            while let Some(tag) = self.idle.pop() {
                if self.is_over(recorder, now) || !self.begin_next(tag) {
                    self.idle.push(tag);
                    break;
                }
                recorder.depth.count(self.flights.len() - self.idle.len(), 1);
            }
            let begun = before - self.idle.len();
            if begun > 0 {
                recorder.submitted.count(begun, 1);
            }
            if self.idle.len() == self.flights.len() {
                break;
            }
            let landed = self.land(Some(recorder));
            recorder.completed.count(landed, 1);
        }
        if self.job.verify && self.job.do_verify && self.job.load.writes {
            self.read_back();
        }
        for tensor in self.tensors.iter().filter(|tensor| tensor.put) {
            let _ = self.pool.delete(tensor.id);
        }
        self.ended
    }

    fn is_over(&self, recorder: &Recorder, now: Instant) -> bool {
        self.ended.is_over(&self.job) || self.budget.is_spent(recorder, now)
    }

    /// Begins with the tensor whose turn it is; answers whether something was begun.
    fn begin_next(&mut self, tag: usize) -> bool {
        let count = self.tensors.len() as u64;
        let turn = self.turn % count;
        let place = self.order.as_ref().map_or(turn, |order| order.at(turn)) as usize;
        let load = self.job.load;
        let reads = load.reads && (!load.writes || self.random.u8(0..100) < self.job.rwmixread);
        // Two transfers of one tensor in flight would measure how they wait for each other.
        let busy = self.flights.iter().flatten().any(|flight| flight.tensor == place);
        if busy {
            return false;
        }
        self.turn += 1;
        self.budget.take(self.tensors[place].length);
        let direction = if reads { Direction::Read } else { Direction::Write };
        self.begin(tag, place, direction)
    }

    fn begin(&mut self, tag: usize, place: usize, direction: Direction) -> bool {
        let begun = Instant::now();
        let Tensor { id, length, .. } = self.tensors[place];
        let notify = Some((self.ends.clone(), tag as u64));
        let ticket = match direction {
            Direction::Write => {
                let generation = self.job.verify.then_some(self.generation);
                let source = self.memory.source(tag, length, place as u64, generation);
                let options = PutOptions { notify, ..PutOptions::default() };
                self.pool.put(id, source, options).map_err(|error| error.to_string())
            }
            Direction::Read => {
                let memory = self.memory.destination(length);
                let got = self.pool.get(id, 0..length, memory, Urgency::Urgent, notify);
                got.map_err(|error| error.to_string())
            }
        };
        match ticket {
            Ok(ticket) => {
                let issued = Instant::now();
                self.flights[tag] =
                    Some(Flight { tensor: place, direction, begun, issued, ticket });
                true
            }
            Err(why) => {
                self.ended.fail(format!("tensor {place}: {why}"));
                false
            }
        }
    }

    /// Waits for a transfer to end, and takes in all that have; answers how many.
    fn land(&mut self, mut recorder: Option<&mut Recorder>) -> usize {
        /// Far beyond what a transfer takes; only a bug in the engine would let it pass.
        const PATIENCE: Duration = Duration::from_secs(300);
        let Some(mut end) = self.ends.wait_pop(PATIENCE) else {
            self.ended.fail(format!("nothing ended in {} seconds", PATIENCE.as_secs()));
            self.idle = (0..self.flights.len()).collect();
            return 0;
        };
        let now = Instant::now();
        let mut count = 0;
        loop {
            let (tag, outcome) = end;
            self.land_one(tag as usize, outcome, recorder.as_deref_mut(), now);
            count += 1;
            match self.ends.try_pop() {
                Some(next) => end = next,
                None => return count,
            }
        }
    }

    fn land_one(
        &mut self,
        tag: usize,
        outcome: Outcome,
        recorder: Option<&mut Recorder>,
        now: Instant,
    ) {
        let Some(flight) = self.flights[tag].take() else { return };
        self.idle.push(tag);
        let Flight { tensor, direction, begun, issued, ticket } = flight;
        let length = self.tensors[tensor].length;
        if let Err(error) = outcome {
            return self.ended.fail(format!("tensor {tensor}: {error}"));
        }
        if direction == Direction::Write {
            self.tensors[tensor].put = true;
        }
        let reads_back = recorder.is_none();
        if let Some(recorder) = recorder {
            recorder.completed(direction, length, [begun, issued, now]);
        }
        let generation = reads_back.then_some(self.generation);
        if let Some(buffer) = ticket.take_buffer() {
            if direction == Direction::Read {
                self.compare(tensor, &buffer[..length as usize], generation);
            }
            self.memory.registered.push(buffer);
        } else if let Some(bytes) = ticket.take_bytes() {
            self.compare(tensor, &bytes, generation);
            self.memory.give_back(bytes);
        }
    }

    fn compare(&mut self, tensor: usize, bytes: &[u8], generation: Option<u64>) {
        if !self.job.verify {
            return;
        }
        self.ended.verified += 1;
        if let Err(fault) = check(bytes, tensor as u64, generation) {
            let (file, length) = (format!("tensor {tensor}"), bytes.len() as u64);
            self.ended.bad(BadBlock { file, offset: 0, length, fault });
        }
    }

    /// Puts every tensor, not measured.
    fn lay_out(&mut self) -> Result<(), BenchError> {
        self.each(Direction::Write, |_| true);
        match self.ended.failure.take() {
            None => Ok(()),
            Some(why) => {
                Err(BenchError::Pool { what: format!("{}: cannot lay out", self.job.name), why })
            }
        }
    }

    /// Gets every tensor that was put, not measured.
    fn read_back(&mut self) {
        self.each(Direction::Read, |tensor| tensor.put);
    }

    fn each(&mut self, direction: Direction, wanted: impl Fn(&Tensor) -> bool) {
        for place in 0..self.tensors.len() {
            if !wanted(&self.tensors[place]) {
                continue;
            }
            if self.ended.is_over(&self.job) {
                break;
            }
            let tag = loop {
                match self.idle.pop() {
                    Some(tag) => break tag,
                    None => self.land(None),
                };
            };
            if !self.begin(tag, place, direction) {
                self.idle.push(tag);
            }
        }
        while self.idle.len() < self.flights.len() {
            self.land(None);
        }
    }
}

impl Memory {
    /// Takes a job's registered memory, and fills it with bytes that do not compress.
    fn new(job: &JobOptions, pool: &Pool, seed: u64) -> Result<Self, Unusable> {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut registered = Vec::new();
        while job.fixedbufs && registered.len() < job.iodepth as usize {
            let Some(mut buffer) = pool.buffer(job.sizes.most() as usize)? else { break };
            random.fill(&mut buffer);
            registered.push(buffer);
        }
        Ok(Self { registered, written: BTreeMap::new(), read: BTreeMap::new(), random })
    }

    /// Touches what will be needed, so that page faults are not measured.
    fn warm(&mut self, job: &JobOptions, depth: usize) {
        let Sizes::One(length) = job.sizes else { return };
        if !self.registered.is_empty() {
            return;
        }
        if job.load.writes && !job.verify {
            (0..depth).for_each(|tag| drop(self.source(tag, length, 0, None)));
        }
        if job.load.reads {
            for _ in 0..depth {
                self.give_back(vec![1; length as usize]);
            }
        }
    }

    fn source(&mut self, tag: usize, length: u64, place: u64, generation: Option<u64>) -> Source {
        if let Some(mut buffer) = self.registered.pop() {
            let length = length as usize;
            if let Some(generation) = generation {
                stamp(&mut buffer[..length], place, generation);
            }
            return Source::Dma { buffer, length };
        }
        let Self { written, random, .. } = self;
        let mut fresh = || {
            let mut bytes = vec![0; length as usize];
            random.fill(&mut bytes);
            bytes
        };
        if let Some(generation) = generation {
            let mut bytes = fresh();
            stamp(&mut bytes, place, generation);
            return Source::from(bytes);
        }
        let bytes = written.entry((tag, length)).or_insert_with(|| fresh().into());
        Source::from(Arc::clone(bytes))
    }

    fn destination(&mut self, length: u64) -> Destination {
        if let Some(buffer) = self.registered.pop() {
            return Destination::Dma { buffer, length: length as usize };
        }
        let kept = self.read.get_mut(&length).and_then(Vec::pop);
        kept.map_or_else(|| Destination::buffer(length as usize), Destination::Owned)
    }

    fn give_back(&mut self, bytes: Vec<u8>) {
        self.read.entry(bytes.len() as u64).or_default().push(bytes);
    }
}

/// The tensors of the `clone`th of a job's `numjobs`: of the sizes that were asked for, `size` bytes in all.
fn tensors(job: &JobOptions, clone: u32, capacity: ByteCount) -> Result<Vec<Tensor>, BenchError> {
    let wrong = |what: String| Err(BenchError::usage(what).within(&job.name));
    // A tensor that is put again exists twice until the put is complete.
    let room = capacity.0 / 2 / u64::from(job.numjobs);
    let size = job.size.map_or(room, |size| size.of(room));
    if size > room {
        let most = ByteCount(room);
        return wrong(format!(
            "the pool holds {capacity}; size can be at most {most} for each of numjobs, half of that in all"
        ));
    }
    if job.verify && job.sizes.least() < STAMP_BYTES as u64 {
        return wrong(format!("verify needs tensors of at least {STAMP_BYTES} bytes"));
    }
    let mut random = fastrand::Rng::with_seed(job.randseed);
    let (mut tensors, mut left) = (Vec::new(), size);
    loop {
        let length = job.sizes.draw(&mut random);
        let Some(rest) = left.checked_sub(length) else { break };
        left = rest;
        let name = format!("tidelog-bench/{}/{clone}/{}", job.name, tensors.len());
        tensors.push(Tensor { id: TensorId::from_name(&name), length, put: false });
    }
    if tensors.is_empty() {
        return wrong(format!("no tensor fits into {}; give a larger size", ByteCount(size)));
    }
    Ok(tensors)
}
