//! A record of the change log: one commit, whole or not at all.

use bytemuck::{Pod, Zeroable};
use thiserror::Error;

use super::checksum_of;
use super::endian::{U32, U64, U128};
use super::entry::{Change, EntryError, decode_changes, encode_change, encoded_bytes};
use super::mark::LogPoint;

const MAGIC: [u8; 8] = *b"TIDECHNG";

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct RecordOnMedia {
    pub(super) magic: [u8; 8],
    /// CRC32C over this structure with this field as zero, then the payload.
    pub(super) checksum: U32,
    pub(super) payload_bytes: U32,
    pub(super) pool: U128,
    pub(super) epoch: U64,
    pub(super) sequence: U64,
    pub(super) share: U32,
    pub(super) reserved: [u8; 12],
}

/// Bytes of a record before its changes.
pub const RECORD_HEADER_BYTES: usize = 64;
const _: () = assert!(size_of::<RecordOnMedia>() == RECORD_HEADER_BYTES);

/// One commit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChangeRecord {
    /// The pool it belongs to.
    pub pool: u128,
    /// The share it belongs to.
    pub share: u32,
    /// The checkpoint it continues.
    pub epoch: u64,
    /// The place after that checkpoint, from 1.
    pub sequence: u64,
    /// Changes of the commit, in order.
    pub changes: Vec<Change>,
}

/// The reason why no record can be read at a place of the change log.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ChangeRecordError {
    /// No whole record: the end of the log, or a torn one.
    #[error("no whole record stands here")]
    Absent,
    /// The checksum is right, so we wrote it; the content is wrong all the same.
    #[error(
        "the change record {sequence} of epoch {epoch} has a right checksum and wrong content: {source}"
    )]
    Content {
        /// The record's epoch.
        epoch: u64,
        /// The record's sequence number.
        sequence: u64,
        /// The error in the entry.
        source: EntryError,
    },
}

impl ChangeRecord {
    /// Bytes of a record of these changes.
    pub fn bytes_for(changes: &[Change]) -> u64 {
        let payload: usize = changes.iter().map(encoded_bytes).sum();
        (RECORD_HEADER_BYTES + payload) as u64
    }

    /// Encodes the record, to be laid out in blocks of the log.
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; RECORD_HEADER_BYTES];
        for change in &self.changes {
            encode_change(change, &mut bytes);
        }
        let mut head = RecordOnMedia::zeroed();
        head.magic = MAGIC;
        head.payload_bytes = ((bytes.len() - RECORD_HEADER_BYTES) as u32).into();
        head.pool = self.pool.into();
        head.epoch = self.epoch.into();
        head.sequence = self.sequence.into();
        head.share = self.share.into();
        head.checksum =
            checksum_of(&[bytemuck::bytes_of(&head), &bytes[RECORD_HEADER_BYTES..]]).into();
        bytes[..RECORD_HEADER_BYTES].copy_from_slice(bytemuck::bytes_of(&head));
        bytes
    }

    /// Reads the record at the start of `bytes` (which may go on behind it).
    ///
    /// # Errors
    /// No whole record stands there, or one whose content cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Self, ChangeRecordError> {
        let head = RecordHead::claimed(bytes).ok_or(ChangeRecordError::Absent)?;
        let payload = bytes[RECORD_HEADER_BYTES..].get(..head.payload_bytes);
        let payload = payload.ok_or(ChangeRecordError::Absent)?;
        if head.checksum != checksum_of(&[&head.sealed(), payload]) {
            return Err(ChangeRecordError::Absent);
        }
        head.with(decode_changes(payload))
    }
}

/// Header in front of a record's changes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecordHead {
    /// The pool it belongs to.
    pub pool: u128,
    /// The share it belongs to.
    pub share: u32,
    /// The checkpoint it continues.
    pub epoch: u64,
    /// The place after that checkpoint, from 1.
    pub sequence: u64,
    pub(super) payload_bytes: usize,
    checksum: u32,
    on_media: [u8; RECORD_HEADER_BYTES],
}

impl RecordHead {
    /// Parses the first bytes of a record; the result need not be true.
    pub(super) fn claimed(bytes: &[u8]) -> Option<Self> {
        let on_media = *bytes.first_chunk()?;
        let head: RecordOnMedia = bytemuck::cast(on_media);
        (head.magic == MAGIC).then_some(Self {
            pool: head.pool.get(),
            share: head.share.get(),
            epoch: head.epoch.get(),
            sequence: head.sequence.get(),
            payload_bytes: head.payload_bytes.get() as usize,
            checksum: head.checksum.get(),
            on_media,
        })
    }

    /// Returns these bytes without the checksum, as the checksum covers them.
    pub(super) fn sealed(&self) -> [u8; RECORD_HEADER_BYTES] {
        let mut head: RecordOnMedia = bytemuck::cast(self.on_media);
        head.checksum = 0.into();
        bytemuck::cast(head)
    }

    /// Returns the record's place in the commits of the share.
    pub fn point(&self) -> LogPoint {
        LogPoint { epoch: self.epoch, sequence: self.sequence }
    }

    /// The checksum of all of it.
    pub fn checksum(&self) -> u32 {
        self.checksum
    }

    /// The bytes of the record of which this is the head.
    pub fn bytes(&self) -> u64 {
        (RECORD_HEADER_BYTES + self.payload_bytes) as u64
    }

    /// Returns whether a block begins as that of a record with these numbers does, a few bits of
    /// which may have rotted.
    pub fn is_marked(block: &[u8], pool: u128, share: u32, at: LogPoint) -> bool {
        let mut head = RecordOnMedia::zeroed();
        head.magic = MAGIC;
        head.pool = pool.into();
        head.epoch = at.epoch.into();
        head.sequence = at.sequence.into();
        head.share = share.into();
        let Some(found) = block.first_chunk::<RECORD_HEADER_BYTES>() else { return false };
        let mut found: RecordOnMedia = bytemuck::cast(*found);
        (found.checksum, found.payload_bytes) = (head.checksum, head.payload_bytes);
        super::is_alike(bytemuck::bytes_of(&found), bytemuck::bytes_of(&head))
    }

    /// The record of which this is the head.
    pub(super) fn with(
        &self,
        changes: Result<Vec<Change>, EntryError>,
    ) -> Result<ChangeRecord, ChangeRecordError> {
        let &Self { pool, share, epoch, sequence, .. } = self;
        let wrong = |source| ChangeRecordError::Content { epoch, sequence, source };
        let changes = changes.map_err(wrong)?;
        Ok(ChangeRecord { pool, share, epoch, sequence, changes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::entry::tests::entry;
    use crate::layout::{BLOCK_BYTES, BlockFormat, TensorId};

    fn record() -> ChangeRecord {
        let changes =
            (0..200).map(|id| Change::Put(entry(id))).chain([Change::Delete(TensorId(5))]);
        ChangeRecord { pool: 3, share: 1, epoch: 9, sequence: 4, changes: changes.collect() }
    }

    #[test]
    fn a_record_is_read_back_with_bytes_behind_it() {
        let mut bytes = record().encode();
        let length = bytes.len();
        assert_eq!(length as u64, ChangeRecord::bytes_for(&record().changes));
        bytes.extend([0xAA; 5000]);
        assert_eq!(ChangeRecord::decode(&bytes), Ok(record()));
        assert_eq!(RecordHead::claimed(&bytes).unwrap().bytes(), length as u64);
    }

    #[test]
    fn a_head_of_which_a_few_bits_have_rotted_is_still_one_of_its_numbers() {
        let bytes = record().encode();
        let is_marked = |bytes: &[u8], sequence| {
            RecordHead::is_marked(bytes, 3, 1, LogPoint { epoch: 9, sequence })
        };
        assert!(is_marked(&bytes, 4) && !is_marked(&[0; 4096], 4) && !is_marked(&[], 4));
        let mut rotten = bytes.clone();
        (rotten[1], rotten[20], rotten[41]) = (rotten[1] ^ 0x81, 0x11, 0x40);
        assert!(is_marked(&rotten, 4));
        assert!(!is_marked(&[0xFF; 4096], 4));
    }

    #[test]
    fn a_record_torn_at_any_block_is_absent() {
        let good = BlockFormat::Plain.lay_out(record().encode());
        for torn in 0..good.len() / BLOCK_BYTES as usize {
            let mut bytes = good.clone();
            bytes[torn * BLOCK_BYTES as usize..][..BLOCK_BYTES as usize].fill(0);
            assert_eq!(
                ChangeRecord::decode(&bytes),
                Err(ChangeRecordError::Absent),
                "block {torn}"
            );
        }
        assert_eq!(ChangeRecord::decode(&[]), Err(ChangeRecordError::Absent));
    }
}
