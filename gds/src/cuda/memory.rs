//! Memory of a GPU: it has an address and no contents, so nothing here dereferences it.

use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::{CudaError, Gpu};

/// An address in a GPU's memory. It cannot be dereferenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DevicePointer(pub u64);

impl DevicePointer {
    /// Returns the pointer `bytes` further on.
    #[must_use]
    pub fn offset(self, bytes: u64) -> Self {
        Self(self.0 + bytes)
    }
}

/// The pages in which a GPU's memory is pinned for other devices. Memory that does not begin on one
/// goes through a bounce buffer of cuFile's, or cannot be mapped.
const PAGE: usize = 64 << 10;

/// Memory of a GPU, freed on drop.
#[derive(Debug)]
pub struct DeviceMemory {
    gpu: Arc<Gpu>,
    /// Address that the driver returned, for freeing.
    allocated: DevicePointer,
    base: DevicePointer,
    length: usize,
}

impl DeviceMemory {
    /// Allocates; what it holds is undefined.
    pub fn new(gpu: &Arc<Gpu>, length: usize) -> Result<Self, CudaError> {
        let _entered = gpu.enter()?;
        // SAFETY: the memory is owned by what is made here, and never read by the host.
        let base =
            unsafe { result::malloc_sync(length) }.map_err(CudaError::of("allocate GPU memory"))?;
        let base = DevicePointer(base);
        Ok(Self { gpu: Arc::clone(gpu), allocated: base, base, length })
    }

    /// Allocates whole pages, for other devices: at least `length` bytes. The driver by itself
    /// aligns to 256 bytes.
    pub fn in_pages(gpu: &Arc<Gpu>, length: usize) -> Result<Self, CudaError> {
        let length = length.next_multiple_of(PAGE);
        let mut memory = Self::new(gpu, length + PAGE)?;
        memory.base = DevicePointer(memory.allocated.0.next_multiple_of(PAGE as u64));
        memory.length = length;
        Ok(memory)
    }

    /// Returns the start address.
    pub fn base(&self) -> DevicePointer {
        self.base
    }

    /// Returns the size in bytes.
    pub fn len(&self) -> usize {
        self.length
    }

    /// Returns whether the device memory has none.
    pub fn is_empty(&self) -> bool {
        self.length == 0
    }

    /// The GPU that it belongs to.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Makes synchronous copies complete before their call returns, also those within the GPU:
    /// required for memory shared by peer DMA.
    pub(crate) fn synchronize_copies(&self) -> Result<(), CudaError> {
        let (on, attribute) = (1_u32, sys::CUpointer_attribute::CU_POINTER_ATTRIBUTE_SYNC_MEMOPS);
        let _entered = self.gpu.enter()?;
        // SAFETY: the attribute is a word, which the call reads; the memory is allocated.
        let answer =
            unsafe { sys::cuPointerSetAttribute((&raw const on).cast(), attribute, self.base.0) };
        answer.result().map_err(CudaError::of("prepare memory for other devices"))
    }

    /// Copies from host memory and waits for it.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<(), CudaError> {
        assert!(offset + bytes.len() <= self.length, "a copy beyond the GPU memory it goes to");
        let _entered = self.gpu.enter()?;
        // SAFETY: the range lies within the allocation. From memory that is not page-locked the
        // call returns when the driver has taken the bytes; they are there when its stream, the
        // default one, is done.
        unsafe {
            result::memcpy_htod_sync(self.base.0 + offset as u64, bytes)
                .and_then(|()| result::stream::synchronize(std::ptr::null_mut()))
        }
        .map_err(CudaError::of("copy to the GPU"))
    }

    /// Copies to host memory and waits for it.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<(), CudaError> {
        assert!(offset + bytes.len() <= self.length, "a copy beyond the GPU memory it comes from");
        let _entered = self.gpu.enter()?;
        // SAFETY: as in `write`.
        unsafe { result::memcpy_dtoh_sync(bytes, self.base.0 + offset as u64) }
            .map_err(CudaError::of("copy from the GPU"))
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: allocated in `new`, freed once. A failure means that the context is gone, and
            // the memory with it.
            let _ = unsafe { result::free_sync(self.allocated.0) };
        }
    }
}
