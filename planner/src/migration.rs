//! Terms of a migration, common to plans, the residency machine, the simulator and the report.

use crate::trace::PlanStorage;
use crate::units::{Bytes, Nanos, OpIndex};
use serde::{Deserialize, Serialize};

/// Destination of evicted bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// The pool of SSDs.
    Ssd,
    /// Host memory.
    Host,
}

/// Direction of a migration. A plan file names it by what the row does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum MigrationDirection {
    /// Eviction, out of memory. The memory is free once a valid copy is complete; it stays where a
    /// row says so.
    #[serde(rename = "evict")]
    Out,
    /// Fetch, or a prefetch where a plan begins it. The memory is taken from the start.
    #[serde(rename = "prefetch")]
    In,
}

/// One migration in one direction, of a storage by its number in the trace. In a plan file storages
/// have the names of the trace instead.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Migration<S = PlanStorage> {
    /// The op before which it begins. First, so that rows sort in the order they happen.
    pub start: OpIndex,
    /// The op before which it is complete. Smaller than `start` where it lies in the next
    /// iteration.
    pub deadline: OpIndex,
    /// Direction of the migration.
    pub direction: MigrationDirection,
    /// Tier of the other end.
    pub target: Target,
    /// Storage that moves.
    pub storage: S,
    /// True if the op at the deadline waits until an eviction is complete, though it has room: one
    /// that begins as soon as it can may see only at its end that memory is free.
    pub awaited: bool,
    /// True if an eviction's storage stays in memory: only its copy is made, so that it can leave
    /// later without a write. A row of this kind cleans.
    pub stays: bool,
}

impl Migration {
    /// Makes a migration whose ops count on into the next iteration: of `ops` ops, the next one's
    /// first is `ops`.
    pub(crate) fn unrolled(
        storage: PlanStorage,
        (direction, target): (MigrationDirection, Target),
        (start, deadline): (u32, u32),
        ops: u32,
    ) -> Self {
        let (start, deadline) = (OpIndex(start % ops), OpIndex(deadline % ops));
        Self { start, deadline, direction, target, storage, awaited: false, stays: false }
    }

    /// Makes the op that it begins before wait for it.
    pub(crate) fn awaited_at_once(self) -> Self {
        Self { deadline: self.start, awaited: true, ..self }
    }

    /// Makes an eviction clean: the storage stays.
    pub(crate) fn staying(self) -> Self {
        Self { stays: true, ..self }
    }

    /// Returns whether the storage's memory goes.
    pub(crate) fn leaves(&self) -> bool {
        self.direction == MigrationDirection::Out && !self.stays
    }
}

/// End of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The transfer moved its bytes.
    Moved,
    /// The copy in the log was still good: nothing was written.
    Clean,
    /// The transfer was cancelled.
    Cancelled,
    /// The transfer failed.
    Failed,
    /// The transfer was still in flight when the step ended; the next step counts it.
    UnderWay,
}

/// Memory from one moment on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemorySample {
    /// The moment.
    pub at: Nanos,
    /// Bytes of storages that are in memory and at rest.
    pub resident: Bytes,
    /// Bytes held by storages on their way out or in.
    pub moving: Bytes,
    /// Bytes that all live storages would take if none had left.
    pub wanted: Bytes,
}
