//! The structures of `docs/format.md` around any content, with checksums that are right. Written
//! from the document and not with the engine's encoders, which refuse to write what a fuzzer wants
//! to see read.

use tidelog_engine::layout::BLOCK_BYTES;

/// Makes a block's checksum right: it covers everything, with itself as zero.
pub(super) fn seal(bytes: &mut [u8], checksum_at: usize) {
    bytes[checksum_at..checksum_at + 4].fill(0);
    let checksum = crc32c::crc32c(bytes);
    bytes[checksum_at..checksum_at + 4].copy_from_slice(&checksum.to_le_bytes());
}

/// A superblock's checksum stands behind its magic and version.
pub(super) const SUPERBLOCK_CHECKSUM: usize = 12;

/// Offset of the checksum behind the magic, for all other structures.
pub(super) const CHECKSUM: usize = 8;

/// The words in front of a checkpoint's payload.
pub(super) struct CheckpointHead {
    pub(super) pool: u128,
    pub(super) share: u32,
    pub(super) epoch: u64,
    pub(super) tensors: u64,
    pub(super) segments: Vec<u32>,
}

/// A checkpoint with any payload.
pub(super) fn checkpoint(head: &CheckpointHead, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"TIDEINDX\0\0\0\0".to_vec();
    bytes.extend(head.share.to_le_bytes());
    bytes.extend(head.pool.to_le_bytes());
    bytes.extend(head.epoch.to_le_bytes());
    bytes.extend((payload.len() as u64).to_le_bytes());
    bytes.extend(head.tensors.to_le_bytes());
    bytes.extend((head.segments.len() as u64).to_le_bytes());
    bytes.extend(head.segments.iter().flat_map(|segment| segment.to_le_bytes()));
    bytes.resize(bytes.len().next_multiple_of(8), 0);
    finish(bytes, payload)
}

/// The words in front of a change record's payload.
pub(super) struct RecordHead {
    pub(super) pool: u128,
    pub(super) share: u32,
    pub(super) epoch: u64,
    pub(super) sequence: u64,
}

/// A change record with any payload.
pub(super) fn record(head: &RecordHead, payload: &[u8]) -> Vec<u8> {
    let mut bytes = b"TIDECHNG\0\0\0\0".to_vec();
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(head.pool.to_le_bytes());
    bytes.extend(head.epoch.to_le_bytes());
    bytes.extend(head.sequence.to_le_bytes());
    bytes.extend(head.share.to_le_bytes());
    bytes.extend([0; 12]);
    finish(bytes, payload)
}

/// Header and payload, sealed.
fn finish(mut bytes: Vec<u8>, payload: &[u8]) -> Vec<u8> {
    bytes.extend(payload);
    seal(&mut bytes, CHECKSUM);
    bytes
}

/// A structure in blocks, with zeroes up to the end of the last one; with checksums, each block has
/// its own.
pub(super) fn blocks(structure: &[u8], checksums: bool) -> Vec<u8> {
    let block_bytes = BLOCK_BYTES as usize;
    let room = if checksums { block_bytes - 4 } else { block_bytes };
    let of_structure = &structure[CHECKSUM..CHECKSUM + 4];
    let block = |(number, content): (u64, &[u8])| {
        let mut block = content.to_vec();
        block.resize(room, 0);
        if checksums {
            let number = number.to_le_bytes();
            let checksum = crc32c::crc32c(&[of_structure, &number, &block].concat());
            block.extend(checksum.to_le_bytes());
        }
        block
    };
    (0..).zip(structure.chunks(room)).flat_map(block).collect()
}
