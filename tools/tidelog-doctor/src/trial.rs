//! One round trip by one data path: a tensor is put, got back, compared by checksum, and timed.
//!
//! Every row of the page comes from here, whatever memory the tensor is in and whatever brings it to the devices, so that
//! their numbers can be compared.

mod memory;

use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::GpuMemory;
use tidelog_engine::path::{Backend, DeviceSpec, Feature, PathChoice};
use tidelog_engine::pool::{OpenOptions, Pool};
use tidelog_engine::schedule::{GpuStats, ReactorStats, TransferError};
use tidelog_engine::units::ByteCount;
use tidelog_gds::{Gpu, StagedGpu};

use memory::Memory;

/// Small reads, one at a time, for the latency.
const SMALL_READS: u64 = 64;
/// Bytes of one of those.
const SMALL: u64 = 4096;
/// "tidelogdoctortri", which no framework's name hashes to but by a chance of one in 2^128.
const TENSOR: TensorId = TensorId(0x7469_6465_6c6f_6764_6f63_746f_7274_7269);

/// By what a tensor goes to the devices, and where it is.
#[derive(Clone, Debug, Default)]
pub struct Way {
    /// The engine's data path.
    pub path: PathChoice,
    /// One that is no part of the engine, instead.
    pub backend: Option<Arc<dyn Backend>>,
    /// The GPU whose memory the tensor is in; the host's if there is none.
    pub gpu: Option<Arc<Gpu>>,
    /// Whether it counts only if no byte passes through the host.
    pub past_the_host: bool,
}

/// What a round trip showed.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Bytes written in a second.
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
    #[error("wrong bytes came back: {0}")]
    WrongBytes(String),
}

impl TrialError {
    pub(crate) fn unavailable(error: impl ToString) -> Self {
        Self::Unavailable(error.to_string())
    }

    fn failed(error: impl ToString) -> Self {
        Self::Failed(error.to_string())
    }
}

/// The log has compared what it read with its checksums, twice, before it says so.
impl From<TransferError> for TrialError {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Checksum { .. } => Self::WrongBytes(error.to_string()),
            error => Self::failed(error),
        }
    }
}

/// Puts a scratch tensor of `size` bytes into the pool on `devices`, gets it back, and deletes it. The pool's own tensors
/// stay as they are.
///
/// # Errors
/// The pool does not open by this way, or an operation fails, or other bytes come back.
pub fn round_trip(
    devices: &[DeviceSpec],
    way: &Way,
    size: ByteCount,
) -> Result<Measured, TrialError> {
    let options = options_of(way);
    let pool = Pool::open(devices, &options).map_err(TrialError::unavailable)?;
    let measured = round_trip_in(&pool, way, size)?;
    pool.close().map_err(TrialError::failed)?;
    Ok(measured)
}

/// How a pool is opened for a way.
pub fn options_of(way: &Way) -> OpenOptions {
    let gpu = way.gpu.clone().map(|gpu| Arc::new(StagedGpu(gpu)) as Arc<dyn GpuMemory>);
    let (path, backend) = (way.path, way.backend.clone());
    OpenOptions { path, backend, gpu, housekeeping: None, ..OpenOptions::default() }
}

/// The same as [`round_trip`] in a pool that is open, by the way that it was opened for.
///
/// # Errors
/// As for [`round_trip`].
pub fn round_trip_in(pool: &Pool, way: &Way, size: ByteCount) -> Result<Measured, TrialError> {
    let reactor = pool.stats().map_err(TrialError::failed)?.reactor;
    if let (true, Some(GpuStats { reached: Feature::Off(why), .. })) =
        (way.past_the_host, &reactor.gpu)
    {
        return Err(TrialError::unavailable(why));
    }
    if pool.contains(TENSOR) {
        let taken = "the pool has a tensor of this tool's id already; it is left alone";
        return Err(TrialError::failed(taken));
    }
    let measured = measure(pool, way, size.0.max(SMALL));
    // Also where something failed: what is no tensor is none to delete.
    let deleted = pool.delete(TENSOR);
    let (write, read, latency) = measured?;
    deleted.map_err(TrialError::failed)?;
    Ok(Measured { write, read, latency, notes: notes_of(reactor) })
}

/// Write and read in bytes per second, and the latency.
fn measure(
    pool: &Pool,
    way: &Way,
    length: u64,
) -> Result<(ByteCount, ByteCount, Duration), TrialError> {
    let mut bytes = vec![0; length as usize];
    fill(&mut bytes);
    let sum = crc32c::crc32c(&bytes);
    let mut memory = Memory::new(length as usize, way.gpu.as_ref())?;
    let write = rate(length, memory.put(pool, bytes)?);
    let (read, found) = memory.get(pool, 0..length)?;
    if crc32c::crc32c(&found) != sum {
        let found = crc32c::crc32c(&found);
        let told = format!("CRC32C {found:#010x} where {sum:#010x} was put");
        return Err(TrialError::WrongBytes(told));
    }
    Ok((write, rate(length, read), latency(pool, &mut memory, length)?))
}

/// The median of small reads.
fn latency(pool: &Pool, memory: &mut Memory, length: u64) -> Result<Duration, TrialError> {
    let read = |at| memory.get(pool, small_range(at, length)).map(|(time, _)| time);
    let mut times = (0..SMALL_READS).map(read).collect::<Result<Vec<_>, _>>()?;
    times.sort();
    Ok(times[times.len() / 2])
}

/// Far from each other, so that no read helps the next.
fn small_range(at: u64, length: u64) -> Range<u64> {
    let start = at.wrapping_mul(0x9E37_79B9_7F4A_7C15) % (length / SMALL) * SMALL;
    start..start + SMALL
}

/// What the path says of itself, and how the GPU's memory gets to it.
fn notes_of(reactor: ReactorStats) -> Vec<String> {
    let of_gpu = reactor.gpu.map(|gpu| match (gpu.reached, gpu.page_locked) {
        (Feature::On, _) => format!("{}: no byte passes through the host", gpu.name),
        (_, Feature::On) => format!("{}: staged in page-locked host memory", gpu.name),
        (_, Feature::Off(why)) => {
            format!("{}: staged in host memory that is not page-locked ({why})", gpu.name)
        }
    });
    reactor.capabilities.notes.into_iter().chain(of_gpu).collect()
}

/// Bytes that say where they belong.
fn fill(bytes: &mut [u8]) {
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let value = (at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes();
        word.copy_from_slice(&value[..word.len()]);
    }
}

fn rate(bytes: u64, time: Duration) -> ByteCount {
    let nanoseconds = time.as_nanos().max(1);
    ByteCount(u64::try_from(u128::from(bytes) * 1_000_000_000 / nanoseconds).unwrap_or(u64::MAX))
}

/// How long something took, and what it gave.
fn timed<T, E>(act: impl FnOnce() -> Result<T, E>) -> Result<(Duration, T), E> {
    let begun = Instant::now();
    act().map(|given| (begun.elapsed(), given))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidelog_engine::path::OperationKind;
    use tidelog_engine::path::sim::{Fault, SimDisk};
    use tidelog_engine::pool::FormatOptions;

    const SIZE: ByteCount = ByteCount::mib(4);

    fn disk() -> SimDisk {
        let disk = SimDisk::new(ByteCount::mib(32));
        Pool::format_sim(&[disk.clone()], &FormatOptions::default()).unwrap();
        disk
    }

    fn on(disk: &SimDisk) -> Result<Measured, TrialError> {
        let way = Way::default();
        let pool = Pool::open_sim(&[disk.clone()], &options_of(&way)).unwrap();
        round_trip_in(&pool, &way, SIZE)
    }

    #[test]
    fn a_path_that_works_is_measured_and_leaves_no_tensor() {
        let disk = disk();
        let measured = on(&disk).unwrap();
        assert!(measured.write > ByteCount::ZERO && measured.read > ByteCount::ZERO);
        assert!(measured.latency > Duration::ZERO);
        assert_eq!(on(&disk).unwrap().notes, measured.notes, "a second time");
    }

    #[test]
    fn a_path_that_fails_says_where() {
        let disk = disk();
        let way = Way::default();
        let pool = Pool::open_sim(&[disk.clone()], &options_of(&way)).unwrap();
        disk.plan_fault(OperationKind::Write, 3, Fault::Errno(5));
        let error = round_trip_in(&pool, &way, SIZE).unwrap_err();
        assert!(
            matches!(&error, TrialError::Failed(what) if what.contains("write of 256 KiB")),
            "{error}"
        );
        assert!(!pool.contains(TENSOR));
    }

    #[test]
    fn other_bytes_are_told_from_a_failure() {
        let disk = disk();
        let way = Way::default();
        let pool = Pool::open_sim(&[disk.clone()], &options_of(&way)).unwrap();
        // The log reads again what its checksum does not fit.
        for at in 3..40 {
            disk.plan_fault(OperationKind::Read, at, Fault::Corrupt);
        }
        let error = round_trip_in(&pool, &way, SIZE).unwrap_err();
        assert!(matches!(error, TrialError::WrongBytes(_)), "{error}");
    }

    #[test]
    fn no_two_stripe_units_have_the_same_bytes() {
        let mut bytes = vec![0; 1 << 20];
        fill(&mut bytes);
        let units: Vec<&[u8]> = bytes.chunks(256 << 10).collect();
        assert!(units.iter().enumerate().all(|(at, unit)| !units[..at].contains(unit)));
    }

    #[test]
    fn small_reads_lie_within_the_tensor() {
        for length in [SMALL, SMALL + 1, 3 * SMALL, SIZE.0] {
            assert!((0..SMALL_READS).all(|at| small_range(at, length).end <= length), "{length}");
        }
    }
}
