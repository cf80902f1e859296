//! The tables for people, and the file for programs.

use super::marks::{Published, Set};
use super::{Cell, GIB, Outcome, ratio};
use serde_json::{Value, json};
use tidelog_planner::lifetime::Lifetimes;
use tidelog_planner::trace::Trace;

pub(super) fn print_trace(set: &Set, stage: usize, trace: &Trace) {
    let peak = 100.0 * ratio(Lifetimes::of(trace).peak().0, 80 * GIB);
    let (ops, storages) = (trace.ops.len(), trace.storages.len());
    println!("{}, stage {stage}: {ops} kernels, {storages} storages", set.name);
    println!(
        "  peak {peak:.1} % of 80 GiB (published for the larger stage: {:.1} %)",
        set.published.peak_percent
    );
}

pub(super) fn print_cell(cell: &Cell) {
    let Published { ssd, ssd_and_host, zero_offload, zero_infinity, .. } = cell.set.published;
    let (kind, published) =
        if cell.host { ("SSD and host", ssd_and_host) } else { ("SSD only", ssd) };
    println!(
        "  {:.1} GiB, {kind}; published: TERAIO {published}, ZeRO-Offload {zero_offload}, ZeRO-Infinity {zero_infinity}",
        ratio(cell.capacity, GIB)
    );
    if let Some(bound) = cell.bound {
        println!("    {:31} {:6.1} % of ideal", "lower bound", 100.0 * ratio(cell.ideal, bound));
    }
    for one in cell.outcomes.iter().chain(&cell.ablations) {
        let over = cell
            .bound
            .map_or(String::new(), |bound| format!(", {:.3} x bound", ratio(one.time, bound)));
        let gigabytes = |bytes| ratio(bytes, 1_000_000_000);
        println!(
            "    {:31} {:6.1} % of ideal{over}, {:.0} GB written, {:.0} GB read, {} stalls, planned in {:.2} s",
            one.policy,
            100.0 * ratio(cell.ideal, one.time),
            gigabytes(one.written),
            gigabytes(one.read),
            one.stalled,
            one.planning,
        );
    }
    if let Some(floor) = cell.floor {
        let gigabytes = ratio(floor, 1_000_000_000);
        println!(
            "    {:31} {gigabytes:.0} GB in the time of tidelog with the fewest bytes",
            "write floor"
        );
    }
}

pub(super) fn report(cells: &[Cell], missed: &[String]) -> Value {
    let rows: Vec<Value> = cells
        .iter()
        .map(|cell| {
            json!({
                "set": cell.set.name, "stage": cell.stage, "capacity": cell.capacity,
                "host_memory": if cell.host { cell.set.host_gib * GIB } else { 0 },
                "ideal_ns": cell.ideal, "lower_bound_ns": cell.bound, "write_floor": cell.floor,
                "policies": rows_of(&cell.outcomes), "ablations": rows_of(&cell.ablations),
            })
        })
        .collect();
    json!({"cells": rows, "falls_short": missed})
}

fn rows_of(outcomes: &[Outcome]) -> Vec<Value> {
    let row = |one: &Outcome| {
        json!({
            "policy": one.policy, "time_ns": one.time, "ssd_written": one.written,
            "ssd_read": one.read, "stalled_ops": one.stalled, "planning_s": one.planning,
        })
    };
    outcomes.iter().map(row).collect()
}
