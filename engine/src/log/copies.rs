//! The copies of a share's checkpoints, read block by block where they cannot be read as a whole,
//! and joined: of each block any copy will do.

use std::collections::BTreeSet;
use std::fmt;
use std::ops::Range;

use super::change_log::{LogMedia, LogPlace};
use crate::layout::{BLOCK_BYTES, BlockFormat, Checkpoint, CheckpointClaim};
use crate::units::DeviceIndex;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Limit of unreadable blocks: after these, the rest of what was to be read is not tried.
const UNREAD_MAX: usize = 1024;

/// Bytes of a device that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unread {
    /// The device's place.
    pub device: u8,
    /// Offset of the blocks.
    pub offset: u64,
    /// Length in bytes; mostly one block.
    pub length: u64,
    /// True if other blocks of the device may well be readable.
    pub is_of_block: bool,
    /// The device's error.
    pub error: String,
}

impl Unread {
    /// The places of its blocks.
    pub fn blocks(&self) -> impl Iterator<Item = u64> + use<> {
        (self.offset..self.offset + self.length).step_by(BLOCK)
    }

    pub(super) fn overlaps(&self, offset: u64, length: u64) -> bool {
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

/// Start of a slot, in one copy.
pub(super) enum Head {
    /// A checkpoint, by its claim.
    Claim(CheckpointClaim),
    /// A checkpoint's first block, of which not all is as it was written.
    Rotten,
    /// No part of a checkpoint.
    Nothing,
    /// The start cannot be read.
    Unread(Unread),
}

impl Head {
    pub(super) fn read<M: LogMedia>(place: &LogPlace, media: &M, copy: u8, slot: usize) -> Self {
        let at = place.area.slots[slot].checkpoint_offset;
        let BlockRead { bytes, mut unread } = read_blocks(media, copy, at, BLOCK_BYTES);
        if let Some(unread) = unread.pop() {
            return Self::Unread(unread);
        }
        let is_possible = |claim: &CheckpointClaim| {
            let (segments, room) = (u64::from(claim.segments), place.room_over(claim.set));
            let has_set = segments == 0 || !place.stripes.set(claim.set).is_empty();
            (claim.pool, claim.share) == (place.pool, place.share)
                && has_set
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
    /// The blocks.
    pub(super) bytes: Vec<u8>,
    /// True if this copy has all of them.
    pub(super) is_copy: bool,
    /// The first block that no copy has.
    pub(super) lost: Option<usize>,
    pub(super) unread: Vec<Unread>,
}

impl CheckpointRead {
    /// Reads a checkpoint from its slot and the segments that it lists. Where they cannot be those
    /// of one, less.
    pub(super) fn of<M: LogMedia>(
        place: &LogPlace,
        media: &M,
        (copy, slot): (u8, usize),
        claim: &CheckpointClaim,
    ) -> Self {
        let length = place.format.blocks_for(claim.bytes);
        let in_slot = length.min(place.area.slots[slot].checkpoint_bytes);
        let mut read = Self { bytes: Vec::new(), is_copy: true, lost: None, unread: Vec::new() };
        read.add(place, media, (copy, slot), (&[], claim.set), in_slot);
        let segments = read.segments(place.format);
        let rest = (length - in_slot) as usize;
        // The claim may be anybody's. What lists a segment twice, or asks for more than there is
        // memory, is none of ours.
        if place.check_segments(&segments).is_ok() && read.bytes.try_reserve_exact(rest).is_ok() {
            read.add(place, media, (copy, slot), (&segments, claim.set), length);
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
        read.add(place, media, (copy, slot), (&[], claim.set), place.format.blocks_for(listed));
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
        segments: (&[u32], u8),
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
            // Nobody hopes for what a missing device has: it was on all devices, or never counted.
            if !place.missing.contains(DeviceIndex(device)) {
                self.unread.extend(read.unread);
            }
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
