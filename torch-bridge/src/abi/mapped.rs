//! A GPU's memory of which parts are given back and come again at their addresses, for storages.

use std::ffi::c_void;

use super::{boundary, check_length, check_result, place_numbered};
use crate::error::Failure;
use crate::memory::{MemoryPlace, mapped_storages};

/// `DLManagedTensor` of `DLPack`, the one without versions: a row of bytes.
#[repr(C)]
struct ManagedTensor {
    data: *mut c_void,
    device_type: i32,
    device: i32,
    dimensions: i32,
    /// Unsigned, of 8 bits, one a byte.
    kind: u8,
    bits: u8,
    lanes: u16,
    shape: *mut i64,
    strides: *mut i64,
    byte_offset: u64,
    context: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut Self)>,
    /// Length of the array at `shape`; not of `DLPack`'s.
    length: i64,
}

const DLPACK_UNSIGNED: u8 = 1;

/// Writes to `granule` the unit of the parts of a GPU's memory that `tide_gpu_memory_decommit`
/// releases. `gpu` is CUDA's number of it plus one, as in the options of sessions.
///
/// # Safety
/// `granule` points to one `uint64_t`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_gpu_memory_granule(gpu: u8, granule: *mut u64) -> i32 {
    boundary(|| {
        check_result(granule, "granule")?;
        let found = mapped_storages().granule(ordinal_of(gpu)?).map_err(Failure::pool)?;
        // SAFETY: not null, and by this function's contract one u64 of the caller's.
        unsafe { granule.write(found) };
        Ok(())
    })
}

/// Allocates memory of a GPU, of which parts can be given back while the rest stays. `managed` gets
/// a `DLManagedTensor` of `DLPack`, a row of `size` bytes on a device of the type `device_type` (2:
/// CUDA), for a framework to make a tensor of: null where the GPU has no memory left. Its deleter
/// may be called by any thread, and while kernels use the memory: see `tide_gpu_memory_take_care`.
///
/// # Safety
/// `managed` points to one pointer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_gpu_memory_allocate(
    gpu: u8,
    size: u64,
    device_type: i32,
    managed: *mut *mut c_void,
) -> i32 {
    boundary(|| {
        check_result(managed, "managed")?;
        let (ordinal, length) = (ordinal_of(gpu)?, check_length(size)?);
        let base = mapped_storages().allocate(ordinal, length.max(1)).map_err(Failure::pool)?;
        let tensor = base.map_or(std::ptr::null_mut(), |base| {
            let mut tensor = Box::new(ManagedTensor {
                data: base as *mut c_void,
                device_type,
                device: ordinal.into(),
                dimensions: 1,
                kind: DLPACK_UNSIGNED,
                bits: 8,
                lanes: 1,
                shape: std::ptr::null_mut(),
                strides: std::ptr::null_mut(),
                byte_offset: 0,
                context: std::ptr::null_mut(),
                deleter: Some(let_go),
                length: i64::try_from(length).unwrap_or_else(|_| unreachable!("it was checked")),
            });
            tensor.shape = &raw mut tensor.length;
            Box::into_raw(tensor)
        });
        // SAFETY: not null, and by this function's contract one pointer of the caller's.
        unsafe { managed.write(tensor.cast()) };
        Ok(())
    })
}

/// The deleter of what `tide_gpu_memory_allocate` makes.
///
/// # Safety
/// `tensor` is one of those, and nobody uses it any more.
unsafe extern "C" fn let_go(tensor: *mut ManagedTensor) {
    boundary(|| {
        // SAFETY: made by `tide_gpu_memory_allocate` as a box; this is called once.
        let tensor = unsafe { Box::from_raw(tensor) };
        mapped_storages().let_go(tensor.data as u64);
        Ok(())
    });
}

/// Returns 1 if such an allocation begins at `address` and was not released by the framework; else
/// 0.
#[unsafe(no_mangle)]
pub extern "C" fn tide_gpu_memory_is_live(address: u64) -> i32 {
    boundary(|| Ok(mapped_storages().is_live(address)))
}

/// Gives the memory of a part of such an allocation back to the GPU: its bytes are lost, its
/// addresses stay. Both numbers are multiples of the granule, but for the end of the allocation. Of
/// what was let go of nothing is done.
///
/// # Safety
/// Nothing that was launched uses the part any more, and nothing does before
/// `tide_gpu_memory_recommit`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_gpu_memory_decommit(address: u64, length: u64) -> i32 {
    boundary(|| {
        let length = check_length(length)?;
        // SAFETY: by this function's contract.
        unsafe { mapped_storages().decommit(address, length) }.map_err(Failure::pool)
    })
}

/// Recommits a part that is about to be written again. Returns 1; 0 where the GPU has no memory
/// left, and then the part is as it was.
#[unsafe(no_mangle)]
pub extern "C" fn tide_gpu_memory_recommit(address: u64, length: u64) -> i32 {
    boundary(|| {
        let length = check_length(length)?;
        mapped_storages().recommit(address, length).map_err(Failure::pool)
    })
}

/// Announces, with `on` non-zero, that somebody calls `tide_gpu_memory_take_dead` from time to
/// time: what the framework has let go of stays until then. With 0 its deleter waits for the GPU
/// and frees, as `cuMemFree` does, and so does this for what is left. It is the whole process's.
#[unsafe(no_mangle)]
pub extern "C" fn tide_gpu_memory_take_care(on: i32) -> i32 {
    boundary(|| {
        mapped_storages().take_care(on != 0);
        Ok(())
    })
}

/// Takes all that the framework has let go of by now. Returns a number for `tide_gpu_memory_free`,
/// or 0 where there is nothing.
#[unsafe(no_mangle)]
pub extern "C" fn tide_gpu_memory_take_dead() -> u64 {
    mapped_storages().take_dead()
}

/// Frees what was taken under this number.
///
/// # Safety
/// Whatever was launched before it was taken has happened.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn tide_gpu_memory_free(taken: u64) -> i32 {
    boundary(|| {
        // SAFETY: by this function's contract.
        unsafe { mapped_storages().free(taken) };
        Ok(())
    })
}

/// CUDA's number of the GPU that an argument means.
pub(super) fn ordinal_of(gpu: u8) -> Result<u8, Failure> {
    match place_numbered(gpu) {
        MemoryPlace::Gpu(ordinal) => Ok(ordinal),
        MemoryPlace::Host => Err(Failure::invalid("gpu is 0: name one, by CUDA's number plus one")),
    }
}
