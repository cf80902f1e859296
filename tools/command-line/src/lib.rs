//! Command lines of all tools: how they are read, the exit codes and their texts, sizes as people
//! write them, and names that are safe to print.

mod exit;
mod output;
mod quantity;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, ValueEnum};
use clap_complete::Shell;

pub use exit::{BenchExit, DoctorExit, FormatExit, PlanExit};
pub use output::{complain, ended_by, error_document, fail, finish, form_of_errors, print};
pub use quantity::parse_size;

/// Format of a tool's output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum OutputFormat {
    /// Text and tables for people
    #[default]
    #[value(alias = "table")]
    Text,
    /// JSON documents for programs, errors included where there is one to write
    Json,
}

/// Reads the command line of this process.
///
/// # Errors
/// How the process ends: it asked for help, which is printed, or makes no sense, which is said.
pub fn parse<C: Parser>() -> Result<C, ExitCode> {
    C::try_parse().map_err(|error| {
        let form = form_of_errors("--output", std::env::args().skip(1));
        ended_by(C::command().get_name(), &error, form)
    })
}

/// Returns whether this process may do everything, so that nobody is told to try that.
pub fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

/// The script that completes a tool's options in a shell.
pub fn completions<C: CommandFactory>(shell: Shell) -> String {
    completions_of(&mut C::command(), shell)
}

/// Returns the completions of a tool that makes its command itself.
pub fn completions_of(command: &mut clap::Command, shell: Shell) -> String {
    let (name, mut script) = (command.get_name().to_owned(), Vec::new());
    clap_complete::generate(shell, command, name, &mut script);
    String::from_utf8_lossy(&script).into_owned()
}

/// A word of a shell's command line that means this text.
pub fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_@%+=:,./-".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Names and labels from media and command lines, without what would write to the terminal on its
/// own account.
pub fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '\u{FFFD}' } else { c }).collect()
}
