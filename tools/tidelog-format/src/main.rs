//! `tidelog-format`: see `tidelog-format --help`.

use std::io::Write;
use std::process::ExitCode;

use clap::Parser;
use tidelog_format::cli::Cli;
use tidelog_format::command;
use tidelog_format::outcome::Exit;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version come as "errors" too; a stream that is gone needs no answer.
            let _ = error.print();
            return if error.use_stderr() { Exit::Usage } else { Exit::Clean }.into();
        }
    };
    let outcome = command::run(&cli.command);
    let (out, err) = outcome.rendered(cli.output);
    // Whoever closed the stream early (`| head`) has seen enough; the exit code still says how it went.
    let _ = std::io::stdout().write_all(out.as_bytes());
    let _ = std::io::stderr().write_all(err.as_bytes());
    outcome.exit().into()
}
