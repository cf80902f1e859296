//! `tidelog-plan`: see `tidelog-plan --help`.

mod cli;

use clap::{CommandFactory, Parser};
use cli::{Cli, Command, Inputs, Output, Policy};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use tidelog_planner::algorithm1::{Options, Score, algorithm1};
use tidelog_planner::bound::{Effort, lower_bound};
use tidelog_planner::cost::Machine;
use tidelog_planner::plan::{Plan, PlanError};
use tidelog_planner::simulate::{
    self, SimulateError, Simulation, report, simulate, with_expectations,
};
use tidelog_planner::tidelog::{self, tidelog};
use tidelog_planner::trace::{Trace, TraceError};
use tidelog_planner::units::Nanos;

const USAGE: u8 = 64;

const PLANNERS: [(&str, Policy); 4] = [
    ("algorithm1", Policy::Algorithm1),
    ("algorithm1, as printed", Policy::Algorithm1Printed),
    ("algorithm1, size x time", Policy::Algorithm1Benefit),
    ("tidelog", Policy::Tidelog),
];

/// Why nothing came out, with the file that is to blame.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("{file}: {source}")]
    Read { file: String, source: std::io::Error },
    #[error("{file}: {source}")]
    Trace { file: String, source: TraceError },
    #[error("{file} is not a machine: {source}; see tidelog-plan --help")]
    Machine { file: String, source: serde_json::Error },
    #[error("{file}: {source}")]
    Plan { file: String, source: PlanError },
    #[error("this machine cannot run the trace: {0}")]
    Simulate(#[from] SimulateError),
}

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come as "errors" too; a stream that is gone needs no answer.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(USAGE) } else { ExitCode::SUCCESS };
        }
    };
    match run(&cli) {
        Ok(text) => {
            // Whoever closed the stream early (`| head`) has seen enough.
            let _ = std::io::stdout().write_all(&text);
            ExitCode::SUCCESS
        }
        Err(failure) => {
            eprintln!("tidelog-plan: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(cli: &Cli) -> Result<Vec<u8>, Failure> {
    match &cli.command {
        Command::Plan(arguments) => {
            let (trace, machine) = read(&arguments.inputs)?;
            Ok(plan(&trace, &machine, arguments.policy)?.0.to_json().into_bytes())
        }
        Command::Simulate(arguments) => {
            let (trace, machine) = read(&arguments.inputs)?;
            let simulation = simulated(&trace, &machine, arguments.plan.as_deref())?;
            let row = row(&simulation.policy, &trace, &simulation);
            Ok(written(cli.output, &[row]))
        }
        Command::Compare(inputs) => compare(inputs, cli.output),
        Command::Report(arguments) => {
            let (trace, machine) = read(&arguments.inputs)?;
            let simulation = simulated(&trace, &machine, arguments.plan.as_deref())?;
            Ok(report(&trace, &machine, &simulation).to_html().into_bytes())
        }
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "tidelog-plan", &mut text);
            Ok(text)
        }
    }
}

fn compare(inputs: &Inputs, output: Output) -> Result<Vec<u8>, Failure> {
    let (trace, machine) = read(inputs)?;
    let bound = lower_bound(&trace, &machine, Effort::default()).time;
    let of_ideal = percent_of_ideal(&trace, bound);
    let mut rows =
        vec![json!({"policy": "lower bound", "time_ns": bound, "percent_of_ideal": of_ideal})];
    let reactive = simulate(&trace, &machine, simulate::Policy::Lru)?;
    rows.push(row("lru", &trace, &reactive));
    for (name, policy) in PLANNERS {
        rows.push(row(name, &trace, &plan(&trace, &machine, policy)?.1));
    }
    Ok(written(output, &rows))
}

fn plan(trace: &Trace, machine: &Machine, policy: Policy) -> Result<(Plan, Simulation), Failure> {
    let score = match policy {
        Policy::Tidelog => return Ok(tidelog(trace, machine, tidelog::Options::default())?),
        Policy::Algorithm1 => Score::PerTransferTime,
        Policy::Algorithm1Printed => Score::PerByte,
        Policy::Algorithm1Benefit => Score::Benefit,
    };
    let plan = algorithm1(trace, machine, Options { score, ..Options::default() });
    Ok(with_expectations(plan, trace, machine)?)
}

fn simulated(trace: &Trace, machine: &Machine, plan: Option<&Path>) -> Result<Simulation, Failure> {
    let Some(path) = plan else { return Ok(simulate(trace, machine, simulate::Policy::Lru)?) };
    let file = path.display().to_string();
    let plan = Plan::from_json(&text_of(path)?).map_err(|source| Failure::Plan { file, source })?;
    Ok(simulate(trace, machine, simulate::Policy::Planned(&plan))?)
}

fn read(inputs: &Inputs) -> Result<(Trace, Machine), Failure> {
    let file = inputs.trace.display().to_string();
    let trace = Trace::from_json(&text_of(&inputs.trace)?)
        .map_err(|source| Failure::Trace { file, source })?;
    let file = inputs.machine.display().to_string();
    let machine = serde_json::from_str(&text_of(&inputs.machine)?)
        .map_err(|source| Failure::Machine { file, source })?;
    Ok((trace, machine))
}

fn text_of(path: &Path) -> Result<String, Failure> {
    std::fs::read_to_string(path)
        .map_err(|source| Failure::Read { file: path.display().to_string(), source })
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

fn written(output: Output, rows: &[Value]) -> Vec<u8> {
    let text = match output {
        Output::Json => format!("{:#}\n", Value::from(rows.to_vec())),
        Output::Text => rows.iter().map(line).collect(),
    };
    text.into_bytes()
}

fn line(row: &Value) -> String {
    let bytes =
        |key: &str| row[key].as_u64().map(|bytes| tidelog_planner::units::Bytes(bytes).to_string());
    let moved = bytes("ssd_written").zip(bytes("ssd_read")).map_or(String::new(), |(out, back)| {
        format!(", {out} written, {back} read, {} ops waited", row["stalled_ops"])
    });
    let name = row["policy"].as_str().unwrap_or_default();
    let milliseconds = row["time_ns"].as_u64().unwrap_or_default() / 1_000_000;
    format!("{name:24} {milliseconds:>9} ms, {} % of ideal{moved}\n", row["percent_of_ideal"])
}
