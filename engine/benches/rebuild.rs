//! Rate at which a replacement gets what the lost device had, and what that costs those who read
//! meanwhile: `cargo bench -p tidelog-engine --bench rebuild`.
//!
//! Simulated disks that take real time, one operation after the other; all durable tensors have two
//! copies. One disk is lost and replaced. Ends non-zero where the new one is written at less than
//! [`LEAST`] of its rate, the opening and the index included or in an open pool, or where the 99th
//! percentile of urgent reads is more than [`MOST`] times as long as without it, as medians of
//! rounds.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidelog_engine::layout::{Copies, TensorId};
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::sim::{SimDisk, SimProfile};
use tidelog_engine::pool::{
    FormatOptions, OpenOptions, Pool, PutOptions, ReplaceOptions, begin_replacement, replace,
};
use tidelog_engine::schedule::Urgency;
use tidelog_engine::units::ByteCount;
use tidelog_random::Random;

const LEAST: f64 = 0.8;
const MOST: f64 = 2.0;
/// Rate of each disk in a second.
const RATE: ByteCount = ByteCount::mib(400);
const DISK: ByteCount = ByteCount::mib(512);
/// Tensor bytes on each device.
const EACH: u64 = 384 << 20;
/// Odd, as the median counts.
const ROUNDS: usize = 3;
/// Time after which a pool of which nothing is wanted counts as idle.
const UNUSED: Duration = Duration::from_millis(1100);
/// Time for which tensors are read.
const READING: Duration = Duration::from_secs(2);

fn disk() -> SimDisk {
    SimDisk::with_profile(DISK, SimProfile::plain())
}

fn quiet() -> OpenOptions {
    OpenOptions { huge_pages: false, housekeeping: None, ..OpenOptions::default() }
}

/// Makes a pool of `count` disks, full of tensors of `tensor` bytes.
fn filled(count: u64, tensor: u64) -> Vec<SimDisk> {
    let disks: Vec<SimDisk> = (0..count).map(|_| disk()).collect();
    let format = FormatOptions { copies: Copies::Two, ..FormatOptions::default() };
    Pool::format(&disks, &format).expect("blank disks are formatted");
    let pool = Pool::open(&disks, &quiet()).expect("a fresh pool opens");
    let bytes: Arc<[u8]> = vec![7; tensor as usize].into();
    for batch_of in (0..tensors(count, tensor)).collect::<Vec<_>>().chunks(64) {
        let mut batch = pool.batch();
        for id in batch_of {
            let source = Source::Shared(Arc::clone(&bytes));
            batch.put(tensor_id(*id), source, PutOptions::default()).expect("there is room");
        }
        batch.commit().expect("a simulated disk does not fail");
    }
    pool.close().expect("a simulated disk does not fail");
    disks
}

fn tensors(count: u64, tensor: u64) -> u64 {
    EACH * count / 2 / tensor
}

fn tensor_id(id: u64) -> TensorId {
    TensorId(u128::from(id) + 1)
}

/// Loses the last disk; returns a new one, all of which take time from now on.
fn lose_last(disks: &[SimDisk]) -> (SimDisk, &[SimDisk]) {
    let (_, others) = disks.split_last().expect("a pool has disks");
    let new = disk();
    for disk in others.iter().chain([&new]) {
        disk.set_rate(Some(RATE));
    }
    (new, others)
}

/// Replaces the last disk; returns the part of its rate at which the new one was written.
#[expect(clippy::cast_precision_loss, reason = "a rate to be shown")]
fn rebuilt(disks: &mut [SimDisk]) -> f64 {
    let (new, others) = lose_last(disks);
    let begun = Instant::now();
    let done = replace(&new, others, &ReplaceOptions::default(), &mut |_| ());
    let done = done.expect("the others have all of it");
    let rate = done.bytes.0 as f64 / begun.elapsed().as_secs_f64();
    assert!(done.lost.is_empty() && done.bytes.0 >= EACH * 9 / 10, "{done:?}");
    *disks.last_mut().expect("a pool has disks") = new;
    rate / RATE.0 as f64
}

/// Replaces the last disk in an open pool that nobody uses; returns the part of its rate at which
/// the new one was written.
#[expect(clippy::cast_precision_loss, reason = "a rate to be shown")]
fn rebuilt_online(disks: &[SimDisk]) -> f64 {
    let (new, others) = lose_last(disks);
    let pool = open_degraded(&new, others);
    std::thread::sleep(UNUSED);
    let mut rebuild = pool.rebuild(ByteCount::ZERO).expect("it is open").expect("it is not whole");
    let (begun, mut bytes) = (Instant::now(), 0);
    while let Some(now) = rebuild.step().expect("a simulated disk does not fail") {
        bytes = now.done.0;
    }
    let rate = bytes as f64 / begun.elapsed().as_secs_f64();
    drop(rebuild);
    pool.close().expect("a simulated disk does not fail");
    rate / RATE.0 as f64
}

/// Begins a replacement and opens the pool with the new disk.
fn open_degraded(new: &SimDisk, others: &[SimDisk]) -> Pool {
    begin_replacement(new, others, &ReplaceOptions::default()).expect("it is blank");
    let all: Vec<SimDisk> = others.iter().chain([new]).cloned().collect();
    let options = OpenOptions { degraded: true, ..quiet() };
    Pool::open(&all, &options).expect("the others have all of it")
}

/// Reads tensors one after the other, with pauses of at most this length; returns the 99th
/// percentile of the time that it takes.
fn read(pool: &Pool, (count, tensor): (u64, u64), pause: Duration) -> Duration {
    let (mut random, mut times) = (Random::new(1), Vec::new());
    let end = Instant::now() + READING;
    while Instant::now() < end {
        let id = tensor_id(random.below(tensors(count, tensor)));
        let memory = Destination::buffer(tensor as usize);
        let begun = Instant::now();
        let read = pool.get(id, 0..tensor, memory, Urgency::Urgent, None).expect("it is there");
        read.wait().expect("one copy is whole");
        times.push(begun.elapsed());
        let longest = pause.as_nanos() as u64;
        std::thread::sleep(Duration::from_nanos(random.below(longest + 1)));
    }
    times.sort();
    times[times.len() * 99 / 100]
}

/// Reads without and with a device being made again; returns both times, and the part of its rate
/// at which that is written meanwhile.
#[expect(clippy::cast_precision_loss, reason = "a rate to be shown")]
fn disturbed(disks: &[SimDisk], of: (u64, u64), pause: Duration) -> (Duration, Duration, f64) {
    let (new, others) = lose_last(disks);
    let pool = open_degraded(&new, others);
    let without = read(&pool, of, pause);
    let stopped = AtomicBool::new(false);
    let (with, rate) = std::thread::scope(|scope| {
        let copying = scope.spawn(|| {
            let (begun, mut bytes) = (Instant::now(), 0);
            while !stopped.load(Ordering::Relaxed) {
                // Once it is through it begins again.
                let mut rebuild = pool.rebuild(ByteCount::ZERO).expect("it is open");
                let rebuild = rebuild.as_mut().expect("it is not whole");
                let mut done = 0;
                while let Some(now) = rebuild.step().expect("a simulated disk does not fail") {
                    bytes += now.done.0 - done;
                    done = now.done.0;
                    if stopped.load(Ordering::Relaxed) {
                        break;
                    }
                }
            }
            bytes as f64 / begun.elapsed().as_secs_f64() / RATE.0 as f64
        });
        let with = read(&pool, of, pause);
        stopped.store(true, Ordering::Relaxed);
        (with, copying.join().expect("it ends"))
    });
    pool.close().expect("a simulated disk does not fail");
    (without, with, rate)
}

fn median(mut of: Vec<f64>) -> f64 {
    of.sort_by(f64::total_cmp);
    of[of.len() / 2]
}

fn main() -> ExitCode {
    let mut is_good = true;
    println!("a new device is written at this part of its rate, medians of {ROUNDS} rounds:");
    for (count, tensor) in [(2, 4 << 20), (3, 4 << 20), (3, 100 << 10), (2, 16 << 10)] {
        let mut disks = filled(count, tensor);
        let online = median((0..ROUNDS).map(|_| rebuilt_online(&disks)).collect());
        let rate = median((0..ROUNDS).map(|_| rebuilt(&mut disks)).collect());
        println!(
            "{count} devices, tensors of {tensor:7} bytes: {rate:.2} [{LEAST}]; {online:.2} [{LEAST}] in a \
             pool that is open and idle"
        );
        is_good &= rate.min(online) >= LEAST;
    }
    println!("urgent reads, 99th percentile without and with it, and its rate meanwhile:");
    for (count, tensor) in [(2, 64 << 10), (2, 1 << 20), (3, 64 << 10), (3, 1 << 20)] {
        let disks = filled(count, tensor);
        for pause in [Duration::ZERO, Duration::from_millis(4)] {
            let rounds: Vec<_> =
                (0..ROUNDS).map(|_| disturbed(&disks, (count, tensor), pause)).collect();
            let times =
                median(rounds.iter().map(|it| it.1.as_secs_f64() / it.0.as_secs_f64()).collect());
            let (without, with, _) = rounds[0];
            let rate = median(rounds.iter().map(|it| it.2).collect());
            println!(
                "{count} devices, {tensor:7} bytes, pauses up to {pause:?}: {without:.1?}, {with:.1?}, \
                 {times:.2} times [{MOST}]; {rate:.2}"
            );
            is_good &= times <= MOST;
        }
    }
    if is_good { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
