//! `tidelog-format`: see `tidelog-format --help`.

use std::io::Write;
use std::process::ExitCode;

use tidelog_command_line::{finish, parse};
use tidelog_format::cli::FormatCli;
use tidelog_format::command;

fn main() -> ExitCode {
    let cli: FormatCli = match parse() {
        Ok(cli) => cli,
        Err(ended) => return ended,
    };
    let outcome = command::run(&cli.command);
    let (out, err) = outcome.rendered(cli.output);
    // If standard error is gone there is nobody to tell.
    let _ = std::io::stderr().write_all(err.as_bytes());
    finish("tidelog-format", &out, outcome.exit())
}
