//! SPDK's environment: started once in a process, on a thread of its own, which also looks after
//! the controllers.
//!
//! Superblocks are read before there is a reactor, and controllers outlive one (format, then open),
//! so neither a caller's thread nor a reactor's can be the one that the environment binds to its
//! core. The admin thread is, and gets the process's own affinity back as soon as the environment
//! stands. It keeps fabric connections alive, notices removals, attaches and detaches; input and
//! output are the reactors' own.

use std::ffi::CString;
use std::ptr::{self, NonNull};
use std::sync::mpsc::{self, Sender, SyncSender};
use std::sync::{Mutex, OnceLock, PoisonError};

use tidelog_spdk_sys as sys;

use super::admin_thread::AdminThread;
use super::log::{self, Said};
use super::options::{EnvironmentOptions, Pages};
use crate::memory::process::PerProcess;
use crate::memory::{Backing, DmaPool, MemoryError};
use crate::units::ByteCount;

/// The environment could not be started, or not like this any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("SPDK's environment: {0}")]
pub struct EnvironmentError(pub(super) String);

impl EnvironmentError {
    fn ended() -> Self {
        Self("its thread has ended".into())
    }
}

/// Buffers begin at whole huge pages if they are that long.
const HUGE_PAGE: usize = 2 << 20;

/// Task for the admin thread, which waits for nothing.
pub(super) type Task = Box<dyn FnOnce(&mut AdminThread) + Send>;

/// The started environment.
pub(super) struct Environment {
    tasks: Mutex<Sender<Task>>,
    options: EnvironmentOptions,
    huge: bool,
}

static WISHES: OnceLock<EnvironmentOptions> = OnceLock::new();
/// A child of fork does not wait for a thread of its parent that was starting it.
static STARTED: PerProcess<OnceLock<Result<Environment, EnvironmentError>>> =
    PerProcess::new(OnceLock::new);

/// Says how the environment is to be started; refused once it is, or once this was said before.
pub fn configure(options: EnvironmentOptions) -> Result<(), EnvironmentError> {
    WISHES.set(options).map_err(|_| EnvironmentError("it was configured before".into()))?;
    match WISHES.get() {
        _ if STARTED.get_if_used().is_none_or(|started| started.get().is_none()) => Ok(()),
        _ => Err(EnvironmentError("it has started already; configure it before".into())),
    }
}

impl Environment {
    /// The process's environment, started if nobody has done so yet.
    pub(super) fn get() -> Result<&'static Self, EnvironmentError> {
        let started = STARTED.get();
        let Some(parent) = started.inherited_from() else {
            return started.get_or_init(Self::start).as_ref().map_err(Clone::clone);
        };
        Err(EnvironmentError(format!(
            "process {parent} started it, of which this one is a fork, and its thread is there alone; open the devices in a \
             process that is started anew (in Python: multiprocessing's start method \"spawn\")"
        )))
    }

    fn start() -> Result<Self, EnvironmentError> {
        let options = if let Some(options) = WISHES.get() {
            *options
        } else {
            let options = EnvironmentOptions::of_the_user()?;
            *WISHES.get_or_init(|| options)
        };
        let huge = match options.pages {
            Pages::Auto => free_huge_pages() >= options.memory.0.div_ceil(HUGE_PAGE as u64),
            Pages::Huge => true,
            Pages::Plain => false,
        };
        let (tasks, inbox) = mpsc::channel();
        let (answer, started) = mpsc::sync_channel(1);
        std::thread::Builder::new()
            .name("tidelog-spdk".into())
            .spawn(move || {
                let result = initialise(options, huge);
                let good = result.is_ok();
                // The starter waits for this; it cannot be gone.
                let _ = answer.send(result);
                if good {
                    AdminThread::new().run(&inbox);
                }
            })
            .map_err(|error| {
                EnvironmentError(format!("its thread could not be started: {error}"))
            })?;
        started.recv().map_err(|_| EnvironmentError("its thread ended".into()))??;
        Ok(Self { tasks: Mutex::new(tasks), options, huge })
    }

    /// The environment, if it was started, and not by a process of which this one is a fork.
    pub(super) fn of_this_process() -> Option<&'static Self> {
        STARTED.get_if_used()?.get()?.as_ref().ok()
    }

    pub(super) fn options(&self) -> &EnvironmentOptions {
        &self.options
    }

    /// Describes the environment for people: version, pages.
    pub(super) fn describe(&self) -> String {
        let pages = if self.huge { "huge pages" } else { "plain pages" };
        format!("SPDK {} on {pages}", sys::VERSION)
    }

    /// Runs `work` on the admin thread, and waits for its result, even if it comes later.
    pub(super) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut AdminThread, SyncSender<T>) + Send + 'static,
    ) -> Result<T, EnvironmentError> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.tell(move |admin_thread| work(admin_thread, answer))?;
        answered.recv().map_err(|_| EnvironmentError::ended())
    }

    /// Runs `work` on the admin thread, and does not wait for it.
    pub(super) fn tell(
        &self,
        work: impl FnOnce(&mut AdminThread) + Send + 'static,
    ) -> Result<(), EnvironmentError> {
        let tasks = self.tasks.lock().unwrap_or_else(PoisonError::into_inner);
        tasks.send(Box::new(work)).map_err(|_| EnvironmentError::ended())
    }

    /// Memory that every controller can reach, as a pool.
    pub(super) fn allocate(&self, bytes: ByteCount) -> Result<DmaPool, MemoryError> {
        let length = bytes.0 as usize;
        if length == 0 {
            return Err(MemoryError::Empty);
        }
        let alignment = if length >= HUGE_PAGE { HUGE_PAGE } else { crate::memory::ALIGNMENT };
        let length = length.next_multiple_of(crate::memory::ALIGNMENT);
        // SAFETY: the environment has been started; the call has no other conditions.
        let base = unsafe {
            sys::spdk_zmalloc(length, alignment, ptr::null_mut(), -1, sys::SPDK_MALLOC_DMA)
        };
        let base = NonNull::new(base.cast::<u8>()).ok_or_else(|| MemoryError::Map {
            bytes,
            source: std::io::Error::other(format!(
                "SPDK's environment has too little left of its {} or as many huge pages as there are",
                self.options.memory
            )),
        })?;
        let backing = if self.huge { Backing::HugeTlb } else { Backing::Plain };
        let why = if self.huge { "" } else { "SPDK's environment runs without huge pages" };
        // SAFETY: `length` zeroed bytes from `base` on are ours alone until they are freed, which
        // the closure does, when the pool's last handle and its last buffer are gone.
        Ok(unsafe {
            DmaPool::borrowed(base, length, backing, why.into(), |base| {
                sys::spdk_free(base.as_ptr().cast());
            })
        })
    }
}

/// Starts the environment on this thread, which keeps the affinity that it had.
fn initialise(options: EnvironmentOptions, huge: bool) -> Result<(), EnvironmentError> {
    let before = Affinity::of_this_thread()?;
    let core = match options.core {
        Some(core) if !before.has(core) => {
            return Err(EnvironmentError(format!("this process may not run on core {core}")));
        }
        Some(core) => core,
        None => before.first(),
    };
    let name = CString::from(c"tidelog");
    let mask = CString::new(format!("[{core}]")).unwrap_or_default();
    let mut wanted = sys::spdk_env_opts {
        opts_size: size_of::<sys::spdk_env_opts>(),
        ..sys::spdk_env_opts::default()
    };
    log::listen();
    let mut said = Said::default();
    // SAFETY: the structure has the size it says; what its strings point at outlives the call, and
    // SPDK copies it.
    let answer = said.capture(|| unsafe {
        sys::spdk_env_opts_init(&raw mut wanted);
        wanted.name = name.as_ptr();
        wanted.core_mask = mask.as_ptr();
        wanted.no_huge = !huge;
        wanted.mem_size = (options.memory.0 >> 20).try_into().unwrap_or(i32::MAX);
        let answer = sys::spdk_env_init(&raw const wanted);
        // Nothing is shared with other processes, so DPDK's directory for that is empty, and would
        // be left behind.
        sys::tidelog_spdk_tidy();
        answer
    });
    before.restore()?;
    if answer == 0 {
        return Ok(());
    }
    let hint = if huge {
        "; it needs free huge pages (vm.nr_hugepages) and a mounted hugetlbfs, or Pages::Plain"
    } else {
        "; without huge pages it needs an IOMMU, or a path that is not PCIe"
    };
    Err(EnvironmentError(format!("it did not start ({}){hint}{}", errno(answer), said.reason())))
}

/// SPDK's negative error numbers in words.
pub(super) fn errno(answer: i32) -> std::io::Error {
    std::io::Error::from_raw_os_error(answer.saturating_abs())
}

/// The free huge pages of 2 MiB.
fn free_huge_pages() -> u64 {
    std::fs::read_to_string("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// The cores that a thread may run on.
struct Affinity(libc::cpu_set_t);

impl Affinity {
    fn of_this_thread() -> Result<Self, EnvironmentError> {
        // SAFETY: an all-zero set is one without cores; the call fills in as many bytes as it is
        // told.
        let (set, answer) = unsafe {
            let mut set: libc::cpu_set_t = std::mem::zeroed();
            let answer = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &raw mut set);
            (set, answer)
        };
        if answer == 0 { Ok(Self(set)) } else { Err(affinity_error()) }
    }

    fn has(&self, core: usize) -> bool {
        // SAFETY: the index is within the set.
        core < libc::CPU_SETSIZE as usize && unsafe { libc::CPU_ISSET(core, &self.0) }
    }

    fn first(&self) -> usize {
        (0..libc::CPU_SETSIZE as usize).find(|&core| self.has(core)).unwrap_or(0)
    }

    fn restore(&self) -> Result<(), EnvironmentError> {
        // SAFETY: the call reads as many bytes as it is told.
        let answer =
            unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const self.0) };
        if answer == 0 { Ok(()) } else { Err(affinity_error()) }
    }
}

fn affinity_error() -> EnvironmentError {
    let error = std::io::Error::last_os_error();
    EnvironmentError(format!("the thread's affinity: {error}"))
}
