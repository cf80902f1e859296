//! History of a session: counters since the session was opened, and the details of the steps that a
//! report shows.

mod clocks;
mod counters;
mod pauses;
mod recorder;
mod shown;

use std::time::Instant;

use tidelog_gds::HostTierStats;
use tidelog_planner::migration::Ending;
use tidelog_planner::report::Report;
use tidelog_planner::simulate::TimeCause;
use tidelog_planner::trace::Trace;
use tidelog_planner::units::Bytes;

use super::ops::OpName;
use super::storages::Label;
use super::transfer::StorageTransfer;
use pauses::{PauseNow, Pauses};
use recorder::StepRecorder;

pub(crate) use clocks::ToldSpan;
pub(super) use counters::{BytesByKind, Counters};
pub(super) use pauses::PauseTotals;

/// Counters and recorded steps.
#[derive(Default)]
pub(super) struct History {
    counters: Counters,
    recorder: StepRecorder,
    pauses: Pauses,
    stall: Option<OpenStall>,
    /// Time since when the caller has been handling requests.
    handing_out: Option<Instant>,
    /// Time since when the caller has been waiting for a transfer, with looks in between.
    waiting: Option<Instant>,
}

/// A call waits: from the first time it had to until it is ready.
struct OpenStall {
    since: Instant,
    /// The first storage that was not there; `None`: room.
    storage: Option<Label>,
}

impl History {
    /// Makes an empty history; `has_gpu`: of a session whose kernels run beside the program's
    /// thread.
    pub(super) fn new(has_gpu: bool) -> Self {
        Self { recorder: StepRecorder::new(has_gpu), ..Self::default() }
    }

    pub(super) fn step_begins(&mut self) {
        self.counters.step_begins();
        self.recorder.step_begins(Instant::now());
    }

    /// Notes what has been copied to host memory and from it, by what that says.
    pub(super) fn host_copied(&mut self, tier: Option<&HostTierStats>) {
        if let Some(tier) = tier {
            self.counters.host_copied(tier.back, tier.out);
        }
    }

    /// A step ends, with these transfers under way.
    pub(super) fn step_ends<'a>(
        &mut self,
        complete: bool,
        under_way: impl Iterator<Item = &'a StorageTransfer>,
    ) {
        self.counters.step_ends();
        let now = Instant::now();
        for transfer in under_way {
            self.recorder.transferred(transfer, Ending::UnderWay, now);
        }
        self.recorder.step_ends(complete, now);
    }

    /// Notes that a pause begins, and what is in memory.
    pub(super) fn pause_begins(&mut self, memory: Bytes) {
        self.pauses.begins(memory, self.counters.counted());
    }

    pub(super) fn is_paused(&self) -> bool {
        self.pauses.is_open()
    }

    /// Notes that a pause is to end.
    pub(super) fn pause_ends(&mut self, memory: Bytes) {
        self.pauses.ends(memory);
    }

    /// Notes that nothing is waited for. What a pause has done and taken is none of the step's in
    /// which it was. Returns whether all has left for one by now.
    pub(super) fn pause_goes_on(&mut self, memory: Bytes) -> bool {
        match self.pauses.goes_on(memory) {
            PauseNow::AllIsOut => true,
            PauseNow::AsBefore => false,
            PauseNow::Over { took, counted } => {
                self.stall = None;
                self.counters.goes_on(took, &counted);
                self.recorder.goes_on(took);
                false
            }
        }
    }

    pub(super) fn pauses(&self) -> PauseTotals {
        self.pauses.totals()
    }

    /// Notes that the program was throttled behind a step.
    pub(super) fn throttled(&mut self) {
        self.counters.throttled();
    }

    /// Memory now: bytes at rest, bytes of storages on their way, bytes of all that lives.
    pub(super) fn sample(&mut self, now: Instant, resident: u64, moving: u64, wanted: u64) {
        if self.pauses.is_open() {
            return;
        }
        self.recorder.sample(now, resident, moving, wanted);
    }

    /// An op ran until now.
    pub(super) fn op_ran(&mut self, (name, index): OpName<'_>, since: Instant, now: Instant) {
        self.recorder.ran(name, index, since, now);
    }

    /// The caller is given requests.
    pub(super) fn requests_handed_out(&mut self) {
        self.handing_out = Some(Instant::now());
    }

    /// The caller comes back: what it did since it was given requests is the handling of transfers.
    pub(super) fn caller_returns(&mut self) {
        if let Some(since) = self.handing_out.take() {
            let now = Instant::now();
            self.counters.handled(now.saturating_duration_since(since));
            self.spent(TimeCause::Requests, since, now);
        }
    }

    /// The caller has to wait, for a storage or for room.
    pub(super) fn stall_begins(&mut self, storage: impl FnOnce() -> Option<Label>) {
        if self.stall.is_none() {
            let storage = storage();
            self.stall = Some(OpenStall { since: Instant::now(), storage });
        }
    }

    /// The caller has waited since then, for a transfer that ended at `at`; `None`: it has not seen
    /// the end of what it waits for.
    pub(super) fn waited(&mut self, since: Instant, ended: Option<(&StorageTransfer, Instant)>) {
        let since = *self.waiting.get_or_insert(since);
        let Some((transfer, at)) = ended else { return };
        self.waiting = None;
        let (now, at) = (Instant::now(), at.max(since));
        self.spent(clocks::cause_of(transfer), since, at);
        self.spent(TimeCause::WakeUps, at, now);
    }

    fn spent(&mut self, cause: TimeCause, since: Instant, until: Instant) {
        if !self.pauses.is_open() {
            self.recorder.spent(cause, since, until);
        }
    }

    /// The caller says what it has seen of the last complete step.
    pub(super) fn told(&mut self, spans: &[ToldSpan]) {
        self.recorder.told(spans, Instant::now());
    }

    /// Returns what took the time of the last step of which that is known, as JSON.
    pub(super) fn step_time(&self) -> Option<serde_json::Value> {
        self.recorder.timed().map(clocks::figures)
    }

    /// The caller need not wait, or not any more.
    pub(super) fn stall_ends(&mut self, op: Option<OpName<'_>>) {
        self.waiting = None;
        if let Some(OpenStall { since, storage }) = self.stall.take()
            && !self.pauses.is_open()
        {
            self.counters.stalled(since.elapsed());
            self.recorder.waited(op, storage, since, Instant::now());
        }
    }

    /// A transfer's bytes begin to move.
    pub(super) fn transfer_started(&mut self, transfer: &StorageTransfer) {
        self.counters.started(transfer);
    }

    /// A transfer that had started came to its end at that time, well or not.
    pub(super) fn transfer_completed(
        &mut self,
        transfer: &StorageTransfer,
        done: bool,
        at: Instant,
    ) {
        self.counters.completed(transfer, done, at);
    }

    /// A transfer has ended, whether it had started or not.
    pub(super) fn transfer_ended(&mut self, transfer: &StorageTransfer, ending: Ending) {
        if self.pauses.is_open() {
            return;
        }
        self.recorder.transferred(transfer, ending, Instant::now());
    }

    /// Returns the counters.
    pub(super) fn counters(&self) -> &Counters {
        &self.counters
    }

    /// The number of the step that runs, or ran last.
    pub(super) fn step_number(&self) -> u64 {
        self.recorder.number()
    }

    /// Fills a report with the last complete step or, before there is one, with the step that runs.
    /// The trace of the planned step names the ops that were not seen to run.
    pub(super) fn show(&self, planned: Option<&Trace>, report: &mut Report) {
        shown::show(self.recorder.shown(), planned, report);
    }
}
