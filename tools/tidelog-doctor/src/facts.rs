//! Facts of this machine as far as data paths care. Reads only, and where something cannot be read
//! it says so.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use nix::sys::resource::{Resource, getrlimit};
use nix::sys::statvfs::statvfs;
use nix::unistd::{AccessFlags, access};
use serde::Serialize;
use tidelog_engine::memory::SystemMemory;
use tidelog_engine::path::uring::ProbedRing;
use tidelog_engine::units::ByteCount;

/// Directories of the kernel's tables. Fields, so that tests can show machines that they do not
/// have.
#[derive(Clone, Debug)]
pub struct Roots {
    /// `/sys`.
    pub sysfs: PathBuf,
    /// `/proc`.
    pub procfs: PathBuf,
    /// `/boot`.
    pub boot: PathBuf,
    /// `/run/udev/data`.
    pub udev: PathBuf,
}

/// A fact, whether it stands in the way of a better path, and what to type then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Fact {
    /// Subject of the fact.
    pub name: &'static str,
    /// Value that was found.
    pub found: String,
    /// Advice for a better path; empty where there is nothing to do.
    pub next: String,
}

pub(crate) fn fact(name: &'static str, found: impl Into<String>, next: impl Into<String>) -> Fact {
    Fact { name, found: found.into(), next: next.into() }
}

/// Returns all facts, in the order of the page.
pub fn all(roots: &Roots, has: Has) -> Vec<Fact> {
    let mut facts = vec![
        kernel(roots, has),
        kernel_config(roots, has),
        io_uring(roots),
        memory(roots),
        locked_memory(),
        open_files(),
        shared_memory(Path::new("/dev/shm")),
        module_cache(),
    ];
    let pages = huge_pages(roots);
    facts.push(if has.nvme { pages } else { Fact { next: String::new(), ..pages } });
    if has.gpu || has.nvme {
        facts.extend([iommu(roots, has), modules(roots, has)]);
    }
    if has.nvme {
        facts.push(multipath(roots, has));
    }
    facts
}

/// Parts of the machine: nothing is advised for what it has not.
#[derive(Clone, Copy, Debug)]
pub struct Has {
    /// A GPU.
    pub gpu: bool,
    /// An SSD on PCI Express.
    pub nvme: bool,
}

impl Has {
    /// Returns whether an SSD could reach a GPU.
    fn peers(self) -> bool {
        self.gpu && self.nvme
    }
}

impl Roots {
    fn proc(&self, name: &str) -> Option<String> {
        Some(fs::read_to_string(self.procfs.join(name)).ok()?.trim().to_owned())
    }

    fn sys(&self, name: &str) -> Option<String> {
        Some(fs::read_to_string(self.sysfs.join(name)).ok()?.trim().to_owned())
    }

    /// Returns whether the kernel has a module, loaded or built in.
    pub(crate) fn has_module(&self, name: &str) -> bool {
        self.sysfs.join("module").join(name).exists()
    }

    /// Returns the version of a loaded module.
    pub(crate) fn module_version(&self, name: &str) -> Option<String> {
        self.sys(&format!("module/{name}/version"))
    }

    fn release(&self) -> Option<String> {
        self.proc("sys/kernel/osrelease")
    }
}

fn kernel(roots: &Roots, has: Has) -> Fact {
    let Some(release) = roots.release() else { return fact("kernel", "unknown", "") };
    let mut numbers = release.split(['.', '-']).map_while(|part| part.parse::<u32>().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let next = match version {
        it if it < (5, 15) => "io_uring as Tidelog uses it needs 5.15 or newer",
        it if it < (6, 2) && has.peers() => "peer-to-peer DMA without nvidia-fs needs 6.2 or newer",
        _ => "",
    };
    fact("kernel", release, next)
}

/// Options with which a kernel must have been built.
const OPTIONS: [&str; 4] =
    ["CONFIG_IO_URING", "CONFIG_BLK_DEV_NVME", "CONFIG_PCI_P2PDMA", "CONFIG_VFIO_PCI"];

fn kernel_config(roots: &Roots, has: Has) -> Fact {
    let name = roots.release().map(|release| format!("config-{release}")).unwrap_or_default();
    let found = fs::read_to_string(roots.boot.join(&name)).ok().or_else(|| packed_config(roots));
    let Some(config) = found else {
        let (boot, proc) = (roots.boot.display(), roots.procfs.display());
        let why = format!("unknown: no {name} in {boot}, nor config.gz in {proc}");
        return fact("kernel config", why, "");
    };
    let value = |option: &str| {
        config.lines().find_map(|line| line.strip_prefix(option)?.strip_prefix('=')).unwrap_or("n")
    };
    let found: Vec<String> = OPTIONS
        .iter()
        .map(|option| format!("{}={}", &option["CONFIG_".len()..], value(option)))
        .collect();
    let next = if value("CONFIG_PCI_P2PDMA") == "n" && has.peers() {
        "without PCI_P2PDMA the direct way needs nvidia-fs"
    } else {
        ""
    };
    fact("kernel config", found.join(" "), next)
}

/// The configuration that some kernels carry in them.
fn packed_config(roots: &Roots) -> Option<String> {
    let packed = fs::File::open(roots.procfs.join("config.gz")).ok()?;
    let mut gzip = Command::new("/bin/gzip");
    let output = gzip.arg("-dc").stdin(packed).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Returns the fact on this process's use of `io_uring`.
pub(crate) fn io_uring(roots: &Roots) -> Fact {
    let why = match ProbedRing::probe(8, None) {
        Ok(_) => return fact("io_uring", "allowed", ""),
        Err(error) => error.to_string(),
    };
    let next = match roots.proc("sys/kernel/io_uring_disabled").as_deref() {
        Some("1") => {
            "sudo sysctl kernel.io_uring_disabled=0  # or put the user into kernel.io_uring_group"
        }
        Some("2") => "sudo sysctl kernel.io_uring_disabled=0",
        _ => {
            "allow io_uring_setup, io_uring_enter and io_uring_register in the container's seccomp profile"
        }
    };
    fact("io_uring", format!("refused: {why}"), next)
}

/// Returns the limit of a budget on the host.
fn memory(roots: &Roots) -> Fact {
    let memory = match SystemMemory::read_at(&roots.procfs) {
        Ok(memory) => memory,
        Err(error) => return fact("memory", format!("unknown: {error}"), ""),
    };
    let found = format!("{}, {} available", ByteCount(memory.machine), ByteCount(memory.available));
    match memory.limit {
        None => fact("memory", found, ""),
        Some(limit) => {
            let bytes = ByteCount(limit.bytes);
            let next = format!(
                "a budget on the host stays well below {bytes}, or {} is raised",
                limit.file.display()
            );
            fact("memory", format!("{found}; this control group may use {bytes}"), next)
        }
    }
}

fn locked_memory() -> Fact {
    /// Tidelog's default staging memory fits.
    const ENOUGH: u64 = 64 << 20;
    match getrlimit(Resource::RLIMIT_MEMLOCK) {
        Ok((limit, _)) if limit == u64::MAX => fact("locked memory", "no limit", ""),
        Ok((limit, _)) => {
            let next =
                if limit < ENOUGH { "ulimit -l unlimited (limits.conf: memlock)" } else { "" };
            fact("locked memory", format!("at most {}", ByteCount(limit)), next)
        }
        Err(error) => fact("locked memory", format!("unknown: {error}"), ""),
    }
}

fn open_files() -> Fact {
    /// A pool has one per device and few besides, torch and its workers more.
    const ENOUGH: u64 = 512;
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((limit, _)) if limit == u64::MAX => fact("open files", "no limit", ""),
        Ok((limit, _)) => {
            let next = if limit < ENOUGH {
                "ulimit -n 1024  # of a container: --ulimit nofile=1024"
            } else {
                ""
            };
            fact("open files", format!("at most {limit}"), next)
        }
        Err(error) => fact("open files", format!("unknown: {error}"), ""),
    }
}

/// Returns the fact on the memory through which processes of a program pass batches. Tidelog takes
/// none of it.
fn shared_memory(folder: &Path) -> Fact {
    const ENOUGH: u64 = 512 << 20;
    match statvfs(folder) {
        Ok(found) => {
            let bytes = |blocks: u64| blocks.saturating_mul(found.fragment_size());
            let (all, free) = (bytes(found.blocks()), bytes(found.blocks_available()));
            let next = if free < ENOUGH {
                "workers of a DataLoader pass batches through it; of a container: --shm-size 1g"
            } else {
                ""
            };
            let said =
                format!("{}, {} free in {}", ByteCount(all), ByteCount(free), folder.display());
            fact("shared memory", said, next)
        }
        Err(error) => fact("shared memory", format!("none in {}: {error}", folder.display()), ""),
    }
}

/// Returns the fact on the folder for the bridge's module in C++, which a package has for some
/// versions of torch, and which is built once for each other one.
fn module_cache() -> Fact {
    let Some(cache) = cache_folder() else {
        return fact("module cache", "neither XDG_CACHE_HOME nor HOME is set", NO_CACHE);
    };
    let folder = cache.join("tidelog");
    let there = folder.ancestors().find(|each| each.exists()).unwrap_or(&cache);
    match access(there, AccessFlags::W_OK) {
        Ok(()) => fact("module cache", folder.display().to_string(), ""),
        Err(error) => fact("module cache", format!("{}: {error}", folder.display()), NO_CACHE),
    }
}

const NO_CACHE: &str =
    "XDG_CACHE_HOME=DIRECTORY that can be written, where the wheel has no module for this torch";

fn cache_folder() -> Option<PathBuf> {
    let named = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    named("XDG_CACHE_HOME").or_else(|| Some(named("HOME")?.join(".cache")))
}

/// The pages that SPDK needs.
pub(crate) fn huge_pages(roots: &Roots) -> Fact {
    let table = roots.proc("meminfo").unwrap_or_default();
    let number = |name: &str| {
        let line = table.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.trim().split(' ').next()?.parse::<u64>().ok()
    };
    let (all, free) =
        (number("HugePages_Total").unwrap_or(0), number("HugePages_Free").unwrap_or(0));
    let setting = roots.sys("kernel/mm/transparent_hugepage/enabled").unwrap_or_default();
    let chosen = setting.split(['[', ']']).nth(1).unwrap_or("unknown");
    let next = if free == 0 {
        "sudo sysctl vm.nr_hugepages=64  # SPDK needs them; the other paths gain little"
    } else {
        ""
    };
    fact("huge pages", format!("{free} of {all} reserved ones free; transparent: {chosen}"), next)
}

fn iommu(roots: &Roots, has: Has) -> Fact {
    let units = fs::read_dir(roots.sysfs.join("class/iommu")).into_iter().flatten().count();
    if units == 0 {
        return fact("IOMMU", "off, or there is none", "");
    }
    let groups =
        fs::read_dir(roots.sysfs.join("kernel/iommu_groups")).into_iter().flatten().flatten();
    let kinds: Vec<String> = groups
        .filter_map(|group| fs::read_to_string(group.path().join("type")).ok())
        .map(|kind| kind.trim().to_owned())
        .collect();
    let translated = kinds.iter().filter(|kind| *kind != "identity").count();
    let next = if translated > 0 && has.peers() {
        "peer-to-peer DMA needs it off or passing through: iommu=pt on the kernel's command line"
    } else {
        ""
    };
    fact("IOMMU", format!("on, {translated} of {} groups translated", kinds.len()), next)
}

fn modules(roots: &Roots, has: Has) -> Fact {
    const OF_SSDS: [&str; 2] = ["nvme", "vfio_pci"];
    const OF_GPUS: [&str; 3] = ["nvidia", "nvidia_fs", "gdrdrv"];
    let names = [(has.nvme, &OF_SSDS[..]), (has.gpu, &OF_GPUS[..])];
    let found: Vec<String> = names
        .iter()
        .filter(|(has, _)| *has)
        .flat_map(|(_, names)| *names)
        .map(|name| match (roots.has_module(name), roots.module_version(name)) {
            (true, Some(version)) => format!("{name} {version}"),
            (true, None) => (*name).to_owned(),
            (false, _) => format!("no {name}"),
        })
        .collect();
    fact("kernel modules", found.join(", "), "")
}

fn multipath(roots: &Roots, has: Has) -> Fact {
    match roots.sys("module/nvme_core/parameters/multipath").as_deref() {
        Some("Y") => fact(
            "NVMe multipath",
            "on",
            if has.peers() {
                "peer-to-peer DMA needs it off: nvme_core.multipath=N on the kernel's command line"
            } else {
                ""
            },
        ),
        Some(_) => fact("NVMe multipath", "off", ""),
        None => fact("NVMe multipath", "not in this kernel, or nvme_core is not loaded", ""),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_advised_for_what_the_machine_has_not() {
        let directory = std::env::temp_dir().join(format!("tidelog-facts-{}", std::process::id()));
        let roots = Roots {
            sysfs: directory.join("sys"),
            procfs: directory.join("proc"),
            boot: directory.join("boot"),
            udev: directory.join("udev"),
        };
        fs::create_dir_all(roots.procfs.join("sys/kernel")).unwrap();
        fs::create_dir_all(roots.sysfs.join("class/iommu/dmar0")).unwrap();
        fs::create_dir_all(roots.sysfs.join("kernel/iommu_groups/1")).unwrap();
        fs::write(roots.sysfs.join("kernel/iommu_groups/1/type"), "DMA\n").unwrap();
        fs::write(roots.procfs.join("sys/kernel/osrelease"), "6.1.0\n").unwrap();
        fs::create_dir_all(&roots.boot).unwrap();
        fs::write(roots.boot.join("config-6.1.0"), "CONFIG_IO_URING=y\n").unwrap();
        let told = |has| {
            let facts = all(&roots, has);
            let lines = facts.iter().map(|fact| format!("{}: {}", fact.found, fact.next));
            lines.collect::<Vec<_>>().join("\n")
        };
        let (neither, both) =
            (told(Has { gpu: false, nvme: false }), told(Has { gpu: true, nvme: true }));
        let ssd = told(Has { gpu: false, nvme: true });
        fs::remove_dir_all(&directory).unwrap();
        for word in ["peer-to-peer", "nvidia", "gdrdrv"] {
            assert!(!neither.contains(word) && !ssd.contains(word), "{word}: {neither}{ssd}");
            assert!(both.contains(word), "{word}: {both}");
        }
        assert!(!neither.contains("SPDK") && ssd.contains("SPDK needs them"), "{neither}{ssd}");
    }
}
