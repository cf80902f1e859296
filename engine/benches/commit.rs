//! Gain of commits that wait together.
//!
//! ```text
//! cargo bench -p tidelog-engine --bench commit [directory]
//! ```
//!
//! A pool of two files in `target` (or in the directory that is named: the ratios are those of its
//! disk). Committers put a tensor of 4 KiB each and commit it, over and over: each on a thread of
//! its own, or one thread with as many commits in flight. The same work one commit at a time is
//! measured in turns with it; the ratio is the median over the turns. Flushes and forced writes are
//! those of both devices.

use std::path::PathBuf;
use std::time::Instant;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::Source;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{Batch, Commit, FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::units::ByteCount;

/// Commits in each turn, shared among the committers.
const COMMITS: usize = 256;
const TURNS: usize = 9;
const TENSOR_BYTES: usize = 4096;

fn main() {
    // Cargo passes options of its own harness, which this is not.
    let named = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let directory = named.map_or(target, PathBuf::from).join("tidelog-bench-commit");
    std::fs::create_dir_all(&directory).unwrap();
    let specs = ["a", "b"].map(|name| DeviceSpec::new(directory.join(name)));
    let format = FormatOptions {
        device_size: Some(ByteCount::mib(64)),
        overwrite: true,
        ..FormatOptions::default()
    };
    Pool::format(&specs, &format).unwrap();
    let options = OpenOptions { huge_pages: false, housekeeping: None, ..OpenOptions::default() };
    let pool = Pool::open(&specs, &options).unwrap();
    println!("commits of {TENSOR_BYTES} bytes, {COMMITS} in each of {TURNS} turns");
    println!("{:<24} {:>10} {:>12} {:>12}", "", "commits/s,", "commits in", "flushes per");
    println!("{:<24} {:>10} {:>12} {:>12}", "", "ratio", "one record", "commit");
    for count in [1, 4, 16] {
        compare(&pool, &format!("{count} threads"), |pool| threads(pool, count));
    }
    for count in [1, 4, 16] {
        compare(&pool, &format!("1 thread, {count} in flight"), |pool| in_flight(pool, count));
    }
    let forced = pool.stats().unwrap().commits.forced_records;
    println!("records forced to the medium: {forced:?}");
    pool.close().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Measures in turns with one commit at a time.
#[allow(clippy::cast_precision_loss)] // Ratios to be shown.
fn compare(pool: &Pool, name: &str, work: impl Fn(&Pool)) {
    let alone = |pool: &Pool| (0..COMMITS).for_each(|_| batch(pool, 0).commit().unwrap());
    // The first turn of both warms up.
    timed(|| work(pool));
    timed(|| alone(pool));
    let mut ratios = Vec::new();
    let (mut records, mut flushes) = (0, 0);
    for _ in 0..TURNS {
        let before = counters(pool);
        let together = timed(|| work(pool));
        let after = counters(pool);
        records += after.0 - before.0;
        flushes += after.1 - before.1;
        ratios.push(timed(|| alone(pool)) / together);
    }
    ratios.sort_by(f64::total_cmp);
    let commits = (COMMITS * TURNS) as f64;
    println!(
        "{name:<24} {:>10.2} {:>12.1} {:>12.2}",
        ratios[TURNS / 2],
        commits / records as f64,
        flushes as f64 / commits
    );
}

fn threads(pool: &Pool, count: usize) {
    std::thread::scope(|scope| {
        for thread in 0..count {
            scope.spawn(move || {
                for _ in 0..COMMITS / count {
                    batch(pool, thread).commit().unwrap();
                }
            });
        }
    });
}

fn in_flight(pool: &Pool, count: usize) {
    let mut commits: Vec<Option<Commit>> = vec![None; count];
    for at in 0..COMMITS {
        let slot = &mut commits[at % count];
        if let Some(oldest) = slot.take() {
            oldest.wait().unwrap();
        }
        *slot = Some(batch(pool, at % count).start_commit().unwrap());
    }
    commits.into_iter().flatten().for_each(|commit| commit.wait().unwrap());
}

fn batch(pool: &Pool, committer: usize) -> Batch {
    let mut batch = pool.batch();
    let source = Source::from(vec![committer as u8; TENSOR_BYTES]);
    batch.put(TensorId(committer as u128), source, PutOptions::default()).unwrap();
    batch
}

/// Records and checkpoints; flushes of both devices.
fn counters(pool: &Pool) -> (u64, u64) {
    let stats = pool.stats().unwrap();
    let flushes = stats.reactor.devices.iter().map(|device| device.flushes).sum();
    (stats.commits.records + stats.commits.checkpoints, flushes)
}

fn timed(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    begun.elapsed().as_secs_f64()
}
