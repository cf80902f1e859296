//! Place from which a thread moves bytes between a GPU and SSDs on the shortest way.

use std::fmt;

use super::{Distance, Sysfs, distance};

/// A place in the machine for what serves one GPU.
///
/// It is the GPU's NUMA node. With staging memory each byte crosses from its SSD to the memory and
/// from there to the GPU: on the GPU's node at most the first way leads over the link between
/// nodes, on any other the second does for every byte. Without staging memory (cuFile) what the
/// thread exchanges, copies begun and checksums told, it exchanges with the GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuLocality {
    /// The NUMA node.
    pub node: u32,
    /// Distance of each SSD from the GPU; `None` for what is no device of PCI Express, or lies on
    /// several.
    pub distances: Vec<Option<Distance>>,
}

impl GpuLocality {
    /// The place for the GPU at this PCI address and the block devices of these numbers
    /// (`st_rdev`); `None` where the machine does not say on which node the GPU is.
    pub fn of(sysfs: &Sysfs, gpu: &str, devices: &[Option<u64>]) -> Option<Self> {
        let gpu = sysfs.pci_device(gpu)?;
        let ssds = devices.iter().map(|number| sysfs.pci_of_block_number((*number)?));
        let distances = ssds.map(|ssd| Some(distance(&gpu, &ssd?))).collect();
        Some(Self { node: gpu.numa_node?, distances })
    }
}

impl fmt::Display for GpuLocality {
    /// Describes the SSDs, to stand behind what is said of the GPU: the farthest decides how fast
    /// all are.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.distances.iter().flatten().max() {
            Some(farthest) => write!(out, ", its SSDs at {farthest} or nearer"),
            None => Ok(()),
        }
    }
}
