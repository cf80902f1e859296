//! The page around the picture: the claim in one sentence, the figures, the tables.

use super::{Report, chart, data, text};
use crate::migration::{MigrationDirection, Target};
use crate::simulate::TimeCause;
use crate::tidelog::PlanPrice;
use crate::trace::StorageKind;
use crate::units::Bytes;
use std::cmp::Reverse;
use std::fmt::Write;

/// Approximate limit of plans that are shown with what they cost.
const PRICES_MAX: usize = 6;

/// Tables are for reading: of long lists the largest entries are shown.
const TABLE_ROWS_MAX: usize = 20;

/// The class that colours a kind.
pub(super) const fn class_of(kind: StorageKind) -> &'static str {
    match kind {
        StorageKind::Parameter => "parameter",
        StorageKind::Gradient => "gradient",
        StorageKind::OptimizerState => "optimizer",
        StorageKind::Activation => "activation",
        StorageKind::Other => "other",
    }
}

pub(super) fn render(report: &Report) -> String {
    let mut out = String::new();
    let title = text::escape(&report.title);
    let _ = write!(
        out,
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
         <meta name=\"color-scheme\" content=\"light dark\">\
         <title>{title} – Tidelog</title>\n<style>\n{}</style></head>\n<body><main>\n",
        include_str!("page.css")
    );
    let _ = writeln!(
        out,
        "<header><p class=\"mark\">tidelog</p><h1>{title}</h1><p class=\"subtitle\">{}</p>\
         <p class=\"claim\">{}</p></header>",
        text::escape(&report.subtitle),
        claim(report)
    );
    cards(report, &mut out);
    out.push_str("<section class=\"picture\">");
    legend(report, &mut out);
    out.push_str("<div id=\"charts\">");
    out.push_str(&chart::render(report));
    out.push_str("<div id=\"cursor\"></div></div><div id=\"tip\" role=\"status\"></div>");
    out.push_str(
        "<p class=\"small hint\">Moved out, moved in: a bar while bytes move, a thin line while the transfer waits, \
         a pale bar with an outline for a copy that was still good.<br>Point at anything for its figures. Shift \
         and the wheel zoom, dragging moves the picture, a double click shows the whole step.</p>",
    );
    let left_out = report.transfers.len().saturating_sub(chart::TRANSFERS_MAX);
    if left_out > 0 {
        let _ =
            write!(out, "<p class=\"small\">The {left_out} smallest transfers are not drawn.</p>");
    }
    out.push_str("</section>\n<div class=\"columns\">");
    times(report, &mut out);
    causes(report, &mut out);
    prices(report, &mut out);
    budgets(report, &mut out);
    written(report, &mut out);
    figures(report, &mut out);
    out.push_str("</div>\n");
    stalls(report, &mut out);
    unmovable(report, &mut out);
    notices(report, &mut out);
    let _ = write!(
        out,
        "</main>\n<script type=\"application/json\" id=\"data\">{}</script>\n<script>\n{}</script>\n\
         </body></html>\n",
        data::render(report),
        include_str!("page.js")
    );
    out
}

/// Returns the claim of the picture, in one sentence.
fn claim(report: &Report) -> String {
    let (peak, wanted) = (report.peak(), report.wanted());
    let mut claim = format!("A step holds <b>{}</b> at its peak", text::bytes(peak));
    if wanted > peak {
        let part = text::percent(peak.0, wanted.0);
        let _ = write!(claim, ", {part} of the {} that it would take", text::bytes(wanted));
    }
    if let Some(unlimited) = report.unlimited {
        let factor = text::factor(report.duration.0, unlimited.0);
        let _ = write!(claim, ", in <b>{factor}</b> the time");
    }
    if let Some(bound) = report.bound {
        let _ = write!(claim, "; no plan can take less than {}", text::time(bound));
    }
    claim + "."
}

fn cards(report: &Report, out: &mut String) {
    let stall = report.stall_time();
    let ssd = |direction| text::bytes(report.moved(direction, Target::Ssd));
    let host = |direction| {
        let bytes = report.moved(direction, Target::Host);
        if bytes.0 > 0 {
            format!("and {} of host memory", text::bytes(bytes))
        } else {
            String::new()
        }
    };
    let clean = match report.clean_evictions {
        0 => host(MigrationDirection::Out),
        _ => format!("and {} left clean", text::bytes(report.clean_bytes)),
    };
    let unlimited = report.unlimited.map_or_else(String::new, |unlimited| {
        format!("{} without a budget", text::time(unlimited))
    });
    let share = format!("{} of the step", text::percent(stall.0, report.duration.0));
    let cards = [
        ("step", text::time(report.duration), unlimited),
        ("stalled", text::time(stall), share),
        ("peak", text::bytes(report.peak()), format!("budget {}", text::bytes(report.budget))),
        ("written to SSD", ssd(MigrationDirection::Out), clean),
        ("read from SSD", ssd(MigrationDirection::In), host(MigrationDirection::In)),
    ];
    out.push_str("<dl class=\"cards\">");
    for (name, value, note) in cards {
        let _ = write!(out, "<div><dt>{name}</dt><dd>{value}</dd><p>{note}</p></div>");
    }
    out.push_str("</dl>\n");
}

/// Writes the meaning of the colours: a line for memory, and one for what moves.
fn legend(report: &Report, out: &mut String) {
    let entry = |class: &str, text: &str| format!("<li><i class=\"{class}\"></i>{text}</li>");
    let mut memory = entry("resident", "in memory")
        + &entry("moving", "moving")
        + &entry("staging", "staging")
        + &entry("wanted", "without a budget")
        + &entry("budget", "budget");
    if !report.stalls.is_empty() {
        memory += &entry("stall", "stall");
    }
    let has_transfers =
        |kind: &StorageKind| report.transfers.iter().any(|transfer| transfer.kind == *kind);
    let kinds = StorageKind::ALL.into_iter().filter(has_transfers);
    let moved = kinds.map(|kind| entry(&format!("bar {}", class_of(kind)), &kind.to_string()));
    let clocks = [&report.clocks.gpu, &report.clocks.thread].map(|clock| clock.iter());
    let seen: Vec<TimeCause> = clocks.into_iter().flatten().map(|span| span.cause).collect();
    let causes = TimeCause::ALL.into_iter().filter(|cause| seen.contains(cause));
    let causes = causes.map(|cause| entry(&format!("cause {}", cause.word()), cause.name()));
    for (title, entries) in
        [("memory", memory), ("clocks", causes.collect()), ("moved", moved.collect())]
    {
        if !entries.is_empty() {
            let _ =
                write!(out, "<ul class=\"legend\"><li class=\"group\">{title}</li>{entries}</ul>");
        }
    }
}

/// The step beside what it would take without a budget, and beside what no plan can beat.
fn times(report: &Report, out: &mut String) {
    let known = [("without a budget", report.unlimited), ("lower bound", report.bound)];
    if known.iter().all(|(_, time)| time.is_none()) {
        return;
    }
    let step = ("this step", Some(report.duration));
    let rows = known.into_iter().chain([step]).filter_map(|(name, time)| Some((name, time?)));
    out.push_str("<section><h2>Time of a step</h2><table class=\"written\">");
    for (name, time) in rows {
        let class = if name == step.0 { "resident" } else { "moving" };
        meter_row(out, [name, &text::time(time), ""], (class, time.0, report.duration.0));
    }
    out.push_str("</table></section>");
}

/// Writes what took the step's time: on the GPU, or on the thread that computes.
fn causes(report: &Report, out: &mut String) {
    let (computes, what) = match (&report.clocks.gpu, &report.clocks.thread) {
        (gpu, _) if !gpu.is_empty() => ("the GPU", "kernels"),
        (_, thread) if !thread.is_empty() => ("the program's thread", "computing"),
        _ => return,
    };
    let _ =
        write!(out, "<section><h2>What took the time of {computes}</h2><table class=\"written\">");
    let causes = report.clocks.causes();
    let rows = TimeCause::ALL.into_iter().zip(causes).filter(|(_, time)| time.0 > 0);
    for (cause, time) in rows {
        let name = if cause == TimeCause::Kernels { what } else { cause.name() };
        let part = text::percent(time.0, report.duration.0);
        let class = format!("cause {}", cause.word());
        meter_row(out, [name, &text::time(time), &part], (&class, time.0, report.duration.0));
    }
    out.push_str("</table></section>");
}

/// Writes the costs of other plans: fewer bytes for more time.
fn prices(report: &Report, out: &mut String) {
    let few = PlanPrice::few(&report.prices, PRICES_MAX);
    let Some(most) = few.iter().map(|price| price.written.0).max() else { return };
    if few.len() < 2 {
        return;
    }
    out.push_str(
        "<section><h2>What other plans would cost</h2><table class=\"written\"><thead><tr><th>step</th>\
         <th class=\"number\">written</th><th class=\"number\"></th><th></th></tr></thead>",
    );
    for price in few {
        let (step, written) = (text::time(price.time), text::bytes(price.written));
        let (class, which) = if price.chosen { ("resident", "this plan") } else { ("moving", "") };
        meter_row(out, [&step, &written, which], (class, price.written.0, most));
    }
    out.push_str("</table></section>");
}

/// Writes the cost of smaller and smaller write budgets.
fn budgets(report: &Report, out: &mut String) {
    let Some(longest) = report.budgets.iter().map(|point| point.step.0).max() else { return };
    out.push_str(
        "<section><h2>What writing less would cost</h2><table class=\"written\"><thead><tr><th>written a day</th>\
         <th class=\"number\">step</th><th class=\"number\">a drive lasts</th><th></th></tr></thead>",
    );
    for point in &report.budgets {
        let terabytes = point.per_day.0 / 1_000_000_000_000;
        let per_day = match terabytes {
            0 => format!("{} GB", point.per_day.0 / 1_000_000_000),
            _ => format!("{terabytes} TB"),
        };
        let step = text::time(point.step);
        let bar = ("resident", point.step.0, longest);
        meter_row(out, [&per_day, &step, &text::escape(&point.lasts)], bar);
    }
    out.push_str("</table>");
    if report.budgets.iter().any(|point| point.pause.0 > 0) {
        out.push_str(
            "<p class=\"small\">Where no plan writes so little, the step includes a pause that keeps to the budget.</p>",
        );
    }
    out.push_str("</section>");
}

/// A name, two figures, and a bar of this class, length and full length.
fn meter_row(
    out: &mut String,
    [name, one, other]: [&str; 3],
    (class, length, full): (&str, u64, u64),
) {
    let per_mille = (u128::from(length) * 1000 / u128::from(full.max(1))).min(1000);
    let _ = write!(
        out,
        "<tr><th>{name}</th><td class=\"number\">{one}</td><td class=\"number\">{other}</td>\
         <td class=\"meter\"><i class=\"{class}\" style=\"width:{}.{}%\"></i></td></tr>",
        per_mille / 10,
        per_mille % 10
    );
}

fn written(report: &Report, out: &mut String) {
    let total: u64 = report.written.iter().map(|(_, bytes)| bytes.0).sum();
    let most = report.written.iter().map(|(_, bytes)| bytes.0).max().unwrap_or(0).max(1);
    out.push_str("<section><h2>Written in a step</h2>");
    if total == 0 {
        out.push_str("<p>Nothing.</p>");
    } else {
        out.push_str("<table class=\"written\">");
        for (kind, bytes) in &report.written {
            let name = kind.to_string();
            let figures = [&name, &text::bytes(*bytes), &text::percent(bytes.0, total)];
            let class = format!("bar {}", class_of(*kind));
            meter_row(out, figures.map(String::as_str), (&class, bytes.0, most));
        }
        let _ = write!(
            out,
            "<tr class=\"total\"><th>all</th><td class=\"number\">{}</td><td></td><td></td></tr></table>",
            text::bytes(Bytes(total))
        );
    }
    if report.clean_evictions > 0 {
        let _ = write!(
            out,
            "<p class=\"small\">{} left without a write: the copy of {} was still good.</p>",
            text::count(report.clean_evictions as usize, "storage"),
            text::bytes(report.clean_bytes)
        );
    }
    out.push_str("</section>");
}

fn figures(report: &Report, out: &mut String) {
    out.push_str("<section><h2>Figures</h2><table class=\"figures\">");
    let mut row = |name: &str, value: &str| {
        let (name, value) = (text::escape(name), text::escape(value));
        let _ = write!(out, "<tr><th>{name}</th><td class=\"number\">{value}</td></tr>");
    };
    row("ops", &report.ops.len().to_string());
    row("transfers", &report.transfers.len().to_string());
    row("staging", &text::bytes(report.staging));
    for (limit, name) in [(report.write_limit, "write limit"), (report.read_limit, "read limit")] {
        if let Some(limit) = limit {
            row(name, &text::rate(limit));
        }
    }
    for (name, value) in &report.figures {
        row(name, value);
    }
    out.push_str("</table></section>");
}

/// A table of the largest of `rows`, which come largest first.
fn table(out: &mut String, title: &str, head: [&str; 3], rows: &[[String; 3]]) {
    let _ = write!(out, "<section><h2>{title}</h2><table><thead><tr>");
    for (column, name) in head.iter().enumerate() {
        let class = if column == 1 { " class=\"number\"" } else { "" };
        let _ = write!(out, "<th{class}>{name}</th>");
    }
    out.push_str("</tr></thead>");
    for [first, number, last] in rows.iter().take(TABLE_ROWS_MAX) {
        let (first, last) = (text::escape(first), text::escape(last));
        let _ = write!(
            out,
            "<tr><td>{first}</td><td class=\"number\">{number}</td><td>{last}</td></tr>"
        );
    }
    out.push_str("</table>");
    if rows.len() > TABLE_ROWS_MAX {
        let _ = write!(out, "<p class=\"small\">and {} more</p>", rows.len() - TABLE_ROWS_MAX);
    }
    out.push_str("</section>\n");
}

fn stalls(report: &Report, out: &mut String) {
    if report.stalls.is_empty() {
        return;
    }
    let mut longest: Vec<_> = report.stalls.iter().collect();
    longest.sort_by_key(|stall| (Reverse(stall.end.0.saturating_sub(stall.begin.0)), stall.begin));
    let rows: Vec<_> = longest
        .into_iter()
        .map(|stall| {
            let length = crate::units::Nanos(stall.end.0.saturating_sub(stall.begin.0));
            [stall.op.clone(), text::time(length), stall.waited_for.clone()]
        })
        .collect();
    let title = format!("{}, longest first", text::count(rows.len(), "stall"));
    table(out, &title, ["op", "waited", "for"], &rows);
}

fn unmovable(report: &Report, out: &mut String) {
    if report.unmovable.is_empty() {
        return;
    }
    let mut largest: Vec<_> = report.unmovable.iter().collect();
    largest.sort_by_key(|storage| (Reverse(storage.bytes), &storage.name));
    let rows: Vec<_> = largest
        .into_iter()
        .map(|storage| [storage.name.clone(), text::bytes(storage.bytes), storage.why.clone()])
        .collect();
    let total = Bytes(report.unmovable.iter().map(|storage| storage.bytes.0).sum());
    let counted = text::count(rows.len(), "storage");
    let title = format!("{counted} that cannot move, {}", text::bytes(total));
    table(out, &title, ["storage", "size", "why"], &rows);
}

fn notices(report: &Report, out: &mut String) {
    if report.notices.is_empty() {
        return;
    }
    out.push_str("<section><h2>Notices</h2><ul class=\"notices\">");
    for notice in &report.notices {
        let _ = write!(out, "<li>{}</li>", text::escape(notice));
    }
    out.push_str("</ul></section>\n");
}
