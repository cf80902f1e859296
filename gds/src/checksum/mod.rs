//! CRC32C where the bytes are, so that checksums stay on for data that the CPU never sees.
//!
//! The kernel is `crc32c.cu`; `compile.py` has made `crc32c.ptx` of it, which the driver translates
//! for the GPU at hand. Several blocks share a unit, so that a single one keeps more than a corner
//! of the GPU busy. Each returns a word, and the exclusive or of a unit's words is its checksum,
//! which is left to the host: no block has to wait for another.
#![allow(unsafe_code)]

#[cfg(test)]
mod on_host;
#[cfg(test)]
mod on_ptx;
#[cfg(test)]
mod ptx;

use std::cell::Cell;
use std::ffi::{CString, c_void};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::{result, sys};
use tidelog_engine::memory::process::PerProcess;

use crate::cuda::{CudaError, DevicePointer, Gpu, HostWords, Stream};

/// The kernel, for any GPU.
const PTX: &str = include_str!("crc32c.ptx");
/// Threads of a block, as the source says.
const THREADS: u32 = 128;
/// Bytes of a unit that one block takes, where [`PARTS_MAX`] blocks are enough.
const PART: u32 = 16 << 10;
/// Blocks of a unit, at most.
const PARTS_MAX: u32 = 64;

/// Returns the number of parts in which the kernel takes the checksum of each unit of `unit` bytes.
#[must_use]
pub const fn parts_of(unit: u32) -> u32 {
    let parts = unit.div_ceil(PART);
    if parts == 0 {
        1
    } else if parts < PARTS_MAX {
        parts
    } else {
        PARTS_MAX
    }
}

/// The kernel, loaded on one GPU. The driver takes half a second to translate it, so a process has
/// it once for each GPU, for good.
#[derive(Clone)]
pub struct Crc32c(Arc<LoadedKernel>);

struct LoadedKernel {
    gpu: Arc<Gpu>,
    function: sys::CUfunction,
}

// SAFETY: modules belong to the context, and functions to their module, which is never unloaded;
// the driver's functions on them may be called from any thread.
unsafe impl Send for LoadedKernel {}
// SAFETY: as above.
unsafe impl Sync for LoadedKernel {}

static LOADED: PerProcess<Mutex<Vec<Crc32c>>> = PerProcess::new(|| Mutex::new(Vec::new()));

impl Crc32c {
    /// Loads the kernel, where that was not done before.
    pub fn new(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        let mut loaded = LOADED.get().lock().unwrap_or_else(PoisonError::into_inner);
        let known = loaded.iter().find(|kernel| kernel.0.gpu.ordinal() == gpu.ordinal());
        if let Some(kernel) = known {
            return Ok(kernel.clone());
        }
        let kernel = Self::load(gpu)?;
        loaded.push(kernel.clone());
        Ok(kernel)
    }

    fn load(gpu: &Arc<Gpu>) -> Result<Self, CudaError> {
        let image = CString::new(PTX).unwrap_or_else(|_| unreachable!("text has no zero in it"));
        let _entered = gpu.enter()?;
        // SAFETY: the image is PTX that ends with a zero, and lives across the call, which copies
        // it.
        let module = unsafe { result::module::load_data(image.as_ptr().cast()) }
            .map_err(CudaError::of("load the checksum kernel"))?;
        let name = c"crc32c_units".to_owned();
        // SAFETY: the module was just loaded.
        let function = unsafe { result::module::get_function(module, name) }
            .map_err(CudaError::of("find the checksum kernel"))?;
        Ok(Self(Arc::new(LoadedKernel { gpu: Arc::clone(gpu), function })))
    }

    /// Has the checksums of `length` bytes computed in `stream`, one for each `unit` of them: for
    /// each there are [`parts_of`] words, whose exclusive or it is.
    ///
    /// # Safety
    /// Until an event that is recorded behind this in `stream` has happened, the bytes stay
    /// allocated and unwritten, and there is room at `words` for those of each unit, which nobody
    /// else touches.
    pub unsafe fn launch(
        &self,
        stream: &Stream,
        data: DevicePointer,
        length: u64,
        unit: u32,
        words: DevicePointer,
    ) -> Result<(), CudaError> {
        let blocks = length.div_ceil(u64::from(unit.max(1))) * u64::from(parts_of(unit));
        if blocks == 0 {
            return Ok(());
        }
        let (mut data, mut length, mut unit, mut parts) = (data.0, length, unit, parts_of(unit));
        let mut words = words.0;
        let mut arguments: [*mut c_void; 5] = [
            (&raw mut data).cast(),
            (&raw mut length).cast(),
            (&raw mut unit).cast(),
            (&raw mut parts).cast(),
            (&raw mut words).cast(),
        ];
        // More are refused by the driver, and more data is on no GPU.
        let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
        let _entered = self.0.gpu.enter()?;
        // SAFETY: five arguments of the types that the kernel declares, copied by the call; the
        // kernel reads `length` bytes and writes a word for each block, which is what the caller
        // vouches for.
        unsafe {
            result::launch_kernel(
                self.0.function,
                (blocks, 1, 1),
                (THREADS, 1, 1),
                0,
                stream.raw(),
                &mut arguments,
            )
        }
        .map_err(CudaError::of("start the checksum kernel"))
    }
}

/// The checksum whose parts are in `words`, from `first` on.
pub(crate) fn sum_of(words: &HostWords, first: u32, parts: u32) -> u32 {
    (first..first + parts).fold(0, |sum, word| sum ^ words.read(word))
}

/// The kernel, and places for what it finds: the host reads a sum when an event behind it has
/// happened.
pub struct Checksums {
    kernel: Crc32c,
    /// Words of each place, as many as a checksum can have parts.
    words: HostWords,
    /// Number of parts, for each place, of the checksum that was begun last.
    parts: Vec<Cell<u32>>,
}

impl Checksums {
    /// Loads the kernel and allocates the places, in page-locked memory of the host's.
    pub fn new(gpu: &Arc<Gpu>, places: u32) -> Result<Self, CudaError> {
        Ok(Self {
            kernel: Crc32c::new(gpu)?,
            words: HostWords::new(gpu, places * PARTS_MAX)?,
            parts: vec![Cell::new(0); places as usize],
        })
    }

    /// Has the checksum of `length` bytes, which are not none, put into a place.
    ///
    /// # Safety
    /// Until an event that is recorded behind this in `stream` has happened, the bytes stay
    /// allocated and unwritten, and the place is nobody else's.
    pub unsafe fn take(
        &self,
        stream: &Stream,
        data: DevicePointer,
        length: u32,
        place: u32,
    ) -> Result<(), CudaError> {
        self.parts[place as usize].set(parts_of(length));
        let words = self.words.address(place * PARTS_MAX);
        // SAFETY: one unit, hence no more words than a place has; the rest is passed on to the
        // caller.
        unsafe { self.kernel.launch(stream, data, length.into(), length, words) }
    }

    /// Returns the last checksum of a place.
    #[must_use]
    pub fn taken(&self, place: u32) -> u32 {
        sum_of(&self.words, place * PARTS_MAX, self.parts[place as usize].get())
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};
    use std::process::Command;

    use tidelog_tests::machine::skip;

    use super::*;

    #[test]
    fn the_launch_is_what_the_source_says() {
        const SOURCE: &str = include_str!("crc32c.cu");
        assert!(SOURCE.contains(&format!("constexpr unsigned THREADS = {THREADS},")));
        assert!(PTX.contains(".visible .entry crc32c_units("));
        // GPUs and drivers that GPUDirect Storage knows take no newer ones.
        assert!(
            PTX.contains("\n.version 7.8\n.target sm_70\n"),
            "compile.py says which compiler to take"
        );
    }

    #[test]
    fn a_unit_has_parts_for_all_of_it_and_never_none() {
        for (unit, parts) in [(0, 1), (1, 1), (16 << 10, 1), ((16 << 10) + 1, 2), (256 << 10, 16)] {
            assert_eq!(parts_of(unit), parts, "{unit} bytes");
        }
        assert_eq!((parts_of(16 << 20), parts_of(u32::MAX)), (PARTS_MAX, PARTS_MAX));
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

    #[test]
    fn an_assembler_takes_what_is_loaded_and_spills_no_register() {
        let test = "an_assembler_takes_what_is_loaded_and_spills_no_register";
        let Some(ptxas) = ptxas() else {
            return skip(test, "no ptxas in PATH, in /usr/local/cuda, or with Triton in .venv");
        };
        let image = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/checksum/crc32c.ptx");
        for gpu in ["sm_80", "sm_90"] {
            let command = Command::new(&ptxas)
                .args(["-v", "-o", "/dev/null", "-arch", gpu])
                .arg(&image)
                .output();
            let output = command.unwrap();
            let said = String::from_utf8(output.stdout).unwrap()
                + &String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{gpu}: {said}");
            assert!(said.contains(" 0 bytes spill stores, 0 bytes spill loads"), "{gpu}: {said}");
        }
    }

    /// An assembler of NVIDIA's, which needs no GPU.
    fn ptxas() -> Option<PathBuf> {
        let packages = Path::new(env!("CARGO_MANIFEST_DIR")).join("../.venv/lib");
        let with_triton = std::fs::read_dir(packages)
            .into_iter()
            .flatten()
            .flatten()
            .map(|python| python.path().join("site-packages/triton/backends/nvidia/bin/ptxas"));
        ["ptxas", "/usr/local/cuda/bin/ptxas"]
            .map(PathBuf::from)
            .into_iter()
            .chain(with_triton)
            .find(|place| Command::new(place).arg("--version").output().is_ok())
    }
}
