//! Runs seeds of the simulation: `tidelog-sim --seeds 2000`, or one again: `tidelog-sim --seed 17`.

use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use clap::Parser;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::json;
use tidelog_tests::loss;
use tidelog_tests::sim::{Figures, Script, Violation, run, shrink};

/// The real engine on simulated disks: seeded work, faults and power cuts, checked against a model
/// after each act and each recovery. Ends with 1 where a seed fails or a fault was never exercised.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// Number of seeds to run.
    #[arg(long, default_value_t = 200)]
    seeds: u64,
    /// The first of them.
    #[arg(long, default_value_t = 0)]
    from: u64,
    /// Run this seed alone, and shrink it if it fails.
    #[arg(long)]
    seed: Option<u64>,
    /// Acts per seed, faults and crashes besides.
    #[arg(long, default_value_t = 2000)]
    acts: usize,
    /// Threads; 0 takes one per core.
    #[arg(long, default_value_t = 0)]
    jobs: usize,
    /// Leave out the acts whose names begin with this: "Harm", say, to look for what else fails.
    #[arg(long)]
    without: Option<String>,
    /// Live this many lives instead in which a device is lost, comes back stale and is replaced,
    /// of the seeds from `from` on.
    #[arg(long, conflicts_with = "seed")]
    losses: Option<u64>,
    /// Stop at the first seed that fails.
    #[arg(long)]
    first: bool,
    /// "text" or "json".
    #[arg(long, default_value = "text")]
    output: String,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    std::panic::set_hook(Box::new(|_| ())); // a panic of the engine is reported with its seed
    if let Some(seed) = arguments.seed {
        return replay(&arguments, seed);
    }
    if let Some(lives) = arguments.losses {
        return lose(&arguments, lives);
    }
    let started = Instant::now();
    let (figures, failures) = run_all(&arguments);
    let seconds = started.elapsed().as_secs_f64();
    let missing = figures.coverage.missing();
    if arguments.output == "json" {
        let coverage: Vec<_> = figures.coverage.rows().collect();
        let failed: Vec<_> = failures
            .iter()
            .map(|(seed, it)| json!({"seed": seed, "what": it.to_string()}))
            .collect();
        println!(
            "{}",
            json!({"seeds": arguments.seeds, "acts": figures.acts, "crashes": figures.crashes, "faults": figures.faults,
                   "commits": figures.commits, "seconds": seconds, "failed": failed, "coverage": coverage, "missing": missing})
        );
    } else {
        println!("{}\n", figures.coverage);
        println!(
            "{} seeds, {} acts, {} crashes, {} faults, {} commits in {seconds:.1} s",
            arguments.seeds, figures.acts, figures.crashes, figures.faults, figures.commits
        );
        for (seed, violation) in failures.iter().take(10) {
            println!(
                "seed {seed} FAILED at {violation}\n  again: tidelog-sim --seed {seed} --acts {}",
                arguments.acts
            );
        }
        // A handful of seeds cannot meet everything.
        for (struck, under) in missing.iter().filter(|_| arguments.seeds >= 200) {
            println!("never exercised: {struck:?} during {under:?}");
        }
        println!("{} passed, {} failed", arguments.seeds - failures.len() as u64, failures.len());
    }
    let complete = missing.is_empty() || arguments.seeds < 200;
    if failures.is_empty() && complete { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run_all(arguments: &Arguments) -> (Figures, Vec<(u64, Violation)>) {
    let total = Mutex::new((Figures::default(), Vec::new()));
    for_each_seed(arguments, arguments.seeds, |index, seed| {
        let (figures, result) = run(&script(arguments, seed));
        let mut total = total.lock().expect("no thread panics with the lock");
        let (sum, failures) = &mut *total;
        sum.acts += figures.acts;
        sum.crashes += figures.crashes;
        sum.faults += figures.faults;
        sum.commits += figures.commits;
        sum.coverage.add(&figures.coverage);
        let failed = result.is_err();
        if let Err(violation) = result {
            eprintln!("seed {seed} FAILED at {violation}");
            failures.push((seed, violation));
        }
        if index % 500 == 499 {
            eprintln!("{} of {} seeds", index + 1, arguments.seeds);
        }
        failed
    });
    let (figures, mut failures) = total.into_inner().expect("no thread panics with the lock");
    failures.sort_by_key(|(seed, _)| *seed);
    (figures, failures)
}

/// Lives lives in which devices are lost.
fn lose(arguments: &Arguments, lives: u64) -> ExitCode {
    let started = Instant::now();
    let total = Mutex::new((loss::LossFigures::default(), 0));
    for_each_seed(arguments, lives, |_, seed| {
        let outcome = loss::live(seed);
        let mut total = total.lock().expect("no thread panics with the lock");
        let failed = outcome.is_err();
        match outcome {
            Ok(figures) => total.0.add(&figures),
            Err(what) => {
                eprintln!("seed {seed} FAILED at {what}");
                total.1 += 1;
            }
        }
        failed
    });
    let (figures, failed) = total.into_inner().expect("no thread panics with the lock");
    let seconds = started.elapsed().as_secs_f64();
    println!("{lives} lives in {seconds:.1} s, {failed} failed: {figures:?}");
    if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Calls `act` with the index of each of `count` seeds and with the seed, on several threads. It
/// returns whether the seed failed, after which no other is begun where only the first is wanted.
fn for_each_seed(arguments: &Arguments, count: u64, act: impl Fn(u64, u64) -> bool + Sync) {
    let next = AtomicU64::new(0);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let jobs = if arguments.jobs == 0 { cores } else { arguments.jobs };
    std::thread::scope(|scope| {
        for job in 0..jobs {
            let (next, act) = (&next, &act);
            scope.spawn(move || {
                stay_on_one_core(job);
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    if index >= count {
                        return;
                    }
                    if act(index, arguments.from + index) && arguments.first {
                        next.store(count, Ordering::Relaxed);
                    }
                }
            });
        }
    });
}

/// Keeps this thread, and those that it starts, on one of the cores that the process may use.
/// A simulated pool's reactor and its caller take turns; a turn passed to another core costs more
/// than the turn. What it does never depends on it, so a machine that refuses it is only slower.
fn stay_on_one_core(job: usize) {
    let this = Pid::from_raw(0);
    let Ok(allowed) = sched_getaffinity(this) else { return };
    let cores: Vec<_> = (0..CpuSet::count()).filter(|&it| allowed.is_set(it) == Ok(true)).collect();
    let mut one = CpuSet::new();
    if !cores.is_empty() && one.set(cores[job % cores.len()]).is_ok() {
        let _ = sched_setaffinity(this, &one);
    }
}

fn script(arguments: &Arguments, seed: u64) -> Script {
    let mut script = Script::new(seed, arguments.acts);
    if let Some(name) = &arguments.without {
        script.acts.retain(|act| !format!("{act:?}").starts_with(name));
    }
    script
}

fn replay(arguments: &Arguments, seed: u64) -> ExitCode {
    let script = script(arguments, seed);
    let (figures, result) = run(&script);
    let Err(violation) = result else {
        println!(
            "seed {seed} passed: {} acts, {} crashes, {} faults",
            figures.acts, figures.crashes, figures.faults
        );
        return ExitCode::SUCCESS;
    };
    println!("seed {seed} fails at {violation}");
    let (shortest, violation) = shrink(&script, violation, 400);
    println!(
        "{} disks, blocks of {}, stripe units of {} KiB; the {} acts that it needs:",
        shortest.disks,
        shortest.logical_block,
        shortest.stripe_kib,
        shortest.acts.len()
    );
    for act in &shortest.acts {
        println!("  {act:?}");
    }
    println!("then: {violation}");
    ExitCode::FAILURE
}
