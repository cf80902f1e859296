//! Drivers that leave a controller to user space, and their needs.

use clap::ValueEnum;
use tidelog_command_line::DoctorExit;
use tidelog_gds::topology::{PciDevice, Sysfs};

use crate::outcome::DoctorFailure;

/// The driver that is to have a device for user space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum DriverChoice {
    /// Choose vfio-pci behind an IOMMU, else the generic uio driver
    #[default]
    Auto,
    /// Take vfio-pci: only behind an IOMMU, which keeps the device to the memory that it was given
    VfioPci,
    /// Take the generic uio driver, without an IOMMU: the device can then write any memory
    #[value(name = "uio_pci_generic")]
    UioPciGeneric,
}

const VFIO: &str = "vfio-pci";
const UIO: &str = "uio_pci_generic";

impl DriverChoice {
    /// The driver for this controller.
    ///
    /// # Errors
    /// The kernel has not got it.
    pub(super) fn driver_for(
        self,
        controller: &PciDevice,
        sysfs: &Sysfs,
    ) -> Result<&'static str, DoctorFailure> {
        let driver = match (self, controller.driver.as_deref()) {
            (Self::VfioPci, _) | (Self::Auto, Some(VFIO)) => VFIO,
            (Self::UioPciGeneric, _) | (Self::Auto, Some(UIO)) => UIO,
            (Self::Auto, _) if controller.iommu_group.is_some() => VFIO,
            (Self::Auto, _) => UIO,
        };
        if sysfs.0.join("bus/pci/drivers").join(driver).exists() {
            return Ok(driver);
        }
        let mut help = format!("modprobe {driver}");
        if controller.iommu_group.is_none() {
            help += ", or turn the IOMMU on (intel_iommu=on or amd_iommu=on) for vfio-pci";
        }
        Err(DoctorFailure::new(
            DoctorExit::Failed,
            format!("the kernel has no {driver} driver"),
            help,
        ))
    }
}

/// Checks that the controller can be driven through `driver`.
pub(super) fn check(
    driver: &'static str,
    controller: &PciDevice,
    sysfs: &Sysfs,
) -> Result<(), DoctorFailure> {
    let refused =
        |what: String, help: &str| Err(DoctorFailure::new(DoctorExit::Refused, what, help));
    let address = &controller.address;
    match controller.iommu_group {
        None if driver == VFIO => {
            let help = "turn the IOMMU on (intel_iommu=on or amd_iommu=on), or use --driver uio_pci_generic";
            refused(format!("{address} has no IOMMU group"), help)
        }
        Some(group) if driver == VFIO => check_neighbours(controller, group, sysfs),
        Some(group) if translates(group, sysfs) => {
            let what =
                format!("{address} is behind an IOMMU, and {driver} cannot map memory for it");
            refused(what, "use --driver vfio-pci")
        }
        _ => Ok(()),
    }
}

/// Returns a warning for a driver that checks nothing.
pub(super) fn unchecked(driver: &str, controller: &PciDevice) -> Option<&'static str> {
    (driver == UIO && controller.iommu_group.is_none()).then_some(
        "without an IOMMU nothing checks where the device writes: the program that drives it can reach all memory",
    )
}

/// Returns the needs of a driver that a device may not have.
pub(super) fn needs(driver: &str) -> &'static str {
    match driver {
        UIO => {
            "uio_pci_generic needs a device with legacy interrupts (INTx), which functions of SR-IOV lack; "
        }
        VFIO => "",
        _ => "if the kernel has no such driver: modprobe nvme; ",
    }
}

/// Returns whether a device of this group reaches memory by translated addresses only.
fn translates(group: u32, sysfs: &Sysfs) -> bool {
    let kind = sysfs.0.join(format!("kernel/iommu_groups/{group}/type"));
    // Kernels that do not say translate, as a rule.
    std::fs::read_to_string(kind).map_or(true, |kind| kind.trim() != "identity")
}

/// The kernel hands over whole groups: nobody else may drive a device of it.
fn check_neighbours(
    controller: &PciDevice,
    group: u32,
    sysfs: &Sysfs,
) -> Result<(), DoctorFailure> {
    let neighbours = sysfs.pci_devices().into_iter().filter(|other| {
        // Bridges are no devices that anybody drives.
        other.iommu_group == Some(group)
            && other.address != controller.address
            && other.class >> 16 != 0x06
    });
    let others: Vec<String> = neighbours
        .filter(|other| other.driver.as_deref().is_some_and(|driver| driver != VFIO))
        .map(|other| other.address)
        .collect();
    if others.is_empty() {
        return Ok(());
    }
    let what =
        format!("{} shares IOMMU group {group} with {}", controller.address, others.join(", "));
    let help = "a group can only be bound as a whole: move the SSD to another slot";
    Err(DoctorFailure::new(DoctorExit::Refused, what, help))
}
