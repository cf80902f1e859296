//! PCI Express in sysfs: where a device hangs, how wide its link is, who drives it.

use std::fs;
use std::path::{Path, PathBuf};

use tidelog_engine::path::controllers_of;
use tidelog_engine::units::ByteCount;

/// A link of PCI Express.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PciLink {
    /// Lanes.
    pub width: u32,
    /// Transfers in a second and lane, in tenths of 10^9.
    pub speed_decigigatransfers: u32,
}

impl PciLink {
    /// Returns the throughput in one direction, packets' own overhead included.
    pub fn bytes_per_second(self) -> u64 {
        let bits = u64::from(self.width) * u64::from(self.speed_decigigatransfers) * 100_000_000;
        // Up to 5 GT/s every byte takes ten bits, from 8 GT/s on 128 bits take 130.
        if self.speed_decigigatransfers <= 50 { bits / 10 } else { bits * 128 / 130 / 8 }
    }
}

/// Returns the payload of a link's bytes per second. Packets carry 256 bytes on most machines, and
/// 24 more: 4 that begin one and number it, a header of 16, a checksum of 4 (PCI Express Base
/// Specification 3.0, chapters 2 to 4).
pub fn payload_of(bytes_per_second: u64) -> u64 {
    const PAYLOAD: u64 = 256;
    const AROUND_IT: u64 = 24;
    bytes_per_second / (PAYLOAD + AROUND_IT) * PAYLOAD
}

impl std::fmt::Display for PciLink {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let speed = self.speed_decigigatransfers;
        write!(out, "x{} at {}.{} GT/s", self.width, speed / 10, speed % 10)
    }
}

/// Redirection by a bridge of what two devices below it exchange, up to the CPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Acs {
    /// The bridge redirects: access control services redirect requests or completions.
    Redirects,
    /// The bridge does not redirect.
    Off,
    /// The bridge has no such services.
    Absent,
    /// The state can be read only by root.
    Unreadable,
}

/// A device of PCI Express.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PciDevice {
    /// Address, such as `0000:3b:00.0`.
    pub address: String,
    /// The host bridge, as in `pci0000:3a`.
    pub root: String,
    /// The bridges from there to it.
    pub bridges: Vec<String>,
    /// The class code.
    pub class: u32,
    /// The maker.
    pub vendor: u32,
    /// Device id.
    pub device: u32,
    /// The kernel's driver that has it.
    pub driver: Option<String>,
    /// The NUMA node, if the machine has several.
    pub numa_node: Option<u32>,
    /// The IOMMU group.
    pub iommu_group: Option<u32>,
    /// Link as it runs.
    pub link: Option<PciLink>,
    /// Link as it could run.
    pub link_max: Option<PciLink>,
    /// The windows into memory, by number.
    pub bars: Vec<ByteCount>,
}

/// `NVMe` controllers.
const CLASS_NVME: u32 = 0x01_08_02;
const VENDOR_NVIDIA: u32 = 0x10de;

impl PciDevice {
    /// Returns whether the pci device is an `NVMe` controller.
    pub fn is_nvme(&self) -> bool {
        self.class == CLASS_NVME
    }

    /// Returns whether the pci device is one of NVIDIA's GPUs.
    pub fn is_gpu(&self) -> bool {
        // Displays and 3D controllers.
        self.vendor == VENDOR_NVIDIA && self.class >> 16 == 0x03
    }

    /// The host bridge, the bridges below it, and the device itself.
    fn way(&self) -> Vec<&str> {
        let bridges = self.bridges.iter().map(String::as_str);
        std::iter::once(self.root.as_str()).chain(bridges).chain([self.address.as_str()]).collect()
    }

    /// Returns the link under load. An idle GPU's runs slower, and so does that of the bridge
    /// above: only an SSD's is as fast as it is now.
    fn link_at_work(&self) -> Option<PciLink> {
        if self.is_nvme() { self.link.or(self.link_max) } else { self.link_max }
    }

    /// Returns whether the link runs slower or narrower than it could.
    pub fn is_degraded(&self) -> bool {
        let pair = self.link.zip(self.link_max);
        pair.is_some_and(|(link, max)| link.bytes_per_second() < max.bytes_per_second())
    }

    /// Describes the link, and what it could be where it is less than that.
    pub fn link_text(&self) -> Option<String> {
        let link = self.link?;
        Some(match self.link_max {
            Some(max) if self.is_degraded() => format!("{link}, could be {max}"),
            _ => link.to_string(),
        })
    }
}

/// The kernel's tables.
#[derive(Clone, Debug)]
pub struct Sysfs(
    /// Mount point of sysfs: `/sys`.
    pub PathBuf,
);

impl Default for Sysfs {
    fn default() -> Self {
        Self("/sys".into())
    }
}

impl Sysfs {
    /// Every device of PCI Express, by address.
    pub fn pci_devices(&self) -> Vec<PciDevice> {
        let mut addresses = names(&self.0.join("bus/pci/devices"));
        addresses.sort();
        addresses.iter().filter_map(|address| self.pci_device(address)).collect()
    }

    /// Returns the bandwidth between devices and the host in one direction, together, in bytes per
    /// second: each as much as its own link carries, and those below one bridge no more than that
    /// bridge's. `None` where the tables do not bound it.
    pub fn bandwidth_to_host(&self, devices: &[&PciDevice]) -> Option<u64> {
        let mut ways: Vec<Vec<&str>> = devices.iter().map(|device| device.way()).collect();
        ways.sort();
        let ways: Vec<&[&str]> = ways.iter().map(Vec::as_slice).collect();
        Some(self.carried(&ways)).filter(|&together| together < u64::MAX)
    }

    /// Returns the combined bandwidth of ways that share their route as far as here, given in
    /// order; equal ones, of namespaces of one controller, are one. What no table bounds is
    /// endless.
    fn carried(&self, ways: &[&[&str]]) -> u64 {
        let apart = ways.chunk_by(|one, other| one.first() == other.first());
        let each = apart.map(|below| {
            let Some((next, _)) = below[0].split_first() else { return u64::MAX };
            let link = self.pci_device(next).and_then(|device| device.link_at_work());
            let onwards: Vec<&[&str]> = below.iter().map(|way| &way[1..]).collect();
            link.map_or(u64::MAX, PciLink::bytes_per_second).min(self.carried(&onwards))
        });
        each.fold(0, u64::saturating_add)
    }

    /// The device at this address.
    pub fn pci_device(&self, address: &str) -> Option<PciDevice> {
        if !is_address(address) {
            return None;
        }
        let directory = fs::canonicalize(self.0.join("bus/pci/devices").join(address)).ok()?;
        let (root, mut chain) = chain_of(&directory)?;
        // The last is the device itself.
        chain.pop();
        Some(PciDevice {
            address: address.to_owned(),
            root,
            bridges: chain,
            class: hexadecimal(&directory, "class")?,
            vendor: hexadecimal(&directory, "vendor")?,
            device: hexadecimal(&directory, "device")?,
            driver: link_name(&directory.join("driver")),
            // -1 where there is but one, or the firmware does not tell.
            numa_node: text(&directory, "numa_node").and_then(|node| node.parse().ok()),
            iommu_group: link_name(&directory.join("iommu_group"))
                .and_then(|group| group.parse().ok()),
            link: link(&directory, "current"),
            link_max: link(&directory, "max"),
            bars: bars(&text(&directory, "resource").unwrap_or_default()),
        })
    }

    /// The PCI devices that a block device belongs to: several where several `NVMe` controllers
    /// share a namespace.
    pub fn pci_of_block(&self, name: &str) -> Vec<PciDevice> {
        self.pci_behind(&self.0.join("class/block").join(name))
    }

    /// The one that the block device of this number (`st_rdev`) belongs to, if it is one.
    pub fn pci_of_block_number(&self, number: u64) -> Option<PciDevice> {
        let name = format!("dev/block/{}:{}", libc::major(number), libc::minor(number));
        let mut found = self.pci_behind(&self.0.join(name));
        if found.len() == 1 { found.pop() } else { None }
    }

    fn pci_behind(&self, link: &Path) -> Vec<PciDevice> {
        let Ok(shown) = fs::canonicalize(link) else { return Vec::new() };
        if let Some(above) = self.pci_above(&shown) {
            return vec![above];
        }
        // Shared namespaces are shown beneath their subsystem, far from PCI.
        controllers_of(&shown).iter().filter_map(|it| self.pci_above(it)).collect()
    }

    /// The last PCI device on the way to what this link leads to.
    fn pci_above(&self, link: &Path) -> Option<PciDevice> {
        let (_, chain) = chain_of(&fs::canonicalize(link).ok()?)?;
        self.pci_device(chain.last()?)
    }

    /// The names of the namespaces of an `NVMe` controller, as in `nvme0n1`; of one that it may
    /// share with others, too, whether or not the kernel shows a device of that name.
    pub fn namespaces(&self, controller: &PciDevice) -> Vec<String> {
        let blocks = self.0.join("class/block");
        let is_beneath = |name: &String| {
            !blocks.join(name).join("partition").exists()
                && self
                    .pci_above(&blocks.join(name))
                    .is_some_and(|pci| pci.address == controller.address)
        };
        let mut found: Vec<String> =
            names(&blocks).into_iter().filter(is_beneath).map(|name| namespace_of(&name)).collect();
        found.sort();
        found
    }

    /// Returns the state of a bridge's access control services.
    pub fn acs(&self, address: &str) -> Acs {
        let config = fs::read(self.0.join("bus/pci/devices").join(address).join("config"));
        config.map_or(Acs::Unreadable, |config| acs_in(&config))
    }
}

/// Parses the state of access control services by a device's configuration space.
pub fn acs_in(config: &[u8]) -> Acs {
    /// Offset of extended capabilities.
    const EXTENDED: usize = 0x100;
    const ACS: u32 = 0x000d;
    /// Redirection of requests, and of completions.
    const REDIRECT: u16 = 1 << 2 | 1 << 3;
    if config.len() <= EXTENDED {
        return Acs::Unreadable;
    }
    let mut at = EXTENDED;
    // A chain that is no chain ends after as many steps as there is room for capabilities.
    for _ in 0..config.len() / 8 {
        let Some(header) = config.get(at..at + 8) else { return Acs::Absent };
        let word = u32::from_le_bytes([header[0], header[1], header[2], header[3]]);
        if word & 0xffff == ACS {
            let control = u16::from_le_bytes([header[6], header[7]]);
            return if control & REDIRECT == 0 { Acs::Off } else { Acs::Redirects };
        }
        at = (word >> 20) as usize;
        if at < EXTENDED {
            return Acs::Absent;
        }
    }
    Acs::Absent
}

/// The host bridge above a directory of `/sys/devices`, and the PCI addresses from there on.
fn chain_of(directory: &Path) -> Option<(String, Vec<String>)> {
    let parts: Vec<String> = directory
        .components()
        .map(|part| part.as_os_str().to_string_lossy().into_owned())
        .collect();
    let root = parts.iter().position(|part| part.starts_with("pci") && part.contains(':'))?;
    let chain: Vec<String> =
        parts[root + 1..].iter().take_while(|part| is_address(part)).cloned().collect();
    if chain.is_empty() { None } else { Some((parts[root].clone(), chain)) }
}

/// `0000:3b:00.0`: hexadecimal digits, in groups of at least 4, 2, 2 and 1.
fn is_address(name: &str) -> bool {
    let groups: Vec<&str> = name.split([':', '.']).collect();
    let lengths = [4, 2, 2, 1];
    groups.len() == 4
        && groups.iter().zip(lengths).all(|(group, length)| {
            group.len() >= length && group.bytes().all(|byte| byte.is_ascii_hexdigit())
        })
}

/// The namespace to which a block device of a controller leads. With multipath it is a path, hidden
/// and without a number: `nvme0c1n1` leads through the controller 1 to `nvme0n1`.
fn namespace_of(name: &str) -> String {
    let path =
        name.split_once('c').and_then(|(system, path)| Some((system, path.split_once('n')?)));
    path.map_or_else(|| name.to_owned(), |(system, (_, number))| format!("{system}n{number}"))
}

fn names(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn text(directory: &Path, name: &str) -> Option<String> {
    Some(fs::read_to_string(directory.join(name)).ok()?.trim().to_owned())
}

fn hexadecimal(directory: &Path, name: &str) -> Option<u32> {
    u32::from_str_radix(text(directory, name)?.trim_start_matches("0x"), 16).ok()
}

fn link_name(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// `current_link_speed` is "16.0 GT/s" and more words, or "Unknown".
fn link(directory: &Path, which: &str) -> Option<PciLink> {
    let width = text(directory, &format!("{which}_link_width"))?.parse().ok()?;
    let speed = text(directory, &format!("{which}_link_speed"))?;
    let (whole, tenth) =
        speed.split(' ').next()?.split_once('.').unwrap_or((speed.split(' ').next()?, "0"));
    let speed_decigigatransfers =
        whole.parse::<u32>().ok()? * 10 + tenth.get(..1)?.parse::<u32>().ok()?;
    (width > 0).then_some(PciLink { width, speed_decigigatransfers })
}

/// A line for each window: first byte, last byte, flags.
fn bars(resource: &str) -> Vec<ByteCount> {
    let number = |field: &str| u64::from_str_radix(field.trim_start_matches("0x"), 16).ok();
    let size = |line: &str| {
        let mut fields = line.split_ascii_whitespace();
        let (first, last) = (number(fields.next()?)?, number(fields.next()?)?);
        Some(ByteCount(if last > first { last - first + 1 } else { 0 }))
    };
    resource.lines().take(6).filter_map(size).collect()
}
