//! Tables of the kernel about block devices and their users: sysfs, the mount table, the swap
//! table.

use std::collections::BTreeSet;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use nix::fcntl::OFlag;
use tidelog_engine::path::DeviceIdentity;
use tidelog_engine::path::device::users::{LoopBacking, loop_backing};

use super::refusal::Reason;

/// A block device's number, which is what it *is*, whatever its nodes are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct DeviceNumber {
    /// The driver.
    pub major: u32,
    /// The device.
    pub minor: u32,
}

impl DeviceNumber {
    /// Converts `st_rdev` or `st_dev`.
    pub fn from_raw(raw: u64) -> Self {
        // As the C library's `major` and `minor` take it apart.
        let major = ((raw >> 32) & 0xFFFF_F000) | ((raw >> 8) & 0xFFF);
        let minor = ((raw >> 12) & 0xFFFF_FF00) | (raw & 0xFF);
        Self { major: major as u32, minor: minor as u32 }
    }

    /// The block device at this path, symbolic links followed.
    pub fn of_path(path: &Path) -> Option<Self> {
        let metadata = fs::metadata(path).ok()?;
        metadata.file_type().is_block_device().then(|| Self::from_raw(metadata.rdev()))
    }

    /// Parses the text of sysfs, such as `259:0`.
    pub fn parse(text: &str) -> Option<Self> {
        let (major, minor) = text.trim().split_once(':')?;
        Some(Self { major: major.parse().ok()?, minor: minor.parse().ok()? })
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.major, self.minor)
    }
}

/// A block device in sysfs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BlockDevice {
    /// The number.
    pub number: DeviceNumber,
    /// The name, as in `nvme0n1p1`.
    pub name: String,
    directory: PathBuf,
}

impl BlockDevice {
    /// The device of this directory of sysfs.
    fn at(directory: &Path) -> Option<Self> {
        let number = DeviceNumber::parse(&fs::read_to_string(directory.join("dev")).ok()?)?;
        let name = directory.file_name()?.to_string_lossy().into_owned();
        Some(Self { number, name, directory: directory.to_path_buf() })
    }

    /// Returns the partitions.
    pub fn partitions(&self) -> Vec<Self> {
        let inside = self.linked(".");
        let found = inside.iter().filter_map(|name| Self::at(&self.directory.join(name)));
        found.filter(Self::is_partition).collect()
    }

    /// The device of which this one is a partition.
    pub fn parent(&self) -> Option<Self> {
        if self.is_partition() { Self::at(self.directory.parent()?) } else { None }
    }

    fn read(&self, attribute: &str) -> Option<String> {
        Some(fs::read_to_string(self.directory.join(attribute)).ok()?.trim().to_owned())
    }

    /// Returns whether the block device is a partition of another device.
    pub fn is_partition(&self) -> bool {
        self.directory.join("partition").exists()
    }

    /// Returns whether the kernel refuses to write it.
    pub fn is_read_only(&self) -> bool {
        self.read("ro").is_some_and(|ro| ro == "1")
    }

    /// Returns the model name.
    pub fn model(&self) -> Option<String> {
        self.read("device/model").filter(|model| !model.is_empty())
    }

    /// Returns the size in bytes.
    pub fn size(&self) -> u64 {
        // sysfs counts in sectors of 512 bytes, whatever the device does.
        self.read("size").and_then(|size| size.parse::<u64>().ok()).unwrap_or(0) * 512
    }

    /// Returns whether the block device is a namespace of an `NVMe` controller, as a whole.
    pub fn is_nvme_namespace(&self) -> bool {
        self.name.starts_with("nvme") && !self.is_partition()
    }

    /// Returns whether the blocks are written in order, zone by zone, whoever its maker is.
    pub fn is_zoned(&self) -> bool {
        self.read("queue/zoned").is_some_and(|zoned| zoned != "none")
    }

    /// Returns the names of the namespaces that share an `NVMe` namespace's controller.
    pub fn neighbours(&self) -> Vec<String> {
        let beside = self.directory.parent().and_then(Self::beneath).unwrap_or_default();
        let others = beside.into_iter().filter(|it| it.number != self.number);
        others.filter(Self::is_nvme_namespace).map(|it| it.name).collect()
    }

    /// Returns the device node, if that stands for it.
    fn node(&self) -> Option<PathBuf> {
        let node = Path::new("/dev").join(&self.name);
        (DeviceNumber::of_path(&node) == Some(self.number)).then_some(node)
    }

    /// Returns the file or device behind a loop device, if it may be asked.
    fn loop_backing(&self) -> Option<LoopBacking> {
        self.read("loop/backing_file")?;
        loop_backing(&fs::File::open(self.node()?).ok()?).ok()
    }

    /// Returns whether the kernel has given it, or a partition of it, to somebody exclusively, as
    /// it does what is mounted.
    fn is_claimed(&self) -> bool {
        self.node().is_some_and(|node| is_claimed(&node).unwrap_or(false))
    }

    /// The block devices of this directory of sysfs.
    fn beneath(directory: &Path) -> Option<Vec<Self>> {
        let entries = fs::read_dir(directory).ok()?.flatten();
        Some(entries.filter_map(|entry| Self::at(&entry.path())).collect())
    }

    fn linked(&self, directory: &str) -> Vec<String> {
        let entries = fs::read_dir(self.directory.join(directory)).into_iter().flatten().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }
}

/// The kernel's tables. The paths are fields so that tests can show machines that they do not have.
#[derive(Clone, Debug)]
pub struct System {
    /// `/sys`.
    pub sysfs: PathBuf,
    /// `/proc`.
    pub procfs: PathBuf,
}

impl Default for System {
    fn default() -> Self {
        Self { sysfs: "/sys".into(), procfs: "/proc".into() }
    }
}

/// A line of the mount table.
struct Mount {
    number: Option<DeviceNumber>,
    at: PathBuf,
    source: PathBuf,
}

impl System {
    /// The block device of this number.
    pub fn block_device(&self, number: DeviceNumber) -> Option<BlockDevice> {
        let link = self.sysfs.join(format!("dev/block/{number}"));
        BlockDevice::at(&fs::canonicalize(link).ok()?)
    }

    /// The block device of this name.
    pub fn named(&self, name: &str) -> Option<BlockDevice> {
        BlockDevice::at(&fs::canonicalize(self.sysfs.join("class/block").join(name)).ok()?)
    }

    /// Every block device that has a size, by name.
    pub fn block_devices(&self) -> Vec<BlockDevice> {
        let entries = fs::read_dir(self.sysfs.join("class/block")).into_iter().flatten().flatten();
        let mut devices: Vec<BlockDevice> = entries
            .filter_map(|entry| self.named(&entry.file_name().to_string_lossy()))
            .filter(|device| device.size() > 0)
            .collect();
        devices.sort_by(|one, other| one.name.cmp(&other.name));
        devices
    }

    /// Returns all users of a block device, through the whole of it or through a partition, and
    /// whether it carries the root file system. The first is asked of the device, its partitions,
    /// and the disk that it is a partition of.
    pub fn users(&self, device: &BlockDevice) -> Vec<Reason> {
        let mut reasons = Vec::new();
        if self.under_root().contains(&device.number) {
            reasons.push(Reason::HoldsRoot);
        }
        let parts = device.partitions();
        for part in parts.iter().chain([device]).chain(&device.parent()) {
            reasons.extend(self.direct_users(part));
        }
        reasons
    }

    fn direct_users(&self, device: &BlockDevice) -> Vec<Reason> {
        let what = || device.name.clone();
        let mounts = self.mounts();
        let mounted = mounts.iter().filter(|mount| {
            // Btrfs and its like have numbers of their own; then the source names the device.
            mount.number == Some(device.number)
                || DeviceNumber::of_path(&mount.source) == Some(device.number)
        });
        let mut reasons: Vec<Reason> = mounted
            .map(|mount| Reason::Mounted { what: what(), at: mount.at.display().to_string() })
            .collect();
        reasons.extend(
            device
                .linked("holders")
                .into_iter()
                .map(|holder| Reason::HeldBy { what: what(), holder: self.description(&holder) }),
        );
        let is_it = |path: &Path| DeviceNumber::of_path(path) == Some(device.number);
        // A loop device does not hold the device under it as others do, nor claim it.
        let node = Path::new("/dev").join(&device.name);
        let loops = self.loops_on(&node, is_it);
        reasons.extend(loops.map(|holder| Reason::HeldBy { what: what(), holder }));
        let beside = self.used_loops_beside(device);
        reasons.extend(beside.map(|holder| Reason::HeldBy { what: what(), holder }));
        if self.swaps().iter().any(|swap| is_it(swap)) {
            reasons.push(Reason::Swap { what: what() });
        }
        reasons
    }

    /// Returns all users of a regular file as a whole.
    pub fn users_of_file(&self, path: &Path) -> Vec<Reason> {
        let what = || path.display().to_string();
        // Its users may know it by the name of another hard link.
        let is_it = |other: &Path| other == path || is_same_file(other, path);
        let loops = self.loops_on(path, is_it);
        let mut reasons: Vec<Reason> =
            loops.map(|holder| Reason::HeldBy { what: what(), holder }).collect();
        if self.swaps().iter().any(|swap| is_it(swap)) {
            reasons.push(Reason::Swap { what: what() });
        }
        reasons
    }

    /// The names of the loop devices over the file or device at `path`, of which `is_it` knows
    /// other names. The kernel is asked what it has behind them: the name that it shows is of
    /// another file once that was renamed or unlinked, or where another mount namespace made the
    /// loop device.
    fn loops_on(&self, path: &Path, is_it: impl Fn(&Path) -> bool) -> impl Iterator<Item = String> {
        let identity = fs::metadata(path).map(|it| DeviceIdentity::of(&it)).ok();
        let is_over = move |device: &BlockDevice, name: &str| {
            let backing = device.loop_backing().map(|backing| backing.identity);
            (backing.is_some() && backing == identity) || is_it(Path::new(name))
        };
        let loops = self.block_devices().into_iter().filter(move |device| {
            device.read("loop/backing_file").is_some_and(|name| is_over(device, &name))
        });
        loops.map(|device| device.name)
    }

    /// The names of other loop devices over bytes of the same file as this one, which somebody
    /// uses.
    fn used_loops_beside(&self, device: &BlockDevice) -> impl Iterator<Item = String> {
        let (own, own_size, number) = (device.loop_backing(), device.size(), device.number);
        let loops = if own.is_some() { self.block_devices() } else { Vec::new() };
        let overlaps = move |other: &BlockDevice| {
            let (Some(one), Some(two)) = (own, other.loop_backing()) else { return false };
            one.identity == two.identity
                && one.offset < two.offset.saturating_add(other.size())
                && two.offset < one.offset.saturating_add(own_size)
        };
        let beside = loops.into_iter().filter(move |it| it.number != number && overlaps(it));
        beside.filter(BlockDevice::is_claimed).map(|it| it.name)
    }

    /// `dm-0 (vg-root)` where a device has a name for people.
    fn description(&self, name: &str) -> String {
        let device = self.named(name);
        match device.and_then(|device| device.read("dm/name")) {
            Some(called) => format!("{name} ({called})"),
            None => name.to_owned(),
        }
    }

    /// Every device that the root file system stands on: its own, what that is made of, and whole
    /// disks.
    fn under_root(&self) -> BTreeSet<DeviceNumber> {
        let mounts = self.mounts();
        // Later lines hide earlier ones; all of them count.
        let roots = mounts.iter().filter(|mount| mount.at == Path::new("/"));
        let mut open: Vec<DeviceNumber> = roots
            .flat_map(|mount| [mount.number, DeviceNumber::of_path(&mount.source)])
            .flatten()
            .collect();
        let mut found = BTreeSet::new();
        while let Some(number) = open.pop() {
            if !found.insert(number) {
                continue;
            }
            let Some(device) = self.block_device(number) else { continue };
            let below = device.linked("slaves");
            open.extend(below.iter().filter_map(|name| Some(self.named(name)?.number)));
            open.extend(device.parent().map(|parent| parent.number));
        }
        found
    }

    fn mounts(&self) -> Vec<Mount> {
        let table = fs::read(self.procfs.join("self/mountinfo")).unwrap_or_default();
        let line = |line: &[u8]| {
            let fields: Vec<&[u8]> = line.split(|byte| *byte == b' ').collect();
            // A variable number of fields ends with a dash; then come type, source, options.
            let dash = fields.iter().position(|field| *field == b"-")?;
            Some(Mount {
                number: DeviceNumber::parse(&String::from_utf8_lossy(fields.get(2)?)),
                at: unescape(fields.get(4)?),
                source: unescape(fields.get(dash + 2)?),
            })
        };
        table.split(|byte| *byte == b'\n').filter_map(line).collect()
    }

    fn swaps(&self) -> Vec<PathBuf> {
        let table = fs::read(self.procfs.join("swaps")).unwrap_or_default();
        let lines = table.split(|byte| *byte == b'\n').skip(1);
        lines
            .filter_map(|line| line.split(u8::is_ascii_whitespace).next())
            .filter(|path| !path.is_empty())
            .map(unescape)
            .collect()
    }
}

/// Returns whether the kernel has given a block device to somebody exclusively. The claim by which
/// that is found out ends at once.
pub(super) fn is_claimed(path: &Path) -> io::Result<bool> {
    let flags = (OFlag::O_EXCL | OFlag::O_CLOEXEC).bits();
    match fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(_) => Ok(false),
        Err(error) if error.kind() == io::ErrorKind::ResourceBusy => Ok(true),
        Err(error) => Err(error),
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let identity = |path| fs::metadata(path).map(|it| (it.dev(), it.ino())).ok();
    identity(one).is_some_and(|one| identity(other) == Some(one))
}

/// The kernel writes spaces and the like in paths as `\040`.
fn unescape(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((first, after)) = rest.split_first() {
        let octal = after.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        let escaped = octal.and_then(|digits| u8::from_str_radix(digits, 8).ok());
        if let (b'\\', Some(byte)) = (*first, escaped) {
            bytes.push(byte);
            rest = &after[3..];
        } else {
            bytes.push(*first);
            rest = after;
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}
