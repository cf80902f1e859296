//! `tidelog-plan`: see `tidelog-plan --help`.

mod cli;
mod command;
mod failure;
mod inputs;
mod progress;

use cli::{Cli, Command};
use failure::Failure;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;
use tidelog_command_line::{PlanExit, completions, parse};

fn main() -> ExitCode {
    let cli: Cli = match parse() {
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

fn run(cli: &Cli) -> Result<String, Failure> {
    match &cli.command {
        Command::Record(arguments) => command::record(arguments),
        Command::Plan(arguments) => command::plan(arguments),
        Command::Simulate(arguments) => command::simulate(arguments, cli.output),
        Command::Compare(inputs) => command::compare(inputs, cli.output),
        Command::Explain(arguments) => command::explain(arguments, cli.output),
        Command::Endurance(arguments) => command::endurance(arguments, cli.output),
        Command::Export(arguments) => command::export(arguments),
        Command::Report(arguments) => command::report(arguments),
        Command::Calibrate(arguments) => command::calibrate(arguments),
        Command::Completions { shell } => Ok(completions::<Cli>(*shell)),
    }
}

fn print(text: &[u8]) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text).and_then(|()| out.flush()) {
        // Whoever closed the stream early (`| head`) has seen enough.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(Failure::Output(error)),
        _ => Ok(()),
    }
}
