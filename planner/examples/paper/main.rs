//! What `make paper` prints: every policy on every recorded set, the published figures beside, and
//! whether the project's own marks are reached. `paper TRACES OUTPUT.json [SET ...]` reads `*-stageN.json`
//! from the directory TRACES, and ends with status 1 where a figure falls short.

mod certificates;
mod marks;
mod output;

use certificates::certificate;
use marks::{SETS, Set};
use output::{print_cell, print_trace, report};
use std::path::Path;
use std::time::Instant;
use tidelog_planner::algorithm1::{self, Score, algorithm1};
use tidelog_planner::bound::Effort;
use tidelog_planner::cost::{HostLink, Machine, SsdLink};
use tidelog_planner::policies::flashneuron;
use tidelog_planner::simulate::{Policy, Simulation, simulate};
use tidelog_planner::tidelog::{self, Goal, Idea, tidelog};
use tidelog_planner::trace::Trace;
use tidelog_planner::units::{Bandwidth, Bytes, Nanos};

const GIB: u64 = 1 << 30;

/// 80 GiB, and 94 GB (87.5 GiB): both are called the capacity of an H100 NVL.
const CAPACITIES: [u64; 2] = [80 * GIB, 875 * GIB / 10];

const EFFORT: Effort = Effort { instants: 300, steps: 1500 };

/// The floor under bytes written is searched with less: it says what it proves, too.
const FLOOR_EFFORT: Effort = Effort { instants: 150, steps: 600 };

/// ns per byte written: twice what writing takes, so that time gives way to bytes.
const FLOOR_TOLL: f64 = 0.125;

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
    /// The fewest bytes that an iteration as long as tidelog's thriftiest must write.
    floor: Option<u64>,
    outcomes: Vec<Outcome>,
    /// Tidelog without one of its ideas.
    ablations: Vec<Outcome>,
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
            let bounds = Path::new(traces).with_file_name("bounds");
            std::fs::create_dir_all(&bounds)?;
            for capacity in CAPACITIES {
                for host in [false, true] {
                    let cell = plan(set, stage, &trace, capacity, host, &bounds)?;
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
    bounds: &Path,
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
    // Where what is left does not fit there is no row: that is the answer.
    if let Ok(plan) = flashneuron(trace, &machine) {
        let simulation = simulate(trace, &machine, Policy::Planned(&plan))?;
        outcomes.push(outcome("flashneuron", &simulation, 0.0));
    }
    for (name, goal) in [("tidelog", Goal::Time), ("tidelog, fewest bytes", Goal::Wear)] {
        let began = Instant::now();
        let options = tidelog::Options { goal, ..tidelog::Options::default() };
        let (_, simulation) = tidelog(trace, &machine, options)?;
        outcomes.push(outcome(name, &simulation, began.elapsed().as_secs_f64()));
    }
    let ideal = trace.duration().0;
    let mut cell = Cell {
        set,
        stage,
        capacity,
        host,
        ideal,
        bound: None,
        floor: None,
        outcomes,
        ablations: Vec::new(),
    };
    if host {
        return Ok(cell);
    }
    let file = |kind: &str| {
        bounds.join(format!("{}-stage{stage}-{}{kind}.json", set.name, capacity / GIB))
    };
    let proof = certificate(&file(""), trace, &machine, EFFORT, 0.0)?;
    cell.bound = Some(proof.relaxation.value(&proof.prices)?.0.max(ideal));
    if stage == 0 {
        let proof = certificate(&file("-toll"), trace, &machine, FLOOR_EFFORT, FLOOR_TOLL)?;
        let time = Nanos(cell.outcomes.last().map_or(ideal, |thrifty| thrifty.time));
        cell.floor = Some(proof.relaxation.written_at_least(&proof.prices, time)?.0);
        cell.ablations = ablations(trace, &machine)?;
    }
    Ok(cell)
}

/// The sweep's own plans, whole and without one idea each.
fn ablations(trace: &Trace, machine: &Machine) -> Result<Vec<Outcome>, Box<dyn std::error::Error>> {
    let ideas = [None].into_iter().chain(Idea::ALL.map(Some));
    ideas
        .map(|without| {
            let options =
                tidelog::Options { without, published: false, ..tidelog::Options::default() };
            let began = Instant::now();
            let (_, simulation) = tidelog(trace, machine, options)?;
            let name =
                without.map_or("nothing left out".to_owned(), |idea| format!("without {idea:?}"));
            Ok(outcome(&name, &simulation, began.elapsed().as_secs_f64()))
        })
        .collect()
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
