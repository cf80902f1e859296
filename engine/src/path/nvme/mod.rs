//! Parts that all paths share that speak NVMe themselves: commands, what devices say of themselves,
//! and how operations are cut.

mod command;
mod identify;
mod namespace;
pub(super) mod steps;
pub(super) mod wear;

pub(super) use command::{NvmeCommand, Opcode, Range, outcome, retry_delay};
#[cfg(feature = "spdk")]
pub(super) use identify::{BlockCommandFacts, IDENTIFY_BYTES, IDENTIFY_CONTROLLER_BLOCKS};
pub use identify::{ControllerFacts, Formats, LbaFormat, NamespaceFacts};
pub use namespace::{AdminError, Namespace, UnusableNamespace};
