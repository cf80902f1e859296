//! The commands: each reads, asks the planner, and returns the text to print.

mod calibrate;
mod endurance;
mod explain;
mod record;
mod table;

use crate::cli::{Inputs, PartsName, PlanArgs, PolicyName, RecomputeName, ReportArgs, StepArgs};
use crate::failure::PlanFailure;
use crate::inputs::{
    LoadedStep, PLANNERS, best, bound, bound_of_all_choices, parts_after, planner, read, searched,
    searched_with,
};
use crate::order::orders;
use crate::recompute::steps;
use serde_json::{Value, json};
use tidelog_command_line::OutputFormat;
use tidelog_planner::export::chrome_trace;
use tidelog_planner::gpu_step::{Bridge, Constants, RangeEnd};
use tidelog_planner::order::OpOrder;
use tidelog_planner::report::simulated;
use tidelog_planner::simulate::{self, Simulation};
use tidelog_planner::tidelog::TidelogOptions;
use tidelog_planner::trace::Trace;
use tidelog_planner::units::{Bytes, Nanos};

pub(crate) use calibrate::calibrate;
pub(crate) use endurance::endurance;
pub(crate) use explain::explain;
pub(crate) use record::record;

pub(crate) fn plan(arguments: &PlanArgs) -> Result<String, PlanFailure> {
    if arguments.policy == PolicyName::Lru {
        return Err(PlanFailure::Usage(
            "policy lru makes no plan: choose another --policy".to_owned(),
        ));
    }
    let source = crate::cli::PlanSource { plan: None, policy: arguments.policy };
    let step = LoadedStep::read(&arguments.inputs, &source)?;
    if arguments.gpu_session {
        return plan_for_gpu_session(&step);
    }
    match arguments.write_budget {
        Some(terabytes) => endurance::plan_under(&step, terabytes),
        None => Ok(step.plan.as_ref().map_or(String::new(), |plan| step.file_of(plan))),
    }
}

/// The plan of a session on a GPU, which expects what that takes.
fn plan_for_gpu_session(step: &LoadedStep) -> Result<String, PlanFailure> {
    if step.policy != PolicyName::Tidelog || step.parts.is_some() {
        let why = "--gpu-session goes with --policy tidelog and whole storages alone";
        return Err(PlanFailure::Usage(why.to_owned()));
    }
    let constants = Constants::at(RangeEnd::Value);
    let gpu = Some(Bridge::Ordered.runtime(&constants));
    let options = TidelogOptions { gpu, ..TidelogOptions::thorough() };
    let search = searched_with(&step.trace, &step.machine, options, step.within)?;
    Ok(step.file_of(&best(&search).0))
}

pub(crate) fn simulate(arguments: &StepArgs, output: OutputFormat) -> Result<String, PlanFailure> {
    let step = LoadedStep::read(&arguments.inputs, &arguments.source)?;
    Ok(written(output, &[row(&step.simulation.policy, &step.trace, &step.simulation)]))
}

pub(crate) fn compare(inputs: &Inputs, output: OutputFormat) -> Result<String, PlanFailure> {
    let [order] = orders(inputs.order)[..] else {
        let why = "compare shows every policy in one order: name it, or see explain for all orders";
        return Err(PlanFailure::Usage(why.to_owned()));
    };
    let (program, file) = read(inputs)?;
    let is_best = inputs.recompute == RecomputeName::Best;
    if is_best && order != OpOrder::OWN {
        let why = "compare --recompute best has a bound for the program's own order alone";
        return Err(PlanFailure::Usage(why.to_owned()));
    }
    let trace = match steps(&program, &file.machine, inputs)?.into_iter().next() {
        Some(step) => step.trace,
        None => return Ok(String::new()),
    };
    // Of the best choice it is that of all: none beats it.
    let bound =
        if is_best { bound_of_all_choices(&program, &file)? } else { bound(&trace, &file)? };
    let machine = file.machine;
    let of_ideal = percent_of_ideal(&trace, bound);
    let mut rows =
        vec![json!({"policy": "lower bound", "time_ns": bound, "percent_of_ideal": of_ideal})];
    let reactive = simulate::simulate(&trace, &machine, simulate::Policy::Lru)?;
    rows.push(row("lru", &trace, &reactive));
    for (name, policy) in PLANNERS {
        if policy != PolicyName::Tidelog {
            rows.push(row(name, &trace, &planner(policy, inputs.within)(&trace, &machine)?.1));
            continue;
        }
        let search = searched(&trace, &machine, inputs.within)?;
        let (_, simulation) = best(&search);
        rows.push(row(name, &trace, &simulation));
        if inputs.parts == PartsName::Best {
            // The bound is one for parts, too: in the relaxed problem bytes move singly.
            let found = parts_after(&search, inputs.within)?;
            let simulation = found.map_or(simulation, |found| found.simulation);
            rows.push(row("tidelog, in parts", &trace, &simulation));
        }
    }
    Ok(written(output, &rows))
}

pub(crate) fn export(arguments: &StepArgs) -> Result<String, PlanFailure> {
    let step = LoadedStep::read(&arguments.inputs, &arguments.source)?;
    Ok(chrome_trace(&simulated(&step.trace, &step.machine, &step.simulation)))
}

pub(crate) fn report(arguments: &ReportArgs) -> Result<String, PlanFailure> {
    let step = LoadedStep::read(&arguments.step.inputs, &arguments.step.source)?;
    let mut report = simulated(&step.trace, &step.machine, &step.simulation);
    report.prices.clone_from(&step.prices);
    if !arguments.quick {
        report.bound = Some(bound(&step.trace, &step.file)?);
    }
    endurance::draw(&step, arguments, &mut report)?;
    Ok(report.to_html())
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn percent_of_ideal(trace: &Trace, time: Nanos) -> f64 {
    (1000.0 * trace.duration().0 as f64 / time.0.max(1) as f64).round() / 10.0
}

fn row(name: &str, trace: &Trace, simulation: &Simulation) -> Value {
    json!({
        "policy": name,
        "time_ns": simulation.time,
        "percent_of_ideal": percent_of_ideal(trace, simulation.time),
        "stall_ns": simulation.stall_time(),
        "stalled_ops": simulation.stalls.len(),
        "peak": simulation.peak,
        "ssd_written": simulation.bytes.ssd_written,
        "ssd_read": simulation.bytes.ssd_read,
        "host_written": simulation.bytes.host_written,
        "host_read": simulation.bytes.host_read,
    })
}

fn written(output: OutputFormat, rows: &[Value]) -> String {
    match output {
        OutputFormat::Json => format!("{:#}\n", Value::from(rows.to_vec())),
        OutputFormat::Text => rows.iter().map(line).collect(),
    }
}

fn line(row: &Value) -> String {
    let bytes = |key: &str| row[key].as_u64().map(|bytes| Bytes(bytes).to_string());
    let moved = bytes("ssd_written").zip(bytes("ssd_read")).map_or(String::new(), |(out, back)| {
        format!(", {out} written, {back} read, {} ops waited", row["stalled_ops"])
    });
    let name = row["policy"].as_str().unwrap_or_default();
    let milliseconds = row["time_ns"].as_u64().unwrap_or_default() / 1_000_000;
    format!("{name:24} {milliseconds:>9} ms, {} % of ideal{moved}\n", row["percent_of_ideal"])
}

/// Writes to a file, and prints nothing, where one is named.
fn write_or_print(path: Option<&std::path::Path>, text: String) -> Result<String, PlanFailure> {
    let Some(path) = path else { return Ok(text) };
    match std::fs::write(path, text) {
        Ok(()) => Ok(String::new()),
        Err(error) => Err(PlanFailure::Write { file: path.display().to_string(), source: error }),
    }
}
