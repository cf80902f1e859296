//! Many threads on one pool, every byte compared: `tidelog-storm --operations 1000000`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::path::sim::{SimDisk, SimProfile};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool};
use tidelog_engine::units::ByteCount;
use tidelog_tests::storm::{StormOptions, storm};

/// Mixed puts, reads, comparisons and deletions of many threads on one pool: every byte that is
/// read is compared, and every ticket has to end. Ends with 1 where one does not.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Operations of all threads together.
    #[arg(long, default_value_t = 1_000_000)]
    operations: u64,
    /// Threads.
    #[arg(long, default_value_t = 16)]
    threads: u64,
    /// Operations that each thread has in flight at most; a thread has 16 tensors.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..16))]
    in_flight: u32,
    /// Decides what is done.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Make the pool of two files in this directory, not of disks in memory.
    #[arg(long)]
    directory: Option<PathBuf>,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let begun = Instant::now();
    match run(&arguments) {
        Ok(text) => {
            println!("{text}; {:.1} s", begun.elapsed().as_secs_f64());
            ExitCode::SUCCESS
        }
        Err(what) => {
            eprintln!("tidelog-storm: seed {}: {what}", arguments.seed);
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<String, String> {
    let pool = open(arguments.directory.as_ref()).map_err(|error| error.to_string())?;
    let Arguments { threads, operations, seed, .. } = *arguments;
    let in_flight = arguments.in_flight as usize;
    let figures = storm(&pool, StormOptions { threads, operations, in_flight, seed })?;
    pool.close().map_err(|error| error.to_string())?;
    Ok(format!(
        "{} operations of {threads} threads, none lost: {} puts, {} reads of {} (every byte compared), {} \
         comparisons, {} deletions, {} cancelled",
        figures.operations(),
        figures.puts,
        figures.gets,
        ByteCount(figures.bytes_compared),
        figures.verifications,
        figures.deletions,
        figures.cancelled
    ))
}

fn open(directory: Option<&PathBuf>) -> Result<Pool, Box<dyn std::error::Error>> {
    let size = ByteCount::mib(256);
    let format =
        FormatOptions { device_size: Some(size), overwrite: true, ..FormatOptions::default() };
    let options = OpenOptions { buffers: ByteCount::mib(8), ..OpenOptions::default() };
    let Some(directory) = directory else {
        // Without a cache, which nobody flushes here.
        let profile = SimProfile { volatile_cache: false, ..SimProfile::default() };
        let disks = [SimDisk::with_profile(size, profile), SimDisk::with_profile(size, profile)];
        Pool::format(&disks, &format)?;
        return Ok(Pool::open(&disks, &options)?);
    };
    std::fs::create_dir_all(directory)?;
    let specs = ["a", "b"].map(|name| DeviceSpec::new(directory.join(name)));
    Pool::format(&specs, &format)?;
    let pool = Pool::open(&specs, &options)?;
    // The pool has them open; they go with it.
    for name in ["a", "b"] {
        std::fs::remove_file(directory.join(name))?;
    }
    Ok(pool)
}
