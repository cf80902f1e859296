//! An index checkpoint: every durable tensor of a share, at one commit.

use std::borrow::Borrow;

use bytemuck::{Pod, Zeroable};
use thiserror::Error;

use super::endian::{U32, U64, U128};
use super::entry::{Change, EntryError, TensorEntry, changes_in, encode_put};
use super::{BLOCK_BYTES, checksum_of};

const MAGIC: [u8; 8] = *b"TIDEINDX";

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
    pub(super) reserved: [u8; 8],
}

/// Bytes of a checkpoint before its tensors.
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
    /// Every durable tensor.
    pub tensors: Vec<TensorEntry>,
}

/// Why no checkpoint can be read from a slot.
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
        /// What is wrong.
        what: String,
    },
}

impl Checkpoint {
    /// The blocks that stand in the slot.
    pub fn encode(
        pool: u128,
        share: u32,
        epoch: u64,
        tensors: &[impl Borrow<TensorEntry>],
    ) -> Vec<u8> {
        let mut bytes = vec![0; CHECKPOINT_HEADER_BYTES];
        for tensor in tensors {
            encode_put(tensor.borrow(), &mut bytes);
        }
        let mut head = CheckpointOnMedia::zeroed();
        head.magic = MAGIC;
        head.share = share.into();
        head.pool = pool.into();
        head.epoch = epoch.into();
        head.payload_bytes = ((bytes.len() - CHECKPOINT_HEADER_BYTES) as u64).into();
        head.tensors = (tensors.len() as u64).into();
        head.checksum =
            checksum_of(&[bytemuck::bytes_of(&head), &bytes[CHECKPOINT_HEADER_BYTES..]]).into();
        bytes[..CHECKPOINT_HEADER_BYTES].copy_from_slice(bytemuck::bytes_of(&head));
        bytes.resize(bytes.len().next_multiple_of(BLOCK_BYTES as usize), 0);
        bytes
    }

    /// Epoch and size (padding included) that the first bytes of a slot claim, so that a reader need not
    /// read the whole slot. The claim is only true if [`Self::decode`] says so.
    pub fn claim(head: &[u8]) -> Option<(u64, u64)> {
        let head: CheckpointOnMedia =
            bytemuck::pod_read_unaligned(head.get(..CHECKPOINT_HEADER_BYTES)?);
        let bytes = head.payload_bytes.get().checked_add(CHECKPOINT_HEADER_BYTES as u64)?;
        (head.magic == MAGIC)
            .then_some((head.epoch.get(), bytes.checked_next_multiple_of(BLOCK_BYTES)?))
    }

    /// Reads the checkpoint at the start of `bytes`.
    ///
    /// # Errors
    /// No whole checkpoint stands there, or one whose content cannot be.
    pub fn decode(bytes: &[u8]) -> Result<Self, CheckpointError> {
        let (head, payload) = Self::verified(bytes).ok_or(CheckpointError::Absent)?;
        let epoch = head.epoch.get();
        let wrong = |what: String| CheckpointError::Content { epoch, what };
        let mut tensors = Vec::new();
        for change in changes_in(payload) {
            match change.map_err(|source: EntryError| wrong(source.to_string()))? {
                Change::Put(entry) => tensors.push(entry),
                Change::Delete(_) => return Err(wrong("it contains a deletion".into())),
            }
        }
        if tensors.len() as u64 != head.tensors.get() {
            return Err(wrong(format!("{} tensors, not {}", tensors.len(), head.tensors.get())));
        }
        Ok(Self { pool: head.pool.get(), share: head.share.get(), epoch, tensors })
    }

    /// Whether the same checkpoint stands, whole, at the start of both, of which `whole` is known to have one.
    /// Headers tell, since the content's checksum is in them; no tensor is read.
    pub fn is_copy(bytes: &[u8], whole: &[u8]) -> bool {
        let header = whole.get(..CHECKPOINT_HEADER_BYTES);
        header.is_some_and(|header| bytes.starts_with(header)) && Self::verified(bytes).is_some()
    }

    /// The header and the payload, if their checksum is right.
    fn verified(bytes: &[u8]) -> Option<(CheckpointOnMedia, &[u8])> {
        let (head, rest) = bytes.split_at_checked(CHECKPOINT_HEADER_BYTES)?;
        let mut head: CheckpointOnMedia = bytemuck::pod_read_unaligned(head);
        let payload = rest.get(..usize::try_from(head.payload_bytes.get()).ok()?)?;
        let checksum = head.checksum.get();
        head.checksum = 0.into();
        let right = checksum == checksum_of(&[bytemuck::bytes_of(&head), payload]);
        (head.magic == MAGIC && right).then_some((head, payload))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::entry::tests::entry;

    fn encoded(tensors: u128) -> Vec<u8> {
        Checkpoint::encode(3, 1, 9, &checkpoint(tensors).tensors)
    }

    fn checkpoint(tensors: u128) -> Checkpoint {
        Checkpoint { pool: 3, share: 1, epoch: 9, tensors: (0..tensors).map(entry).collect() }
    }

    #[test]
    fn a_checkpoint_is_read_back_and_claims_its_size() {
        for tensors in [0, 1, 500] {
            let bytes = encoded(tensors);
            assert_eq!(Checkpoint::decode(&bytes), Ok(checkpoint(tensors)));
            assert_eq!(Checkpoint::claim(&bytes), Some((9, bytes.len() as u64)));
            assert!(Checkpoint::is_copy(&bytes, &bytes[..CHECKPOINT_HEADER_BYTES]));
            assert!(!Checkpoint::is_copy(&encoded(tensors + 1), &bytes));
        }
    }

    #[test]
    fn a_torn_or_blank_checkpoint_is_absent() {
        let good = encoded(500);
        for torn in 0..good.len() / BLOCK_BYTES as usize {
            let mut bytes = good.clone();
            bytes[torn * BLOCK_BYTES as usize..][..BLOCK_BYTES as usize].fill(0x55);
            assert_eq!(Checkpoint::decode(&bytes), Err(CheckpointError::Absent), "block {torn}");
            assert!(!Checkpoint::is_copy(&bytes, &good), "block {torn}");
        }
        assert_eq!(Checkpoint::decode(&[0; 4096]), Err(CheckpointError::Absent));
        assert!(!Checkpoint::is_copy(&good, &[]));
        assert_eq!(Checkpoint::claim(&[0xFF; 64]), None);
    }
}
