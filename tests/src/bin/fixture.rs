//! Makes the committed pool of the present format version: `tidelog-fixture`. Only while that
//! version is unreleased; a fixture of a released version never changes.

use std::process::ExitCode;

use tidelog_engine::layout::FORMAT_VERSION;
use tidelog_tests::fixture;

fn main() -> ExitCode {
    let into = fixture::directory().join(format!("pool-v{FORMAT_VERSION}"));
    match fixture::make(&into) {
        Ok(made) => {
            let tensors: usize = made.shares.iter().map(Vec::len).sum();
            println!("{tensors} tensors in {} shares", made.shares.len());
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("tidelog-fixture: {error}");
            ExitCode::FAILURE
        }
    }
}
