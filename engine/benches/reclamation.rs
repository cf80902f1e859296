//! What reclamation costs: bytes written to the devices for each byte that was put.
//!
//! ```text
//! cargo bench -p tidelog-engine --bench reclamation
//! ```
//!
//! Simulated disks, so that the figure depends on nothing but the seed. Tensors of 4 to 64 KiB live for
//! 1, 10, 100 or 1000 units of time, as many bytes for each; one unit writes as many bytes as keep the pool
//! 80 % full. One hint in ten names another lifetime. The pool is filled until the oldest tensors die,
//! then written over ten times, which is what is measured.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use tidelog_engine::layout::{LifetimeClass, TensorId};
use tidelog_engine::memory::Source;
use tidelog_engine::path::sim::SimDisk;
use tidelog_engine::pool::{FormatOptions, Lanes, OpenOptions, Pool, PoolStats, PutOptions};
use tidelog_engine::units::ByteCount;

const BLOCK: u64 = 4096;
const TENSOR_BLOCKS_MAX: u64 = 16;
const FULL_PERCENT: u64 = 80;
const OVERWRITES: u64 = 10;
const WRONG_HINTS_PERCENT: u64 = 10;
/// In units of time.
const LIFETIMES: [u64; 4] = [1, 10, 100, 1000];
/// The lane that a hinted lifetime goes to.
const CLASSES: [LifetimeClass; 4] = [
    LifetimeClass::Transient,
    LifetimeClass::Transient,
    LifetimeClass::Step,
    LifetimeClass::Persistent,
];
/// What lanes must reach with some hints wrong.
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
}

#[derive(Clone, Copy, PartialEq)]
enum Hints {
    /// All tensors look alike.
    None,
    /// So many of a hundred are wrong.
    Wrong(u64),
}

fn open(lanes: Lanes) -> Pool {
    let disks = [SimDisk::new(ByteCount::mib(128)), SimDisk::new(ByteCount::mib(128))];
    let format = FormatOptions {
        stripe_unit: ByteCount::kib(64),
        segment_size: Some(ByteCount::kib(128)),
        ..FormatOptions::default()
    };
    Pool::format_sim(&disks, &format).unwrap();
    let options = OpenOptions { huge_pages: false, lanes, ..OpenOptions::default() };
    Pool::open_sim(&disks, &options).unwrap()
}

fn put(pool: &Pool, id: u64, blocks: u64, lifetime: LifetimeClass) {
    let source = Source::from(vec![id as u8; (blocks * BLOCK) as usize]);
    let options = PutOptions { lifetime, ..PutOptions::default() };
    pool.put(TensorId(id.into()), source, options).unwrap().wait().unwrap();
}

fn random_lifetimes(lanes: Lanes, hints: Hints) -> f64 {
    let pool = open(lanes);
    let capacity = pool.description().capacity.0;
    // A quarter of what is written in one unit lives for each lifetime.
    let unit = capacity * FULL_PERCENT / 100 * 4 / LIFETIMES.iter().sum::<u64>();
    let warm = unit * LIFETIMES[3];
    let mut random = Random(1);
    let mut deaths = BinaryHeap::new();
    let (mut written, mut id) = (0, 0);
    let mut before = None;
    while written < warm + OVERWRITES * capacity {
        if written >= warm && before.is_none() {
            before = Some(pool.stats().unwrap());
        }
        while let Some(&Reverse((death, dying))) = deaths.peek()
            && death <= written
        {
            deaths.pop();
            pool.delete(TensorId(u128::from(dying))).unwrap();
        }
        let lifetime = random.below(4);
        let wrong = matches!(hints, Hints::Wrong(percent) if random.below(100) < percent);
        let hinted = if wrong { (lifetime + 1 + random.below(3)) % 4 } else { lifetime };
        let class = match hints {
            Hints::None => LifetimeClass::Step,
            Hints::Wrong(_) => CLASSES[hinted as usize],
        };
        let blocks = 1 + random.below(TENSOR_BLOCKS_MAX);
        put(&pool, id, blocks, class);
        written += blocks * BLOCK;
        deaths.push(Reverse((written + LIFETIMES[lifetime as usize] * unit, id)));
        id += 1;
    }
    pool.audit().unwrap();
    amplification(&before.unwrap(), &pool.stats().unwrap())
}

/// A training loop whose plan knows when everything dies: activations leave in the forward pass and die in
/// the backward pass, last first; gradients live from there to the next step's.
fn planned_steps() -> f64 {
    let pool = open(Lanes::ByLifetime);
    let capacity = pool.description().capacity.0;
    let tensors = capacity * FULL_PERCENT / 100 / (TENSOR_BLOCKS_MAX * BLOCK) / 5 * 4;
    let before = pool.stats().unwrap();
    let mut written = 0;
    while written < OVERWRITES * capacity {
        for tensor in 0..tensors {
            put(&pool, tensor, TENSOR_BLOCKS_MAX, LifetimeClass::Transient);
            written += TENSOR_BLOCKS_MAX * BLOCK;
        }
        for tensor in (0..tensors).rev() {
            pool.delete(TensorId(tensor.into())).unwrap();
            if tensor % 4 == 0 {
                put(&pool, tensors + tensor / 4, TENSOR_BLOCKS_MAX, LifetimeClass::Step);
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

/// `SplitMix64`.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed ^ (mixed >> 31)) % limit
    }
}
