//! True if a trace makes sense, said with the op and the storage that do not.

use super::{FORMAT, Identity, PlanStorage, Trace, VERSION};
use crate::units::OpIndex;
use std::collections::HashMap;

/// Sizes and durations beyond this (9 PB, 104 days) are corrupt input; sums of them stay exact.
const MAXIMUM: u64 = 1 << 53;

/// Limit of ops: twice this many ops still fit [`OpIndex`], so that times can be unrolled over two
/// iterations.
const OPS_MAXIMUM: usize = 1 << 30;

/// The reason why a trace cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The text is not JSON of the right shape.
    #[error("the trace is not readable: {0}")]
    Json(#[from] serde_json::Error),
    /// JSON, but something else.
    #[error("not a trace: its format field says {found:?}, expected {FORMAT:?}")]
    NotATrace {
        /// Format that the file names.
        found: String,
    },
    /// Written by another version.
    #[error("trace version {found} is not known (this build reads {VERSION}): record it again")]
    Version {
        /// The file's version.
        found: u32,
    },
    /// A trace without ops describes no iteration.
    #[error("the trace has no ops")]
    Empty,
    /// The trace has more ops or storages than indices allow.
    #[error("the trace has {count} {what}, at most {OPS_MAXIMUM} are possible")]
    TooMany {
        /// Ops or storages.
        what: &'static str,
        /// Number of them in the trace.
        count: usize,
    },
    /// A size or the iteration's time that no machine has.
    #[error("{what} is {value}, more than {MAXIMUM}: the trace is corrupt")]
    TooLarge {
        /// Owner of the index.
        what: String,
        /// The figure.
        value: u64,
    },
    /// A reference to a storage that the trace does not list.
    #[error("op {} ({name}) refers to storage {}, but the trace lists {count}", op.0, storage.0)]
    NoSuchStorage {
        /// The op.
        op: OpIndex,
        /// The op's name.
        name: String,
        /// The reference.
        storage: PlanStorage,
        /// Number of storages.
        count: usize,
    },
    /// Two storages with one identity: a plan row could not tell them apart.
    #[error("storages {} and {} are both {identity}", first.0, second.0)]
    Duplicate {
        /// The first of them.
        first: PlanStorage,
        /// Storage of the same identity.
        second: PlanStorage,
        /// Identity of both.
        identity: String,
    },
    /// A storage's life contradicts itself.
    #[error("op {} ({name}): storage {} ({identity}) {what}", op.0, storage.0)]
    Life {
        /// The op where it shows.
        op: OpIndex,
        /// The op's name.
        name: String,
        /// The storage.
        storage: PlanStorage,
        /// Identity of the storage.
        identity: String,
        /// Description of the error.
        what: &'static str,
    },
    /// A storage claims to be made by an op that does not make it.
    #[error("storage {} is called {identity}, but that op does not make it", storage.0)]
    NeverBorn {
        /// The storage.
        storage: PlanStorage,
        /// Identity of the storage.
        identity: String,
    },
}

/// Life of a storage as seen so far, walking the ops in order.
#[derive(Clone, Copy, Default)]
struct Life {
    born: Option<usize>,
    died: Option<usize>,
    previous_died: Option<usize>,
    previous_used: Option<usize>,
    used: Option<usize>,
}

pub(super) fn validate(trace: &Trace) -> Result<(), TraceError> {
    counts(trace)?;
    sizes(trace)?;
    identities(trace)?;
    let mut lives = vec![Life::default(); trace.storages.len()];
    for index in 0..trace.ops.len() {
        births(trace, index, &mut lives)?;
        uses(trace, index, &mut lives)?;
        deaths(trace, index, &mut lives)?;
    }
    for (index, (storage, life)) in trace.storages.iter().zip(&lives).enumerate() {
        let storage_index = PlanStorage(index as u32);
        if matches!(storage.identity, Identity::Output { .. }) && life.born.is_none() {
            let identity = storage.identity.to_string();
            return Err(TraceError::NeverBorn { storage: storage_index, identity });
        }
        let (Some(op), None) = (life.previous_used, life.previous_died) else { continue };
        return Err(life_error(
            trace,
            op,
            storage_index,
            "is used one iteration late but does not die there",
        ));
    }
    Ok(())
}

fn counts(trace: &Trace) -> Result<(), TraceError> {
    if trace.ops.is_empty() {
        return Err(TraceError::Empty);
    }
    for (what, count) in [("ops", trace.ops.len()), ("storages", trace.storages.len())] {
        if count > OPS_MAXIMUM {
            return Err(TraceError::TooMany { what, count });
        }
    }
    Ok(())
}

fn sizes(trace: &Trace) -> Result<(), TraceError> {
    let mut time = 0u64;
    for (index, op) in trace.ops.iter().enumerate() {
        time = time.saturating_add(op.duration.0);
        if time > MAXIMUM {
            let what = format!("the time up to op {index} ({})", op.name);
            return Err(TraceError::TooLarge { what, value: time });
        }
    }
    let mut bytes = 0u64;
    for (index, storage) in trace.storages.iter().enumerate() {
        bytes = bytes.saturating_add(storage.size.0);
        if bytes > MAXIMUM {
            let what = format!("the size of all storages up to {index} ({})", storage.identity);
            return Err(TraceError::TooLarge { what, value: bytes });
        }
    }
    Ok(())
}

fn identities(trace: &Trace) -> Result<(), TraceError> {
    let mut seen = HashMap::new();
    for (index, storage) in trace.storages.iter().enumerate() {
        let second = PlanStorage(index as u32);
        if storage.identity == Identity::Arrival {
            continue;
        }
        if let Some(first) = seen.insert(&storage.identity, second) {
            let identity = storage.identity.to_string();
            return Err(TraceError::Duplicate { first, second, identity });
        }
    }
    Ok(())
}

fn births(trace: &Trace, index: usize, lives: &mut [Life]) -> Result<(), TraceError> {
    for birth in &trace.ops[index].births {
        let at = reference(trace, index, birth.storage)?;
        let fail = |what| Err(life_error(trace, index, birth.storage, what));
        let expected = Identity::Output { op: OpIndex(index as u32), slot: birth.slot };
        if trace.storages[at].identity != expected {
            return fail("is born here under another identity than it has");
        }
        if lives[at].born.replace(index).is_some() {
            return fail("is born twice");
        }
    }
    Ok(())
}

fn uses(trace: &Trace, index: usize, lives: &mut [Life]) -> Result<(), TraceError> {
    for used in &trace.ops[index].uses {
        let at = reference(trace, index, used.storage)?;
        let fail = |what| Err(life_error(trace, index, used.storage, what));
        let born_inside = matches!(trace.storages[at].identity, Identity::Output { .. });
        let life = &mut lives[at];
        if used.previous {
            if matches!(trace.storages[at].identity, Identity::Name(_)) {
                return fail("is global, so it has no previous instance");
            }
            if life.previous_died.is_some() {
                return fail("is used after it died (previous instance)");
            }
            if life.previous_used.replace(index) == Some(index) {
                return fail("is listed twice by one op");
            }
            continue;
        }
        if born_inside && life.born.is_none() {
            return fail("is used before it is born");
        }
        if life.died.is_some() {
            return fail("is used after it died");
        }
        if life.used.replace(index) == Some(index) {
            return fail("is listed twice by one op");
        }
    }
    Ok(())
}

fn deaths(trace: &Trace, index: usize, lives: &mut [Life]) -> Result<(), TraceError> {
    for death in &trace.ops[index].deaths {
        let at = reference(trace, index, death.storage)?;
        let fail = |what| Err(life_error(trace, index, death.storage, what));
        let life = &mut lives[at];
        if matches!(trace.storages[at].identity, Identity::Name(_)) {
            return fail("is global but dies");
        }
        if life.died.is_some() || (death.previous && life.previous_died.is_some()) {
            return fail("dies twice");
        }
        if death.previous {
            life.previous_died = Some(index);
            continue;
        }
        let born_inside = matches!(trace.storages[at].identity, Identity::Output { .. });
        if born_inside && life.born.is_none() {
            return fail("dies before it is born");
        }
        if life.previous_died.is_some() {
            return fail("dies in its own iteration and in the next");
        }
        life.died = Some(index);
    }
    Ok(())
}

fn reference(trace: &Trace, op: usize, storage: PlanStorage) -> Result<usize, TraceError> {
    let count = trace.storages.len();
    if (storage.0 as usize) < count {
        return Ok(storage.0 as usize);
    }
    let name = trace.ops[op].name.clone();
    Err(TraceError::NoSuchStorage { op: OpIndex(op as u32), name, storage, count })
}

fn life_error(trace: &Trace, op: usize, storage: PlanStorage, what: &'static str) -> TraceError {
    TraceError::Life {
        op: OpIndex(op as u32),
        name: trace.ops[op].name.clone(),
        storage,
        identity: trace.storage(storage).identity.to_string(),
        what,
    }
}
