//! Commits that are lost: what a share goes back to without them, and what can still be told of
//! them.

use std::collections::BTreeSet;

use super::change_log::{LogMedia, LogPlace};
use super::copies::{CheckpointRead, Head};
use super::log_copies::LogCopies;
use super::recovered::RecoveredIndex;
use super::recovery::RecoveryError;
use crate::layout::{
    BlockFormat, CHECKPOINT_HEADER_BYTES, Change, Checkpoint, CheckpointClaim, LogPoint,
    RECORD_HEADER_BYTES, RecordHead, decodable_changes,
};

/// Commits that no copy of a share's index has as a whole, with all that came after the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostCommits {
    /// The reason why they are lost.
    pub why: RecoveryError,
    /// The last checkpoint or record that is there.
    pub kept: LogPoint,
    /// The last that is known of.
    pub last: LogPoint,
    /// Changes of the lost commits that are missing without them, as far as they can still be
    /// decoded: tensors, seals, deletions.
    pub changes: BTreeSet<String>,
}

impl LostCommits {
    /// Returns whether the same commits are lost, whatever the reason.
    pub fn loses_the_same(&self, other: &Self) -> bool {
        (self.kept, self.last, &self.changes) == (other.kept, other.last, &other.changes)
    }
}

/// Readable remains behind the end of a log.
pub(super) struct Remains {
    pub(super) last: LogPoint,
    /// The newest epoch that anything claims.
    pub(super) newest: u64,
    changes: Vec<Change>,
}

impl Remains {
    /// Reads both logs, the one that holds from `from` on and the other, and newer checkpoints.
    pub(super) fn read<M: LogMedia>(
        place: &LogPlace,
        media: &M,
        heads: &[Vec<(u8, Head)>; 2],
        (log, from, other): (&mut LogCopies, u64, &mut LogCopies),
        end: LogPoint,
    ) -> Self {
        let mut remains = Self { last: end, newest: end.epoch, changes: Vec::new() };
        let is_behind = |head: &RecordHead| place.is_ours(head) && head.point() > end;
        for (log, mut from) in [(log, from as usize), (other, 0)] {
            while let Some((at, head)) = log.find(from, is_behind) {
                let content = log.remains(at, &head);
                remains.add(head.point(), content.get(RECORD_HEADER_BYTES..));
                from = at + crate::layout::BLOCK_BYTES as usize;
            }
        }
        for (slot, heads) in heads.iter().enumerate() {
            let claims = heads.iter().filter_map(|(copy, head)| Some((*copy, head.claim()?)));
            for (copy, claim) in claims.filter(|(_, claim)| claim.epoch > end.epoch) {
                let content = checkpoint(place, media, (copy, slot), claim);
                let start = Checkpoint::payload_start(claim.segments.into()) as usize;
                let point = LogPoint { epoch: claim.epoch, sequence: 0 };
                remains.add(point, content.get(start.max(CHECKPOINT_HEADER_BYTES)..));
            }
        }
        remains
    }

    fn add(&mut self, point: LogPoint, payload: Option<&[u8]>) {
        self.last = self.last.max(point);
        self.newest = self.newest.max(point.epoch);
        self.changes.extend(decodable_changes(payload.unwrap_or_default()));
    }

    /// Returns the changes that an index lacks.
    pub(super) fn lacking(&self, index: &RecoveredIndex) -> BTreeSet<String> {
        let RecoveredIndex { tensors, seals, .. } = index;
        let tensor = |id| tensors.binary_search_by_key(&id, |it| it.id).ok().map(|at| &tensors[at]);
        let seal = |name: &str| seals.iter().find(|seal| *seal.name == *name);
        let lacks = |change: &Change| match change {
            Change::Put(entry) if tensor(entry.id) != Some(entry) => Some(entry.key().to_string()),
            Change::Delete(id) => {
                let stands = tensor(*id)?;
                Some(format!("the deletion of {}", stands.key()))
            }
            Change::Seal(lost) if seal(&lost.name) != Some(lost) => {
                Some(format!("the seal {:?}", lost.name))
            }
            Change::Drop(name) => {
                seal(name)?;
                Some(format!("the dropping of the seal {name:?}"))
            }
            Change::Put(_) | Change::Hold(_) | Change::Seal(_) => None,
        };
        self.changes.iter().filter_map(lacks).collect()
    }
}

/// The content of a checkpoint up to the first block that no copy has. Without block checksums
/// nothing says which block that is.
fn checkpoint<M: LogMedia>(
    place: &LogPlace,
    media: &M,
    at: (u8, usize),
    claim: &CheckpointClaim,
) -> Vec<u8> {
    let mut read = CheckpointRead::of(place, media, at, claim);
    if place.format == BlockFormat::Plain {
        return Vec::new();
    }
    let good =
        read.lost.map_or(read.bytes.len(), |block| block * crate::layout::BLOCK_BYTES as usize);
    read.bytes.truncate(good);
    place.format.take_out(read.bytes)
}
