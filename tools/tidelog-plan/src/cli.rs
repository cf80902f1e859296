//! The command line. Help and completions come from here.

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;

const AFTER_HELP: &str = "\
A trace is what one training step did: record one without hardware (planner/paper/record.py), or take the one that
an offload block wrote. A machine is a JSON file:
  {\"budget\": 85899345920, \"staging\": 0, \"verify\": 1000000000000,
   \"ssd\": {\"read\": 16000000000, \"write\": 16000000000, \"latency_ns\": 80000}}
in bytes, bytes per second and nanoseconds; \"host\" (read, write, latency_ns, memory) is optional.

Exit codes:
  0   done
  1   a file, a trace or a machine is not usable
  64  the command line makes no sense

Examples:
  tidelog-plan compare trace.json machine.json
      every policy beside the bound that none can beat
  tidelog-plan plan trace.json machine.json > plan.json
  tidelog-plan report trace.json machine.json --plan plan.json > report.html";

/// Plans what leaves GPU memory and when, simulates plans, and compares policies with what is possible.
#[derive(Debug, Parser)]
#[command(name = "tidelog-plan", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// How to write figures
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORM")]
    pub(crate) output: Output,
    /// What to do.
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// How figures are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Output {
    /// For people
    #[default]
    Text,
    /// For programs
    Json,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Make a plan and write it to standard output, with what its simulation found
    Plan(PlanArgs),
    /// Simulate one iteration in the steady state: under a plan, or on demand without one
    Simulate(SimulateArgs),
    /// Every policy on one trace and machine, and the lower bound
    Compare(Inputs),
    /// The HTML page of a simulation, to standard output; it needs no network
    Report(SimulateArgs),
    /// Completions for a shell, to standard output
    Completions {
        /// Which shell
        shell: Shell,
    },
}

/// What every command reads.
#[derive(Debug, Args)]
pub(crate) struct Inputs {
    /// A trace file
    pub(crate) trace: PathBuf,
    /// A machine file
    pub(crate) machine: PathBuf,
}

/// What to plan, and how.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) inputs: Inputs,
    /// Who plans
    #[arg(long, value_enum, default_value_t)]
    pub(crate) policy: Policy,
}

/// Who plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Policy {
    /// Tidelog's own
    #[default]
    Tidelog,
    /// TERAIO's algorithm 1, size x time over transfer time
    Algorithm1,
    /// TERAIO's algorithm 1, the score as its listing prints it
    Algorithm1Printed,
    /// TERAIO's algorithm 1, size x time
    Algorithm1Benefit,
}

/// What to simulate.
#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    #[command(flatten)]
    pub(crate) inputs: Inputs,
    /// A plan file; without one the least recently used leaves on demand
    #[arg(long)]
    pub(crate) plan: Option<PathBuf>,
}

#[cfg(test)]
mod tests {
    use super::Cli;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
