//! Compilation of a plan into what the residency machine follows.

use super::{ARRIVAL, Plan, PlanError};
use crate::lifetime::uses_by_storage;
use crate::migration::{Migration, Target};
use crate::parts::PartedStep;
use crate::residency::{Schedule, ScheduledBirth, ScheduledUses, StepParts, StepTable};
use crate::trace::{Identity, PlanStorage, Trace};
use crate::units::{Bytes, OpIndex};
use std::collections::HashSet;
use std::sync::Arc;

/// The schedule that follows `plan` in iterations like `trace`, which must be the trace that the
/// plan was made from. The machine also takes from it what is used when, for all storages: that is
/// how it chooses on demand where the plan says nothing.
///
/// # Errors
/// It is another trace's plan, or one that moves parts of storages: see [`compile_in_parts`].
pub fn compile(plan: &Plan, trace: &Trace) -> Result<Schedule, PlanError> {
    if plan.rows_of_parts > 0 {
        return Err(PlanError::Parts { rows: plan.rows_of_parts });
    }
    simulated(plan, trace)
}

/// The schedule of a plan that moves parts of storages: each part is a storage of its own to the
/// machine that follows it.
///
/// # Errors
/// It is another step's plan.
pub fn compile_in_parts(plan: &Plan, step: &PartedStep) -> Result<Schedule, PlanError> {
    simulated(plan, &step.trace)
}

/// Returns the schedule of an iteration before there is a plan for it: nothing moves by itself, but
/// the machine knows what is used when, brings back what the next ops use, and lets go what is used
/// last. `kept` live across iterations beside what has a name.
///
/// # Errors
/// The trace makes no schedule.
pub fn without_moves(trace: &Trace, kept: &[PlanStorage]) -> Result<Schedule, PlanError> {
    let mut parts = step_parts(trace);
    for storage in kept {
        parts.uses[storage.0 as usize].cyclic = true;
    }
    Ok(Schedule::new(Arc::new(StepTable::new(parts)?), Vec::new())?)
}

/// [`compile`] for the simulation, which moves parts of storages, too.
pub(crate) fn simulated(plan: &Plan, trace: &Trace) -> Result<Schedule, PlanError> {
    plan.check_trace(trace)?;
    Compiler::new(trace)?.compile(&plan.rows)
}

/// Makes the schedules of many plans for one trace: what follows from the trace alone is made once.
pub(crate) struct Compiler<'a> {
    trace: &'a Trace,
    step: Arc<StepTable>,
}

impl<'a> Compiler<'a> {
    pub(crate) fn new(trace: &'a Trace) -> Result<Self, PlanError> {
        Ok(Self { trace, step: Arc::new(StepTable::new(step_parts(trace))?) })
    }

    /// The schedule of a plan with these rows, which are in any order.
    pub(crate) fn compile(&self, rows: &[Migration]) -> Result<Schedule, PlanError> {
        for (index, row) in rows.iter().enumerate() {
            let Some(storage) = self.trace.storages.get(row.storage.0 as usize) else { continue };
            let why = match storage.identity {
                Identity::Arrival => ARRIVAL,
                _ if !storage.movable => "cannot move",
                _ => continue,
            };
            let storage = storage.identity.to_string();
            return Err(PlanError::Storage { row: index, storage, why });
        }
        let schedule = Schedule::new(Arc::clone(&self.step), rows.to_vec())?;
        Ok(schedule.with_host_bytes(self.host_bytes(rows)))
    }

    /// The bytes of all storages that rows send to host memory.
    fn host_bytes(&self, rows: &[Migration]) -> Bytes {
        let to_host = rows.iter().filter(|row| row.target == Target::Host);
        let storages: HashSet<PlanStorage> = to_host.map(|row| row.storage).collect();
        Bytes(storages.into_iter().map(|storage| self.trace.storage(storage).size.0).sum())
    }
}

fn step_parts(trace: &Trace) -> StepParts {
    StepParts {
        fingerprints: trace.ops.iter().map(|op| op.fingerprint).collect(),
        needs: trace.ops.iter().map(|op| born_bytes(trace, op)).collect(),
        uses: uses(trace),
        births: births(trace),
        names: names(trace),
    }
}

/// The memory that an op's outputs take.
pub(crate) fn born_bytes(trace: &Trace, op: &crate::trace::Op) -> Bytes {
    Bytes(op.births.iter().map(|birth| trace.storage(birth.storage).size.0).sum())
}

fn uses(trace: &Trace) -> Vec<ScheduledUses> {
    let uses = uses_by_storage(trace);
    let scheduled = uses.iter().zip(&trace.storages).map(|(uses, storage)| ScheduledUses {
        ops: uses.iter().map(|at| OpIndex(at.op)).collect(),
        cyclic: matches!(storage.identity, Identity::Name(_)),
    });
    scheduled.collect()
}

fn births(trace: &Trace) -> Vec<ScheduledBirth> {
    let mut births = Vec::new();
    for (index, op) in trace.ops.iter().enumerate() {
        let op_index = OpIndex(index as u32);
        births.extend(op.births.iter().map(|birth| ScheduledBirth {
            op: op_index,
            slot: birth.slot,
            storage: birth.storage,
        }));
    }
    births
}

fn names(trace: &Trace) -> Vec<(String, PlanStorage)> {
    // Parts have no name of their own: who moves them tells the machine which they are.
    let whole = trace.storages.iter().enumerate().filter(|(_, storage)| storage.part.is_none());
    let named = whole.filter_map(|(index, storage)| {
        let Identity::Name(name) = &storage.identity else { return None };
        Some((name.clone(), PlanStorage(index as u32)))
    });
    named.collect()
}

#[cfg(test)]
#[path = "compile_tests.rs"]
mod tests;
