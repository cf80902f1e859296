//! A share's durable tensors, read without changing anything, and each copy of the index by itself.

use std::collections::HashMap;

use crate::layout::{
    BLOCK_BYTES, Checkpoint, HeldVersion, LogMark, LogPoint, Seal, Superblock, TensorEntry,
    TensorId, is_zero,
};
use crate::log::{
    ChangeLog, Contents, IndexRoom, IndexUse, LogMedia, LogPlace, Recovered, SealUse, Space,
    SpaceUse, recover,
};
use crate::pool::SealDescription;
use crate::units::{DeviceIndex, DeviceSet};

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
    /// Use of space by seals.
    pub seal_use: SealUse,
    /// Use of the space.
    pub space: SpaceUse,
    /// Use of the index's capacity.
    pub usage: IndexUse,
    /// The copies, one on each metadata device that is at hand.
    pub copies: Vec<IndexCopy>,
}

/// One device's copy of a share's index.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IndexCopy {
    /// The device's place.
    pub device: u8,
    /// State of this copy beside all copies together.
    pub state: CopyState,
}

/// State of one copy of an index, compared with all of them together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CopyState {
    /// The copy is whole.
    Whole,
    /// The copy lacks the last write, as after a process that was killed: the next open writes it
    /// again.
    Behind(String),
    /// The copy is damaged.
    Damaged(String),
}

impl IndexView {
    pub(super) fn of(place: &LogPlace, recovered: Recovered, copies: Vec<IndexCopy>) -> Self {
        let Recovered { index, index_segments, log, .. } = recovered;
        let (tensors, held) = (index.tensors.clone(), index.held.clone());
        let sealed = index.seals.clone();
        let room = IndexRoom::new(place, index_segments, false);
        let contents = Contents::recovered(Space::at(place), room, index);
        let (space, usage) = (contents.space_use(), contents.index_use());
        let seals = sealed.iter().map(|seal| SealDescription::of(&contents, seal)).collect();
        let (epoch, seal_use) = (log.epoch(), contents.seal_use());
        Self { epoch, tensors, held, seals, sealed, seal_use, space, usage, copies }
    }

    /// Iterates over all that can be read: every tensor, then every version that seals alone hold;
    /// each with the names of the seals that hold it, and whether it stands under its id.
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

/// Reads the index of a share, of which `mark` says how far it went, of a pool from which devices
/// may be missing.
///
/// # Errors
/// Why it cannot be read from any copy.
pub(super) fn read_index<M: LogMedia>(
    superblock: &Superblock,
    share: u32,
    (mark, missing): (LogMark, DeviceSet),
    media: &M,
) -> Result<IndexView, String> {
    let place = LogPlace::of(superblock, share).ok_or("there is no such share")?;
    let place = place.without(missing, missing);
    let all = recover(place, mark, media).map_err(|error| error.to_string())?;
    let copies = IndexCopies { place, mark, media, all: &all };
    let copies = place.copies().map(|device| copies.copy(device)).collect();
    Ok(IndexView::of(&place, all, copies))
}

/// The copies of an index, beside what all together say.
struct IndexCopies<'a, M> {
    place: LogPlace,
    mark: LogMark,
    media: &'a M,
    all: &'a Recovered,
}

impl<M: LogMedia> IndexCopies<'_, M> {
    fn copy(&self, device: u8) -> IndexCopy {
        let state = self.unread(device).or_else(|| self.newer_checkpoint(device));
        let state = state.unwrap_or_else(|| match self.alone(device) {
            CopyState::Whole => self.next_record(device).unwrap_or(CopyState::Whole),
            other => other,
        });
        IndexCopy { device, state }
    }

    /// Returns the unreadable part of a copy.
    fn unread(&self, copy: u8) -> Option<CopyState> {
        let lies_on = |device| self.place.may_lie_on(copy, DeviceIndex(device));
        let mut unread = self.all.unread.iter().filter(|it| lies_on(it.device));
        let (first, others) = (unread.next()?, unread.count());
        let others = if others == 0 { String::new() } else { format!(", and {others} more") };
        Some(CopyState::Damaged(format!("{first}{others}")))
    }

    /// Returns the state of a copy of a checkpoint that is newer than the one that holds. Where all
    /// copies of it are damaged, an older one with its change log may well give the same index.
    fn newer_checkpoint(&self, device: u8) -> Option<CopyState> {
        let holds = self.all.log.epoch();
        let claimed = self.all.passed_over.iter().find(|(at, _)| *at == device);
        let known = Some(self.mark.end.epoch).filter(|epoch| *epoch > holds);
        let epoch = known.or(claimed.map(|(_, epoch)| *epoch))?;
        Some(if self.is_known() && epoch > self.mark.end.epoch {
            CopyState::Behind(format!(
                "a checkpoint of epoch {epoch} was on its way when a process ended; the one of epoch {holds} and its change log hold"
            ))
        } else {
            CopyState::Damaged(format!(
                "its newest checkpoint, of epoch {epoch}, is not whole; the one of epoch {holds} and its change log hold"
            ))
        })
    }

    /// Returns the state of this copy without the others.
    fn alone(&self, device: u8) -> CopyState {
        let one = LogPlace { only: Some(device), ..self.place };
        let found = match recover(one, self.mark, self.media) {
            Ok(found) => found,
            Err(error) => return CopyState::Damaged(error.to_string()),
        };
        if found.log.epoch() == self.all.log.epoch() && found.index == self.all.index {
            CopyState::Whole
        } else if self.lacks_the_last(device, &found.log) {
            CopyState::Behind(
                "it lacks the last commit, which was on its way when a process ended; the next open writes it"
                    .to_owned(),
            )
        } else {
            CopyState::Damaged("it lacks commits that another copy has, or has others".to_owned())
        }
    }

    /// Returns the state of a record behind the last one that is whole.
    fn next_record(&self, device: u8) -> Option<CopyState> {
        let (epoch, next) = (self.all.log.epoch(), self.all.log.records() + 1);
        if !self.all.torn.contains(&device) {
            return None;
        }
        Some(if self.mark.ends_at(LogPoint { epoch, sequence: next - 1 }) {
            CopyState::Damaged(format!(
                "change record {next} of epoch {epoch} seems to follow the last one, and no commit did"
            ))
        } else {
            CopyState::Behind(format!(
                "change record {next} of epoch {epoch} is not whole: it was on its way when a \
                 process ended, or was damaged since; the next open goes on without it"
            ))
        })
    }

    /// Returns whether anything is known of how far the log went.
    fn is_known(&self) -> bool {
        self.mark != LogMark::NONE
    }

    /// Returns whether a copy is as all are but for what is written last, as a crash leaves it. A
    /// record is written once the one before it is on the media of all devices, and so is a
    /// checkpoint: after a crash copies differ by one of them. What the mark knows was on the media
    /// of all.
    fn lacks_the_last(&self, copy: u8, one: &ChangeLog) -> bool {
        let (epoch, sequence) = (self.all.log.epoch(), self.all.log.records());
        if (LogPoint { epoch, sequence }) <= self.mark.end {
            return false;
        }
        if one.epoch() == epoch {
            return one.records() + 1 == sequence;
        }
        let is_last = one.epoch() + 1 == epoch && sequence == 0;
        is_last && (self.is_known() || self.has_older(copy, epoch))
    }

    /// Returns whether the checkpoint before the last one still begins the slot of that of this
    /// epoch, or nothing ever did: then it was not yet begun there. What is neither was damaged,
    /// where nothing else is known.
    fn has_older(&self, copy: u8, epoch: u64) -> bool {
        let slot = &self.place.area.slots[(epoch + 1) as usize % 2];
        let Ok(head) = self.media.read(copy, slot.checkpoint_offset, BLOCK_BYTES) else {
            return false;
        };
        match Checkpoint::claim(&head) {
            Some(claim) => claim.epoch.checked_add(2) == Some(epoch),
            None => epoch == 2 && is_zero(&head),
        }
    }
}
