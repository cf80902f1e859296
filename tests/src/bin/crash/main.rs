//! Kills a process that commits, again and again: `tidelog-crash --runs 1000`.

mod lost;

use std::io::{BufRead, BufReader, Lines, Write};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Parser;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{FormatOptions, Pool};
use tidelog_engine::units::ByteCount;
use tidelog_tests::commands::kill_commands;
use tidelog_tests::machine::{LoopDevice, LoopOptions};
use tidelog_tests::sim::Random;
use tidelog_tests::victim::{self, Failure, open_options};

/// A process that commits durable tensors and writes scratch ones is killed with SIGKILL at any
/// moment; then a check must find no damage, every commit that had returned must be there whole,
/// and no space may be lost. On files, there also with an index so long that the kill often comes
/// upon a checkpoint, and on loop devices where there are any (they need root). Ends with 1 where
/// anything is lost, torn, leaked, or called damaged.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Number of kills on each kind of pool.
    #[arg(long, default_value_t = 100)]
    runs: u64,
    /// Directory of the pools.
    #[arg(long, default_value = "target/crash")]
    directory: PathBuf,
    /// Decides the moments.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Sectors of the loop devices, in bytes: 512 or 4096.
    #[arg(long, default_value_t = 512)]
    sector: u32,
    /// Kills of commands instead, of `tidelog-format` commands that change a pool's devices: add,
    /// evacuate, remove and replace, on files. The same command must finish each, and nothing
    /// durable may be lost.
    #[arg(long)]
    commands: Option<u64>,
    /// Losses of devices instead: one of three loop devices is lost while a process commits tensors
    /// with two copies. Every commit that had returned must be there without the device, and once
    /// it is replaced.
    #[arg(long)]
    losses: Option<u64>,
    /// The tool whose commands are killed; by default the one beside this program.
    #[arg(long)]
    tool: Option<PathBuf>,
    /// Internal: be the process that is killed, on these devices.
    #[arg(long, hide = true)]
    victim: Option<String>,
    /// Internal: the victim's first commit.
    #[arg(long, hide = true, default_value_t = 1)]
    next: u64,
}

const DEVICES: usize = 2;
const DEVICE_SIZE: ByteCount = ByteCount::mib(24);
/// The victim dies at some moment within this, counted from its first commit.
const LIFE_MAX_MICROS: u64 = 40_000;
/// Tensors that make checkpoints long: some MiB, most of it in segments.
const FILLERS: u64 = 3000;
/// Longest time from its start in which every other victim dies where checkpoints are long, since
/// opening writes one.
const OPENING_MAX_MICROS: u64 = 60_000;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let ended = match &arguments {
        Arguments { victim: Some(devices), next, .. } => be_the_victim(devices, *next),
        Arguments { commands: Some(kills), .. } => kill_the_tool(&arguments, *kills),
        Arguments { losses: Some(losses), .. } => lost::lose_devices(&arguments, *losses),
        _ => kill_again_and_again(&arguments),
    };
    match ended {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("tidelog-crash: {error}");
            ExitCode::FAILURE
        }
    }
}

fn kill_again_and_again(arguments: &Arguments) -> Result<(), Failure> {
    std::fs::create_dir_all(&arguments.directory)?;
    let files: Vec<PathBuf> =
        (0..DEVICES).map(|index| arguments.directory.join(format!("device{index}"))).collect();
    on_pool("files", &names(&files), 0, arguments)?;
    on_pool("files, long checkpoints", &names(&files), FILLERS, arguments)?;
    let options = LoopOptions { sector: arguments.sector, ..LoopOptions::default() };
    let loops = files.iter().map(|file| LoopDevice::attach(file, options));
    match loops.collect::<Result<Vec<_>, _>>() {
        Ok(loops) => {
            let nodes: Vec<PathBuf> = loops.iter().map(|device| device.node().into()).collect();
            let kind = format!("loop devices, {} byte sectors", arguments.sector);
            on_pool(&kind, &names(&nodes), 0, arguments)?;
        }
        Err(why) => println!("SKIPPED loop devices: {why}"),
    }
    for file in files {
        std::fs::remove_file(file)?;
    }
    Ok(())
}

/// Kills commands that change a pool's devices.
fn kill_the_tool(arguments: &Arguments, kills: u64) -> Result<(), Failure> {
    let tool = match &arguments.tool {
        Some(tool) => tool.clone(),
        None => std::env::current_exe()?.with_file_name("tidelog-format"),
    };
    let directory = arguments.directory.join("commands");
    let figures = kill_commands(&tool, &directory, kills, arguments.seed)?;
    println!("commands: {figures}");
    Ok(())
}

fn names(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(",")
}

/// One pool's lives.
fn on_pool(kind: &str, devices: &str, fillers: u64, arguments: &Arguments) -> Result<(), Failure> {
    let specs = DeviceSpec::parse_list(devices)?;
    let options = FormatOptions {
        device_size: Some(DEVICE_SIZE),
        stripe_unit: ByteCount::kib(16),
        overwrite: true,
        buffered: true,
        ..FormatOptions::default()
    };
    Pool::format(&specs, &options)?;
    victim::fill_index(&specs, &open_options(true), fillers)?;
    let mut random = Random::new(arguments.seed);
    let (mut last, mut without_capture, mut unsettled) = (0, 0, 0);
    for run in 0..arguments.runs {
        let returned = if fillers > 0 && last > 0 && random.chance(2) {
            die_while_opening(devices, last + 1, random.below(OPENING_MAX_MICROS))?
        } else {
            live_and_die(devices, last + 1, random.below(LIFE_MAX_MICROS))?
        };
        let of_run =
            |what: Failure| format!("{kind}, run {run} of seed {}: {what}", arguments.seed);
        let report = victim::verdict(&specs).map_err(of_run)?;
        unsettled += u64::from(!report.unsettled.is_empty());
        let returned = returned.max(last);
        let found =
            victim::verify(&specs, &open_options(true), returned, fillers).map_err(of_run)?;
        without_capture += found - returned;
        last = found;
        if run % 100 == 99 {
            eprintln!("{kind}: {} of {} runs", run + 1, arguments.runs);
        }
    }
    println!(
        "{kind}: {} kills, {unsettled} of them while a record or checkpoint was written; {last} commits, \
         {without_capture} of them done and not told; 0 lost, 0 torn, 0 leaked, 0 called damaged",
        arguments.runs
    );
    Ok(())
}

/// Starts a victim and kills it some time after its first commit. Returns the last commit that
/// returned.
fn live_and_die(devices: &str, next: u64, micros: u64) -> Result<u64, Failure> {
    let mut victim = Victim::start(devices, next)?;
    let (first, told) = victim.first()?;
    std::thread::sleep(Duration::from_micros(micros));
    victim.kill();
    last_told(told, first)
}

/// Starts a victim and kills it whether it has committed anything or not. Returns the last commit
/// that returned, or 0.
fn die_while_opening(devices: &str, next: u64, micros: u64) -> Result<u64, Failure> {
    let mut victim = Victim::start(devices, next)?;
    let told = victim.told()?;
    std::thread::sleep(Duration::from_micros(micros));
    victim.kill();
    last_told(told, 0)
}

fn last_told(
    told: impl Iterator<Item = std::io::Result<String>>,
    first: u64,
) -> Result<u64, Failure> {
    let mut returned = first;
    for line in told {
        // The last line may be cut short; a number that is was told by a commit that returned all
        // the same.
        returned = line?.parse::<u64>().unwrap_or(returned).max(returned);
    }
    Ok(returned)
}

/// The lines of a victim's output.
type Told = Lines<BufReader<ChildStdout>>;

struct Victim(Child);

impl Victim {
    fn start(devices: &str, next: u64) -> Result<Self, Failure> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--victim", devices, "--next", &next.to_string()]).stdout(Stdio::piped());
        Ok(Self(command.spawn()?))
    }

    /// Returns what it tells.
    fn told(&mut self) -> Result<Told, Failure> {
        let output = self.0.stdout.take().ok_or("the victim has no output")?;
        Ok(BufReader::new(output).lines())
    }

    /// Waits for its first commit; returns that, and what it tells from then on.
    fn first(&mut self) -> Result<(u64, Told), Failure> {
        let mut told = self.told()?;
        let first = told.next().ok_or("the victim ended before its first commit")??;
        Ok((first.parse()?, told))
    }

    /// SIGKILL: no destructor runs.
    fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Victim {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Commits, and tells each commit that has returned.
fn be_the_victim(devices: &str, first: u64) -> Result<(), Failure> {
    let mut told = std::io::stdout();
    victim::commit(&DeviceSpec::parse_list(devices)?, &open_options(true), first, |commit| {
        writeln!(told, "{commit}")?;
        told.flush()?;
        Ok(true)
    })
}
