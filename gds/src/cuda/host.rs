//! Page-locked memory of the host: the GPU's copy engines reach it without the driver's help, and
//! kernels by its address.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::{result, sys};

use super::{CudaError, DevicePointer, Gpu};

/// Host memory that is page-locked for the GPU while this lives: copies to and from it need no
/// bounce of the driver's.
#[derive(Debug)]
pub(crate) struct HostLock {
    gpu: Arc<Gpu>,
    base: *mut c_void,
}

impl HostLock {
    /// Locks `length` bytes at `base`.
    ///
    /// # Safety
    /// The range stays mapped for as long as this lives.
    pub(crate) unsafe fn new(
        gpu: &Arc<Gpu>,
        base: *mut u8,
        length: usize,
    ) -> Result<Self, CudaError> {
        let _entered = gpu.enter()?;
        // SAFETY: passed on to the caller. Every context of the process sees it locked.
        let answer = unsafe {
            sys::cuMemHostRegister_v2(base.cast(), length, sys::CU_MEMHOSTREGISTER_PORTABLE)
        };
        answer.result().map_err(CudaError::of("page-lock the staging memory"))?;
        Ok(Self { gpu: Arc::clone(gpu), base: base.cast() })
    }
}

impl Drop for HostLock {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: registered in `new`, unregistered once.
            let _ = unsafe { sys::cuMemHostUnregister(self.base) };
        }
    }
}

/// Page-locked memory, undefined at first, that every GPU of the process sees at the host's own
/// addresses. Freed on drop.
#[derive(Debug)]
pub(crate) struct HostMemory {
    gpu: Arc<Gpu>,
    base: NonNull<u8>,
    length: usize,
}

// SAFETY: memory of the process, freed once by whoever has it. What touches it says so itself.
unsafe impl Send for HostMemory {}
// SAFETY: as above; nothing here reads or writes it.
unsafe impl Sync for HostMemory {}

impl HostMemory {
    pub(crate) fn new(gpu: &Arc<Gpu>, length: usize) -> Result<Self, CudaError> {
        let _entered = gpu.enter()?;
        let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
        // SAFETY: the memory is owned by what is made here.
        let base = unsafe { result::malloc_host(length.max(1), flags) }
            .map_err(CudaError::of("allocate page-locked memory"))?;
        let base = NonNull::new(base.cast()).unwrap_or_else(|| unreachable!("it was allocated"));
        Ok(Self { gpu: Arc::clone(gpu), base, length })
    }

    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the address of `length` bytes from `offset` on.
    pub(crate) fn at(&self, offset: usize, length: usize) -> NonNull<u8> {
        let end = offset.checked_add(length);
        assert!(end.is_some_and(|end| end <= self.length), "a range beyond its host memory");
        // SAFETY: within the allocation (asserted above).
        unsafe { self.base.add(offset) }
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: allocated in `new`, freed once; whoever began copies or kernels here has
            // waited for them.
            let _ = unsafe { result::free_host(self.base.as_ptr().cast()) };
        }
    }
}

/// Words of the host's memory that kernels write, at the same addresses as the host has them.
#[derive(Debug)]
pub(crate) struct HostWords(HostMemory);

impl HostWords {
    pub(crate) fn new(gpu: &Arc<Gpu>, count: u32) -> Result<Self, CudaError> {
        Ok(Self(HostMemory::new(gpu, count.max(1) as usize * size_of::<u32>())?))
    }

    /// Returns the number of words.
    pub(crate) fn count(&self) -> usize {
        self.0.len() / size_of::<u32>()
    }

    /// Returns the address of a word for kernels.
    pub(crate) fn address(&self, word: u32) -> DevicePointer {
        // Addresses are unified on every 64-bit system.
        DevicePointer(self.place(word) as u64)
    }

    /// Returns the value of a word. What a kernel put there is seen once an event behind the kernel
    /// has happened.
    pub(crate) fn read(&self, word: u32) -> u32 {
        // SAFETY: within the allocation, aligned as that is, and read as memory that others write.
        unsafe { self.place(word).read_volatile() }
    }

    fn place(&self, word: u32) -> *mut u32 {
        self.0.at(word as usize * size_of::<u32>(), size_of::<u32>()).cast().as_ptr()
    }
}
