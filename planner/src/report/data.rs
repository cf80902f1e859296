//! Data for the page's script: the figures behind the picture, as JSON inside the page.

use super::{Report, chart, sample, text};
use crate::migration::{Ending, MigrationDirection, Target};
use crate::simulate::CauseSpan;
use serde::Serialize;

/// Limit of ops that are named on hover, and of a clock's spans: of more, the longest are.
const OPS_MAX: usize = 20_000;

/// Rows are arrays, not objects: a page may hold tens of thousands of them.
#[derive(Serialize)]
struct Data<'a> {
    duration: u64,
    width: u64,
    staging: u64,
    budget: u64,
    /// Samples: time, resident, moving, wanted.
    memory: Vec<[u64; 4]>,
    /// Begin, end, name.
    ops: Vec<(u64, u64, &'a str)>,
    /// Keyed by the index that the bars carry.
    transfers: Vec<(usize, TransferRow<'a>)>,
    /// Begin, end, op, what it waited for.
    stalls: Vec<(u64, u64, &'a str, &'a str)>,
    /// Begin, end, cause: of the GPU, of the program's thread.
    clocks: [Vec<(u64, u64, &'static str)>; 2],
}

#[derive(Serialize)]
struct TransferRow<'a> {
    name: &'a str,
    kind: String,
    size: String,
    way: &'static str,
    queued: u64,
    moving: u64,
    rate: String,
    urgent: bool,
    ending: &'static str,
}

/// The data as text that can stand inside a script element.
pub(super) fn render(report: &Report) -> String {
    let memory = sample::thin(&report.memory, report.duration);
    let longest = longest(&report.ops, |op| op.end.0.saturating_sub(op.begin.0));
    let op = |index: usize| {
        let op = &report.ops[index];
        (op.begin.0, op.end.0, op.name.as_str())
    };
    let data = Data {
        duration: report.duration.0,
        width: chart::WIDTH,
        staging: report.staging.0,
        budget: report.budget.0,
        memory: memory.iter().map(|s| [s.at.0, s.resident.0, s.moving.0, s.wanted.0]).collect(),
        ops: longest.into_iter().map(op).collect(),
        transfers: chart::drawn(report).into_iter().map(|i| (i, transfer(report, i))).collect(),
        stalls: report
            .stalls
            .iter()
            .map(|s| (s.begin.0, s.end.0, s.op.as_str(), s.waited_for.as_str()))
            .collect(),
        clocks: [&report.clocks.gpu, &report.clocks.thread].map(|spans| clock(spans)),
    };
    let json = serde_json::to_string(&data).expect("numbers and strings always serialize");
    // A name must not end the script element, nor open a comment in it.
    json.replace('<', "\\u003c").replace('\u{2028}', "\\u2028").replace('\u{2029}', "\\u2029")
}

/// Returns the indices of the longest, in order.
fn longest<T>(of: &[T], length: impl Fn(&T) -> u64) -> Vec<usize> {
    let mut longest: Vec<usize> = (0..of.len()).collect();
    if longest.len() > OPS_MAX {
        longest.sort_by_key(|index| std::cmp::Reverse(length(&of[*index])));
        longest.truncate(OPS_MAX);
        longest.sort_unstable();
    }
    longest
}

fn clock(spans: &[CauseSpan]) -> Vec<(u64, u64, &'static str)> {
    let row = |index: usize| {
        let span = &spans[index];
        (span.begin.0, span.end.0, span.cause.name())
    };
    longest(spans, |span| span.length().0).into_iter().map(row).collect()
}

fn transfer(report: &Report, index: usize) -> TransferRow<'_> {
    let transfer = &report.transfers[index];
    let moving = transfer.end.0.saturating_sub(transfer.moved.0);
    let per_second = u128::from(transfer.in_step.0) * 1_000_000_000 / u128::from(moving.max(1));
    let rate = crate::units::Bandwidth(u64::try_from(per_second).unwrap_or(u64::MAX));
    TransferRow {
        name: &transfer.name,
        kind: transfer.kind.to_string(),
        size: text::bytes(transfer.bytes),
        way: match (transfer.direction, transfer.target) {
            (MigrationDirection::Out, Target::Ssd) => "out to SSD",
            (MigrationDirection::Out, Target::Host) => "out to host memory",
            (MigrationDirection::In, Target::Ssd) => "in from SSD",
            (MigrationDirection::In, Target::Host) => "in from host memory",
        },
        queued: transfer.moved.0.saturating_sub(transfer.begin.0),
        moving,
        rate: if moving > 0 { text::rate(rate) } else { String::new() },
        urgent: transfer.urgent,
        ending: match transfer.ending {
            Ending::Moved => "moved",
            Ending::Clean => "copy still good: nothing written",
            Ending::Cancelled => "called off",
            Ending::Failed => "failed",
            Ending::UnderWay => "goes on in the next step",
        },
    }
}
