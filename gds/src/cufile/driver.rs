//! The driver of cuFile: opened once for all of this process, with the mode that is in force as a
//! fact read from it.

use std::ffi::c_void;
use std::fmt;
use std::fs::File;
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use tidelog_engine::memory::process::PerProcess;
use tidelog_engine::path::Status;

use super::batch::CuFileBatch;
use super::error::{CuFileError, name_of, transfer_result};
use super::library::{CuFileLibrary, NoLibrary};
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
pub struct DriverInfo {
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
pub enum DriverOpenError {
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
    /// Nobody asked for compat mode, and cuFile may take it all the same.
    #[error(
        "cuFile may go through host memory here without being asked: its compat mode is allowed ({why}); {advice}, or ask \
         for compat mode by name"
    )]
    CompatAllowed {
        /// Who allowed it.
        why: &'static str,
        /// What forbids it.
        advice: &'static str,
    },
    /// It does no batches.
    #[error("this cuFile does no batches ({0}); use the one of CUDA 12.2 or newer")]
    NoBatches(CuFileError),
}

/// Batches are cut to this even where the driver allows more: cuFile documents it as the most.
const BATCH_ENTRIES_MAX: u32 = 128;

/// Drivers open in this process. cuFile's state is the process's, so the count of its users is,
/// too.
static USERS: PerProcess<Mutex<Users>> =
    PerProcess::new(|| Mutex::new(Users { count: 0, ours: false, compat: Compat::Forbidden }));

struct Users {
    count: usize,
    /// Whether we opened it, rather than the framework beside us.
    ours: bool,
    /// What the first of them asked for, which holds until the last has gone.
    compat: Compat,
}

/// cuFile, open.
pub struct Driver {
    library: Arc<CuFileLibrary>,
    facts: DriverInfo,
    process: u32,
}

impl Driver {
    /// Opens cuFile and reads which mode is in force.
    pub fn open(library: Arc<CuFileLibrary>, compat: Compat) -> Result<Arc<Self>, DriverOpenError> {
        let functions = &library.functions;
        let (open, close) = (functions.driver_open.clone()?, functions.driver_close.clone()?);
        let mut users = USERS.get().lock().unwrap_or_else(PoisonError::into_inner);
        if users.count == 0 {
            if let Ok(set) = &functions.set_parameter {
                // SAFETY: no memory arguments. An answer that it cannot be set is no matter: what
                // is in force is read below.
                unsafe { set(sys::PARAMETER_ALLOW_COMPAT, compat == Compat::Named) };
            }
            // SAFETY: the function takes nothing.
            let answer = unsafe { open() };
            users.ours = answer.code != sys::DRIVER_ALREADY_OPEN;
            users.compat = compat;
            if users.ours {
                CuFileError::check(answer, "open its driver")
                    .map_err(|error| not_opened(error, compat))?;
            }
        }
        match read_facts(&library, compat, &users) {
            Ok(facts) => {
                users.count += 1;
                drop(users);
                let this = Arc::new(Self { library, facts, process: std::process::id() });
                // What it says of its features does not tell: the bit is not set before it has
                // opened by itself.
                CuFileBatch::new(&this, 1).map_err(DriverOpenError::NoBatches)?;
                Ok(this)
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
    pub fn facts(&self) -> &DriverInfo {
        &self.facts
    }

    pub(super) fn library(&self) -> &CuFileLibrary {
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
        let mut users = USERS.get().lock().unwrap_or_else(PoisonError::into_inner);
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

/// What an open that failed means: without compat mode the library does not open where there is no
/// direct way.
fn not_opened(error: CuFileError, compat: Compat) -> DriverOpenError {
    match error {
        CuFileError::Call { code, .. }
            if compat == Compat::Forbidden && sys::NOT_DIRECT.contains(&code) =>
        {
            let meaning = match code {
                5001 => ": nvidia-fs is not loaded, and peer-to-peer DMA is not in force",
                5004 | 5005 => ": nvidia-fs is of another version than this library",
                5007 => ": this platform has none",
                _ => ": nvidia-fs does not work",
            };
            let why = format!("it opens with error {code}, {}{meaning}", name_of(code));
            DriverOpenError::NotDirect { why }
        }
        error => error.into(),
    }
}

fn read_facts(
    library: &CuFileLibrary,
    compat: Compat,
    users: &Users,
) -> Result<DriverInfo, DriverOpenError> {
    let functions = &library.functions;
    let get = functions.get_properties.clone()?;
    let mut found = sys::Properties::default();
    // SAFETY: the call writes one structure, laid out as its header says.
    CuFileError::check(unsafe { get(&raw mut found) }, "read its properties")?;
    let parameter = |parameter| parameter_of(library, parameter);
    let mode = mode_in_force(&found, peer_to_peer(library), &parameter);
    if compat == Compat::Forbidden {
        if mode == Mode::Compat {
            return Err(DriverOpenError::NotDirect { why: why_not_direct(&found) });
        }
        // The parameter reads false where nobody has set it, whatever the configuration says; the
        // bit counts as well.
        let allowed = found.control & (1 << sys::ALLOW_COMPAT) != 0;
        if allowed || parameter(sys::PARAMETER_ALLOW_COMPAT) == Some(true) {
            return Err(why_allowed(library, users));
        }
    }
    Ok(DriverInfo {
        mode,
        library: library.path().to_path_buf(),
        version: library.version(),
        batch_entries_max: found.batch_entries_max.clamp(1, BATCH_ENTRIES_MAX),
        direct_io_max: found.direct_io_max as u64 * 1024,
        pinned_max: u64::from(found.pinned_max) * 1024,
    })
}

fn parameter_of(library: &CuFileLibrary, parameter: u32) -> Option<bool> {
    let get = library.functions.get_parameter.as_ref().ok()?;
    let mut value = false;
    // SAFETY: the call writes one bool.
    let answer = unsafe { get(parameter, &raw mut value) };
    (answer.code == 0).then_some(value)
}

/// Whether NVMe goes by peer-to-peer DMA, from a library that has a call to tell.
fn peer_to_peer(library: &CuFileLibrary) -> Option<bool> {
    let get = library.functions.get_p2p_flags.as_ref().ok()?;
    let mut flags = 0;
    // SAFETY: the call writes one word.
    let answer = unsafe { get(sys::NVME_SUPPORTED, &raw mut flags) };
    (answer.code == 0).then_some(flags & (1 << sys::P2PDMA) != 0)
}

/// Why compat mode is allowed although whoever opens forbids it.
fn why_allowed(library: &CuFileLibrary, users: &Users) -> DriverOpenError {
    const CONFIGURE: &str =
        "set allow_compat_mode to false in cufile.json (CUFILE_ENV_PATH_JSON names the file)";
    let (why, advice) = if users.count > 0 && users.compat == Compat::Named {
        ("another user in this process asked for it by name", "close that one first")
    } else if !users.ours {
        ("another library in this process opened cuFile first, with that setting", CONFIGURE)
    } else if library.functions.set_parameter.is_err() {
        ("this library is too old to be told otherwise by a program", CONFIGURE)
    } else {
        ("its configuration outranks what it was told", CONFIGURE)
    };
    DriverOpenError::CompatAllowed { why, advice }
}

/// The mode that the driver's own words amount to. `peer_to_peer` is its answer where it has a call
/// for that.
fn mode_in_force(
    found: &sys::Properties,
    peer_to_peer: Option<bool>,
    parameter: &dyn Fn(u32) -> Option<bool>,
) -> Mode {
    let has = |bit: u32| found.status & (1 << bit) != 0;
    if parameter(sys::PARAMETER_FORCE_COMPAT) == Some(true) {
        return Mode::Compat;
    }
    // Older libraries have a bit, which counts unless the setting was read and is off.
    let by_bit =
        || has(sys::NVME_P2P_SUPPORTED) && parameter(sys::PARAMETER_USE_P2PDMA) != Some(false);
    if peer_to_peer.unwrap_or_else(by_bit) {
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
        // SAFETY: the memory is registered and at least as long (the caller's ring); the call
        // returns when it is done.
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
        // SAFETY: the caller's allocation; the ring and the regions of a queue keep it for longer
        // than this.
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
        assert_eq!(mode_in_force(&direct, None, &none), Mode::NvidiaFs { major: 2, minor: 17 });
        let peer = properties(0, &[sys::NVME_P2P_SUPPORTED]);
        assert_eq!(mode_in_force(&peer, None, &none), Mode::PeerToPeer);
        assert_eq!(mode_in_force(&properties(2, &[]), None, &none), Mode::Compat);
        assert_eq!(mode_in_force(&sys::Properties::default(), None, &none), Mode::Compat);
    }

    #[test]
    fn where_the_library_has_a_call_that_tells_of_peer_to_peer_dma_it_outranks_the_old_bit() {
        let newer = properties(0, &[]);
        assert_eq!(mode_in_force(&newer, Some(true), &none), Mode::PeerToPeer);
        let stale = properties(0, &[sys::NVME_P2P_SUPPORTED]);
        assert_eq!(mode_in_force(&stale, Some(false), &none), Mode::Compat);
    }

    #[test]
    fn a_setting_that_was_read_outranks_a_capability() {
        let forced = |parameter| (parameter == sys::PARAMETER_FORCE_COMPAT).then_some(true);
        assert_eq!(
            mode_in_force(&properties(2, &[sys::NVME_SUPPORTED]), Some(true), &forced),
            Mode::Compat
        );
        let off = |parameter| (parameter == sys::PARAMETER_USE_P2PDMA).then_some(false);
        assert_eq!(
            mode_in_force(&properties(0, &[sys::NVME_P2P_SUPPORTED]), None, &off),
            Mode::Compat
        );
    }
}
