//! Contents of a share, once its change log is applied to its checkpoint.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::change_log::LogPlace;
use crate::layout::{Change, Checkpoint, HeldVersion, Run, Seal, TensorEntry, TensorId};

/// Contents of a share.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredIndex {
    /// Every durable tensor, by id.
    pub tensors: Vec<TensorEntry>,
    /// Every version that a seal holds, by number. One that lies where its tensor lies is its
    /// tensor.
    pub held: Vec<HeldVersion>,
    /// Every seal, by name.
    pub seals: Vec<Seal>,
    /// Runs of all tensors, by place.
    pub runs: Vec<(Run, TensorId)>,
}

impl RecoveredIndex {
    /// The index once the log's changes are applied to the checkpoint, in the order of ids, numbers
    /// and names. A version that no seal names any more is not held.
    pub(super) fn of(checkpoint: Checkpoint, changes: Vec<Change>) -> Self {
        let Checkpoint { mut tensors, held, seals, .. } = checkpoint;
        // The last change of an id, of a number, of a name decides.
        let mut last: HashMap<TensorId, Option<TensorEntry>> = HashMap::new();
        let mut held: BTreeMap<u64, HeldVersion> =
            held.into_iter().map(|it| (it.number, it)).collect();
        let mut seals: BTreeMap<Box<str>, Seal> =
            seals.into_iter().map(|it| (it.name.clone(), it)).collect();
        for change in changes {
            match change {
                Change::Put(entry) => drop(last.insert(entry.id, Some(entry))),
                Change::Delete(id) => drop(last.insert(id, None)),
                Change::Hold(version) => drop(held.insert(version.number, version)),
                Change::Seal(seal) => drop(seals.insert(seal.name.clone(), seal)),
                Change::Drop(name) => drop(seals.remove(&name)),
            }
        }
        tensors.retain(|entry| !last.contains_key(&entry.id));
        tensors.extend(last.into_values().flatten());
        tensors.sort_by_key(|entry| entry.id);
        let named: HashSet<u64> = seals.values().flat_map(|seal| &seal.versions).copied().collect();
        held.retain(|number, _| named.contains(number));
        let (held, seals) = (held.into_values().collect(), seals.into_values().collect());
        Self { tensors, held, seals, runs: Vec::new() }
    }

    /// Finds the runs of all tensors by place, if the index can be: runs inside the share, one
    /// checksum per piece, no two versions in one place, and seals of what is there.
    pub(super) fn check(&mut self, place: &LogPlace) -> Result<(), String> {
        self.runs = checked_runs(place, self)?;
        Ok(())
    }

    /// Returns whether a tensor lies in a segment.
    pub(super) fn is_in(&self, segment: u32) -> bool {
        let first = self.runs.partition_point(|(run, _)| run.segment < segment);
        self.runs.get(first).is_some_and(|(run, _)| run.segment == segment)
    }
}

fn checked_runs(place: &LogPlace, index: &RecoveredIndex) -> Result<Vec<(Run, TensorId)>, String> {
    let RecoveredIndex { tensors, held, seals, .. } = index;
    if let Some(pair) = tensors.windows(2).find(|pair| pair[0].id == pair[1].id) {
        return Err(format!("{} is there twice", pair[0].id));
    }
    check_seals(held, seals)?;
    let mut runs: Vec<(Run, TensorId)> = Vec::with_capacity(tensors.len() + held.len());
    for entry in tensors {
        check_entry(place, entry)?;
        runs.extend(entry.runs.iter().map(|run| (*run, entry.id)));
    }
    let mut standing = HashSet::new();
    for HeldVersion { number, entry } in held {
        check_entry(place, entry)?;
        let stands = tensors.binary_search_by_key(&entry.id, |tensor| tensor.id);
        let stands = stands.ok().map(|at| &tensors[at]).filter(|it| entry.is_at(it));
        match stands {
            Some(same) if (same.length, &same.checksums) != (entry.length, &entry.checksums) => {
                return Err(format!("version {number} of {} lies where another lies", entry.id));
            }
            Some(_) if !standing.insert(entry.id) => {
                return Err(format!("{} is held twice where it lies", entry.id));
            }
            Some(_) => (),
            None => runs.extend(entry.runs.iter().map(|run| (*run, entry.id))),
        }
    }
    runs.sort_unstable_by_key(|(run, _)| (u64::from(run.segment) << 32) | u64::from(run.block));
    for pair in runs.windows(2) {
        let ((before, one), (after, other)) = (pair[0], pair[1]);
        if before.segment == after.segment && before.end() > u64::from(after.block) {
            return Err(format!("{one} and {other} overlap in segment {}", after.segment));
        }
        if before.segment == after.segment && before.set != after.set {
            let segment = after.segment;
            return Err(format!("{one} and {other} in segment {segment} differ in their devices"));
        }
        if before.segment == after.segment && before.copies != after.copies {
            let segment = after.segment;
            return Err(format!("{one} and {other} in segment {segment} differ in their copies"));
        }
    }
    Ok(runs)
}

/// Checks that an entry lies inside of its share and has a checksum for each piece.
fn check_entry(place: &LogPlace, entry: &TensorEntry) -> Result<(), String> {
    let (segments, stripes) = (place.segments(), &place.stripes);
    let is_outside = |run: &&Run| !segments.contains(&run.segment) || !stripes.has(run);
    if let Some(run) = entry.runs.iter().find(is_outside) {
        return Err(format!("{} has {run:?} outside of share {}", entry.id, place.share));
    }
    let (found, pieces) = (entry.checksums.len(), stripes.count(&entry.runs));
    if found != pieces {
        return Err(format!("{} has {found} checksums for {pieces} pieces", entry.id));
    }
    Ok(())
}

/// Checks that every seal names versions that are there, and each tensor once.
fn check_seals(held: &[HeldVersion], seals: &[Seal]) -> Result<(), String> {
    for Seal { name, versions, .. } in seals {
        let mut ids = HashSet::with_capacity(versions.len());
        for number in versions {
            let Ok(at) = held.binary_search_by_key(number, |it| it.number) else {
                return Err(format!(
                    "the seal {name:?} names version {number}, which is not there"
                ));
            };
            let id = held[at].entry.id;
            if !ids.insert(id) {
                return Err(format!("the seal {name:?} names {id} twice"));
            }
        }
    }
    Ok(())
}
