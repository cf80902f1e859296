//! What `make paper` prints: every policy on every recorded set, the published figures beside, and
//! whether the project's own marks are reached. `paper TRACES OUTPUT.json [SET ...]` reads `*-stageN.json`
//! from the directory TRACES, and ends with status 1 where a figure falls short.

mod marks;

use marks::{Published, SETS, Set};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Instant;
use tidelog_planner::algorithm1::{self, Score, algorithm1};
use tidelog_planner::bound::{Effort, lower_bound};
use tidelog_planner::cost::{HostLink, Machine, SsdLink};
use tidelog_planner::lifetime::Lifetimes;
use tidelog_planner::simulate::{Policy, Simulation, simulate};
use tidelog_planner::tidelog::{self, tidelog};
use tidelog_planner::trace::Trace;
use tidelog_planner::units::{Bandwidth, Bytes, Nanos};

const GIB: u64 = 1 << 30;

/// 80 GiB, and 94 GB (87.5 GiB): both are called the capacity of an H100 NVL.
const CAPACITIES: [u64; 2] = [80 * GIB, 875 * GIB / 10];

const EFFORT: Effort = Effort { instants: 300, steps: 1500 };

const SCORES: [(&str, Score); 3] = [
    ("algorithm1, per transfer time", Score::PerTransferTime),
    ("algorithm1, as printed", Score::PerByte),
    ("algorithm1, size x time", Score::Benefit),
];

/// One policy on one machine.
struct Outcome {
    policy: String,
    time: u64,
    written: u64,
    read: u64,
    stalled: usize,
    planning: f64,
}

/// One trace on one machine.
struct Cell {
    set: &'static Set,
    stage: usize,
    capacity: u64,
    host: bool,
    ideal: u64,
    bound: Option<u64>,
    outcomes: Vec<Outcome>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [traces, output, names @ ..] = arguments.as_slice() else {
        return Err("usage: paper TRACES OUTPUT.json [SET ...]".into());
    };
    let wanted = |set: &&Set| names.is_empty() || names.iter().any(|name| name == set.name);
    let mut cells = Vec::new();
    let mut missed = Vec::new();
    for set in SETS.iter().filter(wanted) {
        for stage in 0..2 {
            let path = Path::new(traces).join(format!("{}-stage{stage}.json", set.name));
            let text = std::fs::read_to_string(&path)
                .map_err(|error| format!("{}: {error}; record it first", path.display()))?;
            let trace = Trace::from_json(&text)?;
            print_trace(set, stage, &trace);
            for capacity in CAPACITIES {
                for host in [false, true] {
                    let cell = plan(set, stage, &trace, capacity, host)?;
                    print_cell(&cell);
                    missed.extend(marks::missed(&cell));
                    cells.push(cell);
                }
            }
        }
    }
    std::fs::write(output, format!("{:#}\n", report(&cells, &missed)))?;
    for line in &missed {
        println!("falls short: {line}");
    }
    println!("{} figures in {output}, {} fall short", cells.len(), missed.len());
    std::process::exit(i32::from(!missed.is_empty()));
}

fn machine(set: &Set, capacity: u64, host: bool) -> Machine {
    let rate = Bandwidth(16_000_000_000);
    let host_rate = Bandwidth(50_000_000_000);
    let latency = Nanos(80_000);
    Machine {
        budget: Bytes(capacity),
        staging: Bytes(0),
        ssd: SsdLink { read: rate, write: rate, latency },
        host: host.then_some(HostLink {
            read: host_rate,
            write: host_rate,
            latency: Nanos(20_000),
            memory: Bytes(set.host_gib * GIB),
        }),
        verify: Bandwidth(1_000_000_000_000),
    }
}

fn plan(
    set: &'static Set,
    stage: usize,
    trace: &Trace,
    capacity: u64,
    host: bool,
) -> Result<Cell, Box<dyn std::error::Error>> {
    let machine = machine(set, capacity, host);
    let mut outcomes = vec![outcome("lru", &simulate(trace, &machine, Policy::Lru)?, 0.0)];
    for (name, score) in SCORES {
        let began = Instant::now();
        let options = algorithm1::Options { score, ..algorithm1::Options::default() };
        let plan = algorithm1(trace, &machine, options);
        let planning = began.elapsed().as_secs_f64();
        let simulation = simulate(trace, &machine, Policy::Planned(&plan))?;
        outcomes.push(outcome(name, &simulation, planning));
    }
    let began = Instant::now();
    let (_, simulation) = tidelog(trace, &machine, tidelog::Options::default())?;
    outcomes.push(outcome("tidelog", &simulation, began.elapsed().as_secs_f64()));
    let bound = (!host).then(|| lower_bound(trace, &machine, EFFORT).time.0);
    let ideal = trace.duration().0;
    Ok(Cell { set, stage, capacity, host, ideal, bound, outcomes })
}

fn outcome(policy: &str, simulation: &Simulation, planning: f64) -> Outcome {
    Outcome {
        policy: policy.to_owned(),
        time: simulation.time.0,
        written: simulation.bytes.ssd_written.0,
        read: simulation.bytes.ssd_read.0,
        stalled: simulation.stalls.len(),
        planning,
    }
}

#[allow(clippy::cast_precision_loss, reason = "for people")]
fn ratio(one: u64, other: u64) -> f64 {
    one as f64 / other as f64
}

fn print_trace(set: &Set, stage: usize, trace: &Trace) {
    let peak = 100.0 * ratio(Lifetimes::of(trace).peak().0, 80 * GIB);
    let (ops, storages) = (trace.ops.len(), trace.storages.len());
    println!("{}, stage {stage}: {ops} kernels, {storages} storages", set.name);
    println!(
        "  peak {peak:.1} % of 80 GiB (published for the larger stage: {:.1} %)",
        set.published.peak_percent
    );
}

fn print_cell(cell: &Cell) {
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
    for one in &cell.outcomes {
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
}

fn report(cells: &[Cell], missed: &[String]) -> Value {
    let rows: Vec<Value> = cells
        .iter()
        .map(|cell| {
            let outcomes: Vec<Value> = cell
                .outcomes
                .iter()
                .map(|one| {
                    json!({
                        "policy": one.policy, "time_ns": one.time, "ssd_written": one.written,
                        "ssd_read": one.read, "stalled_ops": one.stalled, "planning_s": one.planning,
                    })
                })
                .collect();
            json!({
                "set": cell.set.name, "stage": cell.stage, "capacity": cell.capacity,
                "host_memory": if cell.host { cell.set.host_gib * GIB } else { 0 },
                "ideal_ns": cell.ideal, "lower_bound_ns": cell.bound, "policies": outcomes,
            })
        })
        .collect();
    json!({"cells": rows, "falls_short": missed})
}
