//! Handing an `NVMe` controller from the kernel to user space, and back.
//!
//! Nothing on the device is written, but whoever uses it loses it: so what `tidelog-format` would never overwrite is never
//! handed over.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;

use serde::Serialize;
use tidelog_format::device::{System, Target, program_directories, refusals};
use tidelog_gds::topology::{PciDevice, Sysfs};

use crate::outcome::{Exit, Failure};

/// Which way a device goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Towards {
    /// From the kernel to user space.
    UserSpace,
    /// Back to the kernel.
    Kernel,
}

/// One write to a file of sysfs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Step {
    /// The file.
    pub file: PathBuf,
    /// What is written to it.
    pub text: String,
}

/// The steps that hand a device over, looked at and not yet taken.
#[derive(Debug)]
pub struct Plan {
    /// The controller.
    pub address: String,
    /// In this order.
    pub steps: Vec<Step>,
}

const USER_SPACE: &str = "vfio-pci";

/// What handing `device` over takes.
///
/// # Errors
/// There is no such controller, or something speaks against it.
pub fn plan(
    device: &str,
    towards: Towards,
    sysfs: &Sysfs,
    system: &System,
) -> Result<Plan, Failure> {
    let controller =
        sysfs.pci_device(device).or_else(|| sysfs.pci_of_block(device)).ok_or_else(|| {
            let help = "name a PCI address, as in 0000:3b:00.0, or a namespace, as in nvme0n1";
            Failure::new(Exit::Usage, format!("there is no PCI device {device}"), help)
        })?;
    if !controller.is_nvme() {
        let what = format!(
            "{} is no NVMe controller (class {:06x})",
            controller.address, controller.class
        );
        return Err(Failure::new(Exit::Refused, what, "only NVMe controllers are handed over"));
    }
    check_users(&controller, sysfs, system)?;
    if towards == Towards::UserSpace {
        check_user_space(&controller, sysfs)?;
    }
    Ok(Plan { address: controller.address.clone(), steps: steps(&controller, towards, sysfs) })
}

/// Everybody who uses a namespace of it, through whatever path.
fn check_users(controller: &PciDevice, sysfs: &Sysfs, system: &System) -> Result<(), Failure> {
    for name in sysfs.namespaces(controller) {
        let device = system.named(&name);
        let mut reasons = device.map(|device| system.users(&device)).unwrap_or_default();
        let node = format!("/dev/{name}");
        // Claims and open pools show at the node alone. A machine that a test shows has none.
        if let Ok(target) = Target::resolve(&node, system)
            && target.is_block_device()
        {
            let found = refusals(&target, system, &program_directories()).map_err(|error| {
                Failure::new(
                    Exit::Failed,
                    format!("cannot look at {node}: {error}"),
                    "run it as root",
                )
            })?;
            reasons.extend(found.into_iter().map(|refusal| refusal.reason));
        }
        if let Some(reason) = reasons.iter().find(|reason| !reason.may_be_overridden()) {
            let message = format!("{} is in use: of {name}, {reason}", controller.address);
            return Err(Failure::new(Exit::Refused, message, reason.help(&node)));
        }
    }
    Ok(())
}

fn check_user_space(controller: &PciDevice, sysfs: &Sysfs) -> Result<(), Failure> {
    if !sysfs.0.join("bus/pci/drivers").join(USER_SPACE).exists() {
        return Err(Failure::new(
            Exit::Failed,
            "the kernel has no vfio-pci driver",
            "modprobe vfio-pci",
        ));
    }
    let Some(group) = controller.iommu_group else {
        let help = "turn the IOMMU on (intel_iommu=on or amd_iommu=on), or load vfio with enable_unsafe_noiommu_mode=1";
        return Err(Failure::new(
            Exit::Refused,
            format!("{} has no IOMMU group", controller.address),
            help,
        ));
    };
    let neighbours = sysfs.pci_devices().into_iter().filter(|other| {
        // Bridges are no devices that anybody drives.
        other.iommu_group == Some(group)
            && other.address != controller.address
            && other.class >> 16 != 0x06
    });
    let others: Vec<String> = neighbours
        .filter(|other| other.driver.as_deref().is_some_and(|driver| driver != USER_SPACE))
        .map(|other| other.address)
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    let what =
        format!("{} shares IOMMU group {group} with {}", controller.address, others.join(", "));
    Err(Failure::new(
        Exit::Refused,
        what,
        "the kernel hands over whole groups: move the SSD to another slot",
    ))
}

fn steps(controller: &PciDevice, towards: Towards, sysfs: &Sysfs) -> Vec<Step> {
    let pci = sysfs.0.join("bus/pci");
    let directory = pci.join("devices").join(&controller.address);
    let step = |file: PathBuf, text: &str| Step { file, text: text.to_owned() };
    let wanted = match towards {
        Towards::UserSpace => USER_SPACE,
        // An empty line takes the override back: the kernel chooses by what the device is.
        Towards::Kernel => "\n",
    };
    let there = match towards {
        Towards::UserSpace => controller.driver.as_deref() == Some(USER_SPACE),
        Towards::Kernel => controller.driver.as_deref() == Some("nvme"),
    };
    if there {
        return Vec::new();
    }
    let mut steps = vec![step(directory.join("driver_override"), wanted)];
    if let Some(driver) = &controller.driver {
        steps.push(step(pci.join("drivers").join(driver).join("unbind"), &controller.address));
    }
    steps.push(step(pci.join("drivers_probe"), &controller.address));
    steps
}

/// Takes the steps.
///
/// # Errors
/// The kernel refuses one; those before it stay taken, and the message says which.
pub fn carry_out(plan: &Plan) -> Result<(), Failure> {
    for step in &plan.steps {
        write(step).map_err(|error| {
            let what = format!("cannot write {:?} to {}: {error}", step.text, step.file.display());
            let help = format!(
                "what was done before it stays; tidelog-doctor unbind {} undoes it",
                plan.address
            );
            Failure::new(Exit::Failed, what, help)
        })?;
    }
    Ok(())
}

fn write(step: &Step) -> io::Result<()> {
    // Never makes a file: what is not there is not the kernel's.
    OpenOptions::new().write(true).open(&step.file)?.write_all(step.text.as_bytes())
}
