//! The tensor log: where a tensor goes, what lives, what a commit changes, and what a crash leaves.
//!
//! Everything here is plain state and bytes; the `pool` room brings it together with devices and
//! threads.

mod change_log;
mod contents;
mod copies;
mod index_room;
mod log_copies;
mod lost;
#[cfg(test)]
pub(crate) mod random;
mod recovered;
mod recovery;
mod space;
mod stripe;
mod version;

pub use change_log::{
    Append, AppendError, ChangeLog, IndexFull, LogEnd, LogMedia, LogPlace, MetaWrite,
};
pub use contents::{ComingSeal, Contents, Reclamation, Relocation, RunGroup, SealRefusal, SealUse};
pub use copies::Unread;
pub use index_room::{CheckpointRoom, IndexRoom, IndexUse};
pub use lost::LostCommits;
pub use recovered::RecoveredIndex;
pub use recovery::{EPOCHS_END, Recovered, RecoveryError, recover, recover_rest};
pub use space::{
    AllocationReach, Durability, Full, Gaps, LANES, Lane, Space, SpaceUse, Victim, Wanted,
};
pub use stripe::{Placement, StripeMap};
pub use version::{
    BeginError, OwnChange, PutRequest, RemoveError, Reservation, ReservationKey, Version,
};
