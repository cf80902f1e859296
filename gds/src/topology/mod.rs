//! Topology of SSDs and GPUs: what the kernel shows of PCI Express, and what NVML adds.
//!
//! The root of sysfs is a field, so that tests can show machines that they do not have.

mod nvml;
mod pci;
mod place;

use std::fmt;

pub use nvml::{NvmlGpu, NvmlUnavailable, gpus as nvml_gpus};
pub use pci::{Acs, PciDevice, PciLink, Sysfs, acs_in, payload_of};
pub use place::GpuLocality;

/// Distance of two devices of PCI Express, nearest first. The short names are those of `nvidia-smi
/// topo`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Distance {
    /// Switch above both, with this many bridges between: what they exchange does not reach the
    /// CPU.
    Switch {
        /// Bridges that are not common to both.
        bridges: u8,
    },
    /// Host bridge above both.
    HostBridge,
    /// NUMA node of different host bridges.
    Node,
    /// System: on different NUMA nodes, or nobody knows.
    System,
}

impl fmt::Display for Distance {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Switch { bridges: ..=2 } => "PIX (one switch)",
            Self::Switch { .. } => "PXB (several switches)",
            Self::HostBridge => "PHB (one host bridge)",
            Self::Node => "NODE (one NUMA node)",
            Self::System => "SYS (different NUMA nodes)",
        })
    }
}

/// Returns the distance of two devices.
pub fn distance(one: &PciDevice, other: &PciDevice) -> Distance {
    let same_root = one.root == other.root;
    let common = one.bridges.iter().zip(&other.bridges).take_while(|(a, b)| a == b).count();
    if same_root && common > 0 {
        let beyond = one.bridges.len() + other.bridges.len() - 2 * common;
        return Distance::Switch { bridges: u8::try_from(beyond).unwrap_or(u8::MAX) };
    }
    match (one.numa_node, other.numa_node) {
        _ if same_root => Distance::HostBridge,
        (Some(a), Some(b)) if a == b => Distance::Node,
        _ => Distance::System,
    }
}

/// Assigns each SSD the GPU that it serves best: the nearest, and of several as near the one with
/// the fewest SSDs. Answers indices into `gpus`; nothing where there is no GPU.
pub fn assign(gpus: &[PciDevice], ssds: &[PciDevice]) -> Vec<Option<usize>> {
    let mut load = vec![0_usize; gpus.len()];
    ssds.iter()
        .map(|ssd| {
            let best =
                (0..gpus.len()).min_by_key(|&gpu| (distance(&gpus[gpu], ssd), load[gpu], gpu))?;
            load[best] += 1;
            Some(best)
        })
        .collect()
}

#[cfg(test)]
mod tests;
