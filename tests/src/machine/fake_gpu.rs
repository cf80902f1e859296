//! The fake CUDA, cuFile and gdrcopy of `gds/fake`, built with the C compiler that linking needs
//! anyway, and what tests do with it.
#![allow(unsafe_code)]
// Only who holds the fake may use it; types of its functions stand where they are called.
#![allow(clippy::unused_self, clippy::items_after_statements, clippy::missing_panics_doc)]

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use libloading::os::unix::{Library as Opened, RTLD_GLOBAL, RTLD_NOW, Symbol};
use tidelog_engine::memory::WindowSize;
use tidelog_engine::path::Device;
use tidelog_gds::Gpu;
use tidelog_gds::cuda::Event;
use tidelog_gds::cufile::{Compat, CuFileLibrary, Driver};
use tidelog_gds::queue::CuFileQueue;

/// The fake, held by one test at a time: what it plays is a property of the process.
pub struct FakeGpu {
    _turn: MutexGuard<'static, ()>,
}

struct Loaded {
    path: PathBuf,
    library: Opened,
}

const SOURCES: [&str; 11] = [
    "plan.c",
    "memory.c",
    "mapping.c",
    "streams.c",
    "kernels.c",
    "clock.c",
    "virtual.c",
    "capture.c",
    "cuda.c",
    "cufile.c",
    "gdrapi.c",
];

/// Builds the fake beside the program that runs: test programs that run at once may each put theirs
/// in the place of another's.
fn build() -> PathBuf {
    build_as("libfake-gpu.so", &[])
}

/// Builds the fake with other options of the compiler's, under a name.
fn build_as(name: &str, options: &[&str]) -> PathBuf {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gds/fake");
    let program = std::env::current_exe().expect("the program has a path");
    let fresh = program.with_file_name(format!("{name}-{}", std::process::id()));
    // cudarc asks the loader for libcuda.so; a library of that name that is loaded already is what
    // it gets.
    let output = Command::new("cc")
        .args(["-O1", "-shared", "-fPIC", "-pthread", "-Wl,-soname,libcuda.so"])
        .args(options)
        .arg("-o")
        .arg(&fresh)
        .args(SOURCES.map(|source| sources.join(source)))
        .output()
        .expect("a C compiler is there, as for linking");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let place = program.with_file_name(name);
    std::fs::rename(&fresh, &place).expect("both lie in one folder");
    place
}

fn loaded() -> &'static Loaded {
    static LOADED: OnceLock<Loaded> = OnceLock::new();
    LOADED.get_or_init(|| {
        let path = build();
        // SAFETY: our own library, whose initialisers do nothing.
        let library = unsafe { Opened::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) }.unwrap();
        // SAFETY: nothing in this process reads the environment but by the standard library, which
        // has a lock for it.
        unsafe {
            std::env::set_var("TIDELOG_CUFILE", &path);
            std::env::set_var("TIDELOG_GDRAPI", &path);
            std::env::set_var("CUFILE_LOGFILE_PATH", path.with_file_name("cufile.log"));
        }
        Loaded { path, library }
    })
}

impl FakeGpu {
    /// Takes the fake, as if it had just been started: everything that is late is so at most by
    /// about `laziness`.
    pub fn start(seed: u64, laziness: u32) -> Self {
        static TURN: Mutex<()> = Mutex::new(());
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let fake = Self { _turn: turn };
        // SAFETY: declared so in plan.c.
        unsafe { fake.get::<unsafe extern "C" fn(u64, c_uint)>("fake_reset")(seed, laziness) };
        fake
    }

    /// One of its functions.
    ///
    /// # Panics
    /// It has none of that name.
    pub fn get<T: Copy>(&self, name: &str) -> T {
        // SAFETY: callers name the type that the sources declare.
        let symbol: Symbol<T> = unsafe { loaded().library.get(name) }.unwrap();
        *symbol
    }

    /// Copies to the GPU's memory by the driver, and waits for that; returns the driver's code.
    pub fn copy_in(&self, gpu: &Gpu, at: u64, bytes: &[u8]) -> i32 {
        let copy: unsafe extern "C" fn(u64, *const u8, usize) -> i32 = self.get("cuMemcpyHtoD_v2");
        let wait: unsafe extern "C" fn(*mut c_void) -> i32 = self.get("cuStreamSynchronize");
        let _entered = gpu.enter().unwrap();
        // SAFETY: the driver's functions, of which the first takes the bytes before it returns.
        unsafe { copy(at, bytes.as_ptr(), bytes.len()) | wait(std::ptr::null_mut()) }
    }

    /// Copies from the GPU's memory by the driver; returns the driver's code.
    pub fn copy_out(&self, gpu: &Gpu, at: u64, bytes: &mut [u8]) -> i32 {
        let copy: unsafe extern "C" fn(*mut u8, u64, usize) -> i32 = self.get("cuMemcpyDtoH_v2");
        let _entered = gpu.enter().unwrap();
        // SAFETY: the driver's function, which writes the bytes before it returns.
        unsafe { copy(bytes.as_mut_ptr(), at, bytes.len()) }
    }

    /// Has a call fail with `code` (one of cuFile's, or of CUDA's below 5000; an errno for
    /// transfers, -1 for half of one, -2 for a read of other bytes) after `after` more of it,
    /// `times` times or for ever (-1).
    pub fn plan(&self, what: &str, after: i32, code: i32, times: i32) {
        let name = CString::new(what).unwrap();
        type Plan = unsafe extern "C" fn(*const c_char, c_int, c_int, c_int);
        // SAFETY: declared so in plan.c, which copies the name.
        unsafe { self.get::<Plan>("fake_plan")(name.as_ptr(), after, code, times) };
    }

    /// Starts the clock: from now on a copy takes `fixed` and what its bytes take at this rate.
    pub fn clock(&self, fixed: Duration, bytes_per_microsecond: u64) {
        let fixed = u64::try_from(fixed.as_nanos()).unwrap();
        // SAFETY: declared so in clock.c.
        unsafe {
            self.get::<unsafe extern "C" fn(bool, u64, u64)>("fake_clock")(
                true,
                fixed,
                bytes_per_microsecond,
            );
        }
    }

    /// Sets the driver's properties: bits of status and features, nvidia-fs's version, a batch's
    /// limit, GPUs.
    pub fn driver(&self, status: u32, features: u32, major: u32, batch_max: u32, gpus: i32) {
        type Set = unsafe extern "C" fn(c_uint, c_uint, c_uint, c_uint, c_int);
        // SAFETY: declared so in plan.c.
        unsafe { self.get::<Set>("fake_driver")(status, features, major, batch_max, gpus) };
    }

    /// Sets whether cufile.json allows compat mode, and what the library says of peer-to-peer DMA
    /// for NVMe.
    pub fn configure(&self, compat: bool, p2p_flags: u32) {
        type Set = unsafe extern "C" fn(bool, c_uint);
        // SAFETY: declared so in plan.c.
        unsafe { self.get::<Set>("fake_configure")(compat, p2p_flags) };
    }

    /// The context that this thread is in; null: none.
    pub fn context(&self) -> *mut c_void {
        let mut context = std::ptr::null_mut();
        type Get = unsafe extern "C" fn(*mut *mut c_void) -> c_int;
        // SAFETY: declared so in cuda.c, which writes one address.
        unsafe { self.get::<Get>("cuCtxGetCurrent")(&raw mut context) };
        context
    }

    /// Puts this thread into the context of a GPU, as a framework does.
    pub fn go_to(&self, gpu: usize) {
        type Set = unsafe extern "C" fn(*mut c_void) -> c_int;
        // SAFETY: declared so in cuda.c; contexts are numbers there, and nobody follows them.
        unsafe { self.get::<Set>("cuCtxSetCurrent")((gpu + 1) as *mut c_void) };
    }

    /// Sets the means by which the GPU sees writes of other devices to its memory, in CUDA's
    /// numbers: its own order, and its flushes.
    pub fn remote_writes(&self, ordering: i32, flushes: i32) {
        type Set = unsafe extern "C" fn(c_int, c_int);
        // SAFETY: declared so in plan.c.
        unsafe { self.get::<Set>("fake_remote_writes")(ordering, flushes) };
    }

    /// Time stands still, but for who waits for a stream as a whole; or it goes on.
    pub fn hold(&self, still: bool) {
        // SAFETY: declared so in plan.c.
        unsafe { self.get::<unsafe extern "C" fn(bool)>("fake_hold")(still) };
    }

    /// Holds an event, so that what is before it in its stream does not end, or releases it.
    pub fn hold_event(&self, event: Option<&Event>) {
        let event = event.map_or(std::ptr::null_mut(), Event::as_raw);
        // SAFETY: declared so in plan.c; the event is compared with others, and not followed.
        unsafe { self.get::<unsafe extern "C" fn(*mut c_void)>("fake_hold_event")(event) };
    }

    /// Transfers of this file are not answered; with none, all are.
    pub fn hang(&self, file: Option<&Path>) {
        let inode = file.map_or(0, |file| std::fs::metadata(file).unwrap().ino());
        // SAFETY: declared so in plan.c.
        unsafe { self.get::<unsafe extern "C" fn(u64)>("fake_hang")(inode) };
    }

    /// Returns the number of violations of the API's rules, and the first of them.
    pub fn violations(&self) -> (u32, String) {
        let mut first = [0_u8; 256];
        type Get = unsafe extern "C" fn(*mut u8, usize) -> c_uint;
        // SAFETY: declared so in plan.c, which writes at most as much as it is told.
        let count = unsafe { self.get::<Get>("fake_violations")(first.as_mut_ptr(), first.len()) };
        let text = first.split(|byte| *byte == 0).next().unwrap();
        (count, String::from_utf8_lossy(text).into_owned())
    }

    /// Asserts that there was no violation.
    pub fn assert_lawful(&self) {
        assert_eq!(self.violations(), (0, String::new()));
    }

    /// Returns the number of objects of a kind.
    pub fn count(&self, what: &str) -> u64 {
        let name = CString::new(what).unwrap();
        // SAFETY: declared so in plan.c.
        unsafe {
            self.get::<unsafe extern "C" fn(*const c_char) -> u64>("fake_count")(name.as_ptr())
        }
    }

    /// cuFile, as the fake has it.
    pub fn library(&self) -> Arc<CuFileLibrary> {
        CuFileLibrary::open(Some(self.library_path())).unwrap()
    }

    /// A cuFile that is older: what newer ones have it lacks. It shares nothing with the fake that
    /// this is.
    pub fn older_library(&self) -> PathBuf {
        build_as("libfake-older.so", &["-DCUFILE_OLDER", "-Wl,-soname,libcufile-older.so"])
    }

    /// Returns the path of the fake library.
    pub fn library_path(&self) -> &'static Path {
        &loaded().path
    }

    /// Returns the GPU.
    pub fn gpu(&self) -> Arc<Gpu> {
        Gpu::open(0).unwrap()
    }

    /// cuFile's driver, as the fake has it.
    pub fn open_driver(&self) -> Arc<Driver> {
        Driver::open(&self.gpu(), self.library(), Compat::Forbidden).unwrap()
    }

    /// A queue of this depth to these devices.
    pub fn queue(&self, devices: Vec<Device>, size: WindowSize, depth: u32) -> CuFileQueue {
        CuFileQueue::open(&self.gpu(), &self.open_driver(), devices, size, depth).unwrap()
    }
}
