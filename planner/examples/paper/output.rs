//! The tables for people, and the file for programs.

use super::cell::{Cell, PolicyResult, Traces};
use super::columns::{Column, columns, gigabytes};
use super::growth::Size;
use super::orders::Orders;
use super::sets::TracePart;
use super::small::Small;
use super::table::Table;
use super::{GIB, ratio};
use super::{host_updates, parts, recompute};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt::Write;
use tidelog_planner::lifetime::Lifetimes;

/// Results of all cells.
pub(super) struct Results {
    pub(super) cells: Vec<Cell>,
    pub(super) orders: Orders,
    pub(super) recomputed: Table<recompute::RecomputedRow>,
    pub(super) parts: Table<parts::PartedRow>,
    pub(super) hosted: Table<host_updates::HostRow>,
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

/// Returns the figure that the paper reports beside a policy of ours, if anything.
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
    if let Some(bound) = cell.bound {
        let _ = writeln!(
            text,
            "    {:31} {:6.1} % of ideal",
            "lower bound",
            percent_of_ideal(cell, bound)
        );
    }
    for one in cell.outcomes.iter().chain(&cell.ablations) {
        let _ = write!(text, "    {:31}", one.policy);
        for Column { words: [before, after], text: value, .. } in columns(cell, one) {
            if !["", "–"].contains(&value.as_str()) {
                let _ = write!(text, "{before}{value}{after}");
            }
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
    for (what, time) in &cell.freed {
        let over = ratio(*time, cell.shortest);
        let _ = writeln!(text, "    with {what:26} {over:6.3} x the shortest iteration found");
    }
    if let Some(floor) = cell.floor {
        let floor = gigabytes(floor);
        let _ = writeln!(
            text,
            "    {:31} {floor} GB written, proved for iterations no longer than the best published score's",
            "write floor"
        );
    }
    text
}

pub(super) fn small_in_words(small: &Small) -> String {
    format!(
        "{} small instances: {} runs beat the bound, which says more than the kernels' time in {}; of {} every plan was \
         tried: {} of tidelog's are the best, the worst takes {:.3} x the best; with more freedom {} of {} take longer\n",
        small.instances,
        small.beaten.len(),
        small.telling,
        small.enumerated,
        small.best,
        f64::from(small.worst_per_mille) / 1000.0,
        small.slower,
        small.freed
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
                "ablations": rows_of(cell, &cell.ablations), "shortest_ns": cell.shortest,
                "with_more_freedom_ns": cell.freed.iter().copied().collect::<BTreeMap<_, _>>(),
            })
        })
        .collect();
    json!({
        "cells": cells,
        "orders": results.orders.json(),
        "recompute": results.recomputed.json(),
        "parts": results.parts.json(),
        "host_updates": results.hosted.json(),
        "small_instances": results.small,
        "growth": results.sizes,
        "falls_short": results.missed,
        "out_of_reach": results.out_of_reach,
    })
}

fn rows_of(cell: &Cell, outcomes: &[PolicyResult]) -> Vec<Value> {
    let row = |one: &PolicyResult| {
        let of_row = [
            ("policy", json!(one.policy)),
            ("time_ns", json!(one.time)),
            ("published", json!(published_of(cell, &one.policy))),
        ];
        of_row
            .into_iter()
            .chain(columns(cell, one).into_iter().filter_map(|column| column.json))
            .collect()
    };
    outcomes.iter().map(row).collect()
}
