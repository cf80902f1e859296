//! Gain by parts of storages: first stages, planned with whole storages and with parts, and what no
//! plan with either can beat.

use super::cell::{EFFORT, machine, timed};
use super::certificates::certificate;
use super::columns::gigabytes;
use super::marks::exceeded;
use super::orders::CAPACITY;
use super::sets::published_stages;
use super::table::{self, Table, TableRow};
use super::{Failure, GIB, ratio};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use tidelog_planner::bound::lower_bound;
use tidelog_planner::simulate::{SimulateError, Simulation};
use tidelog_planner::tidelog::{PartedPlan, Search, TidelogOptions, in_parts};

/// The name of all steps of this table, and what the name of one begins with.
pub(super) const ALL: &str = "parts";

/// The first stages of the sets that somebody has published.
pub(super) fn names() -> Vec<String> {
    published_stages().collect()
}

/// Returns the name of a step on the command line.
pub(super) fn asked_as(name: &str) -> String {
    format!("{ALL}:{name}")
}

/// Time and written bytes of a plan.
struct Outcome {
    time: u64,
    written: u64,
    /// Seconds of a core.
    planning: f64,
}

impl Outcome {
    fn of(simulation: &Simulation, planning: f64) -> Self {
        Self { time: simulation.time.0, written: simulation.bytes.ssd_written.0, planning }
    }
}

/// A step.
pub(super) struct PartedRow {
    name: String,
    bound: u64,
    whole: Outcome,
    /// Outcome with parts: the number of storages and of their parts; as with whole storages where
    /// no parts are better.
    parts: Outcome,
    cut: (usize, usize),
    storages: usize,
}

pub(super) fn row(name: &str, folder: &Path, bounds: &Path) -> Result<PartedRow, Failure> {
    let trace = table::read(folder, name)?;
    let machine = machine(CAPACITY, None);
    let (made, seconds) = timed(|| -> Result<_, SimulateError> {
        let mut search = Search::new(&trace, &machine, TidelogOptions::thorough())?;
        search.run(|_| true)?;
        Ok(search)
    });
    let search = made?;
    let whole = search.best().ok_or("a search makes a plan")?.1;
    let (made, more) = timed(|| in_parts(&search, |_| true));
    let (parts, cut) = match made? {
        Some(PartedPlan { step, simulation, .. }) => (simulation, step.counts()),
        None => (whole.clone(), (0, 0)),
    };
    // The bound of the cell of this step: what storages are cut into makes no difference to it.
    let path = bounds.join(format!("{name}-{}.json", CAPACITY / GIB));
    let search = || lower_bound(&trace, &machine, EFFORT);
    let proof = certificate(&path, (&trace, &machine, &[]), search)?;
    Ok(PartedRow {
        name: name.to_owned(),
        bound: proof.relaxation.value(&proof.prices)?.0.max(trace.duration().0),
        whole: Outcome::of(&whole, seconds),
        parts: Outcome::of(&parts, seconds + more),
        cut,
        storages: trace.storages.len(),
    })
}

impl TableRow for PartedRow {
    fn missed(&self) -> Vec<String> {
        let found = ratio(self.bound, self.parts.time);
        let what = format!("{}: the bound over the time in parts", self.name);
        exceeded(&what, found, 1.0).into_iter().collect()
    }

    fn text(&self) -> String {
        let seconds = |time: u64| ratio(time, 1_000_000_000);
        let mut text = format!(
            "{}, 80.0 GiB, SSD only: no plan takes less than {:.2} s, in parts or not\n",
            self.name,
            seconds(self.bound)
        );
        for (name, one) in [("whole", &self.whole), ("in parts", &self.parts)] {
            let _ = write!(
                text,
                "    {name:9} {:8.3} s, {:.4} of the bound, {} GB written, planned in {:.1} s",
                seconds(one.time),
                ratio(one.time, self.bound),
                gigabytes(one.written),
                one.planning
            );
            text.push('\n');
        }
        let (storages, parts) = self.cut;
        let _ = writeln!(
            text,
            "    {storages} of {} storages move in {parts} parts; {:.3} of the time, {:.3} of the bytes",
            self.storages,
            ratio(self.parts.time, self.whole.time),
            ratio(self.parts.written, self.whole.written.max(1))
        );
        text
    }

    fn json(&self) -> Value {
        let outcome = |one: &Outcome| json!({"time_ns": one.time, "ssd_written": one.written, "planning_s": one.planning});
        json!({
            "set": self.name, "capacity": CAPACITY, "lower_bound_ns": self.bound,
            "whole": outcome(&self.whole), "parts": outcome(&self.parts),
            "storages_in_parts": self.cut.0, "parts_of_storages": self.cut.1,
            "storages": self.storages,
        })
    }

    fn html(&self) -> String {
        let seconds = |time: u64| format!("{:.2}", ratio(time, 1_000_000_000));
        let cell = |one: &Outcome| {
            format!("<td>{}</td><td>{}</td>", seconds(one.time), gigabytes(one.written))
        };
        let (storages, parts) = self.cut;
        format!(
            "<tr><td>{}</td><td>{}</td>{}{}<td>{storages} of {}</td><td>{parts}</td></tr>",
            self.name,
            seconds(self.bound),
            cell(&self.whole),
            cell(&self.parts),
            self.storages
        )
    }
}

/// The page's table: seconds a step, GB written.
pub(super) fn page(parts: &Table<PartedRow>) -> String {
    let Some(rows) = parts.html() else { return String::new() };
    format!(
        "<h2>Parts of storages</h2>\n<p class=\"quiet\">Seconds a step and GB written, 80 GiB, SSDs only: storages that \
         move whole, and storages of which parts move alone. The bound is for both.</p>\n<table><tr><th>step</th>\
         <th>bound</th><th>whole</th><th>GB</th><th>in parts</th><th>GB</th><th>storages in parts</th><th>parts</th>\
         </tr>\n{rows}</table>\n"
    )
}
