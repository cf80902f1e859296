//! Cost of one silent device to the others: `cargo bench -p tidelog-engine --bench stall`.
//!
//! Three simulated disks, 256 KiB pieces. Two of them are written as fast as can be and read
//! urgently for ten seconds; in every other round the third, which is written as well, does not
//! respond all the while. Three such pairs of rounds, a minute in all. Ends non-zero where the
//! others' throughput is below [`LEAST`] of theirs alone, or their urgent reads' 99th percentile
//! above [`MOST`] times theirs alone, as medians of rounds side by side.
//!
//! Two numbers are other seconds and pairs: `-- 1 31` is better where others use the machine, too.

use std::fs::DirEntry;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use tidelog_engine::memory::{Destination, Source};
use tidelog_engine::path::sim::{SimDisk, SimDisks, SimProfile};
use tidelog_engine::schedule::{Finish, Piece, Reactor, ReactorOptions, Ticket, Transfer, Urgency};
use tidelog_engine::units::{ByteCount, DeviceIndex};

const LEAST: f64 = 0.9;
const MOST: f64 = 2.0;
/// Time for which the third device does not respond, in seconds.
const ROUND: u64 = 10;
/// Rounds without and with it, in turn. Odd, as the median counts.
const PAIRS: u64 = 3;
/// Time until allocator and caches are warm.
const WARM_UP: Duration = Duration::from_secs(1);
const CHUNK: u64 = 256 << 10;
const DISK: ByteCount = ByteCount::mib(64);
/// Pieces in flight for each device.
const DEPTH: usize = 16;

struct Load {
    disks: [SimDisk; 3],
    reactor: Reactor,
    memory: &'static [u8],
    turn: u64,
}

struct Measured {
    /// Bytes in a second.
    rate: f64,
    /// Bytes in a second of processor time, which others who use the machine change less.
    of_processor: f64,
    /// The latency of an urgent read, 99th percentile.
    p99: Duration,
}

impl Load {
    fn new() -> Self {
        let disks = [(); 3].map(|()| SimDisk::with_profile(DISK, SimProfile::plain()));
        let options = ReactorOptions { staging: ByteCount::mib(16), ..ReactorOptions::default() };
        let provider = Box::new(SimDisks(disks.to_vec()));
        let reactor = Reactor::start(provider, options).expect("simulated disks are opened");
        let memory = vec![7; CHUNK as usize].leak();
        Self { disks, reactor, memory, turn: 0 }
    }

    fn submit(&mut self, device: u8, read: bool) -> Ticket {
        self.turn += 1;
        let offset = ByteCount(self.turn * CHUNK % DISK.0);
        let pieces = vec![Piece::new(DeviceIndex(device), offset, 0, CHUNK as u32)];
        let (transfer, urgency) = if read {
            let destination = Destination::buffer(CHUNK as usize);
            (Transfer::Read { destination, pieces }, Urgency::Urgent)
        } else {
            let source = Source::from(self.memory.to_vec());
            (Transfer::Write { source, pieces }, Urgency::Ahead)
        };
        let ticket = self.reactor.submit(transfer, urgency, None, Finish::nothing());
        ticket.expect("the reactor is open")
    }

    /// Writes to two devices and reads from them, while the third has as much to do as each and
    /// does not respond.
    fn run(&mut self, stalled: bool, time: Duration) -> Measured {
        let third: Vec<Ticket> = if stalled {
            self.disks[0].hold();
            (0..DEPTH * 4).map(|_| self.submit(0, false)).collect()
        } else {
            Vec::new()
        };
        let (begun, ran, mut pieces, mut reads) = (Instant::now(), ran(), 0_u64, Vec::new());
        while begun.elapsed() < time {
            let writes: Vec<Ticket> =
                (0..2 * DEPTH).map(|turn| self.submit(1 + (turn % 2) as u8, false)).collect();
            for device in [1, 2] {
                let asked = Instant::now();
                let read = self.submit(device, true);
                read.wait().expect("a simulated disk does not fail");
                reads.push(asked.elapsed());
            }
            pieces += writes.len() as u64 + 2;
            wait(&writes);
        }
        #[expect(clippy::cast_precision_loss, reason = "a rate to be shown")]
        let bytes = (pieces * CHUNK) as f64;
        let rate = bytes / begun.elapsed().as_secs_f64();
        let of_processor = bytes / self::ran().saturating_sub(ran).as_secs_f64();
        assert!(third.iter().all(|ticket| ticket.poll().is_none()), "it has answered");
        self.disks[0].release();
        wait(&third);
        reads.sort_unstable();
        Measured { rate, of_processor, p99: reads[reads.len() * 99 / 100] }
    }
}

fn wait(tickets: &[Ticket]) {
    for ticket in tickets {
        ticket.wait().expect("a simulated disk does not fail");
    }
}

/// Returns the processor time of this process's threads.
fn ran() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let of_task = |task: DirEntry| {
        let counts = std::fs::read_to_string(task.path().join("schedstat")).ok()?;
        counts.split(' ').next()?.parse::<u64>().ok()
    };
    Duration::from_nanos(tasks.filter_map(of_task).sum())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_unstable_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() -> ExitCode {
    let mut numbers = std::env::args().filter_map(|argument| argument.parse().ok());
    let round = Duration::from_secs(numbers.next().unwrap_or(ROUND));
    let pairs = numbers.next().unwrap_or(PAIRS);
    let mut load = Load::new();
    load.run(false, WARM_UP);
    let [mut rates, mut of_processor, mut waits] = [const { Vec::new() }; 3];
    for pair in 1..=pairs {
        let [alone, beside] = [false, true].map(|stalled| load.run(stalled, round));
        for (round, Measured { rate, of_processor, p99 }) in
            [("alone", &alone), ("beside", &beside)]
        {
            let [rate, of_processor] = [rate, of_processor].map(|it| it / 1e9);
            let p99 = p99.as_secs_f64() * 1e3;
            println!(
                "pair {pair}, {round}: {rate:.2} GB/s, {of_processor:.2} GB in a second of \
                 processor time, urgent reads' p99 {p99:.2} ms"
            );
        }
        rates.push(beside.rate / alone.rate);
        of_processor.push(beside.of_processor / alone.of_processor);
        waits.push(beside.p99.as_secs_f64() / alone.p99.as_secs_f64());
    }
    let [rate, of_processor, late] = [rates, of_processor, waits].map(median);
    println!("two devices beside one that answers nothing for {round:?}, of the same alone:");
    println!("throughput {rate:.2} [{LEAST}], {of_processor:.2} by processor time");
    println!("urgent reads' p99 {late:.2} x [{MOST}]");
    if rate >= LEAST && late <= MOST { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
