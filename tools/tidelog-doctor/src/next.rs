//! The next command: what to type where a path does not work, by what the machine shows and what
//! its libraries say.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::libc;
use tidelog_engine::path::{ControllerName, DeviceSpec, HAS_SPDK};
use tidelog_gds::Gpu;
use tidelog_gds::cuda::CudaUnavailable;
use tidelog_gds::cufile::DriverOpenError;
use tidelog_gds::gdr::GdrError;
use tidelog_gds::topology::PciDevice;

use crate::cli::CheckArgs;
use crate::devices::DeviceRow;
use crate::facts::{Fact, Roots, huge_pages, io_uring};
use crate::ways::{By, NoGpu, map, open_cufile};

/// Command that tries data paths.
pub const TRY: &str = "tidelog-doctor check --scratch DIRECTORY";

/// Command that builds this program with SPDK.
const BUILD: &str = "cargo build --release -p tidelog-doctor --features spdk";

/// Facts by which commands are chosen.
#[derive(Debug)]
pub struct Advice<'a> {
    /// Directories of the kernel's tables.
    pub roots: &'a Roots,
    /// The machine's devices.
    pub pci: &'a [PciDevice],
    /// The SSDs.
    pub devices: &'a [DeviceRow],
}

impl Advice<'_> {
    /// Returns the command for a path from the host's memory that does not open.
    pub fn for_host(&self, by: By, area: &Path) -> String {
        if let Some(name) = controller_of(area) {
            // No other path reaches it.
            return if by == By::Spdk { self.for_controller(&name) } else { String::new() };
        }
        let allowed = match by {
            By::Uring => io_uring(self.roots).next,
            By::Spdk => return self.for_spdk(),
            // Nobody needs it who has the others.
            By::UringCmd => return String::new(),
            By::Posix | By::Gds | By::Gdrcopy => String::new(),
        };
        match allowed {
            next if !next.is_empty() => next,
            _ if area.is_dir() => format!("{TRY}  # on a file system that has O_DIRECT"),
            _ => format!("tidelog-format inspect {}", area.display().to_string().replace(',', " ")),
        }
    }

    /// Returns the command for a path from a GPU's memory that does not open.
    pub fn for_gpu(&self, by: By, gpu: i32, area: &Path, arguments: &CheckArgs) -> String {
        let gpu = match Gpu::open(gpu) {
            Ok(gpu) => gpu,
            Err(why) => return self.for_no_gpu(&why.into()),
        };
        match by {
            By::Gds => match open_cufile(&gpu, arguments) {
                Err(why) => self.for_cufile(&why),
                Ok(()) => match fs::metadata(area).ok().and_then(|it| self.for_udev(it.dev())) {
                    Some(next) => next,
                    None => self.for_host(By::Posix, area),
                },
            },
            By::Gdrcopy => match map(&gpu) {
                Err(why) => self.for_gdrcopy(&why),
                Ok(_) => self.for_spdk(),
            },
            by => self.for_host(by, area),
        }
    }

    /// Returns the command for a machine on which CUDA shows no GPU. A machine that has none has no
    /// command for that.
    pub fn for_no_gpu(&self, why: &NoGpu) -> String {
        let shown = self.pci.iter().any(PciDevice::is_gpu);
        let loaded = self.roots.has_module("nvidia");
        match why {
            NoGpu::Hidden => "unset CUDA_VISIBLE_DEVICES".into(),
            NoGpu::Cuda(_) if !shown && !loaded => String::new(),
            NoGpu::Cuda(_) if !loaded => "sudo modprobe nvidia".into(),
            NoGpu::Cuda(CudaUnavailable::NoLibrary) => {
                let version = self.roots.module_version("nvidia").unwrap_or_default();
                let major = version.split('.').next().unwrap_or_default();
                format!(
                    "sudo apt install libnvidia-compute-{major}  # in a container: docker run --gpus all"
                )
            }
            NoGpu::Cuda(CudaUnavailable::Stub) => "unset LD_LIBRARY_PATH".into(),
            NoGpu::Cuda(_) => "nvidia-smi".into(),
        }
    }

    fn for_cufile(&self, why: &DriverOpenError) -> String {
        match why {
            DriverOpenError::NoLibrary(_) | DriverOpenError::NoBatches(_) => {
                "sudo apt install nvidia-gds  # from CUDA's repository"
            }
            DriverOpenError::NotDirect { .. } if !self.roots.has_module("nvidia_fs") => {
                "sudo modprobe nvidia-fs"
            }
            // The module is there, and of another version than the library.
            DriverOpenError::NotDirect { .. } => "sudo apt install --only-upgrade nvidia-gds",
            DriverOpenError::CompatAllowed { .. } => {
                "sudo sed -i 's/\"allow_compat_mode\": *true/\"allow_compat_mode\": false/' /etc/cufile.json"
            }
            DriverOpenError::Call(_) => "gdscheck -p",
            DriverOpenError::Cuda(_) => "nvidia-smi",
        }
        .into()
    }

    /// Returns the command for a device that udev does not know: cuFile asks it for the file
    /// system, and takes no file there otherwise.
    fn for_udev(&self, device: u64) -> Option<String> {
        let (major, minor) = (libc::major(device), libc::minor(device));
        // What has no device (tmpfs) has a number of its own under major 0.
        let unknown = major != 0 && !self.roots.udev.join(format!("b{major}:{minor}")).exists();
        unknown.then(|| {
            "sudo udevadm trigger --subsystem-match=block  # in a container: docker run --volume /run/udev:/run/udev:ro".into()
        })
    }

    fn for_gdrcopy(&self, why: &GdrError) -> String {
        match why {
            GdrError::NoLibrary { .. } | GdrError::Missing(_) => {
                "sudo apt install libgdrapi gdrdrv-dkms"
            }
            GdrError::NoDriver if !self.roots.has_module("gdrdrv") => "sudo modprobe gdrdrv",
            GdrError::NoDriver => "sudo chmod a+rw /dev/gdrdrv",
            GdrError::Call { .. } => "nvidia-smi -q -d MEMORY",
            GdrError::Elsewhere { .. } => "sudo apt install --only-upgrade libgdrapi gdrdrv-dkms",
            // Nothing that is typed makes another GPU of it.
            GdrError::Unordered { .. } => "",
            GdrError::Cuda(_) => "nvidia-smi",
        }
        .into()
    }

    /// Returns the commands by which SPDK's driver gets an SSD, one step after the other.
    pub fn for_spdk(&self) -> String {
        let handed_over = self.devices.iter().find(|device| device.is_in_user_space());
        let free = |device: &&DeviceRow| device.driver.is_some() && device.may_be_bound;
        let address = |device: &DeviceRow| device.pci_address.clone().unwrap_or_default();
        match (handed_over, self.devices.iter().find(free)) {
            (None, None) => String::new(),
            _ if !HAS_SPDK => BUILD.into(),
            (None, Some(device)) => format!("tidelog-doctor bind {}", address(device)),
            (Some(device), _) => match huge_pages(self.roots) {
                Fact { next, .. } if !next.is_empty() => next,
                _ => format!("tidelog-doctor check --pool spdk:{}", address(device)),
            },
        }
    }

    /// Returns the command by which SPDK's driver gets this controller.
    fn for_controller(&self, name: &ControllerName) -> String {
        if !HAS_SPDK {
            return BUILD.into();
        }
        let look = format!("tidelog-format inspect '{name}'");
        let Some(address) = name.pci_address() else { return look };
        let is_it = |device: &&DeviceRow| {
            device.pci_address.as_deref().is_some_and(|it| {
                it.trim_start_matches("0000:") == address.trim_start_matches("0000:")
            })
        };
        match self.devices.iter().find(is_it) {
            None => "lspci -d ::0108  # the NVMe controllers that there are".into(),
            Some(device) if device.is_in_user_space() => match huge_pages(self.roots) {
                Fact { next, .. } if !next.is_empty() => next,
                _ => look,
            },
            Some(_) => format!("tidelog-doctor bind {address}"),
        }
    }

    /// Returns the command for a GPU that CUDA shows, without having tried a path: the kernel's
    /// modules that the ways past the host need.
    pub fn for_modules(&self) -> String {
        let missing = [("nvidia_fs", "nvidia-fs"), ("gdrdrv", "gdrdrv")];
        let missing = missing.into_iter().find(|(name, _)| !self.roots.has_module(name));
        missing.map_or_else(String::new, |(_, name)| format!("sudo modprobe {name}"))
    }

    /// Returns the command after an operation that failed, or other bytes that came back.
    pub fn for_failure() -> String {
        "sudo dmesg | tail -n 50".into()
    }
}

/// The first controller that an area of this name has.
fn controller_of(area: &Path) -> Option<ControllerName> {
    let specs = DeviceSpec::parse_list(area.to_str()?).ok()?;
    specs.iter().find_map(DeviceSpec::controller)
}

#[cfg(test)]
mod tests {
    use tidelog_gds::cufile::NoLibrary;

    use super::*;

    /// Files of the kernel's tables, as a tree.
    struct Tree(Roots);

    impl Tree {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("tidelog-{}-{name}", std::process::id()));
            let [sysfs, procfs, boot, udev] =
                ["sys", "proc", "boot", "udev"].map(|name| root.join(name));
            Self(Roots { sysfs, procfs, boot, udev })
        }

        fn write(&self, file: &str, text: &str) {
            let file = self.0.sysfs.with_file_name(file);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }

        fn advice<'a>(&'a self, devices: &'a [DeviceRow]) -> Advice<'a> {
            Advice { roots: &self.0, pci: &[], devices }
        }
    }

    impl Drop for Tree {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(self.0.sysfs.parent().unwrap());
        }
    }

    fn device(driver: &str, users: &[&str]) -> DeviceRow {
        DeviceRow {
            name: "nvme0n1".into(),
            pci_address: Some("0000:3e:00.0".into()),
            driver: Some(driver.into()),
            numa_node: None,
            link: None,
            users: users.iter().map(ToString::to_string).collect(),
            gpus: Vec::new(),
            wear: None,
            wear_why_not: None,
            may_be_bound: users.is_empty(),
            next: String::new(),
        }
    }

    #[test]
    fn a_device_that_udev_does_not_know_is_told_to_it_for_cufile() {
        let tree = Tree::new("udev");
        let (advice, disk, tmpfs) = (tree.advice(&[]), libc::makedev(254, 3), libc::makedev(0, 27));
        assert!(advice.for_udev(disk).unwrap().contains("--volume /run/udev:/run/udev:ro"));
        assert_eq!(advice.for_udev(tmpfs), None);
        tree.write("udev/b254:3", "E:ID_FS_USAGE=filesystem\n");
        assert_eq!(advice.for_udev(disk), None);
    }

    #[test]
    fn a_driver_that_is_missing_is_loaded_and_then_its_library_installed() {
        let tree = Tree::new("no-gpu");
        let next = |why: CudaUnavailable| tree.advice(&[]).for_no_gpu(&why.into());
        assert_eq!(next(CudaUnavailable::NoLibrary), "", "the machine has no GPU");
        tree.write("sys/module/nvidia/version", "580.65.06\n");
        let library = next(CudaUnavailable::NoLibrary);
        assert!(library.starts_with("sudo apt install libnvidia-compute-580 "), "{library}");
        assert_eq!(next(CudaUnavailable::NoGpu { ordinal: 0, count: 0 }), "nvidia-smi");
    }

    #[test]
    fn what_cufile_lacks_is_loaded_or_installed() {
        let tree = Tree::new("cufile");
        let advice = tree.advice(&[]);
        let next = |why: &DriverOpenError| advice.for_cufile(why);
        let missing = DriverOpenError::NoLibrary(NoLibrary { tried: Vec::new() });
        assert!(next(&missing).starts_with("sudo apt install nvidia-gds"));
        let indirect = DriverOpenError::NotDirect { why: String::new() };
        assert_eq!(next(&indirect), "sudo modprobe nvidia-fs");
        tree.write("sys/module/nvidia_fs/version", "2.17\n");
        assert!(next(&indirect).starts_with("sudo apt install --only-upgrade"));
        assert_eq!(advice.for_modules(), "sudo modprobe gdrdrv");
        tree.write("sys/module/gdrdrv/version", "2.5\n");
        assert_eq!(advice.for_modules(), "");
        assert_eq!(advice.for_gdrcopy(&GdrError::NoDriver), "sudo chmod a+rw /dev/gdrdrv");
    }

    #[test]
    fn spdk_wants_an_ssd_that_nobody_uses() {
        let tree = Tree::new("spdk");
        let next = |devices: &[DeviceRow]| tree.advice(devices).for_spdk();
        assert_eq!(next(&[]), "", "there is no SSD");
        assert_eq!(next(&[device("nvme", &["mounted"])]), "", "nor one to spare");
        let build = "cargo build --release -p tidelog-doctor --features spdk";
        let (free, handed_over) = ([device("nvme", &[])], [device("vfio-pci", &[])]);
        if HAS_SPDK {
            assert_eq!(next(&free), "tidelog-doctor bind 0000:3e:00.0");
            assert!(next(&handed_over).starts_with("sudo sysctl vm.nr_hugepages="));
            tree.write("proc/meminfo", "HugePages_Total: 64\nHugePages_Free: 64\n");
            assert_eq!(next(&handed_over), "tidelog-doctor check --pool spdk:0000:3e:00.0");
        } else {
            assert_eq!((next(&free), next(&handed_over)), (build.into(), build.into()));
        }
    }

    #[test]
    fn what_is_advised_for_a_controller_is_about_that_one() {
        let tree = Tree::new("controller");
        let handed_over = [device("vfio-pci", &[])];
        let advice = tree.advice(&handed_over);
        let next = |by, name: &str| advice.for_host(by, Path::new(name));
        assert_eq!(next(By::Uring, "spdk:0000:3e:00.0"), "", "no other path reaches it");
        assert_eq!(next(By::Posix, "spdk:trtype:TCP traddr:10.0.0.1"), "");
        if HAS_SPDK {
            assert!(next(By::Spdk, "spdk:3e:00.0").starts_with("sudo sysctl vm.nr_hugepages="));
            assert!(next(By::Spdk, "spdk:0000:3f:00.0").starts_with("lspci "));
            let remote = "spdk:trtype:TCP traddr:10.0.0.1";
            assert_eq!(next(By::Spdk, remote), format!("tidelog-format inspect '{remote}'"));
            let kernels = [device("nvme", &["mounted"])];
            let next = tree.advice(&kernels).for_host(By::Spdk, Path::new("spdk:3e:00.0"));
            assert_eq!(next, "tidelog-doctor bind 3e:00.0");
        } else {
            assert_eq!(next(By::Spdk, "spdk:3e:00.0"), BUILD);
        }
    }

    #[test]
    fn where_no_kernel_path_opens_the_area_is_named() {
        let tree = Tree::new("host");
        let advice = tree.advice(&[]);
        let next = advice.for_host(By::Posix, Path::new("/nowhere/a,/nowhere/b"));
        assert_eq!(next, "tidelog-format inspect /nowhere/a /nowhere/b");
        let next = advice.for_host(By::Posix, Path::new("/"));
        assert!(next.starts_with(TRY), "{next}");
    }
}
