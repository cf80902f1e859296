//! What the step that runs has done so far, and all that the last complete one did: what a report shows.
//!
//! Recording is on all the time, so it only appends. What is appended names storages by number and
//! birth place; the words are found when somebody asks for a report. A step that would not end keeps
//! its totals right and stops keeping details at a limit.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use tidelog_planner::migration::{Direction, Ending, MemorySample, Target};
use tidelog_planner::trace::Kind;
use tidelog_planner::units::{Bytes, Nanos};

use super::figures::BytesByKind;

/// Entries of each list of a step, at most: some 4 MiB a list.
const ENTRIES_MAX: usize = 1 << 16;

/// Recorded steps: the one that runs, and the last that was complete.
#[derive(Default)]
pub(super) struct History {
    current: Option<Step>,
    last: Option<Step>,
    begun: u64,
    /// Every op name that was seen, so that a span costs no copy of it.
    names: HashSet<Arc<str>>,
}

/// What one step did; times count from its beginning.
pub(super) struct Step {
    /// Counted from 1 since the session was opened.
    pub(super) number: u64,
    began: Instant,
    /// Of a step that runs: up to now.
    pub(super) duration: Nanos,
    pub(super) complete: bool,
    pub(super) memory: Vec<MemorySample>,
    pub(super) ops: Vec<OpRun>,
    pub(super) transfers: Vec<Transfer>,
    pub(super) stalls: Vec<Wait>,
    /// Details were left out.
    pub(super) truncated: bool,
    /// Bytes written to the log by kind, in the order of [`Kind::ALL`].
    pub(super) written: BytesByKind,
    pub(super) clean_evictions: u64,
    pub(super) clean_bytes: u64,
}

/// A storage, as long as it takes to find words for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) storage: u32,
    pub(super) name: Option<Arc<str>>,
    /// The op of its step that made it, and which output it is.
    pub(super) birth: Option<(u32, u16)>,
}

/// An op that was seen to run: its place in the step, if any, and when.
pub(super) struct OpRun {
    pub(super) name: Arc<str>,
    pub(super) index: Option<u32>,
    pub(super) begin: Nanos,
    pub(super) end: Nanos,
}

/// A transfer that ended in the step, or was under way when the step did.
pub(super) struct Transfer {
    pub(super) label: Label,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    pub(super) direction: Direction,
    pub(super) target: Target,
    pub(super) begin: Nanos,
    pub(super) moved: Nanos,
    pub(super) end: Nanos,
    /// How many of its bytes moved in this step.
    pub(super) in_step: u64,
    pub(super) urgent: bool,
    pub(super) ending: Ending,
}

/// A wait of an op, or of what is no op (`None`).
pub(super) struct Wait {
    pub(super) op: Option<(Arc<str>, Option<u32>)>,
    pub(super) begin: Nanos,
    pub(super) end: Nanos,
    /// The first storage that was not there; `None`: room.
    pub(super) waited_for: Option<Label>,
}

/// A transfer as it is told of when it ends.
pub(super) struct Ended {
    pub(super) label: Label,
    pub(super) kind: Kind,
    pub(super) bytes: u64,
    pub(super) direction: Direction,
    pub(super) target: Target,
    pub(super) asked: Instant,
    /// When it was handed on; `None` if it never did.
    pub(super) submitted: Option<Instant>,
    pub(super) urgent: bool,
    pub(super) ending: Ending,
}

impl History {
    pub(super) fn step_begins(&mut self, now: Instant) {
        self.begun += 1;
        self.current = Some(Step::new(self.begun, now));
    }

    /// Ends the step; one that an exception cut short is not kept.
    pub(super) fn step_ends(&mut self, complete: bool, now: Instant) {
        if let Some(mut step) = self.current.take()
            && complete
        {
            step.duration = step.since_begin(now);
            step.complete = true;
            self.last = Some(step);
        }
    }

    /// The number of the step that runs, or ran last.
    pub(super) fn number(&self) -> u64 {
        self.begun
    }

    /// The last complete step or, before there is one, the step that runs.
    pub(super) fn shown(&self) -> Option<&Step> {
        self.last.as_ref().or(self.current.as_ref())
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
    pub(super) fn transferred(&mut self, ended: Ended, now: Instant) {
        let Some(step) = &mut self.current else { return };
        let Ended { label, kind, bytes, direction, target, asked, submitted, urgent, ending } =
            ended;
        match ending {
            Ending::Moved if (direction, target) == (Direction::Out, Target::Ssd) => {
                step.written[Kind::ALL.iter().position(|&each| each == kind).unwrap_or(0)] += bytes;
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
        let transfer = Transfer {
            begin: step.since_begin(asked),
            moved: submitted.map_or(end, |submitted| step.since_begin(submitted)),
            end,
            in_step,
            label,
            kind,
            bytes,
            direction,
            target,
            urgent,
            ending,
        };
        push(&mut step.transfers, transfer, &mut step.truncated);
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

impl Step {
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
        }
    }

    /// The part of the bytes that moved in the step, if they moved evenly from `from` to `to`.
    fn share(&self, bytes: u64, from: Instant, to: Instant) -> u64 {
        let all = to.saturating_duration_since(from).as_nanos();
        let inside = to.saturating_duration_since(from.max(self.began)).as_nanos();
        (u128::from(bytes) * inside).checked_div(all).map_or(bytes, |part| part as u64)
    }

    /// What began before the step counts from its beginning.
    fn since_begin(&self, moment: Instant) -> Nanos {
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
    use super::*;
    use std::time::Duration;

    fn ended(asked: Instant, bytes: u64, direction: Direction, ending: Ending) -> Ended {
        let label = Label { storage: 1, name: None, birth: None };
        let kind = Kind::Gradient;
        let (target, submitted) = (Target::Ssd, Some(asked));
        Ended { label, kind, bytes, direction, target, asked, submitted, urgent: false, ending }
    }

    #[test]
    fn the_last_complete_step_is_shown_until_the_next_is_complete() {
        let (mut history, now) = (History::default(), Instant::now());
        assert!(history.shown().is_none());
        history.step_begins(now);
        assert!(!history.shown().unwrap().complete);
        history.step_ends(true, now + Duration::from_millis(3));
        history.step_begins(now);
        assert_eq!((history.shown().unwrap().number, history.shown().unwrap().complete), (1, true));
        assert_eq!(history.shown().unwrap().duration, Nanos(3_000_000));
        history.step_ends(false, now);
        assert_eq!(history.shown().unwrap().number, 1, "a step cut short takes no place");
        history.step_begins(now);
        history.step_ends(true, now);
        assert_eq!(history.shown().unwrap().number, 3);
    }

    #[test]
    fn totals_stay_right_where_details_are_left_out() {
        let (mut history, now) = (History::default(), Instant::now());
        history.step_begins(now);
        for _ in 0..ENTRIES_MAX + 10 {
            history.transferred(ended(now, 3, Direction::Out, Ending::Moved), now);
        }
        history.transferred(ended(now, 5, Direction::Out, Ending::Clean), now);
        history.transferred(ended(now, 7, Direction::In, Ending::Moved), now);
        let to_host = ended(now, 11, Direction::Out, Ending::Moved);
        history.transferred(Ended { target: Target::Host, ..to_host }, now);
        let step = history.shown().unwrap();
        assert!(step.truncated);
        assert_eq!(step.transfers.len(), ENTRIES_MAX);
        assert_eq!(step.written.iter().sum::<u64>(), 3 * (ENTRIES_MAX as u64 + 10));
        assert_eq!((step.clean_evictions, step.clean_bytes), (1, 5));
    }

    #[test]
    fn what_began_before_the_step_begins_with_it() {
        let (mut history, before) = (History::default(), Instant::now());
        let begun = before + Duration::from_secs(1);
        history.step_begins(begun);
        let end = begun + Duration::from_nanos(9);
        history.transferred(ended(before, 1_000_000_009, Direction::In, Ending::Moved), end);
        let moved = &history.shown().unwrap().transfers[0];
        assert_eq!((moved.begin, moved.moved, moved.end), (Nanos(0), Nanos(0), Nanos(9)));
        assert_eq!(moved.in_step, 9, "what it moved before counts there");
    }

    #[test]
    fn an_unchanged_sample_is_not_kept_twice_and_one_moment_has_one_sample() {
        let (mut history, now) = (History::default(), Instant::now());
        history.step_begins(now);
        history.sample(now, 1, 0, 1);
        history.sample(now, 2, 0, 2);
        history.sample(now + Duration::from_nanos(5), 2, 0, 2);
        history.sample(now + Duration::from_nanos(6), 0, 2, 2);
        let step = history.shown().unwrap();
        let kept: Vec<_> = step.memory.iter().map(|each| (each.at.0, each.resident.0)).collect();
        assert_eq!(kept, [(0, 2), (6, 0)]);
        assert_eq!(step.duration, Nanos(6));
    }
}
