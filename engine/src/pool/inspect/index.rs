//! A share's durable tensors, read without changing anything, and each copy of the index by itself.

use std::collections::HashMap;

use crate::layout::{BLOCK_BYTES, Checkpoint, Geometry, HeldVersion, Seal, TensorEntry, TensorId};
use crate::log::{
    ChangeLog, Contents, IndexRoom, IndexUse, LogMedia, LogPlace, Recovered, SealUse, Space,
    SpaceUse, recover,
};
use crate::pool::SealDescription;

/// A share's index as the next opener will find it.
#[derive(Clone, Debug)]
pub struct IndexView {
    /// Counts the checkpoints since the pool was formatted.
    pub epoch: u64,
    /// Every durable tensor, by id.
    pub tensors: Vec<TensorEntry>,
    /// Every version that seals hold, by number.
    pub held: Vec<HeldVersion>,
    /// Every seal, by name.
    pub seals: Vec<SealDescription>,
    /// The versions of each seal.
    pub sealed: Vec<Seal>,
    /// What seals hold.
    pub seal_use: SealUse,
    /// How the space is used.
    pub space: SpaceUse,
    /// How the room for the index is used.
    pub usage: IndexUse,
    /// The copies, one on each metadata device that is at hand.
    pub copies: Vec<IndexCopy>,
}

/// One device's copy of a share's index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexCopy {
    /// The device's place.
    pub device: u8,
    /// Whether this copy alone says the same as all together.
    pub state: CopyState,
}

/// What one copy of an index is, beside all of them together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// It says the same.
    Whole,
    /// It lacks what was written last, as after a process that was killed: the next open writes it
    /// again.
    Behind(String),
    /// Something is wrong with it.
    Damaged(String),
}

impl IndexView {
    /// Everything that can be read: every tensor, then every version that seals alone hold; each
    /// with the names of the seals that hold it, and whether it stands under its id.
    pub fn readable(&self) -> impl Iterator<Item = (&TensorEntry, Vec<String>, bool)> {
        let mut names: HashMap<u64, Vec<String>> = HashMap::new();
        for seal in &self.sealed {
            for number in &seal.versions {
                names.entry(*number).or_default().push(seal.name.to_string());
            }
        }
        let mut standing: HashMap<TensorId, Vec<String>> = HashMap::new();
        let mut alone = Vec::new();
        for held in &self.held {
            let names = names.remove(&held.number).unwrap_or_default();
            let current = self.tensors.binary_search_by_key(&held.entry.id, |it| it.id);
            if current.is_ok_and(|at| held.entry.is_at(&self.tensors[at])) {
                standing.insert(held.entry.id, names);
            } else {
                alone.push((&held.entry, names, false));
            }
        }
        let tensors = self.tensors.iter();
        tensors.map(move |it| (it, standing.remove(&it.id).unwrap_or_default(), true)).chain(alone)
    }
}

/// Reads the index of a share.
///
/// # Errors
/// Why it cannot be read from any copy.
pub(super) fn read_index<M: LogMedia>(
    pool: u128,
    share: u32,
    geometry: &Geometry,
    media: &M,
) -> Result<IndexView, String> {
    let place = LogPlace::new(pool, share, geometry).ok_or("there is no such share")?;
    let all = recover(place, media).map_err(|error| error.to_string())?;
    let alone = |device| {
        let one = LogPlace { only: Some(device), ..place };
        let found = match recover(one, media) {
            Ok(found) => found,
            Err(error) => return CopyState::Damaged(error.to_string()),
        };
        let same = found.log.epoch() == all.log.epoch() && found.index == all.index;
        match (same, lacks_the_last(media, (&place, device), &found.log, &all.log)) {
            (true, _) => CopyState::Whole,
            (false, true) => CopyState::Behind(
                "it lacks the last commit, which was on its way when a process ended; the next open writes it"
                    .to_owned(),
            ),
            (false, false) => {
                CopyState::Damaged("it lacks commits that another copy has, or has others".to_owned())
            }
        }
    };
    let whole = |device| {
        // Where all copies are damaged, an older checkpoint with its change log may well give the
        // same.
        match all.passed_over.iter().find(|(at, _)| *at == device) {
            Some((_, epoch)) => CopyState::Damaged(format!(
                "its newest checkpoint, of epoch {epoch}, is not whole; the one of epoch {} and its change log hold",
                all.log.epoch()
            )),
            None => alone(device),
        }
    };
    let copies = place.copies().map(|device| IndexCopy { device, state: whole(device) });
    let copies = copies.collect();
    let Recovered { index, index_segments, log, .. } = all;
    let (tensors, held, sealed) = (index.tensors.clone(), index.held.clone(), index.seals.clone());
    let space = Space::new(&place.area, geometry.segment_blocks());
    let room = IndexRoom::new(&place, index_segments, false);
    let contents = Contents::recovered(space, room, index);
    let (space, usage) = (contents.space_use(), contents.index_use());
    let seals = sealed.iter().map(|seal| SealDescription::of(&contents, seal)).collect();
    let (epoch, seal_use) = (log.epoch(), contents.seal_use());
    Ok(IndexView { epoch, tensors, held, seals, sealed, seal_use, space, usage, copies })
}

/// Whether a copy is as all are but for what is written last. A record is written once the one
/// before it is on the media of all devices, and so is a checkpoint: after a crash copies differ by
/// one of them.
fn lacks_the_last<M: LogMedia>(
    media: &M,
    (place, copy): (&LogPlace, u8),
    one: &ChangeLog,
    all: &ChangeLog,
) -> bool {
    if one.epoch() == all.epoch() {
        return one.records() + 1 == all.records();
    }
    one.epoch() + 1 == all.epoch()
        && all.records() == 0
        && has_older(media, (place, copy), all.epoch())
}

/// Whether the checkpoint before the last one still begins the slot of that of this epoch, or
/// nothing ever did: then it was not yet begun there. What is neither was damaged.
fn has_older<M: LogMedia>(media: &M, (place, copy): (&LogPlace, u8), epoch: u64) -> bool {
    let slot = &place.area.slots[(epoch + 1) as usize % 2];
    let Ok(head) = media.read(copy, slot.checkpoint_offset, BLOCK_BYTES) else {
        return false;
    };
    match Checkpoint::claim(&head) {
        Some(claim) => claim.epoch.checked_add(2) == Some(epoch),
        None => epoch == 2 && head.iter().all(|byte| *byte == 0),
    }
}
