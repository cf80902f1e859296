//! Recovery: what a share contains, from what stands on the media.
//!
//! The newest valid checkpoint of both slots and both devices holds; the records of its change log
//! are applied in order up to the first that no copy has, which a crash tore. What a crash cannot
//! have done (a gap in the log, a log without its checkpoint, one that ends before the mark which
//! the share's last event left) is damage and is reported, never taken for the end. Nor is a block
//! that cannot be read.
//!
//! Whatever stands there, recovery costs a few times the bytes that it reads: headers say whether a
//! record is of interest, a [`LogImage`](crate::layout::LogImage) or the checksum of its block
//! whether it is whole, and only what is applied is decoded.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::HashSet;

use thiserror::Error;

use super::change_log::{ChangeLog, LogEnd, LogMedia, LogPlace};
use super::copies::{CheckpointRead, Head, Unread};
use super::log_copies::LogCopies;
use super::lost::{LostCommits, Remains};
use super::recovered::RecoveredIndex;
use crate::layout::{
    BlockFormat, CHECKPOINT_HEADER_BYTES, Change, Checkpoint, CheckpointClaim, CheckpointError,
    LogMark, LogPoint, RecordHead,
};

/// Contents of the media, as recovered.
#[derive(Debug)]
pub struct Recovered {
    /// Contents of the share.
    pub index: RecoveredIndex,
    /// The segments that each slot's checkpoint goes on in; nothing else lies there.
    pub index_segments: [Vec<u32>; 2],
    /// The change log, ready to be continued.
    pub log: ChangeLog,
    /// Newer checkpoints that devices claim to have and that are not whole: torn by a crash before
    /// anything followed them, or damaged since. A device and an epoch each.
    pub passed_over: Vec<(u8, u64)>,
    /// Devices on which the record behind the last one is claimed to stand, and is not whole on any
    /// device.
    pub torn: Vec<u8>,
    /// Blocks that could not be read.
    pub unread: Vec<Unread>,
    /// Commits that it goes on without, if it was to.
    pub lost: Option<LostCommits>,
    /// True if the next commit may follow directly. If not, a checkpoint must be written first:
    /// records stand in the log that may be on one device only, or not yet on media.
    pub settled: bool,
}

/// The reason why a share cannot be recovered.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum RecoveryError {
    /// No valid checkpoint on any device.
    #[error(
        "share {share} has no valid index checkpoint on any of its {devices} metadata device(s){}",
        unread.as_ref().map(|unread| format!(": {unread}")).unwrap_or_default()
    )]
    NoCheckpoint {
        /// The share.
        share: u32,
        /// Devices that were tried.
        devices: u8,
        /// The first of what could not be read.
        unread: Option<Unread>,
    },
    /// A checkpoint is damaged that brought a commit or that commits continue: they would be lost.
    #[error(
        "the index checkpoint of epoch {epoch} is damaged on every metadata device, and commits need it"
    )]
    CheckpointDamaged {
        /// The checkpoint's epoch.
        epoch: u64,
    },
    /// Records of the change log are damaged: commits would be lost.
    #[error(
        "change record {expected} of epoch {epoch} is damaged or missing on every metadata device, and the log had reached record {last}"
    )]
    LogDamaged {
        /// The epoch.
        epoch: u64,
        /// The first damaged record.
        expected: u64,
        /// The last one known to have been there, which may be whole.
        last: u64,
    },
    /// The unreadable blocks may be commits that no other copy has.
    #[error("{unread}, where {what} may stand that no other copy has as a whole")]
    Unreadable {
        /// A description of what may be stored there.
        what: String,
        /// The first of it.
        unread: Unread,
    },
    /// Checksums are right and the content cannot be: the media did not do this.
    #[error("the index contradicts itself: {0}")]
    Contradiction(String),
}

/// Epochs end here: counting from 1, no share lives to see it, and there is always a next one.
pub const EPOCHS_END: u64 = 1 << 63;

/// Reads a share's index, of which `mark` says how far it went at least.
///
/// # Errors
/// See [`RecoveryError`]. A share that cannot be recovered whole is not recovered at all.
pub fn recover<M: LogMedia>(
    place: LogPlace,
    mark: LogMark,
    media: &M,
) -> Result<Recovered, RecoveryError> {
    Reader::new(place, mark, media).recover()
}

/// Recovers the index, and where commits are lost, its contents without them, with the first of
/// them and all that came after gone.
///
/// # Errors
/// There is nothing to go back to, or it contradicts itself.
pub fn recover_rest<M: LogMedia>(
    place: LogPlace,
    mark: LogMark,
    media: &M,
) -> Result<Recovered, RecoveryError> {
    Reader { goes_back: true, ..Reader::new(place, mark, media) }.recover()
}

/// Starts of the slots, in each copy.
type Heads = [Vec<(u8, Head)>; 2];

/// The checkpoint that holds.
struct Newest {
    slot: usize,
    checkpoint: Checkpoint,
    /// Header as on the media.
    header: Vec<u8>,
    /// Number of devices that have the checkpoint. One that has another of the same epoch (its own
    /// restored from a backup, say) does not.
    copies: usize,
    /// Newer ones that are not whole, by device and epoch.
    passed_over: Vec<(u8, u64)>,
    /// A part of these that cannot be read.
    hidden: Option<Unread>,
    unread: Vec<Unread>,
}

struct Reader<'a, M> {
    place: LogPlace,
    mark: LogMark,
    media: &'a M,
    /// True if the reader goes on without commits that are lost.
    goes_back: bool,
    /// Bytes of change logs that were checksummed.
    checksummed: Cell<u64>,
}

struct LogRead {
    changes: Vec<Change>,
    end: LogPoint,
    position: u64,
}

impl<'a, M: LogMedia> Reader<'a, M> {
    fn new(place: LogPlace, mark: LogMark, media: &'a M) -> Self {
        Self { place, mark, media, goes_back: false, checksummed: Cell::new(0) }
    }

    /// See [`recover`].
    fn recover(&self) -> Result<Recovered, RecoveryError> {
        let place = self.place;
        let heads = [0, 1].map(|slot| {
            let head = |copy| (copy, Head::read(&place, self.media, copy, slot));
            place.copies().map(head).collect::<Vec<_>>()
        });
        let newest = self.newest_checkpoint(&heads)?;
        let (slot, epoch) = (newest.slot, newest.checkpoint.epoch);
        if epoch >= EPOCHS_END {
            let what = format!("no share has written {epoch} checkpoints");
            return Err(RecoveryError::Contradiction(what));
        }
        let mut other = self.other_log(&heads[1 - slot], 1 - slot, epoch);
        let mut log = LogCopies::read(&place, self.media, slot, place.copies());
        let read = self.read_log(&mut log, epoch)?;
        let damage = self
            .damage(&mut log, &mut other, &read)
            .or_else(|| self.hidden(&heads[1 - slot], &newest, (&mut log, &other), &read));
        self.checksummed.update(|all| all + log.checksummed() + other.checksummed());
        let lost = match damage {
            Some(damage) if !self.goes_back => return Err(damage),
            Some(damage) => {
                let logs = (&mut log, read.position, &mut other);
                let remains = Remains::read(&place, self.media, &heads, logs, read.end);
                Some((damage, remains))
            }
            None => None,
        };

        let Newest { checkpoint, copies, passed_over, mut unread, .. } = newest;
        let (segments, end) = (checkpoint.segments.clone(), read.end);
        let mut index = RecoveredIndex::of(checkpoint, read.changes);
        index.check(&place).map_err(RecoveryError::Contradiction)?;
        if let Some(both) = segments.iter().find(|&&it| index.is_in(it)) {
            let what = format!("segment {both} holds tensors and the index");
            return Err(RecoveryError::Contradiction(what));
        }
        let mut index_segments = [Vec::new(), Vec::new()];
        index_segments[1 - slot] =
            self.segments_before(&heads[1 - slot], (1 - slot, epoch), &segments, &index);
        index_segments[slot] = segments;
        let is_next = self.next(end);
        let torn = log.begun(read.position as usize, is_next);
        unread.extend([log.unread, other.unread].into_iter().flatten());
        let all_copies = copies == place.copies().count() && passed_over.is_empty();
        let settled = end.sequence == 0
            && all_copies
            && unread.is_empty()
            && torn.is_empty()
            && lost.is_none()
            && end >= self.mark.end;
        // A checkpoint that the mark does not know may have brought a commit.
        let commit = if end == self.mark.end { self.mark.commit } else { end };
        let epoch = match &lost {
            Some((_, remains)) => self.epoch_behind(remains.newest, epoch)?,
            None => epoch,
        };
        let (sequence, position) = (end.sequence, read.position);
        let log = ChangeLog::resume(place, LogEnd { slot, epoch, sequence, position, commit });
        let lost = lost.map(|(why, remains)| LostCommits {
            why,
            kept: end,
            last: remains.last.max(self.mark.commit),
            changes: remains.lacking(&index),
        });
        Ok(Recovered { index, index_segments, log, passed_over, torn, unread, lost, settled })
    }

    /// The epoch whose next is beyond everything that was lost, and lies in the slot that the next
    /// after `holds` would: nothing of what was lost may ever continue it.
    fn epoch_behind(&self, newest: u64, holds: u64) -> Result<u64, RecoveryError> {
        let newest = newest.max(self.mark.end.epoch);
        if newest >= EPOCHS_END - 2 {
            let what = format!("no share has written {newest} checkpoints");
            return Err(RecoveryError::Contradiction(what));
        }
        Ok(newest + (newest - holds) % 2)
    }

    /// The newest valid checkpoint. Headers only claim an epoch, so the claims are tried from the
    /// newest on until one is whole; its other copies are not decoded.
    fn newest_checkpoint(&self, heads: &Heads) -> Result<Newest, RecoveryError> {
        let claims = heads.iter().zip(0..).flat_map(|(heads, slot)| {
            heads.iter().filter_map(move |(copy, head)| Some((head.claim()?, *copy, slot)))
        });
        let mut claims: Vec<(&CheckpointClaim, u8, usize)> = claims.collect();
        claims.sort_by_key(|(claim, ..)| Reverse(claim.epoch));
        let all_heads = heads.iter().flatten();
        let mut unread: Vec<Unread> =
            all_heads.filter_map(|(_, head)| head.unread().cloned()).collect();
        let mut newest: Option<Newest> = None;
        let (mut passed_over, mut hidden) = (Vec::new(), None);
        for (claim, copy, in_slot) in claims {
            let wanted = newest.as_ref().map(|newest| newest.checkpoint.epoch);
            if wanted.is_some_and(|epoch| claim.epoch < epoch) {
                break;
            }
            let read = CheckpointRead::of(&self.place, self.media, (copy, in_slot), claim);
            unread.extend_from_slice(&read.unread);
            if let Some(Newest { slot, header, copies, .. }) = &mut newest {
                let same = *slot == in_slot && read.is_copy && self.is_copy(&read.bytes, header);
                *copies += usize::from(same);
                continue;
            }
            let header = read.bytes[..CHECKPOINT_HEADER_BYTES].to_vec();
            let (copies, first) = (usize::from(read.is_copy), read.unread.into_iter().next());
            if let Some(checkpoint) = self.decode(read.bytes)? {
                let (slot, passed_over, hidden, unread) = (in_slot, Vec::new(), None, Vec::new());
                let found =
                    Newest { slot, checkpoint, header, copies, passed_over, hidden, unread };
                newest = Some(found);
            } else {
                passed_over.push((copy, claim.epoch));
                hidden = hidden.or(first);
            }
        }
        let Some(newest) = newest else {
            let (share, devices) = (self.place.share, self.place.copies().count() as u8);
            let unread = unread.into_iter().next();
            return Err(RecoveryError::NoCheckpoint { share, devices, unread });
        };
        // A damaged copy of the one that holds is counted by the copies there are.
        passed_over.retain(|(_, epoch)| *epoch > newest.checkpoint.epoch);
        let hidden = hidden.filter(|_| !passed_over.is_empty());
        Ok(Newest { passed_over, hidden, unread, ..newest })
    }

    /// Returns whether these blocks, of which each is whole if it has a checksum, are those of the
    /// checkpoint with this header.
    fn is_copy(&self, bytes: &[u8], header: &[u8]) -> bool {
        match self.place.format {
            BlockFormat::Plain => Checkpoint::is_copy(bytes, header),
            BlockFormat::Checked => bytes.starts_with(header),
        }
    }

    /// The checkpoint of this pool and share, if a whole one stands in these blocks.
    fn decode(&self, blocks: Vec<u8>) -> Result<Option<Checkpoint>, RecoveryError> {
        match Checkpoint::decode(&self.place.format.take_out(blocks)) {
            Ok(found) => {
                let segments = self.place.check_segments(&found.segments);
                segments.map_err(RecoveryError::Contradiction)?;
                Ok(Some(found))
            }
            Err(CheckpointError::Absent) => Ok(None),
            Err(error @ CheckpointError::Content { .. }) => {
                Err(RecoveryError::Contradiction(error.to_string()))
            }
        }
    }

    /// The segments that the checkpoint before this one goes on in, to which a reader goes back if
    /// this one is lost. Nothing says that its list is whole, so only what can be is believed.
    fn segments_before(
        &self,
        heads: &[(u8, Head)],
        (slot, epoch): (usize, u64),
        segments: &[u32],
        index: &RecoveredIndex,
    ) -> Vec<u32> {
        let list = |(copy, head): &(u8, Head)| {
            let is_before = |it: &&CheckpointClaim| it.epoch.checked_add(1) == Some(epoch);
            let claim = head.claim().filter(is_before)?;
            let list = CheckpointRead::list(&self.place, self.media, (*copy, slot), claim)?;
            let taken: HashSet<u32> = segments.iter().chain(&list).copied().collect();
            let distinct = taken.len() == segments.len() + list.len();
            let is_free =
                |segment: &u32| self.place.segments().contains(segment) && !index.is_in(*segment);
            (distinct && list.iter().all(is_free)).then_some(list)
        };
        heads.iter().find_map(list).unwrap_or_default()
    }

    /// Reads the other slot's log, of the copies in which a checkpoint newer than `epoch` may have
    /// begun the slot. Where the one before still does, nothing newer ever stood there. Elsewhere
    /// any record of the log may be the one that is left.
    fn other_log(&self, heads: &[(u8, Head)], slot: usize, epoch: u64) -> LogCopies {
        let is_before = |head: &Head| head.claim().is_some_and(|claim| claim.epoch < epoch);
        let copies = heads.iter().filter(|(_, head)| !is_before(head)).map(|(copy, _)| *copy);
        LogCopies::read(&self.place, self.media, slot, copies)
    }

    /// Every record of the epoch from the start of the log to the first that no copy has.
    fn read_log(&self, log: &mut LogCopies, epoch: u64) -> Result<LogRead, RecoveryError> {
        let end = LogPoint { epoch, sequence: 0 };
        let mut read = LogRead { changes: Vec::new(), end, position: 0 };
        // The checksum is right where content is wrong: it cannot be the medium's doing.
        let wrong = |error: crate::layout::ChangeRecordError| {
            RecoveryError::Contradiction(error.to_string())
        };
        while let Some((record, length)) =
            log.record(read.position as usize, self.next(read.end)).map_err(wrong)?
        {
            read.changes.extend(record.changes);
            read.end.sequence += 1;
            read.position += length;
        }
        Ok(read)
    }

    /// Returns whether a record follows this place in the commits.
    fn next(&self, end: LogPoint) -> impl Fn(&RecordHead) -> bool + Copy + use<M> {
        let (place, next) = (self.place, LogPoint { sequence: end.sequence + 1, ..end });
        move |head| place.is_ours(head) && head.point() == next
    }

    /// Commits that were there and are not, if the log ends where it does. A record is written only
    /// once the one before it is on media, and those of a newer epoch once its checkpoint is: so
    /// nothing may follow the end.
    fn damage(
        &self,
        log: &mut LogCopies,
        other: &mut LogCopies,
        read: &LogRead,
    ) -> Option<RecoveryError> {
        let LogPoint { epoch, sequence } = read.end;
        let place = self.place;
        let is_newer = |head: &RecordHead| place.is_ours(head) && head.epoch > epoch;
        if let Some((_, head)) = other.find(0, is_newer) {
            return Some(RecoveryError::CheckpointDamaged { epoch: head.epoch });
        }
        let expected = sequence + 1;
        let follows = |head: &RecordHead| {
            is_newer(head)
                || (place.is_ours(head) && head.epoch == epoch && head.sequence > expected)
        };
        let found = log.find(read.position as usize, follows).map(|(_, head)| head.point());
        let commit = Some(self.mark.commit).filter(|commit| *commit > read.end);
        let known = found.into_iter().chain(commit).max()?;
        Some(if known.epoch > epoch {
            RecoveryError::CheckpointDamaged { epoch: known.epoch }
        } else {
            RecoveryError::LogDamaged { epoch, expected, last: known.sequence }
        })
    }

    /// Returns the unreadable blocks where commits behind the end may stand.
    fn hidden(
        &self,
        heads: &[(u8, Head)],
        newest: &Newest,
        (log, other): (&mut LogCopies, &LogCopies),
        read: &LogRead,
    ) -> Option<RecoveryError> {
        let LogPoint { epoch, sequence } = read.end;
        if self.mark.ends_at(read.end) {
            return None;
        }
        let next = LogPoint { epoch, sequence: sequence + 1 };
        if let Some(unread) = log.hidden(read.position as usize, &self.place, next) {
            let what = format!("change record {} of epoch {epoch}", next.sequence);
            return Some(RecoveryError::Unreadable { what, unread });
        }
        // Where the checkpoint before still begins the other slot there never was a newer one.
        let is_newer = |head: &Head| match head {
            Head::Claim(claim) => claim.epoch > epoch,
            Head::Rotten => true,
            Head::Nothing | Head::Unread(_) => false,
        };
        let is_read = |(_, head): &&(u8, Head)| head.unread().is_none();
        let mut others = heads.iter().filter(is_read).peekable();
        let begun = others.peek().is_none() || others.all(|(_, head)| is_newer(head));
        let unread = heads.iter().find_map(|(_, head)| head.unread());
        let unread = unread.or(newest.hidden.as_ref()).or(other.lost_start());
        let what = format!("an index checkpoint newer than that of epoch {epoch}");
        let unread = unread.filter(|_| begun)?.clone();
        Some(RecoveryError::Unreadable { what, unread })
    }
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
