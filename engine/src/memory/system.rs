//! Memory limit of the process: the machine's, or less where it is in a control group with a limit,
//! as in a container.

use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Least value that means no limit in version 1.
const NO_LIMIT: u64 = 1 << 62;

/// Memory of the host, as it was when it was read. All in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// The memory of the machine.
    pub machine: u64,
    /// The lowest limit of the control groups that this process is in.
    pub limit: Option<GroupLimit>,
    /// Memory that can be allocated without swapping, and below every limit.
    pub available: u64,
}

/// The limit of a control group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupLimit {
    /// Bytes that its processes may use together.
    pub bytes: u64,
    /// The kernel's file that says so.
    pub file: PathBuf,
}

impl SystemMemory {
    /// Reads the limits from `/proc` and the control groups, of version 1 or 2.
    ///
    /// # Errors
    /// The tables of the kernel that say how much memory the machine has cannot be read. Control
    /// groups that cannot be read count as none.
    pub fn read() -> io::Result<Self> {
        Self::read_at(Path::new("/proc"))
    }

    /// Reads the limits below another `/proc`.
    ///
    /// # Errors
    /// As [`SystemMemory::read`].
    pub fn read_at(procfs: &Path) -> io::Result<Self> {
        let table = fs::read_to_string(procfs.join("meminfo"))?;
        let of_machine = |name: &str| {
            kibibytes(&table, name)
                .ok_or_else(|| io::Error::other(format!("no {name} in /proc/meminfo")))
        };
        let machine = of_machine("MemTotal")?;
        let mut available = of_machine("MemAvailable")?;
        let mut limit: Option<GroupLimit> = None;
        for group in Group::all(procfs) {
            let Some(bytes) = group.limit() else { continue };
            available = available.min(bytes.saturating_sub(group.used()));
            if limit.as_ref().is_none_or(|lowest| bytes < lowest.bytes) {
                let file = group.directory.join(group.version.limit_file());
                limit = Some(GroupLimit { bytes, file });
            }
        }
        // A limit above what the machine has limits nothing.
        let limit = limit.filter(|limit| limit.bytes < machine);
        Ok(Self { machine, limit, available })
    }

    /// Bytes that this process can have at most.
    pub fn most(&self) -> u64 {
        self.limit.as_ref().map_or(self.machine, |limit| limit.bytes)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl Version {
    fn limit_file(self) -> &'static str {
        match self {
            Self::One => "memory.limit_in_bytes",
            Self::Two => "memory.max",
        }
    }

    fn usage_file(self) -> &'static str {
        match self {
            Self::One => "memory.usage_in_bytes",
            Self::Two => "memory.current",
        }
    }

    /// Files' pages that have not been used lately, of the group and those below it: the kernel
    /// takes them away before a limit is reached.
    fn reclaimable(self) -> &'static str {
        match self {
            Self::One => "total_inactive_file",
            Self::Two => "inactive_file",
        }
    }
}

/// A control group for memory.
struct Group {
    version: Version,
    directory: PathBuf,
}

impl Group {
    /// The groups that this process is in, innermost first.
    fn all(procfs: &Path) -> Vec<Self> {
        let read = |name: &str| fs::read_to_string(procfs.join(name)).unwrap_or_default();
        let (member_of, mounts) = (read("self/cgroup"), read("self/mountinfo"));
        let mut all = Vec::new();
        for version in [Version::One, Version::Two] {
            let Some(path) = member_of.lines().find_map(|line| path_in(line, version)) else {
                continue;
            };
            let Some((top, mounted)) = mounts.lines().find_map(|line| mount_in(line, version))
            else {
                continue;
            };
            let below = Path::new(path).strip_prefix(top).unwrap_or(Path::new(""));
            // Seen from another namespace the path leads out of what is mounted.
            let is_inside = below.components().all(|part| matches!(part, Component::Normal(_)));
            let inner = if is_inside { mounted.join(below) } else { mounted.to_path_buf() };
            let directories = inner.ancestors().take_while(|each| each.starts_with(mounted));
            all.extend(directories.map(|each| Self { version, directory: each.to_path_buf() }));
        }
        all
    }

    fn limit(&self) -> Option<u64> {
        self.number(self.version.limit_file()).filter(|bytes| *bytes < NO_LIMIT)
    }

    /// Bytes in use that the kernel cannot take away at once.
    fn used(&self) -> u64 {
        let statistics = fs::read_to_string(self.directory.join("memory.stat")).unwrap_or_default();
        let reclaimable = statistics.lines().find_map(|line| {
            line.strip_prefix(self.version.reclaimable())?.trim().parse::<u64>().ok()
        });
        let used = self.number(self.version.usage_file()).unwrap_or(0);
        used.saturating_sub(reclaimable.unwrap_or(0))
    }

    /// The number in a file; none where it says "max", or there is no such file.
    fn number(&self, file: &str) -> Option<u64> {
        fs::read_to_string(self.directory.join(file)).ok()?.trim().parse().ok()
    }
}

/// The group's path in a line of `/proc/self/cgroup`, `number:controllers:path`.
fn path_in(line: &str, version: Version) -> Option<&str> {
    let mut parts = line.splitn(3, ':').skip(1);
    let (controllers, path) = (parts.next()?, parts.next()?);
    let is_its = match version {
        Version::One => controllers.split(',').any(|each| each == "memory"),
        Version::Two => controllers.is_empty(),
    };
    is_its.then_some(path)
}

/// Parses the mounted control group in a line of `/proc/self/mountinfo`.
fn mount_in(line: &str, version: Version) -> Option<(&str, &Path)> {
    let (place, kind) = line.split_once(" - ")?;
    let mut place = place.split(' ').skip(3);
    let (top, mounted) = (place.next()?, place.next()?);
    let mut kind = kind.split(' ');
    let (kind, options) = (kind.next()?, kind.nth(1)?);
    let is_its = match version {
        Version::One => kind == "cgroup" && options.split(',').any(|each| each == "memory"),
        Version::Two => kind == "cgroup2",
    };
    is_its.then_some((top, Path::new(mounted)))
}

/// A size in a table of the kernel, in bytes.
fn kibibytes(table: &str, name: &str) -> Option<u64> {
    let line = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    line.trim().split(' ').next()?.parse::<u64>().ok()?.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MACHINE: &str =
        "MemTotal:       16777216 kB\nMemFree: 1 kB\nMemAvailable:   12582912 kB\n";
    const GIB: u64 = 1 << 30;

    /// A machine whose tables are files of a test.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str) -> Self {
            let root =
                std::env::temp_dir().join(format!("tidelog-host-{}-{name}", std::process::id()));
            let machine = Self(root);
            machine.has("proc/meminfo", MACHINE);
            machine
        }

        fn has(&self, file: &str, text: &str) {
            let file = self.0.join(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }

        /// Control groups of a version are mounted here, from the group `top` on.
        fn mounts(&self, version: Version, top: &str, member_of: &str) {
            let at = self.0.join("groups");
            let (at, kind, controllers) = match version {
                Version::One => (at.display(), "cgroup cgroup rw,memory", "4:cpu,memory"),
                Version::Two => (at.display(), "cgroup2 cgroup2 rw", "0:"),
            };
            let others = "31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw\n";
            let line = format!("{others}35 31 0:32 {top} {at} rw,relatime - {kind}\n");
            self.has("proc/self/mountinfo", &line);
            self.has(
                "proc/self/cgroup",
                &format!("9:pids:/elsewhere\n{controllers}:{member_of}\n"),
            );
        }

        fn memory(&self) -> SystemMemory {
            SystemMemory::read_at(&self.0.join("proc")).unwrap()
        }

        fn limit(&self, bytes: u64, file: &str) -> GroupLimit {
            GroupLimit { bytes, file: self.0.join("groups").join(file) }
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn without_control_groups_it_is_the_machines() {
        let memory = Machine::new("none").memory();
        assert_eq!(memory, SystemMemory { machine: 16 * GIB, limit: None, available: 12 * GIB });
        assert_eq!(memory.most(), 16 * GIB);
    }

    #[test]
    fn the_lowest_limit_on_the_way_up_counts() {
        for (version, current) in
            [(Version::One, "total_inactive_file"), (Version::Two, "inactive_file")]
        {
            let machine = Machine::new(current);
            machine.mounts(version, "/", "/pod/container");
            let (limit, usage) = (version.limit_file(), version.usage_file());
            let group = |of: &str, file: &str, text: &str| {
                machine.has(&format!("groups/{of}/{file}"), text);
            };
            group("pod/container", limit, &format!("{}\n", 8 * GIB));
            group("pod/container", usage, &GIB.to_string());
            group("pod", limit, &(4 * GIB).to_string());
            group("pod", usage, &(3 * GIB).to_string());
            group("pod", "memory.stat", &format!("anon 5\n{current} {GIB}\nunevictable 0\n"));
            let memory = machine.memory();
            assert_eq!(memory.limit, Some(machine.limit(4 * GIB, &format!("pod/{limit}"))));
            // Of the 3 GiB that the outer group uses 1 can be taken away.
            assert_eq!((memory.most(), memory.available), (4 * GIB, 2 * GIB));
        }
    }

    #[test]
    fn no_limit_is_none_in_both_versions() {
        for (version, text) in [(Version::One, "9223372036854771712\n"), (Version::Two, "max\n")] {
            let machine = Machine::new(text.trim());
            machine.mounts(version, "/", "/a");
            machine.has(&format!("groups/a/{}", version.limit_file()), text);
            assert_eq!(machine.memory().limit, None);
            machine.has(&format!("groups/a/{}", version.limit_file()), &(64 * GIB).to_string());
            assert_eq!(machine.memory().limit, None, "the machine has less");
        }
    }

    #[test]
    fn a_container_finds_its_group_where_that_is_mounted() {
        // Without a namespace of its own the path is the host's; with one it may lead out of it.
        for (number, (top, member_of)) in
            [("/docker/1", "/docker/1"), ("/", "/"), ("/", "/../other"), ("/docker/1", "/")]
                .iter()
                .enumerate()
        {
            let machine = Machine::new(&format!("container-{number}"));
            machine.mounts(Version::Two, top, member_of);
            machine.has("groups/memory.max", &(2 * GIB).to_string());
            machine.has("groups/memory.current", &(3 * GIB).to_string());
            let memory = machine.memory();
            assert_eq!(
                memory.limit,
                Some(machine.limit(2 * GIB, "memory.max")),
                "{top} {member_of}"
            );
            assert_eq!(memory.available, 0, "more is used than allowed: the limit was lowered");
        }
    }

    #[test]
    fn this_machine_has_memory() {
        let memory = SystemMemory::read().unwrap();
        assert!(
            memory.available <= memory.most()
                && 0 < memory.most()
                && memory.most() <= memory.machine
        );
    }
}
