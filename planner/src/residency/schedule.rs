//! A plan in the form that the machine follows: storages by number, times by op.

use super::schedule_error::ScheduleError;
use super::step_table::StepTable;
use crate::migration::Migration;
use crate::units::Bytes;
use std::sync::Arc;

/// The migrations of a step, and the step. Immutable and checked: every index in it is good.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    step: Arc<StepTable>,
    /// Moves by start; evictions before prefetches, which may want their room, and before what
    /// stays.
    moves: Vec<Migration>,
    /// The bytes of all storages that moves send to host memory.
    host_bytes: Bytes,
}

impl Schedule {
    /// Checks the migrations, which are in any order, and puts them in theirs.
    pub fn new(step: Arc<StepTable>, mut moves: Vec<Migration>) -> Result<Self, ScheduleError> {
        let (ops, storages) = (step.ops(), step.storages() as usize);
        for row in &moves {
            let storage = row.storage;
            ScheduleError::unless_known("a move", storage, storages)?;
            ScheduleError::unless_within("start of a move", storage, row.start, (ops, ops))?;
            ScheduleError::unless_within("deadline of a move", storage, row.deadline, (ops, ops))?;
        }
        moves.sort_unstable_by_key(|row| {
            let when = (row.start, row.direction, row.stays, row.deadline);
            (when, row.storage, row.target, row.awaited)
        });
        Ok(Self { step, moves, host_bytes: Bytes(0) })
    }

    /// Sets the size of all storages that moves send to host memory.
    #[must_use]
    pub fn with_host_bytes(self, host_bytes: Bytes) -> Self {
        Self { host_bytes, ..self }
    }

    /// The bytes of all storages that moves send to host memory. Never more of it is theirs.
    pub fn host_bytes(&self) -> Bytes {
        self.host_bytes
    }

    /// Returns the table of uses, whatever moves.
    pub fn step(&self) -> &Arc<StepTable> {
        &self.step
    }

    /// The migrations, by start.
    pub fn moves(&self) -> &[Migration] {
        &self.moves
    }
}
