//! Hardware of a machine: named drives, `PCIe` links, GPUs that share drives or not. From it
//! follows the [`Machine`] that plans are made for, one GPU's part.
//!
//! A file describes either; both are JSON (`docs/plan.md`). Rates of named drives are those of
//! their data sheets, which no drive holds for long: what was measured (`tidelog-plan calibrate`)
//! goes before.

pub mod calibrate;
mod drive;
mod settle;

use crate::cost::check::{self, within};
use crate::cost::{HostLink, Machine, MachineError, SsdLink};
use crate::units::{Bandwidth, Bytes, Nanos};
use serde::{Deserialize, Serialize};

pub use drive::{Drive, Drives, MixedRate, known_drives};
pub use settle::{Mix, Planner, SettleError, rounds_at_most, settle};

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
    /// Name, for people.
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
    /// Rate at which memory is compared with a copy's checksums.
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

/// Description of a machine in a file.
#[derive(Clone, Debug, PartialEq)]
pub struct MachineFile {
    /// Machine for plans, as long as reads and writes do not disturb each other.
    pub machine: Machine,
    /// Hardware from which it follows; `None` where the file gives the machine itself.
    pub hardware: Option<Hardware>,
}

/// The reason why a machine file is of no use.
#[derive(Debug, thiserror::Error)]
pub enum HardwareError {
    /// The file is not JSON, or of another shape.
    #[error("not a machine: {}{}", in_field(path), in_words(source))]
    Json {
        /// The field, as `ssd.read`; `.` where the file is none at all.
        path: String,
        /// Error of the parser.
        source: serde_json::Error,
    },
    /// A drive that is not in the list, and not described.
    #[error(
        "drives.model: {model:?} is not a drive that is known{}, and the file does not give its drives.{missing}; \
         give both drives.read and drives.write in bytes per second, or one of: {}",
        nearest_drive(model),
        known_drives().iter().map(|drive| drive.model.as_str()).collect::<Vec<_>>().join(", ")
    )]
    Drive {
        /// Model name.
        model: String,
        /// Figure that is missing.
        missing: &'static str,
    },
    /// A figure that cannot be.
    #[error(transparent)]
    Figure(#[from] MachineError),
    /// A rating of drives that cannot be.
    #[error("{what} is {value}: a rating is a number above 0 and no more than a million")]
    Rating {
        /// Name of the figure.
        what: &'static str,
        /// The figure.
        value: f64,
    },
    /// The SSDs take the whole `PCIe` link.
    #[error(
        "the SSDs' {rate} bytes per second fill the PCIe link, nothing is left for host memory: \
         leave \"host\" out, or lower the drives' rates"
    )]
    LinkFull {
        /// Rate of the SSDs.
        rate: u64,
    },
}

impl MachineFile {
    /// Reads a file of either kind.
    pub fn from_json(text: &str) -> Result<Self, HardwareError> {
        let value: serde_json::Value = read(text)?;
        if value.get("drives").is_none() {
            // From the text, so that an error names the line.
            let machine: Machine = read(text)?;
            machine.check()?;
            return Ok(Self { machine, hardware: None });
        }
        let hardware: Hardware = read(text)?;
        Ok(Self { machine: hardware.machine(Mix::default())?, hardware: Some(hardware) })
    }
}

impl Hardware {
    /// One GPU's part of it, where `mix` says how much of each direction meets the other on the
    /// drives.
    ///
    /// The SSDs go before host memory on a `PCIe` link: host memory is given what they leave.
    pub fn machine(&self, mix: Mix) -> Result<Machine, HardwareError> {
        self.check()?;
        let drive = self.drives.drive()?;
        let (read, write) = drive.rates(mix);
        let sharing = if self.drives.shared { self.gpus } else { 1 };
        let part = |rate: Bandwidth| {
            let all = u128::from(rate.0) * u128::from(self.drives.count);
            u64::try_from(all / u128::from(sharing)).unwrap_or(u64::MAX)
        };
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
        let machine = Machine { budget: memory, staging, ssd, host, verify };
        machine.check()?;
        Ok(machine)
    }

    /// Checks that the file's own figures are possible, by the names that it has there. The drives
    /// look at theirs.
    fn check(&self) -> Result<(), HardwareError> {
        const COUNT_MOST: u64 = 1_000_000;
        within("gpus", u64::from(self.gpus), COUNT_MOST, "GPUs")?;
        within("drives.count", u64::from(self.drives.count), COUNT_MOST, "drives")?;
        check::memory("memory", self.memory)?;
        check::rate("verify", self.verify)?;
        for (what, link) in [("pcie", self.pcie), ("host", self.host.map(PcieLink::from))] {
            let Some(link) = link else { continue };
            check::rate(&format!("{what}.read"), link.read)?;
            check::rate(&format!("{what}.write"), link.write)?;
        }
        if let Some(host) = &self.host {
            check::latency("host.latency_ns", host.latency)?;
        }
        Ok(())
    }

    /// Returns the number of GPUs that write to one set of drives.
    pub fn writers(&self) -> u32 {
        if self.drives.shared { self.gpus } else { 1 }
    }
}

impl From<HostLink> for PcieLink {
    fn from(HostLink { read, write, .. }: HostLink) -> Self {
        Self { read, write }
    }
}

/// Reads JSON; an error says which field it is about.
fn read<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, HardwareError> {
    let mut from = serde_json::Deserializer::from_str(text);
    let value: T = serde_path_to_error::deserialize(&mut from).map_err(|error| {
        let path = error.path().to_string();
        HardwareError::Json { path, source: error.into_inner() }
    })?;
    from.end().map_err(|source| HardwareError::Json { path: ".".to_owned(), source })?;
    Ok(value)
}

fn in_field(path: &str) -> String {
    if path == "." { String::new() } else { format!("{path}: ") }
}

/// Rewords an error: what a file can hold, not what this program stores it in.
fn in_words(error: &serde_json::Error) -> String {
    const WHOLE: &str = "expected a whole number that is not negative";
    error.to_string().replace("expected u64", WHOLE).replace("expected u32", WHOLE)
}

/// The known drive that is called most like this, as a question.
fn nearest_drive(model: &str) -> String {
    let likeness =
        |drive: &Drive| strsim::jaro_winkler(&drive.model.to_lowercase(), &model.to_lowercase());
    let drives = known_drives();
    let nearest = drives.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)));
    nearest
        .filter(|drive| likeness(drive) > 0.8)
        .map_or_else(String::new, |drive| format!(" (did you mean {:?}?)", drive.model))
}

/// Returns the rate of a link that the SSDs leave.
fn left(rate: Bandwidth, limit: u64, ssd: Bandwidth) -> Result<Bandwidth, HardwareError> {
    match rate.0.min(limit - ssd.0) {
        0 => Err(HardwareError::LinkFull { rate: ssd.0 }),
        rate => Ok(Bandwidth(rate)),
    }
}

/// Time of one transfer to a drive beyond its bytes, where no file gives it.
pub(crate) const LATENCY_DEFAULT: Nanos = Nanos(80_000);

#[cfg(test)]
mod tests;
