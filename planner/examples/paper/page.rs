//! The page: all tables in one file that needs no network, and a page for each step that is worth a
//! look.

use super::cell::{Cell, PolicyResult};
use super::output::{Results, percent_of_ideal, published_of, size_in_words, small_in_words};
use super::ratio;
use std::fmt::Write;

const STYLE: &str = "
:root { color-scheme: light dark; --quiet: #667085; --line: #d5d9df; --bar: #2f6f9f33; --ours: #0f9d7855; }
body { margin: 0 auto; max-width: 1100px; padding: 32px 28px 64px; font: 15px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 28px; } h2 { margin: 34px 0 2px; font-size: 19px; } h3 { margin: 16px 0 4px; font-size: 15px; }
p { margin: 4px 0; } .quiet { color: var(--quiet); font-size: 13px; } .short { color: #d1242f; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 13px; }
th { font-weight: 600; } th, td { padding: 3px 10px; text-align: right; border-bottom: 1px solid var(--line); }
th:first-child, td:first-child, td:last-child, th:last-child { text-align: left; }
td.share { background: linear-gradient(90deg, var(--bar) var(--part), transparent var(--part)); }
tr.ours td.share { background: linear-gradient(90deg, var(--ours) var(--part), transparent var(--part)); }
tr.ours { font-weight: 600; }
";

/// Where the steps' pages are, in a folder of the page's name.
pub(super) const STEPS: &str = "steps";

/// The page of everything that came out, as the file `name`.html.
pub(super) fn page(results: &Results, name: &str) -> String {
    let mut out = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Tidelog: every policy on recorded steps</title><style>{STYLE}</style></head><body>\n\
         <h1>Every policy on recorded training steps</h1>\n<p class=\"quiet\">Simulated; share of the time that the \
         step would take with memory without end. Published: TERAIO, arXiv 2506.06472.</p>\n"
    );
    verdict(results, &mut out);
    let mut before = String::new();
    for cell in &results.cells {
        let title = cell.part.title();
        if title != before {
            let _ = writeln!(out, "<h2>{title}</h2>");
            before = title;
        }
        table(cell, name, &mut out);
    }
    let _ = writeln!(out, "<h2>Small instances</h2>\n<p>{}</p>", small_in_words(&results.small));
    out.push_str("<h2>Longer traces</h2>\n");
    for size in &results.sizes {
        let _ = writeln!(out, "<p>{}</p>", size_in_words(size));
    }
    out + "</body></html>\n"
}

/// The name of the page of a cell's step, in the folder of all of them.
pub(super) fn step_file(cell: &Cell) -> String {
    format!("{}{}.html", cell.part.file(), if cell.host { "-host" } else { "" })
}

fn verdict(results: &Results, out: &mut String) {
    match results.missed.len() {
        0 => out.push_str("<p>Every mark that a plan can reach is reached.</p>\n"),
        count => {
            let _ = writeln!(out, "<h2>{count} figures fall short</h2>");
            list("short", &results.missed, out);
        }
    }
    if !results.out_of_reach.is_empty() {
        let count = results.out_of_reach.len();
        let _ = writeln!(out, "<h2>{count} marks are proved out of reach</h2>");
        list("proved", &results.out_of_reach, out);
    }
}

fn list(class: &str, lines: &[String], out: &mut String) {
    let _ = writeln!(out, "<ul class=\"{class}\">");
    for line in lines {
        let _ = writeln!(out, "<li>{}</li>", escaped(line));
    }
    out.push_str("</ul>\n");
}

fn table(cell: &Cell, name: &str, out: &mut String) {
    let _ = write!(out, "<h3>{}", cell.machine());
    if cell.page.is_some() {
        let _ = write!(out, " · <a href=\"{name}/{STEPS}/{}\">the step</a>", step_file(cell));
    }
    out.push_str(
        "</h3>\n<table><tr><th>policy</th><th>of ideal</th><th>over bound</th><th>GB written</th><th>GB read</th>\
         <th>stalls</th><th>planned in</th><th>published, and notes</th></tr>\n",
    );
    if let Some(bound) = cell.bound {
        let percent = percent_of_ideal(cell, bound);
        let floor =
            cell.floor.map_or("–".to_owned(), |bytes| format!("≥ {:.0}", gigabytes(bytes)));
        let _ = writeln!(
            out,
            "<tr><td>lower bound</td><td class=\"share\" style=\"--part:{percent:.1}%\">{percent:.1} %</td><td>1</td>\
             <td>{floor}</td><td></td><td></td><td></td><td></td></tr>"
        );
    }
    for one in cell.outcomes.iter().chain(&cell.ablations) {
        row(cell, one, out);
    }
    for (policy, why) in &cell.impossible {
        let published =
            published_of(cell, policy).map_or(String::new(), |known| format!("{known}; "));
        let why = escaped(why);
        let _ = writeln!(
            out,
            "<tr><td>{policy}</td><td colspan=\"6\">does not run</td><td>{published}{why}</td></tr>"
        );
    }
    out.push_str("</table>\n");
}

fn row(cell: &Cell, one: &PolicyResult, out: &mut String) {
    let percent = percent_of_ideal(cell, one.time);
    let class = if one.policy.starts_with("tidelog") { " class=\"ours\"" } else { "" };
    let over =
        cell.bound.map_or("–".to_owned(), |bound| format!("{:.3}", ratio(one.time, bound)));
    let planned = if one.planning > 0.0 { format!("{:.2} s", one.planning) } else { String::new() };
    let host = one.host_memory.map(|bytes| format!("{:.0} GB of host memory", gigabytes(bytes)));
    let notes: Vec<String> =
        published_of(cell, &one.policy).map(str::to_owned).into_iter().chain(host).collect();
    let _ = writeln!(
        out,
        "<tr{class}><td>{}</td><td class=\"share\" style=\"--part:{percent:.1}%\">{percent:.1} %</td><td>{over}</td>\
         <td>{:.0}</td><td>{:.0}</td><td>{}</td><td>{planned}</td><td>{}</td></tr>",
        escaped(&one.policy),
        gigabytes(one.written),
        gigabytes(one.read),
        one.stalled,
        notes.join("; "),
    );
}

fn gigabytes(bytes: u64) -> f64 {
    ratio(bytes, 1_000_000_000)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
