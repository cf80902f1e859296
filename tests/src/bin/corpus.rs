//! The inputs of the fuzz targets: writes those that fuzzing begins with, and runs any without a
//! fuzzer.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use tidelog_tests::fuzzing::{corpus, mutant, run, seeds};

#[derive(Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Writes one good example of everything that is fuzzed, as FOLDER/TARGET/seed-NAME
    Seeds {
        /// Folder of the corpus
        folder: PathBuf,
    },
    /// Runs inputs of a target one after the other; ends in a panic where one breaks a rule
    Replay {
        /// The target
        target: String,
        /// The inputs
        #[arg(required = true)]
        inputs: Vec<PathBuf>,
    },
    /// Runs one mutant of a target's committed corpus, by its number
    Mutant {
        /// The target
        target: String,
        /// The number that the test `corpus` has told
        number: u64,
        /// Writes the mutant to this file first
        #[arg(long)]
        output: Option<PathBuf>,
    },
}

fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Seeds { folder } => write_seeds(&folder),
        Command::Replay { target, inputs } => replay(&target, &inputs),
        Command::Mutant { target, number, output } => {
            run_mutant(&target, number, output.as_deref())
        }
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

fn run_mutant(target: &str, number: u64, output: Option<&std::path::Path>) -> Result<(), String> {
    let bytes = mutant(&corpus(target), number);
    if let Some(path) = output {
        std::fs::write(path, &bytes)
            .map_err(|error| format!("cannot write {}: {error}", path.display()))?;
    }
    run(target, &bytes);
    Ok(())
}
