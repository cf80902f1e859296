//! The copies of a share's metadata, read block by block where they cannot be read as a whole, and
//! joined: of each block any copy will do.

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use super::change_log::{LogMedia, LogPlace};
use crate::layout::{
    BLOCK_BYTES, BlockFormat, ChangeRecord, ChangeRecordError, Checkpoint, CheckpointClaim,
    LogImage, LogPoint, RecordHead,
};

const BLOCK: usize = BLOCK_BYTES as usize;

/// After so many blocks that cannot be read, the rest of what was to be read is not tried.
const UNREAD_MAX: usize = 1024;

/// Bytes of a device that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The device's place.
    pub device: u8,
    /// Where they are.
    pub offset: u64,
    /// How many; mostly one block.
    pub length: u64,
    /// Whether other blocks of the device may well be readable.
    pub is_of_block: bool,
    /// What the device answered.
    pub error: String,
}

impl Unread {
    /// The places of its blocks.
    pub fn blocks(&self) -> impl Iterator<Item = u64> + use<> {
        (self.offset..self.offset + self.length).step_by(BLOCK)
    }

    fn overlaps(&self, offset: u64, length: u64) -> bool {
        self.offset < offset + length && offset < self.offset + self.length
    }
}

impl fmt::Display for Unread {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, offset, error, .. } = self;
        write!(out, "byte {offset} of device {device} cannot be read ({error})")
    }
}

/// Bytes of a device, with zeroes in place of what cannot be read.
pub(super) struct BlockRead {
    pub(super) bytes: Vec<u8>,
    pub(super) unread: Vec<Unread>,
}

/// Reads whole blocks of a device.
pub(super) fn read_blocks<M: LogMedia>(
    media: &M,
    device: u8,
    offset: u64,
    length: u64,
) -> BlockRead {
    let (mut bytes, mut unread) = (Vec::new(), Vec::new());
    read_into(media, device, (offset, length), &mut bytes, &mut unread);
    BlockRead { bytes, unread }
}

/// Appends a range in halves, where all of it cannot be read.
fn read_into<M: LogMedia>(
    media: &M,
    device: u8,
    (offset, length): (u64, u64),
    bytes: &mut Vec<u8>,
    unread: &mut Vec<Unread>,
) {
    let error = match media.read(device, offset, length) {
        Ok(read) if bytes.is_empty() => return *bytes = read,
        Ok(read) => return bytes.extend(read),
        Err(error) => error,
    };
    let is_of_block = M::is_of_block(&error);
    if length <= BLOCK_BYTES || !is_of_block || unread.len() >= UNREAD_MAX {
        bytes.resize(bytes.len() + length as usize, 0);
        let error = error.to_string();
        return unread.push(Unread { device, offset, length, is_of_block, error });
    }
    let half = (length / 2).next_multiple_of(BLOCK_BYTES);
    read_into(media, device, (offset, half), bytes, unread);
    read_into(media, device, (offset + half, length - half), bytes, unread);
}

/// What begins a slot, in one copy.
pub(super) enum Head {
    /// What it claims to be the start of.
    Claim(CheckpointClaim),
    /// A checkpoint's first block, of which not all is as it was written.
    Rotten,
    /// Nothing of a checkpoint.
    Nothing,
    /// It cannot be read.
    Unread(Unread),
}

impl Head {
    pub(super) fn read<M: LogMedia>(place: &LogPlace, media: &M, copy: u8, slot: usize) -> Self {
        let at = place.area.slots[slot].checkpoint_offset;
        let BlockRead { bytes, mut unread } = read_blocks(media, copy, at, BLOCK_BYTES);
        if let Some(unread) = unread.pop() {
            return Self::Unread(unread);
        }
        let room = place.checkpoint_room();
        let is_possible = |claim: &CheckpointClaim| {
            let segments = u64::from(claim.segments);
            (claim.pool, claim.share) == (place.pool, place.share)
                && claim.segments <= place.area.segments
                && room.lists(segments)
                && claim.payload_bytes <= room.with(segments)
                && room.segments_for(claim.payload_bytes) == segments
        };
        let is_whole = place.format.is_whole(&bytes, 0, BlockFormat::seal(&bytes));
        match Checkpoint::claim(&bytes).filter(is_possible) {
            Some(claim) if is_whole => Self::Claim(claim),
            _ if Checkpoint::is_marked(&bytes, place.pool, place.share) => Self::Rotten,
            _ => Self::Nothing,
        }
    }

    pub(super) fn unread(&self) -> Option<&Unread> {
        if let Self::Unread(unread) = self { Some(unread) } else { None }
    }

    pub(super) fn claim(&self) -> Option<&CheckpointClaim> {
        if let Self::Claim(claim) = self { Some(claim) } else { None }
    }
}

/// A checkpoint as one copy claims it, with blocks from another where it lacks them.
pub(super) struct CheckpointRead {
    /// Its blocks.
    pub(super) bytes: Vec<u8>,
    /// Whether this copy has all of them.
    pub(super) is_copy: bool,
    /// The first block that no copy has.
    pub(super) lost: Option<usize>,
    pub(super) unread: Vec<Unread>,
}

impl CheckpointRead {
    /// Reads it from its slot and the segments that it lists. Where they cannot be those of one,
    /// less.
    pub(super) fn of<M: LogMedia>(
        place: &LogPlace,
        media: &M,
        (copy, slot): (u8, usize),
        claim: &CheckpointClaim,
    ) -> Self {
        let length = place.format.blocks_for(claim.bytes);
        let in_slot = length.min(place.area.slots[slot].checkpoint_bytes);
        let mut read = Self { bytes: Vec::new(), is_copy: true, lost: None, unread: Vec::new() };
        read.add(place, media, (copy, slot), &[], in_slot);
        let segments = read.segments(place.format);
        let rest = (length - in_slot) as usize;
        // The claim may be anybody's. What lists a segment twice, or asks for more than there is
        // memory, is none of ours.
        if place.check_segments(&segments).is_ok() && read.bytes.try_reserve_exact(rest).is_ok() {
            read.add(place, media, (copy, slot), &segments, length);
        }
        read.is_copy &= read.bytes.len() as u64 == length;
        read
    }

    /// The segments that it lists, if the list can be read.
    pub(super) fn list<M: LogMedia>(
        place: &LogPlace,
        media: &M,
        (copy, slot): (u8, usize),
        claim: &CheckpointClaim,
    ) -> Option<Vec<u32>> {
        let listed = Checkpoint::payload_start(claim.segments.into());
        let mut read = Self { bytes: Vec::new(), is_copy: true, lost: None, unread: Vec::new() };
        read.add(place, media, (copy, slot), &[], place.format.blocks_for(listed));
        read.lost.is_none().then(|| read.segments(place.format))
    }

    fn segments(&self, format: BlockFormat) -> Vec<u32> {
        let claim = Checkpoint::claim(&self.bytes);
        let listed = claim.map_or(0, |it| Checkpoint::payload_start(it.segments.into()));
        let blocks = (format.blocks_for(listed) as usize).min(self.bytes.len());
        let content = format.take_out(self.bytes[..blocks].to_vec());
        Checkpoint::claimed_segments(&content).unwrap_or_default()
    }

    /// Reads on up to `length`.
    fn add<M: LogMedia>(
        &mut self,
        place: &LogPlace,
        media: &M,
        (copy, slot): (u8, usize),
        segments: &[u32],
        length: u64,
    ) {
        let from = self.bytes.len();
        let mut lacking = BTreeSet::new();
        for (first, device, offset, bytes) in numbered(place.parts(copy, slot, segments, length)) {
            if first * BLOCK < from {
                continue;
            }
            let read = read_blocks(media, device, offset, bytes);
            let blocks = read.unread.iter().flat_map(Unread::blocks);
            lacking.extend(blocks.map(|at| first + ((at - offset) / BLOCK_BYTES) as usize));
            self.unread.extend(read.unread);
            if self.bytes.is_empty() {
                self.bytes = read.bytes;
            } else {
                self.bytes.extend(read.bytes);
            }
        }
        let seal = BlockFormat::seal(&self.bytes);
        let is_whole = |block: &[u8], number| place.format.is_whole(block, number as u64, seal);
        let blocks = (from / BLOCK..).zip(self.bytes[from..].chunks(BLOCK));
        lacking.extend(blocks.filter(|(number, it)| !is_whole(it, *number)).map(|(it, _)| it));
        self.is_copy &= lacking.is_empty();
        for other in place.copies().filter(|other| *other != copy) {
            for (first, device, offset, bytes) in
                numbered(place.parts(other, slot, segments, length))
            {
                let blocks = first..first + (bytes / BLOCK_BYTES) as usize;
                for run in runs(lacking.range(blocks).copied()) {
                    let at = offset + (run.start - first) as u64 * BLOCK_BYTES;
                    let read = read_blocks(media, device, at, run.len() as u64 * BLOCK_BYTES);
                    for (number, block) in run.zip(read.bytes.chunks(BLOCK)) {
                        let at = offset + (number - first) as u64 * BLOCK_BYTES;
                        let is_read = !read.unread.iter().any(|it| it.overlaps(at, BLOCK_BYTES));
                        if is_read && is_whole(block, number) {
                            self.bytes[number * BLOCK..][..BLOCK].copy_from_slice(block);
                            lacking.remove(&number);
                        }
                    }
                }
            }
        }
        self.lost = self.lost.or(lacking.first().copied());
    }
}

/// The parts of a checkpoint, each with the number of its first block.
fn numbered(
    parts: impl Iterator<Item = (u8, u64, u64)>,
) -> impl Iterator<Item = (usize, u8, u64, u64)> {
    parts.scan(0, |blocks, (device, offset, bytes)| {
        let first = *blocks;
        *blocks += (bytes / BLOCK_BYTES) as usize;
        Some((first, device, offset, bytes))
    })
}

/// Numbers that follow one another, together.
fn runs(numbers: impl Iterator<Item = usize>) -> Vec<Range<usize>> {
    let mut runs: Vec<Range<usize>> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some(run) if run.end == number => run.end += 1,
            _ => runs.push(number..number + 1),
        }
    }
    runs
}

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
    /// Reads it in these copies.
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

    /// How long it is.
    pub(super) fn len(&self) -> usize {
        self.copies.iter().map(|(_, image)| image.len()).min().unwrap_or(0)
    }

    /// How many bytes were checksummed so far.
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

    /// What each copy claims to have at `at`, that is `wanted`.
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

    /// The first place from `from` on at which a record that is `wanted` was begun. Where blocks
    /// have no checksums it must be whole: any block may look like a head.
    pub(super) fn find(
        &mut self,
        from: usize,
        wanted: impl Fn(&RecordHead) -> bool,
    ) -> Option<(usize, RecordHead)> {
        let plain = self.format == BlockFormat::Plain;
        (from..self.len()).step_by(BLOCK).find_map(|at| {
            self.copies.iter_mut().find_map(|(_, image)| {
                let head = image.claim(at).filter(|head| wanted(head))?;
                (!plain || image.is_whole(at)).then_some((at, head))
            })
        })
    }

    /// What is left of the record with this head. Without block checksums it is all or nothing.
    pub(super) fn remains(&mut self, at: usize, head: &RecordHead) -> Vec<u8> {
        if self.format == BlockFormat::Checked {
            return self.joined(at, head);
        }
        let whole = (0..self.copies.len()).find(|copy| self.copies[*copy].1.is_whole(at));
        let bytes = whole.and_then(|copy| self.copies[copy].1.bytes(at, head.bytes() as usize));
        bytes.unwrap_or_default().to_vec()
    }

    /// What cannot be read of its first block, if no copy has that.
    pub(super) fn lost_start(&self) -> Option<&Unread> {
        self.lost(self.offset)
    }

    /// What cannot be read where the record `next` of this place may stand in some copy, though no
    /// whole one was found.
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

    /// Whether a copy has a head at `at` of which bits have rotted. Another one that stood there
    /// before is whole.
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
