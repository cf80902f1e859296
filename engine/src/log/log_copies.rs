//! The copies of a share's change log, joined: of each block any copy will do.

use std::cell::Cell;

use super::change_log::{LogMedia, LogPlace};
use super::copies::{BlockRead, Unread, read_blocks};
use crate::layout::{
    BLOCK_BYTES, BlockFormat, ChangeRecord, ChangeRecordError, LogImage, LogPoint, RecordHead,
};

const BLOCK: usize = BLOCK_BYTES as usize;

/// The change log of a slot, in every copy.
pub(super) struct LogCopies {
    format: BlockFormat,
    offset: u64,
    /// Each with the blocks of another in place of those that cannot be read.
    copies: Vec<(u8, LogImage)>,
    pub(super) unread: Vec<Unread>,
    /// Bytes of blocks that were compared with their checksums.
    checksummed: Cell<u64>,
}

impl LogCopies {
    /// Reads the log in these copies.
    pub(super) fn read<M: LogMedia>(
        place: &LogPlace,
        media: &M,
        slot: usize,
        copies: impl Iterator<Item = u8>,
    ) -> Self {
        let area = &place.area.slots[slot];
        let offset = area.log_offset;
        let read = |copy| (copy, read_blocks(media, copy, offset, area.log_bytes));
        let mut reads: Vec<(u8, BlockRead)> = copies.map(read).collect();
        let unread: Vec<Unread> = reads.iter().flat_map(|(_, read)| read.unread.clone()).collect();
        for lost in &unread {
            for block in lost.blocks() {
                let has = |(copy, _): &&(u8, BlockRead)| {
                    let lacks = |it: &Unread| it.device == *copy && it.overlaps(block, BLOCK_BYTES);
                    !unread.iter().any(lacks)
                };
                let at = (block - offset) as usize;
                let good = reads.iter().find(has);
                let good = good.map(|(_, read)| read.bytes[at..at + BLOCK].to_vec());
                let lacking = reads.iter_mut().find(|(copy, _)| *copy == lost.device);
                if let (Some(good), Some((_, read))) = (good, lacking) {
                    read.bytes[at..at + BLOCK].copy_from_slice(&good);
                }
            }
        }
        let image = |(copy, read): (u8, BlockRead)| (copy, LogImage::new(read.bytes));
        let copies = reads.into_iter().map(image).collect();
        Self { format: place.format, offset, copies, unread, checksummed: Cell::new(0) }
    }

    /// Returns the length of the log.
    pub(super) fn len(&self) -> usize {
        self.copies.iter().map(|(_, image)| image.len()).min().unwrap_or(0)
    }

    /// Returns the number of bytes that were checksummed so far.
    pub(super) fn checksummed(&self) -> u64 {
        let images = self.copies.iter().map(|(_, image)| image.checksummed());
        self.checksummed.get() + images.sum::<u64>()
    }

    fn is_whole(&self, block: &[u8], number: u64, seal: u32) -> bool {
        if self.format == BlockFormat::Checked {
            self.checksummed.update(|all| all + BLOCK_BYTES);
        }
        self.format.is_whole(block, number, seal)
    }

    /// Returns each copy's claim at `at`, if it is `wanted`.
    fn claims(&self, at: usize, wanted: impl Fn(&RecordHead) -> bool) -> Vec<(usize, RecordHead)> {
        let claim = |(copy, (_, image)): (usize, &(u8, LogImage))| {
            let head = image.claim(at).filter(|head| wanted(head))?;
            let block = image.block(at)?;
            self.is_whole(block, 0, head.checksum()).then_some((copy, head))
        };
        self.copies.iter().enumerate().filter_map(claim).collect()
    }

    /// The copies in which a record that is `wanted` begins at `at`, whole or not.
    pub(super) fn begun(&self, at: usize, wanted: impl Fn(&RecordHead) -> bool) -> Vec<u8> {
        let begins = |image: &LogImage| image.claim(at).is_some_and(|head| wanted(&head));
        self.copies.iter().filter(|(_, image)| begins(image)).map(|(copy, _)| *copy).collect()
    }

    /// The record at `at` that is `wanted`, if it is there whole, with the bytes that it takes.
    ///
    /// # Errors
    /// Its checksum is right and its content cannot be.
    pub(super) fn record(
        &mut self,
        at: usize,
        wanted: impl Fn(&RecordHead) -> bool,
    ) -> Result<Option<(ChangeRecord, u64)>, ChangeRecordError> {
        for (copy, head) in self.claims(at, wanted) {
            let record = match self.format {
                BlockFormat::Plain => self.copies[copy].1.record(at),
                BlockFormat::Checked => ChangeRecord::decode(&self.joined(at, &head)),
            };
            match record {
                Ok(record) => return Ok(Some((record, self.format.blocks_for(head.bytes())))),
                Err(ChangeRecordError::Absent) => (),
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }

    /// The content of the record with this head, of which each block is taken from a copy that has
    /// it; up to the first that none has.
    pub(super) fn joined(&self, at: usize, head: &RecordHead) -> Vec<u8> {
        let length = self.format.blocks_for(head.bytes()).min((self.len() - at) as u64);
        let mut blocks = Vec::new();
        for number in 0..length / BLOCK_BYTES {
            let at = at + number as usize * BLOCK;
            let mut here = self.copies.iter().filter_map(|(_, image)| image.block(at));
            match here.find(|block| self.is_whole(block, number, head.checksum())) {
                Some(block) => blocks.extend_from_slice(block),
                None => break,
            }
        }
        self.format.take_out(blocks)
    }

    /// The first place from `from` on at which a record that is `wanted` was begun. Its first block
    /// must be whole, or all of it where blocks have no checksums: bits of a record that stood
    /// there before may have rotted into its numbers.
    pub(super) fn find(
        &mut self,
        from: usize,
        wanted: impl Fn(&RecordHead) -> bool,
    ) -> Option<(usize, RecordHead)> {
        (from..self.len()).step_by(BLOCK).find_map(|at| {
            if self.format == BlockFormat::Checked {
                let (_, head) = self.claims(at, &wanted).into_iter().next()?;
                return Some((at, head));
            }
            self.copies.iter_mut().find_map(|(_, image)| {
                let head = image.claim(at).filter(|head| wanted(head))?;
                image.is_whole(at).then_some((at, head))
            })
        })
    }

    /// Returns the remains of the record with this head. Without block checksums it is all or
    /// nothing.
    pub(super) fn remains(&mut self, at: usize, head: &RecordHead) -> Vec<u8> {
        if self.format == BlockFormat::Checked {
            return self.joined(at, head);
        }
        let whole = (0..self.copies.len()).find(|copy| self.copies[*copy].1.is_whole(at));
        let bytes = whole.and_then(|copy| self.copies[copy].1.bytes(at, head.bytes() as usize));
        bytes.unwrap_or_default().to_vec()
    }

    /// Returns the unreadable part of the log's first block, if no copy has that.
    pub(super) fn lost_start(&self) -> Option<&Unread> {
        self.lost(self.offset)
    }

    /// Returns the unreadable part of a place where the record `next` of this place may stand in
    /// some copy, though no whole one was found.
    pub(super) fn hidden(&mut self, at: usize, place: &LogPlace, next: LogPoint) -> Option<Unread> {
        if at >= self.len() || self.unread.is_empty() {
            return None;
        }
        let is_next = |head: &RecordHead| place.is_ours(head) && head.point() == next;
        let claims = self.claims(at, is_next);
        let claimed = claims.iter().map(|(_, head)| self.format.blocks_for(head.bytes())).max();
        let (start, rest) = (self.offset + at as u64, (self.len() - at) as u64);
        let length = claimed.unwrap_or(BLOCK_BYTES).min(rest);
        let unread = self.unread.iter().find(|it| it.overlaps(start, length)).cloned();
        let begun = !self.begun(at, is_next).is_empty() || self.is_rotten(at, place, next);
        let lost = |block: &u64| self.lost(*block).cloned();
        match unread {
            Some(unread) if begun => Some(unread),
            Some(_) => lost(&start),
            // If it has rotted, those that followed may be what cannot be read.
            None if begun => (start..start + rest).step_by(BLOCK).find_map(|block| lost(&block)),
            None => None,
        }
    }

    /// A block of this place, if it can be read in no copy.
    fn lost(&self, block: u64) -> Option<&Unread> {
        let mut unread = self.unread.iter().filter(|it| it.overlaps(block, BLOCK_BYTES));
        let (first, others) = (unread.next()?, unread.count());
        (others + 1 == self.copies.len()).then_some(first)
    }

    /// Returns whether a copy has a head at `at` of which bits have rotted. Another one that stood
    /// there before is whole.
    fn is_rotten(&mut self, at: usize, place: &LogPlace, next: LogPoint) -> bool {
        let others = self.claims(at, |_| true);
        let is_marked = |(_, image): &(u8, LogImage)| {
            let block = image.block(at).unwrap_or_default();
            RecordHead::is_marked(block, place.pool, place.share, next)
        };
        self.copies.iter().any(is_marked)
            && !others.into_iter().any(|(copy, _)| {
                self.format == BlockFormat::Checked || self.copies[copy].1.is_whole(at)
            })
    }
}
