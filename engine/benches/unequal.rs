//! Throughput of two devices, one of which has a third of the other's rate: `cargo bench -p
//! tidelog-engine --bench unequal`.
//!
//! Two simulated disks that take real time. Scratch tensors are put and read, many at a time, with
//! segments striped over both as if they were equal, and shared out by their rates, in turns. Ends
//! non-zero where less than [`LEAST`] of the sum of both rates is reached by rates.

use std::collections::VecDeque;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::layout::{DeviceRates, TensorId};
use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::sim::{SimDisk, SimProfile};
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::{Ticket, Urgency};
use tidelog_engine::units::ByteCount;

/// Least part of the sum of both rates.
const LEAST: f64 = 0.9;
/// Rates of the devices in a second.
const RATES: [ByteCount; 2] = [ByteCount::mib(300), ByteCount::mib(100)];
const DISK: ByteCount = ByteCount::mib(384);
const TENSOR: usize = 4 << 20;
/// Tensors that are alive, and so the part of the space that is used: a sixth.
const TENSORS: u64 = 32;
/// Transfers in flight.
const DEPTH: usize = 12;
const ROUND: Duration = Duration::from_secs(2);
/// Odd, as the median counts.
const ROUNDS: usize = 3;

struct Load {
    pool: Pool,
    turn: u64,
}

impl Load {
    fn new(rates: Option<DeviceRates>) -> Self {
        let disks = RATES.map(|_| SimDisk::with_profile(DISK, SimProfile::plain()));
        let segment_size = Some(ByteCount::mib(4));
        let format = FormatOptions { rates, segment_size, ..FormatOptions::default() };
        Pool::format(&disks, &format).expect("blank disks are formatted");
        let options =
            OpenOptions { huge_pages: false, housekeeping: None, ..OpenOptions::default() };
        let pool = Pool::open(&disks, &options).expect("a fresh pool opens");
        for (disk, rate) in disks.iter().zip(RATES) {
            disk.set_rate(Some(rate));
        }
        Self { pool, turn: 0 }
    }

    /// Returns the MiB in a second of transfers, of which `DEPTH` are in flight.
    #[expect(clippy::cast_precision_loss, reason = "a rate to be shown")]
    fn rate(&mut self, start: impl Fn(&Pool, TensorId) -> Ticket) -> f64 {
        let mut in_flight: VecDeque<Ticket> = VecDeque::new();
        let (mut begun, mut bytes) = (Instant::now(), 0);
        for count in 0.. {
            self.turn += 1;
            in_flight.push_back(start(&self.pool, TensorId(u128::from(self.turn % TENSORS) + 1)));
            if in_flight.len() < DEPTH {
                continue;
            }
            let first = in_flight.pop_front().expect("as many as are in flight");
            first.wait().expect("a simulated disk does not fail");
            // What is in flight at the begin is as much as at the end.
            if count == 2 * DEPTH {
                (begun, bytes) = (Instant::now(), 0);
            }
            bytes += TENSOR;
            if count > 2 * DEPTH && begun.elapsed() > ROUND {
                break;
            }
        }
        let rate = bytes as f64 / f64::from(1 << 20) / begun.elapsed().as_secs_f64();
        for transfer in in_flight {
            transfer.wait().expect("a simulated disk does not fail");
        }
        rate
    }

    fn puts(&mut self) -> f64 {
        let bytes: Arc<[u8]> = vec![7; TENSOR].into();
        self.rate(|pool, id| {
            let source = Source::Shared(Arc::clone(&bytes));
            pool.put(id, source, PutOptions::default()).expect("there is room")
        })
    }

    fn gets(&mut self) -> f64 {
        self.rate(|pool, id| {
            let memory = Destination::buffer(TENSOR);
            let get = pool.get(id, 0..TENSOR as u64, memory, Urgency::Ahead, None);
            get.expect("it was put")
        })
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> ExitCode {
    let mut loads = [Load::new(None), Load::new(Some(DeviceRates::of(RATES)))];
    let mut rates = [const { [const { Vec::new() }; 2] }; 2];
    for _ in 0..ROUNDS {
        for (load, [puts, gets]) in loads.iter_mut().zip(&mut rates) {
            puts.push(load.puts());
            gets.push(load.gets());
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "a rate to be shown")]
    let sum = RATES.iter().map(|rate| (rate.0 >> 20) as f64).sum::<f64>();
    println!("devices of 300 and 100 MiB/s; of the sum of both, medians of {ROUNDS} rounds:");
    let [even, shared] = rates.map(|rates| rates.map(|rates| median(rates) / sum));
    for (what, [puts, gets]) in [("as if they were equal", even), ("by their rates", shared)] {
        println!("{what:24} puts {puts:.2}, gets {gets:.2}");
    }
    if shared.iter().all(|it| *it >= LEAST) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
