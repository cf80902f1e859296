//! `tidelog-bench`: see `tidelog-bench --help`.

use std::process::ExitCode;

use tidelog_bench::cli::{command, request, unknown};
use tidelog_command_line::ended_by;

fn main() -> ExitCode {
    let matches = match command().try_get_matches() {
        Ok(matches) => matches,
        Err(error) => {
            if let Some(error) = unknown(&error, std::env::args().skip(1)) {
                eprintln!("tidelog-bench: {error}");
                return error.exit().into();
            }
            return ended_by(&error);
        }
    };
    match request(&matches).and_then(|request| tidelog_bench::execute(&request)) {
        Ok(exit) => exit.into(),
        Err(error) => {
            eprintln!("tidelog-bench: {error}");
            error.exit().into()
        }
    }
}
