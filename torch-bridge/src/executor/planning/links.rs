//! Rates of links in the kernel's tables of PCI Express, for a pool's devices and its GPU. A plan
//! is made with it until transfers have shown how fast they are: a link is what an SSD or a GPU was
//! made for, and never less than what it does.

use std::os::unix::fs::{FileTypeExt, MetadataExt};

use tidelog_engine::path::DeviceSpec;
use tidelog_gds::Gpu;
use tidelog_gds::topology::{PciDevice, Sysfs, payload_of};
use tidelog_planner::units::{Bandwidth, Bytes};

use crate::memory::MemoryPlace;
use crate::pool::PoolConfig;

/// Rates of links. Nothing where the tables do not say it of every device: files, virtual disks,
/// namespaces that controllers share, many containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::executor) struct LinkRates {
    /// The pool's devices together, on the way to host memory and from there to the GPU, if there
    /// is one.
    pub(super) ssd: Option<Bandwidth>,
    /// The GPU.
    pub(super) gpu: Option<Bandwidth>,
    /// The links that the tables describe, in words.
    pub(super) descriptions: Vec<String>,
}

impl LinkRates {
    /// Reads the rates of the devices and the GPU that a pool is opened for.
    pub(in crate::executor) fn of(config: &PoolConfig<'_>) -> Self {
        let sysfs = Sysfs::default();
        let devices = DeviceSpec::parse_list(config.devices).unwrap_or_default();
        let ssds: Vec<_> = devices.iter().map(|device| controller_of(&sysfs, device)).collect();
        let gpu = match config.place {
            MemoryPlace::Host => None,
            MemoryPlace::Gpu(number) => Gpu::open(number.into()).ok(),
        };
        let gpu = gpu.and_then(|gpu| sysfs.pci_device(gpu.pci_address()));
        Self::between(&sysfs, &ssds, gpu.as_ref())
    }

    fn between(sysfs: &Sysfs, ssds: &[Option<PciDevice>], gpu: Option<&PciDevice>) -> Self {
        let gpu_rate = gpu.and_then(|gpu| sysfs.bandwidth_to_host(&[gpu]));
        let ssd_rate = together(sysfs, ssds).map(|rate| rate.min(gpu_rate.unwrap_or(u64::MAX)));
        let payload = |rate: u64| Bandwidth(payload_of(rate));
        let devices = ssds.iter().flatten().chain(gpu);
        let descriptions = devices.filter_map(|device| describe(sysfs, device)).collect();
        Self { ssd: ssd_rate.map(payload), gpu: gpu_rate.map(payload), descriptions }
    }
}

/// The NVMe controller behind a device, if it is one's: the link of a virtual disk says nothing of
/// it.
fn controller_of(sysfs: &Sysfs, device: &DeviceSpec) -> Option<PciDevice> {
    let found = if let Some(named) = device.controller() {
        sysfs.pci_device(named.pci_address()?)?
    } else {
        let metadata = device.target().metadata().ok()?;
        let is_block = metadata.file_type().is_block_device();
        sysfs.pci_of_block_number(is_block.then(|| metadata.rdev())?)?
    };
    found.is_nvme().then_some(found)
}

/// Returns the combined rate of devices, packets' own overhead included. Tensors are striped over
/// them evenly, so all wait for the slowest.
fn together(sysfs: &Sysfs, ssds: &[Option<PciDevice>]) -> Option<u64> {
    let ssds: Vec<&PciDevice> = ssds.iter().map(Option::as_ref).collect::<Option<_>>()?;
    let slowest = ssds.iter().filter_map(|ssd| sysfs.bandwidth_to_host(&[ssd])).min()?;
    let evenly = slowest.saturating_mul(ssds.len() as u64);
    Some(sysfs.bandwidth_to_host(&ssds)?.min(evenly))
}

/// Returns the link, and the rate of the whole way to host memory.
fn describe(sysfs: &Sysfs, device: &PciDevice) -> Option<String> {
    let rate = Bytes(payload_of(sysfs.bandwidth_to_host(&[device])?));
    let link = device.link_text().unwrap_or_else(|| "unknown".to_owned());
    Some(format!("{}: link {link}, {rate}/s to host memory", device.address))
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    use super::*;

    /// A sysfs with a switch, two SSDs below it, one beside it, and a GPU; removed at the end.
    struct FakeSysfs(PathBuf);

    const SWITCH: &str = "pci0000:3a/0000:3a:00.0";
    const GPU: &str = "0000:50:00.0";
    /// Four lanes at 16 GT/s, without their packets' overhead.
    const FOUR_LANES: u64 = 7_876_923_076 / 280 * 256;

    impl FakeSysfs {
        fn new(name: &str) -> Self {
            let name = format!("tidelog-links-{}-{name}", std::process::id());
            let sysfs = Self(std::env::temp_dir().join(name));
            fs::create_dir_all(sysfs.0.join("bus/pci/devices")).unwrap();
            sysfs.add(SWITCH, "0x060400", "4");
            sysfs.add("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "0x010802", "4");
            sysfs.add("pci0000:3a/0000:3a:00.0/0000:3c:00.0", "0x010802", "4");
            sysfs.add("pci0000:40/0000:40:00.0", "0x010802", "4");
            sysfs.add("pci0000:50/0000:50:00.0", "0x030200", "16");
            sysfs
        }

        fn add(&self, place: &str, class: &str, width: &str) {
            let directory = self.0.join("devices").join(place);
            fs::create_dir_all(&directory).unwrap();
            let vendor = if class == "0x030200" { "0x10de" } else { "0x144d" };
            for (name, text) in [("class", class), ("vendor", vendor), ("device", "0x1")] {
                fs::write(directory.join(name), text).unwrap();
            }
            let link = self.0.join("bus/pci/devices").join(directory.file_name().unwrap());
            symlink(&directory, link).unwrap();
            self.set_link(place, width, "16.0 GT/s PCIe");
        }

        fn set_link(&self, place: &str, width: &str, speed: &str) {
            let directory = self.0.join("devices").join(place);
            for which in ["current", "max"] {
                fs::write(directory.join(format!("{which}_link_width")), width).unwrap();
                fs::write(directory.join(format!("{which}_link_speed")), speed).unwrap();
            }
        }

        fn links(&self, ssds: &[&str], gpu: Option<&str>) -> LinkRates {
            let sysfs = Sysfs(self.0.clone());
            let ssds: Vec<_> = ssds.iter().map(|address| sysfs.pci_device(address)).collect();
            LinkRates::between(&sysfs, &ssds, gpu.and_then(|gpu| sysfs.pci_device(gpu)).as_ref())
        }
    }

    impl Drop for FakeSysfs {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn rate(links: &LinkRates) -> u64 {
        links.ssd.unwrap().0
    }

    #[test]
    fn ssds_add_up_as_far_as_the_links_that_they_share() {
        let sysfs = FakeSysfs::new("shared");
        let one = sysfs.links(&["0000:3b:00.0"], None);
        assert_eq!((rate(&one), one.gpu), (FOUR_LANES, None));
        assert_eq!(
            one.descriptions,
            ["0000:3b:00.0: link x4 at 16.0 GT/s, 6.7 GiB/s to host memory"]
        );
        let both = sysfs.links(&["0000:3b:00.0", "0000:3c:00.0"], None);
        assert_eq!(rate(&both), FOUR_LANES, "by the four lanes above both");
        let apart = sysfs.links(&["0000:3b:00.0", "0000:40:00.0"], None);
        assert!(rate(&apart).abs_diff(2 * FOUR_LANES) < 1000, "{apart:?}");
        sysfs.set_link("pci0000:40/0000:40:00.0", "1", "16.0 GT/s PCIe");
        let uneven = sysfs.links(&["0000:3b:00.0", "0000:40:00.0"], None);
        assert!(rate(&uneven).abs_diff(FOUR_LANES / 2) < 1000, "twice the slower: {uneven:?}");
    }

    #[test]
    fn a_gpu_s_link_is_the_host_s_and_bounds_the_ssds() {
        let sysfs = FakeSysfs::new("gpu");
        let apart = ["0000:3b:00.0", "0000:40:00.0"];
        let wide = sysfs.links(&apart, Some(GPU));
        assert!(wide.gpu.unwrap().0.abs_diff(4 * FOUR_LANES) < 1000, "{wide:?}");
        assert_eq!(wide.ssd, sysfs.links(&apart, None).ssd);
        assert_eq!(wide.descriptions.len(), 3);
        sysfs.set_link("pci0000:50/0000:50:00.0", "4", "8.0 GT/s PCIe");
        let narrow = sysfs.links(&apart, Some(GPU));
        assert_eq!(narrow.ssd, narrow.gpu);
        assert!(rate(&narrow).abs_diff(FOUR_LANES / 2) < 1000, "{narrow:?}");
    }

    #[test]
    fn where_one_device_is_not_described_there_is_no_figure() {
        let sysfs = FakeSysfs::new("silent");
        let known = "0000:40:00.0";
        assert_eq!(sysfs.links(&[known, "0000:99:00.0"], None).ssd, None, "a file, say");
        assert_eq!(sysfs.links(&[], Some("0000:99:00.0")), LinkRates::default());
        sysfs.set_link("pci0000:40/0000:40:00.0", "0", "Unknown");
        assert_eq!(sysfs.links(&[known], None), LinkRates::default());
    }

    /// Checks that only NVMe controllers count: a virtual disk's device on the bus shows a link
    /// that nothing runs over.
    #[test]
    fn a_device_is_found_by_its_controller_s_name_and_only_if_it_is_nvme() {
        let sysfs = FakeSysfs::new("found");
        let find = |name: &str| controller_of(&Sysfs(sysfs.0.clone()), &DeviceSpec::new(name));
        assert_eq!(find("spdk:0000:40:00.0").unwrap().address, "0000:40:00.0");
        assert_eq!(find("spdk:0000:3a:00.0"), None, "a bridge");
        assert_eq!(find("/"), None, "a directory");
        assert_eq!(find("/nowhere"), None);
    }
}
