//! Opens pools: the devices, formatted where they are fresh, the share, and the data path.

mod data_path;
mod figures;
mod shared_pool;

use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{FlockOperation, flock};
use tidelog_engine::memory::GpuMemory;
use tidelog_engine::path::DeviceSpec;
use tidelog_engine::pool::{FormatOptions, OpenOptions, Pool, PoolDescription, is_unmade};
use tidelog_engine::units::ByteCount;
use tidelog_gds::cuda::CudaUnavailable;
use tidelog_gds::{CallerRegion, Gpu, StagedGpu};

use crate::error::Failure;
use crate::memory::{BYTES_MAX, MemoryPlace};
use data_path::DataPath;

pub(crate) use figures::{data_path, pool_figures, staging_backing};
pub(crate) use shared_pool::SharedPool;

/// Part of the free space of its file system, 1 / this, that a pool that Tidelog makes may take.
const FREE_SPACE_PARTS: u64 = 2;
/// The size of a pool that Tidelog makes, for each of its shares, where the caller does not say.
const POOL_SIZE_DEFAULT: ByteCount = ByteCount::gib(8);

/// Options to open a pool.
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub(crate) struct PoolConfig<'a> {
    /// Separated by commas.
    pub(crate) devices: &'a str,
    pub(crate) data_path: &'a str,
    pub(crate) staging: u64,
    /// Size of a pool that is made; 0: a default.
    pub(crate) size: u64,
    pub(crate) share: u32,
    /// Allows a file system without `O_DIRECT`.
    pub(crate) buffered: bool,
    /// Refuses a pool that is not there.
    pub(crate) must_exist: bool,
    /// Reserves no space for the files of a pool that is made.
    pub(crate) sparse: bool,
    /// Writes nothing to the devices; the pool must be there.
    pub(crate) read_only: bool,
    /// Goes on where one device is missing; the pool must be there.
    pub(crate) degraded: bool,
    /// Shares of a pool that is made.
    pub(crate) share_count: u32,
    /// Place of the memory that moves.
    pub(crate) place: MemoryPlace,
    /// Memory of a GPU that is read and written in place.
    pub(crate) arena: Option<CallerRegion>,
}

/// A pool, and what to tell of it if it was made.
pub(crate) struct OpenedPool {
    pub(crate) pool: Pool,
    pub(crate) made: Option<String>,
}

/// Opens the share, after formatting the pool where every device is a fresh directory, unless it
/// must exist.
pub(crate) fn open_pool(config: &PoolConfig<'_>) -> Result<OpenedPool, Failure> {
    for (name, bytes) in [("staging", config.staging), ("pool_size", config.size)] {
        if bytes > BYTES_MAX {
            return Err(Failure::invalid(format!(
                "{name} is {bytes} bytes: nothing is that large"
            )));
        }
    }
    let devices = DeviceSpec::parse_list(config.devices).map_err(Failure::pool)?;
    let (path, backend) = DataPath::named(config.data_path)?.open(config.place, config.arena)?;
    let mut made = None;
    let making = lock_folder_of(&devices)?;
    let may_make = !config.must_exist && !config.read_only && !config.degraded;
    if may_make && devices.iter().all(is_unmade) {
        let device_size = device_size(&devices, config)?;
        devices.iter().try_for_each(|device| lengthen(device, device_size))?;
        let options = FormatOptions {
            device_size: Some(device_size),
            stripe_unit: stripe_unit(config.place, ByteCount(config.staging)),
            buffered: config.buffered,
            sparse: config.sparse,
            share_count: config.share_count,
            ..FormatOptions::default()
        };
        let new = Pool::format(&devices, &options)?;
        made = Some(describe_made(&new, &devices));
    }
    drop(making);
    let options = OpenOptions {
        path,
        backend,
        buffered: config.buffered,
        share: config.share,
        read_only: config.read_only,
        degraded: config.degraded,
        staging: ByteCount(config.staging),
        gpu: gpu_of(config.place).map_err(Failure::pool)?,
        ..OpenOptions::default()
    };
    let pool = Pool::open(&devices, &options)?;
    Ok(OpenedPool { pool, made })
}

/// Makes a file that a format left which was interrupted as long as the device is to be.
fn lengthen(device: &DeviceSpec, size: ByteCount) -> Result<(), Failure> {
    if !device.exists() {
        return Ok(());
    }
    let path = device.target();
    let lengthened = File::options().write(true).open(&path).and_then(|file| {
        let length = file.metadata()?.len();
        file.set_len(length.max(size.0))
    });
    lengthened.map_err(|error| Failure::pool(format!("{}: {error}", path.display())))
}

/// The stripe unit of a pool that is made. A piece of a transfer is no longer, and so is a copy
/// between the host and a GPU: one of 256 KiB takes the link no longer than the host takes to ask
/// for it. For a GPU's tensors it is up to four times that, as long as eight fit into staging
/// memory.
fn stripe_unit(place: MemoryPlace, staging: ByteCount) -> ByteCount {
    const PIECES_MIN: u64 = 8;
    let usual = FormatOptions::default().stripe_unit;
    let MemoryPlace::Gpu(_) = place else { return usual };
    let longer = [ByteCount::mib(1), ByteCount::kib(512)];
    longer.into_iter().find(|unit| unit.0 * PIECES_MIN <= staging.0).unwrap_or(usual)
}

/// Says where a new pool lies, and on which file systems: a directory that nothing is mounted on is
/// on another disk than its name says.
fn describe_made(new: &PoolDescription, devices: &[DeviceSpec]) -> String {
    let place = |device: &DeviceSpec| {
        let path = device.target();
        let mount =
            mount_point(&path).map(|at| format!(" (on the file system at {})", at.display()));
        format!("{}{}", path.display(), mount.unwrap_or_default())
    };
    let places: Vec<String> = devices.iter().map(place).collect();
    format!("there was no pool: made a new one of {} in {}", new.capacity, places.join(" and "))
}

/// Returns the mount point of the file system of a file.
fn mount_point(path: &Path) -> Option<PathBuf> {
    let path = path.canonicalize().ok()?;
    let file_system = |path: &Path| path.metadata().map(|it| it.dev()).ok();
    let own = file_system(&path)?;
    let within = path.ancestors().take_while(|above| file_system(above) == Some(own));
    within.last().map(Path::to_path_buf)
}

/// Returns the GPU of a place, where it is a GPU's.
fn gpu_of(place: MemoryPlace) -> Result<Option<Arc<dyn GpuMemory>>, CudaUnavailable> {
    let MemoryPlace::Gpu(number) = place else { return Ok(None) };
    Ok(Some(Arc::new(StagedGpu(Gpu::open(number.into())?))))
}

/// Each device's part of the pool: as told, or a default that leaves room on the file system.
fn device_size(devices: &[DeviceSpec], config: &PoolConfig<'_>) -> Result<ByteCount, Failure> {
    const GRAIN: ByteCount = ByteCount::mib(1);
    let count = devices.len() as u64;
    if config.size > 0 {
        return Ok(ByteCount(config.size.div_ceil(count)).round_up(GRAIN));
    }
    let mut size = POOL_SIZE_DEFAULT.0 * u64::from(config.share_count) / count;
    for device in devices {
        // Devices may share a file system, so each takes its part of what is free.
        size = size.min(free_space(device)? / FREE_SPACE_PARTS / count);
    }
    Ok(ByteCount(size & !(GRAIN.0 - 1)))
}

/// The folder in which the file of a device is, or would be made.
fn folder_of(device: &DeviceSpec) -> &Path {
    let path = device.path();
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
    if folder.as_os_str().is_empty() { Path::new(".") } else { folder }
}

/// Held while a pool is looked for and made: of the processes that open it at once, one makes it.
/// `None` where there is no folder; what is wrong then is said later.
fn lock_folder_of(devices: &[DeviceSpec]) -> Result<Option<File>, Failure> {
    let folder = devices.first().map(folder_of);
    let Some(folder) = folder.and_then(|path| File::open(path).ok()) else { return Ok(None) };
    flock(&folder, FlockOperation::LockExclusive).map_err(|error| {
        Failure::pool(format!("the folder of the pool cannot be locked: {error}"))
    })?;
    Ok(Some(folder))
}

/// Bytes that a file system can still give to a file that is to be made there.
fn free_space(device: &DeviceSpec) -> Result<u64, Failure> {
    let folder = folder_of(device);
    let figures = rustix::fs::statvfs(folder).map_err(|error| {
        let path = device.path().display();
        Failure::pool(format!(
            "{path}: the folder of a new pool: {error}; make it, or mount its file system"
        ))
    })?;
    Ok(figures.f_bavail * figures.f_frsize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pools_for_a_gpu_have_units_that_are_worth_a_copy_and_fit_into_staging_memory() {
        let of_gpu = |staging| stripe_unit(MemoryPlace::Gpu(0), staging);
        assert_eq!(of_gpu(ByteCount::mib(16)), ByteCount::mib(1));
        assert_eq!(of_gpu(ByteCount::mib(4)), ByteCount::kib(512));
        assert_eq!(of_gpu(ByteCount::kib(256)), ByteCount::kib(256));
        assert_eq!(stripe_unit(MemoryPlace::Host, ByteCount::mib(16)), ByteCount::kib(256));
    }
}
