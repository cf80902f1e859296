//! Properties of a GPU that NVML knows and sysfs does not. Its library is opened at run time.

use nvml_wrapper::Nvml;
use nvml_wrapper::error::NvmlError;
use tidelog_engine::units::ByteCount;

/// NVML cannot be asked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("NVML cannot be asked: {0}")]
pub struct NvmlUnavailable(String);

impl From<NvmlError> for NvmlUnavailable {
    fn from(error: NvmlError) -> Self {
        Self(match error {
            NvmlError::LibloadingError(_) => {
                "libnvidia-ml.so is not found (it comes with the driver)".into()
            }
            other => other.to_string(),
        })
    }
}

/// A GPU, as NVML tells of it. What it does not tell is nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NvmlGpu {
    /// Product name.
    pub name: String,
    /// PCI address, as sysfs writes it.
    pub pci_address: String,
    /// The version of the kernel's driver.
    pub driver: Option<String>,
    /// Size of the memory that the PCI bus can see at once.
    pub bar1: Option<ByteCount>,
    /// Part of it that is in use.
    pub bar1_used: Option<ByteCount>,
}

/// The GPUs of this machine.
pub fn gpus() -> Result<Vec<NvmlGpu>, NvmlUnavailable> {
    let nvml = Nvml::init()?;
    let driver = nvml.sys_driver_version().ok();
    let one = |index| -> Result<NvmlGpu, NvmlError> {
        let device = nvml.device_by_index(index)?;
        let bar1 = device.bar1_memory_info().ok();
        Ok(NvmlGpu {
            name: device.name()?,
            pci_address: sysfs_address(&device.pci_info()?.bus_id),
            driver: driver.clone(),
            bar1: bar1.as_ref().map(|bar1| ByteCount(bar1.total)),
            bar1_used: bar1.as_ref().map(|bar1| ByteCount(bar1.used)),
        })
    };
    Ok((0..nvml.device_count()?).map(one).collect::<Result<_, _>>()?)
}

/// NVML writes domains with eight digits, in capitals; sysfs with four or more, in small letters.
fn sysfs_address(bus_id: &str) -> String {
    let address = bus_id.to_ascii_lowercase();
    match address.split_once(':') {
        Some((domain, rest)) if domain.len() == 8 && domain.starts_with("0000") => {
            format!("{}:{rest}", &domain[4..])
        }
        _ => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_written_as_sysfs_does() {
        assert_eq!(sysfs_address("00000000:3B:00.0"), "0000:3b:00.0");
        assert_eq!(sysfs_address("00010000:3B:00.0"), "00010000:3b:00.0");
        assert_eq!(sysfs_address("0000:3b:00.0"), "0000:3b:00.0");
    }

    #[test]
    fn without_a_driver_it_says_what_is_missing() {
        match gpus() {
            Ok(gpus) => assert!(gpus.iter().all(|gpu| !gpu.name.is_empty())),
            Err(why) => assert!(why.to_string().starts_with("NVML cannot be asked: "), "{why}"),
        }
    }
}
