//! The parts that a plan file's rows move: what they must be, and where storages are cut for them.
//!
//! Rows alone say it: the parts of a storage are what they move, and what lies between is a part,
//! too, which only moves where memory is needed at once.

use super::{NamedBytes, PlanError};
use crate::migration::Migration;
use crate::parts::{Cuts, PART_UNIT};
use crate::trace::{Identity, PlanStorage, Trace};
use crate::units::ByteRange;
use std::collections::{BTreeMap, HashMap};

type NamedRow = Migration<NamedBytes>;

/// A part, and the first row that moves it.
type MovedPart = (ByteRange, usize);

/// The parts in order of each storage of which a row moves some bytes alone.
///
/// # Errors
/// A part that begins where none can, or is empty; two that overlap.
pub(super) fn by_storage(
    rows: &[NamedRow],
) -> Result<BTreeMap<&Identity, Vec<MovedPart>>, PlanError> {
    let mut found: BTreeMap<&Identity, Vec<MovedPart>> = BTreeMap::new();
    let mut whole: HashMap<&Identity, usize> = HashMap::new();
    for (index, row) in rows.iter().enumerate() {
        let NamedBytes { storage, bytes } = &row.storage;
        let Some(bytes) = *bytes else {
            whole.entry(storage).or_insert(index);
            continue;
        };
        if !bytes.begin.0.is_multiple_of(PART_UNIT) {
            let why = format!("but a part begins at a multiple of {PART_UNIT} bytes");
            return Err(wrong(rows, (bytes, index), why));
        }
        if bytes.length.0 == 0 {
            return Err(wrong(rows, (bytes, index), "but a part has bytes".to_owned()));
        }
        found.entry(storage).or_default().push((bytes, index));
    }
    for (storage, parts) in &mut found {
        parts.sort_unstable();
        parts.dedup_by_key(|(bytes, _)| *bytes);
        if let Some(at) = whole.get(storage) {
            return Err(wrong(rows, parts[0], format!("and row {at} moves all of it")));
        }
        let overlap = parts.windows(2).find(|pair| pair[1].0.begin < pair[0].0.end());
        if let Some(&[one, other]) = overlap {
            let (first, second) = if one.1 < other.1 { (one, other) } else { (other, one) };
            let why = format!("some of which row {} moves, too", first.1);
            return Err(wrong(rows, second, why));
        }
    }
    Ok(found)
}

/// Returns the cuts of the storages of a step with whole storages by which the rows can move their
/// parts.
///
/// # Errors
/// As [`by_storage`], and where the step's storages have no such parts.
pub(super) fn cuts(rows: &[NamedRow], whole: &Trace) -> Result<Cuts, PlanError> {
    let parts = by_storage(rows)?;
    let mut cuts = Cuts::default();
    for (index, storage) in whole.storages.iter().enumerate() {
        let Some(parts) = parts.get(&storage.identity) else { continue };
        if storage.identity == Identity::Arrival {
            continue;
        }
        for &part in parts {
            let (length, end) = (part.0.length.0, part.0.end());
            if end > storage.size {
                return Err(wrong(rows, part, format!("which has {} bytes", storage.size.0)));
            }
            if !length.is_multiple_of(PART_UNIT) && end != storage.size {
                let why = format!("but all parts but the last are multiples of {PART_UNIT} bytes");
                return Err(wrong(rows, part, why));
            }
        }
        let ends = parts.iter().flat_map(|(bytes, _)| [bytes.begin, bytes.end()]);
        cuts.cut(PlanStorage(index as u32), ends.filter(|at| *at < storage.size));
    }
    Ok(cuts)
}

fn wrong(rows: &[NamedRow], (bytes, row): MovedPart, why: String) -> PlanError {
    let storage = rows[row].storage.storage.to_string();
    PlanError::Range { row, storage, bytes, why }
}
