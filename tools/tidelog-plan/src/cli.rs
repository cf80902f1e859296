//! The command line. Help and completions come from here.

use clap::builder::PossibleValuesParser;
use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use std::path::PathBuf;
use std::time::Duration;
use tidelog_command_line::{OutputFormat, PlanExit, parse_size};
use tidelog_planner::hardware::known_drives;
use tidelog_planner::units::Bytes;

const ABOUT_INPUTS: &str = "\
A trace is what one training step did: record one without its hardware (tidelog-plan record), or use
one that an offload block wrote. A machine is a JSON file. It describes either the whole machine:
  {\"gpus\": 2, \"memory\": 85899345920, \"verify\": 1000000000000,
   \"drives\": {\"model\": \"990 PRO 2TB\", \"count\": 8, \"shared\": true},
   \"pcie\": {\"read\": 55000000000, \"write\": 55000000000},
   \"host\": {\"read\": 50000000000, \"write\": 50000000000, \"latency_ns\": 20000,
            \"memory\": 137438953472}}
or, without \"drives\", the part of it that one GPU has:
  {\"budget\": 85899345920, \"staging\": 0, \"verify\": 1000000000000,
   \"ssd\": {\"read\": 16000000000, \"write\": 16000000000, \"latency_ns\": 80000}}
in bytes, bytes per second and nanoseconds. \"pcie\" and \"host\" are optional. docs/plan.md has all
other fields.";

const EXAMPLES: &str = "\
Examples:
  tidelog-plan record gpt2-xl -o trace.json
      a training step of a model, without its weights and its GPU
  tidelog-plan compare trace.json machine.json
      every policy, and the lower bound that none can beat
  tidelog-plan plan trace.json machine.json > plan.json
  tidelog-plan plan trace.json machine.json --within 500ms > plan.json
      the best plan that half a second finds; without --within the search goes to its end
  tidelog-plan plan trace.json machine.json --order best > plan.json
      in whichever order of the step's ops is the fastest; the plan tells which that is
  tidelog-plan record llama3-8b --checkpointing -o trace.json
  tidelog-plan plan trace.json machine.json --recompute best > plan.json
      what is checkpointed is computed again, kept or moved, whichever is fastest
  tidelog-plan plan trace.json machine.json --parts best > plan.json
      parts of storages leave alone where that is better than all or nothing
  tidelog-plan explain trace.json machine.json --plan plan.json
      where the time goes, and what another SSD, more memory or another order would bring
  tidelog-plan explain trace.json machine.json --storage layers.3.mlp.up_proj.weight --op 912
  tidelog-plan endurance trace.json machine.json
      how long the drives last, and what a smaller write budget costs
  tidelog-plan report trace.json machine.json > report.html
  tidelog-plan export trace.json machine.json > step.json
      for ui.perfetto.dev or chrome://tracing";

/// Returns the text behind the options in the help.
fn after_help() -> String {
    [ABOUT_INPUTS, &PlanExit::help(), EXAMPLES].join("\n\n")
}

/// Plans what leaves GPU memory and when, simulates plans, explains them, and compares policies
/// with what is possible.
#[derive(Debug, Parser)]
#[command(name = "tidelog-plan", version, after_help = after_help())]
pub(crate) struct PlanCli {
    /// Format of figures
    #[arg(long, global = true, value_enum, default_value_t, value_name = "FORM")]
    pub(crate) output: OutputFormat,
    /// Command to run.
    #[command(subcommand)]
    pub(crate) command: PlanCommand,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum PlanCommand {
    /// Record the trace of a training step without its hardware (needs a Python with torch)
    Record(RecordArgs),
    /// Make a plan and write it to standard output, with what its simulation found
    Plan(PlanArgs),
    /// Simulate one iteration in the steady state
    Simulate(StepArgs),
    /// Compare every policy on one trace and machine with the lower bound
    Compare(Inputs),
    /// Explain why a tensor leaves, why a kernel waits, and what other hardware would bring
    Explain(ExplainArgs),
    /// Show terabytes a day, how long each drive lasts, and what writing less would cost
    Endurance(EnduranceArgs),
    /// Write the step as Chrome trace events to standard output (ui.perfetto.dev opens them)
    Export(StepArgs),
    /// Write the HTML page of a step to standard output; it needs no network
    Report(ReportArgs),
    /// Make a machine file from the JSON results of tidelog-bench
    Calibrate(CalibrateArgs),
    /// Write completions for a shell to standard output
    Completions {
        /// Shell of the completions
        shell: Shell,
    },
}

/// Inputs of every command.
#[derive(Debug, Args)]
pub(crate) struct Inputs {
    /// A trace file
    pub(crate) trace: PathBuf,
    /// A machine file
    pub(crate) machine: PathBuf,
    /// Time to look for a better plan: 300ms, 30s or 2m. Each plan that the command makes gets as
    /// much. Without it the search goes to its end, and ends with the same plan each time
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    pub(crate) within: Option<Duration>,
    /// Order in which the step's ops run. Every op reads the same bytes in each. "best" plans them
    /// all and takes the fastest; "explain" shows what each brings here
    #[arg(long, value_enum, default_value_t, value_name = "ORDER")]
    pub(crate) order: OrderName,
    /// Reruns of a step that was recorded with activation checkpointing, in its backward pass.
    /// "best" leaves out what is better kept than computed again; "explain" shows what each brings
    /// here
    #[arg(long, value_enum, default_value_t, value_name = "WHAT")]
    pub(crate) recompute: RecomputeName,
    /// Parts of storages: all of them move whole, or parts alone where that is better. Training
    /// moves them whole: a plan with parts can be simulated, not followed. "explain" shows what
    /// parts bring here
    #[arg(long, value_enum, default_value_t, value_name = "WHICH")]
    pub(crate) parts: PartsName,
}

/// Parts of a storage that may move.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PartsName {
    /// Move all of it or nothing
    #[default]
    Whole,
    /// A part of it, a multiple of 2 MiB, where that makes the step faster or writes less
    Best,
}

/// Reruns of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum RecomputeName {
    /// Run again what the program runs again
    #[default]
    Own,
    /// Nothing: all that the backward pass reads is kept
    None,
    /// Run again what makes the step fastest
    Best,
}

/// An order of ops by name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OrderName {
    /// Run as the program does
    #[default]
    Own,
    /// A parameter is updated just before it is used again, in the next forward pass: its state
    /// comes in while compute runs
    Lazy,
    /// A parameter is updated as soon as its gradient is complete: gradients never leave
    Early,
    /// All micro-batches pass a block of layers before the next block: parameters come in once a
    /// pass
    LayerWise,
    /// Both: layer-wise and lazy
    LayerWiseLazy,
    /// Both: layer-wise and early
    LayerWiseEarly,
    /// The fastest of all
    Best,
}

/// Source of the plan.
#[derive(Debug, Args)]
pub(crate) struct PlanSource {
    /// A plan file; without one a plan is made
    #[arg(long, value_name = "FILE", conflicts_with = "policy")]
    pub(crate) plan: Option<PathBuf>,
    /// Policy that plans
    #[arg(long, value_enum, default_value_t)]
    pub(crate) policy: PolicyName,
}

/// A step to look at.
#[derive(Debug, Args)]
pub(crate) struct StepArgs {
    #[command(flatten)]
    pub(crate) inputs: Inputs,
    #[command(flatten)]
    pub(crate) source: PlanSource,
}

/// Arguments of planning.
#[derive(Debug, Args)]
pub(crate) struct PlanArgs {
    #[command(flatten)]
    pub(crate) inputs: Inputs,
    /// Policy that plans
    #[arg(long, value_enum, default_value_t)]
    pub(crate) policy: PolicyName,
    /// Terabytes a day that one GPU may write to the SSDs; the fastest plan within them is made
    #[arg(long, value_name = "TB", conflicts_with = "gpu_session")]
    pub(crate) write_budget: Option<f64>,
    /// Plan for what a session on a GPU takes beside kernels and links: launches, requests,
    /// checksums, waits of the host (docs/plan.md has the model)
    #[arg(long)]
    pub(crate) gpu_session: bool,
}

/// Policy that plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum PolicyName {
    /// Tidelog's own
    #[default]
    Tidelog,
    /// TERAIO's algorithm 1, size x time over transfer time
    Algorithm1,
    /// TERAIO's algorithm 1, the score as its listing prints it
    Algorithm1Printed,
    /// TERAIO's algorithm 1, size x time
    Algorithm1Benefit,
    /// No plan: the least recently used storage leaves on demand
    Lru,
}

/// Arguments of an explanation.
#[derive(Debug, Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    pub(crate) step: StepArgs,
    /// A tensor by its name or a part of it, or "output 0 of op 17"; may be given several times
    #[arg(long, value_name = "NAME")]
    pub(crate) storage: Vec<String>,
    /// An op by its number in the trace; may be given several times
    #[arg(long, value_name = "NUMBER")]
    pub(crate) op: Vec<u32>,
    /// Number of SSDs that have the rates of the machine file, if the file does not say
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) drives: Option<u32>,
    /// Memory that a larger machine would add
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, default_value = "64GiB")]
    pub(crate) memory: Bytes,
    /// Leave out what other hardware would bring, which takes a new plan for each change
    #[arg(long)]
    pub(crate) no_what_if: bool,
}

/// Arguments on drives and their wear.
#[derive(Debug, Args)]
pub(crate) struct EnduranceArgs {
    #[command(flatten)]
    pub(crate) step: StepArgs,
    #[command(flatten)]
    pub(crate) drives: DriveArgs,
}

/// Drives that the machine file does not name.
#[derive(Debug, Args)]
pub(crate) struct DriveArgs {
    /// The drives, if the machine file names none
    #[arg(long, value_name = "MODEL", value_parser = models())]
    pub(crate) drive: Option<String>,
    /// Number of drives
    #[arg(long, value_name = "COUNT", default_value_t = 4, value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: u32,
    /// Bytes written to the drives for 100 bytes that the plan writes. Checksums, and tensors that
    /// are moved to free space, make it more (106 in a pool that is 80 % full)
    #[arg(long, value_name = "PERCENT", default_value_t = 100, value_parser = clap::value_parser!(u32).range(100..))]
    pub(crate) amplification: u32,
}

/// Arguments of the page.
#[derive(Debug, Args)]
pub(crate) struct ReportArgs {
    #[command(flatten)]
    pub(crate) step: StepArgs,
    #[command(flatten)]
    pub(crate) drives: DriveArgs,
    /// Leave out the lower bound and what writing less would cost, which take far longer than a
    /// plan
    #[arg(long)]
    pub(crate) quick: bool,
}

/// Arguments of a calibration: the measurements and the output.
#[derive(Debug, Args)]
pub(crate) struct CalibrateArgs {
    /// Results of tidelog-bench --output-format=json: only reads, only writes, and mixed, if any
    #[arg(required = true, value_name = "BENCH.json")]
    pub(crate) runs: Vec<PathBuf>,
    /// A machine file with "drives", for all that is not measured, such as memory and the drives'
    /// rating
    #[arg(long, value_name = "FILE")]
    pub(crate) base: Option<PathBuf>,
    /// The memory of each GPU, such as 80GiB, if there is no --base
    #[arg(long, value_name = "SIZE", value_parser = parse_memory, required_unless_present = "base")]
    pub(crate) memory: Option<Bytes>,
    /// The PCI address of a GPU, such as 0000:3b:00.0: the rate of its link limits each GPU
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) gpu_at: Option<String>,
    /// The folder in which the kernel shows the links of PCI devices
    #[arg(long, value_name = "FOLDER", default_value = "/sys")]
    pub(crate) sysfs: PathBuf,
    /// The model of the drives; the rating of a known model is filled in
    #[arg(long, value_name = "MODEL", default_value = "measured")]
    pub(crate) drive: String,
    /// File to write; standard output if it is not given
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output_file: Option<PathBuf>,
}

/// Arguments of a recording.
#[derive(Debug, Args)]
pub(crate) struct RecordArgs {
    /// A known model (gpt2-xl, mixtral-like, t5-large, vit-huge, resnet-152, ...; `list` shows
    /// them), a transformers configuration (config.json), or FILE.py:FUNCTION, a function that
    /// returns (model, inputs) on the meta device
    pub(crate) model: String,
    /// File to write; standard output if it is not given
    #[arg(short, long, value_name = "FILE")]
    pub(crate) output_file: Option<PathBuf>,
    /// The GPU: a100, h100-nvl, h200, rtx-4090, or a file like those in planner/machines
    #[arg(long, default_value = "h100-nvl")]
    pub(crate) gpu: String,
    /// Arithmetic: fp32, tf32, or bf16 with masters in fp32; default: as a config.json says by its
    /// dtype, else fp32
    #[arg(long, value_parser = ["fp32", "tf32", "bf16"])]
    pub(crate) precision: Option<String>,
    /// Samples in a micro-batch
    #[arg(long, default_value_t = 4)]
    pub(crate) micro_batch: u32,
    /// Micro-batches in a step
    #[arg(long, default_value_t = 1)]
    pub(crate) micro_batches: u32,
    /// Tokens in a sample
    #[arg(long, default_value_t = 1024)]
    pub(crate) sequence: u32,
    /// Save only the inputs of each layer and compute the rest again in the backward pass
    #[arg(long)]
    pub(crate) checkpointing: bool,
    /// GPUs that average gradients with each other
    #[arg(long, default_value_t = 1)]
    pub(crate) data_parallel: u32,
    /// The Python that has torch and the tidelog package [default: the one that this program was
    /// installed with, else python3]
    #[arg(long, value_name = "PROGRAM")]
    pub(crate) python: Option<PathBuf>,
}

/// Reads `300ms`, `30s`, `1.5m`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no time; write 300ms, 30s or 2m");
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let seconds = match unit.trim() {
        "ms" => 0.001,
        "s" => 1.0,
        "m" | "min" => 60.0,
        _ => return Err(wrong()),
    };
    let number: f64 = number.parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())
}

fn parse_memory(text: &str) -> Result<Bytes, String> {
    let memory = parse_size(text)?.0;
    // A number alone may be meant as GiB.
    if memory < 1 << 20 {
        Err(format!("this is {memory} bytes; write 80GiB"))
    } else {
        Ok(Bytes(memory))
    }
}

fn models() -> PossibleValuesParser {
    PossibleValuesParser::new(known_drives().into_iter().map(|drive| drive.model))
}

#[cfg(test)]
mod tests {
    use super::{PlanCli, parse_time};
    use clap::CommandFactory;
    use std::time::Duration;

    #[test]
    fn times_are_read_as_people_write_them() {
        for (text, millis) in
            [("300ms", 300), ("30s", 30_000), ("1.5m", 90_000), ("2 min", 120_000)]
        {
            assert_eq!(parse_time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "30", "s", "-1s", "1h", "1.2.3s", "99999999999999999999999m"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn the_help_has_sentences_only() {
        let help = super::after_help();
        assert!(help.lines().all(|line| line.is_empty() || line.contains([' ', ':'])), "{help}");
    }

    #[test]
    fn the_command_line_is_consistent() {
        PlanCli::command().debug_assert();
    }
}
