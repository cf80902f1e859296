//! A recorded step in the words of a report.

use std::collections::HashMap;

use tidelog_planner::report::{OpSpan, Report, Stall, TransferSpan};
use tidelog_planner::trace::{StorageKind, Trace};
use tidelog_planner::units::{Bytes, OpIndex};

use super::recorder::{OpRun, RecordedStep, Transferred, Wait};
use crate::executor::storages::Label;

/// Fills the report with a step, if there is one.
pub(super) fn show(step: Option<&RecordedStep>, planned: Option<&Trace>, report: &mut Report) {
    let Some(step) = step else {
        "measured, no step yet".clone_into(&mut report.subtitle);
        report.notices.push(
            "no step was marked: put each training step into `with tide.step():`, and the \
             report shows the last complete one"
                .to_owned(),
        );
        return;
    };
    let so_far = if step.complete { "" } else { ", not complete" };
    report.subtitle = format!("measured, step {}{so_far}", step.number);
    report.duration = step.duration;
    report.memory.clone_from(&step.memory);
    let words = Words::new(planned, step);
    report.ops = step.ops.iter().map(op_span).collect();
    report.transfers = step.transfers.iter().map(|moved| words.span(moved)).collect();
    report.stalls = step.stalls.iter().map(|waited| words.stall(waited)).collect();
    report.clocks = step.clocks.clone();
    report.written = written(step);
    report.clean_evictions = step.clean_evictions;
    report.clean_bytes = Bytes(step.clean_bytes);
    if step.truncated {
        report.notices.push(
            "the step did more than a report keeps: the picture leaves out its later part, the \
             totals of written bytes and clean evictions do not"
                .to_owned(),
        );
    }
}

/// Finds words for what a step recorded.
struct Words<'a> {
    /// Names of the plan's ops: under a plan most ops run unseen.
    planned: Option<&'a Trace>,
    /// Names of the ops that were seen, by their place.
    seen: HashMap<u32, &'a str>,
}

impl<'a> Words<'a> {
    fn new(planned: Option<&'a Trace>, step: &'a RecordedStep) -> Self {
        let seen = step.ops.iter().filter_map(|ran| Some((ran.index?, &*ran.name))).collect();
        Self { planned, seen }
    }

    fn span(&self, Transferred { label, span }: &Transferred) -> TransferSpan {
        TransferSpan { name: self.storage(label), ..span.clone() }
    }

    fn stall(&self, waited: &Wait) -> Stall {
        let op = match &waited.op {
            Some((name, Some(index))) => format!("{name} (op {index})"),
            Some((name, None)) => name.to_string(),
            None => "beginning of the step".to_owned(),
        };
        let storage = waited.waited_for.as_ref();
        let waited_for = storage.map_or_else(|| "memory".to_owned(), |each| self.storage(each));
        Stall { op, begin: waited.begin, end: waited.end, waited_for }
    }

    /// Returns the name of a storage for people: its name, or the op that made it.
    fn storage(&self, label: &Label) -> String {
        match (&label.name, label.birth) {
            (Some(name), _) => name.to_string(),
            (None, Some((OpIndex(op), slot))) => match self.op(op) {
                Some(made_by) => format!("output {slot} of {made_by} (op {op})"),
                None => format!("output {slot} of op {op}"),
            },
            (None, None) => label.whole.to_string(),
        }
    }

    fn op(&self, index: u32) -> Option<&'a str> {
        let planned = self.planned.and_then(|trace| trace.ops.get(index as usize));
        self.seen.get(&index).copied().or_else(|| planned.map(|op| op.name.as_str()))
    }
}

fn op_span(ran: &OpRun) -> OpSpan {
    OpSpan { name: ran.name.to_string(), begin: ran.begin, end: ran.end }
}

/// Bytes written by kind, largest first; kinds of which nothing was written are left out.
fn written(step: &RecordedStep) -> Vec<(StorageKind, Bytes)> {
    let by_kind = StorageKind::ALL.into_iter().zip(step.written.map(Bytes));
    let mut written: Vec<_> = by_kind.filter(|(_, bytes)| bytes.0 > 0).collect();
    written.sort_by_key(|(kind, bytes)| (std::cmp::Reverse(*bytes), *kind));
    written
}
