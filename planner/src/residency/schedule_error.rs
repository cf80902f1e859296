//! Errors of a schedule.

use crate::trace::PlanStorage;
use crate::units::OpIndex;

/// The most ops an iteration may have: one more step must still be countable.
pub(super) const OPS_MAX: u32 = u32::MAX / 2;

/// The reason why there is no such schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// An iteration needs ops.
    #[error("the schedule has no ops")]
    Empty,
    /// The step has more ops than an op index can count.
    #[error("the schedule has {0} ops, more than {max}", max = OPS_MAX)]
    TooManyOps(usize),
    /// Two tables that are per op disagree.
    #[error("{fingerprints} fingerprints, but output sizes of {needs} ops")]
    OpCount {
        /// The length of the one.
        fingerprints: usize,
        /// The length of the other.
        needs: usize,
    },
    /// A storage that has no row in `uses`.
    #[error("{what} names storage {}, but there are {storages}", storage.0)]
    UnknownStorage {
        /// Part that names it.
        what: &'static str,
        /// Storage that is named.
        storage: PlanStorage,
        /// Number of storages.
        storages: usize,
    },
    /// An op beyond the iteration.
    #[error("{what} of storage {} at op {}, but the iteration has {ops} ops", storage.0, op.0)]
    OpOutOfRange {
        /// Part that is out of range.
        what: &'static str,
        /// Storage of the use.
        storage: PlanStorage,
        /// Op of the use.
        op: OpIndex,
        /// Number of ops.
        ops: u32,
    },
    /// Uses that do not ascend.
    #[error("the uses of storage {} do not ascend at op {}", storage.0, op.0)]
    Unsorted {
        /// Storage of the use.
        storage: PlanStorage,
        /// Op of the use.
        op: OpIndex,
    },
    /// An output that is two storages.
    #[error("output {slot} of op {} is two storages", op.0)]
    AmbiguousBirth {
        /// Index of the op.
        op: OpIndex,
        /// Output slot of the op.
        slot: u16,
    },
    /// A name for two storages.
    #[error("{0:?} names two storages")]
    AmbiguousName(String),
}

impl ScheduleError {
    /// Refuses a storage that `what` names where there are fewer `storages`.
    pub(super) fn unless_known(
        what: &'static str,
        storage: PlanStorage,
        storages: usize,
    ) -> Result<(), Self> {
        if (storage.0 as usize) < storages {
            return Ok(());
        }
        Err(Self::UnknownStorage { what, storage, storages })
    }

    /// Refuses an op from `limit` on, in an iteration of `ops` ops.
    pub(super) fn unless_within(
        what: &'static str,
        storage: PlanStorage,
        op: OpIndex,
        (limit, ops): (u32, u32),
    ) -> Result<(), Self> {
        if op.0 < limit { Ok(()) } else { Err(Self::OpOutOfRange { what, storage, op, ops }) }
    }
}
