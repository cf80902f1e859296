//! Visibility to a GPU of writes by other devices to its memory, before it reads that.
//!
//! A device's writes and the word that it is done go different ways: the host may have seen the
//! word while the bytes are still on their way within the GPU. Some GPUs keep them in order; for
//! others the driver has a flush (CUDA driver API, `cuFlushGPUDirectRDMAWrites`).

use std::sync::Arc;

use cudarc::driver::sys;

use super::GdrError;
use crate::cuda::{CudaError, Gpu};

/// Means by which a GPU sees what devices wrote to its memory.
pub(crate) enum RemoteWrites {
    /// Ordering by the GPU itself.
    Ordered,
    /// Flush by the driver.
    Flushed,
}

impl RemoteWrites {
    /// Returns the means of this GPU.
    pub(crate) fn to(gpu: &Arc<Gpu>) -> Result<Self, GdrError> {
        const OF_OWNER: i32 =
            sys::CUGPUDirectRDMAWritesOrdering::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER as i32;
        const BY_HOST: i32 =
            sys::CUflushGPUDirectRDMAWritesOptions::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST
                as i32;
        type Attribute = sys::CUdevice_attribute;
        let ask = |attribute| gpu.attribute(attribute, "tell how it orders other devices' writes");
        if ask(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING)? >= OF_OWNER {
            return Ok(Self::Ordered);
        }
        let options = ask(Attribute::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS)?;
        if options & BY_HOST != 0 {
            return Ok(Self::Flushed);
        }
        Err(GdrError::Unordered { gpu: gpu.to_string() })
    }

    /// Has the GPU see what devices have written that said so. The thread has entered its context.
    pub(crate) fn order(&self) -> Result<(), CudaError> {
        if let Self::Ordered = self {
            return Ok(());
        }
        let target = sys::CUflushGPUDirectRDMAWritesTarget::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX;
        let scope = sys::CUflushGPUDirectRDMAWritesScope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER;
        // SAFETY: takes no memory.
        let answer = unsafe { sys::cuFlushGPUDirectRDMAWrites(target, scope) };
        answer.result().map_err(CudaError::of("flush what other devices wrote to its memory"))
    }
}
