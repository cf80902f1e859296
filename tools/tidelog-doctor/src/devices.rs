//! Every NVMe SSD: what the kernel shows of it, who uses it, and how far each GPU is. Nothing is
//! written.

use std::path::{Path, PathBuf};

use serde::Serialize;
use tidelog_device_safety::{NamedDevice, users_and_names};
use tidelog_gds::topology::{Acs, Distance, PciDevice, Sysfs, distance};

use crate::bind::{BindDirection, DriverChoice, SystemPaths, plan};
use crate::wear::{SsdWear, wear_of};

/// A device, what it is, and why paths to it may not be open: found without writing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DeviceRow {
    /// Name such as `nvme0n1`, or a PCI address where the kernel has no namespace of it.
    pub name: String,
    /// Address on PCI Express.
    pub pci_address: Option<String>,
    /// Driver of the device.
    pub driver: Option<String>,
    /// The NUMA node.
    pub numa_node: Option<u32>,
    /// The link.
    pub link: Option<String>,
    /// Users of the device: what would have to end before a pool is made on it.
    pub users: Vec<String>,
    /// Distance of each GPU.
    pub gpus: Vec<String>,
    /// Wear as the device reports it.
    pub wear: Option<SsdWear>,
    /// The reason why it does not.
    pub wear_why_not: Option<String>,
    /// True if `tidelog-doctor bind` would take its controller.
    pub may_be_bound: bool,
    /// Obstacle to the next better path, and the command to type.
    pub next: String,
}

impl DeviceRow {
    /// Returns whether a driver has it that leaves it to programs in user space.
    pub fn is_in_user_space(&self) -> bool {
        matches!(self.driver.as_deref(), Some("vfio-pci" | "uio_pci_generic"))
    }
}

/// Every `NVMe` controller of the machine's devices, and its namespaces.
pub fn devices(all: &[PciDevice], machine: &SystemPaths, programs: &[PathBuf]) -> Vec<DeviceRow> {
    let SystemPaths { sysfs, system, .. } = machine;
    let gpus: Vec<&PciDevice> = all.iter().filter(|device| device.is_gpu()).collect();
    let mut rows = Vec::new();
    for controller in all.iter().filter(|device| device.is_nvme()) {
        let namespaces = sysfs.namespaces(controller);
        // As `bind` does without --yes: it looks, claims the namespaces for a moment, and writes
        // nothing.
        let towards = BindDirection::UserSpace(DriverChoice::Auto);
        let may_be_bound = plan(&controller.address, towards, machine).is_ok();
        if namespaces.is_empty() {
            let mut row = device_row(sysfs, controller, &gpus, controller.address.clone());
            row.may_be_bound = may_be_bound;
            row.next = next_for(&row, controller, false);
            rows.push(row);
        }
        for name in namespaces {
            let mut row = device_row(sysfs, controller, &gpus, name.clone());
            let users = system.named(&name).map(|device| system.users(&device)).unwrap_or_default();
            row.users = users.iter().map(ToString::to_string).collect();
            match wear_of(&Path::new("/dev").join(&name), programs) {
                Ok(wear) => (row.wear, row.wear_why_not) = (Some(wear), None),
                Err(why) => row.wear_why_not = Some(why),
            }
            row.may_be_bound = may_be_bound;
            let node = machine.nodes.join(&name);
            let target = NamedDevice::resolve(&node.to_string_lossy(), system);
            let may_be_formatted = target.is_ok_and(|target| {
                let reasons = users_and_names(&target, system, programs);
                target.is_block_device() && reasons.is_ok_and(|reasons| reasons.is_empty())
            });
            row.next = next_for(&row, controller, may_be_formatted);
            rows.push(row);
        }
    }
    rows
}

fn device_row(
    sysfs: &Sysfs,
    controller: &PciDevice,
    gpus: &[&PciDevice],
    name: String,
) -> DeviceRow {
    let near = |gpu: &&PciDevice| {
        let far = distance(gpu, controller);
        let redirects = matches!(far, Distance::Switch { .. })
            && controller.bridges.iter().any(|bridge| sysfs.acs(bridge) == Acs::Redirects);
        let acs = if redirects { ", but ACS sends peer traffic up to the CPU" } else { "" };
        format!("{}: {far}{acs}", gpu.address)
    };
    DeviceRow {
        name,
        pci_address: Some(controller.address.clone()),
        driver: controller.driver.clone(),
        numa_node: controller.numa_node,
        link: controller.link_text(),
        users: Vec::new(),
        gpus: gpus.iter().map(near).collect(),
        wear: None,
        wear_why_not: Some("the kernel has no namespace of it".into()),
        may_be_bound: false,
        next: String::new(),
    }
}

fn next_for(row: &DeviceRow, controller: &PciDevice, may_be_formatted: bool) -> String {
    match row.driver.as_deref() {
        Some(_) if row.is_in_user_space() => {
            format!(
                "in user space; back to the kernel: tidelog-doctor unbind {} --yes",
                controller.address
            )
        }
        Some(_) if !row.users.is_empty() => "in use: only its users' files can be a pool".into(),
        Some(_) => {
            let format = format!("tidelog-format format /dev/{} for uring", row.name);
            let bind = format!("tidelog-doctor bind {} for SPDK", controller.address);
            let taken = [(may_be_formatted, format), (row.may_be_bound, bind)];
            let taken: Vec<String> =
                taken.into_iter().filter(|(taken, _)| *taken).map(|(_, command)| command).collect();
            if taken.is_empty() {
                // What it holds and who uses it is for those to say who refuse it.
                format!(
                    "can be neither formatted nor bound as it is; to see why: tidelog-format format /dev/{}; tidelog-doctor bind {}",
                    row.name, controller.address
                )
            } else {
                taken.join("; ")
            }
        }
        None => format!("no driver has it: tidelog-doctor unbind {} --yes", controller.address),
    }
}
