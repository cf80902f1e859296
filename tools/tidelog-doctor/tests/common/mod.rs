//! The tool as its users run it, and a machine that is not there.
#![allow(dead_code, unreachable_pub)]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use tidelog_tests::machine::Directory;

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
        let disk = machine.device(SSD).join("nvme/nvme0/nvme0n1");
        write_to(&disk.join("dev"), "259:77777");
        write_to(&disk.join("size"), "2048");
        symlink_in(&machine.sysfs().join("class/block/nvme0n1"), &disk);
        for file in ["bus/pci/drivers_probe", "bus/pci/drivers/vfio-pci/bind"] {
            machine.write(file, "");
        }
        machine.write_proc("self/mountinfo", "");
        machine.write_proc("swaps", "Filename Type Size Used Priority\n");
        machine.write_proc("sys/kernel/osrelease", "5.10.0-test\n");
        machine.write_proc("meminfo", "HugePages_Total:      12\nHugePages_Free:        0\n");
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

    pub fn mount(&self, at: &str) {
        let line = format!("29 1 259:77777 / {at} rw,relatime - ext4 /dev/nvme0n1 rw\n");
        self.write_proc("self/mountinfo", &line);
    }

    pub fn sysfs(&self) -> PathBuf {
        self.0.path().join("sys")
    }

    pub fn device(&self, address: &str) -> PathBuf {
        fs::canonicalize(self.sysfs().join("bus/pci/devices").join(address)).unwrap()
    }

    pub fn read(&self, file: &str) -> String {
        fs::read_to_string(self.sysfs().join(file)).unwrap()
    }

    fn write(&self, file: &str, text: &str) {
        write_to(&self.sysfs().join(file), text);
    }

    pub fn write_proc(&self, file: &str, text: &str) {
        write_to(&self.0.path().join("proc").join(file), text);
    }

    pub fn doctor(&self, arguments: &[&str]) -> Ran {
        let mut command = command(arguments);
        command.arg("--sysfs").arg(self.sysfs()).arg("--procfs").arg(self.0.path().join("proc"));
        ran(command)
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
