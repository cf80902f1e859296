//! Memory of a GPU at addresses that stay while parts of it come and go: CUDA's virtual memory.

use std::ops::Range;
use std::sync::Arc;

use cudarc::driver::sys;

use super::{CudaError, DevicePointer, Gpu};

/// Error code of the driver for a GPU without free memory.
pub(super) const NO_MEMORY: i32 = sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY as i32;

/// Reserved addresses of a GPU, and the memory that is mapped there now: of granules, each of which
/// is mapped and unmapped alone. Given back on drop.
#[derive(Debug)]
pub struct VirtualMemory {
    gpu: Arc<Gpu>,
    base: DevicePointer,
    granule: usize,
    /// True if memory is mapped, of each granule.
    mapped: Vec<bool>,
}

impl VirtualMemory {
    /// The bytes of which parts are multiples, and at whose multiples they begin.
    pub fn granule(gpu: &Gpu) -> Result<usize, CudaError> {
        let _entered = gpu.enter()?;
        let mut granule = 0;
        let flags = sys::CUmemAllocationGranularity_flags::CU_MEM_ALLOC_GRANULARITY_MINIMUM;
        let asked = properties(gpu);
        // SAFETY: both are alive, and written or read before the call returns.
        unsafe { sys::cuMemGetAllocationGranularity(&raw mut granule, &raw const asked, flags) }
            .result()
            .map_err(CudaError::of("tell in which pieces it maps memory"))?;
        Ok(granule)
    }

    /// Reserves addresses for `length` bytes, rounded up to granules, and maps memory for all of
    /// them. What it holds is undefined. `None`: the GPU has no memory left.
    pub fn new(gpu: &Arc<Gpu>, length: usize) -> Result<Option<Self>, CudaError> {
        let granule = Self::granule(gpu)?;
        let count = length.div_ceil(granule);
        let base = {
            let _entered = gpu.enter()?;
            reserve(count * granule)?
        };
        let mut memory = Self { gpu: Arc::clone(gpu), base, granule, mapped: vec![false; count] };
        Ok(memory.map(0..count * granule)?.then_some(memory))
    }

    /// The GPU that it belongs to.
    pub fn gpu(&self) -> &Arc<Gpu> {
        &self.gpu
    }

    /// Returns the start address.
    pub fn base(&self) -> DevicePointer {
        self.base
    }

    /// Returns the number of bytes that have addresses.
    pub fn len(&self) -> usize {
        self.mapped.len() * self.granule
    }

    /// Returns whether none has.
    pub fn is_empty(&self) -> bool {
        self.mapped.is_empty()
    }

    /// Maps memory for a part, as far as none is mapped there. What it holds is undefined. `false`:
    /// the GPU has no memory left, and nothing has changed.
    pub fn map(&mut self, bytes: Range<usize>) -> Result<bool, CudaError> {
        let missing: Vec<usize> = self.granules(&bytes).filter(|at| !self.mapped[*at]).collect();
        let gpu = Arc::clone(&self.gpu);
        let _entered = gpu.enter()?;
        let Err(error) = self.map_all(&missing) else { return Ok(true) };
        self.unmap_all(missing.into_iter())?;
        if error.code == NO_MEMORY { Ok(false) } else { Err(error) }
    }

    /// Unmaps a part, as far as it is mapped: its bytes are lost, and its memory is the GPU's
    /// again.
    ///
    /// # Safety
    /// Nothing that was launched uses the part any more, and nothing does before it is mapped
    /// again.
    pub unsafe fn unmap(&mut self, bytes: Range<usize>) -> Result<(), CudaError> {
        let gpu = Arc::clone(&self.gpu);
        let _entered = gpu.enter()?;
        self.unmap_all(self.granules(&bytes))
    }

    /// Maps memory where none is. The context was entered.
    fn map_all(&mut self, missing: &[usize]) -> Result<(), CudaError> {
        for index in missing {
            self.map_one(*index)?;
        }
        let mut runs = missing.chunk_by(|one, next| one + 1 == *next);
        runs.try_for_each(|run| self.give_access(run[0], run.len()))
    }

    fn map_one(&mut self, index: usize) -> Result<(), CudaError> {
        let handle = Handle::new(&self.gpu, self.granule)?;
        // SAFETY: the addresses are reserved, and nothing is mapped there.
        unsafe { handle.map(self.address(index)) }?;
        self.mapped[index] = true;
        Ok(()) // memory that is mapped stays without its handle
    }

    fn give_access(&self, first: usize, count: usize) -> Result<(), CudaError> {
        // SAFETY: memory is mapped for the whole range.
        unsafe { give_access(&self.gpu, self.address(first), count * self.granule) }
    }

    /// Unmaps what of these is mapped. The context was entered.
    fn unmap_all(&mut self, granules: impl Iterator<Item = usize>) -> Result<(), CudaError> {
        for index in granules {
            if std::mem::take(&mut self.mapped[index]) {
                // SAFETY: memory is mapped there, as one piece; that nothing uses it is the
                // condition of `unmap`, and as it was only being mapped nothing does.
                unsafe { unmap(self.address(index), self.granule) }?;
            }
        }
        Ok(())
    }

    fn address(&self, index: usize) -> DevicePointer {
        self.base.offset((index * self.granule) as u64)
    }

    /// The granules of a part; the last one of all may be used in part.
    fn granules(&self, bytes: &Range<usize>) -> Range<usize> {
        let granules = bytes.start / self.granule..bytes.end.div_ceil(self.granule);
        assert!(
            bytes.start.is_multiple_of(self.granule) && granules.end <= self.mapped.len(),
            "a part that is none of its memory's"
        );
        granules
    }
}

impl Drop for VirtualMemory {
    /// Frees the memory, which no launched work uses any more, as for all memory of a GPU.
    fn drop(&mut self) {
        let gpu = Arc::clone(&self.gpu);
        if let Ok(_entered) = gpu.enter() {
            // A failure means that the context is gone, and the memory with it.
            if self.unmap_all(0..self.mapped.len()).is_ok() {
                // SAFETY: reserved in `new`, freed once, and nothing is mapped there.
                let _ = unsafe { unreserve(self.base, self.len()) };
            }
        }
    }
}

/// Memory of a GPU, which has no address unless it is mapped at one. Given up on drop, from when on
/// the driver keeps it as long as it is mapped.
#[derive(Debug)]
pub(super) struct Handle {
    handle: sys::CUmemGenericAllocationHandle,
    length: usize,
}

impl Handle {
    /// Makes memory. The GPU's context was entered, as for all below.
    pub(super) fn new(gpu: &Gpu, length: usize) -> Result<Self, CudaError> {
        let (mut handle, asked) = (0, properties(gpu));
        // SAFETY: both are alive, and written or read before the call returns.
        unsafe { sys::cuMemCreate(&raw mut handle, length, &raw const asked, 0) }
            .result()
            .map_err(CudaError::of("make memory that is mapped"))?;
        Ok(Self { handle, length })
    }

    /// Maps the memory.
    ///
    /// # Safety
    /// The addresses are reserved, and nothing is mapped there.
    pub(super) unsafe fn map(&self, at: DevicePointer) -> Result<(), CudaError> {
        // SAFETY: by this function's contract; the handle is of as much memory.
        unsafe { sys::cuMemMap(at.0, self.length, 0, self.handle, 0) }
            .result()
            .map_err(CudaError::of("map memory"))
    }

    /// Unmaps the memory.
    ///
    /// # Safety
    /// It is mapped there, and nothing that was launched uses it there any more.
    pub(super) unsafe fn unmap(&self, at: DevicePointer) -> Result<(), CudaError> {
        // SAFETY: by this function's contract.
        unsafe { unmap(at, self.length) }
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        // SAFETY: made in `new`, given up once. A failure means that the context is gone.
        let _ = unsafe { sys::cuMemRelease(self.handle) };
    }
}

/// Reserves addresses.
pub(super) fn reserve(length: usize) -> Result<DevicePointer, CudaError> {
    let mut base = 0;
    // SAFETY: the address is written before the call returns. Nothing is there yet.
    unsafe { sys::cuMemAddressReserve(&raw mut base, length, 0, 0, 0) }
        .result()
        .map_err(CudaError::of("reserve addresses"))?;
    Ok(DevicePointer(base))
}

/// Gives reserved addresses back.
///
/// # Safety
/// They were reserved together, and nothing is mapped there, now or later.
pub(super) unsafe fn unreserve(base: DevicePointer, length: usize) -> Result<(), CudaError> {
    // SAFETY: by this function's contract.
    unsafe { sys::cuMemAddressFree(base.0, length) }
        .result()
        .map_err(CudaError::of("give addresses back"))
}

/// Lets the GPU use what is mapped.
///
/// # Safety
/// Memory of it is mapped for the whole range.
pub(super) unsafe fn give_access(
    gpu: &Gpu,
    at: DevicePointer,
    length: usize,
) -> Result<(), CudaError> {
    let access = sys::CUmemAccessDesc {
        location: properties(gpu).location,
        flags: sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
    };
    // SAFETY: by this function's contract; the description is read by the call.
    unsafe { sys::cuMemSetAccess(at.0, length, &raw const access, 1) }
        .result()
        .map_err(CudaError::of("use memory that is mapped"))
}

unsafe fn unmap(at: DevicePointer, length: usize) -> Result<(), CudaError> {
    // SAFETY: by its callers' contracts: whole pieces are mapped there, and nothing uses them.
    unsafe { sys::cuMemUnmap(at.0, length) }.result().map_err(CudaError::of("unmap memory"))
}

/// Memory of the GPU's own that only this process maps.
fn properties(gpu: &Gpu) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: sys::CUmemLocation {
            type_: sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE,
            id: gpu.ordinal(),
        },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}
