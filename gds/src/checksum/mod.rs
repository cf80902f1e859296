//! CRC32C where the bytes are, so that checksums stay on for data that the CPU never sees.
//!
//! The kernel is `crc32c.cu`; `compile.py` has made `crc32c.ptx` of it, which the driver translates for the GPU at hand.
#![allow(unsafe_code)]

#[cfg(test)]
mod mirror;

use std::ffi::{CString, c_void};
use std::sync::Arc;

use cudarc::driver::{result, sys};

use crate::cuda::{CudaError, DevicePointer, Gpu, HostWords, Stream};

/// The kernel, for any GPU.
const PTX: &str = include_str!("crc32c.ptx");
/// Threads of a block, as the source says.
const THREADS: u32 = 256;

/// The kernel, loaded on one GPU.
pub struct Crc32c {
    gpu: Arc<Gpu>,
    module: sys::CUmodule,
    function: sys::CUfunction,
}

// SAFETY: modules belong to the context, and functions to their module; the driver's functions on them may be called from
// any thread.
unsafe impl Send for Crc32c {}

impl Crc32c {
    /// Loads it.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        let image = CString::new(PTX).unwrap_or_else(|_| unreachable!("text has no zero in it"));
        let _entered = gpu.enter()?;
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
    /// Until an event that is recorded behind this in `stream` has happened, the bytes stay allocated and unwritten, and
    /// there are four bytes at `sums` for each unit, which nobody else touches.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        data: DevicePointer,
        length: u64,
        unit: u32,
        sums: DevicePointer,
    ) -> Result<(), CudaError> {
        let units = length.div_ceil(u64::from(unit.max(1)));
        if units == 0 {
            return Ok(());
        }
        let (mut data, mut length, mut unit, mut sums) = (data.0, length, unit, sums.0);
        let mut arguments: [*mut c_void; 4] = [
            (&raw mut data).cast(),
            (&raw mut length).cast(),
            (&raw mut unit).cast(),
            (&raw mut sums).cast(),
        ];
        let _entered = self.gpu.enter()?;
        // SAFETY: four arguments of the types that the kernel declares, copied by the call; the kernel reads `length`
        // bytes and writes as many words as there are units, which is what the caller vouches for.
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
        if let Ok(_entered) = self.gpu.enter() {
            // SAFETY: loaded in `new`, unloaded once; the driver waits for what still runs.
            let _ = unsafe { result::module::unload(self.module) };
        }
    }
}

/// The kernel, and places for what it finds: the host reads a sum when an event behind it has happened.
pub(crate) struct Checksums {
    kernel: Crc32c,
    sums: HostWords,
}

impl Checksums {
    pub(crate) fn new(gpu: &Arc<Gpu>, places: u32) -> Result<Self, CudaError> {
        Ok(Self { kernel: Crc32c::new(gpu)?, sums: HostWords::new(gpu, places)? })
    }

    /// Has the checksum of `length` bytes, which are not none, put into a place.
    ///
    /// # Safety
    /// Until an event that is recorded behind this in `stream` has happened, the bytes stay allocated and unwritten, and the
    /// place is nobody else's.
    pub(crate) unsafe fn take(
        &self,
        stream: &Stream,
        data: DevicePointer,
        length: u32,
        place: u32,
    ) -> Result<(), CudaError> {
        let sum = self.sums.address(place);
        // SAFETY: one unit, hence one word; the rest is passed on to the caller.
        unsafe { self.kernel.launch(stream, data, length.into(), length, sum) }
    }

    /// What was found last in a place.
    pub(crate) fn taken(&self, place: u32) -> u32 {
        self.sums.read(place)
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

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
        const SOURCE: &str = include_str!("crc32c.cu");
        for line in ["#define POLYNOMIAL 0x82F63B78u", "#define THREADS 256u", "crc32c_units"] {
            assert!(SOURCE.contains(line), "{line}");
        }
        assert_eq!(THREADS, 256);
    }

    #[test]
    fn what_is_loaded_was_made_from_the_source_that_is_here() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/checksum/crc32c.cu");
        let output = Command::new("sha256sum").arg(source).output().unwrap();
        let sum = String::from_utf8(output.stdout).unwrap();
        let sum = sum.split(' ').next().unwrap();
        let said = PTX.lines().next().unwrap();
        assert_eq!(said, format!("// crc32c.cu, SHA-256 {sum}"), "run compile.py");
    }
}
