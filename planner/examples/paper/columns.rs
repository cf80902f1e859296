//! The table's columns. A column is one entry of `columns`: its heading on the page, its text there
//! and on the terminal, its value in the file, and its marks. Only marks that differ by set are in
//! `Marks`.

use super::cell::{AT_ONCE, Cell, PolicyResult};
use super::marks::{OVER_LESS_FREEDOM_OF_STEPS, exceeded};
use super::output::percent_of_ideal;
use super::ratio;
use serde_json::{Value, json};

/// A column of one row.
pub(super) struct Column {
    /// Heading on the page. Columns without a heading come last: they are notes at the end of the
    /// row.
    pub(super) heading: &'static str,
    /// The words around its text on the terminal, which leaves out what has no value.
    pub(super) words: [&'static str; 2],
    /// Empty or a dash: it has no value.
    pub(super) text: String,
    /// Key and value in the file.
    pub(super) json: Option<(&'static str, Value)>,
    /// The marks that are missed.
    missed: Vec<String>,
}

fn column(heading: &'static str, words: [&'static str; 2], text: String) -> Column {
    Column { heading, words, text, json: None, missed: Vec::new() }
}

impl Column {
    fn json(self, key: &'static str, value: Value) -> Self {
        Self { json: Some((key, value)), ..self }
    }

    /// A mark of the rows that are `judged`.
    fn at_most(mut self, judged: bool, what: &str, found: f64, most: f64) -> Self {
        self.missed.extend(exceeded(what, found, most).filter(|_| judged));
        self
    }
}

/// The columns of a policy's row. The first is a percentage, which the page draws as a bar.
pub(super) fn columns(cell: &Cell, one: &PolicyResult) -> Vec<Column> {
    let marks = cell.part.set.marks;
    let tidelog = one.policy == "tidelog";
    let bounded = tidelog && !cell.host;
    let fewest = one.policy == "tidelog, fewest bytes" && !cell.host;
    let percent = percent_of_ideal(cell, one.time);
    let over_best = ratio(one.time, cell.best_published().time);
    let slower = "time of the fewest bytes over the best published score";
    let most = if cell.host { 1.0 } else { marks.over_published };
    let over_bound = cell.bound.map(|bound| format!("{:.3}", ratio(one.time, bound)));
    let bound = cell.bound.unwrap_or(one.time);
    let beaten = format!("the bound over the time of {}", one.policy);
    let (written, read) = (one.bytes.ssd_written.0, one.bytes.ssd_read.0);
    let (of, least, most_of) = match floor_above_mark(cell) {
        Some(floor) => ("bytes written over their floor", floor, OVER_FLOOR),
        None => ("bytes written over algorithm1 as printed", printed(cell), marks.written),
    };
    let at_once = one.policy == AT_ONCE;
    let is_marked = tidelog && cell.host && cell.is_first();
    let [most_seconds, most_written] = if is_marked { marks.with_host } else { NO_MARK };
    let planned = (one.planning > 0.0).then(|| format!("{:.2} s", one.planning));
    let host = one.host_memory.map(|bytes| format!("{} GB of host memory", gigabytes(bytes)));
    vec![
        column("of ideal", [" ", " of ideal"], format!("{percent:6.1} %"))
            .json("percent_of_ideal", json!(percent))
            .at_most(tidelog, "time over the best published score", over_best, most)
            .at_most(fewest, slower, over_best, 1.0)
            .at_most(true, "seconds with host memory", ratio(one.time, SECOND), most_seconds),
        column("over bound", [", ", " x bound"], over_bound.unwrap_or("–".to_owned()))
            .at_most(bounded, "time over the bound", ratio(one.time, bound), marks.over_bound)
            .at_most(true, &beaten, ratio(bound, one.time), 1.0),
        column("GB written", [", ", " GB written"], gigabytes(written))
            .json("ssd_written", json!(written))
            .at_most(fewest, of, ratio(written, least.max(1)), most_of)
            .at_most(true, "GB written with host memory", ratio(written, SECOND), most_written),
        column("GB read", [", ", " GB read"], gigabytes(read)).json("ssd_read", json!(read)),
        column("stalls", [", ", " stalls"], one.stalled.to_string())
            .json("stalled_ops", json!(one.stalled)),
        column("planned in", [", planned in ", ""], planned.unwrap_or_default())
            .json("planning_s", json!(one.planning))
            .at_most(at_once, "seconds to a first plan", one.planning, FIRST_PLAN),
        column("", [", ", ""], host.unwrap_or_default())
            .json("host_memory", json!(one.host_memory)),
    ]
}

/// The first columns of the lower bound's row; the others say nothing of it.
pub(super) fn columns_of_bound(cell: &Cell, bound: u64) -> [String; 3] {
    let floor = cell.floor.map_or("–".to_owned(), |floor| format!("≥ {}", gigabytes(floor)));
    [format!("{:.1} %", percent_of_ideal(cell, bound)), "1".to_owned(), floor]
}

/// The marks that a cell does not reach.
pub(super) fn missed_by(cell: &Cell) -> Vec<String> {
    let columns = cell.outcomes.iter().flat_map(|one| columns(cell, one));
    let freed = cell.freed.iter().filter_map(|(what, time)| {
        let what = format!("the time with {what} over the one without");
        exceeded(&what, ratio(*time, cell.shortest), OVER_LESS_FREEDOM_OF_STEPS)
    });
    let missed = columns.flat_map(|column| column.missed).chain(freed);
    missed.map(|missed| format!("{}: {missed}", cell.title())).collect()
}

/// Limit of the time that a first plan takes, in seconds of one core.
const FIRST_PLAN: f64 = 0.3;

const NO_MARK: [f64; 2] = [f64::INFINITY; 2];

/// Nanoseconds in a second; bytes in a GB.
const SECOND: u64 = 1_000_000_000;

/// The marks of one set.
#[derive(Clone, Copy)]
pub(super) struct Marks {
    /// The most that an iteration may take over the bound, SSD only.
    over_bound: f64,
    /// The most that it may take over the best published score, SSD only; elsewhere as much.
    over_published: f64,
    /// Limit of written bytes, as a share of those of algorithm1 (as printed), in a time no worse
    /// than the best published score's.
    written: f64,
    /// The most that an iteration on the first of the machines may take in seconds and write in GB,
    /// with host memory.
    with_host: [f64; 2],
}

impl Marks {
    pub(super) const LLAMA3_8B: Self =
        Self { over_bound: 1.02, over_published: 1.0, written: 0.65, with_host: NO_MARK };
    pub(super) const LLAMA3_8B_TF32: Self =
        Self { over_bound: 1.10, with_host: [9.95, f64::INFINITY], ..Self::LLAMA3_8B };
    pub(super) const GRANITE_8B: Self =
        Self { over_bound: 1.06, written: 0.85, with_host: [69.6, 400.0], ..Self::LLAMA3_8B };
    pub(super) const LLAMA3_70B: Self =
        Self { over_bound: 1.15, over_published: 0.85, written: 0.75, ..Self::LLAMA3_8B };
    /// Reported; the one mark is never to be worse than what is published.
    pub(super) const HELD_OUT: Self =
        Self { over_bound: f64::INFINITY, written: f64::INFINITY, ..Self::LLAMA3_8B };
}

/// Limit of bytes over the floor, where no plan reaches the mark, as a floor above it proves.
const OVER_FLOOR: f64 = 1.06;

/// The bytes that algorithm1 writes as printed.
fn printed(cell: &Cell) -> u64 {
    cell.find("algorithm1, as printed").bytes.ssd_written.0
}

/// The floor under bytes written, where it shows that no plan reaches the mark.
fn floor_above_mark(cell: &Cell) -> Option<u64> {
    let printed = printed(cell).max(1);
    cell.floor.filter(|floor| ratio(*floor, printed) > cell.part.set.marks.written)
}

/// Returns the mark of a cell that no plan reaches, in words.
pub(super) fn out_of_reach(cell: &Cell) -> Option<String> {
    let floor = floor_above_mark(cell)?;
    let (ours, printed) = (cell.find("tidelog, fewest bytes").bytes.ssd_written.0, printed(cell));
    Some(format!(
        "{}: bytes written over algorithm1 as printed would be {:.3} for the mark, are proved to be at least {:.3}, and are {:.3}: \
         {:.3} x the least, at most {OVER_FLOOR:.3}",
        cell.title(),
        cell.part.set.marks.written,
        ratio(floor, printed),
        ratio(ours, printed),
        ratio(ours, floor),
    ))
}

pub(super) fn gigabytes(bytes: u64) -> String {
    format!("{:.0}", ratio(bytes, 1_000_000_000))
}
