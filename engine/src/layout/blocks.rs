//! Layout of a checkpoint or a change record in blocks.
//!
//! Pools with the feature block-checksums end each block of these with a CRC32C of its own. So a
//! block that is damaged in one copy is known, and taken from the other. The checksum covers what
//! identifies the structure, its own checksum, and the block's number in it: a block of another one
//! that stood there before is not taken for it.

use super::{BLOCK_BYTES, checksum_of};

const BLOCK: usize = BLOCK_BYTES as usize;
const CHECKSUM_BYTES: usize = size_of::<u32>();

/// Place of a structure's own checksum, behind the magic.
const SEAL: std::ops::Range<usize> = 8..12;

/// Format of content in blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BlockFormat {
    /// One block after the other, with zeroes behind the end.
    Plain,
    /// Blocks of content alone, each with a checksum at its end.
    Checked,
}

impl BlockFormat {
    const fn content_bytes(self) -> usize {
        match self {
            Self::Plain => BLOCK,
            Self::Checked => BLOCK - CHECKSUM_BYTES,
        }
    }

    /// Returns the size of the content that whole blocks of `bytes` bytes hold.
    pub const fn content_of(self, bytes: u64) -> u64 {
        bytes / BLOCK_BYTES * self.content_bytes() as u64
    }

    /// Returns the bytes of the blocks that hold `content` bytes; the largest number where there
    /// are none.
    pub const fn blocks_for(self, content: u64) -> u64 {
        content.div_ceil(self.content_bytes() as u64).saturating_mul(BLOCK_BYTES)
    }

    /// The blocks of a structure.
    pub fn lay_out(self, mut content: Vec<u8>) -> Vec<u8> {
        let (length, room, seal) = (content.len(), self.content_bytes(), Self::seal(&content));
        content.resize(self.blocks_for(length as u64) as usize, 0);
        if self == Self::Plain {
            return content;
        }
        // From the last on, so that nothing is written over that has not moved.
        for number in (0..content.len() / BLOCK).rev() {
            let (from, at) = (number * room, number * BLOCK);
            let moved = room.min(length - from);
            content.copy_within(from..from + moved, at);
            content[at + moved..at + BLOCK].fill(0);
            let checksum = checksum(&content[at..at + room], number as u64, seal);
            content[at + room..at + BLOCK].copy_from_slice(&checksum.to_le_bytes());
        }
        content
    }

    /// Returns the input of [`Self::lay_out`], and zeroes behind it.
    pub fn take_out(self, mut blocks: Vec<u8>) -> Vec<u8> {
        if self == Self::Plain {
            return blocks;
        }
        let (count, room) = (blocks.len() / BLOCK, self.content_bytes());
        for number in 1..count {
            blocks.copy_within(number * BLOCK..number * BLOCK + room, number * room);
        }
        blocks.truncate(count * room);
        blocks
    }

    /// The checksum that a structure carries which begins with this block.
    pub fn seal(first: &[u8]) -> u32 {
        let seal = first.get(SEAL).and_then(|bytes| bytes.try_into().ok());
        seal.map_or(0, u32::from_le_bytes)
    }

    /// Returns whether a block is that of this number of the structure with this checksum. Where
    /// blocks have none of their own, nothing says that it is not.
    pub fn is_whole(self, block: &[u8], number: u64, seal: u32) -> bool {
        let Some((content, found)) = block.split_last_chunk() else { return false };
        self == Self::Plain || u32::from_le_bytes(*found) == checksum(content, number, seal)
    }
}

fn checksum(content: &[u8], number: u64, seal: u32) -> u32 {
    checksum_of(&[&seal.to_le_bytes(), &number.to_le_bytes(), content])
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(length: usize) -> Vec<u8> {
        (0..length).map(|at| (at * 7 + at / 251) as u8).collect()
    }

    #[test]
    fn what_is_laid_out_is_taken_out_and_its_blocks_are_whole() {
        for format in [BlockFormat::Plain, BlockFormat::Checked] {
            for length in [64, 4091, 4092, 4093, 4096, 4097, 8184, 8185, 40_000] {
                let content = content(length);
                let (blocks, seal) = (format.lay_out(content.clone()), BlockFormat::seal(&content));
                assert_eq!(blocks.len() as u64, format.blocks_for(length as u64));
                assert!(format.content_of(blocks.len() as u64) >= length as u64);
                for (number, block) in (0..).zip(blocks.chunks(BLOCK)) {
                    assert!(format.is_whole(block, number, seal), "{format:?} {length} {number}");
                }
                let taken = format.take_out(blocks);
                assert_eq!(taken[..length], content[..]);
                assert!(taken[length..].iter().all(|byte| *byte == 0));
            }
        }
        assert_eq!(BlockFormat::Checked.blocks_for(u64::MAX), u64::MAX);
    }

    #[test]
    fn a_block_of_another_number_or_structure_or_with_any_bit_wrong_is_none() {
        let format = BlockFormat::Checked;
        let content = content(10_000);
        let (blocks, seal) = (format.lay_out(content.clone()), BlockFormat::seal(&content));
        let block = &blocks[BLOCK..2 * BLOCK];
        assert!(format.is_whole(block, 1, seal));
        assert!(!format.is_whole(block, 0, seal) && !format.is_whole(block, 2, seal));
        assert!(!format.is_whole(block, 1, seal ^ 1) && !format.is_whole(&[], 1, seal));
        for bit in (0..8 * BLOCK).step_by(37) {
            let mut block = block.to_vec();
            block[bit / 8] ^= 1 << (bit % 8);
            assert!(!format.is_whole(&block, 1, seal), "bit {bit}");
        }
        // A block that was never written is none of any structure's first.
        assert!(!format.is_whole(&[0; BLOCK], 0, 0));
    }
}
