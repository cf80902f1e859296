//! Steps in which the admin thread attaches a controller.

use std::ffi::{CStr, CString, c_char, c_void};
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

use tidelog_spdk_sys as sys;

use super::controller::{
    AttachError, CONNECT, DmaIsolation, NamespaceHandle, NamespaceInfo, Shared,
};
use super::host::Host;
use super::identity::NamespaceIdentity;
use super::log::{Said, without_capture};
use super::sigbus::{Attaching, Registers};
use crate::memory::ALIGNMENT;
use crate::path::device::ControllerName;
use crate::path::nvme::steps::Limits;
use crate::units::ByteCount;

/// A vfio-user target serves one at a time, and takes a moment to let go of the last one.
const LEAVE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(300);

/// Result of attaching a controller.
pub(super) type AttachResult = Result<(NamespaceInfo, Arc<Shared>), AttachError>;

/// A controller that is being attached, and who waits for it.
pub(super) struct Arrival {
    pub(super) name: ControllerName,
    pub(super) transport: sys::spdk_nvme_transport_id,
    pub(super) answer: SyncSender<AttachResult>,
    /// Time at which the next attempt begins.
    begin: Instant,
    /// Time until which attaching is retried, where that may help.
    until: Instant,
    /// The attempt that is being made.
    attempt: Option<(NonNull<sys::spdk_nvme_probe_ctx>, Wanted)>,
    /// Host as which it is attached.
    pub(super) host: Host,
    /// Log lines of SPDK about this attempt.
    said: Said,
}

/// Progress of attaching a controller.
pub(super) enum AttachStep {
    /// The attempt is in progress.
    Comes(Arrival),
    /// The controller is attached.
    Came(Arrival, NonNull<sys::spdk_nvme_ctrlr>),
    /// The controller cannot be attached.
    Failed(Arrival, AttachError),
}

impl Arrival {
    pub(super) fn new(
        name: ControllerName,
        answer: SyncSender<AttachResult>,
    ) -> Result<Self, AttachError> {
        if let Some(word) = name.meaningless() {
            return Err(AttachError::Name(format!(
                "the word {word:?} in its name; write spdk:ADDRESS or spdk: and a transport id (trtype: traddr: ...), \
                 and ns:NUMBER, hostnqn: or hostid: where wanted"
            )));
        }
        let transport = parse(&name)?;
        if transport.trtype == sys::SPDK_NVME_TRANSPORT_PCIE
            && let Some(why) = why_not_ours(&device_at(&text(&transport.traddr)))
        {
            return Err(AttachError::Controller(why));
        }
        let host = match reach_of(transport.trtype) {
            DmaIsolation::Connection { .. } => Host::of(&name).map_err(AttachError::Name)?,
            DmaIsolation::Bus | DmaIsolation::Process => Host::default(),
        };
        let (begin, said) = (Instant::now(), Said::default());
        let until = begin + LEAVE;
        Ok(Self { name, transport, answer, begin, until, attempt: None, host, said })
    }

    /// Returns whether the name is a namespace of this controller, attached as the same host.
    pub(super) fn is_beside(&self, transport: &sys::spdk_nvme_transport_id, host: &Host) -> bool {
        self.host == *host && is_same(&self.transport, transport)
    }

    /// Goes a step on.
    pub(super) fn step(mut self) -> AttachStep {
        let on_the_bus = reach_of(self.transport.trtype) == DmaIsolation::Bus;
        let _faults = on_the_bus.then(Attaching::new);
        let (transport, host) = (self.transport, &self.host);
        let (context, wanted) = match self.attempt.take() {
            Some(attempt) => attempt,
            None if Instant::now() < self.begin => return AttachStep::Comes(self),
            None => {
                self.said = Said::default();
                match self.said.capture(|| Wanted::new(host).connect(&transport)) {
                    Some(attempt) => attempt,
                    None => return self.failed(),
                }
            }
        };
        // SAFETY: the attempt has not ended; where this returns anything else it has, and the
        // context is gone.
        let polled =
            self.said.capture(|| unsafe { sys::spdk_nvme_probe_poll_async(context.as_ptr()) });
        if polled == -libc::EAGAIN {
            self.attempt = Some((context, wanted));
            return AttachStep::Comes(self);
        }
        match wanted.found() {
            Some(handle) => AttachStep::Came(self, handle),
            None => self.failed(),
        }
    }

    fn failed(mut self) -> AttachStep {
        let now = Instant::now();
        if reach_of(self.transport.trtype) == DmaIsolation::Process && now < self.until {
            self.begin = now + PAUSE;
            return AttachStep::Comes(self);
        }
        let mut why = format!("SPDK cannot attach it ({})", self.name.transport());
        why += &self.said.reason();
        if self.said.is_empty() {
            why += "; is it there, and is no other process using it?";
        }
        AttachStep::Failed(self, AttachError::Controller(why))
    }
}

/// Request to attach a controller, and its result. Only by pointers: both sides have it at once.
struct Wanted(NonNull<Slip>);

/// The driver hands back the address of the options, with which this begins.
#[repr(C)]
struct Slip {
    options: sys::spdk_nvme_ctrlr_opts,
    found: *mut sys::spdk_nvme_ctrlr,
}

impl Wanted {
    fn new(host: &Host) -> Self {
        let found = std::ptr::null_mut();
        let mut slip = Box::new(Slip { options: sys::spdk_nvme_ctrlr_opts::default(), found });
        let size = size_of::<sys::spdk_nvme_ctrlr_opts>();
        // SAFETY: SPDK fills in as much of the structure as it is told.
        unsafe {
            sys::spdk_nvme_ctrlr_get_default_ctrlr_opts(&raw mut slip.options, size);
        }
        // Failures are reported by us, with the tensor that they concern.
        slip.options.disable_error_logging = true;
        slip.options.fabrics_connect_timeout_us = CONNECT.as_micros() as u64;
        host.put_into(&mut slip.options);
        Self(NonNull::from(Box::leak(slip)))
    }

    /// Begins to attach it.
    fn connect(
        self,
        transport: &sys::spdk_nvme_transport_id,
    ) -> Option<(NonNull<sys::spdk_nvme_probe_ctx>, Self)> {
        // SAFETY: SPDK copies the id; the options stay until the attempt has ended.
        let context = unsafe {
            sys::spdk_nvme_connect_async(
                transport,
                self.0.as_ptr().cast(),
                Some(attached as unsafe extern "C" fn(_, _, _, _)),
            )
        };
        Some((NonNull::new(context)?, self))
    }

    /// Returns the controller that was attached.
    fn found(&self) -> Option<NonNull<sys::spdk_nvme_ctrlr>> {
        // SAFETY: it is freed with this; the driver writes it only while it is polled.
        NonNull::new(unsafe { (*self.0.as_ptr()).found })
    }
}

impl Drop for Wanted {
    fn drop(&mut self) {
        // SAFETY: it was boxed, and the attempt has ended: the driver does not have it any more.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// SPDK calls this for a controller that is ready.
unsafe extern "C" fn attached(
    slip: *mut c_void,
    _: *const sys::spdk_nvme_transport_id,
    controller: *mut sys::spdk_nvme_ctrlr,
    _: *const sys::spdk_nvme_ctrlr_opts,
) {
    // SAFETY: the context is the address of the options, which a slip begins with, and which stays
    // meanwhile.
    unsafe { (*slip.cast::<Slip>()).found = controller };
}

fn parse(name: &ControllerName) -> Result<sys::spdk_nvme_transport_id, AttachError> {
    let mut said = Said::default();
    let text = CString::new(name.transport())
        .map_err(|_| AttachError::Name(format!("{:?}", name.transport())))?;
    let mut transport = sys::spdk_nvme_transport_id::default();
    // SAFETY: a transport id of zeroes is what the call wants, and the string ends.
    let answer = said.capture(|| unsafe {
        sys::spdk_nvme_transport_id_parse(&raw mut transport, text.as_ptr())
    });
    if answer == 0 {
        return Ok(transport);
    }
    Err(AttachError::Name(format!("{:?}{}", name.transport(), said.reason())))
}

pub(super) fn reach_of(transport: sys::spdk_nvme_transport_type) -> DmaIsolation {
    match transport {
        sys::SPDK_NVME_TRANSPORT_PCIE => DmaIsolation::Bus,
        sys::SPDK_NVME_TRANSPORT_VFIOUSER => DmaIsolation::Process,
        sys::SPDK_NVME_TRANSPORT_TCP => DmaIsolation::Connection { by_socket: true },
        _ => DmaIsolation::Connection { by_socket: false },
    }
}

/// Returns whether two transport ids name one controller.
fn is_same(one: &sys::spdk_nvme_transport_id, other: &sys::spdk_nvme_transport_id) -> bool {
    // SAFETY: both were filled in by SPDK. It says so of each address that is spelled in short.
    without_capture(|| unsafe {
        sys::spdk_nvme_transport_id_compare(&raw const *one, &raw const *other) == 0
    })
}

/// The registers of an attached controller, if it has any here.
pub(super) fn registers(
    handle: NonNull<sys::spdk_nvme_ctrlr>,
    transport: &sys::spdk_nvme_transport_id,
) -> Option<Registers> {
    /// Least size of the registers that every controller has, with its first doorbells.
    const LEAST: u64 = 0x2000;
    if reach_of(transport.trtype) != DmaIsolation::Bus {
        return None;
    }
    // SAFETY: the controller is attached, and on the bus.
    let start = unsafe { sys::spdk_nvme_ctrlr_get_registers(handle.as_ptr()) } as usize;
    let all = device_at(&text(&transport.traddr)).join("resource0");
    let bytes = std::fs::metadata(all).map_or(LEAST, |it| it.len().max(LEAST));
    (start != 0).then(|| Registers::new(start, bytes as usize))
}

/// A text of a transport id.
pub(super) fn text(characters: &[c_char]) -> String {
    // SAFETY: SPDK ends the texts of an id that it has filled in.
    unsafe { CStr::from_ptr(characters.as_ptr()) }.to_string_lossy().into_owned()
}

/// Returns the sysfs directory of the PCI device at this address, which may be without a domain.
pub(super) fn device_at(address: &str) -> PathBuf {
    let domain = if address.matches([':', '.']).count() == 2 { "0000:" } else { "" };
    Path::new("/sys/bus/pci/devices").join(format!("{domain}{address}"))
}

/// Returns the reason why SPDK cannot have a PCI device, as far as the kernel tells.
fn why_not_ours(device: &Path) -> Option<String> {
    if !device.exists() {
        let address = device.file_name().unwrap_or_default().display();
        return Some(format!("there is no PCI device at {address}"));
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

/// Describes the namespace, if Tidelog can use it.
pub(super) fn describe(
    name: &ControllerName,
    handle: NonNull<sys::spdk_nvme_ctrlr>,
    transport: &sys::spdk_nvme_transport_id,
) -> Result<NamespaceInfo, AttachError> {
    let number = name.namespace();
    let refused = |reason: String| AttachError::Namespace { namespace: number, reason };
    // SAFETY: the controller is attached.
    let namespace = unsafe { sys::spdk_nvme_ctrlr_get_ns(handle.as_ptr(), number) };
    let namespace = NonNull::new(namespace).ok_or_else(|| refused("does not exist".into()))?;
    let it = namespace.as_ptr();
    // SAFETY: the namespace belongs to the attached controller; these calls only read what was
    // identified.
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
    let identity = NamespaceIdentity::of(handle, namespace, transport, number);
    if let Some(name) = identity.in_kernel() {
        return Err(AttachError::Kernel(name));
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
    Ok(NamespaceInfo {
        name: name.to_string(),
        size: ByteCount(blocks.saturating_mul(u64::from(block))),
        limits: Limits::new(block, transfer),
        // SPDK says so where the controller has a volatile write cache.
        volatile_cache: has(sys::SPDK_NVME_NS_FLUSH_SUPPORTED),
        deallocate: has(sys::SPDK_NVME_NS_DEALLOCATE_SUPPORTED),
        write_zeroes: has(sys::SPDK_NVME_NS_WRITE_ZEROES_SUPPORTED),
        reach: reach_of(transport.trtype),
        placement: Vec::new(),
        notes: Vec::new(),
        identity: identity.name(),
        endurance_group,
        namespace: NamespaceHandle(namespace),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_bus_and_another_process_of_this_host_are_not_reached_by_others() {
        let reached = [
            sys::SPDK_NVME_TRANSPORT_TCP,
            sys::SPDK_NVME_TRANSPORT_RDMA,
            sys::SPDK_NVME_TRANSPORT_FC,
            sys::SPDK_NVME_TRANSPORT_CUSTOM,
        ];
        let is_connection = |it| matches!(reach_of(it), DmaIsolation::Connection { .. });
        assert!(reached.into_iter().all(is_connection));
        assert_eq!(reach_of(sys::SPDK_NVME_TRANSPORT_PCIE), DmaIsolation::Bus);
        assert_eq!(reach_of(sys::SPDK_NVME_TRANSPORT_VFIOUSER), DmaIsolation::Process);
    }

    #[test]
    fn a_pci_device_without_a_domain_is_in_the_first() {
        assert_eq!(device_at("01:00.0"), device_at("0000:01:00.0"));
        assert!(device_at("0001:01:00.0").ends_with("0001:01:00.0"));
        let why = why_not_ours(&device_at("ffff:ff:1f.7")).unwrap();
        assert!(why.contains("no PCI device at ffff:ff:1f.7"), "{why}");
    }
}
