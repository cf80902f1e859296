//! The tables for people, and the file for programs.

use super::cell::{Cell, PolicyResult, Traces};
use super::growth::Size;
use super::sets::TracePart;
use super::small::Small;
use super::{GIB, ratio};
use serde_json::{Value, json};
use std::fmt::Write;
use tidelog_planner::lifetime::Lifetimes;

/// Everything that came out.
pub(super) struct Results {
    pub(super) cells: Vec<Cell>,
    pub(super) small: Small,
    pub(super) sizes: Vec<Size>,
    pub(super) missed: Vec<String>,
    pub(super) out_of_reach: Vec<String>,
}

pub(super) fn about(part: TracePart, traces: &Traces) -> String {
    let peak = 100.0 * ratio(Lifetimes::of(&traces.plain).peak().0, 80 * GIB);
    let (ops, storages) = (traces.plain.ops.len(), traces.plain.storages.len());
    let published = part.set.published.map_or_else(
        || "held out while the policy was made".to_owned(),
        |known| format!("published for the larger stage: {:.1} %", known.peak_percent),
    );
    format!(
        "{}: {ops} kernels, {storages} storages, peak {peak:.1} % of 80 GiB ({published})",
        part.title()
    )
}

/// What the paper reports beside a policy of ours, if anything.
pub(super) fn published_of(cell: &Cell, policy: &str) -> Option<&'static str> {
    let known = cell.part.set.published?;
    match policy {
        "zero-offload" => Some(known.zero_offload),
        "zero-infinity" => Some(known.zero_infinity),
        "algorithm1, per transfer time" if cell.host => Some(known.ssd_and_host),
        "algorithm1, per transfer time" => Some(known.ssd),
        _ => None,
    }
}

pub(super) fn percent_of_ideal(cell: &Cell, time: u64) -> f64 {
    100.0 * ratio(cell.ideal, time)
}

pub(super) fn table(cell: &Cell) -> String {
    let mut text = format!("  {}\n", cell.machine());
    let gigabytes = |bytes| ratio(bytes, 1_000_000_000);
    if let Some(bound) = cell.bound {
        let _ = writeln!(
            text,
            "    {:31} {:6.1} % of ideal",
            "lower bound",
            percent_of_ideal(cell, bound)
        );
    }
    for one in cell.outcomes.iter().chain(&cell.ablations) {
        let over = cell
            .bound
            .map_or(String::new(), |bound| format!(", {:.3} x bound", ratio(one.time, bound)));
        let _ = write!(
            text,
            "    {:31} {:6.1} % of ideal{over}, {:.0} GB written, {:.0} GB read, {} stalls",
            one.policy,
            percent_of_ideal(cell, one.time),
            gigabytes(one.written),
            gigabytes(one.read),
            one.stalled,
        );
        if one.planning > 0.0 {
            let _ = write!(text, ", planned in {:.2} s", one.planning);
        }
        if let Some(host) = one.host_memory {
            let _ = write!(text, ", {:.0} GB of host memory", gigabytes(host));
        }
        if let Some(published) = published_of(cell, &one.policy) {
            let _ = write!(text, "; published: {published}");
        }
        text.push('\n');
    }
    for (policy, why) in &cell.impossible {
        let published = published_of(cell, policy)
            .map_or(String::new(), |known| format!("; published: {known}"));
        let _ = writeln!(text, "    {policy:31} does not run: {why}{published}");
    }
    if let Some(floor) = cell.floor {
        let floor = gigabytes(floor);
        let _ = writeln!(
            text,
            "    {:31} {floor:.0} GB written, proved for iterations no longer than the best published score's",
            "write floor"
        );
    }
    text
}

pub(super) fn small_in_words(small: &Small) -> String {
    format!(
        "{} small instances: {} runs beat the bound, which says more than the kernels' time in {}; of {} every plan was \
         tried: {} of tidelog's are the best, the worst takes {:.3} x the best\n",
        small.instances,
        small.beaten.len(),
        small.telling,
        small.enumerated,
        small.best,
        f64::from(small.worst_per_mille) / 1000.0
    )
}

pub(super) fn size_in_words(size: &Size) -> String {
    format!(
        "{} kernels, {} tensors: planned in {:.2} s, {:.2} GiB of memory",
        size.kernels, size.tensors, size.seconds, size.memory_gib
    )
}

pub(super) fn json(results: &Results) -> Value {
    let cells: Vec<Value> = results
        .cells
        .iter()
        .map(|cell| {
            let impossible: Vec<Value> = cell
                .impossible
                .iter()
                .map(|(policy, why)| json!({"policy": policy, "why": why}))
                .collect();
            json!({
                "set": cell.part.set.name, "stage": cell.part.stage, "capacity": cell.capacity,
                "host_memory": if cell.host { cell.part.set.host_gib * GIB } else { 0 },
                "ideal_ns": cell.ideal, "lower_bound_ns": cell.bound, "write_floor": cell.floor,
                "policies": rows_of(cell, &cell.outcomes), "does_not_run": impossible,
                "ablations": rows_of(cell, &cell.ablations),
            })
        })
        .collect();
    let small = &results.small;
    let sizes: Vec<Value> = results
        .sizes
        .iter()
        .map(|size| {
            json!({
                "kernels": size.kernels, "tensors": size.tensors, "planning_s": size.seconds,
                "memory_gib": size.memory_gib,
            })
        })
        .collect();
    json!({
        "cells": cells,
        "small_instances": {
            "instances": small.instances, "beaten": small.beaten, "enumerated": small.enumerated,
            "best": small.best, "worst_over_best_per_mille": small.worst_per_mille,
        },
        "growth": sizes,
        "falls_short": results.missed,
        "out_of_reach": results.out_of_reach,
    })
}

fn rows_of(cell: &Cell, outcomes: &[PolicyResult]) -> Vec<Value> {
    let row = |one: &PolicyResult| {
        json!({
            "policy": one.policy, "time_ns": one.time, "percent_of_ideal": percent_of_ideal(cell, one.time),
            "ssd_written": one.written, "ssd_read": one.read, "stalled_ops": one.stalled,
            "planning_s": one.planning, "host_memory": one.host_memory,
            "published": published_of(cell, &one.policy),
        })
    };
    outcomes.iter().map(row).collect()
}
