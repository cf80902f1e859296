//! Trace of one training iteration: its ops in order, how long each ran, and which storages it
//! used, made and let go.
//!
//! A trace describes the steady state, so it is cyclic: after the last op comes op 0 of the next
//! iteration. A storage is one of
//! - *global*: named, alive across the whole iteration (parameters, optimizer state);
//! - *born inside*: named by the (op, output slot) that made it, dying later in the same iteration
//!   or in the next one (then uses of the instance born one iteration ago are marked `previous`);
//! - an *arrival*: made between two iterations (a batch), so that no plan row can name it.
//!
//! Traces are JSON files (see `docs/plan.md`), one op or storage per line.

pub(crate) mod json;
mod validate;

use crate::units::{ByteRange, Bytes, Nanos, OpIndex};
use serde::{Deserialize, Serialize};
use std::fmt;

pub use validate::TraceError;

/// Value of the `format` field of a trace file.
pub const FORMAT: &str = "tidelog-trace";

/// The version this build writes, and the only one it reads.
pub const VERSION: u32 = 1;

/// A storage of the trace: its place in [`Trace::storages`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PlanStorage(pub u32);

/// Identity of a storage in another iteration or another process.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Identity {
    /// Alive across the iteration, under a name that is the same in every run.
    Name(String),
    /// Born in the iteration: the op that made it and the op's output slot.
    Output {
        /// The op that made it.
        op: OpIndex,
        /// Output slot of the op.
        slot: u16,
    },
    /// Made between two iterations. Counted in memory from op 0 on, never planned.
    Arrival,
}

/// Kind of a storage's contents. Decides nothing; the report groups by it.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum StorageKind {
    /// A model weight or buffer.
    Parameter,
    /// A gradient of a parameter.
    Gradient,
    /// Momentum, variance, master weights.
    OptimizerState,
    /// Saved between the forward and the backward pass, or in passing.
    Activation,
    /// Contents of no other kind.
    #[default]
    Other,
}

impl StorageKind {
    /// Every kind, in the order of the report.
    pub const ALL: [Self; 5] =
        [Self::Parameter, Self::Gradient, Self::OptimizerState, Self::Activation, Self::Other];
}

/// One storage of the iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Storage {
    /// Identity in a plan.
    pub identity: Identity,
    /// The largest size in the iteration.
    pub size: Bytes,
    /// The bytes that it is of what `identity` names; `None`: all of them. Files have whole
    /// storages alone: [`crate::parts`] divides them.
    #[serde(skip)]
    pub part: Option<ByteRange>,
    /// Kind of its contents.
    pub kind: StorageKind,
    /// True if the memory can be taken away and given back.
    pub movable: bool,
}

/// Access of an op to a storage's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Access {
    /// Read access, which leaves the bytes as they are.
    Read,
    /// Replaces all of them without looking.
    Write,
    /// Reads and changes them.
    Update,
}

impl Access {
    /// Returns whether a copy made before is out of date afterwards.
    pub const fn modifies(self) -> bool {
        matches!(self, Self::Write | Self::Update)
    }
}

/// One storage used by one op.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Use {
    /// Storage of the use.
    pub storage: PlanStorage,
    /// Access of the op.
    pub access: Access,
    /// The instance that was born one iteration ago, not this iteration's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub previous: bool,
}

/// Output slots from here on are no op's own: storages that were empty, and are filled after it and
/// before the next op. They move whole.
pub const REMADE_FROM: u16 = 1 << 15;

/// A storage made by an op. Being born modifies: there are bytes that no copy holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Birth {
    /// Storage of the output.
    pub storage: PlanStorage,
    /// Output slot of the op.
    pub slot: u16,
}

/// A storage whose last reference went away while or after an op ran, before the next op began.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Death {
    /// Storage of the death.
    pub storage: PlanStorage,
    /// The instance that was born one iteration ago, not this iteration's.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub previous: bool,
}

/// One op of the iteration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Op {
    /// Name for people: `aten.mm`.
    pub name: String,
    /// Duration of the op when everything it uses is there.
    #[serde(rename = "duration_ns")]
    pub duration: Nanos,
    /// Hash over the op, its shapes and its aliasing: a plan applies only while these match.
    #[serde(with = "json::hex")]
    pub fingerprint: u64,
    /// The storages it reads or modifies, each once. Storages it makes need not be listed.
    pub uses: Vec<Use>,
    /// The storages it makes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub births: Vec<Birth>,
    /// The storages that die with it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub deaths: Vec<Death>,
}

/// One iteration of a training loop in its steady state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Trace {
    /// Name for people: the model and its settings.
    pub name: String,
    /// Every storage, in the order that [`PlanStorage`] counts.
    pub storages: Vec<Storage>,
    /// The ops, in the order they run.
    pub ops: Vec<Op>,
}

/// The file's shape: the trace and what it says about itself.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct File<N, S, O> {
    format: String,
    version: u32,
    name: N,
    storages: S,
    ops: O,
}

/// The part of any of our files that must be understood before the rest is looked at.
#[derive(Deserialize)]
pub(crate) struct Header {
    #[serde(default)]
    pub(crate) format: String,
    #[serde(default)]
    pub(crate) version: u32,
}

impl Trace {
    /// Reads a trace file and checks it.
    pub fn from_json(text: &str) -> Result<Self, TraceError> {
        let header: Header = serde_json::from_str(text)?;
        if header.format != FORMAT {
            return Err(TraceError::NotATrace { found: header.format });
        }
        if header.version != VERSION {
            return Err(TraceError::Version { found: header.version });
        }
        let file: File<String, Vec<Storage>, Vec<Op>> = serde_json::from_str(text)?;
        let trace = Self { name: file.name, storages: file.storages, ops: file.ops };
        trace.validate()?;
        Ok(trace)
    }

    /// The trace as a file's text: one op or storage per line, the same bytes for the same trace.
    pub fn to_json(&self) -> String {
        json::to_text(&File {
            format: FORMAT.to_owned(),
            version: VERSION,
            name: &self.name,
            storages: &self.storages,
            ops: &self.ops,
        })
    }

    /// Checks that every reference is in range and every storage is born before it is used and used
    /// before it dies. Everything in this crate expects a trace that passed.
    pub fn validate(&self) -> Result<(), TraceError> {
        validate::validate(self)
    }

    /// The storage at `index`.
    pub fn storage(&self, index: PlanStorage) -> &Storage {
        &self.storages[index.0 as usize]
    }

    /// Returns the label of a storage: its name, or the op that made it; and which part of it it
    /// is.
    pub fn label(&self, storage: PlanStorage) -> String {
        let Storage { identity, part, .. } = self.storage(storage);
        let whole = match identity {
            Identity::Output { op, slot } => {
                let made_by = self.ops.get(op.0 as usize).map_or("", |op| op.name.as_str());
                format!("output {slot} of {made_by} (op {})", op.0)
            }
            named => named.to_string(),
        };
        match part {
            Some(part) => format!("{whole}, {part}"),
            None => whole,
        }
    }

    /// Returns whether some of its storages are parts of storages.
    pub fn is_in_parts(&self) -> bool {
        self.storages.iter().any(|storage| storage.part.is_some())
    }

    /// The time of one iteration if nothing ever waits.
    pub fn duration(&self) -> Nanos {
        Nanos(self.ops.iter().map(|op| op.duration.0).sum())
    }

    /// One hash over the ops' fingerprints and the storages' identities and sizes: two traces with
    /// the same value can share a plan. Durations do not enter: they differ from run to run.
    pub fn fingerprint(&self) -> u64 {
        let mut hash = Fnv::default();
        for op in &self.ops {
            hash.write(&op.fingerprint.to_le_bytes());
        }
        for storage in &self.storages {
            match &storage.identity {
                Identity::Name(name) => hash.write(name.as_bytes()),
                Identity::Output { op, slot } => {
                    hash.write(&op.0.to_le_bytes());
                    hash.write(&slot.to_le_bytes());
                }
                Identity::Arrival => hash.write(b"arrival"),
            }
            hash.write(&storage.size.0.to_le_bytes());
            hash.write(&[u8::from(storage.movable)]);
            if let Some(part) = storage.part {
                hash.write(&part.begin.0.to_le_bytes());
            }
        }
        hash.0
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => out.write_str(name),
            Self::Output { op, slot } => write!(out, "output {slot} of op {}", op.0),
            Self::Arrival => out.write_str("arrival"),
        }
    }
}

impl fmt::Display for StorageKind {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Parameter => "parameters",
            Self::Gradient => "gradients",
            Self::OptimizerState => "optimizer state",
            Self::Activation => "activations",
            Self::Other => "other",
        })
    }
}

/// FNV-1a, 64 bits: stable across machines and versions, unlike the standard library's hasher.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests;
