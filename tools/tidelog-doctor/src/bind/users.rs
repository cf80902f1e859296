//! Users of a controller: through the kernel, or from user space.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::libc;
use tidelog_command_line::{DoctorExit, is_root};
use tidelog_device_safety::{
    DeviceNumber, NamedDevice, Reason, TargetKind, program_directories, users_and_names,
};
use tidelog_engine::path::device::lock_of_bytes;
use tidelog_gds::topology::PciDevice;

use super::{KERNEL, SystemPaths};
use crate::outcome::DoctorFailure;

/// A namespace that is this process's while this lives.
#[derive(Debug)]
pub(super) struct HeldNamespace {
    /// Notes on its contents, and on others that reach it.
    pub(super) notes: Vec<String>,
    _claim: File,
}

/// A namespace of a controller, as it is looked at.
struct Namespace<'a> {
    name: &'a str,
    /// The node.
    node: String,
    controller: &'a PciDevice,
    machine: &'a SystemPaths,
}

/// Makes sure that nobody uses a namespace of the controller, through whatever path, and that
/// nobody comes.
pub(super) fn hold(
    name: &str,
    controller: &PciDevice,
    machine: &SystemPaths,
) -> Result<HeldNamespace, DoctorFailure> {
    let node = machine.nodes.join(name).display().to_string();
    let namespace = Namespace { name, node, controller, machine };
    let holds = namespace.holds()?;
    let claim = namespace.claim()?;
    let mut notes: Vec<String> =
        holds.iter().map(|reason| format!("{name}: {reason}; it stays as it is")).collect();
    let others = machine.sysfs.pci_of_block(name).into_iter().map(|it| it.address);
    notes.extend(others.filter(|other| *other != controller.address).map(|other| {
        format!("{name}: the kernel still has it through {other}; bind that too before anything is written")
    }));
    Ok(HeldNamespace { notes, _claim: claim })
}

impl Namespace<'_> {
    /// Returns the contents of a controller that has no user.
    fn holds(&self) -> Result<Vec<Reason>, DoctorFailure> {
        let (name, node, system) = (self.name, &self.node, &self.machine.system);
        let device = system.named(name);
        let device = device.ok_or_else(|| self.unknown("the kernel shows no such block device"))?;
        self.refuse_users(&system.users(&device))?;
        // Claims and open pools show at the node alone.
        let target = NamedDevice::resolve(node, system)
            .map_err(|error| self.unknown(&format!("{node}: {error}")))?;
        if !matches!(&target.kind, TargetKind::Block(it) if it.number == device.number) {
            return Err(self.unknown(&format!("{node} is something else")));
        }
        let found = users_and_names(&target, system, &program_directories());
        let found = found.map_err(|error| self.unreadable(&error))?;
        self.refuse_users(&found)?;
        Ok(found)
    }

    fn claim(&self) -> Result<File, DoctorFailure> {
        let mut exclusively = OpenOptions::new();
        exclusively.read(true).custom_flags(OFlag::O_EXCL.bits());
        exclusively.open(&self.node).map_err(|error| match error.kind() {
            io::ErrorKind::ResourceBusy => self.in_use(&Reason::Claimed),
            _ => self.unreadable(&error),
        })
    }

    fn refuse_users(&self, reasons: &[Reason]) -> Result<(), DoctorFailure> {
        let found = reasons.iter().find(|reason| !reason.may_be_overridden());
        found.map_or(Ok(()), |reason| Err(self.in_use(reason)))
    }

    fn in_use(&self, reason: &Reason) -> DoctorFailure {
        let what = format!("{} is in use: of {}, {reason}", self.controller.address, self.name);
        DoctorFailure::new(DoctorExit::Refused, what, reason.help(&self.node))
    }

    /// Makes the failure of a controller whose users cannot be known.
    fn unknown(&self, why: &str) -> DoctorFailure {
        let (address, name) = (&self.controller.address, self.name);
        let what = format!("{address}: cannot find out who uses {name}: {why}");
        let help = "run it where /sys and /dev are the machine's own, outside of containers";
        DoctorFailure::new(DoctorExit::Refused, what, help)
    }

    fn unreadable(&self, error: &io::Error) -> DoctorFailure {
        let what = format!("cannot look at {}: {error}", self.node);
        DoctorFailure::new(DoctorExit::Failed, what, as_root())
    }
}

/// Returns advice on tables that cannot be read.
fn as_root() -> &'static str {
    if is_root() { "run it outside of containers" } else { "run it as root" }
}

/// Makes sure that no process drives the controller.
pub(super) fn check_user_space(
    controller: &PciDevice,
    machine: &SystemPaths,
) -> Result<(), DoctorFailure> {
    // What the kernel drives nobody else does, whatever a program has left behind.
    if controller.driver.as_deref() == Some(KERNEL) {
        return Ok(());
    }
    let refused = |user: User, has: String| {
        let who = user.description(machine);
        let what = format!("{} is in use: {who} {has}", controller.address);
        Err(DoctorFailure::new(DoctorExit::Refused, what, user.help()))
    };
    if let Some((process, node)) = process_with(&nodes_of(controller, machine), machine)? {
        return refused(User::Process(process), format!("has {node} open"));
    }
    let claim = machine.claims.join(format!("spdk_pci_lock_{}", controller.address));
    let holder = holder_of(&claim).map_err(|error| {
        let what = format!("cannot look at {}: {error}", claim.display());
        DoctorFailure::new(DoctorExit::Failed, what, as_root())
    })?;
    match holder {
        Some(user) => refused(user, format!("holds SPDK's lock {}", claim.display())),
        None => Ok(()),
    }
}

/// User of a controller.
enum User {
    /// Process by its number.
    Process(u32),
    /// The kernel tells its number in its own container alone.
    Elsewhere,
}

impl User {
    fn description(&self, machine: &SystemPaths) -> String {
        let Self::Process(process) = self else { return "a process of another container".into() };
        let name = machine.system.procfs.join(format!("{process}/comm"));
        let name = fs::read_to_string(name).unwrap_or_default();
        format!("process {process} ({})", name.trim())
    }

    fn help(&self) -> String {
        match self {
            Self::Process(process) => {
                format!("end it first (kill {process})")
            }
            Self::Elsewhere => {
                "end the program that drives it, on the host or in another container".into()
            }
        }
    }
}

/// The character devices through which user space drives it: their numbers, which are the same in
/// every container.
fn nodes_of(controller: &PciDevice, machine: &SystemPaths) -> Vec<(DeviceNumber, String)> {
    let sysfs = &machine.sysfs.0;
    let device = sysfs.join("bus/pci/devices").join(&controller.address);
    let beneath = |name: &str| -> Vec<PathBuf> {
        let entries = fs::read_dir(device.join(name)).into_iter().flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    };
    let group =
        |prefix| Some(sysfs.join(format!("class/vfio/{prefix}{}", controller.iommu_group?)));
    let shown = [
        // The latter where vfio was told to do without an IOMMU.
        ("/dev/vfio", ["", "noiommu-"].into_iter().filter_map(group).collect()),
        ("/dev/vfio/devices", beneath("vfio-dev")),
        ("/dev", beneath("uio")),
    ];
    let numbered = |directory: &str, shown: &PathBuf| {
        let number = DeviceNumber::parse(&fs::read_to_string(shown.join("dev")).ok()?)?;
        Some((number, format!("{directory}/{}", shown.file_name()?.to_string_lossy())))
    };
    let all =
        shown.iter().flat_map(|(directory, shown)| shown.iter().map(move |it| (*directory, it)));
    all.filter_map(|(directory, shown)| numbered(directory, shown)).collect()
}

/// The first process that has one of these open, and which.
fn process_with(
    nodes: &[(DeviceNumber, String)],
    machine: &SystemPaths,
) -> Result<Option<(u32, String)>, DoctorFailure> {
    if nodes.is_empty() {
        return Ok(None);
    }
    let processes = fs::read_dir(&machine.system.procfs).into_iter().flatten().flatten();
    let numbers = processes.filter_map(|entry| entry.file_name().to_string_lossy().parse().ok());
    for process in numbers {
        let found = node_open_in(process, nodes, machine).map_err(|error| {
            let what = format!("cannot see what process {process} has open: {error}");
            DoctorFailure::new(DoctorExit::Failed, what, as_root())
        })?;
        if let Some(node) = found {
            return Ok(Some((process, node)));
        }
    }
    Ok(None)
}

/// Returns a node that the process has open, of these.
fn node_open_in(
    process: u32,
    nodes: &[(DeviceNumber, String)],
    machine: &SystemPaths,
) -> io::Result<Option<String>> {
    let directory = machine.system.procfs.join(format!("{process}/fd"));
    // It may end while it is looked at, or close what it had open.
    let ended = |error: &io::Error| {
        error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ESRCH)
    };
    let open = match fs::read_dir(directory) {
        Err(error) if ended(&error) => return Ok(None),
        open => open?,
    };
    for entry in open {
        let metadata = match entry.and_then(|entry| fs::metadata(entry.path())) {
            Err(error) if ended(&error) => continue,
            metadata => metadata?,
        };
        let number = DeviceNumber::from_raw(metadata.rdev());
        let found = nodes.iter().find(|(node, _)| *node == number);
        if let (true, Some((_, node))) = (metadata.file_type().is_char_device(), found) {
            return Ok(Some(node.clone()));
        }
    }
    Ok(None)
}

/// Returns the process that has the file locked.
fn holder_of(claim: &Path) -> io::Result<Option<User>> {
    // Everybody may make files there: no link is followed, and nothing waited for.
    let flags = OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK;
    let file = match OpenOptions::new().read(true).custom_flags(flags.bits()).open(claim) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        file => file?,
    };
    let mut lock = lock_of_bytes(libc::F_WRLCK, 0, 0);
    fcntl(&file, FcntlArg::F_GETLK(&mut lock))?;
    if i32::from(lock.l_type) == libc::F_UNLCK {
        return Ok(None);
    }
    let process = u32::try_from(lock.l_pid).ok().filter(|process| *process > 0);
    Ok(Some(process.map_or(User::Elsewhere, User::Process)))
}
