//! Handing an `NVMe` controller from the kernel to user space, and back.
//!
//! Nothing on the device is written, but whoever uses it loses it: so what `tidelog-format` would
//! never overwrite is never handed over, and what a program drives from user space is not taken
//! from it.

mod driver;
mod users;

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use serde::Serialize;
use tidelog_gds::topology::{PciDevice, Sysfs};

pub use driver::DriverChoice;
use tidelog_command_line::DoctorExit;
use tidelog_device_safety::System;
use users::{HeldNamespace, check_user_space, hold};

use crate::outcome::DoctorFailure;

/// Direction in which a device is handed over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BindDirection {
    /// User space, from the kernel, by this driver.
    UserSpace(DriverChoice),
    /// Kernel, from user space.
    Kernel,
}

/// Paths of the system's tables. The paths are fields, so that tests can show machines that they do
/// not have.
#[derive(Clone, Debug)]
pub struct SystemPaths {
    /// The kernel's tables of PCI Express.
    pub sysfs: Sysfs,
    /// The tables of block devices and their users.
    pub system: System,
    /// The nodes: `/dev`.
    pub nodes: PathBuf,
    /// Directory in which SPDK locks a file for each controller that it drives: `/var/tmp`.
    pub claims: PathBuf,
}

/// One write to a file of sysfs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BindStep {
    /// The file.
    pub file: PathBuf,
    /// Text that is written to it.
    pub text: String,
}

/// The steps that hand a device over, looked at and not yet taken. While it lives nobody can mount
/// or otherwise claim a namespace of the controller.
#[derive(Debug)]
pub struct BindPlan {
    /// The controller.
    pub address: String,
    /// Driver of the device in the end.
    pub driver: &'static str,
    /// Steps, in this order; none if it is there already.
    pub steps: Vec<BindStep>,
    /// Notes for the user before they are taken.
    pub notes: Vec<String>,
    /// Namespaces that are held open from a look at their users to the last step: meanwhile
    /// somebody could mount them. The kernel takes a device away from whoever has it open, mounted
    /// or not, without a word: so it must be ours until it is gone. An open file does not keep it.
    held: Vec<HeldNamespace>,
}

const KERNEL: &str = "nvme";
/// A driver takes a device before the kernel has answered the last step, unless its probe is
/// deferred.
const PROBE_SECONDS_MAX: Duration = Duration::from_secs(2);

/// Plans the steps to hand `device` over.
///
/// # Errors
/// There is no such controller, or something speaks against it.
pub fn plan(
    device: &str,
    towards: BindDirection,
    machine: &SystemPaths,
) -> Result<BindPlan, DoctorFailure> {
    let sysfs = &machine.sysfs;
    let controller = controller_named(device, sysfs)?;
    let driver = match towards {
        BindDirection::UserSpace(choice) => choice.driver_for(&controller, sysfs)?,
        BindDirection::Kernel => KERNEL,
    };
    let address = controller.address.clone();
    let mut plan =
        BindPlan { address, driver, steps: Vec::new(), notes: Vec::new(), held: Vec::new() };
    if controller.driver.as_deref() == Some(driver) {
        return Ok(plan);
    }
    for name in sysfs.namespaces(&controller) {
        plan.held.push(hold(&name, &controller, machine)?);
    }
    check_user_space(&controller, machine)?;
    plan.notes.extend(plan.held.iter().flat_map(|held| held.notes.clone()));
    if matches!(towards, BindDirection::UserSpace(_)) {
        driver::check(driver, &controller, sysfs)?;
        plan.notes.extend(driver::unchecked(driver, &controller).map(ToOwned::to_owned));
    }
    plan.steps = steps(&controller, driver, sysfs);
    Ok(plan)
}

/// Finds a controller by its address, or by a namespace that it alone has.
fn controller_named(device: &str, sysfs: &Sysfs) -> Result<PciDevice, DoctorFailure> {
    let mut found = match sysfs.pci_device(device) {
        Some(controller) => vec![controller],
        None => sysfs.pci_of_block(device.strip_prefix("/dev/").unwrap_or(device)),
    };
    let controller = match (found.pop(), found.is_empty()) {
        (Some(controller), true) => controller,
        (None, _) => {
            let help = "name a PCI address, as in 0000:3b:00.0, or a namespace, as in nvme0n1";
            let what = format!("there is no PCI device {device}");
            return Err(DoctorFailure::new(DoctorExit::Usage, what, help));
        }
        (Some(last), false) => {
            let mut addresses: Vec<String> = found.into_iter().map(|it| it.address).collect();
            addresses.push(last.address);
            addresses.sort();
            let what = format!("{device} has several controllers: {}", addresses.join(", "));
            return Err(DoctorFailure::new(
                DoctorExit::Usage,
                what,
                "name one of them; each is bound by itself",
            ));
        }
    };
    if controller.is_nvme() {
        return Ok(controller);
    }
    let what =
        format!("{} is no NVMe controller (class {:06x})", controller.address, controller.class);
    Err(DoctorFailure::new(DoctorExit::Refused, what, "only NVMe controllers can be bound"))
}

fn steps(controller: &PciDevice, driver: &'static str, sysfs: &Sysfs) -> Vec<BindStep> {
    let pci = sysfs.0.join("bus/pci");
    let directory = pci.join("devices").join(&controller.address);
    let step = |file: PathBuf, text: &str| BindStep { file, text: text.to_owned() };
    // The override stays while the device is in user space, so that no other driver is ever tried
    // on it. An empty line takes it back: the kernel chooses by what the device is.
    let wanted = if driver == KERNEL { "\n" } else { driver };
    let mut steps = vec![step(directory.join("driver_override"), wanted)];
    if let Some(has_it) = &controller.driver {
        steps.push(step(pci.join("drivers").join(has_it).join("unbind"), &controller.address));
    }
    // Asked by name a driver says why it does not take a device.
    let last = if driver == KERNEL {
        pci.join("drivers_probe")
    } else {
        pci.join("drivers").join(driver).join("bind")
    };
    steps.push(step(last, &controller.address));
    steps
}

/// Takes the steps.
///
/// # Errors
/// The kernel refuses one, or the driver does not take the device; the steps before stay taken, and
/// the message says so.
pub fn carry_out(plan: &BindPlan, machine: &SystemPaths) -> Result<(), DoctorFailure> {
    let undo =
        format!("earlier steps stay done; tidelog-doctor unbind {} undoes them", plan.address);
    for step in &plan.steps {
        write(step).map_err(|error| {
            let what = format!("cannot write {:?} to {}: {error}", step.text, step.file.display());
            DoctorFailure::new(
                DoctorExit::Failed,
                what,
                format!("{}{undo}", driver::needs(plan.driver)),
            )
        })?;
    }
    let begun = Instant::now();
    let has_it = || machine.sysfs.pci_device(&plan.address).and_then(|device| device.driver);
    while has_it().as_deref() != Some(plan.driver) {
        if begun.elapsed() > PROBE_SECONDS_MAX {
            let what = format!("{} did not take {}", plan.driver, plan.address);
            let why = "the kernel's log (dmesg) says why; ";
            let help = format!("{why}{}{undo}", driver::needs(plan.driver));
            return Err(DoctorFailure::new(DoctorExit::Failed, what, help));
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Ok(())
}

fn write(step: &BindStep) -> io::Result<()> {
    // Never makes a file: what is not there is not the kernel's.
    OpenOptions::new().write(true).open(&step.file)?.write_all(step.text.as_bytes())
}
