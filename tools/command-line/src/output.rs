//! Output of tools, for people or for programs, and how they end where it gets lost.

use std::io::{self, ErrorKind, Write};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::exit::OUTPUT;
use crate::{OutputFormat, printable};

/// Writes to standard output. Whoever closed it early (`| head`) has seen enough.
///
/// # Errors
/// Nobody closed it, and what was written is not there.
pub fn print(text: &str) -> io::Result<()> {
    kept(io::stdout().lock().write_all(text.as_bytes()))
}

/// Says something on standard error. If that fails there is nobody to tell.
pub fn complain(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Prints what a tool has to say, and returns how the process ends: as `exit` says, or, if that is
/// success and the output is lost, with a code of its own.
pub fn finish(tool: &str, text: &str, exit: impl Into<u8>) -> ExitCode {
    ended(tool, print(text), exit.into())
}

/// Says why there is no answer, and returns how the process ends.
pub fn fail(
    tool: &str,
    form: OutputFormat,
    message: &str,
    help: &str,
    exit: impl Into<u8>,
) -> ExitCode {
    let exit = exit.into();
    if form == OutputFormat::Json {
        return finish(tool, &format!("{:#}\n", error_document(message, help, exit)), exit);
    }
    let said = format!("{tool}: {message}\n{help}");
    let lines: Vec<String> = said.lines().filter(|it| !it.is_empty()).map(printable).collect();
    complain(&lines.join("\n"));
    exit.into()
}

/// Returns the reason why there is no answer, for programs.
pub fn error_document(message: &str, help: &str, exit: u8) -> Value {
    json!({ "error": message, "help": help, "exit": exit })
}

/// Prints what came instead of a command line, and returns how the process ends.
pub fn ended_by(tool: &str, error: &clap::Error, form: OutputFormat) -> ExitCode {
    // Help and version come as "errors" too.
    if !error.use_stderr() {
        return ended(tool, kept(error.print()), 0);
    }
    let exit = crate::exit::USAGE;
    if form == OutputFormat::Text {
        let _ = error.print();
        return exit.into();
    }
    let text = error.to_string();
    let (message, help) = text.split_once("\n\n").unwrap_or((&text, ""));
    let message = message.strip_prefix("error: ").unwrap_or(message);
    fail(tool, form, message.trim(), help.trim(), exit)
}

/// Returns the format of errors for a command line that is invalid: JSON if this option says so
/// anywhere.
pub fn form_of_errors(option: &str, arguments: impl IntoIterator<Item = String>) -> OutputFormat {
    let mut arguments = arguments.into_iter().take_while(|it| it != "--");
    let is_json = |value: &str| value.split(',').any(|form| form == "json" || form == "json+");
    while let Some(argument) = arguments.next() {
        let value = match argument.strip_prefix(option) {
            Some("") => arguments.next(),
            Some(rest) => rest.strip_prefix('=').map(str::to_owned),
            None => None,
        };
        if value.is_some_and(|it| is_json(&it)) {
            return OutputFormat::Json;
        }
    }
    OutputFormat::Text
}

/// Keeps the errors of writing to standard output that are to be reported.
fn kept(written: io::Result<()>) -> io::Result<()> {
    match written.and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error),
        _ => Ok(()),
    }
}

fn ended(tool: &str, printed: io::Result<()>, exit: u8) -> ExitCode {
    let Err(error) = printed else { return exit.into() };
    complain(&format!("{tool}: standard output: {error}"));
    if exit == 0 { OUTPUT.into() } else { exit.into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_is_found_wherever_it_is_asked_for() {
        let form = |line: &str| form_of_errors("--output", line.split(' ').map(str::to_owned));
        for line in ["--output json bad", "bad --output=json", "a --output-format=x --output json"]
        {
            assert_eq!(form(line), OutputFormat::Json, "{line}");
        }
        for line in ["--output text json", "--output", "-- --output json", "--output-format=json"] {
            assert_eq!(form(line), OutputFormat::Text, "{line}");
        }
        let fio = ["--output-format=normal,json+".to_owned()];
        assert_eq!(form_of_errors("--output-format", fio), OutputFormat::Json);
    }
}
