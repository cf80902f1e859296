//! A step as Chrome trace events: the JSON that Perfetto (ui.perfetto.dev) and Chrome
//! (`chrome://tracing`) open.
//!
//! Made from a [`Report`], so that a simulated and a measured step look alike. Times are
//! microseconds with three decimals, which is how the format counts; nothing is rounded away.

use crate::migration::{Ending, MigrationDirection, Target};
use crate::report::sample::{bandwidth, lanes};
use crate::report::{Report, TransferSpan};
use crate::units::Nanos;
use serde::Serialize;
use serde_json::{Value, json};

/// The one process of the picture.
const PROCESS: u32 = 1;
const KERNELS: u32 = 1;
const STALLS: u32 = 2;
/// Rows of the four ways that bytes go; each has room for its lanes before the next.
const WAYS: [(MigrationDirection, Target, &str, u32); 4] = [
    (MigrationDirection::Out, Target::Ssd, "SSD writes", 100),
    (MigrationDirection::In, Target::Ssd, "SSD reads", 200),
    (MigrationDirection::Out, Target::Host, "host memory writes", 300),
    (MigrationDirection::In, Target::Host, "host memory reads", 400),
];

/// One event. Fields that a phase does not have are left out.
#[derive(Serialize)]
struct Event {
    name: String,
    ph: &'static str,
    pid: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    tid: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cat: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ts: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dur: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    args: Option<Value>,
}

/// The file's text, one event per line.
pub fn chrome_trace(report: &Report) -> String {
    let mut events = vec![
        named("process_name", None, &report.title),
        named("thread_name", Some(KERNELS), "kernels"),
        named("thread_name", Some(STALLS), "waiting"),
        sorted(KERNELS),
        sorted(STALLS),
    ];
    let mut timed = Vec::new();
    kernels(report, &mut timed);
    stalls(report, &mut timed);
    for way in WAYS {
        transfers(report, way, &mut events, &mut timed);
    }
    memory(report, &mut timed);
    rates(report, &mut timed);
    timed.sort_by_key(|(at, _)| *at);
    events.extend(timed.into_iter().map(|(_, event)| event));
    let lines: Vec<String> = events
        .iter()
        .map(|event| serde_json::to_string(event).expect("names and numbers always serialize"))
        .collect();
    let about = json!({
        "title": report.title, "step": report.subtitle, "budget": report.budget,
        "staging": report.staging, "made by": concat!("tidelog ", env!("CARGO_PKG_VERSION")),
    });
    format!(
        "{{\"displayTimeUnit\":\"ms\",\"otherData\":{about},\"traceEvents\":[\n{}\n]}}\n",
        lines.join(",\n")
    )
}

fn kernels(report: &Report, timed: &mut Vec<(Nanos, Event)>) {
    for (index, op) in report.ops.iter().enumerate() {
        timed.push(span(&op.name, "kernel", KERNELS, op.begin, op.end, json!({"op": index})));
    }
}

fn stalls(report: &Report, timed: &mut Vec<(Nanos, Event)>) {
    for stall in &report.stalls {
        let name = format!("{} waits", stall.op);
        let waited_for = json!({"for": stall.waited_for});
        timed.push(span(&name, "stall", STALLS, stall.begin, stall.end, waited_for));
    }
}

/// The transfers of one way, in as many rows as overlap: slices of one row must not.
fn transfers(
    report: &Report,
    (direction, target, title, first): (MigrationDirection, Target, &str, u32),
    events: &mut Vec<Event>,
    timed: &mut Vec<(Nanos, Event)>,
) {
    let moves = report.transfers.iter().filter(|t| {
        let other = matches!(t.ending, Ending::Clean | Ending::UnderWay);
        (t.direction, t.target) == (direction, target) && t.moved < t.end && !other
    });
    let moves: Vec<&TransferSpan> = moves.collect();
    let spans: Vec<(Nanos, Nanos)> = moves.iter().map(|t| (t.moved, t.end)).collect();
    let (lane_of, count) = lanes(&spans, usize::MAX);
    for lane in 0..count as u32 {
        let name = if lane == 0 { title.to_owned() } else { format!("{title} ({})", lane + 1) };
        events.extend([named("thread_name", Some(first + lane), &name), sorted(first + lane)]);
    }
    for (transfer, lane) in moves.iter().zip(lane_of) {
        let arguments = json!({
            "bytes": transfer.bytes,
            "kind": transfer.kind,
            "urgent": transfer.urgent,
            "queued_us": micros(Nanos(transfer.moved.0.saturating_sub(transfer.begin.0))),
        });
        let row = first + lane as u32;
        timed.push(span(&transfer.name, "transfer", row, transfer.moved, transfer.end, arguments));
    }
}

fn memory(report: &Report, timed: &mut Vec<(Nanos, Event)>) {
    for sample in &report.memory {
        let held = json!({
            "staging": report.staging, "resident": sample.resident, "moving": sample.moving,
        });
        timed.push(counter("memory, bytes", sample.at, held));
        let wanted = json!({"wanted": sample.wanted});
        timed.push(counter("memory without a budget, bytes", sample.at, wanted));
    }
}

/// Bytes per second each way, as the report draws them.
fn rates(report: &Report, timed: &mut Vec<(Nanos, Event)>) {
    for (direction, name) in
        [(MigrationDirection::Out, "written, B/s"), (MigrationDirection::In, "read, B/s")]
    {
        let rates = bandwidth(&report.transfers, direction, report.duration);
        let width = report.duration.0.div_ceil(rates.len() as u64).max(1);
        for (column, rate) in rates.iter().enumerate() {
            let at = Nanos(column as u64 * width);
            timed.push(counter(name, at, json!({"rate": rate})));
        }
    }
}

/// A slice: something that took from `begin` to `end` in a row of the picture.
fn span(
    name: &str,
    category: &'static str,
    row: u32,
    begin: Nanos,
    end: Nanos,
    args: Value,
) -> (Nanos, Event) {
    let event = Event {
        name: name.to_owned(),
        ph: "X",
        pid: PROCESS,
        tid: Some(row),
        cat: Some(category),
        ts: Some(micros(begin)),
        dur: Some(micros(Nanos(end.0.saturating_sub(begin.0)))),
        args: Some(args),
    };
    (begin, event)
}

fn counter(name: &str, at: Nanos, args: Value) -> (Nanos, Event) {
    let event = Event {
        name: name.to_owned(),
        ph: "C",
        pid: PROCESS,
        tid: None,
        cat: None,
        ts: Some(micros(at)),
        dur: None,
        args: Some(args),
    };
    (at, event)
}

/// Makes the event that names a row, or the process.
fn named(what: &str, row: Option<u32>, name: &str) -> Event {
    metadata(what, row, json!({ "name": name }))
}

/// Rows stand in the order of their numbers.
fn sorted(row: u32) -> Event {
    metadata("thread_sort_index", Some(row), json!({ "sort_index": row }))
}

fn metadata(what: &str, row: Option<u32>, args: Value) -> Event {
    Event {
        name: what.to_owned(),
        ph: "M",
        pid: PROCESS,
        tid: row,
        cat: None,
        ts: None,
        dur: None,
        args: Some(args),
    }
}

#[allow(clippy::cast_precision_loss, reason = "exact to a nanosecond for a month")]
fn micros(time: Nanos) -> f64 {
    time.0 as f64 / 1000.0
}

#[cfg(test)]
mod tests;
