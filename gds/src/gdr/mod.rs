//! GPU memory that other PCI devices read and write themselves: gdrcopy's mapping of the GPU's BAR,
//! behind the engine's [`PeerMemory`](tidelog_engine::memory::peer::PeerMemory).
//!
//! gdrcopy pins GPU memory (in pages of 64 KiB) and maps it into the process. What a data path does
//! with the mapping, and whether an IOMMU translates it, is its own affair; nobody here reads or
//! writes through it. The kernel module `gdrdrv` does the pinning.
#![allow(unsafe_code)]

mod library;
mod mapping;
mod writes;

use crate::cuda::CudaError;
use crate::loading::Missing;
pub use library::GdrLibrary;
pub use mapping::MappedMemory;
pub(crate) use writes::RemoteWrites;

/// GPU memory cannot be mapped for other devices.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GdrError {
    /// gdrcopy's library could not be opened.
    #[error("libgdrapi is not found: {}; install gdrcopy, or name the file by TIDELOG_GDRAPI", tried.join("; "))]
    NoLibrary {
        /// Each place that was tried, and what the loader said.
        tried: Vec<String>,
    },
    /// The library is too old, or something else of that name.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The library does not reach its kernel module.
    #[error(
        "gdrcopy does not open: load its kernel module (modprobe gdrdrv), and see who may open /dev/gdrdrv"
    )]
    NoDriver,
    /// A call failed.
    #[error("gdrcopy could not {what}: {} (error {errno})", std::io::Error::from_raw_os_error(*.errno))]
    Call {
        /// Call that failed.
        what: String,
        /// Error number that it returned.
        errno: i32,
    },
    /// The mapping is another one than requested.
    #[error(
        "gdrcopy mapped {mapped} bytes from address {first:#x} on, of {length} from {address:#x} on"
    )]
    Elsewhere {
        /// Start of the mapped range for the GPU.
        first: u64,
        /// Size of the mapped range.
        mapped: u64,
        /// Start of the requested range for the GPU.
        address: u64,
        /// Size of the requested range.
        length: u64,
    },
    /// The GPU cannot be made to see in time what other devices write.
    #[error(
        "{gpu} does not order what other devices write to its memory, and its driver has no flush for that"
    )]
    Unordered {
        /// The GPU.
        gpu: String,
    },
    /// CUDA refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}
