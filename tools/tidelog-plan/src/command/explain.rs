//! `explain`: why, and what if.

use super::table::table;
use crate::cli::{ExplainArgs, PolicyName};
use crate::failure::PlanFailure;
use crate::inputs::{LoadedStep, best, searched_in_parts, simulator};
use serde_json::json;
use std::fmt::{self, Write};
use tidelog_command_line::OutputFormat;
use tidelog_planner::explain::{
    MachineChange, OpAnswer, PartsAnswer, StorageAnswer, find, orders, recomputation, what_if,
};
use tidelog_planner::report::text::{bytes, factor, time};
use tidelog_planner::tidelog::PlanPrice;
use tidelog_planner::trace::{PlanStorage, Trace};
use tidelog_planner::units::{Nanos, OpIndex};

/// Number of the longest waits and of the most written storages that are explained without a
/// question.
const SHOWN: usize = 3;
/// Limit of listed storages that a name can mean.
const LISTED: usize = 10;
/// Approximate limit of plans that are shown with their costs.
const PRICES_SHOWN: usize = 6;

pub(crate) fn explain(
    arguments: &ExplainArgs,
    output: OutputFormat,
) -> Result<String, PlanFailure> {
    let step = LoadedStep::read(&arguments.step.inputs, &arguments.step.source)?;
    let case = step.case();
    let asked = !arguments.storage.is_empty() || !arguments.op.is_empty();
    let storages: Vec<PlanStorage> = if asked {
        let found = arguments.storage.iter().map(|text| one_of(&step.trace, text));
        found.collect::<Result<_, _>>()?
    } else {
        case.most_written().into_iter().take(SHOWN).map(|(storage, _)| storage).collect()
    };
    let ops = if asked {
        let found = arguments.op.iter().map(|number| op_of(&step.trace, *number));
        found.collect::<Result<_, _>>()?
    } else {
        case.longest_waits().into_iter().take(SHOWN).collect::<Vec<OpIndex>>()
    };
    let storages = storages
        .into_iter()
        .map(|storage| case.storage(storage))
        .collect::<Result<Vec<StorageAnswer>, _>>()?;
    let ops: Vec<OpAnswer> = ops.into_iter().map(|op| case.op(op)).collect();
    let changes =
        if asked || arguments.no_what_if { Vec::new() } else { changes(&step, arguments) };
    let found =
        what_if(&step.trace, &step.machine, &changes, &simulator(step.policy, step.within))?;
    let orders = if asked || arguments.no_what_if {
        Vec::new()
    } else {
        orders(&step.base, &step.machine, &simulator(step.policy, step.within))?
    };
    let recomputed = if asked || arguments.no_what_if {
        Vec::new()
    } else {
        let simulator = simulator(step.policy, step.within);
        recomputation(&step.program, step.order, &step.machine, &simulator)?
    };
    let parts = if asked || arguments.no_what_if { Vec::new() } else { parts(&step)? };
    if output == OutputFormat::Json {
        let answer = json!({
            "trace": step.trace.name,
            "policy": step.simulation.policy,
            "time_ns": step.simulation.time,
            "ideal_ns": step.trace.duration(),
            "stall_ns": step.simulation.stall_time(),
            "bytes": step.simulation.bytes,
            "waited": case.waited(),
            "ops": ops,
            "storages": storages,
            "what_if": found,
            "orders": orders,
            "recompute": recomputed,
            "parts": parts,
            "prices": step.prices,
        });
        return Ok(format!("{answer:#}\n"));
    }
    let mut text = String::new();
    if !asked {
        overview(&step, &mut text);
    }
    for (title, found) in [
        ("The longest waits\n", ops.iter().map(ToString::to_string).collect::<Vec<_>>()),
        ("What is written most\n", storages.iter().map(ToString::to_string).collect()),
    ] {
        if !asked && !found.is_empty() {
            text += title;
        }
        for answer in found {
            let _ = writeln!(text, "{answer}");
        }
    }
    if !found.is_empty() {
        text += "With other hardware, planned and simulated again\n";
        text += &found.iter().map(|one| compared(&step, one, one.time)).collect::<String>();
    }
    if !orders.is_empty() {
        text += "In other orders of the same ops, planned and simulated again (--order)\n";
        text += &orders.iter().map(|one| compared(&step, one, one.time)).collect::<String>();
        text += "  tidelog-plan compare --order NAME shows what no plan in that order can beat\n";
    }
    if !recomputed.is_empty() {
        text += "With other parts run again, planned and simulated again (--recompute)\n";
        text += &recomputed.iter().map(|one| compared(&step, one, one.time)).collect::<String>();
        text += "  tidelog-plan compare --recompute best shows what no plan with any of them can beat\n";
    }
    if !parts.is_empty() {
        text += "With parts of storages that move alone, planned and simulated again (--parts)\n";
        text += &parts.iter().map(|one| compared(&step, one, Some(one.time))).collect::<String>();
    }
    Ok(text)
}

/// Returns the gain of moving parts of storages over moving them whole. Nothing where our policy
/// does not plan: no other one plans parts.
fn parts(step: &LoadedStep) -> Result<Vec<PartsAnswer>, PlanFailure> {
    if step.policy != PolicyName::Tidelog {
        return Ok(Vec::new());
    }
    let (search, found) = searched_in_parts(&step.ordered, &step.machine, step.within)?;
    let whole = PartsAnswer::of("whole", &best(&search).1, (0, 0));
    let in_parts = match &found {
        Some(found) => PartsAnswer::of("best", &found.simulation, found.step.counts()),
        None => PartsAnswer { parts: "best", ..whole.clone() },
    };
    Ok(vec![whole, in_parts])
}

fn overview(step: &LoadedStep, text: &mut String) {
    let (length, ideal) = (step.simulation.time, step.trace.duration());
    let stall = step.simulation.stall_time();
    let _ = writeln!(
        text,
        "{}, {}: a step of {}, {} of the time without a budget; ops wait for {} of it",
        step.trace.name,
        step.simulation.policy,
        time(length),
        factor(length.0, ideal.0),
        time(stall)
    );
    let _ = writeln!(text, "{}", step.case().waited());
    prices(step, text);
}

/// Writes the times and written bytes of other plans.
fn prices(step: &LoadedStep, text: &mut String) {
    let few = PlanPrice::few(&step.prices, PRICES_SHOWN);
    let Some(chosen) = few.iter().find(|price| price.chosen).filter(|_| few.len() > 1) else {
        return;
    };
    *text += "The price of other plans: fewer bytes written take longer. This is the one with the fewest in about \
              the shortest time (1 % more)\n";
    let head = ["a step takes", "of this plan's", "writes", "of this plan's", ""];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for price in &few {
        let of_written = if chosen.written.0 == 0 {
            "–".to_owned()
        } else {
            factor(price.written.0, chosen.written.0)
        };
        rows.push(vec![
            time(price.time),
            factor(price.time.0, chosen.time.0),
            bytes(price.written),
            of_written,
            if price.chosen { "this plan" } else { "" }.to_owned(),
        ]);
    }
    *text += &table(&rows);
}

/// A line of what something else would bring, beside the step as it is.
fn compared(step: &LoadedStep, what: impl fmt::Display, time: Option<Nanos>) -> String {
    let now = step.simulation.time.0;
    let against = time
        .map_or_else(String::new, |then| format!(", {} of the step as it is", factor(then.0, now)));
    format!("  {what}{against}\n")
}

/// The changes that the machine allows: one SSD more and twice as many, more memory of each kind.
fn changes(step: &LoadedStep, arguments: &ExplainArgs) -> Vec<MachineChange> {
    let known = step.hardware.as_ref().map(|hardware| hardware.drives.count);
    let drives = arguments.drives.or(known);
    let more = arguments.memory;
    let ssds = drives.into_iter().flat_map(|present| {
        let mut wanted = vec![present + 1, 2 * present];
        wanted.dedup();
        wanted.into_iter().map(move |wanted| MachineChange::Ssds { present, wanted })
    });
    ssds.chain([MachineChange::Memory(more), MachineChange::HostMemory(more)]).collect()
}

fn one_of(trace: &Trace, text: &str) -> Result<PlanStorage, PlanFailure> {
    match find(trace, text).as_slice() {
        [one] => Ok(*one),
        [] => {
            Err(PlanFailure::NotFound(format!("no storage of the trace has {text:?} in its name")))
        }
        several => {
            let names = several.iter().take(LISTED).map(|storage| trace.label(*storage));
            let more = several.len().saturating_sub(LISTED);
            let rest = if more > 0 { format!("\n  and {more} more") } else { String::new() };
            Err(PlanFailure::NotFound(format!(
                "{text:?} can mean {} storages:\n  {}{rest}",
                several.len(),
                names.collect::<Vec<_>>().join("\n  ")
            )))
        }
    }
}

fn op_of(trace: &Trace, number: u32) -> Result<OpIndex, PlanFailure> {
    if (number as usize) < trace.ops.len() {
        return Ok(OpIndex(number));
    }
    let last = trace.ops.len() - 1;
    Err(PlanFailure::NotFound(format!("there is no op {number}: the trace has ops 0 to {last}")))
}
