//! The inputs of the fuzz targets: writes those that fuzzing begins with, and runs any without a
//! fuzzer.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidelog_tests::fuzzing::{run, seeds};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Writes one good example of everything that is fuzzed, as FOLDER/TARGET/seed-NAME
    Seeds {
        /// Where the corpus is
        folder: PathBuf,
    },
    /// Runs inputs of a target one after the other; ends in a panic where one breaks a rule
    Replay {
        /// The target
        target: String,
        /// Its inputs
        #[arg(required = true)]
        inputs: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Seeds { folder } => write_seeds(&folder),
        Command::Replay { target, inputs } => replay(&target, &inputs),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidelog-corpus: {error}");
            ExitCode::FAILURE
        }
    }
}

fn write_seeds(folder: &std::path::Path) -> Result<(), String> {
    for seed in seeds() {
        let target = folder.join(seed.target);
        let path = target.join(format!("seed-{}", seed.name));
        std::fs::create_dir_all(&target)
            .and_then(|()| std::fs::write(&path, &seed.bytes))
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    Ok(())
}

fn replay(target: &str, inputs: &[PathBuf]) -> Result<(), String> {
    for input in inputs {
        let bytes = std::fs::read(input)
            .map_err(|error| format!("cannot read {}: {error}", input.display()))?;
        println!("{target}: {} ({} bytes)", input.display(), bytes.len());
        run(target, &bytes);
    }
    Ok(())
}
