//! One trace on one machine: every policy, and what none can beat.

use super::certificates::certificate;
use super::sets::TracePart;
use super::{Failure, GIB, ratio};
use std::path::Path;
use tidelog_planner::algorithm1::{self, Score, algorithm1};
use tidelog_planner::bound::{Effort, lower_bound, write_floor};
use tidelog_planner::cost::{HostLink, Machine, SsdLink};
use tidelog_planner::hardware::{Drives, Hardware, MixedRate, settle};
use tidelog_planner::instances::freer;
use tidelog_planner::plan::PlannedBytes;
use tidelog_planner::policies::{ZeroError, ZeroStep, flashneuron, zero_infinity, zero_offload};
use tidelog_planner::report::simulated;
use tidelog_planner::simulate::{Policy, SimulateError, Simulation, simulate};
use tidelog_planner::tidelog::{Goal, Idea, Search, TidelogOptions, tidelog};
use tidelog_planner::trace::Trace;
use tidelog_planner::units::{Bandwidth, Bytes, Nanos};

pub(super) const EFFORT: Effort = Effort { instants: 2400, steps: 1500 };

/// The floor under bytes written needs fewer instants, since time plays no part in it, and more
/// steps.
const FLOOR_EFFORT: Effort = Effort { instants: 300, steps: 3000 };

const SCORES: [(&str, Score); 3] = [
    ("algorithm1, per transfer time", Score::PerTransferTime),
    ("algorithm1, as printed", Score::PerByte),
    ("algorithm1, size x time", Score::Benefit),
];

/// Limit of the pieces of storages in pieces.
const PIECE: Bytes = Bytes(64 << 20);

/// The plan of a search's first step.
pub(super) const AT_ONCE: &str = "tidelog, at once";

/// Tidelog's plan where the SSDs' reads and writes slow each other.
const HALF_DUPLEX: &str = "tidelog, half-duplex SSDs";

/// ZeRO may take all that the published machine had, half for each GPU.
pub(super) const ZERO_HOST_BYTES: u64 = 750_000_000_000;

/// One policy on one machine.
pub(super) struct PolicyResult {
    pub(super) policy: String,
    pub(super) time: u64,
    pub(super) bytes: PlannedBytes,
    pub(super) stalled: usize,
    /// Seconds of one core.
    pub(super) planning: f64,
    /// Host memory that a policy uses, where it says so.
    pub(super) host_memory: Option<u64>,
}

/// One trace on one machine.
pub(super) struct Cell {
    pub(super) part: TracePart,
    pub(super) capacity: u64,
    pub(super) host: bool,
    pub(super) ideal: u64,
    pub(super) bound: Option<u64>,
    /// The fewest bytes that an iteration no longer than the best published score's must write.
    pub(super) floor: Option<u64>,
    pub(super) outcomes: Vec<PolicyResult>,
    /// Policies that cannot run it, and why.
    pub(super) impossible: Vec<(&'static str, String)>,
    /// Tidelog without one of its ideas.
    pub(super) ablations: Vec<PolicyResult>,
    /// The shortest iteration that the search found, and those where there is more freedom.
    pub(super) shortest: u64,
    pub(super) freed: Vec<(&'static str, u64)>,
    /// The step as a page, of tidelog's plan.
    pub(super) page: Option<String>,
}

impl Cell {
    pub(super) fn title(&self) -> String {
        format!("{}, {}", self.part.title(), self.machine())
    }

    /// Returns whether the cell is the first stage on the first machine of its set.
    pub(super) fn is_first(&self) -> bool {
        self.part.is_first() && self.capacity == self.part.set.capacities[0]
    }

    /// Returns the result of a policy that every cell has.
    pub(super) fn find(&self, policy: &str) -> &PolicyResult {
        self.outcomes.iter().find(|one| one.policy == policy).expect("every cell has it")
    }

    /// The fastest of algorithm1's scores.
    pub(super) fn best_published(&self) -> &PolicyResult {
        let published = self.outcomes.iter().filter(|one| one.policy.starts_with("algorithm1"));
        published.min_by_key(|one| one.time).expect("every cell has them")
    }

    pub(super) fn machine(&self) -> String {
        let kind = if self.host { "SSD and host" } else { "SSD only" };
        format!("{:.1} GiB, {kind}", ratio(self.capacity, GIB))
    }
}

/// The recorded step, and the same with activation checkpointing.
pub(super) struct Traces {
    pub(super) plain: Trace,
    pub(super) checkpointed: Trace,
}

pub(super) fn plan(
    part: TracePart,
    traces: &Traces,
    capacity: u64,
    host: bool,
    bounds: &Path,
) -> Result<Cell, Failure> {
    let trace = &traces.plain;
    let machine = machine(capacity, host.then_some(part.set.host_gib * GIB));
    let mut cell = Cell {
        part,
        capacity,
        host,
        ideal: trace.duration().0,
        bound: None,
        floor: None,
        outcomes: vec![outcome("lru", &simulate(trace, &machine, Policy::Lru)?, 0.0)],
        impossible: Vec::new(),
        ablations: Vec::new(),
        shortest: 0,
        freed: Vec::new(),
        page: None,
    };
    published(&mut cell, traces, &machine)?;
    let (made, seconds) = timed(|| -> Result<_, SimulateError> {
        let mut search = Search::new(trace, &machine, TidelogOptions::thorough())?;
        search.advance(1)?;
        Ok(search)
    });
    let mut search = made?;
    let best = |search: &Search<'_>, goal| search.best_for(goal).expect("a step is done").1;
    cell.outcomes.push(outcome(AT_ONCE, &best(&search, Goal::default()), seconds));
    let (made, seconds) = timed(|| search.run(|_| true));
    made?;
    cell.shortest = search.prices()[0].time.0;
    for (name, goal) in [("tidelog", Goal::default()), ("tidelog, fewest bytes", Goal::Wear)] {
        let simulation = best(&search, goal);
        if goal == Goal::default() && cell.is_first() {
            cell.page = Some(simulated(trace, &machine, &simulation).to_html());
        }
        cell.outcomes.push(outcome(name, &simulation, seconds));
    }
    cell.outcomes.push(on_half_duplex_drives(trace, &machine)?);
    if host {
        return Ok(cell);
    }
    if cell.is_first() {
        for (what, trace, machine) in freer(trace, &machine, PIECE) {
            let mut search = Search::new(&trace, &machine, TidelogOptions::thorough())?;
            search.run(|_| true)?;
            cell.freed.push((what, search.prices()[0].time.0));
        }
    }
    let file = |kind: &str| bounds.join(format!("{}-{}{kind}.json", part.file(), capacity / GIB));
    let search = || lower_bound(trace, &machine, EFFORT);
    let proof = certificate(&file(""), (trace, &machine, &[]), search)?;
    cell.bound = Some(proof.relaxation.value(&proof.prices)?.0.max(cell.ideal));
    if part.set.published.is_none() {
        return Ok(cell);
    }
    let search = || write_floor(trace, &machine, FLOOR_EFFORT);
    let proof = certificate(&file("-written"), (trace, &machine, &[]), search)?;
    let time = Nanos(cell.best_published().time);
    cell.floor = Some(proof.relaxation.written_at_least(&proof.prices, time)?.0);
    // What takes long is not done twice: the second stage says little more than the first.
    if part.is_first() {
        cell.ablations = ablations(trace, &machine)?;
    }
    Ok(cell)
}

pub(super) fn machine(capacity: u64, host_memory: Option<u64>) -> Machine {
    let rate = Bandwidth(16_000_000_000);
    let host_rate = Bandwidth(50_000_000_000);
    Machine {
        budget: Bytes(capacity),
        staging: Bytes(0),
        ssd: SsdLink { read: rate, write: rate, latency: Nanos(80_000) },
        host: host_memory.map(|memory| HostLink {
            read: host_rate,
            write: host_rate,
            latency: Nanos(20_000),
            memory: Bytes(memory),
        }),
        verify: Bandwidth(1_000_000_000_000),
    }
}

/// Plans for drives that have no more for both directions than for one: each of `machine`'s rates
/// alone, half of each at once. Curves of real drives are not published as figures; a machine file
/// takes those that are measured.
fn on_half_duplex_drives(trace: &Trace, machine: &Machine) -> Result<PolicyResult, Failure> {
    let SsdLink { read, write, latency } = machine.ssd;
    let at_once = MixedRate { read: Bandwidth(read.0 / 2), write: Bandwidth(write.0 / 2) };
    let drives = Drives {
        read: Some(read),
        write: Some(write),
        latency_ns: Some(latency),
        mixed: vec![at_once],
        ..Drives::of("half duplex", 1)
    };
    let hardware = Hardware {
        name: String::new(),
        gpus: 1,
        memory: machine.budget,
        staging: machine.staging,
        verify: machine.verify,
        drives,
        pcie: None,
        host: machine.host,
    };
    let planner =
        |trace: &Trace, machine: &Machine| tidelog(trace, machine, TidelogOptions::default());
    let (made, seconds) = timed(|| settle(&hardware, trace, &planner));
    Ok(outcome(HALF_DUPLEX, &made?.2, seconds))
}

type Zero = fn(&Trace, &Machine) -> Result<ZeroStep, ZeroError>;

/// Runs the published policies. Where one cannot run the step, that is the answer.
fn published(cell: &mut Cell, traces: &Traces, machine: &Machine) -> Result<(), Failure> {
    let trace = &traces.plain;
    for (name, score) in SCORES {
        let options =
            algorithm1::Algorithm1Options { score, ..algorithm1::Algorithm1Options::default() };
        let (plan, seconds) = timed(|| algorithm1(trace, machine, options));
        let simulation = simulate(trace, machine, Policy::Planned(&plan))?;
        cell.outcomes.push(outcome(name, &simulation, seconds));
    }
    match flashneuron(trace, machine) {
        Ok(plan) => {
            let simulation = simulate(trace, machine, Policy::Planned(&plan))?;
            cell.outcomes.push(outcome("flashneuron", &simulation, 0.0));
        }
        Err(error) => cell.impossible.push(("flashneuron", error.to_string())),
    }
    if !cell.host {
        return Ok(());
    }
    let machine = self::machine(cell.capacity, Some(ZERO_HOST_BYTES));
    for (name, policy) in
        [("zero-offload", zero_offload as Zero), ("zero-infinity", zero_infinity as Zero)]
    {
        match policy(&traces.checkpointed, &machine) {
            Ok(ZeroStep { trace, plan, host_memory }) => {
                let simulation = simulate(&trace, &machine, Policy::Planned(&plan))?;
                let mut outcome = outcome(name, &simulation, 0.0);
                outcome.host_memory = Some(host_memory.0);
                cell.outcomes.push(outcome);
            }
            Err(error) => cell.impossible.push((name, error.to_string())),
        }
    }
    Ok(())
}

/// Tidelog's own plans, whole and without one idea each.
fn ablations(trace: &Trace, machine: &Machine) -> Result<Vec<PolicyResult>, Failure> {
    let ideas = [None].into_iter().chain(Idea::ALL.map(Some));
    ideas
        .map(|without| {
            let options = TidelogOptions { without, published: 0, ..TidelogOptions::default() };
            let (made, seconds) = timed(|| tidelog(trace, machine, options));
            let name =
                without.map_or("nothing left out".to_owned(), |idea| format!("without {idea:?}"));
            Ok(outcome(&name, &made?.1, seconds))
        })
        .collect()
}

fn outcome(policy: &str, simulation: &Simulation, planning: f64) -> PolicyResult {
    PolicyResult {
        policy: policy.to_owned(),
        time: simulation.time.0,
        bytes: simulation.bytes,
        stalled: simulation.stalls.len(),
        planning,
        host_memory: None,
    }
}

/// Runs `work`, and measures the seconds of a core that it took.
pub(super) fn timed<T>(work: impl FnOnce() -> T) -> (T, f64) {
    let began = (std::time::Instant::now(), on_core());
    let answer = work();
    let elapsed = match (began.1, on_core()) {
        (Some(before), Some(now)) => now - before,
        _ => began.0.elapsed().as_secs_f64(),
    };
    (answer, elapsed)
}

/// Returns the time that this thread has been on a core, where the system tells: what else runs
/// does not count then.
fn on_core() -> Option<f64> {
    let told = std::fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    let nanos: f64 = told.split_whitespace().next()?.parse().ok()?;
    Some(nanos / 1e9)
}
