//! The plan: which storages leave and come back when.
//!
//! In memory a row has its storage's number in the trace. In a [`PlanFile`], which people can read
//! and diff, it has the storage's name, so that a plan applies to any process that runs the same
//! iteration. The format is described in `docs/plan.md`.

mod compile;
mod file;
mod ranges;

use crate::cost::{Machine, MachineError};
use crate::migration::{Migration, Target};
use crate::residency::ScheduleError;
use crate::trace::{PlanStorage, Trace};
use crate::units::{Bandwidth, ByteRange, Bytes, Nanos, OpIndex};
use serde::{Deserialize, Serialize};

pub(crate) use compile::{Compiler, born_bytes, simulated};
pub use compile::{compile, compile_in_parts, without_moves};
pub use file::{FORMAT, NamedBytes, PlanFile, VERSION};

/// The reason why a row cannot name a storage that each iteration makes anew.
const ARRIVAL: &str = "differs from iteration to iteration and cannot be planned";

/// Bytes that a plan moves in one iteration, per link and direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PlannedBytes {
    /// Written to SSDs: what wears them.
    pub ssd_written: Bytes,
    /// Read from SSDs.
    pub ssd_read: Bytes,
    /// Copied to host memory.
    pub host_written: Bytes,
    /// Copied from host memory.
    pub host_read: Bytes,
}

impl PlannedBytes {
    /// Counts an eviction.
    pub fn add_out(&mut self, target: Target, bytes: Bytes) {
        match target {
            Target::Ssd => self.ssd_written.0 += bytes.0,
            Target::Host => self.host_written.0 += bytes.0,
        }
    }

    /// Counts a fetch.
    pub fn add_back(&mut self, target: Target, bytes: Bytes) {
        match target {
            Target::Ssd => self.ssd_read.0 += bytes.0,
            Target::Host => self.host_read.0 += bytes.0,
        }
    }
}

/// Expectation of a plan's maker for one iteration in the steady state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expectation {
    /// True if time, stalls and peak come from a simulation of this plan. Otherwise the time is
    /// that of an iteration that never waits.
    pub simulated: bool,
    /// The length of the iteration.
    #[serde(rename = "time_ns")]
    pub time: Nanos,
    /// The part of it in which an op waited for a migration.
    #[serde(rename = "stall_ns")]
    pub stall: Nanos,
    /// Number of ops that waited.
    pub stalled_ops: u32,
    /// The most bytes that tensors and transfers held at once, staging apart.
    pub peak: Bytes,
    /// The bytes that move.
    pub bytes: PlannedBytes,
    /// Average bytes per second read from the SSDs over the iteration.
    pub ssd_read_rate: Bandwidth,
    /// Average bytes per second written to the SSDs over the iteration.
    pub ssd_write_rate: Bandwidth,
    /// Ops that the plan leaves over capacity: storages are evicted on demand there.
    pub ops_over_capacity: u32,
    /// Bytes by which the worst of them is over capacity.
    pub over_capacity: Bytes,
}

impl Expectation {
    /// Sets the average rates from the bytes and the time.
    #[must_use]
    pub fn with_rates(mut self) -> Self {
        self.ssd_read_rate = rate(self.bytes.ssd_read, self.time);
        self.ssd_write_rate = rate(self.bytes.ssd_written, self.time);
        self
    }
}

/// Average bytes per second, rounded down.
fn rate(bytes: Bytes, time: Nanos) -> Bandwidth {
    let per_second = u128::from(bytes.0) * 1_000_000_000 / u128::from(time.0.max(1));
    Bandwidth(u64::try_from(per_second).unwrap_or(u64::MAX))
}

/// The migrations of one iteration, for one trace on one machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan<S = PlanStorage> {
    /// Maker of the plan: `algorithm1`.
    pub policy: String,
    /// The name of the trace it was made from.
    pub trace: String,
    /// [`Trace::fingerprint`] of that trace.
    pub fingerprint: u64,
    /// The number of ops in the iteration.
    pub ops: u32,
    /// Machine for which it was made.
    pub machine: Machine,
    /// Expected result.
    pub expects: Expectation,
    /// Reruns of the program that the iteration is without ([`crate::recompute`]): the trace it was
    /// made from is the program's without these.
    pub left_out: Vec<u32>,
    /// Number of rows that move a part of a storage; 0 where storages move whole.
    pub rows_of_parts: usize,
    /// The migrations, in the order they begin.
    pub rows: Vec<Migration<S>>,
}

/// The reason why a plan cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PlanError {
    /// The text is not JSON of the right shape.
    #[error("the plan is not readable: {0}")]
    Json(#[from] serde_json::Error),
    /// JSON, but something else.
    #[error("not a plan: its format field says {found:?}, expected {FORMAT:?}")]
    NotAPlan {
        /// Format that the file names.
        found: String,
    },
    /// Written by another version.
    #[error(
        "plan version {found} is not known (this build reads up to {VERSION}): plan again from the trace"
    )]
    Version {
        /// The file's version.
        found: u32,
    },
    /// Made from a different iteration.
    #[error(
        "the plan was made for the step {plan:?}, and this is {trace:?}: their kernels or tensors differ \
         (fingerprints {plan_fingerprint:016x} and {trace_fingerprint:016x}); plan again from this trace"
    )]
    OtherTrace {
        /// The name of the plan's trace.
        plan: String,
        /// The fingerprint.
        plan_fingerprint: u64,
        /// The name of the trace at hand.
        trace: String,
        /// The fingerprint.
        trace_fingerprint: u64,
    },
    /// A row points outside the iteration.
    #[error("row {row} ({storage}) runs from op {} to op {}, but the iteration has {ops} ops", start.0, deadline.0)]
    OpOutOfRange {
        /// Index of the row, counted from 0.
        row: usize,
        /// The storage.
        storage: String,
        /// The start.
        start: OpIndex,
        /// The deadline.
        deadline: OpIndex,
        /// Number of ops.
        ops: u32,
    },
    /// A row names a storage that the trace does not have, or that cannot be planned.
    #[error("row {row} names {storage}, which {why}")]
    Storage {
        /// Index of the row, counted from 0.
        row: usize,
        /// The name.
        storage: String,
        /// Description of the error.
        why: &'static str,
    },
    /// A row moves bytes that are no part of a storage, or of which another row moves some.
    #[error("row {row} moves {} bytes from byte {} of {storage} on, {why}", bytes.length.0, bytes.begin.0)]
    Range {
        /// Index of the row, counted from 0.
        row: usize,
        /// Storage of the bytes.
        storage: String,
        /// Range of the bytes.
        bytes: ByteRange,
        /// Description of the error.
        why: String,
    },
    /// A training session is to follow a plan that moves parts.
    #[error(
        "{rows} rows of the plan move parts of storages, and training moves storages whole: plan again without --parts"
    )]
    Parts {
        /// Number of such rows.
        rows: usize,
    },
    /// The machine that it was made for cannot be.
    #[error("the plan's machine: {0}")]
    Machine(#[from] MachineError),
    /// The trace makes no schedule.
    #[error("the plan's trace makes no schedule: {0}")]
    Schedule(#[from] ScheduleError),
}

impl Plan {
    /// A plan for `trace`; puts the rows in the order of its file.
    pub fn new(
        policy: &str,
        trace: &Trace,
        machine: &Machine,
        mut rows: Vec<Migration>,
        expects: Expectation,
    ) -> Self {
        let name = |row: &Migration| {
            let storage = trace.storage(row.storage);
            (&storage.identity, storage.part)
        };
        rows.sort_by(|one, other| {
            let when = |row: &Migration| (row.start, row.deadline, row.direction, row.target);
            when(one).cmp(&when(other)).then_with(|| name(one).cmp(&name(other)))
        });
        let rows_of_parts = rows.iter().filter(|row| name(row).1.is_some()).count();
        Self {
            policy: policy.to_owned(),
            trace: trace.name.clone(),
            fingerprint: trace.fingerprint(),
            ops: trace.ops.len() as u32,
            machine: *machine,
            expects: expects.with_rates(),
            left_out: Vec::new(),
            rows_of_parts,
            rows,
        }
    }
}

impl<S> Plan<S> {
    /// Checks that the plan was made from this iteration.
    pub fn check_trace(&self, trace: &Trace) -> Result<(), PlanError> {
        let trace_fingerprint = trace.fingerprint();
        if self.fingerprint == trace_fingerprint && self.ops as usize == trace.ops.len() {
            return Ok(());
        }
        Err(PlanError::OtherTrace {
            plan: self.trace.clone(),
            plan_fingerprint: self.fingerprint,
            trace: trace.name.clone(),
            trace_fingerprint,
        })
    }

    /// Returns the plan with other rows.
    fn with_rows<T>(self, rows: Vec<Migration<T>>) -> Plan<T> {
        let Self {
            policy, trace, fingerprint, ops, machine, expects, left_out, rows_of_parts, ..
        } = self;
        Plan { policy, trace, fingerprint, ops, machine, expects, left_out, rows_of_parts, rows }
    }
}

#[cfg(test)]
mod tests;
