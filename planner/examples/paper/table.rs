//! Tables with one row for each recorded step, and the traces that rows are made from.

use super::columns::gigabytes;
use super::{Failure, ratio, side_by_side};
use serde_json::Value;
use std::path::Path;
use tidelog_planner::trace::Trace;

/// Row of a table: one step.
pub(super) trait TableRow: Send {
    /// Returns the text for the terminal.
    fn text(&self) -> String;
    /// Returns the marks that are missed.
    fn missed(&self) -> Vec<String>;
    fn json(&self) -> Value;
    /// Returns the row of the page's table.
    fn html(&self) -> String;
}

/// Every step.
pub(super) struct Table<R> {
    rows: Vec<R>,
}

impl<R: TableRow> Table<R> {
    /// Makes the rows of as many steps at a time as there are cores, and reports each with `what`
    /// as it is done.
    pub(super) fn of(
        names: &[String],
        what: &str,
        row: impl Fn(&str) -> Result<R, Failure> + Sync,
    ) -> Result<Self, Failure> {
        let rows = side_by_side(names.len(), |index| {
            (format!("{}, {what}", names[index]), row(&names[index]))
        })?;
        for row in &rows {
            print!("{}", row.text());
        }
        Ok(Self { rows })
    }

    /// Returns the marks that are missed.
    pub(super) fn missed(&self) -> Vec<String> {
        self.rows.iter().flat_map(R::missed).collect()
    }

    pub(super) fn json(&self) -> Value {
        self.rows.iter().map(R::json).collect()
    }

    /// The rows of the page's table; `None`: there are none.
    pub(super) fn html(&self) -> Option<String> {
        (!self.rows.is_empty()).then(|| self.rows.iter().map(R::html).collect())
    }
}

/// Seconds of a time, as the page has them.
pub(super) fn seconds(time: u64) -> String {
    format!("{:.1}", ratio(time, 1_000_000_000))
}

/// Cells of the page with the time of a step and the bytes that it writes; `None`: it does not run.
pub(super) fn cells(outcome: Option<(u64, u64)>) -> String {
    outcome.map_or("<td>–</td><td>–</td>".to_owned(), |(time, written)| {
        format!("<td>{}</td><td>{}</td>", seconds(time), gigabytes(written))
    })
}

/// A recorded step.
pub(super) fn read(folder: &Path, file: &str) -> Result<Trace, Failure> {
    let path = folder.join(format!("{file}.json"));
    let text = std::fs::read_to_string(&path).map_err(|error| {
        format!("{}: {error}; benches/paper/record.py records it", path.display())
    })?;
    Ok(Trace::from_json(&text)?)
}

/// Reads a trace with activation checkpointing.
pub(super) fn read_checkpointed(folder: &Path, name: &str) -> Result<Trace, Failure> {
    read(folder, &format!("{name}-checkpointed"))
}
