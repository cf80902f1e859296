//! GPU memory and `GPUDirect` Storage, on machines that have them and on those that do not.
//!
//! Nothing here is linked: CUDA's driver, cuFile and NVML are opened at run time, and where one is
//! missing the answer is a reason, not a panic. Read the rooms from the bottom up: [`cuda`] is
//! memory, streams and events; [`cufile`] is the library between them and the SSD; [`gdr`] maps GPU
//! memory for other devices; [`checksum`] is CRC32C where the bytes are; `copies` is what the GPU
//! does for each copy, in order; [`queue`] is the engine's window with cuFile's batches behind it;
//! [`path`] is the engine's data path over it; [`staged`] takes GPU memory through any other data
//! path, and opens a window to those that do peer DMA; [`tier`] keeps tensors in page-locked host
//! memory; [`topology`] says which SSD is near which GPU.
//!
//! `unsafe` is allowed in [`cuda`], [`cufile`], `loading`, `copies`, [`gdr`], [`queue`], [`path`],
//! [`staged`], [`tier`] and [`checksum`].

pub mod checksum;
mod copies;
pub mod cuda;
pub mod cufile;
pub mod gdr;
mod loading;
pub mod path;
pub mod queue;
pub mod staged;
pub mod tier;
pub mod topology;

pub use cuda::{CudaError, Gpu};
pub use cufile::{Compat, CuFileError, Driver, Mode};
pub use path::{CallerRegion, GdsBackend, GdsOptions};
pub use staged::StagedGpu;
pub use tier::{HostTier, HostTierError, HostTierStats, TimedCopies};
