//! Ranks that share a pool: `make bench-ranks`, or `cargo bench -p tidelog-engine --bench ranks`.
//!
//! One, two and four processes, each with a share of one pool on files in memory (tmpfs), write and
//! read tensors of 1 MiB at the same time. The operations in flight and the tensors are as many
//! in all, however many ranks there are. Ends non-zero where several ranks together are slower than
//! one by more than [`TOGETHER`] allows, or one rank gets less than the others by more than
//! [`APART`].
//!
//! A device in memory is as fast as the processor, which the kernel divides. So as many processes
//! that only copy memory run in turn with the ranks ("copies"): how far apart they are is how
//! unevenly this machine divides itself, and no judgement of the ranks is finer than that.

use std::error::Error;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, DmaBuffer, Source};
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::{CompletionQueue, Ticket, TransferOutcome, Urgency};
use tidelog_engine::units::ByteCount;

/// Bytes a second of several ranks together, of those of one rank: at least.
const TOGETHER: f64 = 0.95;
/// Largest share of the mean by which one rank may fall behind it.
const APART: f64 = 0.10;
const RANKS: [usize; 3] = [1, 2, 4];
const BYTES: usize = 1 << 20;
/// Tensors of all ranks together: so many that no processor's cache holds them.
const TENSORS: u32 = 64;
/// Operations in flight, of all ranks together.
const DEPTH: usize = 32;
/// Files of the pool. The kernel writes a file of tmpfs under a lock, for which the ranks would
/// spin. Block devices have none, nor have the file systems that are written past the page cache.
const DEVICES: usize = 8;
const DEVICE_SIZE: ByteCount = ByteCount::mib(64);
const ROUND: Duration = Duration::from_secs(3);
const ROUNDS: usize = 5;
/// Argument in place of a pool, for a process that only copies memory.
const COPIES: &str = "copies";
/// An operation that takes longer never ends.
const TIMEOUT: Duration = Duration::from_secs(30);

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let done = match &*words {
        [_, _, folder] if folder == COPIES => copy_memory().map(|()| true),
        [share, ranks, folder] => be_a_rank(share, ranks, Path::new(folder)).map(|()| true),
        _ => compare(),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("ranks: {error}");
            ExitCode::from(2)
        }
    }
}

/// A folder in memory, removed at the end.
struct Folder(PathBuf);

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn devices(folder: &Path) -> Vec<DeviceSpec> {
    (0..DEVICES).map(|device| DeviceSpec::new(folder.join(device.to_string()))).collect()
}

fn compare() -> Result<bool, Box<dyn Error>> {
    let folder = Folder(PathBuf::from(format!("/dev/shm/tidelog-ranks-{}", std::process::id())));
    fs::create_dir(&folder.0)?;
    let format = FormatOptions {
        share_count: RANKS[RANKS.len() - 1] as u32,
        device_size: Some(DEVICE_SIZE),
        buffered: true,
        ..FormatOptions::default()
    };
    Pool::format(&devices(&folder.0), &format)?;

    let mut rounds: [Vec<Vec<Rates>>; RANKS.len()] = Default::default();
    let mut copies: [Vec<Vec<Rates>>; RANKS.len()] = Default::default();
    for round in 0..ROUNDS {
        for (index, &ranks) in RANKS.iter().enumerate() {
            rounds[index].push(run(ranks, &folder.0)?);
            copies[index].push(run(ranks, Path::new(COPIES))?);
        }
        eprintln!("round {} of {ROUNDS}", round + 1);
    }

    println!(
        "{DEPTH} in flight, {TENSORS} tensors of {BYTES} bytes in all, medians of {ROUNDS} rounds in turn:"
    );
    println!("{:>7}{:>10}{:>10}{:>12}{:>14}", "ranks", "", "GB/s", "of one", "furthest off");
    let mut kept = true;
    for (at, what) in ["writes", "reads"].into_iter().enumerate() {
        kept &= show(what, at, &rounds);
    }
    show(COPIES, 0, &copies);
    Ok(kept)
}

/// Prints what some numbers of ranks did; returns whether they kept to what is asked of them.
fn show(what: &str, at: usize, rounds: &[Vec<Vec<Rates>>]) -> bool {
    let mut kept = true;
    let total = |ranks: &Vec<Rates>| ranks.iter().map(|rates| rates[at]).sum::<f64>();
    let one = median(rounds[0].iter().map(total));
    for (ranks, found) in RANKS.iter().zip(rounds) {
        let all = median(found.iter().map(total));
        let mean = |ranks: &Vec<Rates>| total(ranks) / f64::from(ranks.len() as u32);
        let least = |ranks: &Vec<Rates>| {
            1.0 - ranks.iter().map(|rates| rates[at]).fold(f64::MAX, f64::min) / mean(ranks)
        };
        let apart = median(found.iter().map(least));
        kept &= all / one >= TOGETHER && apart <= APART;
        let rate = all / 1e9;
        println!("{ranks:>7}{what:>10}{rate:>10.2}{:>12.3}{:>13.1}%", all / one, apart * 100.0);
    }
    kept
}

/// Bytes a second of writes, and of reads.
type Rates = [f64; 2];

/// Lets `ranks` ranks write and read at the same time.
fn run(ranks: usize, folder: &Path) -> Result<Vec<Rates>, Box<dyn Error>> {
    let program = std::env::current_exe()?;
    let start = |share: usize| {
        Command::new(&program)
            .args([share.to_string(), ranks.to_string()])
            .arg(folder)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
    };
    let mut children = (0..ranks).map(start).collect::<Result<Vec<_>, _>>()?;
    let mut outputs: Vec<_> = children
        .iter_mut()
        .map(|child| BufReader::new(child.stdout.take().expect("it is piped")))
        .collect();
    let mut rates = vec![[0.0; 2]; ranks];
    for at in 0..2 {
        // All are there before any begins.
        outputs.iter_mut().try_for_each(|output| line(output).map(drop))?;
        children.iter_mut().try_for_each(say_go)?;
        for (output, rates) in outputs.iter_mut().zip(&mut rates) {
            rates[at] = line(output)?.trim().parse()?;
        }
    }
    for mut child in children {
        let ended = child.wait()?;
        if !ended.success() {
            return Err(format!("a rank ended with {ended}").into());
        }
    }
    Ok(rates)
}

fn line(output: &mut impl BufRead) -> std::io::Result<String> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    Ok(line)
}

fn say_go(child: &mut Child) -> std::io::Result<()> {
    child.stdin.as_mut().expect("it is piped").write_all(b"g")
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// One rank: opens its share, and writes and reads when it is told to.
fn be_a_rank(share: &str, ranks: &str, folder: &Path) -> Result<(), Box<dyn Error>> {
    let (share, ranks) = (share.parse()?, ranks.parse::<u32>()?);
    let depth = DEPTH / ranks as usize;
    let options = OpenOptions {
        share,
        buffered: true,
        buffers: ByteCount((BYTES * depth) as u64),
        depth: Some((depth / DEVICES).max(1) as u32),
        ..OpenOptions::default()
    };
    let pool = Pool::open(&devices(folder), &options)?;
    let buffer = |_| pool.buffer(BYTES).ok()?;
    let buffers: Option<Vec<_>> = (0..depth).map(buffer).collect();
    let buffers = buffers.ok_or("the pool has no buffers")?;
    let tensors = TENSORS / ranks;
    let mut rank = Rank { pool, queue: CompletionQueue::new(), buffers, tensors, turn: 0 };
    rank.move_for(Duration::ZERO, Rank::put)?; // every tensor is there to be read
    for start in [Rank::put, Rank::get] {
        println!("ready");
        std::io::stdin().read_exact(&mut [0])?;
        println!("{}", rank.move_for(ROUND, start)?);
    }
    rank.pool.close()?;
    Ok(())
}

/// Moves as many bytes as a rank does, within its own memory.
fn copy_memory() -> Result<(), Box<dyn Error>> {
    let bytes = TENSORS as usize * BYTES;
    let (from, mut to) = (vec![1_u8; bytes], vec![0_u8; bytes]);
    for _ in 0..2 {
        println!("ready");
        std::io::stdin().read_exact(&mut [0])?;
        let (begun, mut copied) = (Instant::now(), 0);
        while begun.elapsed() < ROUND {
            for (from, to) in from.chunks(BYTES).zip(to.chunks_mut(BYTES)) {
                std::hint::black_box(&mut *to).copy_from_slice(std::hint::black_box(from));
                std::hint::black_box(&*to);
                copied += 1;
            }
        }
        println!("{}", rate(copied, begun));
    }
    Ok(())
}

/// Returns bytes a second, of `pieces` pieces since `begun`.
fn rate(pieces: u32, begun: Instant) -> f64 {
    f64::from(pieces) * f64::from(BYTES as u32) / begun.elapsed().as_secs_f64()
}

type Started = Result<Ticket, Box<dyn Error>>;

struct Rank {
    pool: Pool,
    queue: CompletionQueue,
    /// Buffers that no operation uses.
    buffers: Vec<DmaBuffer>,
    tensors: u32,
    turn: u64,
}

impl Rank {
    /// Keeps the queue full for that long, and until each tensor had its turn. Returns bytes a
    /// second.
    fn move_for(
        &mut self,
        time: Duration,
        start: fn(&mut Self, DmaBuffer, TensorId, u64) -> Started,
    ) -> Result<f64, Box<dyn Error>> {
        let depth = self.buffers.len();
        let mut tickets: Vec<Option<Ticket>> =
            std::iter::repeat_with(|| None).take(depth).collect();
        let mut ready: Vec<usize> = (0..depth).collect();
        let (begun, mut ended) = (Instant::now(), 0);
        while begun.elapsed() < time || ended < self.tensors {
            for slot in std::mem::take(&mut ready) {
                self.turn += 1;
                let tensor = TensorId(u128::from(self.turn % u64::from(self.tensors)));
                let buffer = self.buffers.pop().expect("one for each slot");
                tickets[slot] = Some(start(self, buffer, tensor, slot as u64)?);
            }
            let (slot, outcome) = self.next_end()?;
            outcome?;
            ready.push(self.take_back(&mut tickets, slot));
            ended += 1;
        }
        let rate = rate(ended, begun);
        while tickets.iter().any(Option::is_some) {
            let (slot, outcome) = self.next_end()?;
            outcome?;
            self.take_back(&mut tickets, slot);
        }
        Ok(rate)
    }

    fn next_end(&self) -> Result<(u64, TransferOutcome), Box<dyn Error>> {
        Ok(self.queue.wait_pop(TIMEOUT).ok_or("no operation ends any more")?)
    }

    fn take_back(&mut self, tickets: &mut [Option<Ticket>], slot: u64) -> usize {
        let ticket = tickets[slot as usize].take().expect("its ticket");
        self.buffers.push(ticket.take_buffer().expect("it came with a buffer"));
        slot as usize
    }

    fn put(&mut self, buffer: DmaBuffer, tensor: TensorId, slot: u64) -> Started {
        let notify = Some((self.queue.clone(), slot));
        let options = PutOptions { notify, ..PutOptions::default() };
        Ok(self.pool.put(tensor, Source::Dma { buffer, length: BYTES }, options)?)
    }

    fn get(&mut self, buffer: DmaBuffer, tensor: TensorId, slot: u64) -> Started {
        let (memory, range) = (Destination::Dma { buffer, length: BYTES }, 0..BYTES as u64);
        let notify = Some((self.queue.clone(), slot));
        Ok(self.pool.get(tensor, range, memory, Urgency::Ahead, notify)?)
    }
}
