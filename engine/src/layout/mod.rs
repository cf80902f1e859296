//! Structures on the media: little endian, checksummed with CRC32C, in blocks of 4 KiB.
//!
//! Everything here turns values into bytes and bytes into values or a stated reason; nothing here
//! does I/O. `docs/format.md` draws the same structures; a test keeps their sizes in step.
//!
//! ```text
//! block   0     1             2 to 33        34           ...          last
//!         MBR | superblock A | share holders | owner | share areas | segments | superblock B
//!                                                      (metadata)    (data)
//! ```

mod blocks;
mod change;
mod checkpoint;
mod device_table;
#[cfg(test)]
mod document_tests;
mod endian;
mod entry;
mod event;
mod geometry;
mod holder;
mod log_image;
mod mark;
mod owner;
mod seal;
mod superblock;
mod tensor;
mod unfinished;

pub use blocks::BlockFormat;
pub use change::{ChangeRecord, ChangeRecordError, RECORD_HEADER_BYTES, RecordHead};
pub use checkpoint::{
    CHECKPOINT_HEADER_BYTES, Checkpoint, CheckpointClaim, CheckpointError, IndexParts,
};
pub use device_table::{DEVICE_SETS_MAX, DeviceRates, DeviceTable};
pub use entry::{
    Change, Checksums, EntryError, Runs, TensorEntry, decodable_changes, decode_changes,
    encode_change, encoded_bytes,
};
pub use event::{Events, ShareEvent};
pub use geometry::{Geometry, GeometryError, GeometryRequest, ShareArea, SlotArea};
pub use holder::{Holder, utc};
pub use log_image::LogImage;
pub use mark::{LogMark, LogPoint};
pub use owner::Owner;
pub use seal::{HeldVersion, Seal};
pub use superblock::{
    FORMAT_VERSION, MAGIC, Superblock, SuperblockError, is_protective_mbr, protective_mbr,
};
pub use tensor::{Copies, LifetimeClass, NAME_BYTES_MAX, Run, TensorId, TensorKey};
pub use unfinished::{CALIBRATION_MARK, SECTOR_BYTES, UnfinishedFormat};

/// The unit of everything on the media: one block. No extent starts or ends off a block boundary.
pub const BLOCK_BYTES: u64 = 4096;

/// Devices a pool may have.
pub const DEVICES_MAX: usize = 64;

/// Shares a pool may be divided into: as many holder blocks stand behind the first superblock.
pub const SHARES_MAX: u32 = 32;

/// Offset of the first superblock. Block 0 is left to a protective MBR.
pub const SUPERBLOCK_OFFSET: u64 = BLOCK_BYTES;

/// Offset of the holder block of share 0; the others follow.
pub const HOLDERS_OFFSET: u64 = 2 * BLOCK_BYTES;

/// Offset of the owner block, behind those of the holders.
pub const OWNER_OFFSET: u64 = HOLDERS_OFFSET + SHARES_MAX as u64 * BLOCK_BYTES;

/// Offset of the first share's metadata.
pub const METADATA_OFFSET: u64 = 256 << 10;

const _: () = assert!(OWNER_OFFSET + BLOCK_BYTES <= METADATA_OFFSET);

/// Returns the number of blocks that hold `bytes`.
pub const fn blocks_for(bytes: u64) -> u64 {
    bytes.div_ceil(BLOCK_BYTES)
}

/// Returns whether a block begins with a structure's mark, a few bits of which may have rotted. Of
/// 64 bits that are anything else, many more differ.
fn is_marked(block: &[u8], magic: [u8; 8]) -> bool {
    block.len() >= magic.len() && is_alike(&block[..magic.len()], &magic)
}

/// Returns whether bytes differ by no more bits than may have rotted.
fn is_alike(one: &[u8], other: &[u8]) -> bool {
    const ROTTEN_BITS_MAX: u32 = 8;
    let differ = |(one, other): (&u8, &u8)| (one ^ other).count_ones();
    one.iter().zip(other).map(differ).sum::<u32>() <= ROTTEN_BITS_MAX
}

/// Returns whether nothing but zeroes stands there.
pub(crate) fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// CRC32C over several slices as if they were one.
pub(crate) fn checksum_of(parts: &[&[u8]]) -> u32 {
    parts.iter().fold(0, |crc, part| crc32c::crc32c_append(crc, part))
}
