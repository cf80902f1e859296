//! The driver of cuFile: opened once for all of this process, with the mode that is in force as a fact read from it.

use std::ffi::c_void;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tidelog_engine::path::Status;

use super::error::{CuFileError, transfer_result};
use super::library::{Library, NoLibrary};
use super::sys;
use crate::cuda::{DeviceMemory, DevicePointer};

/// Whether cuFile may go through host memory where there is no direct way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compat {
    /// It may not: what cannot go directly fails.
    #[default]
    Forbidden,
    /// It was asked for by name.
    Named,
}

/// How cuFile moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// Directly, by the kernel module nvidia-fs of this version.
    NvidiaFs {
        /// Its first number.
        major: u32,
        /// Its second.
        minor: u32,
    },
    /// Directly, by the kernel's own peer-to-peer DMA.
    PeerToPeer,
    /// Through a buffer in host memory, with POSIX calls: correct, and slower.
    Compat,
}

impl fmt::Display for Mode {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NvidiaFs { major, minor } => write!(out, "direct (nvidia-fs {major}.{minor})"),
            Self::PeerToPeer => out.write_str("direct (PCI peer-to-peer DMA)"),
            Self::Compat => out.write_str("compat (through host memory)"),
        }
    }
}

/// What the driver said when it was opened.
#[derive(Clone, Debug)]
pub struct Facts {
    /// How bytes move.
    pub mode: Mode,
    /// The library's file.
    pub library: PathBuf,
    /// The library's version, where it tells.
    pub version: Option<(u32, u32)>,
    /// Entries that a batch holds at most.
    pub batch_entries_max: u32,
    /// The longest transfer that it does not split, in bytes.
    pub direct_io_max: u64,
    /// GPU memory that may be registered, in bytes.
    pub pinned_max: u64,
}

/// cuFile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// There is no library.
    #[error(transparent)]
    NoLibrary(#[from] NoLibrary),
    /// The library answered.
    #[error(transparent)]
    Call(#[from] CuFileError),
    /// There is no direct way, and no other was asked for.
    #[error(
        "cuFile has no direct way to an NVMe SSD here ({why}); load nvidia-fs, or turn on PCI peer-to-peer DMA \
         (use_pci_p2pdma in cufile.json, kernel 6.2 or newer), or ask for compat mode by name"
    )]
    NotDirect {
        /// What the driver said.
        why: String,
    },
    /// It does no batches.
    #[error("this cuFile has no batches; use the one of CUDA 12.2 or newer")]
    NoBatches,
}

/// Batches are cut to this even where the driver allows more: cuFile documents it as the most.
const BATCH_ENTRIES_MAX: u32 = 128;

/// Drivers open in this process. cuFile's state is the process's, so the count of its users is, too.
static USERS: Mutex<Users> = Mutex::new(Users { count: 0, ours: false });

struct Users {
    count: usize,
    /// Whether we opened it, rather than the framework beside us.
    ours: bool,
}

/// cuFile, open.
pub struct Driver {
    library: Arc<Library>,
    facts: Facts,
    process: u32,
}

impl Driver {
    /// Opens cuFile and reads which mode is in force.
    pub fn open(library: Arc<Library>, compat: Compat) -> Result<Arc<Self>, OpenError> {
        let functions = &library.functions;
        let (open, close) = (functions.driver_open.clone()?, functions.driver_close.clone()?);
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        if users.count == 0 {
            if let Ok(set) = &functions.set_parameter {
                // SAFETY: no memory arguments. An answer that it cannot be set is no matter: what is in force is
                // read below.
                unsafe { set(sys::PARAMETER_ALLOW_COMPAT, compat == Compat::Named) };
            }
            // SAFETY: the function takes nothing.
            let answer = unsafe { open() };
            users.ours = answer.code != sys::DRIVER_ALREADY_OPEN;
            if users.ours {
                CuFileError::check(answer, "open its driver")?;
            }
        }
        match read_facts(&library, compat) {
            Ok(facts) => {
                users.count += 1;
                drop(users);
                Ok(Arc::new(Self { library, facts, process: std::process::id() }))
            }
            Err(error) => {
                if users.count == 0 && users.ours {
                    // SAFETY: opened above.
                    unsafe { close() };
                }
                Err(error)
            }
        }
    }

    /// What it said when it was opened.
    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(super) fn library(&self) -> &Library {
        &self.library
    }

    /// Whether this process opened it. Its child by `fork` did not, and must not call it.
    fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        let mut users = USERS.lock().unwrap_or_else(PoisonError::into_inner);
        users.count -= 1;
        if users.count == 0
            && users.ours
            && let Ok(close) = &self.library.functions.driver_close
        {
            // SAFETY: opened by us, and this was the last user.
            unsafe { close() };
        }
    }
}

impl fmt::Debug for Driver {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Driver({}, {})", self.facts.library.display(), self.facts.mode)
    }
}

fn read_facts(library: &Library, compat: Compat) -> Result<Facts, OpenError> {
    let functions = &library.functions;
    let get = functions.get_properties.clone()?;
    let mut found = sys::Properties::default();
    // SAFETY: the call writes one structure, laid out as its header says.
    CuFileError::check(unsafe { get(&raw mut found) }, "read its properties")?;
    if found.features & (1 << sys::BATCH_SUPPORTED) == 0 || functions.batch_submit.is_err() {
        return Err(OpenError::NoBatches);
    }
    let mode = mode_in_force(&found, &|parameter| parameter_of(library, parameter));
    if mode == Mode::Compat && compat == Compat::Forbidden {
        return Err(OpenError::NotDirect { why: why_not_direct(&found) });
    }
    Ok(Facts {
        mode,
        library: library.path().to_path_buf(),
        version: library.version(),
        batch_entries_max: found.batch_entries_max.clamp(1, BATCH_ENTRIES_MAX),
        direct_io_max: found.direct_io_max as u64 * 1024,
        pinned_max: u64::from(found.pinned_max) * 1024,
    })
}

fn parameter_of(library: &Library, parameter: u32) -> Option<bool> {
    let get = library.functions.get_parameter.as_ref().ok()?;
    let mut value = false;
    // SAFETY: the call writes one bool.
    let answer = unsafe { get(parameter, &raw mut value) };
    (answer.code == 0).then_some(value)
}

/// The mode that the driver's own words amount to.
fn mode_in_force(found: &sys::Properties, parameter: &dyn Fn(u32) -> Option<bool>) -> Mode {
    let has = |bit: u32| found.status & (1 << bit) != 0;
    if parameter(sys::PARAMETER_FORCE_COMPAT) == Some(true) {
        return Mode::Compat;
    }
    // The peer-to-peer bit counts unless the setting was read and is off.
    if has(sys::NVME_P2P_SUPPORTED) && parameter(sys::PARAMETER_USE_P2PDMA) != Some(false) {
        return Mode::PeerToPeer;
    }
    if has(sys::NVME_SUPPORTED) && (found.major, found.minor) != (0, 0) {
        return Mode::NvidiaFs { major: found.major, minor: found.minor };
    }
    Mode::Compat
}

fn why_not_direct(found: &sys::Properties) -> String {
    let modules = if (found.major, found.minor) == (0, 0) {
        "nvidia-fs is not loaded".to_owned()
    } else {
        format!("nvidia-fs {}.{} is loaded and does not serve NVMe", found.major, found.minor)
    };
    let allowed =
        if found.control & (1 << sys::ALLOW_COMPAT) == 0 { "forbidden" } else { "allowed" };
    format!(
        "{modules}, peer-to-peer DMA is not in force, compat mode is {allowed} by its configuration"
    )
}

/// A file or block device that cuFile knows, deregistered on drop.
pub(crate) struct RegisteredFile {
    driver: Arc<Driver>,
    handle: sys::FileHandle,
}

impl RegisteredFile {
    /// Registers an open file. It must stay open for as long as this lives.
    pub(crate) fn new(driver: &Arc<Driver>, file: &File, name: &str) -> Result<Self, CuFileError> {
        let register = driver.library.functions.handle_register.clone()?;
        driver.library.functions.handle_deregister.clone()?;
        let mut description = sys::FileDescription {
            kind: sys::OPAQUE_DESCRIPTOR,
            descriptor: sys::Descriptor { handle: std::ptr::null_mut() },
            operations: std::ptr::null(),
        };
        description.descriptor.file = file.as_raw_fd();
        let mut handle = std::ptr::null_mut();
        // SAFETY: reads one description and writes one handle, both ours.
        let answer = unsafe { register(&raw mut handle, &raw mut description) };
        CuFileError::check(answer, format!("take {name}"))?;
        Ok(Self { driver: Arc::clone(driver), handle })
    }

    pub(super) fn handle(&self) -> sys::FileHandle {
        self.handle
    }

    /// Reads at once, to see whether it works.
    pub(crate) fn probe(&self, memory: &RegisteredMemory, length: usize) -> Result<(), Status> {
        let read = self.driver.library.functions.read.as_ref().map_err(CuFileError::status)?;
        let to = memory.base.0 as *mut c_void;
        // SAFETY: the memory is registered and at least as long (the caller's ring); the call returns when it is done.
        let answer = unsafe { read(self.handle, to, length, 0, 0) };
        match transfer_result(answer)? {
            moved if moved as usize == length => Ok(()),
            moved => Err(Status::Short { moved }),
        }
    }
}

impl Drop for RegisteredFile {
    fn drop(&mut self) {
        if let (true, Ok(deregister)) =
            (self.driver.is_ours(), &self.driver.library.functions.handle_deregister)
        {
            // SAFETY: registered in `new`, deregistered once.
            unsafe { deregister(self.handle) };
        }
    }
}

/// GPU memory that cuFile has mapped for the SSDs, deregistered on drop.
pub(crate) struct RegisteredMemory {
    driver: Arc<Driver>,
    base: DevicePointer,
    length: usize,
}

impl RegisteredMemory {
    /// Registers a whole allocation.
    pub(crate) fn of(driver: &Arc<Driver>, memory: &DeviceMemory) -> Result<Self, CuFileError> {
        // SAFETY: the caller's allocation; the ring and the regions of a queue keep it for longer than this.
        unsafe { Self::new(driver, memory.base(), memory.len()) }
    }

    /// Registers a range of GPU memory.
    ///
    /// # Safety
    /// The range stays allocated for as long as this lives.
    pub(crate) unsafe fn new(
        driver: &Arc<Driver>,
        base: DevicePointer,
        length: usize,
    ) -> Result<Self, CuFileError> {
        let register = driver.library.functions.buffer_register.clone()?;
        driver.library.functions.buffer_deregister.clone()?;
        // SAFETY: passed on to the caller. No flags.
        let answer = unsafe { register(base.0 as *const c_void, length, 0) };
        CuFileError::check(answer, format!("register {length} bytes of GPU memory"))?;
        Ok(Self { driver: Arc::clone(driver), base, length })
    }

    pub(crate) fn base(&self) -> DevicePointer {
        self.base
    }

    /// The addresses that it takes.
    pub(crate) fn span(&self) -> Range<u64> {
        self.base.0..self.base.0 + self.length as u64
    }
}

impl Drop for RegisteredMemory {
    fn drop(&mut self) {
        if let (true, Ok(deregister)) =
            (self.driver.is_ours(), &self.driver.library.functions.buffer_deregister)
        {
            // SAFETY: registered in `new`, deregistered once.
            unsafe { deregister(self.base.0 as *const c_void) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn properties(major: u32, status: &[u32]) -> sys::Properties {
        let status = status.iter().fold(0, |bits, bit| bits | 1 << bit);
        sys::Properties { major, minor: 17, status, ..sys::Properties::default() }
    }

    fn none(_: u32) -> Option<bool> {
        None
    }

    #[test]
    fn the_mode_is_what_the_driver_says_and_nothing_is_guessed() {
        let direct = properties(2, &[sys::NVME_SUPPORTED]);
        assert_eq!(mode_in_force(&direct, &none), Mode::NvidiaFs { major: 2, minor: 17 });
        let peer = properties(0, &[sys::NVME_P2P_SUPPORTED]);
        assert_eq!(mode_in_force(&peer, &none), Mode::PeerToPeer);
        assert_eq!(mode_in_force(&properties(2, &[]), &none), Mode::Compat);
        assert_eq!(mode_in_force(&sys::Properties::default(), &none), Mode::Compat);
    }

    #[test]
    fn a_setting_that_was_read_outranks_a_capability() {
        let forced = |parameter| (parameter == sys::PARAMETER_FORCE_COMPAT).then_some(true);
        assert_eq!(mode_in_force(&properties(2, &[sys::NVME_SUPPORTED]), &forced), Mode::Compat);
        let off = |parameter| (parameter == sys::PARAMETER_USE_P2PDMA).then_some(false);
        assert_eq!(mode_in_force(&properties(0, &[sys::NVME_P2P_SUPPORTED]), &off), Mode::Compat);
    }
}
