//! `tidelog-plan`: see `tidelog-plan --help`.

mod cli;
mod command;
mod failure;
mod inputs;
mod order;
mod progress;
mod recompute;

use cli::{PlanCli, PlanCommand};
use failure::PlanFailure;
use std::process::ExitCode;
use tidelog_command_line::{PlanExit, completions, fail, finish, parse};

const TOOL: &str = "tidelog-plan";

fn main() -> ExitCode {
    let cli: PlanCli = match parse() {
        Ok(cli) => cli,
        Err(ended) => return ended,
    };
    progress::tell_what_takes_long();
    match run(&cli) {
        Ok(text) => finish(TOOL, &text, PlanExit::Done),
        Err(failure) => fail(TOOL, cli.output, &failure.to_string(), "", failure.exit()),
    }
}

fn run(cli: &PlanCli) -> Result<String, PlanFailure> {
    match &cli.command {
        PlanCommand::Record(arguments) => command::record(arguments),
        PlanCommand::Plan(arguments) => command::plan(arguments),
        PlanCommand::Simulate(arguments) => command::simulate(arguments, cli.output),
        PlanCommand::Compare(inputs) => command::compare(inputs, cli.output),
        PlanCommand::Explain(arguments) => command::explain(arguments, cli.output),
        PlanCommand::Endurance(arguments) => command::endurance(arguments, cli.output),
        PlanCommand::Export(arguments) => command::export(arguments),
        PlanCommand::Report(arguments) => command::report(arguments),
        PlanCommand::Calibrate(arguments) => command::calibrate(arguments),
        PlanCommand::Completions { shell } => Ok(completions::<PlanCli>(*shell)),
    }
}
