//! Looking at a pool without owning a share of it: what stands on its devices, whether all of it is
//! whole, and making copies whole again.
//!
//! [`inspect`] and [`check`] open devices for reading only. Sizes and offsets that a device claims
//! are compared with the device's real size before anything is read by them.

mod check;
mod damage;
mod devices;
mod index;
mod lost;
mod lost_commits;
mod older;
mod overwritten;
mod repair;
mod shares;
mod tensors;
#[cfg(test)]
mod tests;
mod view;
mod wipe;

pub use check::{CheckProgress, CheckReport, check, check_degraded};
pub use damage::{Damage, DamagedTensor, DamagedTensorCopy, Unsettled};
pub use index::{CopyState, IndexCopy, IndexView};
pub use lost::{DropError, DropName, Lost};
pub use lost_commits::{LostShare, accept_lost_commits, lost_commits};
pub use older::{AcceptError, accept_older_copies};
pub use overwritten::{OverwrittenStart, accept_overwritten_start};
pub use repair::{RepairError, RepairReport, repair};
pub use view::{DeviceView, PoolView, ShareView, SuperblockCopyView, inspect, probe, wear};
pub use wipe::{Wiped, wipe};
