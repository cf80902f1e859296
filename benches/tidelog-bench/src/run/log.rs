//! The log level: puts and gets of tensors of a pool.

mod memory;
mod pools;
mod replay;
mod tensors;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::path::Capabilities;
use tidelog_engine::pool::{Batch, Pool, PutOptions, TensorKey};
use tidelog_engine::schedule::{CompletionQueue, Ticket, TransferOutcome, Urgency};

use super::beside::RunThread;
use super::budget::Budget;
use super::start::JobEnd;
use super::throttle::Throttle;
use crate::direction::DataDirection;
use crate::exit::BenchError;
use crate::load::{BadBlock, Origin, check, seed_of};
use crate::option::JobOptions;
use crate::permutation::Permutation;
use crate::stats::{OperationLatency, Recorder};

use memory::JobMemory;
use tensors::{Tensor, tensors};

pub(super) use pools::Pools;
pub use pools::make_pool;
pub(super) use replay::Replay;

/// Limit of the sleep of a throttled job, before it checks whether it is over.
const THROTTLED_MAX: Duration = Duration::from_millis(100);

/// A log job that is ready to run.
pub(super) struct LogJob {
    job: JobOptions,
    member: Arc<RunThread>,
    pool: Pool,
    capabilities: Capabilities,
    tensors: Vec<Tensor>,
    order: Option<Permutation>,
    seed: u64,
    budget: Budget,
    throttle: Throttle,
    /// Direction and time of the next transfer, if its time has not come.
    held: Option<DataDirection>,
    due: Option<Instant>,
    /// Durable puts that wait for their commit, and how many.
    batch: Option<Batch>,
    batched: u64,
    random: fastrand::Rng,
    /// Transfers in flight, by tag.
    flights: Vec<Option<Flight>>,
    idle: Vec<usize>,
    ends: CompletionQueue,
    memory: JobMemory,
    /// The turn of the next tensor in this pass.
    turn: u64,
    /// Origin of the next put, for its stamps.
    origin: Origin,
    ended: JobEnd,
}

struct Flight {
    tensor: usize,
    direction: DataDirection,
    pass: u64,
    begun: Instant,
    issued: Instant,
    ticket: Ticket,
}

impl LogJob {
    /// Decides on the tensors; puts them, if the job reads.
    pub(super) fn prepare(
        job: &JobOptions,
        clone: u32,
        member: &Arc<RunThread>,
        origin: Origin,
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
            seed,
            budget: Budget::new(job, pass),
            throttle: Throttle::new(job),
            held: None,
            due: None,
            batch: None,
            batched: 0,
            random: fastrand::Rng::with_seed(seed ^ 1),
            flights: std::iter::repeat_with(|| None).take(depth).collect(),
            idle: (0..depth).collect(),
            ends: CompletionQueue::new(),
            memory: JobMemory::new(job, &pool, seed).map_err(|error| failed(error.to_string()))?,
            turn: 0,
            origin,
            ended: JobEnd::default(),
            job: job.clone(),
            member: Arc::clone(member),
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
    pub(super) fn run(mut self, recorder: &mut Recorder) -> JobEnd {
        loop {
            let now = Instant::now();
            recorder.tick(now);
            let before = self.idle.len();
            while let Some(tag) = self.idle.pop() {
                if self.job.fsync.is_some_and(|each| self.batched >= each) {
                    self.commit(Some(recorder));
                }
                if self.is_over(recorder, now) || !self.begin_next(tag, now) {
                    self.idle.push(tag);
                    break;
                }
                recorder.depth.count(self.flights.len() - self.idle.len(), 1);
            }
            let begun = before - self.idle.len();
            if begun > 0 {
                recorder.submitted.count_batch(begun);
            }
            let due = self.due.take();
            if self.idle.len() == self.flights.len() {
                let Some(due) = due else { break };
                std::thread::sleep(due.saturating_duration_since(now).min(THROTTLED_MAX));
                continue;
            }
            let landed =
                self.complete(Some(recorder), due.map(|due| due.saturating_duration_since(now)));
            if landed > 0 {
                recorder.completed.count_batch(landed);
            }
        }
        self.commit(Some(recorder));
        if self.job.verify && self.job.do_verify && self.job.load.writes {
            self.read_back();
        }
        self.delete_all();
        self.ended
    }

    /// Leaves the pool as it was.
    fn delete_all(&mut self) {
        let mut batch = self.pool.batch();
        for tensor in self.tensors.iter().filter(|tensor| tensor.put.is_some()) {
            if self.job.fsync.is_some() {
                // One whose commit failed is not there.
                let _ = batch.delete(tensor.id);
            } else {
                let _ = self.pool.delete(tensor.id);
            }
        }
        if self.job.fsync.is_some()
            && let Err(error) = batch.commit()
        {
            self.ended.fail(format!("the tensors stay in the pool: {error}"));
        }
    }

    /// Makes the puts since the last commit durable.
    fn commit(&mut self, recorder: Option<&mut Recorder>) {
        let Some(batch) = self.batch.take() else { return };
        self.batched = 0;
        let begun = Instant::now();
        match batch.commit() {
            Err(error) => self.ended.fail(format!("commit: {error}")),
            Ok(()) => {
                if let Some(recorder) = recorder {
                    recorder.synced(begun, Instant::now());
                }
            }
        }
    }

    fn is_over(&self, recorder: &Recorder, now: Instant) -> bool {
        self.ended.is_over(&self.job, &self.member) || self.budget.is_spent(recorder, now)
    }

    /// Begins with the tensor whose turn it is; returns whether something was begun.
    fn begin_next(&mut self, tag: usize, now: Instant) -> bool {
        let count = self.tensors.len() as u64;
        let turn = self.turn % count;
        let place = self.order.as_ref().map_or(turn, |order| order.at(turn)) as usize;
        // Two transfers of one tensor in flight would measure how they wait for each other.
        if self.tensors[place].in_flight {
            return false;
        }
        let direction = match self.held.take() {
            Some(held) => held,
            None => self.job.load.draw(&mut self.random, self.job.rwmixread),
        };
        self.due = self.throttle.due(direction, now);
        if self.due.is_some() {
            self.held = Some(direction);
            return false;
        }
        let Tensor { length, .. } = self.tensors[place];
        self.throttle.took(direction, length);
        self.origin.pass = self.turn / count;
        self.turn += 1;
        if let Some(order) = &mut self.order
            && self.turn.is_multiple_of(count)
            && self.job.passes_differ()
        {
            *order = Permutation::new(count, seed_of(self.seed, self.turn / count));
        }
        self.budget.take(length);
        self.begin(tag, place, direction)
    }

    fn begin(&mut self, tag: usize, place: usize, direction: DataDirection) -> bool {
        let begun = Instant::now();
        let Tensor { id, length, .. } = self.tensors[place];
        let notify = Some((self.ends.clone(), tag as u64));
        let ticket = match direction {
            DataDirection::Write => {
                let origin = self.job.verify.then_some(self.origin);
                let source = self.memory.source(tag, length, place as u64, origin);
                let options = PutOptions { notify, ..PutOptions::default() };
                let put = if self.job.fsync.is_some() {
                    self.batched += 1;
                    let batch = self.batch.get_or_insert_with(|| self.pool.batch());
                    batch.put(TensorKey::from(id), source, options)
                } else {
                    self.pool.put(id, source, options)
                };
                put.map_err(|error| error.to_string())
            }
            // Options of which a log job would trim are refused.
            DataDirection::Read | DataDirection::Trim => {
                let memory = self.memory.destination(length);
                let got = self.pool.get(id, 0..length, memory, Urgency::Urgent, notify);
                got.map_err(|error| error.to_string())
            }
        };
        match ticket {
            Ok(ticket) => {
                let issued = Instant::now();
                let Origin { pass, .. } = self.origin;
                self.tensors[place].in_flight = true;
                self.flights[tag] =
                    Some(Flight { tensor: place, direction, pass, begun, issued, ticket });
                true
            }
            Err(why) => {
                self.ended.fail(format!("tensor {place}: {why}"));
                false
            }
        }
    }

    /// Waits for a transfer to end, but not longer than `at_most`, and processes all that have;
    /// returns how many.
    fn complete(
        &mut self,
        mut recorder: Option<&mut Recorder>,
        at_most: Option<Duration>,
    ) -> usize {
        /// Time limit far beyond that of a transfer; only a bug in the engine would let it pass.
        const TIMEOUT: Duration = Duration::from_secs(300);
        let Some(mut end) = self.ends.wait_pop(at_most.unwrap_or(TIMEOUT)) else {
            if at_most.is_some() {
                return 0;
            }
            self.ended.fail(format!("nothing ended in {} seconds", TIMEOUT.as_secs()));
            self.idle = (0..self.flights.len()).collect();
            return 0;
        };
        let now = Instant::now();
        let mut count = 0;
        loop {
            let (tag, outcome) = end;
            self.complete_one(tag as usize, outcome, recorder.as_deref_mut(), now);
            count += 1;
            match self.ends.try_pop() {
                Some(next) => end = next,
                None => return count,
            }
        }
    }

    fn complete_one(
        &mut self,
        tag: usize,
        outcome: TransferOutcome,
        recorder: Option<&mut Recorder>,
        now: Instant,
    ) {
        let Some(flight) = self.flights[tag].take() else { return };
        self.idle.push(tag);
        let Flight { tensor, direction, pass, begun, issued, ticket } = flight;
        self.tensors[tensor].in_flight = false;
        let length = self.tensors[tensor].length;
        if let Err(error) = outcome {
            return self.ended.fail(format!("tensor {tensor}: {error}"));
        }
        if direction == DataDirection::Write {
            self.tensors[tensor].put = Some(pass);
        }
        let reads_back = recorder.is_none();
        if let Some(recorder) = recorder {
            recorder.completed(
                direction,
                length,
                OperationLatency::between([begun, issued, now]),
                now,
            );
        }
        // No two puts of a tensor are in flight, so the last to end is the one that stands.
        let pass = self.tensors[tensor].put.unwrap_or(0);
        let oldest = reads_back.then_some(Origin { pass, ..self.origin });
        if let Some(buffer) = ticket.take_buffer() {
            if direction == DataDirection::Read {
                self.compare(tensor, &buffer[..length as usize], oldest);
            }
            self.memory.give_back_buffer(buffer);
        } else if let Some(bytes) = ticket.take_bytes() {
            self.compare(tensor, &bytes, oldest);
            self.memory.release(bytes);
        }
    }

    fn compare(&mut self, tensor: usize, bytes: &[u8], oldest: Option<Origin>) {
        if !self.job.verify {
            return;
        }
        self.ended.verified += 1;
        if let Err(fault) = check(bytes, tensor as u64, oldest) {
            let (file, length) = (format!("tensor {tensor}"), bytes.len() as u64);
            self.ended.bad(BadBlock { file, offset: 0, length, fault });
        }
    }

    /// Puts every tensor, not measured.
    fn lay_out(&mut self) -> Result<(), BenchError> {
        self.each(DataDirection::Write, |_| true);
        self.commit(None);
        match self.ended.failure.take() {
            None => Ok(()),
            Some(why) => {
                Err(BenchError::Pool { what: format!("{}: cannot lay out", self.job.name), why })
            }
        }
    }

    /// Gets every tensor that was put, not measured.
    fn read_back(&mut self) {
        self.each(DataDirection::Read, |tensor| tensor.put.is_some());
    }

    fn each(&mut self, direction: DataDirection, wanted: impl Fn(&Tensor) -> bool) {
        for place in 0..self.tensors.len() {
            if !wanted(&self.tensors[place]) {
                continue;
            }
            if self.ended.is_over(&self.job, &self.member) {
                break;
            }
            let tag = loop {
                match self.idle.pop() {
                    Some(tag) => break tag,
                    None => self.complete(None, None),
                };
            };
            if !self.begin(tag, place, direction) {
                self.idle.push(tag);
            }
        }
        while self.idle.len() < self.flights.len() {
            self.complete(None, None);
        }
    }
}
