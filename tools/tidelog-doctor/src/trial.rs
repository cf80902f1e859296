//! One round trip by one data path: a tensor is put, got back, compared by checksum, and timed.
//!
//! Every row of the page comes from here, whatever memory the tensor is in and whatever brings it
//! to the devices, so that their numbers can be compared.

mod memory;

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidelog_engine::layout::TensorId;
use tidelog_engine::memory::GpuMemory;
use tidelog_engine::path::{Backend, DeviceSpec, Feature, PathChoice};
use tidelog_engine::pool::{OpenOptions, Pool};
use tidelog_engine::schedule::{GpuStats, ReactorStats, TransferError};
use tidelog_engine::units::ByteCount;
use tidelog_gds::{Gpu, StagedGpu};

use memory::TrialMemory;

/// Small reads, one at a time, for the latency.
const SMALL_READS: usize = 64;
/// Bytes of one of those.
const SMALL: usize = 4096;
/// "tidelogdoctortri"; the small ones' follow it. No framework's name hashes to one of them but by
/// a chance of one in 2^121.
const TENSOR: TensorId = TensorId(0x7469_6465_6c6f_6764_6f63_746f_7274_7269);

/// Route of a tensor to the devices: the data path and the memory.
#[derive(Clone, Debug, Default)]
pub struct Route {
    /// The engine's data path.
    pub path: PathChoice,
    /// Backend outside of the engine, instead.
    pub backend: Option<Arc<dyn Backend>>,
    /// The GPU whose memory the tensor is in; the host's if there is none.
    pub gpu: Option<Arc<Gpu>>,
    /// True if the route counts only if the path reaches the GPU's memory itself.
    pub reaching: bool,
}

/// Results of a round trip.
#[derive(Clone, Debug, PartialEq)]
pub struct Measured {
    /// Bytes written in a second.
    pub write: ByteCount,
    /// Bytes read in a second.
    pub read: ByteCount,
    /// The median of small reads, one at a time.
    pub latency: Duration,
    /// Notes of the path.
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
    /// The bytes that came back differ from those written.
    #[error("wrong bytes came back: {0}")]
    WrongBytes(String),
}

impl TrialError {
    #[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
    pub(crate) fn unavailable(error: impl ToString) -> Self {
        Self::Unavailable(error.to_string())
    }

    #[expect(clippy::needless_pass_by_value, reason = "it stands in map_err")]
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

/// Puts a scratch tensor of `size` bytes, and small ones, into the pool on `devices`, gets them
/// back, and deletes them. The pool's own tensors stay as they are.
///
/// # Errors
/// The pool does not open by this way, or an operation fails, or other bytes come back.
pub fn round_trip(
    devices: &[DeviceSpec],
    way: &Route,
    size: ByteCount,
) -> Result<Measured, TrialError> {
    let options = options_of(way);
    let pool = Pool::open(devices, &options).map_err(TrialError::unavailable)?;
    let measured = round_trip_in(&pool, way, size)?;
    pool.close().map_err(TrialError::failed)?;
    Ok(measured)
}

/// Returns the options to open a pool for a route.
pub fn options_of(way: &Route) -> OpenOptions {
    let gpu = way.gpu.clone().map(|gpu| Arc::new(StagedGpu(gpu)) as Arc<dyn GpuMemory>);
    let (path, backend) = (way.path, way.backend.clone());
    OpenOptions { path, backend, gpu, housekeeping: None, ..OpenOptions::default() }
}

/// Makes a round trip, as [`round_trip`] does, in a pool that is open, by the way that it was
/// opened for.
///
/// # Errors
/// As for [`round_trip`].
pub fn round_trip_in(pool: &Pool, way: &Route, size: ByteCount) -> Result<Measured, TrialError> {
    let reactor = pool.stats().map_err(TrialError::failed)?.reactor;
    if let (true, Some(GpuStats { reached: Feature::Off(why), .. })) = (way.reaching, &reactor.gpu)
    {
        return Err(TrialError::unavailable(why));
    }
    if tensors().any(|id| pool.contains(id)) {
        let taken = "the pool has a tensor of this tool's ids already; it is left alone";
        return Err(TrialError::failed(taken));
    }
    let measured = measure(pool, way, (size.0 as usize).max(SMALL));
    // Also where something failed.
    for id in tensors().filter(|id| pool.contains(*id)) {
        pool.delete(id).map_err(TrialError::failed)?;
    }
    let (write, read, latency) = measured?;
    Ok(Measured { write, read, latency, notes: notes_of(reactor) })
}

/// The tensor of the trial's size, then the small ones.
fn tensors() -> impl Iterator<Item = TensorId> {
    (0..=SMALL_READS as u128).map(|at| TensorId(TENSOR.0 + at))
}

/// Write and read in bytes per second, and the latency.
fn measure(
    pool: &Pool,
    way: &Route,
    length: usize,
) -> Result<(ByteCount, ByteCount, Duration), TrialError> {
    let mut memory = TrialMemory::new(length, way.gpu.as_ref())?;
    let (write, sum) = put(pool, &mut memory, TENSOR, length)?;
    let read = get(pool, &mut memory, TENSOR, length, sum)?;
    let rate = |time| rate(length as u64, time);
    Ok((rate(write), rate(read), latency(pool, &mut memory)?))
}

/// The median of small reads. A device is asked for no more than the tensor, which of a larger
/// one's part the log would do: it reads, and compares, whole stripe units.
fn latency(pool: &Pool, memory: &mut TrialMemory) -> Result<Duration, TrialError> {
    let small = tensors().skip(1).map(|id| put(pool, memory, id, SMALL).map(|(_, sum)| (id, sum)));
    let small = small.collect::<Result<Vec<_>, _>>()?;
    let reads = small.into_iter().map(|(id, sum)| get(pool, memory, id, SMALL, sum));
    let mut times = reads.collect::<Result<Vec<_>, _>>()?;
    times.sort();
    Ok(times[times.len() / 2])
}

/// Puts a tensor. Returns how long that took, and its checksum.
fn put(
    pool: &Pool,
    memory: &mut TrialMemory,
    id: TensorId,
    length: usize,
) -> Result<(Duration, u32), TrialError> {
    let mut bytes = vec![0; length];
    fill(&mut bytes, id);
    let sum = crc32c::crc32c(&bytes);
    Ok((memory.put(pool, id, bytes)?, sum))
}

/// Gets a tensor, and compares. Returns how long it took to come.
fn get(
    pool: &Pool,
    memory: &mut TrialMemory,
    id: TensorId,
    length: usize,
    sum: u32,
) -> Result<Duration, TrialError> {
    let (time, bytes) = memory.get(pool, id, length)?;
    match crc32c::crc32c(&bytes) {
        found if found == sum => Ok(time),
        found => {
            let told = format!("CRC32C {found:#010x} where {sum:#010x} was put");
            Err(TrialError::WrongBytes(told))
        }
    }
}

/// Returns the notes of the path, and on how the GPU's memory gets to it.
fn notes_of(reactor: ReactorStats) -> Vec<String> {
    let of_gpu = reactor.gpu.map(|gpu| match (gpu.reached, gpu.page_locked) {
        (Feature::On, _) => format!("{}: the path reaches its memory itself", gpu.name),
        (_, Feature::On) => format!("{}: staged in page-locked host memory", gpu.name),
        (_, Feature::Off(why)) => {
            format!("{}: staged in host memory that is not page-locked ({why})", gpu.name)
        }
    });
    reactor.capabilities.notes.into_iter().chain(of_gpu).collect()
}

/// Bytes that say where they belong, in which tensor.
fn fill(bytes: &mut [u8], id: TensorId) {
    for (at, word) in bytes.chunks_mut(8).enumerate() {
        let value = (at as u64 ^ (id.0 as u64) << 32).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        word.copy_from_slice(&value.to_le_bytes()[..word.len()]);
    }
}

fn rate(bytes: u64, time: Duration) -> ByteCount {
    let nanoseconds = time.as_nanos().max(1);
    ByteCount(u64::try_from(u128::from(bytes) * 1_000_000_000 / nanoseconds).unwrap_or(u64::MAX))
}

/// Measures the time of an action, and returns its result.
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

    fn pool() -> (SimDisk, Pool) {
        let disk = SimDisk::new(ByteCount::mib(32));
        let disks = [disk.clone()];
        Pool::format(&disks, &FormatOptions::default()).unwrap();
        let pool = Pool::open(&disks, &options_of(&Route::default())).unwrap();
        (disk, pool)
    }

    #[test]
    fn a_path_that_works_is_measured_and_leaves_no_tensor() {
        let (_disk, pool) = pool();
        let measured = round_trip_in(&pool, &Route::default(), SIZE).unwrap();
        assert!(measured.write > ByteCount::ZERO && measured.read > ByteCount::ZERO);
        assert!(measured.latency > Duration::ZERO);
        assert_eq!(pool.stats().unwrap().tensors, 0);
    }

    #[test]
    fn a_path_that_fails_says_where() {
        let (disk, pool) = pool();
        disk.plan_fault(OperationKind::Write, 3, Fault::Errno(5));
        let error = round_trip_in(&pool, &Route::default(), SIZE).unwrap_err();
        assert!(
            matches!(&error, TrialError::Failed(what) if what.contains("write of 256 KiB")),
            "{error}"
        );
        assert_eq!(pool.stats().unwrap().tensors, 0);
    }

    #[test]
    fn other_bytes_are_told_from_a_failure() {
        let (disk, pool) = pool();
        // The log reads again what its checksum does not fit.
        for at in 3..40 {
            disk.plan_fault(OperationKind::Read, at, Fault::Corrupt);
        }
        let error = round_trip_in(&pool, &Route::default(), SIZE).unwrap_err();
        assert!(matches!(error, TrialError::WrongBytes(_)), "{error}");
    }

    #[test]
    fn no_two_stripe_units_have_the_same_bytes() {
        let unit = |id: TensorId, length| {
            let mut bytes = vec![0; length];
            fill(&mut bytes, id);
            bytes
        };
        let large = unit(TENSOR, 1 << 20);
        let small: Vec<Vec<u8>> = tensors().skip(1).map(|id| unit(id, SMALL)).collect();
        let large = large.chunks(256 << 10).map(<[u8]>::to_vec);
        let units: Vec<Vec<u8>> = large.chain(small).collect();
        let fresh = |(at, unit): (usize, &Vec<u8>)| {
            units[..at].iter().all(|other| other[..SMALL] != unit[..SMALL])
        };
        assert!(units.iter().enumerate().all(fresh));
    }
}
