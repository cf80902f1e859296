//! The ways from a memory to a device: by which data path, from the host's memory or a GPU's. Each
//! is made ready, or says exactly why it cannot be.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use serde::{Serialize, Serializer};
use tidelog_engine::memory::peer::PeerMemory;
use tidelog_engine::path::{DeviceSpec, HAS_SPDK, PathChoice, PathKind};
use tidelog_gds::cuda::{CudaUnavailable, gpu_count};
use tidelog_gds::cufile::{CuFileLibrary, DriverOpenError, NoLibrary};
use tidelog_gds::gdr::{self, GdrError, MappedMemory};
use tidelog_gds::{Compat, Driver, GdsBackend, GdsOptions, Gpu};

use crate::cli::CheckArgs;
use crate::trial::{Route, TrialError};

/// Data path by which a tensor gets to its devices. In the order of how much of the host they leave
/// free.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum By {
    /// Threads of `pread` and `pwrite`.
    Posix,
    /// `io_uring`.
    Uring,
    /// NVMe commands through `io_uring`.
    UringCmd,
    /// cuFile.
    Gds,
    /// SPDK's driver.
    Spdk,
    /// SPDK, by which SSDs read and write a GPU's memory that gdrcopy maps.
    Gdrcopy,
}

impl fmt::Display for By {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Self::Posix => PathKind::Posix,
            Self::Uring => PathKind::Uring,
            Self::UringCmd => PathKind::UringCmd,
            Self::Gds => PathKind::Gds,
            Self::Spdk => PathKind::Spdk,
            Self::Gdrcopy => return out.write_str("gdrcopy"),
        };
        kind.fmt(out)
    }
}

impl Serialize for By {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// Paths of the host's memory to files, which no other path takes.
pub const HOST_TO_FILES: [By; 2] = [By::Uring, By::Posix];
/// Paths of the host's memory to devices that were named.
pub const HOST: [By; 4] = [By::Uring, By::UringCmd, By::Posix, By::Spdk];
/// Paths of a GPU's memory.
pub const GPU: [By; 4] = [By::Uring, By::Posix, By::Gds, By::Gdrcopy];

/// Error of a machine without a GPU to try.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoGpu {
    /// CUDA does not work.
    #[error(transparent)]
    Cuda(#[from] CudaUnavailable),
    /// The driver works, and shows none.
    #[error("CUDA shows no GPU (CUDA_VISIBLE_DEVICES hides them)")]
    Hidden,
}

/// Returns the number of GPUs.
///
/// # Errors
/// Why there is none.
pub fn gpus() -> Result<i32, NoGpu> {
    match gpu_count()? {
        0 => Err(NoGpu::Hidden),
        count => Ok(count),
    }
}

/// Makes the route of the host's memory.
pub fn of_host(by: By) -> Route {
    let path = match by {
        By::Posix => PathChoice::Posix,
        By::UringCmd => PathChoice::UringCmd,
        By::Spdk | By::Gdrcopy => PathChoice::Spdk,
        By::Uring | By::Gds => PathChoice::Uring,
    };
    Route { path, ..Route::default() }
}

/// Makes the route of a GPU's memory to these devices.
///
/// # Errors
/// Why gdrcopy's way is none; what the others lack, they say when they are opened.
pub fn of_gpu(
    by: By,
    ordinal: i32,
    devices: &[DeviceSpec],
    arguments: &CheckArgs,
) -> Result<Route, TrialError> {
    let gpu = Gpu::open(ordinal).map_err(TrialError::unavailable)?;
    match by {
        By::Gds => {
            are_the_kernels(devices)?;
            let (library, compat) = (arguments.cufile.clone(), arguments.compat());
            let options = GdsOptions { gpu: ordinal, library, compat, ..GdsOptions::default() };
            let backend = Some(Arc::new(GdsBackend(options)) as _);
            Ok(Route { backend, gpu: Some(gpu), reaching: true, ..Route::default() })
        }
        By::Gdrcopy => {
            let mapped = map(&gpu).map_err(TrialError::unavailable)?;
            serves_peers(devices, &mapped)?;
            Ok(Route { gpu: Some(gpu), reaching: true, ..of_host(By::Spdk) })
        }
        by => Ok(Route { gpu: Some(gpu), ..of_host(by) }),
    }
}

/// Returns the reason why there is no such way where there is no GPU: the library that would be
/// missing next is told with it. cuFile is looked for and not opened: without a GPU its open may
/// not return.
pub fn without_gpu(by: By, why: &NoGpu, arguments: &CheckArgs) -> TrialError {
    let library = match by {
        By::Gds => find_cufile(arguments).err().map(|error| error.to_string()),
        By::Gdrcopy => gdr::GdrLibrary::open(None).err().map(|error| error.to_string()),
        _ => None,
    };
    let library = library.map_or_else(String::new, |why| format!("; and {why}"));
    TrialError::Unavailable(format!("{why}{library}"))
}

/// Looks for cuFile where the data path does.
fn find_cufile(arguments: &CheckArgs) -> Result<Arc<CuFileLibrary>, NoLibrary> {
    CuFileLibrary::open(arguments.cufile.as_deref())
}

/// Opens cuFile on a GPU as the data path does, and closes it.
///
/// # Errors
/// Why the path cannot.
pub fn open_cufile(gpu: &Gpu, arguments: &CheckArgs) -> Result<(), DriverOpenError> {
    Driver::open(gpu, find_cufile(arguments)?, arguments.compat()).map(drop)
}

/// Has gdrcopy map as little of a GPU's memory as it can, and gives it back. Returns what it was.
///
/// # Errors
/// Why gdrcopy cannot.
pub fn map(gpu: &Arc<Gpu>) -> Result<String, GdrError> {
    let library = gdr::GdrLibrary::open(None)?;
    MappedMemory::new(&library, gpu, 4096).map(|memory| memory.describe())
}

/// cuFile goes by the kernel's files and block devices.
fn are_the_kernels(devices: &[DeviceSpec]) -> Result<(), TrialError> {
    let controller = devices.iter().find(|device| device.controller().is_some());
    controller.map_or(Ok(()), |controller| {
        let told = format!("cuFile takes the kernel's devices, and SPDK drives {controller}");
        Err(TrialError::Unavailable(told))
    })
}

/// Checks that SPDK drives the devices: only SPDK's driver hands a GPU's mapped memory to SSDs.
fn serves_peers(devices: &[DeviceSpec], mapped: &str) -> Result<(), TrialError> {
    let kernels = devices.iter().find(|device| device.controller().is_none());
    let Some(device) = kernels.map(DeviceSpec::path) else { return Ok(()) };
    let build = if HAS_SPDK { "" } else { ", and this build has no data path spdk" };
    Err(TrialError::Unavailable(format!(
        "{mapped} can be read by other devices, but only the data path spdk has SSDs do so, and the kernel drives that of \
         {}{build}",
        named(device).display()
    )))
}

/// A scratch file's folder says more than the file.
fn named(device: &Path) -> &Path {
    device.parent().filter(|_| device.is_file()).unwrap_or(device)
}

impl CheckArgs {
    fn compat(&self) -> Compat {
        if self.compat { Compat::Named } else { Compat::Forbidden }
    }
}
