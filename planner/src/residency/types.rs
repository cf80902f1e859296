//! The words of the residency machine: what it is told, and what it returns.

use super::refusal::BudgetRefusal;
use crate::migration::{MigrationDirection, Target};
use crate::units::{Bytes, OpIndex};
use std::fmt;

/// A storage: one piece of memory that tensors view. Chosen by the caller, dense (a table is as
/// long as the largest one), and not used for another storage while this one is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StorageId(pub u32);

/// A transfer that the machine asked for. Chosen by the machine, never used twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TransferId(pub u64);

impl fmt::Display for StorageId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "storage {}", self.0)
    }
}

impl fmt::Display for TransferId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "transfer {}", self.0)
    }
}

/// Memory limits, and how eagerly memory is kept free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// All memory: storages, transfers on them, and staging.
    pub budget: Bytes,
    /// The part of the budget that the engine's staging ring takes; storages get the rest.
    pub staging: Bytes,
    /// Memory that is kept free ahead of need while there is no schedule to follow, so that
    /// evictions run while ops compute and outputs of unknown size find room.
    pub headroom: Bytes,
    /// Number of ops ahead for which storages are fetched and room is made, beyond the moves of a
    /// schedule that is followed. 0: nothing but its moves.
    pub lookahead: u32,
    /// The most host memory that copies may take, where storages are a GPU's. 0: all copies go to
    /// the log.
    pub host_memory: Bytes,
    /// True to check written bytes against the memory once more before it is freed: an unreported
    /// write may have changed the storage while it was copied out.
    pub recheck: bool,
}

impl Config {
    /// Headroom of a sixteenth of what storages may take, no lookahead, no host memory, and what is
    /// written is not checked again.
    pub fn new(budget: Bytes, staging: Bytes) -> Self {
        let headroom = Bytes(budget.0.saturating_sub(staging.0) / 16);
        Self { budget, staging, headroom, lookahead: 0, host_memory: Bytes(0), recheck: false }
    }
}

/// Way in which an eviction comes to a valid copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyKind {
    /// The memory is written.
    Write,
    /// Verification of an existing copy: the memory is checked against its checksums, and nothing
    /// is written.
    Verify,
    /// Verification of the copy that was just written.
    Recheck,
}

/// Urgency of a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FetchUrgency {
    /// An op waits for it.
    Urgent,
    /// A later op will use it.
    Ahead,
}

/// Action for the caller, in the order given.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResidencyAction {
    /// Make sure of a valid copy. The memory stays until [`ResidencyAction::Release`].
    Evict {
        /// Storage to evict.
        storage: StorageId,
        /// Transfer that the completion is to name.
        transfer: TransferId,
        /// Write, or check the copy that is there.
        copy: CopyKind,
        /// Tier of the copy.
        target: Target,
    },
    /// Free the memory now: there is a valid copy. Follows an eviction, and a fetch that
    /// failed, was cancelled, or came too late to be wanted.
    Release {
        /// Storage to release.
        storage: StorageId,
    },
    /// Allocate the memory (it counts from now on) and read the copy into it. If that cannot even
    /// begin, the answer is a completion that failed.
    Fetch {
        /// Storage to fetch.
        storage: StorageId,
        /// Transfer that the completion is to name.
        transfer: TransferId,
        /// Urgency of the fetch.
        urgency: FetchUrgency,
        /// Tier of the copy.
        target: Target,
    },
    /// An op waits for this fetch now.
    Expedite {
        /// A fetch that began [`FetchUrgency::Ahead`].
        transfer: TransferId,
    },
    /// Stop as soon as possible. A completion still comes.
    Cancel {
        /// A transfer in flight.
        transfer: TransferId,
    },
    /// The copy is obsolete, makes way in host memory for another, or the storage is gone: delete
    /// it.
    Forget {
        /// Storage of the copy.
        storage: StorageId,
        /// Tier of the copy.
        target: Target,
    },
}

/// One storage that an op uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpUse {
    /// Id of the storage. One that the machine does not know is passed over (and counted).
    pub storage: StorageId,
    /// True if a copy made before the op is out of date after it.
    pub modifies: bool,
}

/// An op that wants to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpBegin<'a> {
    /// The place in the step; `None` outside a step.
    pub index: Option<OpIndex>,
    /// Uses of the op. A storage may stand here more than once.
    pub uses: &'a [OpUse],
    /// Memory for its outputs, as far as known beforehand.
    pub needs: Bytes,
}

/// Progress of a request of the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "an op may only run when it is Ready"]
pub enum OpProgress {
    /// Go on, once the actions are performed.
    Ready,
    /// A transfer in flight must complete first, or an asynchronous use must end: perform the
    /// actions, wait for either, report it, then call `resume`.
    Waiting,
    /// The op cannot run within the budget. Nothing is pending any more.
    Refused(Box<BudgetRefusal>),
    /// A transfer failed. Nothing is pending any more.
    Failed(Box<TransferFailure>),
}

/// End of a transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MigrationOutcome {
    /// A write or a fetch is complete.
    Done,
    /// A write is in its stream: whoever uses the memory next waits for it there. Who performs it
    /// checks it, too, and [`Residency::copy_lost`](super::Residency::copy_lost) follows where the
    /// copy is of no use.
    Enqueued,
    /// A check found the memory equal to the copy.
    Matched,
    /// A check found it different.
    Differs,
    /// Stopped; nothing touches the memory any more. A cancelled write left no copy.
    Cancelled,
    /// The transfer failed; nothing touches the memory any more. A failed write left no copy.
    Failed(FailureInfo),
    /// A fetch did not begin: its memory could not be had, whatever the budget says (what is free
    /// is in pieces, or somebody else's). Others leave, and an op that waits for it asks again.
    NoMemory(FailureInfo),
}

/// Failure in the words of whoever performed the transfer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FailureInfo {
    /// Message for people: device, offset, status.
    pub message: String,
}

/// A transfer that failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{transfer} of {storage} ({bytes}) {} failed: {}{}", match .direction {
    MigrationDirection::Out => "out",
    MigrationDirection::In => "back",
}, .info.message, Also(*.others))]
pub struct TransferFailure {
    /// Storage of the bytes.
    pub storage: StorageId,
    /// Id of the transfer.
    pub transfer: TransferId,
    /// Direction of the transfer.
    pub direction: MigrationDirection,
    /// The storage's size.
    pub bytes: Bytes,
    /// Failure of the transfer.
    pub info: FailureInfo,
    /// Number of transfers that failed besides, since the last report.
    pub others: u32,
}

struct Also(u32);

impl fmt::Display for Also {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == 0 { Ok(()) } else { write!(out, " (and {} more)", self.0) }
    }
}

/// Attributes of a storage at its birth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attributes {
    /// True if the memory can be taken away and given back.
    pub movable: bool,
    /// The op of this step that made it, and which output it is: how a schedule names it.
    pub birth: Option<(OpIndex, u16)>,
}

impl Default for Attributes {
    fn default() -> Self {
        Self { movable: true, birth: None }
    }
}

/// State of a storage's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StorageState {
    /// Bytes in memory.
    Resident {
        /// True if there is a valid copy too.
        clean: bool,
    },
    /// Bytes in memory, and on the way out.
    Evicting,
    /// Out: in the log or in host memory only.
    Evicted,
    /// Bytes out of memory, and on the way back.
    Fetching,
}

/// Copy of a storage's bytes in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CopyInLog {
    /// The copy exists, and the bytes are nowhere else.
    Out,
    /// The copy is valid, as far as anybody has said that they changed; they are in memory, too.
    InMemory,
    /// The copy is absent, and one that is written now is its copy: see
    /// [`Residency::begin_copy`](super::Residency::begin_copy).
    NotYet,
    /// The copy is absent, and cannot be made now.
    Not,
}

/// A message that contradicts what the machine knows. It changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// The storage was never born, or it died.
    #[error("{0} is not known: it was never born, or it died")]
    Unknown(StorageId),
    /// The storage has no memory that could have changed.
    #[error("{0} is not in memory: bring it back by an op that uses it, then change it")]
    NotResident(StorageId),
}

/// The reason why a storage cannot be evicted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EvictError {
    /// The storage was never born, or it died.
    #[error("{0} is not known: it was never born, or it died")]
    Unknown(StorageId),
    /// The memory belongs to somebody else.
    #[error("{0} cannot move: its memory cannot be taken away and given back")]
    Unmovable(StorageId),
    /// An alias of its memory exists.
    #[error("{0} is pinned: something outside sees its memory")]
    Pinned(StorageId),
    /// An op that has ended uses it still.
    #[error("{0} is in use by an operation that is not complete: wait for it first")]
    AsyncUse(StorageId),
    /// The op that runs, or waits to run, uses it.
    #[error("{0} is used by the current op: end the op first")]
    InUse(StorageId),
}

/// The reason why the rest of a step is reactive.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Desync {
    /// The op is another one than expected.
    #[error("op {} is not the one that was planned (fingerprint {found:016x}, planned {expected:016x})", op.0)]
    OtherOp {
        /// Index of the op.
        op: OpIndex,
        /// The schedule's fingerprint.
        expected: u64,
        /// The op's.
        found: u64,
    },
    /// The step goes on where the schedule ends.
    #[error("the step has more than the {planned} ops that were planned")]
    Longer {
        /// The schedule's ops.
        planned: u32,
    },
    /// The step ended before the schedule did.
    #[error("the step ended after {ops} of the {planned} ops that were planned")]
    Shorter {
        /// The ops of the step.
        ops: u32,
        /// The schedule's ops.
        planned: u32,
    },
    /// The schedule was taken away.
    #[error("the plan was dropped: {reason}")]
    Cleared {
        /// Reason in the caller's words.
        reason: String,
    },
}
