//! Every GPU: what the kernel shows of it, what NVML adds, and which SSDs serve it best.

use serde::Serialize;
use tidelog_engine::units::ByteCount;
use tidelog_gds::topology::{NvmlGpu, NvmlUnavailable, PciDevice, Sysfs, assign};

use crate::next::Advice;

/// The kernel's driver that CUDA needs.
const DRIVER: &str = "nvidia";

/// A GPU. What neither the kernel nor NVML tells is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct GpuRow {
    /// Address on PCI Express.
    pub pci_address: String,
    /// Product name.
    pub name: Option<String>,
    /// The version of NVIDIA's driver.
    pub driver: Option<String>,
    /// The kernel's driver that has it.
    pub kernel_driver: Option<String>,
    /// The NUMA node.
    pub numa_node: Option<u32>,
    /// The link.
    pub link: Option<String>,
    /// Size of the memory that the PCI bus can see at once.
    pub bar1_bytes: Option<u64>,
    /// Part of that which is in use.
    pub bar1_used_bytes: Option<u64>,
    /// The SSDs that serve it best: each SSD is some GPU's, the nearest one's, and of several as
    /// near the one's that has fewest. A pool for this GPU is best made of these.
    pub ssds: Vec<String>,
    /// Obstacle to using it, and the command to type.
    pub next: String,
}

/// Every GPU among the machine's devices, and those that only NVML shows.
pub fn gpus(
    advice: &Advice,
    sysfs: &Sysfs,
    nvml: &Result<Vec<NvmlGpu>, NvmlUnavailable>,
) -> Vec<GpuRow> {
    let (gpus, others): (Vec<PciDevice>, _) =
        advice.pci.iter().cloned().partition(PciDevice::is_gpu);
    let ssds: Vec<PciDevice> = others.into_iter().filter(PciDevice::is_nvme).collect();
    let best = assign(&gpus, &ssds);
    let mut rows: Vec<GpuRow> = gpus.iter().map(|gpu| of_the_kernel(gpu, advice)).collect();
    for (ssd, gpu) in ssds.iter().zip(best) {
        if let Some(gpu) = gpu {
            rows[gpu].ssds.push(name_of(ssd, sysfs));
        }
    }
    for told in nvml.iter().flatten() {
        add(told, &mut rows);
    }
    rows
}

fn of_the_kernel(gpu: &PciDevice, advice: &Advice) -> GpuRow {
    GpuRow {
        pci_address: gpu.address.clone(),
        kernel_driver: gpu.driver.clone(),
        numa_node: gpu.numa_node,
        link: gpu.link_text(),
        next: match gpu.driver.as_deref() {
            Some(DRIVER) => advice.for_modules(),
            Some(other) => format!("{other} has it: CUDA needs NVIDIA's driver"),
            None => {
                "sudo modprobe nvidia  # no driver has it; install NVIDIA's if there is none".into()
            }
        },
        ..GpuRow::default()
    }
}

/// Returns the name of an SSD: its namespace if it has just one, else its address.
fn name_of(ssd: &PciDevice, sysfs: &Sysfs) -> String {
    let mut names = sysfs.namespaces(ssd);
    match (names.pop(), names.is_empty()) {
        (Some(name), true) => name,
        _ => ssd.address.clone(),
    }
}

/// Adds the row of a GPU, of which the kernel may show less than NVML.
fn add(told: &NvmlGpu, rows: &mut Vec<GpuRow>) {
    let at = rows.iter().position(|row| row.pci_address == told.pci_address).unwrap_or_else(|| {
        rows.push(GpuRow { pci_address: told.pci_address.clone(), ..GpuRow::default() });
        rows.len() - 1
    });
    let row = &mut rows[at];
    row.name = Some(told.name.clone());
    row.driver.clone_from(&told.driver);
    row.bar1_bytes = told.bar1.map(|bytes| bytes.0);
    row.bar1_used_bytes = told.bar1_used.map(|bytes| bytes.0);
}

impl GpuRow {
    /// Returns the row on one line.
    pub fn text(&self) -> String {
        let known = |text: &Option<String>| text.clone().unwrap_or_else(|| "unknown".to_owned());
        let bar1 = self.bar1_bytes.map_or_else(|| "unknown".into(), |it| ByteCount(it).to_string());
        let node = self.numa_node.map_or_else(String::new, |node| format!(", NUMA node {node}"));
        format!(
            "{}, driver {}, link {}, BAR1 {bar1}{node}",
            self.name.as_deref().unwrap_or("a GPU of NVIDIA's"),
            self.driver.clone().unwrap_or_else(|| known(&self.kernel_driver)),
            known(&self.link),
        )
    }

    /// Returns the SSDs to give it, if any.
    pub fn ssds_text(&self) -> Option<String> {
        (!self.ssds.is_empty()).then(|| format!("served best by {}", self.ssds.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_only_nvml_shows_is_a_row_and_what_both_show_is_one() {
        let told = |address: &str| NvmlGpu {
            name: "GPU".into(),
            pci_address: address.into(),
            driver: Some("580.1".into()),
            bar1: Some(ByteCount::mib(256)),
            bar1_used: None,
        };
        let mut rows = vec![GpuRow { pci_address: "0000:01:00.0".into(), ..GpuRow::default() }];
        add(&told("0000:01:00.0"), &mut rows);
        add(&told("0000:02:00.0"), &mut rows);
        assert_eq!(rows.len(), 2);
        assert!(rows.iter().all(|row| row.text().contains("driver 580.1")), "{rows:?}");
        assert!(rows[0].text().contains("BAR1 256 MiB"), "{}", rows[0].text());
    }
}
