//! The picture: panels that share one time axis.
//!
//! Each panel is an SVG whose x axis runs from 0 to [`WIDTH`] whatever the page's width, and whose
//! y axis is in pixels. The script zooms by moving the view boxes; labels are HTML beside the
//! panels, so that they are never stretched.

use super::sample::{bandwidth, byte_ticks, lanes, thin, time_ticks};
use super::{Report, TransferSpan, text};
use crate::migration::{Ending, MemorySample, MigrationDirection};
use crate::simulate::{CauseSpan, TimeCause};
use crate::units::{Bandwidth, Bytes, Nanos};
use std::fmt::Write;

/// The x coordinate of the step's end.
pub(super) const WIDTH: u64 = 100_000;

const MEMORY_HEIGHT: u64 = 300;
const RATE_HEIGHT: u64 = 120;
const STALL_HEIGHT: u64 = 10;
const CLOCK_HEIGHT: u64 = 16;
const LANE_HEIGHT_MAX: u64 = 14;
const LANES_HEIGHT_MAX: u64 = 120;

/// The memory panel's title is that high; a label beside it would be read as a part of it.
const TITLE_HEIGHT: u64 = 18;

/// Labels of the time axis begin in this part of it: one that begins later would be cut.
const LABELS_END_PERCENT: u64 = 95;

/// Limit of transfer lanes that are drawn side by side.
const LANES_MAX: usize = 24;

/// Number of transfers beyond which those narrower than the gap between neighbours are drawn
/// without it.
const SEPARATE_MAX: usize = 1000;

/// Ends what [`open`] began.
const CLOSE: &str = "</svg></div>";

/// Limit of transfers that are drawn: of more, the largest are.
pub(super) const TRANSFERS_MAX: usize = 20_000;

/// The panels, from memory down to bandwidth, and the time axis.
pub(super) fn render(report: &Report) -> String {
    let mut out = String::new();
    memory_panel(report, &mut out);
    if !report.stalls.is_empty() {
        stall_panel(report, &mut out);
    }
    for (title, clock) in [("GPU", &report.clocks.gpu), ("thread", &report.clocks.thread)] {
        clock_panel(report, title, clock, &mut out);
    }
    for (direction, label) in
        [(MigrationDirection::Out, "moved out"), (MigrationDirection::In, "moved in")]
    {
        lanes_panel(report, direction, label, &mut out);
    }
    rate_panel(report, &mut out);
    time_axis(report.duration, &mut out);
    out
}

/// The transfers that are drawn and described, by index into the report.
pub(super) fn drawn(report: &Report) -> Vec<usize> {
    let mut largest: Vec<usize> = (0..report.transfers.len()).collect();
    if largest.len() > TRANSFERS_MAX {
        largest.sort_by_key(|index| std::cmp::Reverse(report.transfers[*index].bytes));
        largest.truncate(TRANSFERS_MAX);
        largest.sort_unstable();
    }
    largest
}

fn x(at: Nanos, duration: Nanos) -> u64 {
    let at = u128::from(at.0.min(duration.0));
    (at * u128::from(WIDTH) / u128::from(duration.0.max(1))) as u64
}

/// The distance of `amount` from the bottom of a panel that shows `top` at its upper edge.
fn scale(amount: u64, top: u64, height: u64) -> u64 {
    (u128::from(amount.min(top)) * u128::from(height) / u128::from(top.max(1))) as u64
}

/// Opens a panel: its title, then the labels of its y axis at `(pixels from the top, text)`.
fn open(
    report: &Report,
    out: &mut String,
    class: &str,
    title: &str,
    height: u64,
    labels: &[(u64, String)],
) {
    let _ = write!(
        out,
        "<div class=\"panel {class}\"><div class=\"side\"><span class=\"title\">{title}</span>"
    );
    for (y, label) in labels {
        let _ = write!(out, "<span class=\"tick\" style=\"top:{y}px\">{label}</span>");
    }
    let _ = write!(
        out,
        "</div><svg class=\"plot\" viewBox=\"0 0 {WIDTH} {height}\" height=\"{height}\" \
         preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{title}\">"
    );
    for (y, _) in labels {
        let _ = write!(out, "<path class=\"grid\" d=\"M0,{y}H{WIDTH}\"/>");
    }
    stall_marks(report, height, "tint", out);
}

/// Stalls as a tint behind what the panel shows, or as the panel's own bars: one path, since a step
/// may stall thousands of times and every element costs the browser time.
fn stall_marks(report: &Report, height: u64, class: &str, out: &mut String) {
    if report.stalls.is_empty() {
        return;
    }
    let _ = write!(out, "<path class=\"{class}\" d=\"");
    for (from, to) in stalled(report) {
        let _ = write!(out, "M{from},0H{to}V{height}H{from}Z");
    }
    out.push_str("\"/>");
}

/// Returns the stalls of the step, from x to x.
fn stalled(report: &Report) -> Vec<(u64, u64)> {
    let at = |time| x(time, report.duration);
    merged(report.stalls.iter().map(|it| (at(it.begin), at(it.end))).collect())
}

/// Returns spans from x to x of which those that touch are one.
fn merged(mut spans: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    spans.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (from, to) in spans {
        match merged.last_mut() {
            Some((_, end)) if from <= *end => *end = to.max(*end),
            _ => merged.push((from, to.max(from))),
        }
    }
    merged
}

/// The stalls on their own, where nothing hides a short one.
fn stall_panel(report: &Report, out: &mut String) {
    open(report, out, "stalls", "stalls", STALL_HEIGHT, &[]);
    stall_marks(report, STALL_HEIGHT, "stall", out);
    out.push_str(CLOSE);
}

/// A clock of the step: one path for each cause, as there may be tens of thousands of spans.
fn clock_panel(report: &Report, title: &str, clock: &[CauseSpan], out: &mut String) {
    if clock.is_empty() {
        return;
    }
    open(report, out, "clock", title, CLOCK_HEIGHT, &[]);
    let at = |time| x(time, report.duration);
    for cause in TimeCause::ALL {
        let of_cause = clock.iter().filter(|span| span.cause == cause);
        let spans = merged(of_cause.map(|span| (at(span.begin), at(span.end))).collect());
        if spans.is_empty() {
            continue;
        }
        let _ = write!(out, "<path class=\"cause {}\" d=\"", cause.word());
        for (from, to) in spans {
            let _ = write!(out, "M{from},0H{}V{CLOCK_HEIGHT}H{from}Z", to.max(from + 1));
        }
        out.push_str("\"/>");
    }
    out.push_str(CLOSE);
}

fn memory_panel(report: &Report, out: &mut String) {
    let samples = thin(&report.memory, report.duration);
    let most = report.budget.max(report.wanted()).max(report.peak());
    let top = most.0.saturating_add(most.0 / 16).max(1);
    let y = |bytes: u64| MEMORY_HEIGHT - scale(bytes, top, MEMORY_HEIGHT);
    let ticks = byte_ticks(Bytes(top));
    let labels = ticks.iter().map(|tick| (y(tick.0), text::bytes(*tick)));
    let labels: Vec<_> = labels.filter(|(y, _)| *y >= TITLE_HEIGHT).collect();
    open(report, out, "memory", "memory", MEMORY_HEIGHT, &labels);
    let staging = report.staging.0;
    let area =
        |upper: &dyn Fn(&MemorySample) -> u64| area(&samples, report.duration, &|s| y(upper(s)));
    let wanted = area(&|s| s.wanted.0);
    let held = area(&|s| staging + s.resident.0 + s.moving.0);
    let resident = area(&|s| staging + s.resident.0);
    let budget = y(report.budget.0);
    let _ = write!(
        out,
        "<clipPath id=\"above\"><rect x=\"0\" y=\"0\" width=\"{WIDTH}\" height=\"{budget}\"/></clipPath>\
         <path class=\"over\" clip-path=\"url(#above)\" d=\"{wanted}\"/>\
         <path class=\"wanted\" d=\"{wanted}\"/>\
         <path class=\"moving\" d=\"{held}\"/><path class=\"resident\" d=\"{resident}\"/>\
         <rect class=\"staging\" x=\"0\" y=\"{0}\" width=\"{WIDTH}\" height=\"{1}\"/>\
         <path class=\"budget\" d=\"M0,{budget}H{WIDTH}\"/>",
        y(staging),
        MEMORY_HEIGHT - y(staging),
    );
    out.push_str(CLOSE);
}

/// A closed path under a row of steps.
fn area(samples: &[MemorySample], duration: Nanos, upper: &dyn Fn(&MemorySample) -> u64) -> String {
    let mut path = format!("M0,{MEMORY_HEIGHT}");
    let mut drawn = None;
    for sample in samples {
        let (at, to) = (x(sample.at, duration), upper(sample));
        if drawn != Some(to) {
            let _ = write!(path, "H{at}V{to}");
            drawn = Some(to);
        }
    }
    let _ = write!(path, "H{WIDTH}V{MEMORY_HEIGHT}Z");
    path
}

fn lanes_panel(report: &Report, direction: MigrationDirection, label: &str, out: &mut String) {
    let indices: Vec<usize> = drawn(report)
        .into_iter()
        .filter(|index| report.transfers[*index].direction == direction)
        .collect();
    let transfers: Vec<&TransferSpan> = indices.iter().map(|i| &report.transfers[*i]).collect();
    let spans: Vec<_> = transfers.iter().map(|transfer| (transfer.begin, transfer.end)).collect();
    let (lane_of, count) = lanes(&spans, LANES_MAX);
    let count = (count as u64).max(1);
    let lane_height = (LANES_HEIGHT_MAX / count).clamp(4, LANE_HEIGHT_MAX);
    let height = lane_height * count + 4;
    let class = if transfers.len() > SEPARATE_MAX { "lanes dense" } else { "lanes" };
    open(report, out, class, label, height, &[]);
    for ((index, transfer), lane) in indices.iter().zip(&transfers).zip(&lane_of) {
        transfer_mark(
            report,
            *index,
            transfer,
            *lane as u64 * lane_height + 2,
            lane_height - 1,
            out,
        );
    }
    out.push_str(CLOSE);
}

/// A thin line while the transfer waits for its turn, a bar while its bytes move.
fn transfer_mark(
    report: &Report,
    index: usize,
    transfer: &TransferSpan,
    y: u64,
    height: u64,
    out: &mut String,
) {
    let at = |time| x(time, report.duration);
    let (begin, moved, end) = (at(transfer.begin), at(transfer.moved), at(transfer.end));
    let kind = kind_class(transfer);
    let ending = match transfer.ending {
        Ending::Moved | Ending::UnderWay => "",
        Ending::Clean => " clean",
        Ending::Cancelled => " cancelled",
        Ending::Failed => " failed",
    };
    if begin < moved {
        let middle = y + height / 2;
        let _ = write!(
            out,
            "<path class=\"wait {kind}\" data-t=\"{index}\" d=\"M{begin},{middle}H{moved}\"/>"
        );
    }
    let width = (end - moved.min(end)).max(1);
    let _ = write!(
        out,
        "<rect class=\"bar {kind}{ending}\" data-t=\"{index}\" x=\"{moved}\" y=\"{y}\" \
         width=\"{width}\" height=\"{height}\"/>"
    );
}

pub(super) fn kind_class(transfer: &TransferSpan) -> &'static str {
    super::page::class_of(transfer.kind)
}

/// Bytes out above the axis, bytes in below it.
fn rate_panel(report: &Report, out: &mut String) {
    let written = bandwidth(&report.transfers, MigrationDirection::Out, report.duration);
    let read = bandwidth(&report.transfers, MigrationDirection::In, report.duration);
    let most = |rates: &[Bandwidth], limit: Option<Bandwidth>| {
        rates.iter().copied().chain(limit).max().unwrap_or_default().0
    };
    let top = most(&written, report.write_limit).max(most(&read, report.read_limit)).max(1);
    let half = RATE_HEIGHT / 2;
    let up = |rate: Bandwidth| half - scale(rate.0, top, half - 4);
    let down = |rate: Bandwidth| half + scale(rate.0, top, half - 4);
    let out_limit = report.write_limit.unwrap_or(Bandwidth(top));
    let in_limit = report.read_limit.unwrap_or(Bandwidth(top));
    let labels = [
        (up(out_limit), format!("out {}", text::rate(out_limit))),
        (half, "0".to_owned()),
        (down(in_limit), format!("in {}", text::rate(in_limit))),
    ];
    open(report, out, "rates", "bandwidth", RATE_HEIGHT, &labels);
    for (class, rates, y) in [
        ("out", &written, &up as &dyn Fn(Bandwidth) -> u64),
        ("in", &read, &down as &dyn Fn(Bandwidth) -> u64),
    ] {
        let mut path = format!("M0,{half}");
        for (bin, rate) in rates.iter().enumerate() {
            let end = WIDTH * (bin as u64 + 1) / rates.len() as u64;
            let _ = write!(path, "V{}H{end}", y(*rate));
        }
        let _ = write!(out, "<path class=\"rate {class}\" d=\"{path}V{half}Z\"/>");
    }
    out.push_str(CLOSE);
}

fn time_axis(duration: Nanos, out: &mut String) {
    out.push_str("<div class=\"panel axis\"><div class=\"side\"></div><div class=\"times\">");
    for tick in time_ticks(duration) {
        if tick.0 > duration.0 / 100 * LABELS_END_PERCENT {
            break;
        }
        let tenths = x(tick, duration) * 1000 / WIDTH;
        let _ = write!(
            out,
            "<span style=\"left:{}.{}%\">{}</span>",
            tenths / 10,
            tenths % 10,
            text::time(tick)
        );
    }
    out.push_str("</div></div>");
}
