//! Controllers: attached by the keeper, used by whoever holds the handle, detached when nobody does.

use std::cell::Cell;
use std::ffi::CString;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tidelog_spdk_sys as sys;

use super::environment::{Environment, EnvironmentError, Keeper};
use crate::memory::ALIGNMENT;
use crate::path::device::ControllerName;
use crate::path::nvme::steps::Limits;
use crate::units::ByteCount;

/// A vfio-user target serves one at a time, and takes a moment to let go of the last one.
const LEAVE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(300);
/// How long a target may take to answer a connection; SPDK would wait for half a second.
pub(super) const CONNECT: Duration = Duration::from_secs(10);

/// A namespace of a controller that is this process's alone.
pub struct Controller {
    facts: Facts,
    shared: Arc<Shared>,
}

/// What the driver calls the controller, and the lock on everything but input and output.
struct Shared {
    handle: NonNull<sys::spdk_nvme_ctrlr>,
    admin: Mutex<()>,
}

// SAFETY: SPDK locks a controller's own state itself; `admin` keeps the keeper's polling and a reset apart. Queue
// pairs, which are a single thread's, are not reached through this.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

/// What a namespace is.
#[derive(Clone, Debug)]
pub(super) struct Facts {
    pub(super) name: String,
    pub(super) size: ByteCount,
    pub(super) limits: Limits,
    pub(super) volatile_cache: bool,
    pub(super) deallocate: bool,
    pub(super) write_zeroes: bool,
    pub(super) reach: Reach,
    /// The placement identifiers of its placement handles (FDP), in the order of its list.
    pub(super) placement: Vec<u16>,
    /// The endurance group that it belongs to; 0 for none.
    pub(super) endurance_group: u16,
    namespace: Namespace,
}

/// How a controller reaches memory, and so how it is kept from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// A device on the bus writes memory itself, until it is reset.
    Bus,
    /// Bytes come over a connection, until it is closed.
    Connection,
    /// Another process has the memory (vfio-user), and nothing here stops it.
    Process,
}

/// The driver's namespace. It lives as long as its controller.
#[derive(Clone, Copy, Debug)]
struct Namespace(NonNull<sys::spdk_nvme_ns>);

// SAFETY: what is read of a namespace does not change, and SPDK locks the rest.
unsafe impl Send for Namespace {}
// SAFETY: as above.
unsafe impl Sync for Namespace {}

/// A controller could not be attached.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttachError {
    /// SPDK itself does not work here.
    #[error(transparent)]
    Environment(#[from] EnvironmentError),
    /// A share is a whole controller, and somebody in this process has it.
    #[error("it is open in this process already; over spdk a share is whole controllers")]
    Held,
    /// Its name means nothing to SPDK.
    #[error("SPDK does not understand the transport id {0:?}")]
    Name(String),
    /// There is no such controller, or it cannot be had.
    #[error("{0}")]
    Controller(String),
    /// The namespace is not one that Tidelog can use.
    #[error("namespace {namespace} {reason}")]
    Namespace {
        /// Its number.
        namespace: u32,
        /// Why not.
        reason: String,
    },
}

impl Controller {
    /// Attaches the controller. It is detached when the last handle is dropped.
    pub fn attach(name: &ControllerName) -> Result<Arc<Self>, AttachError> {
        let name = name.clone();
        let (facts, shared) = Environment::get()?.ask(move |keeper| attach(keeper, &name))??;
        let mut controller = Self { facts, shared };
        // Data placement belongs to an endurance group; one without it answers with an error.
        if controller.facts.endurance_group != 0
            && let Ok(handles) = controller.placement_handles()
        {
            controller.facts.placement = handles.iter().map(|handle| handle.placement).collect();
        }
        Ok(Arc::new(controller))
    }

    /// Its capacity.
    pub fn size(&self) -> ByteCount {
        self.facts.size
    }

    pub(super) fn facts(&self) -> &Facts {
        &self.facts
    }

    pub(super) fn handle(&self) -> *mut sys::spdk_nvme_ctrlr {
        self.shared.handle.as_ptr()
    }

    pub(super) fn namespace(&self) -> *mut sys::spdk_nvme_ns {
        self.facts.namespace.0.as_ptr()
    }

    /// Runs `work` while nobody else uses the controller's own queue.
    pub(super) fn alone<T>(&self, work: impl FnOnce(*mut sys::spdk_nvme_ctrlr) -> T) -> T {
        let _held = self.shared.admin.lock().unwrap_or_else(PoisonError::into_inner);
        work(self.handle())
    }
}

impl Drop for Controller {
    fn drop(&mut self) {
        let handle = self.shared.handle.as_ptr() as usize;
        let Ok(environment) = Environment::get() else { return };
        // Waits, so that the same name can be attached again at once.
        let _ = environment.ask(move |keeper| keeper.detach(handle));
    }
}

/// A controller in the keeper's care.
pub(super) struct Attached {
    shared: Arc<Shared>,
    transport: sys::spdk_nvme_transport_id,
    /// Whether its own queue has failed: a controller that was reset since is one that is to be opened anew.
    failed: Cell<bool>,
}

impl Attached {
    /// Takes in what the controller's own queue has; keeps a connection alive.
    pub(super) fn process_admin(&self) {
        let Ok(_held) = self.shared.admin.try_lock() else { return };
        if self.failed.get() {
            return;
        }
        // SAFETY: the controller is attached. A failure shows at its queue pairs as well.
        let answer =
            unsafe { sys::spdk_nvme_ctrlr_process_admin_completions(self.shared.handle.as_ptr()) };
        self.failed.set(answer < 0);
    }

    /// Lets SPDK notice whether it was unplugged.
    pub(super) fn scan(&self) {
        if self.transport.trtype != sys::SPDK_NVME_TRANSPORT_PCIE {
            return;
        }
        // SAFETY: a transport id that SPDK has filled in.
        unsafe { sys::spdk_nvme_scan_attached(&raw const self.transport) };
    }
}

impl Keeper {
    fn detach(&mut self, handle: usize) {
        let is_it = |it: &Attached| it.shared.handle.as_ptr() as usize == handle;
        let Some(at) = self.attached.iter().position(is_it) else { return };
        let attached = self.attached.swap_remove(at);
        // SAFETY: the last handle is being dropped, so no queue pair is left.
        unsafe { sys::spdk_nvme_detach(attached.shared.handle.as_ptr()) };
    }
}

// -- on the keeper's thread --------------------------------------------------------------------------------------

fn attach(keeper: &mut Keeper, name: &ControllerName) -> Result<(Facts, Arc<Shared>), AttachError> {
    let transport = parse(name)?;
    // SAFETY: both transport ids were filled in by SPDK.
    let is_same = |other: &Attached| unsafe {
        sys::spdk_nvme_transport_id_compare(&raw const transport, &raw const other.transport) == 0
    };
    if keeper.attached.iter().any(is_same) {
        return Err(AttachError::Held);
    }
    let handle = connect(name, &transport)?;
    let facts = describe(name, handle, transport.trtype).inspect_err(|_| {
        // SAFETY: the controller was just attached and nobody else knows it.
        unsafe { sys::spdk_nvme_detach(handle.as_ptr()) };
    })?;
    let shared = Arc::new(Shared { handle, admin: Mutex::new(()) });
    keeper.attached.push(Attached {
        shared: Arc::clone(&shared),
        transport,
        failed: Cell::new(false),
    });
    Ok((facts, shared))
}

fn parse(name: &ControllerName) -> Result<sys::spdk_nvme_transport_id, AttachError> {
    let meaningless = || AttachError::Name(name.transport().into());
    let text = CString::new(name.transport()).map_err(|_| meaningless())?;
    let mut transport = sys::spdk_nvme_transport_id::default();
    // SAFETY: a transport id of zeroes is what the call wants, and the string ends.
    let answer = unsafe { sys::spdk_nvme_transport_id_parse(&raw mut transport, text.as_ptr()) };
    if answer == 0 { Ok(transport) } else { Err(meaningless()) }
}

fn connect(
    name: &ControllerName,
    transport: &sys::spdk_nvme_transport_id,
) -> Result<NonNull<sys::spdk_nvme_ctrlr>, AttachError> {
    if let Some(why) = name.pci_address().and_then(why_not_ours) {
        return Err(AttachError::Controller(why));
    }
    let deadline = Instant::now() + LEAVE;
    loop {
        let mut options = sys::spdk_nvme_ctrlr_opts::default();
        let size = size_of::<sys::spdk_nvme_ctrlr_opts>();
        // SAFETY: SPDK fills in, and later reads, as much of the structure as it is told.
        let handle = unsafe {
            sys::spdk_nvme_ctrlr_get_default_ctrlr_opts(&raw mut options, size);
            // Failures are reported by us, with the tensor that they concern.
            options.disable_error_logging = true;
            options.fabrics_connect_timeout_us = CONNECT.as_micros() as u64;
            sys::spdk_nvme_connect(transport, &raw const options, size)
        };
        if let Some(handle) = NonNull::new(handle) {
            return Ok(handle);
        }
        if reach_of(transport.trtype) != Reach::Process || Instant::now() >= deadline {
            return Err(AttachError::Controller(format!(
                "SPDK cannot attach it ({}); is it there, and is no other process using it?",
                name.transport()
            )));
        }
        std::thread::sleep(PAUSE);
    }
}

fn reach_of(transport: sys::spdk_nvme_transport_type) -> Reach {
    match transport {
        sys::SPDK_NVME_TRANSPORT_PCIE => Reach::Bus,
        sys::SPDK_NVME_TRANSPORT_TCP => Reach::Connection,
        _ => Reach::Process,
    }
}

/// Why SPDK cannot have the device at this PCI address, as far as the kernel tells.
fn why_not_ours(address: &str) -> Option<String> {
    let full =
        if address.matches(':').count() == 1 { format!("0000:{address}") } else { address.into() };
    let device = Path::new("/sys/bus/pci/devices").join(&full);
    if !device.exists() {
        return Some(format!("there is no PCI device at {full}"));
    }
    let driver = std::fs::read_link(device.join("driver")).ok();
    let driver = driver.as_deref().and_then(Path::file_name).and_then(|it| it.to_str());
    match driver {
        Some("vfio-pci" | "uio_pci_generic" | "igb_uio") => None,
        Some(driver) => Some(format!(
            "the kernel's driver {driver} has it; bind it to vfio-pci (or, without an IOMMU, to uio_pci_generic)"
        )),
        None => Some(
            "it has no driver; bind it to vfio-pci (or, without an IOMMU, to uio_pci_generic)"
                .into(),
        ),
    }
}

/// What the namespace is, if Tidelog can use it.
fn describe(
    name: &ControllerName,
    handle: NonNull<sys::spdk_nvme_ctrlr>,
    transport: sys::spdk_nvme_transport_type,
) -> Result<Facts, AttachError> {
    let number = name.namespace();
    let refused = |reason: String| AttachError::Namespace { namespace: number, reason };
    // SAFETY: the controller is attached.
    let namespace = unsafe { sys::spdk_nvme_ctrlr_get_ns(handle.as_ptr(), number) };
    let namespace = NonNull::new(namespace).ok_or_else(|| refused("does not exist".into()))?;
    let it = namespace.as_ptr();
    // SAFETY: the namespace belongs to the attached controller; these calls only read what was identified.
    let (blocks, block, metadata, command_set, flags, transfer, endurance_group) = unsafe {
        (
            sys::spdk_nvme_ns_get_num_sectors(it),
            sys::spdk_nvme_ns_get_sector_size(it),
            sys::spdk_nvme_ns_get_md_size(it),
            sys::spdk_nvme_ns_get_csi(it),
            sys::spdk_nvme_ns_get_flags(it),
            sys::spdk_nvme_ns_get_max_io_xfer_size(it),
            (*sys::spdk_nvme_ns_get_data(it)).endgid,
        )
    };
    if blocks == 0 || block == 0 {
        return Err(refused("is not active".into()));
    }
    if metadata != 0 {
        return Err(refused(format!(
            "has {metadata} bytes of metadata with each block; choose an LBA format without"
        )));
    }
    if command_set != sys::SPDK_NVME_CSI_NVM {
        return Err(refused(
            "has another command set (zoned?); only the NVM command set is used".into(),
        ));
    }
    if block as usize > ALIGNMENT || !block.is_power_of_two() {
        return Err(refused(format!(
            "has blocks of {block} bytes; at most {ALIGNMENT} are supported"
        )));
    }
    let has = |flag: sys::spdk_nvme_ns_flags| flags & flag != 0;
    Ok(Facts {
        name: name.to_string(),
        size: ByteCount(blocks.saturating_mul(u64::from(block))),
        limits: Limits::new(block, transfer),
        // SPDK says so where the controller has a volatile write cache.
        volatile_cache: has(sys::SPDK_NVME_NS_FLUSH_SUPPORTED),
        deallocate: has(sys::SPDK_NVME_NS_DEALLOCATE_SUPPORTED),
        write_zeroes: has(sys::SPDK_NVME_NS_WRITE_ZEROES_SUPPORTED),
        reach: reach_of(transport),
        placement: Vec::new(),
        endurance_group,
        namespace: Namespace(namespace),
    })
}

/// How long a command may take before it is aborted.
pub(super) fn command_timeout() -> Duration {
    Environment::get().map_or(Duration::MAX, |environment| environment.options().timeout)
}
