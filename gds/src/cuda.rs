//! CUDA's driver: GPUs, their memory, streams and events.
//!
//! Thin over `cudarc`, which opens the driver's library when it is first used. Handles are closed
//! on drop by the thread that drops them, which enters the GPU's context first. Device memory has
//! an address and no contents: nothing here dereferences it.
#![allow(unsafe_code)]

mod arena;
mod context;
mod host;
mod mapped;
mod memory;
mod names;
mod stream;

use std::fmt;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::sys;
use tidelog_engine::library::ErrorLibrary;

pub use arena::ArenaMemory;
pub use context::Entered;
pub(crate) use host::{HostLock, HostMemory, HostWords};
pub use mapped::VirtualMemory;
pub use memory::{DeviceMemory, DevicePointer};
pub use names::name_of;
pub(crate) use stream::CopyTimer;
pub use stream::{Event, ForeignStream, Stream};

/// CUDA, as the source of an operation's error.
pub static CUDA: ErrorLibrary = ErrorLibrary { name: "CUDA", describe: name_of };

/// CUDA answered that something failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("CUDA could not {what}: error {code} ({name})")]
pub struct CudaError {
    /// Call that failed.
    pub what: &'static str,
    /// The number.
    pub code: i32,
    /// The name for the number.
    pub name: &'static str,
}

impl CudaError {
    pub(crate) fn of(what: &'static str) -> impl Fn(DriverError) -> Self {
        move |error| {
            let code = error.0 as i32;
            Self { what, code, name: name_of(code) }
        }
    }
}

/// Error of a machine without a usable GPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CudaUnavailable {
    /// The driver's library is not installed.
    #[error(
        "there is no NVIDIA driver here (libcuda.so is not found); install it, or pass the GPU into the container"
    )]
    NoLibrary,
    /// The library is there and does not work.
    #[error(transparent)]
    Driver(#[from] CudaError),
    /// The library that was found is not the driver's, and hides it.
    #[error(
        "libcuda.so is the stub that CUDA's toolkit has for linking; the driver's own library is libcuda.so.1: take the \
         folder of the stub (lib64/stubs) out of LD_LIBRARY_PATH"
    )]
    Stub,
    /// The driver works and has no such GPU.
    #[error("there is no GPU {ordinal}; CUDA shows {count} (CUDA_VISIBLE_DEVICES hides others)")]
    NoGpu {
        /// Index of the requested GPU.
        ordinal: i32,
        /// Number of GPUs.
        count: i32,
    },
}

/// Starts the driver; returns how many GPUs it shows.
pub fn gpu_count() -> Result<i32, CudaUnavailable> {
    // SAFETY: opening the driver's library runs its initialisers, as any program that uses CUDA
    // does.
    if !unsafe { sys::is_culib_present() } {
        return Err(CudaUnavailable::NoLibrary);
    }
    match result::init() {
        Err(DriverError(sys::CUresult::CUDA_ERROR_STUB_LIBRARY)) => {
            return Err(CudaUnavailable::Stub);
        }
        started => started.map_err(CudaError::of("start its driver"))?,
    }
    Ok(result::device::get_count().map_err(CudaError::of("count the GPUs"))?)
}

/// One GPU, by its primary context, which frameworks in this process share.
pub struct Gpu {
    device: sys::CUdevice,
    context: sys::CUcontext,
    ordinal: i32,
    name: String,
    pci_address: String,
}

// SAFETY: contexts belong to the process; every call enters the context on its own thread first.
unsafe impl Send for Gpu {}
// SAFETY: as above; the driver's functions may be called from several threads at once.
unsafe impl Sync for Gpu {}

impl Gpu {
    /// Opens a GPU, by CUDA's number for it.
    pub fn open(ordinal: i32) -> Result<Arc<Self>, CudaUnavailable> {
        let count = gpu_count()?;
        if !(0..count).contains(&ordinal) {
            return Err(CudaUnavailable::NoGpu { ordinal, count });
        }
        let device = result::device::get(ordinal).map_err(CudaError::of("find the GPU"))?;
        let name = result::device::get_name(device).map_err(CudaError::of("name the GPU"))?;
        let attribute = |attribute| attribute_of(device, attribute, "read where the GPU is");
        let pci_address = format!(
            "{:04x}:{:02x}:{:02x}.0",
            attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?,
            attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?,
            attribute(sys::CUdevice_attribute_enum::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?,
        );
        // SAFETY: `device` came from the driver; `drop` releases what is retained here.
        let context = unsafe { result::primary_ctx::retain(device) }
            .map_err(CudaError::of("open the GPU's context"))?;
        Ok(Arc::new(Self { device, context, ordinal, name, pci_address }))
    }

    /// Makes this GPU current on this thread until the guard drops.
    pub fn enter(&self) -> Result<Entered<'_>, CudaError> {
        Entered::new(self)
    }

    /// Makes the GPU current for good, on a thread of our own: what it does then need not come and
    /// go.
    pub fn stay(&self) -> Result<(), CudaError> {
        context::stay(self.context)
    }

    /// Returns an attribute of the device.
    pub(crate) fn attribute(
        &self,
        attribute: sys::CUdevice_attribute,
        what: &'static str,
    ) -> Result<i32, CudaError> {
        attribute_of(self.device, attribute, what)
    }

    /// CUDA's number for it.
    pub fn ordinal(&self) -> i32 {
        self.ordinal
    }

    /// Returns the product name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the PCI address, such as `0000:3b:00.0`.
    pub fn pci_address(&self) -> &str {
        &self.pci_address
    }

    /// Bytes of its memory: free, and all.
    pub fn memory(&self) -> Result<(u64, u64), CudaError> {
        let _entered = self.enter()?;
        let (free, all) =
            result::mem_get_info().map_err(CudaError::of("read its memory's size"))?;
        Ok((free as u64, all as u64))
    }

    /// Waits until everything that was asked of the GPU in this context is done.
    pub fn synchronize(&self) -> Result<(), CudaError> {
        let _entered = self.enter()?;
        result::ctx::synchronize().map_err(CudaError::of("wait for the GPU"))
    }
}

fn attribute_of(
    device: sys::CUdevice,
    attribute: sys::CUdevice_attribute,
    what: &'static str,
) -> Result<i32, CudaError> {
    // SAFETY: `device` came from the driver.
    unsafe { result::device::get_attribute(device, attribute) }.map_err(CudaError::of(what))
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // SAFETY: balances `retain`. A failure leaves the context open, which harms nobody.
        let _ = unsafe { result::primary_ctx::release(self.device) };
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "GPU {} ({}) at {}", self.ordinal, self.name, self.pci_address)
    }
}

impl fmt::Debug for Gpu {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Gpu({}, {} at {})", self.ordinal, self.name, self.pci_address)
    }
}
