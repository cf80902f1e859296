//! Gain by recomputation: steps with activation checkpointing, in which each layer is computed
//! again, kept or moved, whichever is best, beside all and none of them, and what no plan of any
//! choice can beat.

use super::cell::{machine, timed};
use super::certificates::certificate;
use super::columns::gigabytes;
use super::orders::{self, CAPACITY, PLANNED};
use super::sets::published_stages;
use super::table::{self, Table, TableRow};
use super::{Failure, ratio};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use tidelog_planner::bound::{Effort, with_skips};
use tidelog_planner::cost::Machine;
use tidelog_planner::order::{MicroBatches, OpOrder, Updates};
use tidelog_planner::recompute::{LeftOut, Reruns, choose, finalists};
use tidelog_planner::simulate::SimulateError;
use tidelog_planner::tidelog::{QUICK_STEPS, TidelogOptions, step_cost};
use tidelog_planner::trace::Trace;
use tidelog_planner::units::{Bytes, Nanos};

const EFFORT: Effort = Effort { instants: 600, steps: 1000 };

/// Number of choices that are planned in full, of those that look best after a short search.
const PLANNED_IN_FULL: usize = 3;

/// A step with some of its reruns left out.
struct Outcome {
    left_out: usize,
    time: u64,
    written: u64,
}

/// A step in one order: with all its reruns, with none, and with the best.
struct InOrder {
    order: OpOrder,
    all: Option<Outcome>,
    none: Option<Outcome>,
    best: Outcome,
    /// Seconds of a core for the best.
    planning: f64,
}

/// A step.
pub(super) struct RecomputedRow {
    name: String,
    reruns: usize,
    /// The kernels' time with all reruns, and with none.
    kernels: [u64; 2],
    /// Lower bound of plans in the program's order, whatever it computes again.
    bound: u64,
    orders: Vec<InOrder>,
    /// True if the step without any rerun is the recorded one without checkpointing, where there is
    /// one.
    is_plain: Option<bool>,
}

/// The name of all steps of this table, and what the name of one begins with.
pub(super) const ALL: &str = "recompute";

/// The first stages of the sets that somebody has published, and the steps that are planned in
/// every order.
pub(super) fn names() -> Vec<String> {
    published_stages().chain(orders::names()).collect()
}

/// Returns the name of a step on the command line.
pub(super) fn asked_as(name: &str) -> String {
    format!("{ALL}:{name}")
}

pub(super) fn row(name: &str, folder: &Path, bounds: &Path) -> Result<RecomputedRow, Failure> {
    let trace = table::read_checkpointed(folder, name)?;
    let machine = machine(CAPACITY, None);
    let reruns = Reruns::of(&trace);
    let without_any = reruns.without(&reruns.every())?.trace;
    let plain = std::fs::read_to_string(folder.join(format!("{name}.json"))).ok();
    let plain = plain.map(|text| Trace::from_json(&text)).transpose()?;
    let path = bounds.join(format!("{name}-recompute.json"));
    let groups = reruns.skippable();
    let search = || with_skips(&trace, &machine, EFFORT, &groups);
    let proof = certificate(&path, (&trace, &machine, &groups), search)?;
    let mut orders = vec![in_order(OpOrder::OWN, &reruns, &machine)?];
    if orders::names().iter().any(|one| one == name) {
        let updates = Updates::Early;
        let layer_wise = OpOrder { micro_batches: MicroBatches::LayerWise, updates };
        let early = OpOrder { micro_batches: MicroBatches::Own, updates };
        let order = if layer_wise.of(&trace).is_ok() { layer_wise } else { early };
        orders.push(in_order(order, &reruns, &machine)?);
    }
    Ok(RecomputedRow {
        name: name.to_owned(),
        reruns: reruns.all().len(),
        kernels: [trace.duration().0, without_any.duration().0],
        bound: proof.relaxation.value(&proof.prices)?.0.max(without_any.duration().0),
        orders,
        is_plain: plain.map(|plain| plain.fingerprint() == without_any.fingerprint()),
    })
}

fn in_order(order: OpOrder, reruns: &Reruns<'_>, machine: &Machine) -> Result<InOrder, Failure> {
    let planned = |trace: &Trace, steps: u64| -> Result<Option<(Nanos, Bytes)>, SimulateError> {
        let Ok(ordered) = order.of(trace) else { return Ok(None) };
        let options = TidelogOptions { planned: PLANNED, ..TidelogOptions::thorough() };
        step_cost(&ordered.trace, machine, options, steps)
    };
    let in_full = |left_out: &LeftOut| -> Result<Option<Outcome>, Failure> {
        let found = planned(&reruns.without(left_out)?.trace, u64::MAX)?;
        let left_out = left_out.0.len();
        Ok(found.map(|(time, written)| Outcome { left_out, time: time.0, written: written.0 }))
    };
    let all = in_full(&LeftOut::default())?;
    let none = in_full(&reruns.every())?;
    let (found, planning) = timed(|| -> Result<Vec<Outcome>, Failure> {
        let found = choose(reruns, machine, |trace| planned(trace, QUICK_STEPS))?;
        let few = finalists(reruns, found, PLANNED_IN_FULL);
        let few = few.iter().map(in_full).collect::<Result<Vec<_>, _>>()?;
        Ok(few.into_iter().flatten().collect())
    });
    let best = found?.into_iter().min_by_key(|one| (one.time, one.written));
    Ok(InOrder { order, all, none, best: best.ok_or("no choice runs")?, planning })
}

impl TableRow for RecomputedRow {
    fn missed(&self) -> Vec<String> {
        let mut missed = Vec::new();
        if self.orders[0].best.time < self.bound {
            missed.push(format!("{}: a plan beats the bound of all choices", self.name));
        }
        if self.is_plain == Some(false) {
            missed.push(format!("{}: without reruns it is not the recorded step", self.name));
        }
        missed
    }

    fn text(&self) -> String {
        let seconds = |time: u64| ratio(time, 1_000_000_000);
        let mut text = format!(
            "{}, 80.0 GiB, SSD only: kernels take {:.2} s with {} reruns, {:.2} s without; no plan in the program's \
             order takes less than {:.2} s, whatever it computes again\n",
            self.name,
            seconds(self.kernels[0]),
            self.reruns,
            seconds(self.kernels[1]),
            seconds(self.bound)
        );
        for one in &self.orders {
            let name = one.order.name();
            let of = |outcome: &Outcome| {
                let (time, written) = (seconds(outcome.time), gigabytes(outcome.written));
                format!("{time:.2} s ({written} GB written)")
            };
            let or_none =
                |outcome: &Option<Outcome>| outcome.as_ref().map_or("does not run".to_owned(), of);
            let runs = self.reruns - one.best.left_out;
            let _ = writeln!(
                text,
                "    {name:17} all {}, none {}, best {} with {runs} of {} reruns, found in {:.1} s{}",
                or_none(&one.all),
                or_none(&one.none),
                of(&one.best),
                self.reruns,
                one.planning,
                if one.order == OpOrder::OWN {
                    format!(", {:.3} of the bound", ratio(one.best.time, self.bound))
                } else {
                    String::new()
                }
            );
        }
        text
    }

    fn json(&self) -> Value {
        let outcome = |one: &Outcome| {
            json!({
                "reruns": self.reruns - one.left_out, "time_ns": one.time,
                "ssd_written": one.written,
            })
        };
        let orders = self.orders.iter().map(|one| {
            json!({
                "order": one.order.name(), "all": one.all.as_ref().map(outcome),
                "none": one.none.as_ref().map(outcome), "best": outcome(&one.best),
                "planning_s": one.planning,
            })
        });
        json!({
            "set": self.name, "capacity": CAPACITY, "reruns": self.reruns,
            "kernels_ns": self.kernels[0], "kernels_without_reruns_ns": self.kernels[1],
            "lower_bound_of_all_choices_ns": self.bound, "orders": orders.collect::<Vec<_>>(),
            "without_reruns_it_is_the_plain_step": self.is_plain,
        })
    }

    /// One for each order.
    fn html(&self) -> String {
        let cell =
            |outcome: Option<&Outcome>| table::cells(outcome.map(|one| (one.time, one.written)));
        let mut html = String::new();
        for one in &self.orders {
            let is_own = one.order == OpOrder::OWN;
            let bound = if is_own { table::seconds(self.bound) } else { "–".to_owned() };
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td>{}{}{}<td>{} of {}</td><td>{bound}</td></tr>",
                self.name,
                one.order,
                table::seconds(self.kernels[0]),
                table::seconds(self.kernels[1]),
                cell(one.all.as_ref()),
                cell(one.none.as_ref()),
                cell(Some(&one.best)),
                self.reruns - one.best.left_out,
                self.reruns,
            );
        }
        html
    }
}

/// The page's table: seconds a step, GB written.
pub(super) fn page(recomputed: &Table<RecomputedRow>) -> String {
    let Some(rows) = recomputed.html() else { return String::new() };
    format!(
        "<h2>Computing again, keeping, moving</h2>\n<p class=\"quiet\">Seconds a step and GB written, 80 GiB, SSDs \
         only, with activation checkpointing. The bound holds whatever is computed again, in the program's \
         order.</p>\n<table><tr><th>step</th><th>order</th><th>kernels</th><th>without reruns</th><th>all run \
         again</th><th>GB</th><th>none</th><th>GB</th><th>best</th><th>GB</th><th>reruns</th><th>bound</th></tr>\n{rows}\
         </table>\n"
    )
}
