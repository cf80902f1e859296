//! Facts on each storage beyond what the residency machine knows: what people call it and what it
//! is for.

use std::sync::Arc;

use rustc_hash::FxHashMap;
use tidelog_planner::report::Unmovable;
use tidelog_planner::residency::{Residency, StorageId};
use tidelog_planner::trace::StorageKind;
use tidelog_planner::units::OpIndex;

use super::parts::StorageParts;
use crate::error::Failure;

/// Storage numbers stay below this, because tables are as long as the largest.
pub(crate) const STORAGES_MAX: u32 = 1 << 24;

/// A storage that came into being.
pub(crate) struct StorageBirth {
    pub(crate) storage: u64,
    pub(crate) size: u64,
    pub(crate) movable: bool,
    /// The op of the step that made it; `None`: made outside of a step.
    pub(crate) op: Option<u32>,
    /// Output slot of that op.
    pub(crate) slot: u16,
}

/// The live storages.
#[derive(Default)]
pub(super) struct Storages {
    known: FxHashMap<StorageId, Known>,
}

struct Known {
    kind: StorageKind,
    name: Option<Arc<str>>,
    movable: bool,
    /// The op of its step that made it, and which output it is.
    birth: Option<(OpIndex, u16)>,
    /// Number of pins by the caller.
    pins: u32,
}

/// A storage, as long as it takes to find words for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    /// The machine's: the storage, or a part of it.
    pub(super) storage: StorageId,
    /// The storage.
    pub(super) whole: StorageId,
    pub(super) name: Option<Arc<str>>,
    /// The op of its step that made it, and which output it is.
    pub(super) birth: Option<(OpIndex, u16)>,
}

/// Description of a storage for plans.
pub(super) struct Description<'a> {
    pub(super) name: Option<&'a str>,
    pub(super) kind: StorageKind,
    pub(super) movable: bool,
}

impl Storages {
    pub(super) fn contains(&self, storage: StorageId) -> bool {
        self.known.contains_key(&storage)
    }

    pub(super) fn born(
        &mut self,
        storage: StorageId,
        movable: bool,
        birth: Option<(OpIndex, u16)>,
    ) {
        let kind = if birth.is_some() { StorageKind::Activation } else { StorageKind::Other };
        let known = Known { kind, name: None, movable, birth, pins: 0 };
        self.known.insert(storage, known);
    }

    /// Returns whether the storage was alive.
    pub(super) fn died(&mut self, storage: StorageId) -> bool {
        self.known.remove(&storage).is_some()
    }

    pub(super) fn name(
        &mut self,
        storage: StorageId,
        kind: StorageKind,
        name: &str,
    ) -> Result<(), Failure> {
        let known = self.known.get_mut(&storage).ok_or_else(|| unknown(storage))?;
        known.kind = kind;
        known.name = Some(name.into());
        Ok(())
    }

    pub(super) fn pin(&mut self, storage: StorageId, on: bool) {
        if let Some(Known { pins, .. }) = self.known.get_mut(&storage) {
            *pins = if on { pins.saturating_add(1) } else { pins.saturating_sub(1) };
        }
    }

    /// Refuses a storage that is not alive.
    pub(super) fn check(&self, storage: StorageId) -> Result<(), Failure> {
        if self.contains(storage) { Ok(()) } else { Err(unknown(storage)) }
    }

    pub(super) fn kind(&self, storage: StorageId) -> StorageKind {
        self.known.get(&storage).map_or(StorageKind::Other, |known| known.kind)
    }

    pub(super) fn label(&self, whole: StorageId, storage: StorageId) -> Label {
        let known = self.known.get(&whole);
        Label {
            storage,
            whole,
            name: known.and_then(|known| known.name.clone()),
            birth: known.and_then(|known| known.birth),
        }
    }

    pub(super) fn describe(&self, storage: StorageId) -> Description<'_> {
        match self.known.get(&storage) {
            Some(Known { name, kind, movable, .. }) => {
                Description { name: name.as_deref(), kind: *kind, movable: *movable }
            }
            // Dead by now: an op made it, or nobody named it.
            None => Description { name: None, kind: StorageKind::Activation, movable: true },
        }
    }

    /// The name of a storage, or its number.
    pub(super) fn text(&self, storage: StorageId) -> String {
        self.label(storage, storage).text()
    }

    /// The storages that cannot leave, with the sizes that the machine knows, and why.
    pub(super) fn unmovable(&self, machine: &Residency, parts: &StorageParts) -> Vec<Unmovable> {
        let mut entries = Vec::new();
        for (id, bytes, _) in machine.storages() {
            let id = parts.whole(id);
            let Some(known) = self.known.get(&id) else { continue };
            let why = match known {
                Known { movable: false, .. } => "its memory is not the framework's own",
                Known { pins: 1.., .. } => "pinned: something outside sees its memory",
                _ => continue,
            };
            if bytes.0 > 0 {
                entries.push(Unmovable { name: self.text(id), bytes, why: why.to_owned() });
            }
        }
        entries
    }
}

impl Label {
    /// The storage's name, or its number.
    pub(super) fn text(&self) -> String {
        self.name.as_deref().map_or_else(|| self.whole.to_string(), str::to_owned)
    }
}

fn unknown(storage: StorageId) -> Failure {
    Failure::invalid(format!("{storage} is not known: report its birth first"))
}
