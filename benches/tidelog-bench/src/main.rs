//! `tidelog-bench`: see `tidelog-bench --help`.

use std::process::ExitCode;

use tidelog_bench::cli::{command, request, unknown};
use tidelog_command_line::{ended_by, fail, form_of_errors};

const TOOL: &str = "tidelog-bench";

fn main() -> ExitCode {
    let arguments = || std::env::args().skip(1);
    let form = form_of_errors("--output-format", arguments());
    let done = match command().try_get_matches() {
        Ok(matches) => request(&matches).and_then(|request| tidelog_bench::execute(&request)),
        Err(error) => match unknown(&error, arguments()) {
            Some(error) => Err(error),
            None => return ended_by(TOOL, &error, form),
        },
    };
    match done {
        Ok(exit) => exit.into(),
        Err(error) => fail(TOOL, form, &error.to_string(), "", error.exit()),
    }
}
