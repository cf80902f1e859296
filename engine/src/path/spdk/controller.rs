//! Controllers: attached by the admin thread, used by whoever holds the handle, detached when
//! nobody does.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tidelog_spdk_sys as sys;

use super::claim::{ClaimError, NamespaceClaim};
use super::environment::{Environment, EnvironmentError};
use super::reset::Reset;
use crate::path::device::ControllerName;
use crate::path::nvme::steps::Limits;
use crate::units::ByteCount;

/// Time for a target to accept a connection; SPDK would wait for half a second.
pub(super) const CONNECT: Duration = Duration::from_secs(10);
/// Interval at which a thread polls a controller that is being started.
const PAUSE: Duration = Duration::from_millis(1);

/// A namespace of a controller that is this process's alone.
pub struct Controller {
    facts: NamespaceInfo,
    shared: Arc<Shared>,
    /// Keeps other processes of this host from it. Given back once it is detached.
    claim: Option<NamespaceClaim>,
}

/// Driver's handle of the controller, and the lock on everything but input and output. Several
/// namespaces may have it, all of one pool: a reset takes all queue pairs, and they must be one
/// thread's.
pub(super) struct Shared {
    handle: NonNull<sys::spdk_nvme_ctrlr>,
    admin: Mutex<()>,
    /// Progress of a reset: a [`Phase`].
    phase: AtomicU8,
    /// Queue pairs of paths. None is left when it is started again.
    pairs: AtomicUsize,
    /// The path of the pool that has it, and how many of its namespaces.
    pool: Mutex<(u64, usize)>,
    /// True if the controller could not be stopped, and so stays with this process.
    dead: AtomicBool,
}

/// Readiness of a controller for commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Phase {
    /// The controller takes commands.
    Up,
    /// The controller is being stopped, or is to be. What it was given it may still do.
    Stopping,
    /// The controller is stopped, and is started once no queue pair is left.
    Stopped,
    /// The controller is being started. SPDK holds its own lock meanwhile.
    Starting,
    /// The controller is gone: it does not come back, and does nothing.
    Gone,
    /// The controller could not be stopped.
    Stuck,
}

// SAFETY: SPDK locks a controller's own state itself; `admin` keeps the admin thread's polling and
// other threads' use apart. Queue pairs, which are a single thread's, are not reached through this.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// Properties of a namespace.
#[derive(Clone, Debug)]
pub(super) struct NamespaceInfo {
    pub(super) name: String,
    pub(super) size: ByteCount,
    pub(super) limits: Limits,
    pub(super) volatile_cache: bool,
    pub(super) deallocate: bool,
    pub(super) write_zeroes: bool,
    pub(super) reach: DmaIsolation,
    /// Identity of the namespace, independent of its address.
    pub(super) identity: String,
    /// Notes for people.
    pub(super) notes: Vec<String>,
    /// The placement identifiers of its placement handles (FDP), in the order of its list.
    pub(super) placement: Vec<u16>,
    /// The endurance group that it belongs to; 0 for none.
    pub(super) endurance_group: u16,
    pub(super) namespace: NamespaceHandle,
}

/// Membership of a namespace's controller in one pool, while this lives.
pub(super) struct Joined(Arc<Controller>);

impl Drop for Joined {
    fn drop(&mut self) {
        self.0.shared.pool.lock().unwrap_or_else(PoisonError::into_inner).1 -= 1;
    }
}

/// Isolation of a controller from memory that it must not reach.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DmaIsolation {
    /// A device on the bus writes memory itself, until it is reset.
    Bus,
    /// Bytes come over a connection, until it is closed: by a socket, which processors fill, or by
    /// a network card that reaches memory itself.
    Connection { by_socket: bool },
    /// Process boundary: another process has the memory (vfio-user), and nothing here stops it.
    Process,
}

/// The driver's namespace. It lives as long as its controller.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamespaceHandle(pub(super) NonNull<sys::spdk_nvme_ns>);

// SAFETY: what is read of a namespace does not change, and SPDK locks the rest.
unsafe impl Send for NamespaceHandle {}
// SAFETY: as above.
unsafe impl Sync for NamespaceHandle {}

/// A controller could not be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// SPDK itself does not work here.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// The controller is in use in this process.
    #[error("it is open in this process already; over spdk a share is whole namespaces")]
    Held,
    /// The controller belongs to another pool of this process, for another namespace.
    #[error(
        "its controller is another pool's of this process, for another namespace; over spdk all namespaces of a controller are one pool's: close that pool"
    )]
    OtherPool,
    /// The kernel's driver has it by another controller or connection.
    #[error(
        "the kernel has its namespace, too, as {0}, by another controller or connection; unbind or disconnect that (nvme disconnect), or use it by /dev/{0}"
    )]
    Kernel(String),
    /// The controller is in use in this process under another name.
    #[error("it is the namespace that {0} names, which this process has open; name each once")]
    Twin(String),
    /// The namespace is open in another process of this host.
    #[error(
        "{0} on this host has its namespace open; over spdk a namespace is one process's: close it there"
    )]
    Elsewhere(String),
    /// An earlier use of it never ended.
    #[error(
        "it did not let go of what this process had it do, and may still do it; end this process to have it again"
    )]
    Dead,
    /// The claim failed: nothing keeps other processes from the namespace.
    #[error("it cannot be claimed among the processes of this host: {0}")]
    Claim(String),
    /// The name means nothing to SPDK.
    #[error("SPDK does not understand {0}")]
    Name(String),
    /// The controller does not exist, or cannot be attached.
    #[error("{0}")]
    Controller(String),
    /// The namespace is not one that Tidelog can use.
    #[error("namespace {namespace} {reason}")]
    Namespace {
        /// The number.
        namespace: u32,
        /// The reason why not.
        reason: String,
    },
}

impl Controller {
    /// Attaches the controller. It is detached when the last handle is dropped.
    pub fn attach(name: &ControllerName) -> Result<Arc<Self>, AttachError> {
        let (environment, name) = (Environment::get()?, name.clone());
        let (facts, shared) =
            environment.ask(move |admin_thread, answer| admin_thread.attach(name, &answer))??;
        let mut controller = Self { facts, shared, claim: None };
        controller.claim = Some(NamespaceClaim::of(&controller.facts.identity)?);
        controller.facts.limits =
            controller.facts.limits.within_limits_of(&controller.block_commands());
        controller.find_placement_handles();
        Ok(Arc::new(controller))
    }

    /// Data placement belongs to an endurance group; a controller without it returns an error.
    fn find_placement_handles(&mut self) {
        if self.facts.endurance_group == 0 {
            return;
        }
        match self.placement_handles() {
            Ok(handles) => {
                self.facts.placement = handles.iter().map(|handle| handle.placement).collect();
            }
            Err(error) => {
                let name = &self.facts.name;
                self.facts.notes.push(format!("{name} tells no placement handles: {error}"));
            }
        }
    }

    /// Returns the capacity.
    pub fn size(&self) -> ByteCount {
        self.facts.size
    }

    pub(super) fn facts(&self) -> &NamespaceInfo {
        &self.facts
    }

    pub(super) fn handle(&self) -> *mut sys::spdk_nvme_ctrlr {
        self.shared.handle.as_ptr()
    }

    pub(super) fn namespace(&self) -> *mut sys::spdk_nvme_ns {
        self.facts.namespace.0.as_ptr()
    }

    /// The entries of the largest queue that it takes.
    pub(super) fn queue_entries(&self) -> u32 {
        // SAFETY: the controller is attached; what its register said then is only looked at.
        let capabilities = unsafe { sys::spdk_nvme_ctrlr_get_regs_cap(self.handle()) };
        // SAFETY: every number is one of the register's fields.
        let most = unsafe { capabilities.bits.mqes() };
        // It counts from 0, and says 1 at least.
        (most as u32 + 1).max(2)
    }

    /// Returns whether other hosts can reach it, too.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self.facts.reach, DmaIsolation::Connection { .. })
    }

    /// Runs `work` while nobody else uses the controller's own queue, and not while it is being
    /// started.
    pub(super) fn alone<T>(&self, work: impl FnOnce(*mut sys::spdk_nvme_ctrlr) -> T) -> T {
        loop {
            let held = self.shared.admin.lock().unwrap_or_else(PoisonError::into_inner);
            if self.shared.phase() != Phase::Starting {
                return work(self.handle());
            }
            drop(held);
            std::thread::sleep(PAUSE);
        }
    }

    pub(super) fn phase(&self) -> Phase {
        self.shared.phase()
    }

    /// Has the admin thread stop it and start it again, unless that is under way. Its phase tells
    /// how far that has come.
    pub(super) fn reset(&self) {
        let reset = match self.phase() {
            Phase::Up => Reset::new(),
            Phase::Gone => Reset::once(),
            Phase::Stopping | Phase::Stopped | Phase::Starting | Phase::Stuck => return,
        };
        self.shared.enter(Phase::Stopping);
        let handle = self.handle() as usize;
        let asked = Environment::get()
            .and_then(|it| it.tell(move |admin_thread| admin_thread.reset(handle, reset)));
        if asked.is_err() {
            self.shared.enter(Phase::Stuck);
        }
    }

    pub(super) fn gain_pair(&self) {
        self.shared.pairs.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a queue pair that was freed, once for each that was gained.
    pub(super) fn lose_pair(&self) {
        self.shared.pairs.fetch_sub(1, Ordering::Release);
    }

    /// Joins the controller to a pool's path, if it is no other's.
    pub(super) fn join(self: &Arc<Self>, path: u64) -> Option<Joined> {
        let mut pool = self.shared.pool.lock().unwrap_or_else(PoisonError::into_inner);
        if pool.1 > 0 && pool.0 != path {
            return None;
        }
        *pool = (path, pool.1 + 1);
        drop(pool);
        Some(Joined(Arc::clone(self)))
    }

    /// Marks the controller as one that could not be stopped, and will stay with this process.
    pub(super) fn give_up(&self) {
        self.shared.dead.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    pub(super) fn new(handle: NonNull<sys::spdk_nvme_ctrlr>) -> Self {
        let (pool, dead) = (Mutex::new((0, 0)), AtomicBool::new(false));
        let (phase, pairs) = (AtomicU8::new(Phase::Up as u8), AtomicUsize::new(0));
        Self { handle, admin: Mutex::new(()), phase, pairs, pool, dead }
    }

    pub(super) fn phase(&self) -> Phase {
        const ALL: [Phase; 6] = [
            Phase::Up,
            Phase::Stopping,
            Phase::Stopped,
            Phase::Starting,
            Phase::Gone,
            Phase::Stuck,
        ];
        ALL[usize::from(self.phase.load(Ordering::Acquire))]
    }

    pub(super) fn enter(&self, phase: Phase) {
        self.phase.store(phase as u8, Ordering::Release);
    }

    pub(super) fn has_pairs(&self) -> bool {
        self.pairs.load(Ordering::Acquire) > 0
    }

    /// Returns whether a pool has it already.
    pub(super) fn is_of_a_pool(&self) -> bool {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner).1 > 0
    }

    pub(super) fn handle(&self) -> *mut sys::spdk_nvme_ctrlr {
        self.handle.as_ptr()
    }

    pub(super) fn pointer(&self) -> NonNull<sys::spdk_nvme_ctrlr> {
        self.handle
    }

    pub(super) fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Relaxed)
    }

    /// Runs `work` if nobody else uses the controller's own queue now.
    pub(super) fn alone_now<T>(
        &self,
        work: impl FnOnce(*mut sys::spdk_nvme_ctrlr) -> T,
    ) -> Option<T> {
        let _held = self.admin.try_lock().ok()?;
        Some(work(self.handle()))
    }
}

impl From<ClaimError> for AttachError {
    fn from(error: ClaimError) -> Self {
        match error {
            ClaimError::Held(process) if process == std::process::id().cast_signed() => Self::Held,
            ClaimError::Held(0) => Self::Elsewhere("another process".into()),
            ClaimError::Held(process) => {
                let name = std::fs::read_to_string(format!("/proc/{process}/comm"));
                let name = name.map(|name| format!(" ({})", name.trim())).unwrap_or_default();
                Self::Elsewhere(format!("process {process}{name}"))
            }
            ClaimError::System(error) => Self::Claim(error.to_string()),
        }
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let handle = self.shared.handle.as_ptr() as usize;
        let identity = std::mem::take(&mut self.facts.identity);
        let Ok(environment) = Environment::get() else { return };
        // Waits, so that the same name can be attached again at once.
        let _ =
            environment.ask(move |admin_thread, left| admin_thread.detach(handle, &identity, left));
    }
}

/// Returns the time after which a command is aborted.
pub(super) fn command_timeout() -> Duration {
    Environment::get().map_or(Duration::MAX, |environment| environment.options().timeout)
}
