//! The tool as its users run it, and a machine that is not there.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::thread::JoinHandle;

use serde_json::Value;
use tidelog_doctor::facts::Roots;
use tidelog_tests::machine::{Directory, LoopDevice, LoopOptions, skip};

pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.out)
            .unwrap_or_else(|_| panic!("no JSON: {}{}", self.out, self.err))
    }
}

pub fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidelog-doctor"));
    command.args(arguments);
    command
}

pub fn ran(mut command: Command) -> Ran {
    let output = command.output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code().unwrap(), out: text(output.stdout), err: text(output.stderr) }
}

pub fn doctor(arguments: &[&str]) -> Ran {
    ran(command(arguments))
}

/// A machine with one SSD, one GPU beside it below a switch, and an Ethernet card.
pub struct Machine(Directory);

pub const SSD: &str = "0000:3e:00.0";
/// The SSD's other controller, if it shares its namespace.
pub const TWIN: &str = "0000:61:00.0";
pub const CARD: &str = "0000:60:00.0";

impl Machine {
    pub fn new(name: &str) -> Self {
        let machine = Self(Directory::new(&format!("doctor-{name}")).unwrap());
        let switch = "pci0000:3a/0000:3a:00.0/0000:3b:00.0";
        machine.add(
            &format!("{switch}/0000:3c:00.0/0000:3d:00.0"),
            "0x030200",
            "0x10de",
            "nvidia",
            1,
        );
        machine.add(&format!("{switch}/0000:3c:01.0/{SSD}"), "0x010802", "0x144d", "nvme", 2);
        machine.add(&format!("pci0000:5f/0000:5f:00.0/{CARD}"), "0x020000", "0x8086", "ixgbe", 3);
        machine.add_disk(&machine.device(SSD).join("nvme/nvme0/nvme0n1"));
        for driver in ["vfio-pci", "uio_pci_generic"] {
            machine.write(&format!("bus/pci/drivers/{driver}/bind"), "");
        }
        machine.write("bus/pci/drivers_probe", "");
        fs::create_dir(machine.root("dev")).unwrap();
        fs::create_dir(machine.root("claims")).unwrap();
        machine.write_proc("self/mountinfo", "");
        machine.write_proc("swaps", "Filename Type Size Used Priority\n");
        machine.write_proc("sys/kernel/osrelease", "5.10.0-test\n");
        machine.write_proc(
            "meminfo",
            "MemTotal: 33554432 kB\nMemAvailable: 25165824 kB\nHugePages_Total: 12\nHugePages_Free: 0\n",
        );
        machine
    }

    fn add(&self, place: &str, class: &str, vendor: &str, driver: &str, group: u32) {
        let directory = self.sysfs().join("devices").join(place);
        let address = place.rsplit('/').next().unwrap();
        let files = [
            ("class", class),
            ("vendor", vendor),
            ("device", "0x1234"),
            ("numa_node", "0"),
            ("driver_override", "(null)\n"),
            ("current_link_width", "2"),
            ("current_link_speed", "16.0 GT/s PCIe"),
            ("max_link_width", "4"),
            ("max_link_speed", "16.0 GT/s PCIe"),
        ];
        for (name, text) in files {
            write_to(&directory.join(name), text);
        }
        symlink_in(&self.sysfs().join("bus/pci/devices").join(address), &directory);
        self.write(&format!("bus/pci/drivers/{driver}/unbind"), "");
        self.set_driver(address, driver);
        self.set_group(address, group);
    }

    fn add_disk(&self, directory: &Path) {
        write_to(&directory.join("dev"), "259:77777");
        write_to(&directory.join("size"), "2048");
        let name = directory.file_name().unwrap();
        symlink_in(&self.sysfs().join("class/block").join(name), directory);
    }

    /// The SSD has no namespace any more.
    pub fn remove_disk(&self) {
        fs::remove_dir_all(self.device(SSD).join("nvme/nvme0/nvme0n1")).unwrap();
        fs::remove_file(self.sysfs().join("class/block/nvme0n1")).unwrap();
    }

    /// The SSD's namespace is what this loop device is, and has a node.
    pub fn disk_is(&self, device: &LoopDevice) {
        let shown = fs::canonicalize(self.sysfs().join("class/block/nvme0n1")).unwrap();
        let of_loop = |file: &str| {
            fs::read_to_string(format!("/sys/class/block/{}/{file}", device.name())).unwrap()
        };
        let number = of_loop("dev");
        write_to(&shown.join("dev"), &number);
        write_to(&shown.join("size"), &of_loop("size"));
        symlink_in(&self.sysfs().join("dev/block").join(number.trim()), &shown);
        self.node_is(device.node());
    }

    pub fn node_is(&self, target: &str) {
        let node = self.root("dev/nvme0n1");
        let _ = fs::remove_file(&node);
        symlink(target, node).unwrap();
    }

    /// Shows an SSD with two controllers and multipath as the kernel does: the namespace beneath
    /// their subsystem, and a hidden path to it beneath each.
    pub fn share_disk(&self) {
        self.remove_disk();
        let twin = format!("pci0000:5f/0000:5f:01.0/{TWIN}");
        self.add(&twin, "0x010802", "0x144d", "nvme", 4);
        let subsystem = self.sysfs().join("devices/virtual/nvme-subsystem/nvme-subsys0");
        write_to(&subsystem.join("subsysnqn"), "nqn\n");
        self.add_disk(&subsystem.join("nvme0n1"));
        for (number, address) in [SSD, TWIN].into_iter().enumerate() {
            let controller = self.device(address).join(format!("nvme/nvme{number}"));
            write_to(&controller.join("transport"), "pcie\n");
            write_to(&controller.join("subsysnqn"), "nqn\n");
            symlink_in(&subsystem.join(format!("nvme{number}")), &controller);
            let path = format!("nvme0c{number}n1");
            write_to(&controller.join(&path).join("size"), "2048");
            symlink_in(&self.sysfs().join("class/block").join(&path), &controller.join(&path));
        }
    }

    /// The kernel does what it is told by one tool: `from` lets the SSD go, and what is written to
    /// `last` has `to` take it, if it does. In between `meanwhile` is called.
    pub fn follow(
        &self,
        from: &str,
        last: &str,
        to: Option<&str>,
        meanwhile: impl FnOnce() + Send + 'static,
    ) -> JoinHandle<()> {
        let pci = self.sysfs().join("bus/pci");
        let unbind = pci.join("drivers").join(from).join("unbind");
        let last = pci.join(last);
        let taken_by = to.map(|driver| pci.join("drivers").join(driver));
        // Whoever writes one of these waits until it is read.
        for file in [&unbind, &last] {
            let _ = fs::remove_file(file);
            assert!(Command::new("mkfifo").arg(file).status().unwrap().success());
        }
        let driver = self.device(SSD).join("driver");
        std::thread::spawn(move || {
            assert_eq!(fs::read_to_string(unbind).unwrap(), SSD);
            fs::remove_file(&driver).unwrap();
            meanwhile();
            assert_eq!(fs::read_to_string(last).unwrap(), SSD);
            if let Some(taken_by) = taken_by {
                symlink(taken_by, driver).unwrap();
            }
        })
    }

    pub fn driver(&self) -> Option<String> {
        let link = fs::read_link(self.device(SSD).join("driver")).ok()?;
        Some(link.file_name().unwrap().to_str().unwrap().to_owned())
    }

    pub fn overridden(&self) -> String {
        fs::read_to_string(self.device(SSD).join("driver_override")).unwrap()
    }

    /// A process has something open.
    pub fn open_in(&self, process: u32, name: &str, node: &str) {
        self.write_proc(&format!("{process}/comm"), &format!("{name}\n"));
        symlink_in(&self.root(&format!("proc/{process}/fd/7")), Path::new(node));
    }

    pub fn set_driver(&self, address: &str, driver: &str) {
        let link = self.device(address).join("driver");
        let _ = fs::remove_file(&link);
        symlink_in(&link, &self.sysfs().join("bus/pci/drivers").join(driver));
    }

    pub fn set_group(&self, address: &str, group: u32) {
        let link = self.device(address).join("iommu_group");
        let _ = fs::remove_file(&link);
        symlink_in(&link, &self.sysfs().join(format!("kernel/iommu_groups/{group}")));
    }

    pub fn turn_iommu_off(&self) {
        fs::remove_file(self.device(SSD).join("iommu_group")).unwrap();
    }

    pub fn mount(&self, at: &str) {
        let line = format!("29 1 259:77777 / {at} rw,relatime - ext4 /dev/nvme0n1 rw\n");
        self.write_proc("self/mountinfo", &line);
    }

    pub fn root(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub fn sysfs(&self) -> PathBuf {
        self.root("sys")
    }

    pub fn device(&self, address: &str) -> PathBuf {
        fs::canonicalize(self.sysfs().join("bus/pci/devices").join(address)).unwrap()
    }

    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.sysfs().join(file)).unwrap()
    }

    pub fn write(&self, file: &str, text: &str) {
        write_to(&self.sysfs().join(file), text);
    }

    pub fn write_bytes(&self, file: &str, bytes: &[u8]) {
        self.write(file, "");
        fs::write(self.sysfs().join(file), bytes).unwrap();
    }

    pub fn write_boot(&self, file: &str, text: &str) {
        write_to(&self.root("boot").join(file), text);
    }

    pub fn write_proc(&self, file: &str, text: &str) {
        write_to(&self.0.path().join("proc").join(file), text);
    }

    pub fn doctor(&self, arguments: &[&str]) -> Ran {
        let mut command = command(arguments);
        self.stands_in_for_this_one(&mut command);
        ran(command)
    }

    /// Has the tool look at this machine.
    pub fn stands_in_for_this_one(&self, command: &mut Command) {
        let trees = [
            ("--sysfs", "sys"),
            ("--procfs", "proc"),
            ("--boot", "boot"),
            ("--udev", "udev"),
            ("--devfs", "dev"),
            ("--claims", "claims"),
        ];
        for (option, name) in trees {
            command.arg(option).arg(self.root(name));
        }
    }

    /// Returns the directories, for the functions that are called.
    pub fn roots(&self) -> Roots {
        let [sysfs, procfs, boot, udev] =
            ["sys", "proc", "boot", "udev"].map(|name| self.root(name));
        Roots { sysfs, procfs, boot, udev }
    }
}

fn write_to(path: &Path, text: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, text).unwrap();
}

fn symlink_in(link: &Path, target: &Path) {
    fs::create_dir_all(link.parent().unwrap()).unwrap();
    symlink(target, link).unwrap();
}

/// A loop device over a sparse file in the machine's directory; `None`, said out loud, where this
/// machine has none to give.
pub fn loop_device(test: &str, machine: &Machine) -> Option<LoopDevice> {
    let file = machine.0.sparse_file("backing", 64 << 20).unwrap();
    LoopDevice::attach(&file, LoopOptions::default()).map_err(|why| skip(test, &why)).ok()
}
