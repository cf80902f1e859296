//! How long opening a pool takes: `tidelog-recovery --tensors 1000000`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::units::ByteCount;

/// Makes pools on sparse files, fills them with durable tensors, and opens each several times: once with a change
/// log to replay, then from its checkpoint. Prints medians, and ends with 1 where the largest pool takes longer
/// than the limit.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Tensors in the largest pool; the others have a tenth, a hundredth, a thousandth.
    #[arg(long, default_value_t = 1_000_000)]
    tensors: u64,
    /// Bytes of a pool, in GiB.
    #[arg(long, default_value_t = 64)]
    gib: u64,
    /// Where to make the pools.
    #[arg(long, default_value = "target/recovery")]
    directory: PathBuf,
    /// What opening the largest pool may take, in seconds.
    #[arg(long, default_value_t = 2.0)]
    limit: f64,
}

const DEVICES: u64 = 2;
/// One block of 4 KiB each, so that filling writes little; the index does not care.
const TENSOR_BYTES: usize = 4000;
const BATCH: u64 = 5_000;
const OPENS: usize = 5;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match measure_all(&arguments) {
        Ok(slowest) if slowest.as_secs_f64() <= arguments.limit => ExitCode::SUCCESS,
        Ok(slowest) => {
            eprintln!("tidelog-recovery: {slowest:.2?} is more than {} s", arguments.limit);
            ExitCode::FAILURE
        }
        Err(error) => {
            eprintln!("tidelog-recovery: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Answers the longest that the largest pool took.
fn measure_all(arguments: &Arguments) -> Result<Duration, Failure> {
    std::fs::create_dir_all(&arguments.directory)?;
    println!("{:>10} {:>10} {:>14} {:>14}", "tensors", "segments", "after a kill", "again");
    let mut slowest = Duration::ZERO;
    for (tensors, segment_mib) in [
        (arguments.tensors / 1000, 4),
        (arguments.tensors / 100, 4),
        (arguments.tensors / 10, 1),
        (arguments.tensors / 10, 4),
        (arguments.tensors / 10, 64),
        (arguments.tensors, 4),
    ] {
        let (segments, first, again) = measure(arguments, tensors, segment_mib)?;
        println!("{tensors:>10} {segments:>10} {first:>14.2?} {again:>14.2?}");
        if tensors == arguments.tensors {
            slowest = first.max(again);
        }
    }
    std::fs::remove_dir_all(&arguments.directory)?;
    Ok(slowest)
}

fn measure(
    arguments: &Arguments,
    tensors: u64,
    segment_mib: u64,
) -> Result<(u32, Duration, Duration), Failure> {
    let device_size = ByteCount::gib(arguments.gib / DEVICES);
    let mut specs = Vec::new();
    for index in 0..DEVICES {
        let path = arguments.directory.join(format!("device{index}"));
        std::fs::File::create(&path)?.set_len(device_size.0)?;
        specs.push(DeviceSpec::new(path));
    }
    let format = FormatOptions {
        segment_size: Some(ByteCount::mib(segment_mib)),
        buffered: true,
        ..FormatOptions::default()
    };
    let segments = Pool::format(&specs, &format)?.geometry.segments;
    let options = OpenOptions { buffered: true, ..OpenOptions::default() };
    let pool = Pool::open(&specs, &options)?;
    for first in (0..tensors).step_by(BATCH as usize) {
        let mut batch = pool.batch();
        for id in first..(first + BATCH).min(tensors) {
            let key = TensorId(u128::from(id) << 64 | 1);
            batch.put(key, Source::from(vec![id as u8; TENSOR_BYTES]), PutOptions::default())?;
        }
        batch.commit()?;
    }
    pool.close()?;
    let open = || -> Result<Duration, Failure> {
        let begun = Instant::now();
        let pool = Pool::open(&specs, &options)?;
        let took = begun.elapsed();
        let found = pool.stats()?.tensors as u64;
        if found == tensors {
            Ok(took)
        } else {
            Err(format!("{found} of {tensors} tensors").into())
        }
    };
    let first = open()?;
    let mut again = (0..OPENS).map(|_| open()).collect::<Result<Vec<_>, _>>()?;
    again.sort_unstable();
    Ok((segments, first, again[OPENS / 2]))
}
