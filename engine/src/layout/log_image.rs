//! A change log as it was read from a device, in which records are looked for.
//!
//! A record's checksum covers as much as its header claims, and any block of a damaged log may
//! claim all that follows. Taking the checksum of each claim would cost the square of the log's
//! length. CRC32C is linear, so the checksum of any range follows from those of two beginnings of
//! the log: every block is checksummed once, on the way there, and each claim costs two parts of
//! blocks more.

use std::ops::Range;

use super::change::{ChangeRecord, ChangeRecordError, RECORD_HEADER_BYTES, RecordHead};
use super::entry::decode_changes;
use super::{BLOCK_BYTES, checksum_of};

const BLOCK: usize = BLOCK_BYTES as usize;

/// The bytes of a change log.
#[derive(Debug)]
pub struct LogImage {
    bytes: Vec<u8>,
    /// The CRC32C of the first blocks, by their number, as far as it was needed.
    sums: Vec<u32>,
    checksummed: u64,
}

impl LogImage {
    /// Begins to look for records in a log.
    pub fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, sums: vec![0], checksummed: 0 }
    }

    /// Returns the length of the log.
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Returns whether there is no log.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The block at `at`.
    pub fn block(&self, at: usize) -> Option<&[u8]> {
        self.bytes(at, BLOCK)
    }

    /// Returns `length` bytes from `at` on.
    pub fn bytes(&self, at: usize, length: usize) -> Option<&[u8]> {
        self.bytes.get(at..at.checked_add(length)?)
    }

    /// Parses the header at `at`. It is true if [`Self::is_whole`] says so.
    pub fn claim(&self, at: usize) -> Option<RecordHead> {
        RecordHead::claimed(self.bytes.get(at..)?)
    }

    /// Returns whether the record that is claimed at `at` stands there whole.
    pub fn is_whole(&mut self, at: usize) -> bool {
        let Some(head) = self.claim(at) else { return false };
        let payload = at + RECORD_HEADER_BYTES..at + RECORD_HEADER_BYTES + head.payload_bytes;
        if payload.end > self.bytes.len() {
            return false;
        }
        self.checksummed += RECORD_HEADER_BYTES as u64;
        head.checksum()
            == shift(checksum_of(&[&head.sealed()]), payload.len()) ^ self.checksum(payload)
    }

    /// The record at `at`, if a whole one stands there.
    ///
    /// # Errors
    /// No whole record stands there, or one whose content cannot be.
    pub fn record(&mut self, at: usize) -> Result<ChangeRecord, ChangeRecordError> {
        let head = self.claim(at).filter(|_| self.is_whole(at)).ok_or(ChangeRecordError::Absent)?;
        let payload = &self.bytes[at + RECORD_HEADER_BYTES..][..head.payload_bytes];
        head.with(decode_changes(payload))
    }

    /// Returns the number of bytes that were checksummed so far.
    pub fn checksummed(&self) -> u64 {
        self.checksummed
    }

    /// The CRC32C of these bytes of the log.
    fn checksum(&mut self, range: Range<usize>) -> u32 {
        if range.len() <= BLOCK {
            self.checksummed += range.len() as u64;
            return crc32c::crc32c(&self.bytes[range]);
        }
        let length = range.len();
        let before = self.checksum_to(range.start);
        self.checksum_to(range.end) ^ shift(before, length)
    }

    /// The CRC32C of the log up to `end`.
    fn checksum_to(&mut self, end: usize) -> u32 {
        while self.sums.len() <= end / BLOCK {
            let (blocks, sum) = (self.sums.len(), self.sums[self.sums.len() - 1]);
            let block = &self.bytes[(blocks - 1) * BLOCK..blocks * BLOCK];
            self.sums.push(crc32c::crc32c_append(sum, block));
            self.checksummed += BLOCK_BYTES;
        }
        let rest = &self.bytes[end / BLOCK * BLOCK..end];
        self.checksummed += rest.len() as u64;
        crc32c::crc32c_append(self.sums[end / BLOCK], rest)
    }
}

/// The generator of CRC32C, its bits reversed, as checksums are.
const GENERATOR: u32 = 0x82F6_3B78;
/// The polynomial 1, reversed.
const ONE: u32 = 1 << 31;
/// Powers of the polynomial that moves a checksum by one byte, x^8.
const POWERS: [u32; usize::BITS as usize] = {
    let mut powers = [ONE >> 8; usize::BITS as usize];
    let mut index = 1;
    while index < powers.len() {
        powers[index] = product(powers[index - 1], powers[index - 1]);
        index += 1;
    }
    powers
};

/// Returns the part of a CRC32C that its first bytes contribute where `length` others follow: the
/// latter is `shift(crc, length) ^ crc of the others`.
fn shift(crc: u32, length: usize) -> u32 {
    let bits = (0..POWERS.len()).filter(|bit| length >> bit & 1 != 0);
    bits.fold(crc, |shifted, bit| product(shifted, POWERS[bit]))
}

/// The product of two polynomials over GF(2), modulo the generator.
const fn product(one: u32, mut other: u32) -> u32 {
    let (mut sum, mut bit) = (0, ONE);
    while bit != 0 {
        if one & bit != 0 {
            sum ^= other;
        }
        other = if other & 1 == 0 { other >> 1 } else { other >> 1 ^ GENERATOR };
        bit >>= 1;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layout::entry::tests::entry;
    use crate::layout::{BlockFormat, Change, TensorId};
    use tidelog_random::Random;

    /// Makes a record of the pool 3 with `puts` puts.
    fn record(sequence: u64, puts: u128) -> Vec<u8> {
        let changes = (0..puts).map(|id| Change::Put(entry(id))).collect();
        laid_out(&ChangeRecord { pool: 3, share: 1, epoch: 9, sequence, changes })
    }

    fn laid_out(record: &ChangeRecord) -> Vec<u8> {
        BlockFormat::Plain.lay_out(record.encode())
    }

    #[test]
    fn the_checksum_of_any_range_follows_from_those_of_beginnings() {
        let mut random = Random::new(1);
        let bytes: Vec<u8> = (0..9 * BLOCK + 77).map(|_| random.below(256) as u8).collect();
        let mut log = LogImage::new(bytes.clone());
        for _ in 0..500 {
            let start = random.below(bytes.len() as u64) as usize;
            let end = start + random.below((bytes.len() - start) as u64 + 1) as usize;
            assert_eq!(
                log.checksum(start..end),
                crc32c::crc32c(&bytes[start..end]),
                "{start}..{end}"
            );
        }
        assert_eq!(shift(crc32c::crc32c(b"tides"), 0), crc32c::crc32c(b"tides"));
    }

    #[test]
    fn records_are_found_where_they_stand_and_nowhere_else() {
        let mut bytes = record(1, 1);
        bytes.extend(record(2, 500));
        let second = bytes.len();
        bytes.extend(record(3, 0));
        let end = bytes.len();
        let mut log = LogImage::new(bytes.clone());
        for at in (0..end).step_by(BLOCK) {
            let found = log.record(at);
            assert_eq!(found, ChangeRecord::decode(&bytes[at..]), "at {at}");
            assert_eq!(found.is_ok(), at == 0 || at == BLOCK || at == second, "at {at}");
        }
        assert_eq!(log.record(end), Err(ChangeRecordError::Absent));
        let torn = 3 * BLOCK;
        bytes[torn] ^= 1;
        let mut log = LogImage::new(bytes.clone());
        assert!(log.is_whole(0) && !log.is_whole(BLOCK) && log.is_whole(second));
        let mut cut = LogImage::new(bytes[..second - BLOCK].to_vec());
        assert!(cut.claim(BLOCK).is_some() && !cut.is_whole(BLOCK), "it ends beyond the log");
        assert!(log.claim(0).is_some_and(|head| head.sequence == 1 && head.pool == 3));
    }

    #[test]
    fn a_deletion_costs_no_more_than_its_block() {
        let changes = vec![Change::Delete(TensorId(5))];
        let bytes = laid_out(&ChangeRecord { pool: 3, share: 1, epoch: 9, sequence: 1, changes });
        let mut log = LogImage::new(bytes);
        log.record(0).unwrap();
        assert!(log.checksummed() < BLOCK_BYTES / 8, "{}", log.checksummed());
    }

    #[test]
    fn a_log_in_which_every_block_claims_the_rest_costs_twice_its_bytes() {
        for blocks in [64, 512] {
            let mut bytes = vec![0; blocks * BLOCK];
            for at in (0..bytes.len()).step_by(BLOCK) {
                let mut head = record(7, 0);
                head.truncate(RECORD_HEADER_BYTES);
                let claimed = (bytes.len() - at - RECORD_HEADER_BYTES - at / BLOCK) as u32;
                head[12..16].copy_from_slice(&claimed.to_le_bytes());
                bytes[at..at + RECORD_HEADER_BYTES].copy_from_slice(&head);
            }
            let length = bytes.len() as u64;
            let mut log = LogImage::new(bytes);
            let whole = (0..blocks).filter(|block| log.is_whole(block * BLOCK)).count();
            assert_eq!(whole, 0);
            assert!(log.checksummed() > length / 2, "it was looked at");
            // Each block once, and for each claim its header, and parts of the blocks where it
            // begins and ends.
            let most = 2 * length + length / 16;
            assert!(log.checksummed() <= most, "{} of {length}", log.checksummed());
        }
    }
}
