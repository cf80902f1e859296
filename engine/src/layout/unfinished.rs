//! Remains of an interrupted format, so that the next one distinguishes its own from others' data.
//!
//! Before a format writes anything but zeroes, a mark stands in the place of the first superblock
//! of each device, until that superblock takes its place. All else that stands on a device with the
//! mark is then of no use to anybody: what the format wrote says itself that it did.

use bytemuck::{Pod, Zeroable};

use super::endian::{U32, U128};
use super::{BLOCK_BYTES, checkpoint, checksum_of, is_protective_mbr, is_zero, superblock};

/// Magic of the mark, of which more than 8 bits differ from the marks of all other structures: none
/// of these can rot to it.
const MAGIC: [u8; 8] = *b"UNFINISH";

/// The bytes that each sector begins with that calibration writes.
pub const CALIBRATION_MARK: [u8; 16] = *b"TIDELOG MEASURES";

/// The smallest unit that a device writes whole.
pub const SECTOR_BYTES: usize = 512;

#[derive(Clone, Copy, Pod, Zeroable)]
#[repr(C)]
pub(super) struct UnfinishedOnMedia {
    pub(super) magic: [u8; 8],
    /// CRC32C over the block with this field as zero.
    pub(super) checksum: U32,
    pub(super) unused: U32,
    pub(super) pool: U128,
    pub(super) reserved: [u8; 4064],
}

const _: () = assert!(size_of::<UnfinishedOnMedia>() == BLOCK_BYTES as usize);

/// The mark of a format that has not ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnfinishedFormat {
    /// The pool that was being made.
    pub pool: u128,
}

impl UnfinishedFormat {
    /// The block that stands on the media.
    pub fn encode(self) -> Vec<u8> {
        let mut block = UnfinishedOnMedia::zeroed();
        block.magic = MAGIC;
        block.pool = self.pool.into();
        block.checksum = checksum_of(&[bytemuck::bytes_of(&block)]).into();
        bytemuck::bytes_of(&block).to_vec()
    }

    /// Reads a block; `None` if no such mark stands there, or one that is damaged. The superblock
    /// that takes its place may have been torn: the mark is all in the first sector.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut block: UnfinishedOnMedia = bytemuck::try_pod_read_unaligned(bytes).ok()?;
        if bytes.chunks(SECTOR_BYTES).skip(1).all(superblock::is_part_of_tables) {
            block.reserved[SECTOR_BYTES - 32..].fill(0);
        }
        let expected = std::mem::replace(&mut block.checksum, 0.into());
        let found = checksum_of(&[bytemuck::bytes_of(&block)]);
        (block.magic == MAGIC && expected.get() == found).then(|| Self { pool: block.pool.get() })
    }

    /// Returns whether an interrupted format may have left this block: of whole sectors of a
    /// calibration, or one of a pool's structures that holds nothing yet, or what a device wrote of
    /// that which loses its power: any of its sectors.
    pub fn may_have_left(block: &[u8]) -> bool {
        let is_measured = |sector: &[u8]| sector.starts_with(&CALIBRATION_MARK) || is_zero(sector);
        let is_torn = |mut sectors: std::slice::Chunks<'_, u8>| {
            sectors.next().is_some_and(is_zero)
                && (sectors.clone().all(superblock::is_part_of_tables)
                    || sectors.next_back().is_some_and(ends_as_a_block_does)
                        && sectors.all(is_zero))
        };
        block.chunks(SECTOR_BYTES).all(is_measured)
            || is_torn(block.chunks(SECTOR_BYTES))
            || is_protective_mbr(block)
            || [MAGIC, superblock::MAGIC, checkpoint::MAGIC].iter().any(|it| block.starts_with(it))
    }
}

/// Returns whether a sector has nothing but the checksum that blocks of checkpoints end with.
fn ends_as_a_block_does(sector: &[u8]) -> bool {
    sector.split_last_chunk::<4>().is_some_and(|(content, _)| is_zero(content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::{Holder, Owner, Superblock, protective_mbr};

    #[test]
    fn a_mark_is_read_back_and_a_flipped_bit_is_noticed() {
        let mark = UnfinishedFormat { pool: 0xABCD };
        let block = mark.encode();
        assert_eq!(UnfinishedFormat::decode(&block), Some(mark));
        for byte in [0, 7, 9, 16, 31, 511, 4095] {
            let mut bad = block.clone();
            bad[byte] ^= 1;
            assert_eq!(UnfinishedFormat::decode(&bad), None, "byte {byte}");
        }
        assert_eq!(UnfinishedFormat::decode(&[]), None);
        assert!(!Superblock::is_marked(&block) && !Owner::is_marked(&block));
        assert!(!Holder::is_marked(&block));
    }

    #[test]
    fn only_what_a_format_writes_is_taken_for_its_rest() {
        let mut measured = vec![0xA5; BLOCK_BYTES as usize];
        for sector in measured.chunks_mut(SECTOR_BYTES) {
            sector[..16].copy_from_slice(&CALIBRATION_MARK);
        }
        // A write that was torn.
        let mut torn = measured.clone();
        torn[..3 * SECTOR_BYTES].fill(0);
        let mark = UnfinishedFormat { pool: 1 }.encode();
        for left in [vec![0; BLOCK_BYTES as usize], mark, protective_mbr(1 << 30), torn, measured] {
            assert!(UnfinishedFormat::may_have_left(&left));
            let mut foreign = left;
            foreign[5 * SECTOR_BYTES..].fill(7);
            foreign[..8].fill(7);
            assert!(!UnfinishedFormat::may_have_left(&foreign));
        }
    }
}
