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
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use tidelog_command_line::{PlanExit, completions, parse};

fn main() -> ExitCode {
    let cli: PlanCli = match parse() {
        Ok(cli) => cli,
        Err(ended) => return ended,
    };
    progress::tell_what_takes_long();
    match run(&cli).and_then(|text| print(text.as_bytes())) {
        Ok(()) => PlanExit::Done.into(),
        Err(failure) => {
            eprintln!("tidelog-plan: {failure}");
            failure.exit().into()
        }
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

fn print(text: &[u8]) -> Result<(), PlanFailure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        // Whoever closed the stream early (`| head`) has seen enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(PlanFailure::Output(error)),
        _ => Ok(()),
    }
}
