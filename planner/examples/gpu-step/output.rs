//! The cells as people, and programs, read them.

use crate::Failure;
use crate::cell::{Deciding, Point, StepCell};
use serde_json::{Map, Value, json};
use std::fmt::Write;
use std::time::Duration;
use tidelog_planner::gpu_step::{Bridge, Constants, StepFigures};
use tidelog_planner::simulate::{StepCounts, TimeCause};
use tidelog_planner::units::Nanos;

/// Constants that move a step by less than this part of a millisecond are left out of the text.
const WORTH_TELLING: u64 = 500_000;

type Counted = (&'static str, fn(&StepCounts) -> u32);

const COUNTS: [Counted; 7] = [
    ("drains", |counts| counts.drains),
    ("host waits", |counts| counts.host_waits),
    ("requests", |counts| counts.requests),
    ("cudaMalloc", |counts| counts.allocations),
    ("cudaFree", |counts| counts.releases),
    ("2 MiB remapped", |counts| counts.remapped),
    ("room in pieces", |counts| counts.misfits),
];

pub(crate) fn text(cells: &[StepCell], deciding: &[Deciding], constants: &Constants) -> String {
    let mut out = String::new();
    for cell in cells {
        put_cell(&mut out, cell);
    }
    for one in deciding {
        put_deciding(&mut out, one);
    }
    put_constants(&mut out, constants);
    out
}

fn put_cell(out: &mut String, cell: &StepCell) {
    let StepCell { trace, percent, budget, .. } = cell;
    let spread = |what: fn(&Point) -> Nanos| spread(cell, |point| seconds(what(point)), 3);
    line(out, &format!("{trace}, {percent} % of its memory ({budget})"));
    line(out, &format!("  kernels {} s", spread(|point| point.kernels)));
    line(out, &format!("  plain step {} s", spread(|point| point.plain)));
    line(out, &format!("  true bound {} s", spread(|point| point.bound)));
    let full = spread(|point| point.bound_of_full_rates);
    line(out, &format!("  if the link had its full rates both ways at once {full} s"));
    let names = cell.value().bridges.iter().map(|(bridge, _)| bridge.name().to_owned());
    row(out, "", names);
    let bridges = 0..cell.value().bridges.len();
    let each = |what: &dyn Fn(&Point, &StepFigures) -> f64, digits: usize| -> Vec<String> {
        let of = |at: usize| spread_of(cell, at, what, digits);
        bridges.clone().map(of).collect()
    };
    row(out, "step, s", each(&|_, figures| seconds(figures.time), 3));
    row(out, "x plain", each(&|point, figures| over(figures.time, point.plain), 2));
    row(out, "x bound", each(&|point, figures| over(figures.time, point.bound), 2));
    if let Some(measured) = cell.measured {
        let off = |_: &Point, figures: &StepFigures| 100.0 * (over(figures.time, measured) - 1.0);
        let label = format!("% off {:.3} s", seconds(measured));
        let first = cell.value().bridges.iter().position(|(bridge, _)| *bridge == Bridge::Measured);
        let told = |at| {
            let is_first = Some(at) == first;
            if is_first { spread_of(cell, at, &off, 0) } else { String::new() }
        };
        row(out, &label, bridges.clone().map(told));
    }
    for cause in TimeCause::ALL {
        let label = format!("{}, ms", cause.name());
        row(out, &label, each(&|_, figures| 1e3 * seconds(figures.step.of(cause)), 1));
    }
    row(out, "thread waited, ms", each(&|_, one| 1e3 * seconds(one.step.thread_waited), 1));
    for (label, count) in COUNTS {
        row(out, label, each(&|_, figures| f64::from(count(&figures.step.counts)), 0));
    }
    row(
        out,
        "out, GiB",
        each(&|_, one| gib(one.bytes.host_written.0 + one.bytes.ssd_written.0), 1),
    );
    row(out, "in, GiB", each(&|_, one| gib(one.bytes.host_read.0 + one.bytes.ssd_read.0), 1));
    out.push('\n');
}

fn put_deciding(out: &mut String, deciding: &Deciding) {
    let Deciding { trace, percent, bridge, effects } = deciding;
    line(out, &format!("{trace}, {percent} %, {bridge}: each constant alone, s a step"));
    for effect in effects.iter().filter(|effect| effect.span() >= WORTH_TELLING) {
        let (fast, slow) = (seconds(effect.fast_ns), seconds(effect.slow_ns));
        line(out, &format!("  {:<18}{fast:.3} to {slow:.3}", effect.constant));
    }
    out.push('\n');
}

fn put_constants(out: &mut String, constants: &Constants) {
    line(out, "Constants: fast, likeliest and slow figure, unit, source");
    for one in constants.table() {
        let source = format!("{:?}", one.source).to_lowercase();
        let figures = format!("{} {} {}", one.fast, one.value, one.slow);
        let (name, unit, reference) = (&one.name, &one.unit, &one.reference);
        line(out, &format!("  {name:<18}{figures:<20}{unit}; {source}: {reference}"));
    }
}

/// A figure of a cell, and in brackets that of both ends.
fn spread(cell: &StepCell, what: impl Fn(&Point) -> f64, digits: usize) -> String {
    let figures: Vec<String> =
        cell.points.iter().map(|point| format!("{:.digits$}", what(point))).collect();
    format!("{} ({} to {})", figures[0], figures[1], figures[2])
}

fn spread_of(
    cell: &StepCell,
    bridge: usize,
    what: &dyn Fn(&Point, &StepFigures) -> f64,
    digits: usize,
) -> String {
    spread(cell, |point| what(point, &point.bridges[bridge].1), digits)
}

fn row(out: &mut String, label: &str, entries: impl IntoIterator<Item = String>) {
    let mut text = format!("  {label:<20}");
    for entry in entries {
        let _ = write!(text, "{entry:<26}");
    }
    line(out, text.trim_end());
}

fn line(out: &mut String, text: &str) {
    out.push_str(text);
    out.push('\n');
}

fn seconds(time: Nanos) -> f64 {
    Duration::from_nanos(time.0).as_secs_f64()
}

fn over(one: Nanos, other: Nanos) -> f64 {
    seconds(one) / seconds(other)
}

fn gib(bytes: u64) -> f64 {
    f64::from(u32::try_from(bytes >> 20).unwrap_or(u32::MAX)) / 1024.0
}

pub(crate) fn json(
    cells: &[StepCell],
    deciding: &[Deciding],
    constants: &Constants,
) -> Result<String, Failure> {
    let cells: Vec<Value> = cells.iter().map(cell_json).collect();
    let constants: Vec<_> = constants.table().collect();
    let all = json!({ "steps": cells, "deciding": deciding, "constants": constants });
    Ok(serde_json::to_string_pretty(&all)? + "\n")
}

fn cell_json(cell: &StepCell) -> Value {
    let points: Vec<Value> = cell.points.iter().map(point_json).collect();
    json!({
        "step": cell.trace,
        "percent": cell.percent,
        "budget": cell.budget,
        "measured_ns": cell.measured,
        "points": points,
    })
}

fn point_json(point: &Point) -> Value {
    let bridges: Vec<Value> = point
        .bridges
        .iter()
        .map(|(bridge, figures)| {
            let causes: Map<String, Value> = TimeCause::ALL
                .iter()
                .map(|cause| {
                    (cause.name().replace([' ', '-'], "_"), json!(figures.step.of(*cause)))
                })
                .collect();
            json!({
                "bridge": bridge.word(),
                "time_ns": figures.time,
                "over_plain": over(figures.time, point.plain),
                "over_bound": over(figures.time, point.bound),
                "causes_ns": causes,
                "thread_waited_ns": figures.step.thread_waited,
                "counts": figures.step.counts,
                "bytes": {
                    "host_written": figures.bytes.host_written,
                    "host_read": figures.bytes.host_read,
                    "ssd_written": figures.bytes.ssd_written,
                    "ssd_read": figures.bytes.ssd_read,
                },
            })
        })
        .collect();
    json!({
        "constants": point.end,
        "kernels_ns": point.kernels,
        "plain_ns": point.plain,
        "bound_ns": point.bound,
        "bound_of_full_rates_ns": point.bound_of_full_rates,
        "bridges": bridges,
    })
}
