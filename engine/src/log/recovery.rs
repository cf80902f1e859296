//! Recovery: what a share contains, from what stands on the media.
//!
//! The newest valid checkpoint of both slots and both devices holds; the records of its change log
//! are applied in order up to the first that is whole on neither device, which a crash tore. What a
//! crash cannot have done (a gap in the log, a log without its checkpoint) is damage and is
//! reported, never taken for the end.
//!
//! Whatever stands there, recovery costs a few times the bytes that it reads: headers say whether a
//! record is of interest, a [`LogImage`] whether it is whole, and only what is applied is decoded.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;

use thiserror::Error;

use super::change_log::{ChangeLog, LogMedia, LogPlace};
use crate::layout::{
    BLOCK_BYTES, CHECKPOINT_HEADER_BYTES, Change, ChangeRecordError, Checkpoint, CheckpointClaim,
    CheckpointError, HeldVersion, LogImage, RecordHead, Run, Seal, TensorEntry, TensorId,
};

/// What stood on the media.
#[derive(Debug)]
pub struct Recovered {
    /// What the share contains.
    pub index: RecoveredIndex,
    /// The segments that each slot's checkpoint goes on in; nothing else lies there.
    pub index_segments: [Vec<u32>; 2],
    /// The change log, ready to be continued.
    pub log: ChangeLog,
    /// Newer checkpoints that devices claim to have and that are not whole: torn by a crash before
    /// anything followed them, or damaged since. A device and an epoch each.
    pub passed_over: Vec<(u8, u64)>,
    /// Whether the next commit may follow directly. If not, a checkpoint must be written first:
    /// records stand in the log that may be on one device only, or not yet on media.
    pub settled: bool,
}

/// What a share contains.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveredIndex {
    /// Every durable tensor, by id.
    pub tensors: Vec<TensorEntry>,
    /// Every version that a seal holds, by number. One that lies where its tensor lies is its
    /// tensor.
    pub held: Vec<HeldVersion>,
    /// Every seal, by name.
    pub seals: Vec<Seal>,
    /// Where all of it lies, by place.
    pub runs: Vec<(Run, TensorId)>,
}

/// Why a share cannot be recovered.
#[derive(Debug, Error)]
pub enum RecoveryError<E: fmt::Display> {
    /// A device failed, and the other copy does not help.
    #[error("the metadata could not be read: {0}")]
    Device(E),
    /// No valid checkpoint on any device.
    #[error(
        "share {share} has no valid index checkpoint on any of its {devices} metadata device(s)"
    )]
    NoCheckpoint {
        /// The share.
        share: u32,
        /// Devices that were tried.
        devices: u8,
    },
    /// The checkpoint that a change log continues is damaged: commits would be lost.
    #[error(
        "the index checkpoint of epoch {epoch} is damaged on every metadata device, and commits continue it"
    )]
    CheckpointDamaged {
        /// The checkpoint's epoch.
        epoch: u64,
    },
    /// A record in the middle of the change log is damaged: commits would be lost.
    #[error(
        "change record {expected} of epoch {epoch} is damaged on every metadata device, and record {found} follows it"
    )]
    LogDamaged {
        /// The epoch.
        epoch: u64,
        /// The damaged record.
        expected: u64,
        /// A whole one behind it.
        found: u64,
    },
    /// Checksums are right and the content cannot be: the media did not do this.
    #[error("the index contradicts itself: {0}")]
    Contradiction(String),
}

/// Epochs end here: counting from 1, no share lives to see it, and there is always a next one.
pub const EPOCHS_END: u64 = 1 << 63;

/// Reads a share's index.
///
/// # Errors
/// See [`RecoveryError`]. A share that cannot be recovered whole is not recovered at all.
pub fn recover<M: LogMedia>(
    place: LogPlace,
    media: &M,
) -> Result<Recovered, RecoveryError<M::Error>> {
    Reader::new(place, media).recover()
}

/// The index once the log's changes are applied to the checkpoint, in the order of ids, numbers and
/// names. A version that no seal names any more is not held.
fn apply(checkpoint: Checkpoint, changes: Vec<Change>) -> RecoveredIndex {
    let Checkpoint { mut tensors, held, seals, .. } = checkpoint;
    // The last change of an id, of a number, of a name decides.
    let mut last: HashMap<TensorId, Option<TensorEntry>> = HashMap::new();
    let mut held: BTreeMap<u64, HeldVersion> = held.into_iter().map(|it| (it.number, it)).collect();
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
    RecoveredIndex { tensors, held, seals, runs: Vec::new() }
}

/// What a slot's header says, which may not be true.
struct Claim {
    of: CheckpointClaim,
    slot: usize,
    /// On which copy.
    device: u8,
}

/// The checkpoint that holds.
struct Newest {
    slot: usize,
    checkpoint: Checkpoint,
    /// How it starts on the media.
    header: Vec<u8>,
    /// How many devices have it. One that has another of the same epoch (its own restored from a
    /// backup, say) does not.
    copies: usize,
    /// Newer ones that are not whole, by device and epoch.
    passed_over: Vec<(u8, u64)>,
}

struct Reader<'a, M> {
    place: LogPlace,
    media: &'a M,
    /// Bytes of change logs that were checksummed.
    checksummed: Cell<u64>,
}

struct LogRead {
    changes: Vec<Change>,
    records: u64,
    position: u64,
    failed_reads: bool,
}

impl<'a, M: LogMedia> Reader<'a, M> {
    fn new(place: LogPlace, media: &'a M) -> Self {
        Self { place, media, checksummed: Cell::new(0) }
    }

    /// See [`recover`].
    fn recover(&self) -> Result<Recovered, RecoveryError<M::Error>> {
        let place = self.place;
        let Newest { slot, checkpoint, copies, passed_over, .. } = self.newest_checkpoint()?;
        let (epoch, segments) = (checkpoint.epoch, checkpoint.segments.clone());
        if epoch >= EPOCHS_END {
            let what = format!("no share has written {epoch} checkpoints");
            return Err(RecoveryError::Contradiction(what));
        }
        if let Some(newer) = self.epoch_of_other_log(1 - slot, epoch) {
            return Err(RecoveryError::CheckpointDamaged { epoch: newer });
        }
        let log = self.read_log(slot, epoch)?;

        let mut index = apply(checkpoint, log.changes);
        index.runs = checked_runs(&place, &index).map_err(RecoveryError::Contradiction)?;
        let runs = &index.runs;
        if let Some(both) = segments.iter().find(|&&it| holds_tensors(runs, it)) {
            let what = format!("segment {both} holds tensors and the index");
            return Err(RecoveryError::Contradiction(what));
        }
        let mut index_segments = [Vec::new(), Vec::new()];
        index_segments[1 - slot] = self.segments_before(slot, epoch, &segments, runs);
        index_segments[slot] = segments;
        let all_copies = copies == place.copies().len() && passed_over.is_empty();
        let settled = log.records == 0 && all_copies && !log.failed_reads;
        let log = ChangeLog::resume(place, slot, epoch, log.records, log.position);
        Ok(Recovered { index, index_segments, log, passed_over, settled })
    }

    /// The newest valid checkpoint. Headers only claim an epoch, so the claims are tried from the
    /// newest on until one is whole; its other copies are not decoded.
    fn newest_checkpoint(&self) -> Result<Newest, RecoveryError<M::Error>> {
        let mut claims = Vec::new();
        let mut failure = None;
        for slot in 0..2 {
            for device in self.place.copies() {
                match self.claim(device, slot) {
                    Ok(claim) => claims.extend(claim),
                    Err(error) => failure = Some(error),
                }
            }
        }
        claims.sort_by_key(|claim| Reverse(claim.of.epoch));
        let mut newest: Option<Newest> = None;
        let mut passed_over = Vec::new();
        for Claim { of: claim, slot: in_slot, device } in &claims {
            let wanted = newest.as_ref().map(|newest| newest.checkpoint.epoch);
            if wanted.is_some_and(|epoch| claim.epoch < epoch) {
                break;
            }
            let bytes = match self.read_checkpoint(*device, *in_slot, claim) {
                Ok(bytes) => bytes,
                Err(error) => {
                    failure = Some(error);
                    passed_over.push((*device, claim.epoch));
                    continue;
                }
            };
            if let Some(Newest { slot, header, copies, .. }) = &mut newest {
                *copies += usize::from(slot == in_slot && Checkpoint::is_copy(&bytes, header));
            } else if let Some(checkpoint) = self.decode(&bytes)? {
                let (slot, passed_over) = (*in_slot, Vec::new());
                let header = bytes[..CHECKPOINT_HEADER_BYTES].to_vec();
                newest = Some(Newest { slot, checkpoint, header, copies: 1, passed_over });
            } else {
                passed_over.push((*device, claim.epoch));
            }
        }
        match (newest, failure) {
            (Some(newest), _) => {
                // A damaged copy of the one that holds is counted by the copies there are.
                passed_over.retain(|(_, epoch)| *epoch > newest.checkpoint.epoch);
                Ok(Newest { passed_over, ..newest })
            }
            (None, Some(error)) => Err(RecoveryError::Device(error)),
            (None, None) => Err(RecoveryError::NoCheckpoint {
                share: self.place.share,
                devices: self.place.copies().len() as u8,
            }),
        }
    }

    /// What the first bytes of a slot claim to be the start of.
    fn claim(&self, device: u8, slot: usize) -> Result<Option<Claim>, M::Error> {
        let area = &self.place.area.slots[slot];
        let head = self.media.read(device, area.checkpoint_offset, BLOCK_BYTES)?;
        let room = self.place.checkpoint_room();
        let is_possible = |claim: &CheckpointClaim| {
            let segments = u64::from(claim.segments);
            claim.segments <= self.place.area.segments
                && room.lists(segments)
                && claim.payload_bytes <= room.with(segments)
                && room.segments_for(claim.payload_bytes) == segments
        };
        let claimed = Checkpoint::claim(&head).filter(is_possible);
        Ok(claimed.map(|claim| Claim { of: claim, slot, device }))
    }

    /// The bytes of a claimed checkpoint, from its slot and the segments that it lists. Where they
    /// cannot be those of one, less.
    fn read_checkpoint(
        &self,
        copy: u8,
        slot: usize,
        claim: &CheckpointClaim,
    ) -> Result<Vec<u8>, M::Error> {
        let area = &self.place.area.slots[slot];
        let in_slot = claim.bytes.min(area.checkpoint_bytes);
        let mut bytes = self.media.read(copy, area.checkpoint_offset, in_slot)?;
        let segments = Checkpoint::claimed_segments(&bytes).unwrap_or_default();
        let rest = (claim.bytes - in_slot) as usize;
        // The claim may be anybody's. What lists a segment twice, or asks for more than there is
        // memory, is none of ours.
        if self.check_segments(&segments).is_ok() && bytes.try_reserve_exact(rest).is_ok() {
            let parts = self.place.parts(copy, slot, &segments, claim.bytes);
            for (device, offset, length) in parts.skip(1) {
                bytes.extend(self.media.read(device, offset, length)?);
            }
        }
        Ok(bytes)
    }

    /// The segments that the checkpoint before this one goes on in, to which a reader goes back if
    /// this one is lost. Nothing says that its list is whole, so only what can be is believed.
    fn segments_before(
        &self,
        slot: usize,
        epoch: u64,
        segments: &[u32],
        runs: &[(Run, TensorId)],
    ) -> Vec<u32> {
        let list = |device| {
            let Claim { of: claim, .. } = self.claim(device, 1 - slot).ok().flatten()?;
            if claim.epoch.checked_add(1) != Some(epoch) {
                return None;
            }
            let offset = self.place.area.slots[1 - slot].checkpoint_offset;
            let length = Checkpoint::payload_start(claim.segments.into());
            let length = length.next_multiple_of(BLOCK_BYTES);
            let list =
                Checkpoint::claimed_segments(&self.media.read(device, offset, length).ok()?)?;
            let taken: HashSet<u32> = segments.iter().chain(&list).copied().collect();
            let distinct = taken.len() == segments.len() + list.len();
            let is_free = |segment: &u32| {
                self.place.segments().contains(segment) && !holds_tensors(runs, *segment)
            };
            (distinct && list.iter().all(is_free)).then_some(list)
        };
        self.place.copies().find_map(list).unwrap_or_default()
    }

    /// The checkpoint of this pool and share, if a whole one stands at the start of `bytes`.
    fn decode(&self, bytes: &[u8]) -> Result<Option<Checkpoint>, RecoveryError<M::Error>> {
        match Checkpoint::decode(bytes) {
            Ok(found) if found.pool == self.place.pool && found.share == self.place.share => {
                self.check_segments(&found.segments).map_err(RecoveryError::Contradiction)?;
                Ok(Some(found))
            }
            Ok(_) | Err(CheckpointError::Absent) => Ok(None),
            Err(error @ CheckpointError::Content { .. }) => {
                Err(RecoveryError::Contradiction(error.to_string()))
            }
        }
    }

    fn check_segments(&self, segments: &[u32]) -> Result<(), String> {
        let distinct: HashSet<&u32> = segments.iter().collect();
        if let Some(other) = segments.iter().find(|it| !self.place.segments().contains(it)) {
            return Err(format!("the index goes on in segment {other} outside of its share"));
        }
        let twice = "the index goes on in one segment twice".to_owned();
        if distinct.len() == segments.len() { Ok(()) } else { Err(twice) }
    }

    /// The epoch of a record in this slot's log that is newer than `epoch`. Records are written
    /// only once their checkpoint is on media, so such a record's checkpoint must have been there.
    fn epoch_of_other_log(&self, slot: usize, epoch: u64) -> Option<u64> {
        let area = &self.place.area.slots[slot];
        self.place.copies().find_map(|device| {
            // Where the checkpoint before this one still begins the slot, nothing newer ever stood
            // there. Elsewhere any record of the log may be the one that is left.
            let before = |claim: Option<Claim>| claim.is_some_and(|it| it.of.epoch < epoch);
            if self.claim(device, slot).is_ok_and(before) {
                return None;
            }
            let log = self.media.read(device, area.log_offset, area.log_bytes);
            let mut log = LogImage::new(log.unwrap_or_default());
            self.find(&mut log, 0, |head| head.epoch > epoch).map(|head| head.epoch)
        })
    }

    /// Every record of the epoch from the start of the log to the first that no device has whole.
    fn read_log(&self, slot: usize, epoch: u64) -> Result<LogRead, RecoveryError<M::Error>> {
        let area = &self.place.area.slots[slot];
        let mut copies = Vec::new();
        let mut failure = None;
        for device in self.place.copies() {
            match self.media.read(device, area.log_offset, area.log_bytes) {
                Ok(bytes) => copies.push(LogImage::new(bytes)),
                Err(error) => failure = Some(error),
            }
        }
        let failed_reads = failure.is_some();
        if let (true, Some(error)) = (copies.is_empty(), failure) {
            return Err(RecoveryError::Device(error));
        }
        let mut log = LogRead { changes: Vec::new(), records: 0, position: 0, failed_reads };
        while self.read_record(&mut copies, epoch, &mut log)? {}
        let checksummed: u64 = copies.iter().map(LogImage::checksummed).sum();
        self.checksummed.update(|all| all + checksummed);
        // Nothing may follow the end: a record is written only once the one before it is on media,
        // and those of a newer epoch once its checkpoint is.
        let expected = log.records + 1;
        let follows = |head: &RecordHead| {
            head.epoch > epoch || (head.epoch == epoch && head.sequence > expected)
        };
        for copy in &mut copies {
            match self.find(copy, log.position as usize, follows) {
                None => (),
                Some(found) if found.epoch == epoch => {
                    let found = found.sequence;
                    return Err(RecoveryError::LogDamaged { epoch, expected, found });
                }
                Some(found) => return Err(RecoveryError::CheckpointDamaged { epoch: found.epoch }),
            }
        }
        Ok(log)
    }

    /// Adds the next record of the epoch from the first copy that has it whole; returns whether one
    /// has.
    fn read_record(
        &self,
        copies: &mut [LogImage],
        epoch: u64,
        log: &mut LogRead,
    ) -> Result<bool, RecoveryError<M::Error>> {
        let at = log.position as usize;
        for copy in copies {
            let claim = copy.claim(at).filter(|head| self.is_ours(head));
            let is_next =
                |head: RecordHead| head.epoch == epoch && head.sequence == log.records + 1;
            if !claim.is_some_and(is_next) {
                continue;
            }
            let (record, length) = match copy.record(at) {
                Ok(read) => read,
                Err(ChangeRecordError::Absent) => continue,
                // The checksum is right: it cannot be the medium's doing.
                Err(error @ ChangeRecordError::Content { .. }) => {
                    return Err(RecoveryError::Contradiction(error.to_string()));
                }
            };
            log.changes.extend(record.changes);
            log.records += 1;
            log.position += length as u64;
            return Ok(true);
        }
        Ok(false)
    }

    /// The first whole record of this pool and share from `from` on that is `wanted`. Its content
    /// is of no interest: that it is there says enough.
    fn find(
        &self,
        log: &mut LogImage,
        from: usize,
        wanted: impl Fn(&RecordHead) -> bool,
    ) -> Option<RecordHead> {
        let before = log.checksummed();
        let found = (from..log.len()).step_by(BLOCK_BYTES as usize).find_map(|at| {
            let claim = log.claim(at).filter(|head| self.is_ours(head) && wanted(head))?;
            log.is_whole(at).then_some(claim)
        });
        self.checksummed.update(|all| all + log.checksummed() - before);
        found
    }

    fn is_ours(&self, head: &RecordHead) -> bool {
        head.pool == self.place.pool && head.share == self.place.share
    }
}

/// The runs of all tensors by place, if the index can be: runs inside the share, one checksum per
/// piece, no two versions in one place, and seals of what is there.
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
    }
    Ok(runs)
}

/// Whether an entry lies inside of its share and has a checksum for each piece.
fn check_entry(place: &LogPlace, entry: &TensorEntry) -> Result<(), String> {
    let (segments, stripes) = (place.segments(), &place.stripes);
    let is_outside =
        |run: &&Run| !segments.contains(&run.segment) || run.end() > stripes.segment_blocks();
    if let Some(run) = entry.runs.iter().find(is_outside) {
        return Err(format!("{} has {run:?} outside of share {}", entry.id, place.share));
    }
    let (found, pieces) = (entry.checksums.len(), stripes.count(&entry.runs));
    if found != pieces {
        return Err(format!("{} has {found} checksums for {pieces} pieces", entry.id));
    }
    Ok(())
}

/// Whether every seal names versions that are there, and each tensor once.
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

/// Whether one of these runs, which stand in their order, lies in a segment.
fn holds_tensors(runs: &[(Run, TensorId)], segment: u32) -> bool {
    let first = runs.partition_point(|(run, _)| run.segment < segment);
    runs.get(first).is_some_and(|(run, _)| run.segment == segment)
}

#[cfg(test)]
#[path = "recovery_tests.rs"]
mod tests;
