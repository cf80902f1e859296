//! Rate at which a replacement gets what the lost device had: `cargo bench -p tidelog-engine
//! --bench rebuild`.
//!
//! Simulated disks that take real time; all durable tensors have two copies. One disk is lost and
//! replaced. Ends non-zero where the new one is written at less than [`LEAST`] of its rate, the
//! opening and the index included, as a median of rounds.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use tidelog_engine::layout::{Copies, TensorId};
use tidelog_engine::memory::Source;
use tidelog_engine::path::sim::{SimDisk, SimProfile};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions, ReplaceOptions, replace};
use tidelog_engine::units::ByteCount;

const LEAST: f64 = 0.8;
/// Rate of each disk in a second.
const RATE: ByteCount = ByteCount::mib(400);
const DISK: ByteCount = ByteCount::mib(512);
/// Tensor bytes on each device.
const EACH: u64 = 384 << 20;
/// Odd, as the median counts.
const ROUNDS: usize = 3;

fn disk() -> SimDisk {
    SimDisk::with_profile(DISK, SimProfile::plain())
}

/// Makes a pool of `count` disks, full of tensors of `tensor` bytes.
fn filled(count: u64, tensor: u64) -> Vec<SimDisk> {
    let disks: Vec<SimDisk> = (0..count).map(|_| disk()).collect();
    let format = FormatOptions { copies: Copies::Two, ..FormatOptions::default() };
    Pool::format(&disks, &format).expect("blank disks are formatted");
    let options = OpenOptions { huge_pages: false, housekeeping: None, ..OpenOptions::default() };
    let pool = Pool::open(&disks, &options).expect("a fresh pool opens");
    let bytes: Arc<[u8]> = vec![7; tensor as usize].into();
    for batch_of in (0..EACH * count / 2 / tensor).collect::<Vec<_>>().chunks(64) {
        let mut batch = pool.batch();
        for id in batch_of {
            let source = Source::Shared(Arc::clone(&bytes));
            let id = TensorId(u128::from(*id) + 1);
            batch.put(id, source, PutOptions::default()).expect("there is room");
        }
        batch.commit().expect("a simulated disk does not fail");
    }
    pool.close().expect("a simulated disk does not fail");
    disks
}

/// Replaces the last disk; returns the part of its rate at which the new one was written.
#[expect(clippy::cast_precision_loss, reason = "a rate to be shown")]
fn rebuilt(disks: &mut [SimDisk]) -> f64 {
    let (last, others) = disks.split_last_mut().expect("a pool has disks");
    let new = disk();
    for disk in others.iter().chain([&new]) {
        disk.set_rate(Some(RATE));
    }
    let begun = Instant::now();
    let done = replace(&new, others, &ReplaceOptions::default(), &mut |_| ());
    let done = done.expect("the others have all of it");
    let rate = done.bytes.0 as f64 / begun.elapsed().as_secs_f64();
    assert!(done.lost.is_empty() && done.bytes.0 >= EACH * 9 / 10, "{done:?}");
    *last = new;
    rate / RATE.0 as f64
}

fn main() -> ExitCode {
    let mut is_fast = true;
    println!("a new device is written at this part of its rate, medians of {ROUNDS} rounds:");
    for (count, tensor) in [(2, 4 << 20), (3, 4 << 20), (3, 100 << 10), (2, 16 << 10)] {
        let mut disks = filled(count, tensor);
        let mut rates: Vec<f64> = (0..ROUNDS).map(|_| rebuilt(&mut disks)).collect();
        rates.sort_by(f64::total_cmp);
        let rate = rates[ROUNDS / 2];
        println!("{count} devices, tensors of {tensor:7} bytes: {rate:.2} [{LEAST}]");
        is_fast &= rate >= LEAST || tensor < 64 << 10;
    }
    if is_fast { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
