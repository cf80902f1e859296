//! An index checkpoint: every durable tensor of a share, at one commit.
//!
//! It begins in a slot of the share's metadata. What the slot has no room for goes on in segments
//! of the log, which the checkpoint lists itself: header, list of segments, tensors.

use bytemuck::{Pod, Zeroable};
use thiserror::Error;

use super::blocks::BlockFormat;
use super::checksum_of;
use super::endian::{U32, U64, U128};
use super::entry::{
    Change, EntryError, TensorEntry, changes_in, encode_hold, encode_put, put_bytes,
};
use super::seal::{HeldVersion, Seal, encode_seal};

pub(super) const MAGIC: [u8; 8] = *b"TIDEINDX";

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct CheckpointOnMedia {
    pub(super) magic: [u8; 8],
    /// CRC32C over this structure with this field as zero, then the payload.
    pub(super) checksum: U32,
    pub(super) share: U32,
    pub(super) pool: U128,
    pub(super) epoch: U64,
    pub(super) payload_bytes: U64,
    pub(super) tensors: U64,
    /// Number of segments that are listed behind this structure.
    pub(super) segments: U32,
    /// Number of the set of devices over which these are striped.
    pub(super) set: U32,
}

/// Bytes of a checkpoint before its list of segments.
pub const CHECKPOINT_HEADER_BYTES: usize = 64;
const _: () = assert!(size_of::<CheckpointOnMedia>() == CHECKPOINT_HEADER_BYTES);

/// The durable tensors of a share at one commit. The change log in the same slot continues it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    /// The pool it belongs to.
    pub pool: u128,
    /// The share it belongs to.
    pub share: u32,
    /// Counts the share's checkpoints; the highest valid one holds.
    pub epoch: u64,
    /// The segments that it goes on in, in order, where its slot is too small for it.
    pub segments: Vec<u32>,
    /// Number of the set of devices over which these are striped.
    pub set: u8,
    /// Every durable tensor.
    pub tensors: Vec<TensorEntry>,
    /// Every version that a seal holds.
    pub held: Vec<HeldVersion>,
    /// Every seal.
    pub seals: Vec<Seal>,
}

/// Parts from which a checkpoint is made.
#[derive(Clone, Debug, Default)]
pub struct IndexParts<'a> {
    /// Every durable tensor.
    pub tensors: Vec<&'a TensorEntry>,
    /// Every version that a seal holds, with its number.
    pub held: Vec<(u64, &'a TensorEntry)>,
    /// Every seal.
    pub seals: Vec<&'a Seal>,
}

impl IndexParts<'_> {
    /// The bytes of a checkpoint that all of it uses.
    pub fn bytes(&self) -> u64 {
        let held = self.held.iter().map(|(_, entry)| *entry);
        let entries = self.tensors.iter().copied().chain(held).map(put_bytes);
        entries.chain(self.seals.iter().map(|seal| seal.encoded_bytes())).sum::<usize>() as u64
    }
}

impl<'a> From<&'a Checkpoint> for IndexParts<'a> {
    fn from(Checkpoint { tensors, held, seals, .. }: &'a Checkpoint) -> Self {
        Self {
            tensors: tensors.iter().collect(),
            held: held.iter().map(|held| (held.number, &held.entry)).collect(),
            seals: seals.iter().collect(),
        }
    }
}

/// An index without seals.
impl<'a> From<&'a [TensorEntry]> for IndexParts<'a> {
    fn from(tensors: &'a [TensorEntry]) -> Self {
        Self { tensors: tensors.iter().collect(), ..Self::default() }
    }
}

/// An index without seals.
impl<'a> From<&'a Vec<TensorEntry>> for IndexParts<'a> {
    fn from(tensors: &'a Vec<TensorEntry>) -> Self {
        tensors.as_slice().into()
    }
}

/// The reason why no checkpoint can be read from a slot.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CheckpointError {
    /// No whole checkpoint of this pool and share.
    #[error("no whole checkpoint stands here")]
    Absent,
    /// The checksum is right, so we wrote it; the content is wrong all the same.
    #[error("the checkpoint of epoch {epoch} has a right checksum and wrong content: {what}")]
    Content {
        /// The checkpoint's epoch.
        epoch: u64,
        /// A description of the error.
        what: String,
    },
}

/// Claim of the first bytes of a slot to begin a checkpoint. It is only true if
/// [`Checkpoint::decode`] says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckpointClaim {
    /// The pool.
    pub pool: u128,
    /// The share.
    pub share: u32,
    /// The epoch.
    pub epoch: u64,
    /// Size of the checkpoint, in bytes.
    pub bytes: u64,
    /// Number of segments in which the checkpoint continues.
    pub segments: u32,
    /// Number of the set of devices over which these are striped.
    pub set: u8,
    /// The bytes of its tensors.
    pub payload_bytes: u64,
}

impl Checkpoint {
    /// Encodes the checkpoint, to be laid out in blocks of the slot and of `segments`, which are
    /// striped over the set of devices of this number.
    pub fn encode(
        pool: u128,
        share: u32,
        epoch: u64,
        (segments, set): (&[u32], u8),
        index: &IndexParts<'_>,
    ) -> Vec<u8> {
        let start = Self::payload_start(segments.len() as u64) as usize;
        let payload_bytes = index.bytes();
        let mut bytes = Vec::with_capacity(spacious(start as u64 + payload_bytes));
        bytes.resize(CHECKPOINT_HEADER_BYTES, 0);
        bytes.extend(segments.iter().flat_map(|segment| segment.to_le_bytes()));
        bytes.resize(start, 0);
        index.tensors.iter().for_each(|tensor| encode_put(tensor, &mut bytes));
        index.held.iter().for_each(|(number, entry)| encode_hold(*number, entry, &mut bytes));
        index.seals.iter().for_each(|seal| encode_seal(seal, &mut bytes));
        let mut head = CheckpointOnMedia::zeroed();
        head.magic = MAGIC;
        head.share = share.into();
        head.pool = pool.into();
        head.epoch = epoch.into();
        head.payload_bytes = payload_bytes.into();
        head.tensors = (index.tensors.len() as u64).into();
        head.segments = (segments.len() as u32).into();
        head.set = u32::from(set).into();
        head.checksum =
            checksum_of(&[bytemuck::bytes_of(&head), &bytes[CHECKPOINT_HEADER_BYTES..]]).into();
        bytes[..CHECKPOINT_HEADER_BYTES].copy_from_slice(bytemuck::bytes_of(&head));
        bytes
    }

    /// Returns the offset of the tensors in a checkpoint that lists `segments` segments.
    pub const fn payload_start(segments: u64) -> u64 {
        (CHECKPOINT_HEADER_BYTES as u64 + 4 * segments).next_multiple_of(8)
    }

    /// Parses the claim of a slot's first bytes, so that a reader need not read all of it. `None`
    /// where no checkpoint begins.
    pub fn claim(head: &[u8]) -> Option<CheckpointClaim> {
        let head: CheckpointOnMedia =
            bytemuck::pod_read_unaligned(head.get(..CHECKPOINT_HEADER_BYTES)?);
        let (segments, payload_bytes) = (head.segments.get(), head.payload_bytes.get());
        let bytes = payload_bytes.checked_add(Self::payload_start(segments.into()))?;
        let (pool, share, epoch) = (head.pool.get(), head.share.get(), head.epoch.get());
        let set = u8::try_from(head.set.get()).ok()?;
        let claim = CheckpointClaim { pool, share, epoch, bytes, segments, set, payload_bytes };
        (head.magic == MAGIC).then_some(claim)
    }

    /// The segments that the checkpoint at the start of `bytes` claims to go on in, if its list is
    /// there.
    pub fn claimed_segments(bytes: &[u8]) -> Option<Vec<u32>> {
        let CheckpointClaim { segments, .. } = Self::claim(bytes)?;
        let list = bytes[CHECKPOINT_HEADER_BYTES..].get(..4 * segments as usize)?;
        let number = |bytes: &[u8]| bytes.try_into().map(u32::from_le_bytes).ok();
        list.chunks_exact(4).map(number).collect()
    }

    /// Reads the checkpoint at the start of `bytes`.
    ///
    /// # Errors
    /// No whole checkpoint stands there, or one whose content cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let (head, content) = Self::verified(bytes).ok_or(CheckpointError::Absent)?;
        let epoch = head.epoch.get();
        let segments = Self::claimed_segments(bytes).ok_or(CheckpointError::Absent)?;
        let payload_start = Self::payload_start(segments.len() as u64) as usize;
        let payload = &content[payload_start - CHECKPOINT_HEADER_BYTES..];
        let wrong = |what: String| CheckpointError::Content { epoch, what };
        let (mut tensors, mut versions, mut seals) = (Vec::new(), Vec::new(), Vec::new());
        for change in changes_in(payload) {
            match change.map_err(|source: EntryError| wrong(source.to_string()))? {
                Change::Put(entry) => tensors.push(entry),
                Change::Hold(version) => versions.push(version),
                Change::Seal(seal) => seals.push(seal),
                Change::Delete(_) | Change::Drop(_) => {
                    return Err(wrong("it contains a deletion".into()));
                }
            }
        }
        if tensors.len() as u64 != head.tensors.get() {
            return Err(wrong(format!("{} tensors, not {}", tensors.len(), head.tensors.get())));
        }
        let (pool, share) = (head.pool.get(), head.share.get());
        let set = u8::try_from(head.set.get()).map_err(|_| wrong("its set cannot be".into()))?;
        Ok(Self { pool, share, epoch, segments, set, tensors, held: versions, seals })
    }

    /// Returns whether a block begins as that of a checkpoint of this pool and share does, a few
    /// bits of which may have rotted.
    pub fn is_marked(block: &[u8], pool: u128, share: u32) -> bool {
        let Some(found) = block.first_chunk::<CHECKPOINT_HEADER_BYTES>() else { return false };
        let found: CheckpointOnMedia = bytemuck::cast(*found);
        let mut head = found;
        (head.magic, head.pool, head.share) = (MAGIC, pool.into(), share.into());
        super::is_alike(bytemuck::bytes_of(&found), bytemuck::bytes_of(&head))
    }

    /// Returns whether the same checkpoint stands, whole, at the start of both, of which `whole` is
    /// known to have one. Headers tell, since the content's checksum is in them; no tensor is read.
    pub fn is_copy(bytes: &[u8], whole: &[u8]) -> bool {
        let header = whole.get(..CHECKPOINT_HEADER_BYTES);
        header.is_some_and(|header| bytes.starts_with(header)) && Self::verified(bytes).is_some()
    }

    /// The header and all that its checksum covers behind it, if that is right.
    fn verified(bytes: &[u8]) -> Option<(CheckpointOnMedia, &[u8])> {
        let (head, rest) = bytes.split_at_checked(CHECKPOINT_HEADER_BYTES)?;
        let mut head: CheckpointOnMedia = bytemuck::pod_read_unaligned(head);
        let start = Self::payload_start(head.segments.get().into());
        let end = start.checked_add(head.payload_bytes.get())?;
        let content = rest.get(..usize::try_from(end).ok()? - CHECKPOINT_HEADER_BYTES)?;
        let checksum = head.checksum.get();
        head.checksum = 0.into();
        let right = checksum == checksum_of(&[bytemuck::bytes_of(&head), content]);
        (head.magic == MAGIC && right).then_some((head, content))
    }
}

/// Returns the size of a slot with space for `bytes` bytes, and for their blocks.
fn spacious(bytes: u64) -> usize {
    BlockFormat::Checked.blocks_for(bytes) as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::BLOCK_BYTES;
    use crate::layout::entry::tests::entry;

    fn encoded(tensors: u128) -> Vec<u8> {
        encode(&checkpoint(tensors))
    }

    fn encode(checkpoint: &Checkpoint) -> Vec<u8> {
        let Checkpoint { pool, share, epoch, segments, set, .. } = checkpoint;
        Checkpoint::encode(*pool, *share, *epoch, (segments, *set), &checkpoint.into())
    }

    fn checkpoint(tensors: u128) -> Checkpoint {
        let (segments, tensors) = (Vec::new(), (0..tensors).map(entry).collect());
        let (held, seals) = (Vec::new(), Vec::new());
        Checkpoint { pool: 3, share: 1, epoch: 9, segments, set: 0, tensors, held, seals }
    }

    #[test]
    fn seals_stand_behind_the_tensors_and_are_read_back() {
        let held = vec![HeldVersion { number: 5, entry: entry(1) }];
        let seal = Seal { name: "step 1".into(), sealed_at: 9, order: 1, versions: vec![5] };
        let whole = Checkpoint { held, seals: vec![seal], ..checkpoint(3) };
        let bytes = encode(&whole);
        assert_eq!(
            Checkpoint::claim(&bytes).unwrap().payload_bytes,
            IndexParts::from(&whole).bytes()
        );
        assert_eq!(Checkpoint::decode(&bytes), Ok(whole));
    }

    #[test]
    fn a_checkpoint_is_read_back_and_claims_its_size() {
        for tensors in [0, 1, 500] {
            let bytes = encoded(tensors);
            assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint(tensors)));
            let claim = Checkpoint::claim(&bytes).unwrap();
            assert_eq!((claim.epoch, claim.bytes, claim.segments), (9, bytes.len() as u64, 0));
            let payload = IndexParts::from(&checkpoint(tensors)).bytes();
            assert_eq!(claim.payload_bytes, payload);
            assert!(Checkpoint::is_copy(&bytes, &bytes[..CHECKPOINT_HEADER_BYTES]));
            assert!(!Checkpoint::is_copy(&encoded(tensors + 1), &bytes));
        }
    }

    #[test]
    fn segments_are_listed_before_the_tensors() {
        for count in [1, 2, 1021] {
            let segments: Vec<u32> = (7..7 + count).collect();
            let whole = Checkpoint { segments: segments.clone(), set: 7, ..checkpoint(30) };
            let bytes = encode(&whole);
            assert_eq!(Checkpoint::decode(&bytes), Ok(whole));
            assert_eq!(Checkpoint::claim(&bytes).map(|claim| claim.segments), Some(count));
            assert_eq!(Checkpoint::claimed_segments(&bytes), Some(segments));
            assert_eq!(Checkpoint::claimed_segments(&bytes[..64]), None, "the list is cut off");
        }
        // A list that is longer than memory could be.
        let mut endless = encoded(1);
        endless[56..60].fill(0xFF);
        assert_eq!(Checkpoint::decode(&endless), Err(CheckpointError::Absent));
        assert_eq!(Checkpoint::claimed_segments(&endless), None);
    }

    #[test]
    fn a_torn_or_blank_checkpoint_is_absent() {
        let good = BlockFormat::Plain.lay_out(encoded(500));
        for torn in 0..good.len() / BLOCK_BYTES as usize {
            let mut bytes = good.clone();
            bytes[torn * BLOCK_BYTES as usize..][..BLOCK_BYTES as usize].fill(0x55);
            assert_eq!(Checkpoint::decode(&bytes), Err(CheckpointError::Absent), "block {torn}");
            assert!(!Checkpoint::is_copy(&bytes, &good), "block {torn}");
        }
        assert_eq!(Checkpoint::decode(&[0; 4096]), Err(CheckpointError::Absent));
        assert!(!Checkpoint::is_copy(&good, &[]));
        assert_eq!(Checkpoint::claim(&[0xFF; 64]), None);
        let mut rotten = good.clone();
        (rotten[0], rotten[17]) = (rotten[0] ^ 3, rotten[17] ^ 3);
        assert!(Checkpoint::is_marked(&rotten, 3, 1) && Checkpoint::claim(&rotten).is_none());
        assert!(!Checkpoint::is_marked(&good, u128::MAX, 1) && !Checkpoint::is_marked(&[], 3, 1));
    }
}
