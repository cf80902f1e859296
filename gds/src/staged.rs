//! The memory of a GPU as an end of transfers: by way of the engine's staging memory, which works
//! on every machine with a GPU, on every data path; and through a window for paths that do peer
//! DMA.
//!
//! The engine's chunks are page-locked once, so that the GPU's copy engines reach them without the
//! driver's help.
#![allow(unsafe_code)]

use std::sync::Arc;

use tidelog_engine::memory::{
    DmaPool, GpuError, GpuMemory, GpuPlace, OpenedCopies, OpenedWindow, WindowSize,
};
use tidelog_engine::path::backend::Window;

use crate::copies::StreamCopies;
use crate::cuda::{CudaError, Gpu, HostLock};
use crate::gdr::{GdrError, GdrLibrary, MappedMemory, RemoteWrites};
use crate::topology::{GpuLocality, Sysfs};

/// The memory of a GPU as an end of puts and gets: for `OpenOptions::gpu`.
#[derive(Clone, Debug)]
pub struct StagedGpu(
    /// The GPU.
    pub Arc<Gpu>,
);

impl GpuMemory for StagedGpu {
    fn name(&self) -> String {
        self.0.to_string()
    }

    fn near(&self, devices: &[Option<u64>]) -> Option<GpuPlace> {
        let place = GpuLocality::of(&Sysfs::default(), self.0.pci_address(), devices)?;
        Some(GpuPlace { node: place.node as usize, why: format!("{} is{place}", self.0) })
    }

    fn open(&self, slots: u32, staging: &DmaPool) -> Result<OpenedCopies, GpuError> {
        let gpu = &self.0;
        // The thread that opens copies drives them.
        gpu.stay().map_err(told)?;
        let copies = StreamCopies::new(gpu, slots).map_err(told)?;
        let why_no_checksums = copies.why_no_checksums().map(|why| why.to_string());
        let (base, length) = staging.span();
        // SAFETY: the mapping is kept beside the lock, and goes after it.
        let locked = unsafe { HostLock::new(gpu, base, length) };
        let (lock, why_unlocked) = match locked {
            Ok(lock) => (Some(Locked { _lock: lock, _memory: staging.clone() }), None),
            Err(error) => (None, Some(format!("{error}; ulimit -l bounds what may be locked"))),
        };
        let lock = lock.map(|lock| Box::new(lock) as Box<_>);
        Ok(OpenedCopies { copies: Box::new(copies), why_no_checksums, why_unlocked, lock })
    }

    fn open_window(&self, size: WindowSize) -> Result<OpenedWindow, GpuError> {
        open_window(&self.0, size).map_err(|error| GpuError(error.to_string()))
    }
}

/// A window in the memory of a GPU: mapped by gdrcopy, and what copies from it and to it.
fn open_window(gpu: &Arc<Gpu>, size: WindowSize) -> Result<OpenedWindow, GdrError> {
    let library = GdrLibrary::open(None)?;
    let remote_writes = RemoteWrites::to(gpu)?;
    let memory = MappedMemory::new(&library, gpu, size.bytes())?;
    let copies = StreamCopies::in_window(gpu, Window::slots(size))?.behind(remote_writes);
    let base = memory.base().0;
    Ok(OpenedWindow { memory: Box::new(memory), base, copies: Box::new(copies) })
}

/// Fields drop in this order.
struct Locked {
    _lock: HostLock,
    _memory: DmaPool,
}

fn told(error: CudaError) -> GpuError {
    GpuError(error.to_string())
}
