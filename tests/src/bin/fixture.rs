//! Makes the committed pool of the present format version and features: `tidelog-fixture`. Only
//! while those are unreleased; a fixture of what was released never changes.

use std::process::ExitCode;

use tidelog_tests::fixture;

fn main() -> ExitCode {
    let into = fixture::directory().join(fixture::PRESENT);
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
