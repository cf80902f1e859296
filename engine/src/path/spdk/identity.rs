//! Identity of a namespace, independent of its address, and detection of the kernel's use of it.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;

use tidelog_spdk_sys as sys;

use super::attach::{device_at, reach_of, text};
use super::controller::DmaIsolation;

/// Directory in which the kernel lists its NVMe controllers and subsystems.
const CLASSES: &str = "/sys/class";

/// Response of a controller to an Identify command (NVMe base specification, Identify), and where
/// what stands of a namespace.
type Identified = [u8; 4096];
const NMIC: usize = 30;
const NGUID: Range<usize> = 104..120;
const EUI64: Range<usize> = 120..128;

/// Identity of a namespace and its subsystem, as the controller reports it.
#[derive(Clone, Debug)]
pub(super) struct NamespaceIdentity {
    reach: DmaIsolation,
    /// The address that this controller is reached by.
    address: String,
    /// The name of the subsystem. Other controllers of it may reach the namespace, if it is shared.
    subsystem: String,
    shared: bool,
    number: u32,
    /// Kind and value of the namespace's own identifier; nothing where it has none.
    identifier: Option<(&'static str, String)>,
}

impl NamespaceIdentity {
    /// Reads the identity that an attached controller says of one of its namespaces.
    pub(super) fn of(
        controller: NonNull<sys::spdk_nvme_ctrlr>,
        namespace: NonNull<sys::spdk_nvme_ns>,
        transport: &sys::spdk_nvme_transport_id,
        number: u32,
    ) -> Self {
        let it = namespace.as_ptr();
        // SAFETY: the namespace belongs to the attached controller; these calls only read what was
        // identified, which has 4096 bytes.
        let (controller, data, uuid) = unsafe {
            (
                &*sys::spdk_nvme_ctrlr_get_data(controller.as_ptr()).cast::<Identified>(),
                &*sys::spdk_nvme_ns_get_data(it).cast::<Identified>(),
                sys::spdk_nvme_ns_get_uuid(it).cast::<[u8; 16]>().as_ref(),
            )
        };
        let uuid = uuid.copied().unwrap_or_default();
        let identifiers = [("nguid", &data[NGUID]), ("eui64", &data[EUI64]), ("uuid", &uuid)];
        let is_set = |bytes: &[u8]| bytes.iter().any(|&byte| byte != 0);
        let identifier = identifiers.into_iter().find(|(_, bytes)| is_set(bytes));
        let reach = reach_of(transport.trtype);
        let address = match reach {
            DmaIsolation::Bus => device_at(&text(&transport.traddr)).display().to_string(),
            DmaIsolation::Connection { .. } => text(&transport.subnqn),
            DmaIsolation::Process => text(&transport.traddr),
        };
        Self {
            reach,
            address,
            subsystem: subsystem(controller),
            shared: data[NMIC] & 1 != 0,
            number,
            identifier: identifier.map(|(kind, bytes)| (kind, hexadecimal(bytes))),
        }
    }

    /// Returns the name that all hosts use, which is claimed. Of SSDs on the bus an identifier
    /// alone is not enough: some that are sold have the same for all of them. There the address is
    /// one device's, unless other controllers share the namespace: then it is the subsystem's.
    pub(super) fn name(&self) -> String {
        let Self { address, subsystem, number, .. } = self;
        let identifier = self.identifier.as_ref().map(|(kind, text)| format!("{kind} {text}"));
        match (self.reach, identifier) {
            (DmaIsolation::Bus, Some(identifier)) if self.shared => {
                format!("{subsystem} {identifier}")
            }
            (DmaIsolation::Bus, None) if self.shared => format!("{subsystem} ns {number}"),
            (DmaIsolation::Bus, _) | (_, None) => format!("{address} ns {number}"),
            (_, Some(identifier)) => identifier,
        }
    }

    /// Returns the kernel's name for the namespace, where the kernel has it by another controller
    /// or connection.
    pub(super) fn in_kernel(&self) -> Option<String> {
        self.is_shared().then(|| self.shown_in(Path::new(CLASSES))).flatten()
    }

    /// Returns whether others may reach it: what is behind a connection is.
    fn is_shared(&self) -> bool {
        self.shared || matches!(self.reach, DmaIsolation::Connection { .. })
    }

    fn shown_in(&self, classes: &Path) -> Option<String> {
        let mut places = Vec::new();
        for class in ["nvme-subsystem", "nvme"] {
            let entries = fs::read_dir(classes.join(class)).into_iter().flatten().flatten();
            places.extend(entries.map(|entry| entry.path()));
        }
        let of_this = |it: &&PathBuf| read(&it.join("subsysnqn")) == self.subsystem;
        let shown = places.iter().filter(of_this).find_map(|place| {
            let entries = fs::read_dir(place).ok()?.flatten();
            entries.map(|entry| entry.path()).find(|namespace| self.is_shown_as(namespace))
        })?;
        Some(shown.file_name()?.to_string_lossy().into_owned())
    }

    fn is_shown_as(&self, namespace: &Path) -> bool {
        let number = read(&namespace.join("nsid"));
        if number.is_empty() {
            return false;
        }
        let Some((kind, identifier)) = &self.identifier else {
            return number == self.number.to_string();
        };
        let shown = read(&namespace.join(if *kind == "eui64" { "eui" } else { kind }));
        let shown: String = shown.chars().filter(char::is_ascii_hexdigit).collect();
        shown.eq_ignore_ascii_case(identifier)
    }
}

/// The NQN of the subsystem of a controller that identifies itself so (NVMe base specification,
/// Identify Controller). Old ones say none: vendor, model and serial number are theirs alone, too.
fn subsystem(controller: &Identified) -> String {
    const VENDOR: Range<usize> = 0..2;
    const SERIAL: Range<usize> = 4..24;
    const MODEL: Range<usize> = 24..64;
    const NQN: Range<usize> = 768..1024;
    let text = |field: Range<usize>| {
        let bytes = controller[field].split(|&byte| byte == 0).next().unwrap_or_default();
        String::from_utf8_lossy(bytes).trim().to_owned()
    };
    match text(NQN) {
        nqn if nqn.is_empty() => {
            let vendor = hexadecimal(&controller[VENDOR]);
            format!("vendor {vendor} model {} serial {}", text(MODEL), text(SERIAL))
        }
        nqn => nqn,
    }
}

fn read(file: &Path) -> String {
    fs::read_to_string(file).map(|text| text.trim().to_owned()).unwrap_or_default()
}

fn hexadecimal(bytes: &[u8]) -> String {
    let digits: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    digits.concat()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::path::tests::Directory;

    const NQN: &str = "nqn.2026-01.io.tidelog:two-ports";

    fn on_the_bus(address: &str, shared: bool, identifier: Option<&str>) -> NamespaceIdentity {
        NamespaceIdentity {
            reach: DmaIsolation::Bus,
            address: format!("/sys/bus/pci/devices/{address}"),
            subsystem: NQN.into(),
            shared,
            number: 1,
            identifier: identifier.map(|text| ("nguid", text.into())),
        }
    }

    #[test]
    fn a_namespace_that_two_functions_share_has_one_name() {
        let one_name = |shared, identifier| {
            let name = |address| on_the_bus(address, shared, identifier).name();
            name("0000:01:00.0") == name("0000:02:00.0")
        };
        assert!(one_name(true, Some("0123456789abcdef0123456789abcdef")));
        assert!(one_name(true, None), "its number is the subsystem's");
        // Some that are sold have the same identifier, each of them.
        assert!(!one_name(false, Some("0123456789abcdef0123456789abcdef")));
        assert!(!one_name(false, None));
        let two = NamespaceIdentity { number: 2, ..on_the_bus("0000:01:00.0", true, None) };
        assert_ne!(two.name(), on_the_bus("0000:01:00.0", true, None).name());
        let other = NamespaceIdentity {
            subsystem: "nqn.other".into(),
            ..on_the_bus("0000:01:00.0", true, None)
        };
        assert_ne!(other.name(), on_the_bus("0000:01:00.0", true, None).name());
    }

    #[test]
    fn over_a_connection_its_identifier_is_its_name() {
        let reach = DmaIsolation::Connection { by_socket: true };
        let by = |address: &str, identifier| NamespaceIdentity {
            reach,
            address: address.into(),
            ..on_the_bus("", false, identifier)
        };
        assert_eq!(by("nqn.a", Some("01")).name(), by("nqn.b", Some("01")).name());
        assert_ne!(by("nqn.a", None).name(), by("nqn.b", None).name());
    }

    #[test]
    fn a_subsystem_that_says_no_name_has_its_model_and_serial_number() {
        let mut controller = [0; 4096];
        controller[..2].copy_from_slice(&[0x36, 0x1b]);
        controller[4..24].copy_from_slice(b"s1                  ");
        controller[24..27].copy_from_slice(b"m  ");
        assert_eq!(subsystem(&controller), "vendor 361b model m serial s1");
        controller[768..773].copy_from_slice(b"nqn.x");
        assert_eq!(subsystem(&controller), "nqn.x");
    }

    #[test]
    fn a_namespace_that_the_kernel_has_by_another_controller_is_found() {
        let directory = Directory::new();
        let classes = directory.path();
        let write = |file: &str, text: &str| {
            let file = classes.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        };
        let guid = "0123456789abcdef0123456789abcdef";
        let (plain, known) =
            (on_the_bus("0000:01:00.0", true, None), on_the_bus("0000:01:00.0", true, Some(guid)));
        assert_eq!(plain.shown_in(classes), None);
        write("nvme-subsystem/nvme-subsys0/subsysnqn", "nqn.another\n");
        write("nvme-subsystem/nvme-subsys0/nvme0n1/nsid", "1\n");
        assert_eq!(plain.shown_in(classes), None);
        write("nvme-subsystem/nvme-subsys1/subsysnqn", &format!("{NQN}\n"));
        write("nvme-subsystem/nvme-subsys1/nvme1n1/nsid", "1\n");
        assert_eq!(plain.shown_in(classes), Some("nvme1n1".into()));
        assert_eq!(known.shown_in(classes), None, "it has another identifier");
        let shown = "01234567-89AB-CDEF-0123-456789abcdef\n";
        write("nvme-subsystem/nvme-subsys1/nvme1n1/nguid", shown);
        assert_eq!(known.shown_in(classes), Some("nvme1n1".into()));
    }
}
