//! From the file's names to the residency machine's numbers.

use super::{Plan, PlanError};
use crate::lifetime::uses_by_storage;
use crate::residency::{Schedule, ScheduleParts, ScheduledBirth, ScheduledMove, ScheduledUses};
use crate::trace::{Identity, PlanStorage, Trace};
use crate::units::{Bytes, OpIndex};
use std::collections::HashMap;

/// The schedule that follows `plan` in iterations like `trace`, which must be the trace that the
/// plan was made from. The machine also takes from it what is used when, for all storages: that is
/// how it chooses on demand where the plan says nothing.
pub fn compile(plan: &Plan, trace: &Trace) -> Result<Schedule, PlanError> {
    plan.check_trace(trace)?;
    plan.check_rows()?;
    let parts = ScheduleParts {
        fingerprints: trace.ops.iter().map(|op| op.fingerprint).collect(),
        needs: trace.ops.iter().map(|op| born_bytes(trace, op)).collect(),
        moves: moves(plan, trace)?,
        uses: uses(trace),
        births: births(trace),
        names: names(trace),
    };
    Ok(Schedule::new(parts)?)
}

/// The memory that an op's outputs take.
pub(crate) fn born_bytes(trace: &Trace, op: &crate::trace::Op) -> Bytes {
    Bytes(op.births.iter().map(|birth| trace.storage(birth.storage).size.0).sum())
}

fn moves(plan: &Plan, trace: &Trace) -> Result<Vec<ScheduledMove>, PlanError> {
    let by_identity: HashMap<&Identity, PlanStorage> = trace
        .storages
        .iter()
        .enumerate()
        .map(|(index, storage)| (&storage.identity, PlanStorage(index as u32)))
        .collect();
    let scheduled = plan.rows.iter().enumerate().map(|(index, row)| {
        let fail = |why| PlanError::Storage { row: index, storage: row.storage.to_string(), why };
        if row.storage == Identity::Arrival {
            return Err(fail("differs from iteration to iteration and cannot be planned"));
        }
        let storage =
            *by_identity.get(&row.storage).ok_or_else(|| fail("the trace does not have"))?;
        if !trace.storage(storage).movable {
            return Err(fail("cannot move"));
        }
        let (start, deadline) = (row.start, row.deadline);
        Ok(ScheduledMove { storage, action: row.action, target: row.target, start, deadline })
    });
    scheduled.collect()
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
    let named = trace.storages.iter().enumerate().filter_map(|(index, storage)| {
        let Identity::Name(name) = &storage.identity else { return None };
        Some((name.clone(), PlanStorage(index as u32)))
    });
    named.collect()
}

#[cfg(test)]
#[path = "compile_tests.rs"]
mod tests;
