//! An open session: the executor behind a lock, and what can be done without it.

use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use tidelog_engine::pool::Pool;
use tidelog_engine::units::ByteCount;
use tidelog_planner::recompute::{CheckpointedRegion, SameWrites};
use tidelog_planner::residency::{
    Config, EvictError, OpProgress, OpUse, ProtocolError, Residency, StorageId,
};
use tidelog_planner::trace::StorageKind;
use tidelog_planner::units::Bytes;

use super::dispatch::{Executor, Readiness};
use super::history::ToldSpan;
use super::ops::OpCall;
use super::parts::Divisible;
use super::planning::{LOOKAHEAD_OPS, LinkRates, PlannerPolicy, Planning};
use super::storages::StorageBirth;
use super::transfers::{BackingStore, open_tier};
use super::{files, report, stats};
use crate::error::{Failure, FailureKind};
use crate::memory::{BYTES_MAX, CallerMemory, MemoryPlace, MemoryRequest};
use crate::pool::{PoolConfig, SharedPool};

/// Part of a pool's space, in quarters, that storages may take if another step is chosen: the log
/// needs some to move in.
const POOL_QUARTERS: u64 = 3;

/// Interval at which transfers beside asynchronous uses are checked.
const REFUSE_AFTER: Duration = Duration::from_millis(1);

/// Options to open a session.
pub(crate) struct SessionConfig<'a> {
    pub(crate) pool: PoolConfig<'a>,
    /// Bytes of storages and staging that may be in memory at once.
    pub(crate) budget: u64,
    /// Bytes of host memory that takes a GPU's storages before the pool does.
    pub(crate) host_memory: u64,
    /// True to make no plan.
    pub(crate) reactive: bool,
    pub(crate) policy: PlannerPolicy,
}

/// An open session.
pub(crate) struct Session {
    pub(super) store: Arc<BackingStore>,
    executor: Mutex<Executor>,
}

impl Session {
    pub(crate) fn open(config: &SessionConfig<'_>) -> Result<Self, Failure> {
        let (budget, staging) = (config.budget, config.pool.staging);
        if staging >= budget {
            return Err(Failure::new(
                FailureKind::BudgetExceeded,
                format!(
                    "staging of {} leaves nothing of a budget of {}",
                    ByteCount(staging),
                    ByteCount(budget)
                ),
            ));
        }
        // Before the pool: where there is not as much memory, no devices are formatted.
        let tier = open_tier(config.pool.place, config.host_memory)?;
        let pool = SharedPool::take(&config.pool)?;
        // Behind the pool, which may have made its devices.
        let links = LinkRates::of(&config.pool);
        let place = config.pool.place;
        let planning =
            Planning::new(config.policy, config.reactive, Bytes(staging), (place, links));
        let store = BackingStore::new(pool, tier, place);
        Ok(Self::new(store, planning, budget, config.host_memory))
    }

    /// A session in host memory on a pool that is open already, and closed with the session.
    pub(crate) fn on_pool(pool: Pool, budget: u64, staging: u64) -> Self {
        let store = BackingStore::new(SharedPool::of(pool), None, MemoryPlace::Host);
        let links = LinkRates::default();
        let place = (MemoryPlace::Host, links);
        let planning = Planning::new(PlannerPolicy::default(), false, Bytes(staging), place);
        Self::new(store, planning, budget, 0)
    }

    fn new(store: BackingStore, planning: Planning, budget: u64, host_memory: u64) -> Self {
        let machine = Residency::new(Config {
            lookahead: LOOKAHEAD_OPS,
            host_memory: Bytes(host_memory),
            // Kernels that nobody reports run on a GPU whenever it gets to them.
            recheck: matches!(store.place(), MemoryPlace::Gpu(_)),
            ..Config::new(Bytes(budget.min(BYTES_MAX)), planning.staging())
        });
        let store = Arc::new(store);
        let executor = Executor::new(machine, planning, Arc::clone(&store));
        Self { store, executor: Mutex::new(executor) }
    }

    /// Stops what is in flight and waits until no device or copy touches the caller's memory.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        self.lock().transfers.stop();
        self.store.release()
    }

    /// The pool in which its storages lie.
    pub(crate) fn pool(&self) -> Pool {
        self.store.pool().clone()
    }

    pub(crate) fn attention_address(&self) -> *const u32 {
        self.store.attention_address()
    }

    pub(crate) fn set_budget(&self, budget: u64) {
        let mut executor = self.lock();
        executor.machine.set_budget(Bytes(budget.min(BYTES_MAX)));
        executor.carry_out();
    }

    /// Sets how many bytes a day may be written from here on; 0: any number.
    pub(crate) fn set_write_budget(&self, per_day: u64) {
        let devices = self.store.bytes_written();
        let per_day = (per_day > 0).then_some(Bytes(per_day));
        self.lock().set_write_budget(per_day, devices);
    }

    /// Pauses as long as the write budget asks for, at most `timeout`. Ready once that is over.
    pub(crate) fn throttle(&self, timeout: Duration) -> Readiness {
        let devices = self.store.bytes_written();
        let pause = self.lock().throttle(devices);
        if pause.is_zero() {
            return Readiness::Ready;
        }
        let began = Instant::now();
        thread::sleep(pause.min(timeout));
        self.lock().has_throttled(began.elapsed());
        if pause > timeout { Readiness::Waiting } else { Readiness::Ready }
    }

    pub(crate) fn sync(
        &self,
        births: impl Iterator<Item = StorageBirth>,
        deaths: &[u32],
    ) -> Result<(), Failure> {
        let mut executor = self.lock();
        for birth in births {
            executor.born(&birth)?;
        }
        for &storage in deaths {
            executor.died(StorageId(storage));
        }
        executor.carry_out();
        Ok(())
    }

    pub(crate) fn name(&self, storage: u32, kind: StorageKind, name: &str) -> Result<(), Failure> {
        self.lock().storages.name(StorageId(storage), kind, name)
    }

    pub(crate) fn resized(&self, storage: u32, size: u64) -> Result<(), Failure> {
        self.lock().check_size(size)?;
        self.change(storage, |executor, id| executor.resized(id, size))
    }

    pub(crate) fn modified(&self, storage: u32) -> Result<(), Failure> {
        self.change(storage, Executor::modified)
    }

    pub(crate) fn pin(&self, storage: u32, on: bool) -> Result<(), Failure> {
        self.change(storage, |Executor { storages, parts, machine, .. }, id| {
            storages.pin(id, on);
            for part in parts.of(id) {
                if on { machine.pin(part) } else { machine.unpin(part) }
            }
            Ok(())
        })
    }

    /// Checks that an op that has ended uses the storage still.
    pub(crate) fn async_use(&self, storage: u32, on: bool) -> Result<(), Failure> {
        self.change(storage, |Executor { parts, machine, .. }, id| {
            for part in parts.of(id) {
                if on { machine.async_use_begins(part) } else { machine.async_use_ends(part) }
            }
            Ok(())
        })
    }

    /// One event about one live storage.
    fn change(
        &self,
        storage: u32,
        event: impl FnOnce(&mut Executor, StorageId) -> Result<(), ProtocolError>,
    ) -> Result<(), Failure> {
        let mut executor = self.lock();
        executor.storages.check(StorageId(storage))?;
        event(&mut executor, StorageId(storage))
            .map_err(|misuse| Failure::invalid(misuse.to_string()).about(storage))?;
        executor.carry_out();
        Ok(())
    }

    pub(crate) fn evict(&self, storage: u32) -> Result<Readiness, Failure> {
        let mut refused: Option<EvictError> = None;
        let readiness = self.lock().advance(|executor| {
            executor.evict(StorageId(storage)).unwrap_or_else(|error| {
                refused = Some(error);
                OpProgress::Ready
            })
        });
        match refused {
            Some(error) => Err(Failure::invalid(error.to_string()).about(storage)),
            None => readiness,
        }
    }

    /// Has all that can leave memory, and what the pool's data path can spare.
    pub(crate) fn pause(&self) -> Result<Readiness, Failure> {
        let mut refused = None;
        let mut executor = self.lock();
        if executor.depth() > 0 {
            return Err(Failure::new(
                FailureKind::Busy,
                "a session is not paused in the middle of an op: call tide_session_pause when it has \
                 ended",
            ));
        }
        let readiness = executor.advance(|executor| {
            executor.pause().unwrap_or_else(|error| {
                refused = Some(error);
                OpProgress::Ready
            })
        });
        refused.map_or(readiness, |error| Err(Failure::invalid(format!("no pause: {error}"))))
    }

    /// Ends a pause, `at_once` with what left by it.
    pub(crate) fn go_on_after_pause(&self, at_once: bool) -> Result<Readiness, Failure> {
        self.lock().advance(|executor| executor.go_on_after_pause(at_once))
    }

    pub(crate) fn step_begin(&self) -> Result<Readiness, Failure> {
        let mut executor = self.lock();
        refuse_in_pause(&executor)?;
        executor.advance(Executor::step_begins)
    }

    /// Ends a step, which an exception may have cut short.
    pub(crate) fn step_end(&self, complete: bool) -> Result<Readiness, Failure> {
        self.lock().advance(|executor| executor.step_ends(complete))
    }

    /// The step follows the plan no longer.
    pub(crate) fn leave_plan(&self) {
        self.lock().machine.leave_schedule();
    }

    /// Lets plans move parts of storages. Before any storage is born.
    pub(crate) fn use_parts(&self) {
        let of = match self.store.place() {
            MemoryPlace::Host => Divisible::All,
            MemoryPlace::Gpu(_) => Divisible::WhatLivesOn,
        };
        let mut executor = self.lock();
        executor.parts.use_them(of);
        executor.planning.move_parts(of);
    }

    /// The caller can give back parts of this storage's memory from here on.
    pub(crate) fn divisible(&self, storage: u32) -> Result<(), Failure> {
        self.change(storage, |executor, id| {
            executor.parts.is_divisible(id);
            Ok(())
        })
    }

    /// Returns the start of the part that request `sequence`, which is the next, is about.
    pub(crate) fn part_begin(&self, sequence: u64) -> Result<u64, Failure> {
        let next = self.lock().transfers.next_request();
        let next = next.filter(|next| next.sequence == sequence);
        next.and_then(|next| next.of.part).ok_or_else(|| {
            Failure::invalid(format!("request {sequence} is not the next, or is of no part"))
        })
    }

    /// Returns whether the first plan waits until this is called with `false`; returns whether it
    /// is ready.
    pub(crate) fn hold_plan(&self, hold: bool) -> bool {
        self.lock().planning.hold_first(hold)
    }

    /// Chooses which of these regions of the planned step are better run once: looked for from here
    /// on.
    pub(crate) fn choose_regions(&self, regions: Vec<CheckpointedRegion>) -> Result<(), Failure> {
        let space = self.store.pool_stats().map(|stats| stats.space);
        let room = space.map_or(0, |space| {
            space.capacity.0.saturating_sub(space.sealed.0 + space.index.0) / 4 * POOL_QUARTERS
        });
        let mut executor = self.lock();
        let Executor { machine, planning, history, .. } = &mut *executor;
        planning.choose_regions((regions, Bytes(room)), machine, history).map_err(Failure::invalid)
    }

    /// Names ops of the planned step that write the same bytes, for the next choice of regions.
    pub(crate) fn same_writes(&self, same: Vec<SameWrites>) {
        self.lock().planning.same_writes(same);
    }

    /// The choice, as JSON; null while it is being made.
    pub(crate) fn chosen_regions_json(&self) -> String {
        self.lock().planning.chosen_regions().to_string()
    }

    /// Restarts learning between two steps: those to come are others, and are learnt and planned
    /// for as the first ones were.
    pub(crate) fn learn_again(&self) {
        let mut executor = self.lock();
        let Executor { machine, parts, planning, .. } = &mut *executor;
        planning.learn_again(machine);
        parts.follow_nothing();
        executor.carry_out();
    }

    /// Returns the ops at which a migration begins, one byte each; `None` without a plan. The
    /// session keeps it until the next step begins.
    pub(crate) fn due(&self) -> Option<Arc<[u8]>> {
        self.lock().planning.planned().map(|planned| Arc::clone(&planned.due))
    }

    pub(crate) fn op_begin(
        &self,
        op: &OpCall<'_>,
        uses: impl Iterator<Item = OpUse>,
    ) -> Result<Readiness, Failure> {
        let mut executor = self.lock();
        refuse_in_pause(&executor)?;
        executor.advance(|executor| executor.op_begins(op, uses))
    }

    pub(crate) fn op_end(&self) -> Result<Readiness, Failure> {
        self.lock().advance(Executor::op_ends)
    }

    /// Records the real times of the ops of the step that is about to end.
    pub(crate) fn durations(&self, nanoseconds: &[u64]) {
        self.lock().planning.took(nanoseconds);
    }

    /// Records what the caller has seen of the last complete step, by a GPU's clock and its own.
    pub(crate) fn step_spans(&self, spans: &[ToldSpan]) {
        self.lock().history.told(spans);
    }

    pub(crate) fn settle(&self) -> Result<Readiness, Failure> {
        self.lock().advance(Executor::settle)
    }

    pub(crate) fn resume(&self) -> Result<Readiness, Failure> {
        self.lock().look_again(Residency::resume)
    }

    /// Looks again, and refuses what then waits for asynchronous uses alone.
    pub(crate) fn resume_or_refuse(&self) -> Result<Readiness, Failure> {
        self.lock().look_again(Residency::resume_or_refuse)
    }

    /// Waits for one completion at most `timeout`, without the lock, then looks again.
    pub(crate) fn wait(&self, timeout: Duration) -> Result<Readiness, Failure> {
        let since = Instant::now();
        let seen = self.store.wait_completion(timeout);
        self.lock().waited(since, seen);
        self.resume()
    }

    /// Takes the completions that there are or come at once, then looks again, and refuses what
    /// waits for asynchronous uses alone.
    pub(crate) fn wait_or_refuse(&self) -> Result<Readiness, Failure> {
        let since = Instant::now();
        let seen = self.store.wait_completion(REFUSE_AFTER);
        self.lock().waited(since, seen);
        self.resume_or_refuse()
    }

    /// Returns the number of ops around those that begin now.
    pub(crate) fn depth(&self) -> usize {
        self.lock().depth()
    }

    /// Enters or leaves ops, so that `depth` are around those that begin from here on.
    pub(crate) fn nest(&self, depth: u32) -> Result<Readiness, Failure> {
        self.lock().nest(depth as usize)
    }

    pub(crate) fn next_request(&self) -> Option<MemoryRequest> {
        self.lock().hand_out()
    }

    /// Keeps the error of a wait, which the caller hears when it looks again.
    pub(crate) fn hold(&self, failure: Failure) {
        self.lock().hold(failure);
    }

    /// The caller was cut short in what a request asks for, and has not answered it.
    pub(crate) fn request_cut_short(&self, sequence: u64) {
        self.lock().request_cut_short(sequence);
    }

    /// The caller has done what a request asked for.
    pub(crate) fn request_done(&self, memory: &CallerMemory) -> Result<(), Failure> {
        memory.check(self.store.place())?;
        self.lock().request_done(memory)
    }

    /// Figures since the session was opened, as JSON.
    pub(crate) fn stats_json(&self) -> String {
        // Without the lock: devices may take a while to answer.
        let (pool, endurance) = (self.store.pool_stats(), self.store.endurance());
        let (pool, endurance) = (pool.as_ref(), endurance.as_deref());
        stats::figures(&self.lock(), &self.store, pool, endurance).to_string()
    }

    /// Figures of a simulated step at the pace of the last one, as JSON; null where that followed
    /// no plan to its end.
    pub(crate) fn simulated_json(&self) -> String {
        let executor = self.lock();
        executor.planning.simulated(&executor.history).to_string()
    }

    /// Writes the report of the last complete step, or of the one that runs where none is complete.
    pub(crate) fn write_report(&self, path: &Path) -> Result<(), Failure> {
        let (pool, tier) = (self.store.pool_stats(), self.store.tier_stats());
        let report = report::make(&self.lock(), pool.as_ref(), tier.as_ref());
        files::write("report", path, &report.to_html())
    }

    /// Writes the trace of the planned step, for `tidelog-plan`.
    pub(crate) fn write_trace(&self, path: &Path) -> Result<(), Failure> {
        let trace = self.lock().planning.planned().map(|planned| Arc::clone(&planned.trace));
        let trace = trace.ok_or_else(|| {
            Failure::invalid(
                "there is no trace yet: with mode=\"auto\" one is made once two steps in \
                 `with tide.step():` were alike",
            )
        })?;
        files::write("trace", path, &trace.to_json())
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, Executor> {
        // A panic inside a call is reported by that call; the tables behind the lock stay usable.
        self.executor.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses what belongs to a step in a pause. An op inside a request of one can run when it is
/// over.
fn refuse_in_pause(executor: &Executor) -> Result<(), Failure> {
    if !executor.machine.is_paused() {
        return Ok(());
    }
    if executor.depth() > 0 {
        return Err(Failure::new(
            FailureKind::Busy,
            "it is inside another op, or a request, of a pause: let it run when that has ended",
        ));
    }
    Err(Failure::invalid(
        "the session is paused: end that (tide_session_go_on) before the next op or step",
    ))
}
