//! Cost of reclamation: bytes written to the devices for each byte that was put.
//!
//! ```text
//! cargo bench -p tidelog-engine --bench reclamation
//! ```
//!
//! Simulated disks, so that the figure depends on nothing but the seed; throughput is measured on
//! files in memory. Tensors of 4 to 64 KiB live for 1, 10, 100 or 1000 units of time, as many bytes
//! for each; one unit writes as many bytes as keep the pool 80 % full. One hint in ten names
//! another lifetime. The pool is filled until the oldest tensors die, then written over ten times,
//! which is what is measured.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::path::PathBuf;
use std::time::Instant;

use tidelog_engine::layout::{LifetimeClass, TensorId};
use tidelog_engine::memory::Source;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::path::sim::SimDisk;
use tidelog_engine::pool::{FormatOptions, Lanes, OpenOptions, Pool, PoolStats, PutOptions};
use tidelog_engine::schedule::Ticket;
use tidelog_engine::units::ByteCount;
use tidelog_random::Random;

const BLOCK: u64 = 4096;
const TENSOR_BLOCKS_MAX: u64 = 16;
const FULL_PERCENT: u64 = 80;
const OVERWRITES: u64 = 10;
const WRONG_HINTS_PERCENT: u64 = 10;
/// Lifetimes of tensors, in units of time.
const LIFETIMES: [u64; 4] = [1, 10, 100, 1000];
/// The lane that a hinted lifetime goes to.
const CLASSES: [LifetimeClass; 4] = [
    LifetimeClass::Transient,
    LifetimeClass::Transient,
    LifetimeClass::Step,
    LifetimeClass::Persistent,
];
/// A pool this full has whole segments free at any time.
const EMPTY_PERCENT: u64 = 10;
/// Puts under way, where throughput is measured.
const DEPTH: usize = 32;
const TURNS: usize = 41;
const TURN_BYTES: u64 = 32 << 20;
/// Write amplification that lanes must reach with some hints wrong.
const TARGET: f64 = 1.3;

fn main() {
    println!("host bytes written for each tensor byte");
    println!(
        "{FULL_PERCENT} % full, lifetimes {LIFETIMES:?}, pool written over {OVERWRITES} times"
    );
    for (name, lanes, hints) in [
        ("lanes, every hint right", Lanes::ByLifetime, Hints::Wrong(0)),
        ("lanes, 10 % of the hints wrong", Lanes::ByLifetime, Hints::Wrong(WRONG_HINTS_PERCENT)),
        ("lanes, 30 % of the hints wrong", Lanes::ByLifetime, Hints::Wrong(30)),
        ("a lane for survivors only (no hints)", Lanes::ByLifetime, Hints::None),
        ("no lanes", Lanes::One, Hints::None),
    ] {
        let measured = random_lifetimes(lanes, hints);
        println!("  {name:<40} {measured:>6.3}");
        if hints == Hints::Wrong(WRONG_HINTS_PERCENT) {
            assert!(measured <= TARGET, "{measured} is more than the target of {TARGET}");
        }
    }
    let planned = planned_steps();
    println!("  {:<40} {planned:>6.3}", "lifetimes known by a plan");
    assert!((planned - 1.0).abs() < f64::EPSILON, "a plan's scratch is never copied");

    println!("throughput of puts, of an empty pool's; at least 0.9 / (1 + 2 (WA - 1)) of it");
    println!("  {:<40} {:>6} {:>6} {:>8}", "", "WA", "ratio", "at least");
    for (name, hints) in [
        ("lanes, 10 % of the hints wrong", Hints::Wrong(WRONG_HINTS_PERCENT)),
        ("lanes, 30 % of the hints wrong", Hints::Wrong(30)),
        ("a lane for survivors only (no hints)", Hints::None),
    ] {
        let measured = throughput(hints);
        let Throughput { amplification, of_empty } = measured;
        println!("  {name:<40} {amplification:>6.3} {of_empty:>6.2} {:>8.2}", measured.target());
        assert!(of_empty >= measured.target(), "reclamation costs more than what it copies");
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Hints {
    /// All tensors look alike.
    None,
    /// Hints of which this percentage is wrong.
    Wrong(u64),
}

fn open(lanes: Lanes) -> Pool {
    let disks = [SimDisk::new(ByteCount::mib(128)), SimDisk::new(ByteCount::mib(128))];
    Pool::format(&disks, &format_options()).unwrap();
    let options = OpenOptions { huge_pages: false, lanes, ..OpenOptions::default() };
    Pool::open(&disks, &options).unwrap()
}

fn format_options() -> FormatOptions {
    FormatOptions {
        stripe_unit: ByteCount::kib(64),
        segment_size: Some(ByteCount::kib(128)),
        ..FormatOptions::default()
    }
}

fn put(pool: &Pool, id: u64, blocks: u64, lifetime: LifetimeClass) -> Ticket {
    let source = Source::from(vec![id as u8; (blocks * BLOCK) as usize]);
    let options = PutOptions { lifetime, ..PutOptions::default() };
    pool.put(TensorId(id.into()), source, options).unwrap()
}

fn random_lifetimes(lanes: Lanes, hints: Hints) -> f64 {
    let mut churn = Churn::new(open(lanes), hints, FULL_PERCENT);
    churn.fill();
    let before = churn.pool.stats().unwrap();
    churn.write(OVERWRITES * churn.pool.description().capacity.0);
    churn.pool.audit().unwrap();
    amplification(&before, &churn.pool.stats().unwrap())
}

/// Tensors of random lengths and lifetimes that come and go.
struct Churn {
    pool: Pool,
    hints: Hints,
    /// Bytes that are written in a unit of time.
    unit: u64,
    random: Random,
    /// Tensors by the time of their death, counted in bytes written.
    deaths: BinaryHeap<Reverse<(u64, u64)>>,
    /// The largest number of puts in flight.
    depth: usize,
    in_flight: VecDeque<Ticket>,
    written: u64,
    next: u64,
}

impl Churn {
    /// A quarter of what is written in one unit lives for each lifetime, which keeps the pool as
    /// full as asked.
    fn new(pool: Pool, hints: Hints, full_percent: u64) -> Self {
        let capacity = pool.description().capacity.0;
        let unit = capacity * full_percent / 100 * 4 / LIFETIMES.iter().sum::<u64>();
        Self {
            pool,
            hints,
            unit,
            random: Random::new(1),
            deaths: BinaryHeap::new(),
            depth: 0,
            in_flight: VecDeque::new(),
            written: 0,
            next: 0,
        }
    }

    /// Puts tensors until the oldest ones die.
    fn fill(&mut self) {
        self.write(self.unit * LIFETIMES[3]);
    }

    fn write(&mut self, bytes: u64) {
        let end = self.written + bytes;
        while self.written < end {
            while let Some(&Reverse((death, dying))) = self.deaths.peek()
                && death <= self.written
            {
                self.deaths.pop();
                self.pool.delete(TensorId(u128::from(dying))).unwrap();
            }
            let lifetime = self.random.below(4);
            let wrong =
                matches!(self.hints, Hints::Wrong(percent) if self.random.below(100) < percent);
            let hinted = if wrong { (lifetime + 1 + self.random.below(3)) % 4 } else { lifetime };
            let class = match self.hints {
                Hints::None => LifetimeClass::Step,
                Hints::Wrong(_) => CLASSES[hinted as usize],
            };
            let blocks = 1 + self.random.below(TENSOR_BLOCKS_MAX);
            self.in_flight.push_back(put(&self.pool, self.next, blocks, class));
            if self.in_flight.len() > self.depth {
                self.in_flight.pop_front().unwrap().wait().unwrap();
            }
            self.written += blocks * BLOCK;
            let death = self.written + LIFETIMES[lifetime as usize] * self.unit;
            self.deaths.push(Reverse((death, self.next)));
            self.next += 1;
        }
        for ticket in self.in_flight.drain(..) {
            ticket.wait().unwrap();
        }
    }
}

/// Puts go into a pool that reclaims and into one that has no need to, in turns. What is copied is
/// read and written once more, so the pool that reclaims may fall behind by that, and by a tenth
/// for all the rest.
fn throughput(hints: Hints) -> Throughput {
    let directory = Directory::new();
    let [mut full, mut empty] = [("full", FULL_PERCENT), ("empty", EMPTY_PERCENT)]
        .map(|(name, percent)| Churn::new(directory.pool(name), hints, percent));
    (full.depth, empty.depth) = (DEPTH, DEPTH);
    full.fill();
    // Every byte of the files has been written before, as in the full pool.
    empty.write(empty.pool.description().capacity.0 * 11 / 10);
    let before = full.pool.stats().unwrap();
    let mut ratios = Vec::new();
    for turn in 0..TURNS {
        let took = |churn: &mut Churn| {
            let begun = Instant::now();
            churn.write(TURN_BYTES);
            begun.elapsed().as_secs_f64()
        };
        // Whoever goes first has the better or the worse of it.
        let (of_full, of_empty) = if turn % 2 == 0 {
            let first = took(&mut full);
            (first, took(&mut empty))
        } else {
            let first = took(&mut empty);
            (took(&mut full), first)
        };
        ratios.push(of_empty / of_full);
    }
    let amplification = amplification(&before, &full.pool.stats().unwrap());
    ratios.sort_unstable_by(f64::total_cmp);
    Throughput { amplification, of_empty: ratios[ratios.len() / 2] }
}

struct Throughput {
    amplification: f64,
    /// Share of the time that the pool that reclaims nothing takes.
    of_empty: f64,
}

impl Throughput {
    fn target(&self) -> f64 {
        0.9 / (1.0 + 2.0 * (self.amplification - 1.0))
    }
}

/// Holds the files, and goes with them.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        // In memory, where there is a file system for it: a disk that others use, too, drowns the
        // ratio.
        let memory = PathBuf::from("/dev/shm");
        let parent = if memory.is_dir() { memory } else { std::env::temp_dir() };
        let path = parent.join(format!("tidelog-reclamation-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn pool(&self, name: &str) -> Pool {
        let specs = [0, 1].map(|index| DeviceSpec::new(self.0.join(format!("{name}{index}"))));
        let format = FormatOptions {
            device_size: Some(ByteCount::mib(512)),
            segment_size: Some(ByteCount::mib(1)),
            buffered: true,
            ..format_options()
        };
        Pool::format(&specs, &format).unwrap();
        let options = OpenOptions { huge_pages: false, buffered: true, ..OpenOptions::default() };
        Pool::open(&specs, &options).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// A training loop whose plan knows when everything dies: activations leave in the forward pass and
/// die in the backward pass, last first; gradients live from there to the next step's.
fn planned_steps() -> f64 {
    let pool = open(Lanes::ByLifetime);
    let capacity = pool.description().capacity.0;
    let tensors = capacity * FULL_PERCENT / 100 / (TENSOR_BLOCKS_MAX * BLOCK) / 5 * 4;
    let before = pool.stats().unwrap();
    let mut written = 0;
    while written < OVERWRITES * capacity {
        for tensor in 0..tensors {
            put(&pool, tensor, TENSOR_BLOCKS_MAX, LifetimeClass::Transient).wait().unwrap();
            written += TENSOR_BLOCKS_MAX * BLOCK;
        }
        for tensor in (0..tensors).rev() {
            pool.delete(TensorId(tensor.into())).unwrap();
            if tensor % 4 == 0 {
                put(&pool, tensors + tensor / 4, TENSOR_BLOCKS_MAX, LifetimeClass::Step)
                    .wait()
                    .unwrap();
                written += TENSOR_BLOCKS_MAX * BLOCK;
            }
        }
    }
    pool.audit().unwrap();
    amplification(&before, &pool.stats().unwrap())
}

/// Host bytes for each tensor byte between two moments.
#[allow(clippy::cast_precision_loss)] // A ratio to be shown.
fn amplification(before: &PoolStats, after: &PoolStats) -> f64 {
    let host = |stats: &PoolStats| {
        stats.reactor.devices.iter().map(|device| device.bytes_written).sum::<u64>()
    };
    let user = |stats: &PoolStats| stats.written.scratch.iter().map(|bytes| bytes.0).sum::<u64>();
    (host(after) - host(before)) as f64 / (user(after) - user(before)) as f64
}
