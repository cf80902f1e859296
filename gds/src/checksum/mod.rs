//! CRC32C where the bytes are: a kernel that is compiled when it is first needed, so that checksums stay on for data that
//! the CPU never sees.
#![allow(unsafe_code)]

#[cfg(test)]
mod mirror;

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{result, sys};
use cudarc::nvrtc;

use crate::cuda::{CudaError, DeviceMemory, DevicePointer, Gpu, Stream};

/// The kernel's source, in CUDA C.
pub const SOURCE: &str = include_str!("crc32c.cu");
/// Threads of a block, as the source says.
const THREADS: u32 = 256;

/// The kernel cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// The compiler's library is not installed.
    #[error("libnvrtc is not found: checksums on the GPU need CUDA's run-time compiler")]
    NoCompiler,
    /// The compiler refused the source.
    #[error("CUDA's run-time compiler refused the checksum kernel: {0}")]
    Compile(String),
    /// The driver refused.
    #[error(transparent)]
    Cuda(#[from] CudaError),
}

/// The kernel, loaded on one GPU.
pub struct Crc32c {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
    function: sys::CUfunction,
}

impl Crc32c {
    /// Compiles and loads it.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, KernelError> {
        // SAFETY: opening the compiler's library runs its initialisers, as any program that uses it does.
        if !unsafe { nvrtc::sys::is_culib_present() } {
            return Err(KernelError::NoCompiler);
        }
        let compiled =
            nvrtc::compile_ptx(SOURCE).map_err(|error| KernelError::Compile(error.to_string()))?;
        gpu.enter()?;
        let image = CString::new(compiled.to_src())
            .map_err(|error| KernelError::Compile(error.to_string()))?;
        // SAFETY: the image is PTX that ends with a zero, and lives across the call, which copies it.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .map_err(CudaError::of("load the checksum kernel"))?;
        let name = c"crc32c_units".to_owned();
        // SAFETY: the module was just loaded.
        let function = unsafe { result::module::get_function(module, name) }
            .map_err(CudaError::of("find the checksum kernel"))?;
        Ok(Self { gpu: Arc::clone(gpu), module, function })
    }

    /// Puts into `stream` the checksums of `length` bytes, one for each `unit` of them, four bytes each.
    ///
    /// # Safety
    /// The bytes stay allocated and unwritten until an event that is recorded behind this in `stream` has happened.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        data: DevicePointer,
        length: u64,
        unit: u32,
        sums: &mut DeviceMemory,
    ) -> Result<(), CudaError> {
        let units = length.div_ceil(u64::from(unit.max(1)));
        assert!(
            sums.len() as u64 >= units * 4,
            "{units} checksums do not fit into {} bytes",
            sums.len()
        );
        if units == 0 {
            return Ok(());
        }
        let (mut data, mut length, mut unit, mut out) = (data.0, length, unit, sums.base().0);
        let mut arguments: [*mut c_void; 4] = [
            (&raw mut data).cast(),
            (&raw mut length).cast(),
            (&raw mut unit).cast(),
            (&raw mut out).cast(),
        ];
        self.gpu.enter()?;
        // SAFETY: four arguments of the types that the kernel declares, copied by the call; the kernel reads `length`
        // bytes and writes as many words as there are units, which fit.
        unsafe {
            result::launch_kernel(
                self.function,
                (units as u32, 1, 1),
                (THREADS, 1, 1),
                0,
                stream.raw(),
                &mut arguments,
            )
        }
        .map_err(CudaError::of("start the checksum kernel"))
    }
}

impl Drop for Crc32c {
    fn drop(&mut self) {
        if self.gpu.enter().is_ok() {
            // SAFETY: loaded in `new`, unloaded once; the driver waits for what still runs.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_algorithm_of_the_kernel_is_crc32c_for_every_length() {
        let data: Vec<u8> = (0..300_000_u32).map(|at| (at * 31 / 7 + at / 251) as u8).collect();
        for length in [0, 1, 3, 255, 256, 257, 4095, 4096, 65_536, 65_537, 262_144, 300_000] {
            assert_eq!(
                mirror::unit(&data[..length]),
                crc32c::crc32c(&data[..length]),
                "{length} bytes"
            );
        }
        assert_eq!(mirror::unit(b"123456789"), 0xE306_9283, "the check value of CRC32C");
    }

    #[test]
    fn the_source_says_what_the_mirror_and_the_launch_do() {
        for line in ["#define POLYNOMIAL 0x82F63B78u", "#define THREADS 256u", "crc32c_units"] {
            assert!(SOURCE.contains(line), "{line}");
        }
        assert_eq!(THREADS, 256);
    }
}
