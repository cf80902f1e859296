//! One round trip by one data path: written, flushed, read back, compared by checksum, and timed.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::{Destination, DmaBuffer, DmaPool, Source};
use tidelog_engine::path::{
    Action, Backend, Completion, DataPath, DeviceSpec, Extent, Operation, PathChoice, PathProvider,
    Refusal,
};
use tidelog_engine::pool::{OpenOptions, Pool, PutOptions};
use tidelog_engine::schedule::Urgency;
use tidelog_engine::units::{ByteCount, DeviceIndex};

/// Bytes of one transfer.
pub const TRANSFER: u64 = 1 << 20;
/// Transfers in flight.
const DEPTH: u32 = 8;
/// Small reads, one at a time, for the latency.
const SMALL_READS: usize = 64;
/// Bytes of one of those.
const SMALL: u64 = 4096;
/// A trial that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a round trip showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Bytes written in a second, the flush included.
    pub write: ByteCount,
    /// Bytes read in a second.
    pub read: ByteCount,
    /// The median of small reads, one at a time.
    pub latency: Duration,
    /// What the path says of itself.
    pub notes: Vec<String>,
}

/// A round trip did not succeed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TrialError {
    /// The path does not open.
    #[error("{0}")]
    Unavailable(String),
    /// An operation failed, or never came back.
    #[error("{0}")]
    Failed(String),
    /// Other bytes came back than were written.
    #[error("wrong bytes came back from byte {at} on")]
    WrongBytes {
        /// Where the transfer begins that differs.
        at: u64,
    },
}

/// Writes `size` bytes from the device's start by the path that `provider` opens, and reads them back. What the device
/// held there is lost.
///
/// # Errors
/// The path does not open, or an operation fails, or other bytes come back.
pub fn round_trip(
    provider: Box<dyn PathProvider>,
    size: ByteCount,
) -> Result<Measured, TrialError> {
    let opened =
        provider.open(DEPTH).map_err(|error| TrialError::Unavailable(error.to_string()))?;
    let pool = DmaPool::new(ByteCount(u64::from(DEPTH) * TRANSFER), false);
    let pool = pool.map_err(|error| TrialError::Unavailable(error.to_string()))?;
    let mut trial = Trial { path: opened.path, pool, next_tag: 0 };
    trial.path.register(&trial.pool);
    let count = (size.0 / TRANSFER).max(1);

    let begun = Instant::now();
    let mut sums = vec![0; count as usize];
    let sums_of = &mut sums;
    trial.run(
        count,
        |at, mut buffer| {
            fill(&mut buffer, at);
            sums_of[at as usize] = crc32c::crc32c(&buffer);
            Action::Write { buffer, fua: false }
        },
        |_, _| Ok(()),
    )?;
    trial.flush()?;
    let write = rate(count * TRANSFER, begun.elapsed());

    let begun = Instant::now();
    trial.run(
        count,
        |_, buffer| Action::Read(buffer),
        |at, buffer| {
            let right = crc32c::crc32c(buffer) == sums[at as usize];
            if right { Ok(()) } else { Err(TrialError::WrongBytes { at: at * TRANSFER }) }
        },
    )?;
    let read = rate(count * TRANSFER, begun.elapsed());
    let latency = trial.latency(count * TRANSFER)?;
    let notes = trial.path.capabilities().notes.clone();
    Ok(Measured { write, read, latency, notes })
}

/// Puts a scratch tensor of `size` bytes into the pool on `devices` by a path, reads it back, and deletes it. The pool's
/// own tensors stay as they are.
///
/// # Errors
/// The pool does not open by this path, or an operation fails, or other bytes come back.
pub fn pool_round_trip(
    devices: &str,
    path: PathChoice,
    backend: Option<Arc<dyn Backend>>,
    size: ByteCount,
) -> Result<Measured, TrialError> {
    /// "tidelogdoctortri", which no framework's name hashes to but by a chance of one in 2^128.
    const TENSOR: TensorId = TensorId(0x7469_6465_6c6f_6764_6f63_746f_7274_7269);
    let unavailable = |error: &dyn std::fmt::Display| TrialError::Unavailable(error.to_string());
    let failed = |error: &dyn std::fmt::Display| TrialError::Failed(error.to_string());
    let specs = DeviceSpec::parse_list(devices).map_err(|error| unavailable(&error))?;
    let options = OpenOptions { path, backend, housekeeping: None, ..OpenOptions::default() };
    let pool = Pool::open(&specs, &options).map_err(|error| unavailable(&error))?;
    if pool.contains(TENSOR) {
        return Err(failed(&"the pool has a tensor of this tool's id already; it is left alone"));
    }
    let mut bytes = vec![0; size.0.max(SMALL) as usize];
    for (at, piece) in bytes.chunks_mut(TRANSFER as usize).enumerate() {
        fill(piece, at as u64);
    }
    let sum = crc32c::crc32c(&bytes);
    let length = bytes.len() as u64;
    let begun = Instant::now();
    let put = pool.put(TENSOR, Source::from(bytes), PutOptions::default());
    put.map_err(|error| failed(&error))?.wait().map_err(|error| failed(&error))?;
    let write = rate(length, begun.elapsed());
    let get = |range: std::ops::Range<u64>| {
        let destination = Destination::buffer((range.end - range.start) as usize);
        let ticket = pool.get(TENSOR, range, destination, Urgency::Urgent, None);
        let ticket = ticket.map_err(|error| failed(&error))?;
        ticket.wait().map_err(|error| failed(&error))?;
        ticket.take_bytes().ok_or_else(|| failed(&"the engine kept the bytes"))
    };
    let begun = Instant::now();
    let found = get(0..length)?;
    let read = rate(length, begun.elapsed());
    if crc32c::crc32c(&found) != sum {
        return Err(TrialError::WrongBytes { at: 0 });
    }
    let begun = Instant::now();
    get(0..SMALL)?;
    let latency = begun.elapsed();
    let stats = pool.stats().map_err(|error| failed(&error))?;
    pool.delete(TENSOR).map_err(|error| failed(&error))?;
    pool.close().map_err(|error| failed(&error))?;
    Ok(Measured { write, read, latency, notes: stats.reactor.capabilities.notes })
}

/// Bytes that say where they belong, and that no other transfer has.
fn fill(buffer: &mut [u8], transfer: u64) {
    for (at, word) in buffer.chunks_exact_mut(8).enumerate() {
        let value = (transfer << 32 | at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word.copy_from_slice(&value.to_le_bytes());
    }
}

fn rate(bytes: u64, time: Duration) -> ByteCount {
    let nanoseconds = time.as_nanos().max(1);
    ByteCount(u64::try_from(u128::from(bytes) * 1_000_000_000 / nanoseconds).unwrap_or(u64::MAX))
}

struct Trial {
    path: Box<dyn DataPath>,
    pool: DmaPool,
    next_tag: u64,
}

impl Trial {
    /// Does `count` transfers, as many at once as the depth allows.
    fn run(
        &mut self,
        count: u64,
        mut action: impl FnMut(u64, DmaBuffer) -> Action,
        mut look: impl FnMut(u64, &[u8]) -> Result<(), TrialError>,
    ) -> Result<(), TrialError> {
        let (first, mut ended, mut submitted) = (self.next_tag, 0, 0);
        let deadline = Instant::now() + PATIENCE;
        let mut completions = Vec::new();
        while ended < count {
            while submitted < count {
                let Some(buffer) = self.pool.take(TRANSFER as usize) else { break };
                let extent = Extent::new(submitted * TRANSFER, TRANSFER);
                if !self.submit(first + submitted, extent, action(submitted, buffer))? {
                    break;
                }
                submitted += 1;
            }
            self.await_some(&mut completions, deadline)?;
            for completion in completions.drain(..) {
                completion.result.map_err(|error| TrialError::Failed(error.to_string()))?;
                if let Some(buffer) = &completion.buffer {
                    look(completion.tag - first, buffer)?;
                }
                ended += 1;
            }
        }
        self.next_tag = first + count;
        Ok(())
    }

    fn flush(&mut self) -> Result<(), TrialError> {
        self.one(Extent::NOTHING, Action::Flush).map(|_| ())
    }

    fn latency(&mut self, size: u64) -> Result<Duration, TrialError> {
        let mut times = Vec::with_capacity(SMALL_READS);
        for at in 0..SMALL_READS as u64 {
            // Far from each other, so that no read helps the next.
            let offset = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (size / SMALL) * SMALL;
            let Some(buffer) = self.pool.take(SMALL as usize) else { break };
            let begun = Instant::now();
            self.one(Extent::new(offset, SMALL), Action::Read(buffer))?;
            times.push(begun.elapsed());
        }
        times.sort();
        Ok(times.get(times.len() / 2).copied().unwrap_or_default())
    }

    fn one(&mut self, extent: Extent, action: Action) -> Result<Completion, TrialError> {
        let tag = self.next_tag;
        self.next_tag += 1;
        self.submit(tag, extent, action)?;
        let mut completions = Vec::new();
        self.await_some(&mut completions, Instant::now() + PATIENCE)?;
        let completion = completions.remove(0);
        completion.result.map_err(|error| TrialError::Failed(error.to_string()))?;
        Ok(completion)
    }

    /// Answers whether it was taken; not while the path is full.
    fn submit(&mut self, tag: u64, extent: Extent, action: Action) -> Result<bool, TrialError> {
        let operation = Operation { tag, device: DeviceIndex(0), extent, action, placement: None };
        match self.path.submit(operation) {
            Ok(()) => Ok(true),
            Err(refused) if refused.reason == Refusal::Full => Ok(false),
            Err(refused) => Err(TrialError::Failed(refused.reason.to_string())),
        }
    }

    fn await_some(
        &mut self,
        completions: &mut Vec<Completion>,
        deadline: Instant,
    ) -> Result<(), TrialError> {
        let failed = |error: std::io::Error| TrialError::Failed(error.to_string());
        self.path.ring().map_err(failed)?;
        while self.path.poll(completions) == 0 {
            if Instant::now() > deadline {
                let late = format!("nothing completed within {} s", PATIENCE.as_secs());
                return Err(TrialError::Failed(late));
            }
            self.path.wait(Some(Duration::from_secs(1))).map_err(failed)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelog_engine::path::OperationKind;
    use tidelog_engine::path::sim::{Fault, SimDisk, SimDisks};

    #[test]
    fn a_path_that_works_is_measured() {
        let disk = SimDisk::new(ByteCount::mib(16));
        let measured = round_trip(Box::new(SimDisks(vec![disk])), ByteCount::mib(16)).unwrap();
        assert!(measured.write > ByteCount::ZERO && measured.read > ByteCount::ZERO);
    }

    #[test]
    fn a_path_that_fails_says_where() {
        let disk = SimDisk::new(ByteCount::mib(16));
        disk.plan_fault(OperationKind::Read, 3, Fault::Errno(5));
        let error = round_trip(Box::new(SimDisks(vec![disk])), ByteCount::mib(16)).unwrap_err();
        assert!(
            matches!(&error, TrialError::Failed(what) if what.contains("read of 1 MiB")),
            "{error}"
        );
    }

    #[test]
    fn no_two_transfers_have_the_same_bytes() {
        let (mut one, mut other) = (vec![0; 4096], vec![0; 4096]);
        fill(&mut one, 0);
        fill(&mut other, 1);
        assert!(one != other);
    }
}
