//! Recorder of the running step, and of the last complete one, which a report shows.
//!
//! Recording is on all the time, so it only appends. What is appended names storages by number and
//! birth place; the words are found when somebody asks for a report. A step that would not end
//! keeps its totals right and stops keeping details at a limit.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::schedule::Urgency;
use tidelog_planner::migration::{Ending, MemorySample, MigrationDirection, Target};
use tidelog_planner::report::TransferSpan;
use tidelog_planner::residency::CopyKind;
use tidelog_planner::simulate::{CauseSpan, StepClocks, TimeCause};
use tidelog_planner::units::{Bytes, Nanos};

use super::clocks::{self, ToldSpan};
use super::counters::{BytesByKind, place_of};
use crate::executor::storages::Label;
use crate::executor::transfer::{self, StorageTransfer};

/// Entries of each list of a step, at most: some 4 MiB a list.
const ENTRIES_MAX: usize = 1 << 16;

/// Recorded steps: the one that runs, and the last that was complete.
#[derive(Default)]
pub(super) struct StepRecorder {
    current: Option<RecordedStep>,
    last: Option<RecordedStep>,
    /// The last one before that of which a GPU's clock is known.
    timed: Option<RecordedStep>,
    /// True if kernels compute beside the program's thread.
    has_gpu: bool,
    begun: u64,
    /// Every op name that was seen, so that a span costs no copy of it.
    names: HashSet<Arc<str>>,
}

/// Record of one step; times count from its beginning.
pub(super) struct RecordedStep {
    /// Counted from 1 since the session was opened.
    pub(super) number: u64,
    began: Instant,
    /// Duration; of a running step, up to now.
    pub(super) duration: Nanos,
    pub(super) complete: bool,
    pub(super) memory: Vec<MemorySample>,
    pub(super) ops: Vec<OpRun>,
    pub(super) transfers: Vec<Transferred>,
    pub(super) stalls: Vec<Wait>,
    /// Details were left out.
    pub(super) truncated: bool,
    /// Bytes written to the log by kind.
    pub(super) written: BytesByKind,
    pub(super) clean_evictions: u64,
    pub(super) clean_bytes: u64,
    /// Spans in which the thread waited for transfers or did what they needed of it.
    thread: Vec<CauseSpan>,
    /// The clocks, from the step's end on.
    pub(super) clocks: StepClocks,
}

/// An op that was seen to run: its place in the step, if any, and when.
pub(super) struct OpRun {
    pub(super) name: Arc<str>,
    pub(super) index: Option<u32>,
    pub(super) begin: Nanos,
    pub(super) end: Nanos,
}

/// A transfer that ended in the step, or was under way when the step did.
pub(super) struct Transferred {
    pub(super) label: Label,
    /// The name is empty, and is made from the label when a report is.
    pub(super) span: TransferSpan,
}

/// A wait of an op, or of what is no op (`None`).
pub(super) struct Wait {
    pub(super) op: Option<(Arc<str>, Option<u32>)>,
    pub(super) begin: Nanos,
    pub(super) end: Nanos,
    /// The first storage that was not there; `None`: room.
    pub(super) waited_for: Option<Label>,
}

impl StepRecorder {
    /// Makes a recorder; `has_gpu`: of steps whose kernels run beside the program's thread.
    pub(super) fn new(has_gpu: bool) -> Self {
        Self { has_gpu, ..Self::default() }
    }

    pub(super) fn step_begins(&mut self, now: Instant) {
        self.begun += 1;
        self.current = Some(RecordedStep::new(self.begun, now));
    }

    /// Ends the step; one that an exception cut short is not kept.
    pub(super) fn step_ends(&mut self, complete: bool, now: Instant) {
        if let Some(mut step) = self.current.take()
            && complete
        {
            step.duration = step.since_begin(now);
            step.complete = true;
            let otherwise = if self.has_gpu { TimeCause::Dispatch } else { TimeCause::Kernels };
            step.clocks.thread = clocks::of_thread(step.duration, &step.thread, otherwise);
            let before = self.last.replace(step);
            if let Some(timed) = before.filter(|step| !step.clocks.gpu.is_empty()) {
                self.timed = Some(timed);
            }
        }
    }

    /// Has the step that runs go on later.
    pub(super) fn goes_on(&mut self, later: Duration) {
        if let Some(step) = &mut self.current {
            step.began += later;
        }
    }

    /// The number of the step that runs, or ran last.
    pub(super) fn number(&self) -> u64 {
        self.begun
    }

    /// The last complete step or, before there is one, the step that runs; with a GPU the last of
    /// which its clock is known, if there is one.
    pub(super) fn shown(&self) -> Option<&RecordedStep> {
        self.timed().or(self.last.as_ref()).or(self.current.as_ref())
    }

    /// The last complete step of which the clock is known that computes.
    pub(super) fn timed(&self) -> Option<&RecordedStep> {
        let last = self.last.as_ref();
        last.filter(|step| !self.has_gpu || !step.clocks.gpu.is_empty()).or(self.timed.as_ref())
    }

    /// The caller says what it has seen of the last complete step.
    pub(super) fn told(&mut self, spans: &[ToldSpan], now: Instant) {
        if let Some(step) = &mut self.last
            && let Some(clocks) = clocks::with_told(step, &step.clocks.thread, spans, now)
        {
            step.clocks = clocks;
        }
    }

    /// The thread did something from `begin` to `end`.
    pub(super) fn spent(&mut self, cause: TimeCause, begin: Instant, end: Instant) {
        if let Some(step) = &mut self.current {
            let (begin, end) = (step.since_begin(begin), step.since_begin(end));
            push(&mut step.thread, CauseSpan { begin, end, cause }, &mut step.truncated);
        }
    }

    /// Memory now: bytes at rest, bytes of storages on their way, bytes of all that lives.
    pub(super) fn sample(&mut self, now: Instant, resident: u64, moving: u64, wanted: u64) {
        let Some(step) = &mut self.current else { return };
        let at = step.since_begin(now);
        step.duration = at;
        let (resident, moving, wanted) = (Bytes(resident), Bytes(moving), Bytes(wanted));
        let sample = MemorySample { at, resident, moving, wanted };
        match step.memory.last_mut() {
            // A sample holds until the next: what did not change needs none.
            Some(last) if MemorySample { at, ..*last } == sample => {}
            Some(last) if last.at == at => *last = sample,
            _ => push(&mut step.memory, sample, &mut step.truncated),
        }
    }

    /// An op ran from `begin` to `end`.
    pub(super) fn ran(&mut self, name: &str, index: Option<u32>, begin: Instant, end: Instant) {
        if self.current.is_none() {
            return;
        }
        let name = self.name(name);
        if let Some(step) = &mut self.current {
            let (begin, end) = (step.since_begin(begin), step.since_begin(end));
            push(&mut step.ops, OpRun { name, index, begin, end }, &mut step.truncated);
        }
    }

    /// An op, or what is no op, waited from `begin` to `end`.
    pub(super) fn waited(
        &mut self,
        op: Option<(&str, Option<u32>)>,
        waited_for: Option<Label>,
        begin: Instant,
        end: Instant,
    ) {
        if self.current.is_none() {
            return;
        }
        let op = op.map(|(name, index)| (self.name(name), index));
        if let Some(step) = &mut self.current {
            let (begin, end) = (step.since_begin(begin), step.since_begin(end));
            push(&mut step.stalls, Wait { op, begin, end, waited_for }, &mut step.truncated);
        }
    }

    /// A transfer ended, or is under way while its step ends.
    pub(super) fn transferred(&mut self, transfer: &StorageTransfer, ending: Ending, now: Instant) {
        // A second check belongs to the eviction that wrote what it checks.
        if transfer.direction == transfer::TransferDirection::Out(CopyKind::Recheck) {
            return;
        }
        let Some(step) = &mut self.current else { return };
        let &StorageTransfer { kind, bytes, target, asked, submitted, .. } = transfer;
        let direction = match transfer.direction {
            transfer::TransferDirection::Out(_) => MigrationDirection::Out,
            transfer::TransferDirection::In => MigrationDirection::In,
        };
        match ending {
            Ending::Moved if (direction, target) == (MigrationDirection::Out, Target::Ssd) => {
                step.written[place_of(kind)] += bytes;
            }
            Ending::Clean => {
                step.clean_evictions += 1;
                step.clean_bytes += bytes;
            }
            _ => {}
        }
        let end = step.since_begin(now);
        let in_step = match submitted {
            Some(submitted) if ending != Ending::UnderWay => step.share(bytes, submitted, now),
            // The pool does not say how far it has come.
            _ => 0,
        };
        let span = TransferSpan {
            name: String::new(),
            kind,
            bytes: Bytes(bytes),
            direction,
            target,
            begin: step.since_begin(asked),
            moved: submitted.map_or(end, |submitted| step.since_begin(submitted)),
            end,
            in_step: Bytes(in_step),
            urgent: transfer.urgency == Urgency::Urgent,
            ending,
        };
        let transferred = Transferred { label: transfer.label.clone(), span };
        push(&mut step.transfers, transferred, &mut step.truncated);
    }

    fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.names.get(name) {
            return Arc::clone(known);
        }
        let name: Arc<str> = name.into();
        // Names come from the caller: were they all different, keeping them would be a leak.
        if self.names.len() < ENTRIES_MAX {
            self.names.insert(Arc::clone(&name));
        }
        name
    }
}

impl RecordedStep {
    fn new(number: u64, began: Instant) -> Self {
        Self {
            number,
            began,
            duration: Nanos(0),
            complete: false,
            memory: Vec::new(),
            ops: Vec::new(),
            transfers: Vec::new(),
            stalls: Vec::new(),
            truncated: false,
            written: BytesByKind::default(),
            clean_evictions: 0,
            clean_bytes: 0,
            thread: Vec::new(),
            clocks: StepClocks::default(),
        }
    }

    /// Returns when it began.
    pub(super) fn began(&self) -> Instant {
        self.began
    }

    /// The part of the bytes that moved in the step, if they moved evenly from `from` to `to`.
    fn share(&self, bytes: u64, from: Instant, to: Instant) -> u64 {
        let all = to.saturating_duration_since(from).as_nanos();
        let inside = to.saturating_duration_since(from.max(self.began)).as_nanos();
        (u128::from(bytes) * inside).checked_div(all).map_or(bytes, |part| part as u64)
    }

    /// Returns the time since the step's beginning, for events that came before it, too.
    pub(super) fn since_begin(&self, moment: Instant) -> Nanos {
        Nanos(moment.saturating_duration_since(self.began).as_nanos() as u64)
    }
}

fn push<T>(list: &mut Vec<T>, item: T, truncated: &mut bool) {
    if list.len() < ENTRIES_MAX {
        list.push(item);
    } else {
        *truncated = true;
    }
}

#[cfg(test)]
mod tests {
    use tidelog_planner::residency::StorageId;
    use tidelog_planner::trace::StorageKind;

    use super::*;
    use crate::memory::RequestedBytes;

    const OUT: transfer::TransferDirection = transfer::TransferDirection::Out(CopyKind::Write);
    const IN: transfer::TransferDirection = transfer::TransferDirection::In;

    fn transfer(
        asked: Instant,
        bytes: u64,
        direction: transfer::TransferDirection,
    ) -> StorageTransfer {
        StorageTransfer {
            label: Label { storage: StorageId(1), whole: StorageId(1), name: None, birth: None },
            of: RequestedBytes { storage: 1, part: None },
            kind: StorageKind::Gradient,
            bytes,
            direction,
            target: Target::Ssd,
            urgency: Urgency::Ahead,
            asked,
            submitted: Some(asked),
            is_ordered: false,
        }
    }

    #[test]
    fn the_last_complete_step_is_shown_until_the_next_is_complete() {
        let (mut recorder, now) = (StepRecorder::default(), Instant::now());
        assert!(recorder.shown().is_none());
        recorder.step_begins(now);
        assert!(!recorder.shown().unwrap().complete);
        recorder.step_ends(true, now + Duration::from_millis(3));
        recorder.step_begins(now);
        assert_eq!(
            (recorder.shown().unwrap().number, recorder.shown().unwrap().complete),
            (1, true)
        );
        assert_eq!(recorder.shown().unwrap().duration, Nanos(3_000_000));
        recorder.step_ends(false, now);
        assert_eq!(recorder.shown().unwrap().number, 1, "a step cut short takes no place");
        recorder.step_begins(now);
        recorder.step_ends(true, now);
        assert_eq!(recorder.shown().unwrap().number, 3);
    }

    fn told(from: u64, to: u64, cause: Option<TimeCause>, of_thread: bool) -> ToldSpan {
        let ago = |at| Duration::from_millis(100 - at);
        ToldSpan { began_ago: ago(from), ended_ago: ago(to), cause, of_thread }
    }

    #[test]
    fn a_gpus_clock_is_told_of_the_step_before() {
        use TimeCause::{Allocator, CopiesIn, Dispatch, Kernels, Requests};
        let (mut recorder, began) = (StepRecorder::new(true), Instant::now());
        let at = |millis| began + Duration::from_millis(millis);
        recorder.step_begins(began);
        recorder.spent(Requests, at(20), at(40));
        recorder.step_ends(true, at(90));
        assert!(recorder.timed().is_none(), "nothing was told");
        let spans = [
            told(5, 10, Some(Kernels), false),
            told(10, 50, None, false),
            told(50, 60, Some(CopiesIn), false),
            told(60, 95, Some(Kernels), false),
            told(30, 40, Some(Allocator), true),
        ];
        recorder.step_begins(at(92));
        recorder.told(&spans, at(100));
        let clocks = &recorder.timed().unwrap().clocks;
        let millis = |spans: &[CauseSpan]| -> Vec<_> {
            let millis = |at: Nanos| at.0 / 1_000_000;
            spans.iter().map(|it| (millis(it.begin), millis(it.end), it.cause)).collect()
        };
        let thread =
            [(0, 20, Dispatch), (20, 30, Requests), (30, 40, Allocator), (40, 90, Dispatch)];
        assert_eq!(millis(&clocks.thread), thread);
        let gpu = [
            (0, 10, Kernels),
            (10, 20, Dispatch),
            (20, 30, Requests),
            (30, 40, Allocator),
            (40, 50, Dispatch),
            (50, 60, CopiesIn),
            (60, 90, Kernels),
        ];
        assert_eq!(millis(&clocks.gpu), gpu);
        // The next step is not timed: this one is shown. Of another step nothing is taken.
        recorder.step_ends(true, at(180));
        recorder.told(&spans, at(100));
        assert_eq!((recorder.shown().unwrap().number, recorder.timed().unwrap().number), (1, 1));
    }

    #[test]
    fn totals_stay_right_where_details_are_left_out() {
        let (mut recorder, now) = (StepRecorder::default(), Instant::now());
        recorder.step_begins(now);
        for _ in 0..ENTRIES_MAX + 10 {
            recorder.transferred(&transfer(now, 3, OUT), Ending::Moved, now);
        }
        recorder.transferred(&transfer(now, 5, OUT), Ending::Clean, now);
        recorder.transferred(&transfer(now, 7, IN), Ending::Moved, now);
        let to_host = StorageTransfer { target: Target::Host, ..transfer(now, 11, OUT) };
        recorder.transferred(&to_host, Ending::Moved, now);
        let step = recorder.shown().unwrap();
        assert!(step.truncated);
        assert_eq!(step.transfers.len(), ENTRIES_MAX);
        assert_eq!(step.written.iter().sum::<u64>(), 3 * (ENTRIES_MAX as u64 + 10));
        assert_eq!((step.clean_evictions, step.clean_bytes), (1, 5));
    }

    #[test]
    fn what_began_before_the_step_begins_with_it() {
        let (mut recorder, before) = (StepRecorder::default(), Instant::now());
        let begun = before + Duration::from_secs(1);
        recorder.step_begins(begun);
        let end = begun + Duration::from_nanos(9);
        recorder.transferred(&transfer(before, 1_000_000_009, IN), Ending::Moved, end);
        let span = &recorder.shown().unwrap().transfers[0].span;
        assert_eq!((span.begin, span.moved, span.end), (Nanos(0), Nanos(0), Nanos(9)));
        assert_eq!(span.in_step, Bytes(9), "what it moved before counts there");
    }

    #[test]
    fn an_unchanged_sample_is_not_kept_twice_and_one_moment_has_one_sample() {
        let (mut recorder, now) = (StepRecorder::default(), Instant::now());
        recorder.step_begins(now);
        recorder.sample(now, 1, 0, 1);
        recorder.sample(now, 2, 0, 2);
        recorder.sample(now + Duration::from_nanos(5), 2, 0, 2);
        recorder.sample(now + Duration::from_nanos(6), 0, 2, 2);
        let step = recorder.shown().unwrap();
        let kept: Vec<_> = step.memory.iter().map(|each| (each.at.0, each.resident.0)).collect();
        assert_eq!(kept, [(0, 2), (6, 0)]);
        assert_eq!(step.duration, Nanos(6));
    }
}
