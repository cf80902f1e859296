//! What can be wrong with a schedule.

use crate::trace::PlanStorage;
use crate::units::OpIndex;

/// The most ops an iteration may have: one more step must still be countable.
pub(super) const OPS_MAX: u32 = u32::MAX / 2;

/// Why there is no such schedule.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScheduleError {
    /// An iteration needs ops.
    #[error("the schedule has no ops")]
    Empty,
    /// More ops than an op index can count.
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
        /// Who names it.
        what: &'static str,
        /// Which.
        storage: PlanStorage,
        /// How many there are.
        storages: usize,
    },
    /// An op beyond the iteration.
    #[error("{what} of storage {} at op {}, but the iteration has {ops} ops", storage.0, op.0)]
    OpOutOfRange {
        /// What is there.
        what: &'static str,
        /// Whose.
        storage: PlanStorage,
        /// Where.
        op: OpIndex,
        /// How many ops there are.
        ops: u32,
    },
    /// Uses that do not ascend.
    #[error("the uses of storage {} do not ascend at op {}", storage.0, op.0)]
    Unsorted {
        /// Whose.
        storage: PlanStorage,
        /// Where.
        op: OpIndex,
    },
    /// An output that is two storages.
    #[error("output {slot} of op {} is two storages", op.0)]
    AmbiguousBirth {
        /// Which op.
        op: OpIndex,
        /// Which output.
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
