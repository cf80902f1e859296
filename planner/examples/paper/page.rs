//! The page: all tables in one file that needs no network, and a page for each step that is worth a
//! look.

use super::cell::Cell;
use super::columns::{columns, columns_of_bound};
use super::output::{Results, published_of, size_in_words, small_in_words};
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

/// Folder of the steps' pages, in a folder of the page's name.
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
    out += &super::orders::page(&results.orders);
    out += &super::recompute::page(&results.recomputed);
    out += &super::parts::page(&results.parts);
    out += &super::host_updates::page(&results.hosted);
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
    let headings = columns(cell, cell.find("tidelog")).into_iter().map(|column| column.heading);
    let headings: Vec<&str> = headings.filter(|heading| !heading.is_empty()).collect();
    let _ = writeln!(
        out,
        "</h3>\n<table><tr><th>policy</th><th>{}</th><th>published, and notes</th></tr>",
        headings.join("</th><th>")
    );
    if let Some(bound) = cell.bound {
        let mut texts = columns_of_bound(cell, bound).to_vec();
        texts.resize(headings.len(), String::new());
        row("lower bound", &texts, "", out);
    }
    for one in cell.outcomes.iter().chain(&cell.ablations) {
        let texts = columns(cell, one).into_iter().map(|column| column.text);
        let mut texts: Vec<String> = texts.collect();
        let notes = texts.split_off(headings.len());
        let published = published_of(cell, &one.policy).map(str::to_owned);
        let notes = published.into_iter().chain(notes).filter(|note| !note.is_empty());
        row(&one.policy, &texts, &notes.collect::<Vec<_>>().join("; "), out);
    }
    for (policy, why) in &cell.impossible {
        let published =
            published_of(cell, policy).map_or(String::new(), |known| format!("{known}; "));
        let (count, why) = (headings.len(), escaped(why));
        let _ = writeln!(
            out,
            "<tr><td>{policy}</td><td colspan=\"{count}\">does not run</td><td>{published}{why}</td></tr>"
        );
    }
    out.push_str("</table>\n");
}

/// A row of the table. The first text is a percentage, drawn as a bar.
fn row(name: &str, texts: &[String], notes: &str, out: &mut String) {
    let class = if name.starts_with("tidelog") { " class=\"ours\"" } else { "" };
    let _ = write!(out, "<tr{class}><td>{}</td>", escaped(name));
    for (index, text) in texts.iter().enumerate() {
        let text = text.trim_start();
        let bar = match index {
            0 => format!(" class=\"share\" style=\"--part:{}\"", text.replace(' ', "")),
            _ => String::new(),
        };
        let _ = write!(out, "<td{bar}>{text}</td>");
    }
    let _ = writeln!(out, "<td>{notes}</td></tr>");
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
