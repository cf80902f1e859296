//! `tidelog-format`: see `tidelog-format --help`.

use std::io::Write;
use std::process::ExitCode;

use tidelog_command_line::parse;
use tidelog_format::cli::FormatCli;
use tidelog_format::command;

fn main() -> ExitCode {
    let cli: FormatCli = match parse() {
        Ok(cli) => cli,
        Err(ended) => return ended,
    };
    let outcome = command::run(&cli.command);
    let (out, err) = outcome.rendered(cli.output);
    // Whoever closed the stream early (`| head`) has seen enough; the exit code still says how it
    // went.
    let _ = std::io::stdout().write_all(out.as_bytes());
    let _ = std::io::stderr().write_all(err.as_bytes());
    outcome.exit().into()
}
