use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use super::*;
use tidelog_engine::units::ByteCount;

/// A machine of two sockets, as sysfs would show it.
struct Machine(PathBuf);

impl Drop for Machine {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

impl Machine {
    fn new(name: &str) -> Self {
        let root =
            std::env::temp_dir().join(format!("tidelog-sysfs-{}-{name}", std::process::id()));
        fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        fs::create_dir_all(root.join("class/block")).unwrap();
        Self(root)
    }

    fn add(&self, place: &str, class: &str, vendor: &str, node: &str) {
        let directory = self.0.join("devices").join(place);
        fs::create_dir_all(&directory).unwrap();
        let address = place.rsplit('/').next().unwrap();
        for (name, text) in [
            ("class", class),
            ("vendor", vendor),
            ("device", "0x1234"),
            ("numa_node", node),
            ("current_link_width", "4"),
            ("current_link_speed", "8.0 GT/s PCIe"),
            ("max_link_width", "4"),
            ("max_link_speed", "16.0 GT/s PCIe"),
            ("resource", "0x00000000a0000000 0x00000000a0ffffff 0x0\n0x0 0x0 0x0\n"),
        ] {
            fs::write(directory.join(name), text).unwrap();
        }
        symlink(&directory, self.0.join("bus/pci/devices").join(address)).unwrap();
    }

    fn sysfs(&self) -> Sysfs {
        Sysfs(self.0.clone())
    }
}

const GPU: (&str, &str) = ("0x030200", "0x10de");
const SSD: (&str, &str) = ("0x010802", "0x144d");

fn two_sockets() -> Machine {
    let machine = Machine::new(&format!("{:?}", std::thread::current().id()));
    let add = |place, (class, vendor), node| machine.add(place, class, vendor, node);
    // One switch with a GPU and an SSD, another SSD below the same host bridge.
    add("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:00.0/0000:3d:00.0", GPU, "0");
    add("pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0", SSD, "0");
    add("pci0000:3a/0000:3a:02.0/0000:40:00.0", SSD, "0");
    // Another host bridge of the same socket, and the other socket.
    add("pci0000:50/0000:50:00.0/0000:51:00.0", SSD, "0");
    add("pci0000:80/0000:80:00.0/0000:81:00.0", GPU, "1");
    add("pci0000:80/0000:80:02.0/0000:82:00.0", SSD, "1");
    machine
}

#[test]
fn distances_are_told_by_the_bridges_between() {
    let machine = two_sockets();
    let sysfs = machine.sysfs();
    let at = |address: &str| sysfs.pci_device(address).unwrap();
    let gpu = at("0000:3d:00.0");
    assert!(gpu.is_gpu() && at("0000:3e:00.0").is_nvme());
    let distances = ["0000:3e:00.0", "0000:40:00.0", "0000:51:00.0", "0000:82:00.0"]
        .map(|address| distance(&gpu, &at(address)));
    let expected =
        [Distance::Switch { bridges: 2 }, Distance::HostBridge, Distance::Node, Distance::System];
    assert_eq!(distances, expected);
    assert!(expected.is_sorted(), "nearest first");
    assert_eq!(distance(&gpu, &at("0000:3e:00.0")).to_string(), "PIX (one switch)");
}

#[test]
fn each_ssd_serves_its_nearest_gpu() {
    let machine = two_sockets();
    let devices = machine.sysfs().pci_devices();
    let (gpus, ssds): (Vec<_>, Vec<_>) = devices.into_iter().partition(PciDevice::is_gpu);
    assert_eq!(assign(&gpus, &ssds), [Some(0), Some(0), Some(0), Some(1)]);
    assert_eq!(assign(&[], &ssds), [None; 4]);
    // Two GPUs as near as each other share.
    let twins = vec![gpus[0].clone(), gpus[0].clone()];
    assert_eq!(assign(&twins, &ssds[..2]), [Some(0), Some(1)]);
}

#[test]
fn links_drivers_and_windows_are_read() {
    let machine = two_sockets();
    let ssd = machine.sysfs().pci_device("0000:40:00.0").unwrap();
    assert_eq!(ssd.link.unwrap().to_string(), "x4 at 8.0 GT/s");
    assert_eq!(ssd.link.unwrap().bytes_per_second(), 3_938_461_538);
    assert!(ssd.is_degraded());
    assert_eq!(ssd.bars, [ByteCount::mib(16), ByteCount::ZERO]);
    assert_eq!((ssd.driver, ssd.numa_node, ssd.iommu_group), (None, Some(0), None));
    let slow = PciLink { width: 1, speed_decigigatransfers: 25 };
    assert_eq!(slow.bytes_per_second(), 250_000_000);
    assert_eq!(machine.sysfs().pci_device("../../etc"), None);
}

#[test]
fn the_narrowest_link_on_the_way_to_the_host_decides() {
    let machine = two_sockets();
    let sysfs = machine.sysfs();
    let gpu = sysfs.pci_device("0000:3d:00.0").unwrap();
    let own = gpu.link_max.unwrap().bytes_per_second();
    assert_eq!(
        (sysfs.bandwidth_to_host(&[&gpu]), own),
        (Some(own), 7_876_923_076),
        "as it could run"
    );
    for (bridge, width, expected) in [("0000:3b:00.0", "16", own), ("0000:3a:00.0", "1", own / 4)] {
        let place = gpu.bridges.iter().position(|address| address == bridge).unwrap();
        let place = format!("pci0000:3a/{}", gpu.bridges[..=place].join("/"));
        machine.add(&place, "0x060400", "0x8086", "0");
        fs::write(machine.0.join("devices").join(place).join("max_link_width"), width).unwrap();
        assert_eq!(sysfs.bandwidth_to_host(&[&gpu]), Some(expected), "{bridge} is x{width}");
    }
}

#[test]
fn ssds_share_the_links_above_them_and_no_others() {
    let machine = two_sockets();
    let sysfs = machine.sysfs();
    let at = |address: &str| sysfs.pci_device(address).unwrap();
    let (below, beside, other) = (at("0000:3e:00.0"), at("0000:40:00.0"), at("0000:51:00.0"));
    let own = below.link.unwrap().bytes_per_second();
    assert_eq!(own, 3_938_461_538, "as an SSD's link runs, not as it could");
    assert_eq!(sysfs.bandwidth_to_host(&[&below, &beside, &other]), Some(3 * own));
    assert_eq!(sysfs.bandwidth_to_host(&[&below, &below]), Some(own), "one device");
    // A second SSD in the switch, whose way up has two lanes of the older kind: as much as one
    // SSD's link.
    machine.add(
        "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:02.0/0000:3f:00.0",
        SSD.0,
        SSD.1,
        "0",
    );
    let twin = at("0000:3f:00.0");
    assert_eq!(sysfs.bandwidth_to_host(&[&below, &twin]), Some(2 * own), "no bound is told");
    machine.add("pci0000:3a/0000:3a:00.0/0000:3b:00.0", "0x060400", "0x8086", "0");
    let upstream = machine.0.join("devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0");
    fs::write(upstream.join("max_link_speed"), "8.0 GT/s PCIe").unwrap();
    assert_eq!(sysfs.bandwidth_to_host(&[&below, &twin]), Some(own), "by the link above both");
    assert_eq!(sysfs.bandwidth_to_host(&[&twin, &beside, &below]), Some(2 * own));
    assert_eq!(payload_of(own), own / 280 * 256);
}

#[test]
fn what_no_table_bounds_is_not_told() {
    let machine = two_sockets();
    let sysfs = machine.sysfs();
    let place = machine.0.join("devices/pci0000:3a/0000:3a:02.0/0000:40:00.0");
    for which in ["current", "max"] {
        fs::write(place.join(format!("{which}_link_speed")), "Unknown").unwrap();
    }
    let (silent, told) = (sysfs.pci_device("0000:40:00.0"), sysfs.pci_device("0000:51:00.0"));
    let (silent, told) = (silent.unwrap(), told.unwrap());
    assert_eq!(sysfs.bandwidth_to_host(&[&silent]), None);
    assert_eq!(sysfs.bandwidth_to_host(&[&silent, &told]), None, "one of them may do anything");
    assert_eq!(sysfs.bandwidth_to_host(&[]), Some(0));
}

#[test]
fn a_namespace_leads_to_its_controller() {
    let machine = two_sockets();
    let namespace =
        machine.0.join("devices/pci0000:3a/0000:3a:02.0/0000:40:00.0/nvme/nvme0/nvme0n1");
    fs::create_dir_all(namespace.join("nvme0n1p1")).unwrap();
    fs::write(namespace.join("nvme0n1p1/partition"), "1").unwrap();
    symlink(&namespace, machine.0.join("class/block/nvme0n1")).unwrap();
    symlink(namespace.join("nvme0n1p1"), machine.0.join("class/block/nvme0n1p1")).unwrap();
    let sysfs = machine.sysfs();
    let [controller] = sysfs.pci_of_block("nvme0n1p1").try_into().unwrap();
    assert_eq!(controller.address, "0000:40:00.0");
    assert_eq!(sysfs.namespaces(&controller), ["nvme0n1"]);
}

/// Checks a namespace with multipath: the kernel shows a namespace beneath its subsystem, and
/// beneath each controller a hidden path to it.
#[test]
fn a_namespace_that_controllers_share_leads_to_all_of_them() {
    let machine = two_sockets();
    let make = |place: &str| {
        let directory = machine.0.join("devices").join(place);
        fs::create_dir_all(&directory).unwrap();
        directory
    };
    let block = |directory: PathBuf| {
        let name = directory.file_name().unwrap().to_owned();
        symlink(&directory, machine.0.join("class/block").join(name)).unwrap();
    };
    let subsystem = make("virtual/nvme-subsystem/nvme-subsys0");
    fs::write(subsystem.join("subsysnqn"), "nqn\n").unwrap();
    block(make("virtual/nvme-subsystem/nvme-subsys0/nvme0n1"));
    block(make("virtual/nvme-subsystem/nvme-subsys0/nvme0n1/nvme0n1p1"));
    fs::write(subsystem.join("nvme0n1/nvme0n1p1/partition"), "1").unwrap();
    let places = [
        "pci0000:3a/0000:3a:02.0/0000:40:00.0/nvme/nvme0",
        "pci0000:50/0000:50:00.0/0000:51:00.0/nvme/nvme1",
    ];
    for (number, place) in places.into_iter().enumerate() {
        let controller = make(place);
        fs::write(controller.join("transport"), "pcie\n").unwrap();
        fs::write(controller.join("subsysnqn"), "nqn\n").unwrap();
        symlink(&controller, subsystem.join(format!("nvme{number}"))).unwrap();
        block(make(&format!("{place}/nvme0c{number}n1")));
    }
    // The second controller alone has one more, which the kernel does not show yet.
    block(make(&format!("{}/nvme0c1n12", places[1])));
    fs::create_dir_all(machine.0.join("dev/block")).unwrap();
    symlink(subsystem.join("nvme0n1"), machine.0.join("dev/block/259:3")).unwrap();

    let sysfs = machine.sysfs();
    for name in ["nvme0n1", "nvme0n1p1"] {
        let mut found: Vec<_> =
            sysfs.pci_of_block(name).into_iter().map(|pci| pci.address).collect();
        found.sort();
        assert_eq!(found, ["0000:40:00.0", "0000:51:00.0"], "{name}");
    }
    let namespaces = |address| sysfs.namespaces(&sysfs.pci_device(address).unwrap());
    assert_eq!(namespaces("0000:40:00.0"), ["nvme0n1"]);
    assert_eq!(namespaces("0000:51:00.0"), ["nvme0n1", "nvme0n12"]);
    assert_eq!(sysfs.pci_of_block_number(libc::makedev(259, 3)), None, "it lies on several");
    fs::remove_file(subsystem.join("nvme1")).unwrap();
    let alone = sysfs.pci_of_block_number(libc::makedev(259, 3)).unwrap();
    assert_eq!(alone.address, "0000:40:00.0");
}

#[test]
fn a_gpu_is_served_from_its_own_node_wherever_the_ssds_are() {
    let machine = two_sockets();
    // As the kernel links them: by number, a partition below its disk, a loop device below nothing.
    let blocks = [
        (
            "259:0",
            "pci0000:3a/0000:3a:00.0/0000:3b:00.0/0000:3c:01.0/0000:3e:00.0/nvme/nvme0/nvme0n1",
        ),
        ("259:1", "pci0000:80/0000:80:02.0/0000:82:00.0/nvme/nvme1/nvme1n1/nvme1n1p1"),
        ("7:0", "virtual/block/loop0"),
    ];
    fs::create_dir_all(machine.0.join("dev/block")).unwrap();
    for (number, place) in blocks {
        let directory = machine.0.join("devices").join(place);
        fs::create_dir_all(&directory).unwrap();
        symlink(directory, machine.0.join("dev/block").join(number)).unwrap();
    }
    let sysfs = machine.sysfs();
    let [near, far, virtual_one] =
        [(259, 0), (259, 1), (7, 0)].map(|(a, b)| Some(libc::makedev(a, b)));
    let switch = Some(Distance::Switch { bridges: 2 });
    for (gpu, devices, expected) in [
        ("0000:3d:00.0", vec![near], GpuLocality { node: 0, distances: vec![switch] }),
        (
            "0000:3d:00.0",
            vec![far, far],
            GpuLocality { node: 0, distances: vec![Some(Distance::System); 2] },
        ),
        (
            "0000:81:00.0",
            vec![near, far],
            GpuLocality {
                node: 1,
                distances: vec![Some(Distance::System), Some(Distance::HostBridge)],
            },
        ),
        (
            "0000:81:00.0",
            vec![virtual_one, None],
            GpuLocality { node: 1, distances: vec![None, None] },
        ),
    ] {
        assert_eq!(GpuLocality::of(&sysfs, gpu, &devices), Some(expected), "{gpu}");
    }
    let said = GpuLocality::of(&sysfs, "0000:3d:00.0", &[near, far]).unwrap().to_string();
    assert_eq!(said, ", its SSDs at SYS (different NUMA nodes) or nearer");
    assert_eq!(GpuLocality::of(&sysfs, "0000:3d:00.0", &[virtual_one]).unwrap().to_string(), "");
    assert_eq!(GpuLocality::of(&sysfs, "0000:99:00.0", &[near]), None, "there is no such GPU");
    // Virtual machines do not tell.
    let node = machine.0.join("bus/pci/devices/0000:3d:00.0/numa_node");
    fs::write(node, "-1").unwrap();
    assert_eq!(GpuLocality::of(&sysfs, "0000:3d:00.0", &[near]), None);
}

#[test]
fn access_control_is_read_from_the_configuration_space() {
    let space = |control: u16| {
        let mut config = vec![0_u8; 4096];
        // An error reporting capability that leads to access control at 0x148.
        config[0x100..0x104].copy_from_slice(&(0x0001_u32 | 0x148 << 20).to_le_bytes());
        config[0x148..0x14c].copy_from_slice(&0x000d_u32.to_le_bytes());
        config[0x14e..0x150].copy_from_slice(&control.to_le_bytes());
        config
    };
    assert_eq!(acs_in(&space(0x1d)), Acs::Redirects);
    assert_eq!(acs_in(&space(0x01)), Acs::Off);
    assert_eq!(acs_in(&vec![0; 4096]), Acs::Absent);
    assert_eq!(acs_in(&[0; 64]), Acs::Unreadable);
    let mut circle = space(0);
    circle[0x148..0x14c].copy_from_slice(&(0x0001_u32 | 0x100 << 20).to_le_bytes());
    assert_eq!(acs_in(&circle), Acs::Absent, "a chain that leads back to itself ends");
}
