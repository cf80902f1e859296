//! A load on a pool: threads that commit, put, delete and read, know which results are right, and
//! keep on while devices fail under them.

mod content;
mod record;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tidelog_engine::layout::{LifetimeClass, TensorId};
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::pool::{Pool, PutOptions};
use tidelog_engine::schedule::Urgency;

use crate::sim::Random;
use content::{DELETION_EVERY, Found, content, identify, is_deletion};
pub use record::{Failure, Record};

/// Options of the load.
#[derive(Clone, Copy, Debug)]
pub struct LoadOptions {
    /// Durable tensors, and as many scratch ones, that each of two threads writes.
    pub tensors_per_writer: u64,
    /// The longest tensor, in bytes.
    pub longest: u64,
    /// Threads that only read.
    pub readers: usize,
    /// Decides what is written and read.
    pub seed: u64,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { tensors_per_writer: 8, longest: 150_000, readers: 2, seed: 1 }
    }
}

const WRITERS: u64 = 2;
/// A thread that has met an error does not spin.
const REST: Duration = Duration::from_millis(2);

/// State of one tensor. Only its writer changes it.
#[derive(Debug, Default)]
struct Known {
    /// The last version whose put or commit has returned well.
    acknowledged: AtomicU64,
    /// The last version that has begun.
    begun: AtomicU64,
}

/// State that all threads share, and that outlives the pool.
#[derive(Debug)]
pub struct Ledger {
    options: LoadOptions,
    durable: Vec<Known>,
    scratch: Vec<Known>,
    record: Record,
}

impl Ledger {
    /// A ledger of a pool that holds none of its tensors yet.
    pub fn new(options: LoadOptions) -> Arc<Self> {
        let known = || (0..WRITERS * options.tensors_per_writer).map(|_| Known::default());
        let (durable, scratch) = (known().collect(), known().collect());
        Arc::new(Self { options, durable, scratch, record: Record::default() })
    }

    /// Returns the record of failures and successes.
    pub fn record(&self) -> &Record {
        &self.record
    }

    /// The ids of the durable tensors.
    pub fn durable_ids(&self) -> impl Iterator<Item = TensorId> {
        (0..self.durable.len() as u64).map(|index| id(index, true))
    }

    /// Reads every durable tensor of a pool that was opened again: each must be there as its last
    /// acknowledged commit left it, or as a later one did of which nobody heard.
    ///
    /// # Errors
    /// The first that is not. Tensors of which bytes are lost are given to `lost`, which may excuse
    /// them.
    pub fn verify_durable(
        &self,
        pool: &Pool,
        mut lost: impl FnMut(TensorId, &str) -> bool,
    ) -> Result<(), String> {
        for index in 0..self.durable.len() as u64 {
            match self.read(pool, index, true) {
                Ok(()) => (),
                Err(Failure::Wrong(what)) => return Err(what),
                Err(Failure::Refused { what, .. }) if lost(id(index, true), &what) => (),
                Err(Failure::Refused { what, .. }) => return Err(format!("LOST: {what}")),
            }
        }
        Ok(())
    }

    /// A pool that was opened again has no scratch tensors.
    pub fn forget_scratch(&self) {
        for known in &self.scratch {
            let next = known.begun.load(Ordering::SeqCst).next_multiple_of(DELETION_EVERY);
            known.begun.store(next, Ordering::SeqCst);
            known.acknowledged.store(next, Ordering::SeqCst);
        }
    }

    /// Verifies the scratch tensors, as [`Self::verify_durable`] does the durable ones, of the pool
    /// that the load ran on.
    ///
    /// # Errors
    /// As [`Self::verify_durable`], with nothing excused.
    pub fn verify_scratch(&self, pool: &Pool) -> Result<(), String> {
        (0..self.scratch.len() as u64).try_for_each(|index| {
            self.read(pool, index, false).map_err(|failure| failure.to_string())
        })
    }

    /// Reads a tensor whole and says whether what it returns can be.
    fn read(&self, pool: &Pool, index: u64, durable: bool) -> Result<(), Failure> {
        let known = &self.known(durable)[index as usize];
        let id = id(index, durable);
        let (oldest, found) = loop {
            let oldest = known.acknowledged.load(Ordering::SeqCst);
            let Some(bytes) = read_whole(pool, id)? else { break (oldest, None) };
            let tensor = index << 1 | u64::from(durable);
            let found = identify(tensor, &bytes, self.options.longest);
            if let Found::Whole(version) = found.map_err(Failure::Wrong)? {
                break (oldest, Some(version));
            }
        };
        let newest = known.begun.load(Ordering::SeqCst);
        match found {
            Some(found) if (oldest..=newest).contains(&found) => Ok(()),
            Some(found) => Err(Failure::Wrong(format!(
                "{id} is version {found}, which is not of {oldest} to {newest}"
            ))),
            None if (oldest..=newest).any(is_deletion) => Ok(()),
            None => Err(Failure::Wrong(format!(
                "LOST: {id} is not there, and should be in a version of {oldest} to {newest}"
            ))),
        }
    }

    fn known(&self, durable: bool) -> &[Known] {
        if durable { &self.durable } else { &self.scratch }
    }
}

/// A load that runs until it is stopped or dropped.
#[derive(Debug)]
pub struct Load {
    ledger: Arc<Ledger>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts the threads.
    pub fn start(pool: &Pool, ledger: &Arc<Ledger>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        let mut seeds = Random::new(ledger.options.seed);
        let mut spawn = |work: fn(&mut Thread)| {
            let random = Random::new(seeds.draw());
            let (pool, ledger, stop) = (pool.clone(), Arc::clone(ledger), Arc::clone(&stop));
            let number = threads.len() as u64;
            threads.push(std::thread::spawn(move || {
                let mut thread = Thread { pool, ledger, random, number };
                while !stop.load(Ordering::Relaxed) {
                    work(&mut thread);
                }
            }));
        };
        for _ in 0..WRITERS {
            spawn(Thread::write);
        }
        for _ in 0..ledger.options.readers {
            spawn(Thread::read_any);
        }
        Self { ledger: Arc::clone(ledger), stop, threads }
    }

    /// Runs the load until `writes` commits and scratch puts have gone well since now, or the time
    /// is over.
    pub fn run(&self, writes: u64, longest: Duration) {
        let target = self.ledger.record.writes().saturating_add(writes);
        self.run_until(|record| record.writes() >= target, longest);
    }

    /// Runs the load until the record is as wanted, or the time is over.
    pub fn run_until(&self, is_enough: impl Fn(&Record) -> bool, longest: Duration) {
        let end = Instant::now() + longest;
        while !is_enough(&self.ledger.record) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for the threads' end.
    pub fn stop(self) {
        drop(self);
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking(), "a thread of the load panicked");
        }
    }
}

struct Thread {
    pool: Pool,
    ledger: Arc<Ledger>,
    random: Random,
    number: u64,
}

impl Thread {
    fn write(&mut self) {
        let result = if self.random.chance(2) { self.commit() } else { self.put_scratch() };
        match result {
            Ok(()) => self.ledger.record.wrote(),
            Err(failure) => self.failed(failure),
        }
    }

    fn read_any(&mut self) {
        let durable = self.random.chance(2);
        let index = self.random.below(WRITERS * self.ledger.options.tensors_per_writer);
        match self.ledger.read(&self.pool, index, durable) {
            Ok(()) => self.ledger.record.read(),
            Err(failure) => self.failed(failure),
        }
    }

    fn failed(&self, failure: Failure) {
        self.ledger.record.failed(failure);
        std::thread::sleep(REST);
    }

    /// A tensor of this writer.
    fn own(&mut self) -> u64 {
        self.random.below(self.ledger.options.tensors_per_writer) * WRITERS + self.number
    }

    /// The next version of a tensor begins.
    fn begin(&self, index: u64, durable: bool) -> (u64, Option<Vec<u8>>) {
        let begun = &self.ledger.known(durable)[index as usize].begun;
        let version = begun.fetch_add(1, Ordering::SeqCst) + 1;
        let tensor = index << 1 | u64::from(durable);
        (version, content(tensor, version, self.ledger.options.longest))
    }

    fn put_options(&mut self) -> PutOptions {
        PutOptions { lifetime: self.random.pick(&LifetimeClass::ALL), ..PutOptions::default() }
    }

    /// One to four durable tensors appear, change or disappear.
    fn commit(&mut self) -> Result<(), Failure> {
        let mut batch = self.pool.batch();
        let mut indices: Vec<u64> = (0..=self.random.below(4)).map(|_| self.own()).collect();
        indices.sort_unstable();
        indices.dedup();
        let mut versions = Vec::new();
        for index in indices {
            let options = self.put_options();
            let (version, bytes) = self.begin(index, true);
            if let Some(bytes) = bytes {
                let put = batch.put(id(index, true), Source::from(bytes), options);
                put.map_err(|error| Failure::refused(&error))?;
            } else if batch.delete(id(index, true)).is_err() {
                // What is not there cannot be deleted, and a batch in doubt may yet bring it:
                // nothing is acknowledged by that.
                continue;
            }
            versions.push((index, version));
        }
        batch.commit().map_err(|error| Failure::refused(&error))?;
        for (index, version) in versions {
            self.ledger.durable[index as usize].acknowledged.store(version, Ordering::SeqCst);
        }
        Ok(())
    }

    fn put_scratch(&mut self) -> Result<(), Failure> {
        let index = self.own();
        let options = self.put_options();
        let (version, bytes) = self.begin(index, false);
        let id = id(index, false);
        if let Some(bytes) = bytes {
            let put = self.pool.put(id, Source::from(bytes), options);
            let ended = put.map_err(|error| Failure::refused(&error))?.wait();
            ended.map_err(|error| Failure::of(id, &error))?;
        } else {
            // A failed put of the version before may have left nothing to delete.
            let _ = self.pool.delete(id);
        }
        self.ledger.scratch[index as usize].acknowledged.store(version, Ordering::SeqCst);
        Ok(())
    }
}

fn id(index: u64, durable: bool) -> TensorId {
    TensorId::from_name(&format!("{} {index}", if durable { "durable" } else { "scratch" }))
}

/// The bytes of a tensor, if there is one.
fn read_whole(pool: &Pool, id: TensorId) -> Result<Option<Vec<u8>>, Failure> {
    loop {
        let Some(length) = pool.length(id) else { return Ok(None) };
        let memory = Destination::buffer(length as usize);
        match pool.get(id, 0..length, memory, Urgency::Urgent, None) {
            Ok(ticket) => {
                ticket.wait().map_err(|error| Failure::of(id, &error))?;
                return Ok(ticket.take_bytes());
            }
            // Another version, of another length, came or went meanwhile.
            Err(
                tidelog_engine::pool::GetError::Unknown(_)
                | tidelog_engine::pool::GetError::Range { .. }
                | tidelog_engine::pool::GetError::Memory { .. },
            ) => (),
            Err(error) => return Err(Failure::refused(&error)),
        }
    }
}
