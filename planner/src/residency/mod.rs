//! Residency of storages: a state machine without I/O.
//!
//! [`Residency`] is told what happens (a storage was born, changed, died; an op begins and ends; a
//! transfer completed) and returns [`ResidencyAction`]s to perform, in order. It owns the budget:
//! what storages, transfers on them and staging take together. The same events give the same
//! actions.
//!
//! A storage is in memory, out, or on the way. Out is in the log, or in host memory where the
//! storages are a GPU's and a part of the host's is theirs ([`Config::host_memory`]):
//!
//! ```text
//!             Evict                    Done, Matched: Release
//!  Resident ---------> Evicting ------------------------------> Evicted
//!     ^  ^                |  a reader came, it was cancelled,       |
//!     |  +----------------+  it failed: the memory stays            |
//!     |                                                             |
//!     +-------------------------- Fetching <------------------------+
//!                 Done                 |              Fetch
//!                                      +--> Evicted: cancelled, failed
//! ```
//!
//! With [`Config::recheck`] a copy that was written is checked (another `Evict`) before `Release`.
//!
//! What holds, whatever the order of events:
//! - An op is [`OpProgress::Ready`] only when everything it uses is in memory, up to date, and its
//!   outputs have room. Its storages do not leave before it ends.
//! - Memory is given up only when there is a valid copy, and the copy is forgotten only when it is
//!   out of date, its storage is gone, or host memory is short and its storage in memory.
//! - Copies never take more host memory than there may be. What does not fit goes to the log.
//! - What an op uses that goes on after its end (a collective) stays until that use ends, too: an
//!   op that needs its room waits for it.
//! - [`OpProgress::Waiting`] means that a transfer is in flight whose completion brings it on, or
//!   that an asynchronous use has to end.
//! - An op's own needs come first: a prefetch gets the room that is left, and gives it back.
//!
//! Without a schedule the least recently used storage leaves first. With one, migrations begin when
//! it says; where it is wrong, the storage whose next use is furthest leaves, and from an op that
//! was not planned until the end of that step, the machine is reactive again.

mod follow;
mod host;
mod lookahead;
mod machine;
mod op;
mod pause;
mod query;
mod refusal;
mod room;
mod schedule;
mod schedule_error;
mod stats;
mod step_table;
mod storage;
mod transfer;
mod types;
mod victims;

pub use machine::Residency;
pub use op::{Pending, Suspended};
pub use refusal::{BudgetRefusal, CONTRIBUTORS_MAX, Contributor};
pub use schedule::Schedule;
pub use schedule_error::ScheduleError;
pub use stats::Stats;
pub use step_table::{ScheduledBirth, ScheduledUses, StepParts, StepTable};
pub use types::{
    Attributes, Config, CopyInLog, CopyKind, Desync, EvictError, FailureInfo, FetchUrgency,
    MigrationOutcome, OpBegin, OpProgress, OpUse, ProtocolError, ResidencyAction, StorageId,
    StorageState, TransferFailure, TransferId,
};

#[cfg(test)]
mod tests;
