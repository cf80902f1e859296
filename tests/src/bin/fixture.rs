//! Makes the committed pools of the present format version and features: `tidelog-fixture`. Only
//! while those are unreleased; a fixture of what was released never changes.

use std::process::ExitCode;

use tidelog_tests::fixture::{self, FixtureKind};

fn main() -> ExitCode {
    for kind in FixtureKind::ALL {
        let name = kind.name();
        match fixture::make(&fixture::directory().join(name), kind) {
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
