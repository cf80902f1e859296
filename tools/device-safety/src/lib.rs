//! Identity of a device that the command line names, and whether it may be written.
//!
//! A wrong device is the one mistake that a tool must make impossible to make by accident. Names
//! are resolved to devices first (symbolic links followed, nodes compared by device number). Then
//! everything that speaks against the device is collected: who uses it ([`System`]), and what it
//! holds ([`signatures`], [`signatures_of_partitions`], [`first_byte_set`]). Only what it *holds*
//! may be overridden, by naming the very device twice.
//!
//! [`first_byte_set`]: tidelog_engine::path::device::blank::first_byte_set

mod content;
#[cfg_attr(not(feature = "spdk"), path = "no_controller.rs")]
mod controller;
mod examine;
mod refusal;
mod system;
mod target;

pub use content::{
    Signature, program_directories, signatures, signatures_of_partitions, unfinished_pool,
};
pub use controller::ClaimedController;
pub use examine::{refusals, users_and_names};
pub use refusal::{DeviceRefusal, Reason};
pub use system::{BlockDevice, DeviceNumber, System};
pub use target::{NamedDevice, Scope, TargetKind, same_or_overlapping};
