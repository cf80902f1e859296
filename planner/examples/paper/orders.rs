//! Gain by the order of ops: whole models on one GPU with 1, 4 and 16 micro-batches, planned in
//! every order beside ZeRO-Infinity and `GreedySnake`, and what no plan in the program's own order
//! can beat.

use super::cell::{ZERO_HOST_BYTES, machine, timed};
use super::certificates::certificate;
use super::columns::gigabytes;
use super::snake::{Reproduced, reproduced};
use super::table;
use super::{Failure, GIB, ratio, side_by_side};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use tidelog_planner::bound::{Effort, lower_bound};
use tidelog_planner::order::OpOrder;
use tidelog_planner::policies::{greedysnake, zero_infinity};
use tidelog_planner::simulate::{Policy, simulate};
use tidelog_planner::tidelog::{Search, TidelogOptions};
use tidelog_planner::trace::Trace;

/// Recorded models, each with several numbers of micro-batches.
const MODELS: [&str; 3] = ["llama3-8b", "granite-8b", "llama3-70b"];
const MICRO_BATCHES: [u32; 3] = [1, 4, 16];

pub(super) const CAPACITY: u64 = 80 * GIB;

/// Six orders are searched where others are one.
pub(super) const PLANNED: u64 = 1_000_000;

/// The bound of the program's own order: where the first does not prove enough, the second is
/// tried.
const EFFORTS: [(&str, Effort); 2] =
    [("", Effort { instants: 600, steps: 600 }), ("-fine", Effort { instants: 1200, steps: 3000 })];

/// The most that the best order may take of the program's own, where SSDs are the limit.
const OVER_OWN: f64 = 0.75;

/// Time of another system, or why it does not run the step.
type Other = (&'static str, Result<u64, String>);

/// A step in one order.
struct Ordered {
    order: OpOrder,
    time: u64,
    written: u64,
    planning: f64,
}

/// A step in every order.
struct OrderRow {
    name: String,
    ideal: u64,
    /// Lower bound of plans in the program's own order.
    bound: u64,
    orders: Vec<Ordered>,
    /// Orders that it does not have, and why.
    missing: Vec<(OpOrder, String)>,
    /// Times of other systems, or why they do not run it.
    others: Vec<Other>,
}

pub(super) fn names() -> Vec<String> {
    let all =
        MODELS.iter().flat_map(|model| MICRO_BATCHES.map(|count| format!("{model}-m{count}")));
    all.collect()
}

/// Every step in every order, and what `GreedySnake` reports of itself.
pub(super) struct Orders {
    rows: Vec<OrderRow>,
    reproduced: Vec<Reproduced>,
}

impl Orders {
    /// Plans as many steps at a time as there are cores, and reports each as it is done.
    pub(super) fn of(names: &[String], folder: &Path, bounds: &Path) -> Result<Self, Failure> {
        let rows = side_by_side(names.len(), |index| {
            (names[index].clone(), row(&names[index], folder, bounds))
        })?;
        for row in &rows {
            print!("{}", row.text());
        }
        let reproduced = if names.is_empty() { Vec::new() } else { reproduced(folder)? };
        for one in &reproduced {
            print!("{}", one.text());
        }
        Ok(Self { rows, reproduced })
    }

    /// The marks that are not reached.
    pub(super) fn missed(&self) -> Vec<String> {
        let rows = self.rows.iter().flat_map(OrderRow::missed);
        rows.chain(self.reproduced.iter().filter_map(Reproduced::missed)).collect()
    }

    pub(super) fn json(&self) -> Value {
        json!({
            "steps": self.rows.iter().map(OrderRow::json).collect::<Vec<_>>(),
            "greedysnake": self.reproduced.iter().map(Reproduced::json).collect::<Vec<_>>(),
        })
    }
}

fn row(name: &str, folder: &Path, bounds: &Path) -> Result<OrderRow, Failure> {
    let trace = table::read_checkpointed(folder, name)?;
    let machine = machine(CAPACITY, None);
    let (mut orders, mut missing) = (Vec::new(), Vec::new());
    for order in OpOrder::ALL {
        let reordered = match order.of(&trace) {
            Ok(reordered) => reordered.trace,
            Err(error) => {
                missing.push((order, error.to_string()));
                continue;
            }
        };
        let options = TidelogOptions { planned: PLANNED, ..TidelogOptions::thorough() };
        let (found, planning) = timed(|| -> Result<_, Failure> {
            let mut search = Search::new(&reordered, &machine, options)?;
            search.run(|_| true)?;
            let (_, simulation) = search.best().ok_or("a search makes a plan")?;
            Ok((simulation.time.0, simulation.bytes.ssd_written.0))
        });
        let (time, written) = found?;
        orders.push(Ordered { order, time, written, planning });
    }
    let ideal = trace.duration().0;
    let best = orders.iter().map(|one| one.time).min().ok_or("its own order is one")?;
    let mut bound = ideal;
    for (kind, effort) in EFFORTS {
        let path = bounds.join(format!("{name}{kind}.json"));
        let search = || lower_bound(&trace, &machine, effort);
        let proof = certificate(&path, (&trace, &machine, &[]), search)?;
        bound = bound.max(proof.relaxation.value(&proof.prices)?.0);
        let is_limited_by_kernels = ratio(ideal, orders[0].time) > OVER_OWN;
        if is_limited_by_kernels || ratio(best, bound) <= OVER_OWN {
            break;
        }
    }
    let others = others(&trace)?;
    Ok(OrderRow { name: name.to_owned(), ideal, bound, orders, missing, others })
}

/// Plans by ZeRO-Infinity and `GreedySnake`, which both keep optimizer state on SSDs and gradients
/// in host memory, of which there is as much as on the published machine.
fn others(trace: &Trace) -> Result<Vec<Other>, Failure> {
    let machine = machine(CAPACITY, Some(ZERO_HOST_BYTES));
    let zero = match zero_infinity(trace, &machine) {
        Ok(step) => Ok(simulate(&step.trace, &machine, Policy::Planned(&step.plan))?.time.0),
        Err(error) => Err(error.to_string()),
    };
    let snake = greedysnake(trace, &machine);
    let snake = snake.map(|step| step.time.0).map_err(|error| error.to_string());
    Ok(vec![("zero-infinity", zero), ("greedysnake", snake)])
}

impl OrderRow {
    fn own(&self) -> u64 {
        self.orders[0].time
    }

    fn best(&self) -> &Ordered {
        self.orders.iter().min_by_key(|one| one.time).expect("its own order is one")
    }

    /// Returns whether transfers, not kernels, decide: no order takes less than the kernels.
    fn is_limited_by_ssds(&self) -> bool {
        ratio(self.ideal, self.bound) < OVER_OWN
    }

    /// The marks that it does not reach.
    fn missed(&self) -> Vec<String> {
        let best = self.best();
        let over_bound = ratio(best.time, self.bound);
        let mut missed = Vec::new();
        if self.is_limited_by_ssds() && over_bound > OVER_OWN {
            missed.push(format!(
                "{}: the best order ({}) takes {over_bound:.3} of what no plan in the program's order \
                 beats, at most {OVER_OWN}",
                self.name, best.order
            ));
        }
        if self.own() < self.bound {
            missed.push(format!("{}: a plan beats the bound", self.name));
        }
        missed
    }

    fn text(&self) -> String {
        let seconds = |time: u64| ratio(time, 1_000_000_000);
        let limit = if self.is_limited_by_ssds() { "SSDs" } else { "kernels" };
        let best = self.best();
        let mut text = format!(
            "{}, 80.0 GiB, SSD only: kernels take {:.2} s; no plan in the program's order takes less than {:.2} s; \
             the limit are {limit}\n",
            self.name,
            seconds(self.ideal),
            seconds(self.bound)
        );
        for one in &self.orders {
            let _ = writeln!(
                text,
                "    {:17} {:8.2} s, {:.3} of its own order, {:.3} of that order's bound, {} GB written, planned \
                 in {:.1} s{}",
                one.order.name(),
                seconds(one.time),
                ratio(one.time, self.own()),
                ratio(one.time, self.bound),
                gigabytes(one.written),
                one.planning,
                if one.order == best.order { "  <- best" } else { "" }
            );
        }
        for (order, why) in &self.missing {
            let _ = writeln!(text, "    {:17} {why}", order.name());
        }
        for (name, time) in &self.others {
            let _ = match time {
                Ok(time) => writeln!(
                    text,
                    "    {name:17} {:8.2} s, {:.2} x the best order (with host memory)",
                    seconds(*time),
                    ratio(*time, best.time)
                ),
                Err(why) => writeln!(text, "    {name:17} does not run: {why}"),
            };
        }
        text
    }

    fn json(&self) -> Value {
        let orders = self.orders.iter().map(|one| {
            json!({
                "order": one.order.name(), "time_ns": one.time, "ssd_written": one.written,
                "planning_s": one.planning,
            })
        });
        let others = self.others.iter().map(|(name, time)| match time {
            Ok(time) => json!({"policy": name, "time_ns": time}),
            Err(why) => json!({"policy": name, "does_not_run": why}),
        });
        let missing =
            self.missing.iter().map(|(order, why)| json!({"order": order.name(), "why": why}));
        json!({
            "set": self.name, "capacity": CAPACITY, "ideal_ns": self.ideal,
            "lower_bound_of_own_order_ns": self.bound, "limited_by_ssds": self.is_limited_by_ssds(),
            "orders": orders.collect::<Vec<_>>(), "others": others.collect::<Vec<_>>(),
            "no_such_order": missing.collect::<Vec<_>>(),
        })
    }

    /// A row of the page's table of orders.
    fn html(&self) -> String {
        let cell = |time: Option<u64>| {
            let text = time.map(|time| format!("{:.1}", ratio(time, 1_000_000_000)));
            format!("<td>{}</td>", text.unwrap_or_else(|| "–".to_owned()))
        };
        let of_order =
            |order: OpOrder| self.orders.iter().find(|one| one.order == order).map(|one| one.time);
        let mut html = format!("<tr><td>{}</td>", self.name);
        html += &cell(Some(self.ideal));
        html += &cell(Some(self.bound));
        let others = self.others.iter().map(|(_, time)| time.as_ref().ok().copied());
        for time in OpOrder::ALL.into_iter().map(of_order).chain(others) {
            html += &cell(time);
        }
        let best = ratio(self.best().time, self.own());
        let _ = write!(
            html,
            "<td>{best:.3}</td><td>{:.3}</td></tr>",
            ratio(self.best().time, self.bound)
        );
        html
    }
}

/// The page's table of orders: seconds a step.
pub(super) fn page(orders: &Orders) -> String {
    let rows = &orders.rows;
    let names: Vec<&str> = OpOrder::ALL.iter().map(|order| order.name()).collect();
    let headings = format!("<th>{}</th>", names.join("</th><th>"));
    format!(
        "<h2>Orders of the same ops</h2>\n<p class=\"quiet\">Seconds a step, 80 GiB, SSDs only; ZeRO-Infinity and \
         GreedySnake have {} GB of host memory, too.</p>\n<table><tr><th>step</th><th>kernels</th><th>bound of own \
         order</th>{headings}<th>ZeRO-Infinity</th><th>GreedySnake</th><th>best over own</th><th>best over own order's \
         bound</th></tr>\n{}</table>\n",
        gigabytes(ZERO_HOST_BYTES),
        rows.iter().map(OrderRow::html).collect::<String>()
    )
}
