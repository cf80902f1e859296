//! Gain by updates on the host: steps in which each parameter's update runs there or on the GPU,
//! whichever is best, beside all and none of them, ZeRO-Infinity, and what no plan of any choice
//! can beat.

use super::cell::{ZERO_HOST_BYTES, machine, timed};
use super::certificates::certificate;
use super::columns::gigabytes;
use super::orders::{CAPACITY, PLANNED};
use super::table::{self, Table, TableRow};
use super::{Failure, ratio};
use serde_json::{Value, json};
use std::fmt::Write;
use std::path::Path;
use tidelog_planner::bound::{Effort, with_skips};
use tidelog_planner::cost::{HostLink, Machine};
use tidelog_planner::gpu_step::{Constants, RangeEnd};
use tidelog_planner::order::{
    HostProcessor, HostStep, HostUpdates, MicroBatches, OpOrder, Updates,
};
use tidelog_planner::policies::zero_infinity;
use tidelog_planner::simulate::{Policy, simulate};
use tidelog_planner::tidelog::{QUICK_STEPS, TidelogOptions, step_cost};
use tidelog_planner::trace::Trace;
use tidelog_planner::units::{Bandwidth, Bytes, Nanos};

const EFFORT: Effort = Effort { instants: 600, steps: 1000 };

/// Number of choices that are planned in full, of those that look best after a short search.
const PLANNED_IN_FULL: usize = 3;

/// Steps that are planned so.
const STEPS: [&str; 4] = ["llama3-8b-m1", "llama3-8b-m4", "granite-8b-m1", "llama3-70b-m1"];

/// A step with some of its updates on the host.
struct Outcome {
    on_host: usize,
    time: u64,
    written: u64,
}

/// A step in one order: with no update on the host, with all, and with the best choice.
struct InOrder {
    order: OpOrder,
    none: Option<Outcome>,
    all: Option<Outcome>,
    best: Outcome,
    /// Seconds of a core for the best.
    planning: f64,
}

/// A step.
pub(super) struct HostRow {
    name: String,
    updates: usize,
    kernels: u64,
    /// Lower bound of plans in the program's order, wherever updates run.
    bound: u64,
    orders: Vec<InOrder>,
    /// Time of ZeRO-Infinity, or why it does not run the step.
    zero: Result<u64, String>,
}

/// The name of all steps of this table, and what the name of one begins with.
pub(super) const ALL: &str = "host-updates";

pub(super) fn names() -> Vec<String> {
    STEPS.map(str::to_owned).to_vec()
}

/// Returns the name of a step on the command line.
pub(super) fn asked_as(name: &str) -> String {
    format!("{ALL}:{name}")
}

pub(super) fn row(name: &str, folder: &Path, bounds: &Path) -> Result<HostRow, Failure> {
    let trace = table::read_checkpointed(folder, name)?;
    let machine = machine(CAPACITY, Some(ZERO_HOST_BYTES));
    let host = machine.host.ok_or("the machine has host memory")?;
    let updates = HostUpdates::of(&trace, OpOrder::OWN)?;
    let groups = updates.skippable(processor(host));
    let path = bounds.join(format!("{name}-host-updates.json"));
    let search = || with_skips(updates.base(), &machine, EFFORT, &groups);
    let proof = certificate(&path, (updates.base(), &machine, &groups), search)?;
    let early = OpOrder { micro_batches: MicroBatches::Own, updates: Updates::Early };
    let orders = [OpOrder::OWN, early].map(|order| in_order(order, &trace, &machine, host));
    let zero = match zero_infinity(&trace, &machine) {
        Ok(step) => Ok(simulate(&step.trace, &machine, Policy::Planned(&step.plan))?.time.0),
        Err(error) => Err(error.to_string()),
    };
    Ok(HostRow {
        name: name.to_owned(),
        updates: updates.choosable().len(),
        kernels: trace.duration().0,
        bound: proof.relaxation.value(&proof.prices)?.0,
        orders: orders.into_iter().collect::<Result<_, _>>()?,
        zero,
    })
}

fn processor(host: HostLink) -> HostProcessor {
    let memory: Bandwidth = Constants::at(RangeEnd::Value).host_update();
    HostProcessor { memory, out: host.write, back: host.read }
}

fn in_order(
    order: OpOrder,
    trace: &Trace,
    machine: &Machine,
    host: HostLink,
) -> Result<InOrder, Failure> {
    let updates = HostUpdates::of(trace, order)?;
    let planned = |trace: &Trace, step: Option<&HostStep>, steps: u64| -> Result<_, Failure> {
        let kept = step.map_or(Bytes(0), |step| step.kept);
        let Some(memory) = host.memory.0.checked_sub(kept.0) else { return Ok(None) };
        let left = HostLink { memory: Bytes(memory), ..host };
        let machine = Machine { host: Some(left), ..*machine };
        let options = TidelogOptions { planned: PLANNED, ..TidelogOptions::thorough() };
        Ok(step_cost(trace, &machine, options, steps)?)
    };
    let in_full = |on_host: &[u32]| -> Result<Option<Outcome>, Failure> {
        let step = updates.on_host(on_host, processor(host))?;
        let trace = step.as_ref().map_or(updates.base(), |step| &step.trace);
        let found = planned(trace, step.as_ref(), u64::MAX)?;
        let on_host = on_host.len();
        Ok(found.map(|(time, written)| Outcome { on_host, time: time.0, written: written.0 }))
    };
    let none = in_full(&[])?;
    let all = in_full(&updates.choosable())?;
    let (found, planning) = timed(|| -> Result<Vec<Outcome>, Failure> {
        let quick = |trace: &Trace, step: Option<&HostStep>| -> Result<_, Failure> {
            planned(trace, step, QUICK_STEPS).map(|found: Option<(Nanos, Bytes)>| found)
        };
        let found = updates.choose(processor(host), quick)?;
        let few = found.iter().take(PLANNED_IN_FULL).map(|choice| in_full(&choice.on_host));
        Ok(few.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    });
    let ends = [&none, &all].into_iter().flatten().map(|end| Outcome { ..*end });
    let best = found?.into_iter().chain(ends).min_by_key(|one| (one.time, one.written));
    Ok(InOrder { order, none, all, best: best.ok_or("no choice runs")?, planning })
}

impl TableRow for HostRow {
    fn missed(&self) -> Vec<String> {
        let beaten = self.orders[0].best.time < self.bound;
        beaten
            .then(|| format!("{}: a plan beats the bound wherever updates run", self.name))
            .into_iter()
            .collect()
    }

    fn text(&self) -> String {
        let seconds = |time: u64| ratio(time, 1_000_000_000);
        let mut text = format!(
            "{}, 80.0 GiB, SSD and {} GB of host memory: kernels take {:.2} s; no plan in the program's order takes \
             less than {:.2} s, wherever its {} updates run\n",
            self.name,
            gigabytes(ZERO_HOST_BYTES),
            seconds(self.kernels),
            seconds(self.bound),
            self.updates,
        );
        for one in &self.orders {
            let of = |outcome: &Outcome| {
                let (time, written) = (seconds(outcome.time), gigabytes(outcome.written));
                format!("{time:.2} s ({written} GB written)")
            };
            let or_none =
                |outcome: &Option<Outcome>| outcome.as_ref().map_or("does not run".to_owned(), of);
            let is_own = one.order == OpOrder::OWN;
            let _ = writeln!(
                text,
                "    {:17} none {}, all {}, best {} with {} of {} on the host, found in {:.1} s{}",
                one.order.name(),
                or_none(&one.none),
                or_none(&one.all),
                of(&one.best),
                one.best.on_host,
                self.updates,
                one.planning,
                if is_own {
                    format!(", {:.3} of the bound", ratio(one.best.time, self.bound))
                } else {
                    String::new()
                }
            );
        }
        let _ = match &self.zero {
            Ok(time) => writeln!(text, "    zero-infinity     {:8.2} s", seconds(*time)),
            Err(why) => writeln!(text, "    zero-infinity     does not run: {why}"),
        };
        text
    }

    fn json(&self) -> Value {
        let outcome = |one: &Outcome| json!({"on_host": one.on_host, "time_ns": one.time, "ssd_written": one.written});
        let orders = self.orders.iter().map(|one| {
            json!({
                "order": one.order.name(), "none": one.none.as_ref().map(outcome),
                "all": one.all.as_ref().map(outcome), "best": outcome(&one.best),
                "planning_s": one.planning,
            })
        });
        json!({
            "set": self.name, "capacity": CAPACITY, "host_memory": ZERO_HOST_BYTES,
            "updates": self.updates, "kernels_ns": self.kernels,
            "lower_bound_of_all_choices_ns": self.bound, "orders": orders.collect::<Vec<_>>(),
            "zero_infinity_ns": self.zero.as_ref().ok(),
        })
    }

    /// One for each order.
    fn html(&self) -> String {
        let cell =
            |outcome: Option<&Outcome>| table::cells(outcome.map(|one| (one.time, one.written)));
        let zero = self.zero.as_ref().map_or("–".to_owned(), |time| table::seconds(*time));
        let mut html = String::new();
        for one in &self.orders {
            let is_own = one.order == OpOrder::OWN;
            let bound = if is_own { table::seconds(self.bound) } else { "–".to_owned() };
            let _ = write!(
                html,
                "<tr><td>{}</td><td>{}</td><td>{}</td>{}{}{}<td>{} of {}</td><td>{bound}</td><td>{zero}</td></tr>",
                self.name,
                one.order,
                table::seconds(self.kernels),
                cell(one.none.as_ref()),
                cell(one.all.as_ref()),
                cell(Some(&one.best)),
                one.best.on_host,
                self.updates,
            );
        }
        html
    }
}

/// The page's table: seconds a step, GB written.
pub(super) fn page(updates: &Table<HostRow>) -> String {
    let Some(rows) = updates.html() else { return String::new() };
    format!(
        "<h2>Updates on the host</h2>\n<p class=\"quiet\">Seconds a step and GB written, 80 GiB, SSDs and {} GB of \
         host memory, with activation checkpointing. The bound holds wherever updates run, in the program's \
         order.</p>\n<table><tr><th>step</th><th>order</th><th>kernels</th><th>none on the host</th><th>GB</th>\
         <th>all</th><th>GB</th><th>best</th><th>GB</th><th>on the host</th><th>bound</th><th>ZeRO-Infinity</th></tr>\n\
         {rows}</table>\n",
        gigabytes(ZERO_HOST_BYTES)
    )
}
