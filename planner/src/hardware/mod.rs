//! What stands in the rack: named drives, `PCIe` links, GPUs that share drives or not. From it follows the
//! [`Machine`] that plans are made for, one GPU's part.
//!
//! A file describes either; both are JSON (`docs/plan.md`). Rates of named drives are those of their data
//! sheets, which no drive holds for long: what was measured (`tidelog-plan calibrate`) goes before.

pub mod calibrate;
mod drive;
mod settle;

use crate::cost::{HostLink, Machine, SsdLink};
use crate::units::{Bandwidth, Bytes, Nanos};
use serde::{Deserialize, Serialize};

pub use drive::{Drive, Drives, MixedRate, known_drives};
pub use settle::{Mix, Planner, SettleError, settle};

/// The way between one GPU and the rest of its machine, which SSDs and host memory share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PcieLink {
    /// Bytes per second towards the GPU.
    pub read: Bandwidth,
    /// Bytes per second away from it.
    pub write: Bandwidth,
}

/// Machines with GPUs and drives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Hardware {
    /// For people.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// GPUs that train at the same time.
    #[serde(default = "one")]
    pub gpus: u32,
    /// The most bytes that tensors and staging take together, on each GPU.
    pub memory: Bytes,
    /// The part of it that the engine's staging buffers take.
    #[serde(default)]
    pub staging: Bytes,
    /// How fast memory is compared with a copy's checksums.
    pub verify: Bandwidth,
    /// The SSDs.
    pub drives: Drives,
    /// Each GPU's link, where it may be the limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pcie: Option<PcieLink>,
    /// Host memory as a second target; its `memory` is for all GPUs together, its rates for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<HostLink>,
}

const fn one() -> u32 {
    1
}

/// What a machine file describes.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineFile {
    /// What plans are made for, as long as reads and writes do not disturb each other.
    pub machine: Machine,
    /// What it follows from; `None` where the file gives the machine itself.
    pub hardware: Option<Hardware>,
}

/// Why a machine file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// Not JSON, or of another shape.
    #[error("not a machine: {0}")]
    Json(#[from] serde_json::Error),
    /// A drive that is not in the list, and not described.
    #[error(
        "drive {model:?} is not known, and the file does not say its {missing}; known are {}",
        known_drives().iter().map(|drive| drive.model.as_str()).collect::<Vec<_>>().join(", ")
    )]
    Drive {
        /// What it is called.
        model: String,
        /// What would have to be said.
        missing: &'static str,
    },
    /// A figure that cannot be.
    #[error("{what} is 0")]
    Zero {
        /// Which.
        what: &'static str,
    },
    /// The SSDs take the whole `PCIe` link.
    #[error(
        "the SSDs' {rate} bytes per second fill the PCIe link, nothing is left for host memory: \
         leave \"host\" out, or lower the drives' rates"
    )]
    LinkFull {
        /// What the SSDs take.
        rate: u64,
    },
}

impl MachineFile {
    /// Reads a file of either kind.
    pub fn from_json(text: &str) -> Result<Self, HardwareError> {
        let value: serde_json::Value = serde_json::from_str(text)?;
        if value.get("drives").is_none() {
            // From the text, so that an error names the line.
            return Ok(Self { machine: serde_json::from_str(text)?, hardware: None });
        }
        let hardware: Hardware = serde_json::from_str(text)?;
        Ok(Self { machine: hardware.machine(Mix::default())?, hardware: Some(hardware) })
    }
}

impl Hardware {
    /// One GPU's part of it, where `mix` says how much of each direction meets the other on the drives.
    ///
    /// The SSDs go before host memory on a `PCIe` link: host memory is given what they leave.
    pub fn machine(&self, mix: Mix) -> Result<Machine, HardwareError> {
        let drive = self.drives.drive()?;
        for (what, figure) in [
            ("the number of GPUs", u64::from(self.gpus)),
            ("the number of drives", u64::from(self.drives.count)),
            ("memory", self.memory.0),
        ] {
            if figure == 0 {
                return Err(HardwareError::Zero { what });
            }
        }
        let (read, write) = drive.rates(mix);
        let sharing = if self.drives.shared { self.gpus } else { 1 };
        let part = |rate: Bandwidth| rate.0 * u64::from(self.drives.count) / u64::from(sharing);
        let limit = |limit: fn(&PcieLink) -> Bandwidth| {
            self.pcie.as_ref().map_or(u64::MAX, |pcie| limit(pcie).0)
        };
        let (read_limit, write_limit) = (limit(|pcie| pcie.read), limit(|pcie| pcie.write));
        let ssd = SsdLink {
            read: Bandwidth(part(read).min(read_limit)),
            write: Bandwidth(part(write).min(write_limit)),
            latency: drive.latency,
        };
        let host = match self.host {
            None => None,
            Some(host) => Some(HostLink {
                read: left(host.read, read_limit, ssd.read)?,
                write: left(host.write, write_limit, ssd.write)?,
                memory: Bytes(host.memory.0 / u64::from(self.gpus)),
                ..host
            }),
        };
        let Self { memory, staging, verify, .. } = *self;
        Ok(Machine { budget: memory, staging, ssd, host, verify })
    }

    /// How many GPUs write to one set of drives.
    pub fn writers(&self) -> u32 {
        if self.drives.shared { self.gpus } else { 1 }
    }
}

/// What the SSDs leave of a link.
fn left(rate: Bandwidth, limit: u64, ssd: Bandwidth) -> Result<Bandwidth, HardwareError> {
    match rate.0.min(limit - ssd.0) {
        0 => Err(HardwareError::LinkFull { rate: ssd.0 }),
        rate => Ok(Bandwidth(rate)),
    }
}

/// What one transfer to a drive is taken to cost beyond its bytes where nobody says.
pub(crate) const LATENCY_DEFAULT: Nanos = Nanos(80_000);

#[cfg(test)]
mod tests;
