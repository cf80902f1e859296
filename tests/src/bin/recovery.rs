//! Measures the cost of opening a pool: `tidelog-recovery --tensors 1000000`.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Parser;
use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::units::ByteCount;

/// Makes pools on sparse files, fills them with durable tensors, and opens each several times, each
/// time in a process of its own: with a change log to replay, as after a kill, and from its
/// checkpoint. Then deletes all tensors. Prints medians, and ends with 1 where the largest pool
/// takes longer to open than the limit.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Tensors in the largest pool; the others have a tenth, a hundredth, none.
    #[arg(long, default_value_t = 1_000_000)]
    tensors: u64,
    /// Bytes of a pool, in GiB.
    #[arg(long, default_value_t = 64)]
    gib: u64,
    /// Directory of the pools.
    #[arg(long, default_value = "target/recovery")]
    directory: PathBuf,
    /// Limit of the time to open the largest pool, in seconds.
    #[arg(long, default_value_t = 2.0)]
    limit: f64,
    /// Number of times to open each pool.
    #[arg(long, default_value_t = 5)]
    opens: usize,
    /// Leave the largest pool in place, as after a kill.
    #[arg(long)]
    keep: bool,
    /// Fill, open and empty the largest pool only.
    #[arg(long)]
    largest: bool,
    /// Internal: open the pool on these devices once, and print what it cost.
    #[arg(long, hide = true)]
    open: Option<String>,
}

const DEVICES: u64 = 2;
/// One block of 4 KiB each, so that filling writes little; the index does not care.
const TENSOR_BYTES: usize = 4000;
const BATCH: u64 = 5_000;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match &arguments.open {
        Some(devices) => open_once(devices).map(|cost| {
            println!("{cost}");
            ExitCode::SUCCESS
        }),
        None => measure_all(&arguments),
    };
    ended.unwrap_or_else(|error| {
        eprintln!("tidelog-recovery: {error}");
        ExitCode::FAILURE
    })
}

fn measure_all(arguments: &Arguments) -> Result<ExitCode, Failure> {
    std::fs::create_dir_all(&arguments.directory)?;
    println!(
        "{:>10} {:>10} {:>10} {:>14} {:>10} {:>14} {:>10} {:>14} {:>10} {:>10}",
        "tensors",
        "segments",
        "filled in",
        "after a kill",
        "cpu",
        "again",
        "cpu",
        "bytes/tensor",
        "at peak",
        "emptied in"
    );
    let all = arguments.tensors;
    let mut empty = None;
    let mut slowest = Duration::ZERO;
    let smaller = [(0, 4), (all / 100, 4), (all / 10, 1), (all / 10, 4), (all / 10, 64)];
    let smaller = smaller.into_iter().filter(|_| !arguments.largest);
    for (tensors, segment_mib) in smaller.chain([(all, 4)]) {
        let measured = measure(arguments, tensors, segment_mib)?;
        let Measured { segments, filled, killed, again, emptied } = measured;
        let base = empty.get_or_insert(measured);
        let per_tensor =
            |bytes: u64, base: u64| bytes.saturating_sub(base).checked_div(tensors).unwrap_or(0);
        println!(
            "{tensors:>10} {segments:>10} {filled:>10.2?} {:>14.2?} {:>10.2?} {:>14.2?} {:>10.2?} {:>14} {:>10} {emptied:>10.2?}",
            killed.wall,
            killed.cpu,
            again.wall,
            again.cpu,
            per_tensor(again.resident, base.again.resident),
            per_tensor(again.peak, base.again.peak),
        );
        if tensors == all {
            slowest = killed.wall.max(again.wall);
        }
    }
    if !arguments.keep {
        std::fs::remove_dir_all(&arguments.directory)?;
    }
    if slowest.as_secs_f64() <= arguments.limit {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!("tidelog-recovery: {slowest:.2?} is more than {} s", arguments.limit);
    Ok(ExitCode::FAILURE)
}

#[derive(Clone, Copy)]
struct Measured {
    segments: u32,
    filled: Duration,
    emptied: Duration,
    /// Cost with a change log to replay.
    killed: Cost,
    /// Cost from the checkpoint alone.
    again: Cost,
}

fn measure(arguments: &Arguments, tensors: u64, segment_mib: u64) -> Result<Measured, Failure> {
    let device_size = ByteCount::gib(arguments.gib / DEVICES);
    let paths: Vec<PathBuf> =
        (0..DEVICES).map(|index| arguments.directory.join(format!("device{index}"))).collect();
    for path in &paths {
        File::create(path)?.set_len(device_size.0)?;
    }
    let names: Vec<String> = paths.iter().map(|path| path.display().to_string()).collect();
    let devices = names.join(",");
    let specs = DeviceSpec::parse_list(&devices)?;
    let format = FormatOptions {
        segment_size: Some(ByteCount::mib(segment_mib)),
        buffered: true,
        sparse: true,
        ..FormatOptions::default()
    };
    let geometry = Pool::format(&specs, &format)?.geometry;
    let begun = Instant::now();
    fill(&specs, tensors)?;
    let filled = begun.elapsed();

    // The first open writes a checkpoint; what it found is put back for the next.
    let saved = paths.iter().map(|path| copy_head(path, geometry.data_offset));
    let saved = saved.collect::<Result<Vec<_>, _>>()?;
    let put_back = || -> Result<(), Failure> {
        for (path, bytes) in paths.iter().zip(&saved) {
            File::options().write(true).open(path)?.write_all(bytes)?;
        }
        Ok(())
    };
    let killed = (0..arguments.opens).map(|_| {
        put_back()?;
        open_in_a_process(&devices, tensors)
    });
    let killed = median(killed.collect::<Result<Vec<_>, _>>()?);
    let again = (0..arguments.opens).map(|_| open_in_a_process(&devices, tensors));
    let again = median(again.collect::<Result<Vec<_>, _>>()?);
    put_back()?;
    let begun = Instant::now();
    if !arguments.keep {
        empty(&specs, tensors)?;
    }
    let emptied = begun.elapsed();
    Ok(Measured { segments: geometry.segments, filled, emptied, killed, again })
}

fn fill(specs: &[DeviceSpec], tensors: u64) -> Result<(), Failure> {
    let pool = Pool::open(specs, &options())?;
    for first in (0..tensors).step_by(BATCH as usize) {
        let mut batch = pool.batch();
        for id in first..(first + BATCH).min(tensors) {
            let key = TensorId::from_name(&format!("tensor {id}"));
            batch.put(key, Source::from(vec![id as u8; TENSOR_BYTES]), PutOptions::default())?;
        }
        batch.commit()?;
    }
    pool.close()?;
    Ok(())
}

fn empty(specs: &[DeviceSpec], tensors: u64) -> Result<(), Failure> {
    let pool = Pool::open(specs, &options())?;
    for first in (0..tensors).step_by(BATCH as usize) {
        let mut batch = pool.batch();
        for id in first..(first + BATCH).min(tensors) {
            batch.delete(TensorId::from_name(&format!("tensor {id}")))?;
        }
        batch.commit()?;
    }
    pool.close()?;
    let left = Pool::open(specs, &options())?.durable_tensors()?.len();
    if left == 0 { Ok(()) } else { Err(format!("{left} tensors are left").into()) }
}

fn options() -> OpenOptions {
    OpenOptions { buffered: true, ..OpenOptions::default() }
}

fn copy_head(path: &Path, length: u64) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    File::open(path)?.take(length).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Cost of one open.
#[derive(Clone, Copy)]
struct Cost {
    wall: Duration,
    cpu: Duration,
    /// Memory that stays, and the most there was, in bytes.
    resident: u64,
    peak: u64,
}

fn median(mut costs: Vec<Cost>) -> Cost {
    let middle = costs.len() / 2;
    costs.sort_unstable_by_key(|cost| cost.cpu);
    let cpu = costs[middle].cpu;
    costs.sort_unstable_by_key(|cost| cost.wall);
    Cost { cpu, ..costs[middle] }
}

fn open_in_a_process(devices: &str, tensors: u64) -> Result<Cost, Failure> {
    let output = Command::new(std::env::current_exe()?).args(["--open", devices]).output()?;
    let told = String::from_utf8(output.stdout)?;
    let told: Vec<u64> = told.split_whitespace().map(str::parse).collect::<Result<_, _>>()?;
    let [wall, cpu, resident, peak, found] = told[..] else {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    };
    if found != tensors {
        return Err(format!("{found} of {tensors} tensors").into());
    }
    let (wall, cpu) = (Duration::from_nanos(wall), Duration::from_nanos(cpu));
    Ok(Cost { wall, cpu, resident, peak })
}

/// Nanoseconds, nanoseconds of all cores, bytes resident, bytes at the peak, tensors.
fn open_once(devices: &str) -> Result<String, Failure> {
    let specs = DeviceSpec::parse_list(devices)?;
    let begun = Instant::now();
    let pool = Pool::open(&specs, &options())?;
    let wall = begun.elapsed().as_nanos();
    let (resident, peak) = (status_bytes("VmRSS:")?, status_bytes("VmHWM:")?);
    let tensors = pool.stats()?.tensors;
    Ok(format!("{wall} {} {resident} {peak} {tensors}", cpu_nanos()?))
}

/// Returns the processor time of the threads of this process.
fn cpu_nanos() -> Result<u64, Failure> {
    let mut nanos = 0;
    for thread in std::fs::read_dir("/proc/self/task")? {
        let stat = std::fs::read_to_string(thread?.path().join("schedstat"))?;
        nanos += stat.split_whitespace().next().ok_or("schedstat is empty")?.parse::<u64>()?;
    }
    Ok(nanos)
}

fn status_bytes(field: &str) -> Result<u64, Failure> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field")?;
    Ok(line.trim().trim_end_matches("kB").trim().parse::<u64>()? << 10)
}
