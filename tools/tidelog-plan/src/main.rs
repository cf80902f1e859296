//! `tidelog-plan`: see `tidelog-plan --help`.

mod cli;
mod command;
mod failure;
mod inputs;
mod progress;

use clap::{CommandFactory, Parser};
use cli::{Cli, Command};
use failure::{Exit, Failure};
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come as "errors" too; a stream that is gone needs no answer.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage.into() } else { ExitCode::SUCCESS };
        }
    };
    progress::tell_what_takes_long();
    match run(&cli).and_then(|text| print(text.as_bytes())) {
        Ok(()) => ExitCode::SUCCESS,
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
        Command::Completions { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Cli::command(), "tidelog-plan", &mut text);
            Ok(String::from_utf8_lossy(&text).into_owned())
        }
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
