//! `workload=`: an iteration of a plan, over and over: its ops pass as time, its rows are puts and
//! gets.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::Capabilities;
use tidelog_engine::pool::{Pool, PutOptions};
use tidelog_engine::schedule::{CompletionQueue, Ticket, Urgency};
use tidelog_engine::units::ByteCount;

use super::super::beside::RunThread;
use super::super::start::JobEnd;
use crate::direction::DataDirection;
use crate::exit::BenchError;
use crate::option::JobOptions;
use crate::stats::{Lateness, OperationLatency, Recorder};
use crate::workload::{Move, Workload};

/// Time limit far beyond that of a transfer; only a bug in the engine would let it pass.
const TIMEOUT: Duration = Duration::from_secs(300);

/// A workload that is ready to be replayed.
pub(crate) struct Replay {
    job: JobOptions,
    member: Arc<RunThread>,
    workload: Arc<Workload>,
    pool: Pool,
    capabilities: Capabilities,
    ids: Vec<TensorId>,
    /// Flights by tag; and the tags by the op, counted over all iterations, that must find it
    /// complete.
    flights: BTreeMap<u64, Flight>,
    due: BTreeMap<u64, Vec<u64>>,
    next_tag: u64,
    ends: CompletionQueue,
    sources: BTreeMap<u64, Arc<[u8]>>,
    destinations: BTreeMap<u64, Vec<Vec<u8>>>,
    lateness: Lateness,
    ended: JobEnd,
}

struct Flight {
    storage: usize,
    direction: DataDirection,
    begun: Instant,
    issued: Instant,
    ticket: Ticket,
    /// Time at which the op that must find it complete was to begin, once that is past.
    missed: Option<Instant>,
}

impl Replay {
    /// Puts every storage that moves, so that the first iteration finds what it gets.
    pub(crate) fn prepare(
        job: &JobOptions,
        member: &Arc<RunThread>,
        workload: Arc<Workload>,
        pool: Option<Pool>,
    ) -> Result<Self, BenchError> {
        let failed = |why: String| BenchError::Pool { what: job.name.clone(), why };
        let pool = pool.ok_or_else(|| failed("its pool was not opened".to_owned()))?;
        let stats = pool.stats().map_err(|error| failed(error.to_string()))?;
        let (room, needed) = (pool.description().capacity.0 / 2, workload.bytes());
        if needed > room {
            let what = format!(
                "the plan moves storages of {} in all; the pool has space for {}, since each is there twice",
                ByteCount(needed),
                ByteCount(room)
            );
            return Err(BenchError::usage(what).within(&job.name));
        }
        let id = |index: usize| TensorId::from_name(&format!("tidelog-bench/{}/{index}", job.name));
        let mut replay = Self {
            capabilities: stats.reactor.capabilities,
            ids: (0..workload.storages.len()).map(id).collect(),
            job: job.clone(),
            member: Arc::clone(member),
            workload,
            pool,
            flights: BTreeMap::new(),
            due: BTreeMap::new(),
            next_tag: 0,
            ends: CompletionQueue::new(),
            sources: BTreeMap::new(),
            destinations: BTreeMap::new(),
            lateness: Lateness::default(),
            ended: JobEnd::default(),
        };
        for storage in 0..replay.ids.len() {
            replay.begin(Move { storage, direction: DataDirection::Write, ops_left: 0 });
            replay.drain(None);
        }
        match replay.ended.failure.take() {
            None => Ok(replay),
            Some(why) => Err(failed(format!("cannot lay out: {why}"))),
        }
    }

    /// The data path under the pool.
    pub(crate) fn capabilities(&self) -> Capabilities {
        self.capabilities.clone()
    }

    /// Replays the iterations that were asked for, and deletes the tensors.
    pub(crate) fn run(mut self, recorder: &mut Recorder) -> JobEnd {
        let workload = Arc::clone(&self.workload);
        let begun = Instant::now();
        // When the next op begins: what waking up late costs does not add up, what transfers cost
        // does.
        let mut clock = begun;
        for op in 0.. {
            let within = (op % workload.ops.len() as u64) as usize;
            recorder.tick(clock);
            if within == 0 && op > 0 {
                self.lateness.iterations += 1;
                self.lateness.time = clock - begun;
            }
            if self.ended.is_over(&self.job, &self.member)
                || (within == 0 && self.is_over(recorder, clock))
            {
                break;
            }
            clock = self.wait_for(op, clock, recorder);
            for row in &workload.moves[within] {
                let tag = self.begin(*row);
                self.due.entry(op + row.ops_left as u64).or_default().extend(tag);
            }
            clock += workload.ops[within];
            self.pass_until(clock, recorder);
        }
        self.drain(Some(recorder));
        for id in &self.ids {
            let _ = self.pool.delete(*id);
        }
        self.lateness.expected_time = workload.expected.time;
        self.lateness.expected_stall = workload.expected.stall;
        self.lateness.left_out = workload.left_out * self.lateness.iterations;
        JobEnd { lateness: Some(Box::new(self.lateness)), ..self.ended }
    }

    /// Returns whether no other iteration begins; each is replayed whole.
    fn is_over(&self, recorder: &Recorder, now: Instant) -> bool {
        let is_time_up = self.job.runtime.is_some_and(|it| recorder.counted_for(now) >= it);
        is_time_up || (!self.job.time_based && self.lateness.iterations >= self.job.loops)
    }

    /// Waits for what this op must find complete; returns when it begins.
    fn wait_for(&mut self, op: u64, wanted: Instant, recorder: &mut Recorder) -> Instant {
        let due = self.due.remove(&op).unwrap_or_default();
        self.process_completions(Duration::ZERO, Some(recorder));
        for tag in &due {
            if let Some(flight) = self.flights.get_mut(tag) {
                flight.missed = Some(wanted);
                flight.ticket.expedite();
            } else {
                self.lateness.in_time();
            }
        }
        let is_missing =
            |flights: &BTreeMap<u64, Flight>| due.iter().any(|tag| flights.contains_key(tag));
        if !is_missing(&self.flights) {
            return wanted;
        }
        while is_missing(&self.flights) && self.ended.failure.is_none() {
            self.process_completions(TIMEOUT, Some(recorder));
        }
        let begins = Instant::now().max(wanted);
        self.lateness.stalled(begins - wanted);
        begins
    }

    /// Lets an op run.
    fn pass_until(&mut self, until: Instant, recorder: &mut Recorder) {
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || self.ended.failure.is_some() {
                return;
            }
            self.process_completions(left, Some(recorder));
        }
    }

    /// Begins a row; returns its tag, if it could be begun.
    fn begin(&mut self, row: Move) -> Option<u64> {
        let begun = Instant::now();
        let Move { storage, direction, .. } = row;
        let (id, length, tag) = (self.ids[storage], self.workload.storages[storage], self.next_tag);
        let notify = Some((self.ends.clone(), tag));
        let begins = if direction == DataDirection::Write {
            let fresh = || {
                let mut bytes = vec![0; length as usize];
                fastrand::Rng::with_seed(length).fill(&mut bytes);
                bytes.into()
            };
            let source = Source::from(Arc::clone(self.sources.entry(length).or_insert_with(fresh)));
            let options = PutOptions { notify, ..PutOptions::default() };
            self.pool.put(id, source, options).map_err(|error| error.to_string())
        } else {
            let kept = self.destinations.get_mut(&length).and_then(Vec::pop);
            let memory =
                kept.map_or_else(|| Destination::buffer(length as usize), Destination::Owned);
            let got = self.pool.get(id, 0..length, memory, Urgency::Ahead, notify);
            got.map_err(|error| error.to_string())
        };
        match begins {
            Ok(ticket) => {
                let issued = Instant::now();
                let flight = Flight { storage, direction, begun, issued, ticket, missed: None };
                self.flights.insert(tag, flight);
                self.next_tag += 1;
                Some(tag)
            }
            Err(why) => {
                self.ended.fail(format!("storage {storage}: {why}"));
                None
            }
        }
    }

    /// Processes what has ended, or ends within `at_most`.
    fn process_completions(&mut self, at_most: Duration, mut recorder: Option<&mut Recorder>) {
        let mut next = self.ends.wait_pop(at_most);
        if next.is_none() && at_most == TIMEOUT {
            self.ended.fail(format!("nothing ended in {} seconds", TIMEOUT.as_secs()));
        }
        let now = Instant::now();
        while let Some((tag, outcome)) = next {
            next = self.ends.try_pop();
            let Some(flight) = self.flights.remove(&tag) else { continue };
            let Flight { storage, direction, begun, issued, ticket, missed } = flight;
            let length = self.workload.storages[storage];
            match (outcome, recorder.as_deref_mut()) {
                (Err(error), _) => self.ended.fail(format!("storage {storage}: {error}")),
                (Ok(_), Some(recorder)) => {
                    let latency = OperationLatency::between([begun, issued, now]);
                    recorder.completed(direction, length, latency, now);
                }
                (Ok(_), None) => {}
            }
            if let Some(missed) = missed {
                self.lateness.late(now.saturating_duration_since(missed));
            }
            if let Some(bytes) = ticket.take_bytes() {
                self.destinations.entry(length).or_default().push(bytes);
            }
        }
    }

    /// Waits for everything in flight.
    fn drain(&mut self, mut recorder: Option<&mut Recorder>) {
        while !self.flights.is_empty() && self.ended.failure.is_none() {
            self.process_completions(TIMEOUT, recorder.as_deref_mut());
        }
    }
}
