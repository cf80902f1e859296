//! Cost of second copies: durable puts with two copies beside the same with one.
//!
//! ```text
//! cargo bench -p tidelog-engine --bench copies [directory]
//! ```
//!
//! A pool of two files in `target` (or in the directory that is named: the ratios are those of its
//! disk). Batches of large tensors are put and committed, with one copy and with two in turns, and
//! then read. Twice as many bytes are written with two, so that no ratio of puts above a half is to
//! be had from a disk that is busy all the time.

use std::path::PathBuf;
use std::time::Instant;

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{Copies, FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::Urgency;
use tidelog_engine::units::ByteCount;

const TENSORS: u64 = 8;
const TENSOR_BYTES: usize = 4 << 20;
const TURNS: usize = 9;

fn main() {
    // Cargo passes options of its own harness, which this is not.
    let named = std::env::args().skip(1).find(|argument| !argument.starts_with('-'));
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let directory = named.map_or(target, PathBuf::from).join("tidelog-bench-copies");
    std::fs::create_dir_all(&directory).unwrap();
    let specs = ["a", "b"].map(|name| DeviceSpec::new(directory.join(name)));
    let format = FormatOptions {
        device_size: Some(ByteCount::mib(256)),
        copies: Copies::Two,
        overwrite: true,
        ..FormatOptions::default()
    };
    Pool::format(&specs, &format).unwrap();
    let options = OpenOptions { huge_pages: false, housekeeping: None, ..OpenOptions::default() };
    let pool = Pool::open(&specs, &options).unwrap();
    let mut rates = [const { Vec::new() }; 4];
    // The first turn warms up.
    for turn in 0..=TURNS {
        let of_turn = Copies::ALL.map(|copies| [put(&pool, copies), get(&pool, copies)]);
        for (rates, rate) in rates.iter_mut().zip(of_turn.concat()).filter(|_| turn > 0) {
            rates.push(rate);
        }
    }
    let [put_one, get_one, put_two, get_two] = rates.map(|mut rates| {
        rates.sort_by(f64::total_cmp);
        rates[TURNS / 2]
    });
    println!("{TENSORS} tensors of {TENSOR_BYTES} bytes in a commit, medians of {TURNS} turns");
    println!("{:6} {:>10} {:>10} {:>8}", "MiB/s", "one copy", "two", "ratio");
    println!("{:6} {put_one:>10.0} {put_two:>10.0} {:>8.3}", "puts", put_two / put_one);
    println!("{:6} {get_one:>10.0} {get_two:>10.0} {:>8.3}", "gets", get_two / get_one);
    pool.close().unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
}

/// Puts and commits all tensors; MiB in a second.
fn put(pool: &Pool, copies: Copies) -> f64 {
    rate(|| {
        let mut batch = pool.batch().with_copies(copies);
        for tensor in 0..TENSORS {
            let source = Source::from(vec![tensor as u8; TENSOR_BYTES]);
            batch.put(id(copies, tensor), source, PutOptions::default()).unwrap();
        }
        batch.commit().unwrap();
    })
}

/// Reads all of them.
fn get(pool: &Pool, copies: Copies) -> f64 {
    rate(|| {
        let get = |tensor| {
            let memory = Destination::buffer(TENSOR_BYTES);
            let range = 0..TENSOR_BYTES as u64;
            pool.get(id(copies, tensor), range, memory, Urgency::Urgent, None).unwrap()
        };
        let reads: Vec<_> = (0..TENSORS).map(get).collect();
        for read in reads {
            read.wait().unwrap();
        }
    })
}

fn id(copies: Copies, tensor: u64) -> TensorId {
    TensorId(u128::from(copies.count()) << 64 | u128::from(tensor))
}

#[allow(clippy::cast_precision_loss)] // A rate to be shown.
fn rate(work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    (TENSORS as usize * TENSOR_BYTES) as f64 / f64::from(1 << 20) / begun.elapsed().as_secs_f64()
}
