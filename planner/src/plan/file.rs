//! A plan as its file has it: rows name storages as the trace does, by a stable name or by the
//! (op, output slot) that makes them, and the bytes of them that move where these are not all.

use super::{Expectation, Plan, PlanError, ranges};
use crate::cost::Machine;
use crate::migration::{Migration, MigrationDirection, Target};
use crate::parts::PartedStep;
use crate::trace::{Header, Identity, PlanStorage, Storage, Trace, json};
use crate::units::{ByteRange, OpIndex};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::HashMap;
use std::fmt;

/// Value of the `format` field of a plan file.
pub const FORMAT: &str = "tidelog-plan";

/// The newest version that this build reads, which has rows that clean. A plan without them is
/// written as version 1, which older builds read, too.
pub const VERSION: u32 = 2;

/// The version of plans all of whose evictions give memory up.
const VERSION_OF_EVICTIONS: u32 = 1;

/// A plan whose rows name storages.
pub type PlanFile = Plan<NamedBytes>;

/// Storage, or range of it, that a row of a file moves.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NamedBytes {
    /// A storage by its name.
    pub storage: Identity,
    /// Range of its bytes; `None`: all.
    pub bytes: Option<ByteRange>,
}

impl NamedBytes {
    fn of(storage: &Storage) -> Self {
        Self { storage: storage.identity.clone(), bytes: storage.part }
    }
}

impl From<Identity> for NamedBytes {
    fn from(storage: Identity) -> Self {
        Self { storage, bytes: None }
    }
}

impl fmt::Display for NamedBytes {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.bytes {
            Some(bytes) => write!(out, "{}, {bytes}", self.storage),
            None => self.storage.fmt(out),
        }
    }
}

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
    rows: Vec<Migration<NamedBytes>>,
}

/// Action of a row.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum RowAction {
    Evict,
    /// The storage is written, and stays.
    Clean,
    Prefetch,
}

impl RowAction {
    fn of(direction: MigrationDirection, stays: bool) -> Self {
        match direction {
            MigrationDirection::Out if stays => Self::Clean,
            MigrationDirection::Out => Self::Evict,
            MigrationDirection::In => Self::Prefetch,
        }
    }

    fn direction(self) -> MigrationDirection {
        match self {
            Self::Evict | Self::Clean => MigrationDirection::Out,
            Self::Prefetch => MigrationDirection::In,
        }
    }
}

/// A row's shape.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    start: OpIndex,
    deadline: OpIndex,
    action: RowAction,
    target: Target,
    storage: Identity,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bytes: Option<ByteRange>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    awaited: bool,
}

impl From<Migration<NamedBytes>> for Row {
    fn from(row: Migration<NamedBytes>) -> Self {
        let Migration { start, deadline, direction, target, storage, awaited, stays } = row;
        let (action, NamedBytes { storage, bytes }) = (RowAction::of(direction, stays), storage);
        Self { start, deadline, action, target, storage, bytes, awaited }
    }
}

impl From<Row> for Migration<NamedBytes> {
    fn from(row: Row) -> Self {
        let Row { start, deadline, action, target, storage, bytes, awaited } = row;
        let (direction, stays) = (action.direction(), matches!(action, RowAction::Clean));
        let storage = NamedBytes { storage, bytes };
        Self { start, deadline, direction, target, storage, awaited, stays }
    }
}

impl Serialize for Migration<NamedBytes> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        Row::from(self.clone()).serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Migration<NamedBytes> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        Row::deserialize(deserializer).map(Self::from)
    }
}

impl Plan {
    /// The plan as a file has it; `trace` is the one it was made from.
    pub fn named(&self, trace: &Trace) -> PlanFile {
        let named = |row: &Migration| Migration {
            start: row.start,
            deadline: row.deadline,
            direction: row.direction,
            target: row.target,
            storage: NamedBytes::of(trace.storage(row.storage)),
            awaited: row.awaited,
            stays: row.stays,
        };
        let rows = self.rows.iter().map(named).collect();
        self.clone().with_rows(rows)
    }

    /// Names the storages of a plan that was made from a step in parts: the file is for the step
    /// with whole storages, and its rows say what the parts are.
    pub fn named_in_parts(&self, step: &PartedStep) -> PlanFile {
        PlanFile { fingerprint: step.whole_fingerprint(), ..self.named(&step.trace) }
    }
}

impl PlanFile {
    /// Reads a plan file.
    pub fn from_json(text: &str) -> Result<Self, PlanError> {
        let header: Header = serde_json::from_str(text)?;
        if header.format != FORMAT {
            return Err(PlanError::NotAPlan { found: header.format });
        }
        if !(VERSION_OF_EVICTIONS..=VERSION).contains(&header.version) {
            return Err(PlanError::Version { found: header.version });
        }
        let Shape { policy, trace, fingerprint, ops, machine, expects, left_out, rows, .. } =
            serde_json::from_str(text)?;
        machine.check()?;
        let rows_of_parts = count_parts(&rows);
        let plan = Self {
            policy,
            trace,
            fingerprint,
            ops,
            machine,
            expects,
            left_out,
            rows_of_parts,
            rows,
        };
        plan.check_rows()?;
        ranges::by_storage(&plan.rows)?;
        Ok(plan)
    }

    /// The file's text: one row per line, the same bytes for the same plan.
    pub fn to_json(&self) -> String {
        let Self { policy, trace, fingerprint, ops, machine, expects, left_out, rows, .. } =
            self.clone();
        let cleans = rows.iter().any(|row| row.stays);
        let version = if cleans { VERSION } else { VERSION_OF_EVICTIONS };
        let format = FORMAT.to_owned();
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
        let known: HashMap<NamedBytes, PlanStorage> = trace
            .storages
            .iter()
            .enumerate()
            .filter(|(_, storage)| storage.identity != Identity::Arrival)
            .map(|(index, storage)| (NamedBytes::of(storage), PlanStorage(index as u32)))
            .collect();
        let numbered = |(index, row): (usize, &Migration<NamedBytes>)| {
            let Some(&storage) = known.get(&row.storage) else {
                let why = match row.storage {
                    NamedBytes { storage: Identity::Arrival, .. } => super::ARRIVAL,
                    NamedBytes { bytes: Some(_), .. } => "is a part, and storages are whole here",
                    _ => "the trace does not have",
                };
                return Err(PlanError::Storage {
                    row: index,
                    storage: row.storage.to_string(),
                    why,
                });
            };
            let Migration { start, deadline, direction, target, awaited, stays, .. } = *row;
            Ok(Migration { start, deadline, direction, target, storage, awaited, stays })
        };
        let rows = self.rows.iter().enumerate().map(numbered).collect::<Result<_, _>>()?;
        Ok(Plan { rows_of_parts: count_parts(&self.rows), ..self.with_rows(rows) })
    }

    /// The step with the parts that the plan moves, and the plan for it. `whole` is the step with
    /// whole storages, from which the plan must have been made.
    ///
    /// # Errors
    /// It is another step's plan, or what it moves are no parts of the step's storages.
    pub fn in_parts(self, whole: &Trace) -> Result<(PartedStep, Plan), PlanError> {
        self.check_trace(whole)?;
        let step = PartedStep::of(whole, &ranges::cuts(&self.rows, whole)?);
        let of_step = Self { fingerprint: step.trace.fingerprint(), ..self };
        let plan = of_step.numbered(&step.trace)?;
        Ok((step, plan))
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

fn count_parts(rows: &[Migration<NamedBytes>]) -> usize {
    rows.iter().filter(|row| row.storage.bytes.is_some()).count()
}
