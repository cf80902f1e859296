//! A plan as its file has it: rows name storages as the trace does, by a stable name or by the
//! (op, output slot) that makes them.

use super::{Expectation, Plan, PlanError};
use crate::cost::Machine;
use crate::migration::Migration;
use crate::trace::{Header, Identity, PlanStorage, Trace, json};
use serde::{Deserialize, Serialize};
use std::collections::HashMap;

/// What the `format` field of a plan file says.
pub const FORMAT: &str = "tidelog-plan";

/// The version this build writes, and the only one it reads.
pub const VERSION: u32 = 1;

/// A plan whose rows name storages.
pub type PlanFile = Plan<Identity>;

/// The file's shape.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Shape {
    format: String,
    version: u32,
    policy: String,
    trace: String,
    #[serde(with = "json::hex")]
    fingerprint: u64,
    ops: u32,
    machine: Machine,
    expects: Expectation,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    left_out: Vec<u32>,
    rows: Vec<Migration<Identity>>,
}

impl Plan {
    /// The plan as a file has it; `trace` is the one it was made from.
    pub fn named(&self, trace: &Trace) -> PlanFile {
        let named = |row: &Migration| Migration {
            start: row.start,
            deadline: row.deadline,
            direction: row.direction,
            target: row.target,
            storage: trace.storage(row.storage).identity.clone(),
        };
        let rows = self.rows.iter().map(named).collect();
        self.clone().with_rows(rows)
    }
}

impl PlanFile {
    /// Reads a plan file.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let header: Header = serde_json::from_str(text)?;
        if header.format != FORMAT {
            return Err(PlanError::NotAPlan { found: header.format });
        }
        if header.version != VERSION {
            return Err(PlanError::Version { found: header.version });
        }
        let Shape { policy, trace, fingerprint, ops, machine, expects, left_out, rows, .. } =
            serde_json::from_str(text)?;
        machine.check()?;
        let plan = Self { policy, trace, fingerprint, ops, machine, expects, left_out, rows };
        plan.check_rows()?;
        Ok(plan)
    }

    /// The file's text: one row per line, the same bytes for the same plan.
    pub fn to_json(&self) -> String {
        let Self { policy, trace, fingerprint, ops, machine, expects, left_out, rows } =
            self.clone();
        let (format, version) = (FORMAT.to_owned(), VERSION);
        json::to_text(&Shape {
            format,
            version,
            policy,
            trace,
            fingerprint,
            ops,
            machine,
            expects,
            left_out,
            rows,
        })
    }

    /// The plan with the numbers that `trace`, from which it must have been made, gives storages.
    pub fn numbered(self, trace: &Trace) -> Result<Plan, PlanError> {
        self.check_trace(trace)?;
        let of_identity: HashMap<&Identity, PlanStorage> = trace
            .storages
            .iter()
            .enumerate()
            .filter(|(_, storage)| storage.identity != Identity::Arrival)
            .map(|(index, storage)| (&storage.identity, PlanStorage(index as u32)))
            .collect();
        let numbered = |(index, row): (usize, &Migration<Identity>)| {
            let Some(&storage) = of_identity.get(&row.storage) else {
                let why = match row.storage {
                    Identity::Arrival => super::ARRIVAL,
                    _ => "the trace does not have",
                };
                return Err(PlanError::Storage {
                    row: index,
                    storage: row.storage.to_string(),
                    why,
                });
            };
            let Migration { start, deadline, direction, target, .. } = *row;
            Ok(Migration { start, deadline, direction, target, storage })
        };
        let rows = self.rows.iter().enumerate().map(numbered).collect::<Result<_, _>>()?;
        Ok(self.with_rows(rows))
    }

    fn check_rows(&self) -> Result<(), PlanError> {
        for (index, row) in self.rows.iter().enumerate() {
            if row.start.0 >= self.ops || row.deadline.0 >= self.ops {
                return Err(PlanError::OpOutOfRange {
                    row: index,
                    storage: row.storage.to_string(),
                    start: row.start,
                    deadline: row.deadline,
                    ops: self.ops,
                });
            }
        }
        Ok(())
    }
}
