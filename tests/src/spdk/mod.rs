//! Rows for the data path spdk by itself, whichever controllers it has: errors and time-outs, peer
//! DMA. And SPDK's own target program, which serves controllers where there are none.

mod beside;
mod path;
pub mod peer;
pub mod target;

use std::time::{Duration, Instant};

use tidelog_engine::path::spdk::{Controller, SpdkPath};
use tidelog_engine::path::{Action, Completion, DataPath, DeviceSpec, Extent, Operation};
use tidelog_engine::units::DeviceIndex;

pub use beside::OF_TWO;
pub use path::{
    ON_EVERY_CONTROLLER, WHERE_COMMANDS_COME_BACK, WHERE_READS_ARE_HELD, WHERE_READS_ARE_SLOW,
};

use crate::conformance::Failure;

/// Time limit of a command in tests: soon enough for a test, late enough for a machine that others
/// use too.
pub const COMMAND_TIMEOUT: Duration = Duration::from_secs(2);

/// One thing that must be so: its name, and what shows it.
pub type Row = (&'static str, fn(&[DeviceSpec]) -> Result<String, Failure>);

/// Transport of a controller, as its name says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reach {
    Bus,
    Connection,
    Process,
}

impl Reach {
    fn of(spec: &DeviceSpec) -> Self {
        match spec.to_string() {
            name if name.contains("trtype:TCP") => Self::Connection,
            name if name.contains("trtype:VFIOUSER") => Self::Process,
            _ => Self::Bus,
        }
    }

    /// Returns whether memory of ours can be registered there: without an IOMMU only what lies on
    /// huge pages, and for another process none, as there is no file behind it that it could map.
    fn takes_memory(self, spec: &DeviceSpec, huge: bool) -> bool {
        match self {
            Self::Connection => true,
            Self::Process => false,
            Self::Bus => huge || is_behind_an_iommu(spec),
        }
    }
}

fn is_behind_an_iommu(spec: &DeviceSpec) -> bool {
    let name = spec.to_string();
    let address = name.trim_start_matches("spdk:");
    let group = format!("/sys/bus/pci/devices/{address}/iommu_group");
    std::path::Path::new(&group).exists()
}

/// A path to these controllers.
///
/// # Errors
/// They cannot be attached, or give no queue.
pub fn path_to(specs: &[DeviceSpec], depth: u32) -> Result<SpdkPath, Failure> {
    let attach = |spec: &DeviceSpec| -> Result<_, Failure> {
        Ok(Controller::attach(&spec.controller().ok_or("it names no controller")?)?)
    };
    let controllers = specs.iter().map(attach).collect::<Result<Vec<_>, _>>()?;
    Ok(SpdkPath::new(controllers, depth)?)
}

/// An operation without a placement handle.
pub fn operation(tag: u64, device: u8, extent: Extent, action: Action) -> Operation {
    Operation::new(tag, DeviceIndex(device), extent, action)
}

/// Waits until `count` operations have come back.
///
/// # Errors
/// They do not.
pub fn collect(path: &mut dyn DataPath, count: usize) -> Result<Vec<Completion>, Failure> {
    let deadline = Instant::now() + 20 * COMMAND_TIMEOUT;
    let mut completions = Vec::new();
    while completions.len() < count {
        if path.poll(&mut completions) == 0 {
            path.wait(Some(Duration::from_millis(100)))?;
        }
        if Instant::now() > deadline {
            return Err(format!("{} of {count} came back", completions.len()).into());
        }
    }
    Ok(completions)
}
