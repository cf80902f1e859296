//! Makes the committed pools of the present format version and features: `tidelog-fixture`. Only
//! while those are unreleased; a fixture of what was released never changes.

use std::process::ExitCode;

use tidelog_engine::pool::Copies;
use tidelog_tests::fixture;

fn main() -> ExitCode {
    for (name, copies) in [(fixture::PRESENT, Copies::One), (fixture::WITH_COPIES, Copies::Two)] {
        match fixture::make(&fixture::directory().join(name), copies) {
            Ok(made) => {
                let tensors: usize = made.shares.iter().map(Vec::len).sum();
                println!("{name}: {tensors} tensors in {} shares", made.shares.len());
            }
            Err(error) => {
                eprintln!("tidelog-fixture: {name}: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}
