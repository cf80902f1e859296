//! The driver of cuFile: opened once for all of this process, with the mode that is in force as a
//! fact read from it.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use tidelog_engine::memory::process::PerProcess;

use super::batch::CuFileBatch;
use super::error::{CuFileError, name_of};
use super::facts::{DriverInfo, read_facts};
use super::library::{CuFileLibrary, NoLibrary};
use super::sys;
use crate::cuda::{CudaError, Gpu};

/// Permission for cuFile to go through host memory where there is no direct way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compat {
    /// Compat mode is forbidden: what cannot go directly fails.
    #[default]
    Forbidden,
    /// Compat mode was named.
    Named,
}

/// cuFile cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DriverOpenError {
    /// The library is missing.
    #[error(transparent)]
    NoLibrary(#[from] NoLibrary),
    /// The GPU's context could not be entered, without which it is not opened.
    #[error(transparent)]
    Cuda(#[from] CudaError),
    /// The library answered.
    #[error(transparent)]
    Call(#[from] CuFileError),
    /// The driver has no direct way, and no other was asked for.
    #[error(
        "cuFile has no direct way to an NVMe SSD here ({why}); load nvidia-fs, or turn on PCI peer-to-peer DMA \
         (use_pci_p2pdma in cufile.json, kernel 6.2 or newer), or ask for compat mode by name"
    )]
    NotDirect {
        /// Reason of the driver.
        why: String,
    },
    /// The driver may use compat mode though it was not asked to.
    #[error(
        "cuFile may go through host memory here without being asked: its compat mode is allowed ({why}); {advice}, or ask \
         for compat mode by name"
    )]
    CompatAllowed {
        /// Setting that allows it.
        why: &'static str,
        /// Setting that forbids it.
        advice: &'static str,
    },
    /// The driver does no batches.
    #[error("this cuFile does no batches ({0}); use the one of CUDA 12.2 or newer")]
    NoBatches(CuFileError),
}

/// Drivers open in this process. cuFile's state is the process's, so the count of its users is,
/// too.
static USERS: PerProcess<Mutex<Users>> =
    PerProcess::new(|| Mutex::new(Users { count: 0, ours: false, compat: Compat::Forbidden }));

pub(super) struct Users {
    pub(super) count: usize,
    /// True if we opened it, rather than the framework beside us.
    pub(super) ours: bool,
    /// Compat mode that the first user asked for, which holds until the last has gone.
    pub(super) compat: Compat,
}

/// cuFile, open.
pub struct Driver {
    library: Arc<CuFileLibrary>,
    facts: DriverInfo,
    process: u32,
}

impl Driver {
    /// Opens cuFile and reads which mode is in force. It is opened in the context of a GPU: without
    /// one some releases fail, and one did not return where no driver of CUDA's was there at all.
    pub fn open(
        gpu: &Gpu,
        library: Arc<CuFileLibrary>,
        compat: Compat,
    ) -> Result<Arc<Self>, DriverOpenError> {
        let _entered = gpu.enter()?;
        let functions = &library.functions;
        let (open, close) = (functions.driver_open.clone()?, functions.driver_close.clone()?);
        let mut users = USERS.get().lock().unwrap_or_else(PoisonError::into_inner);
        let mut entered_again = Ok(());
        if users.count == 0 {
            if let Ok(set) = &functions.set_parameter {
                // SAFETY: no memory arguments. An answer that it cannot be set is no matter: what
                // is in force is read below.
                unsafe { set(sys::PARAMETER_ALLOW_COMPAT, compat == Compat::Named) };
            }
            // SAFETY: the function takes nothing.
            let answer = unsafe { open() };
            // It looks at every GPU, and need not leave the thread with the one that it was with.
            entered_again = gpu.stay();
            users.ours = answer.code != sys::DRIVER_ALREADY_OPEN;
            users.compat = compat;
            if users.ours {
                CuFileError::check(answer, "open its driver")
                    .map_err(|error| not_opened(error, compat))?;
            }
        }
        let facts = entered_again.map_err(DriverOpenError::from);
        match facts.and_then(|()| read_facts(&library, compat, &users)) {
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

    /// Returns the driver's properties, as reported when it was opened.
    pub fn facts(&self) -> &DriverInfo {
        &self.facts
    }

    pub(super) fn library(&self) -> &CuFileLibrary {
        &self.library
    }

    /// Returns whether this process opened it. Its child by `fork` did not, and must not call it.
    pub(super) fn is_ours(&self) -> bool {
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

/// Explains a failed open: without compat mode the library does not open where there is no direct
/// way.
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
