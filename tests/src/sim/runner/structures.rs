//! Structures of a closed pool, read from the media as the format says, without the engine.

use tidelog_engine::layout::{
    BLOCK_BYTES, Checkpoint, Geometry, HOLDERS_OFFSET, OWNER_OFFSET, SUPERBLOCK_OFFSET, SlotArea,
};
use tidelog_engine::log::StripeMap;
use tidelog_engine::path::sim::SimDisk;

use crate::sim::harm::Part;

/// Bytes of one disk, all in one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct BlockExtent {
    pub(super) disk: usize,
    pub(super) offset: u64,
    pub(super) length: u64,
}

impl BlockExtent {
    /// The parts of some bytes of a disk, block by block.
    fn all(disk: usize, offset: u64, length: u64) -> impl Iterator<Item = Self> {
        let end = offset + length;
        let mut at = offset;
        std::iter::from_fn(move || {
            let offset = at;
            at = (offset / BLOCK_BYTES * BLOCK_BYTES + BLOCK_BYTES).min(end);
            (offset < end).then_some(Self { disk, offset, length: at - offset })
        })
    }

    pub(super) fn block(self) -> u64 {
        self.offset / BLOCK_BYTES * BLOCK_BYTES
    }
}

/// A closed pool with one share.
pub(super) struct PoolStructures<'a> {
    pub(super) disks: &'a [SimDisk],
    pub(super) geometry: Geometry,
    /// The epoch of the checkpoint that holds.
    pub(super) epoch: u64,
}

impl PoolStructures<'_> {
    /// Returns the number of copies of the metadata.
    pub(super) fn copies(&self) -> usize {
        self.disks.len().min(2)
    }

    /// The blocks of a structure, with the bytes of them that count, in its `copy` (or on the disk
    /// of this number, where each has its own). None if it is not there.
    pub(super) fn of(&self, part: Part, copy: usize) -> Vec<BlockExtent> {
        let block = |offset| BlockExtent::all(copy, offset, BLOCK_BYTES).collect();
        let (holds, other) = (self.slot(0), self.slot(1));
        match part {
            Part::FirstSuperblock => block(SUPERBLOCK_OFFSET),
            Part::SecondSuperblock => block(self.geometry.second_superblock_offset()),
            Part::Holder => block(HOLDERS_OFFSET),
            Part::Owner => block(OWNER_OFFSET),
            Part::Checkpoint => self.checkpoint(copy).0,
            Part::Grown => self.checkpoint(copy).1,
            Part::Record => self.records(copy).concat(),
            Part::LastRecord => self.records(copy).pop().unwrap_or_default(),
            Part::Tail => {
                let records = self.records(copy).concat();
                let begin = records.last().map_or(holds.log_offset, |it| it.block() + BLOCK_BYTES);
                BlockExtent::all(copy, begin, holds.log_offset + holds.log_bytes - begin).collect()
            }
            Part::OtherSlot => {
                let length = other.checkpoint_bytes + other.log_bytes;
                BlockExtent::all(copy, other.checkpoint_offset, length).collect()
            }
            Part::Tensor => Vec::new(),
        }
    }

    /// Returns the slot of the checkpoint that holds, or the one that is `further` slots further.
    fn slot(&self, further: u64) -> SlotArea {
        let share = self.geometry.share(0).expect("the pool's only one");
        share.slots[((self.epoch + 1 + further) % 2) as usize]
    }

    /// Returns the parts of the checkpoint in its slot, and in segments.
    fn checkpoint(&self, copy: usize) -> (Vec<BlockExtent>, Vec<BlockExtent>) {
        let slot = self.slot(0);
        let bytes = self.disks[copy].peek(slot.checkpoint_offset, slot.checkpoint_bytes as usize);
        let Some(claim) = Checkpoint::claim(&bytes).filter(|claim| claim.epoch == self.epoch)
        else {
            return (Vec::new(), Vec::new());
        };
        let whole = Checkpoint::payload_start(claim.segments.into()) + claim.payload_bytes;
        let in_slot = whole.min(slot.checkpoint_bytes);
        let map = StripeMap::new(&self.geometry);
        let segments = Checkpoint::claimed_segments(&bytes).unwrap_or_default();
        let slices = segments.iter().flat_map(|it| map.index_slices(*it, claim.set, copy as u8));
        let mut rest = whole - in_slot;
        let grown = slices.flat_map(|(disk, offset)| {
            let length = rest.min(self.geometry.segment_bytes);
            rest -= length;
            BlockExtent::all(disk.into(), offset, length)
        });
        let grown = grown.collect();
        (BlockExtent::all(copy, slot.checkpoint_offset, in_slot).collect(), grown)
    }

    /// The records that continue it, whole or not.
    fn records(&self, copy: usize) -> Vec<Vec<BlockExtent>> {
        const HEADER_BYTES: u64 = 64;
        let slot = self.slot(0);
        let bytes = self.disks[copy].peek(slot.log_offset, slot.log_bytes as usize);
        let word =
            |at: usize| bytes.get(at..at + 8).map(|it| u64::from_le_bytes(it.try_into().unwrap()));
        let (mut records, mut at) = (Vec::new(), 0);
        while bytes[at..].starts_with(b"TIDECHNG")
            && word(at + 32) == Some(self.epoch)
            && word(at + 40) == Some(records.len() as u64 + 1)
        {
            let payload = u32::from_le_bytes(bytes[at + 12..at + 16].try_into().unwrap());
            let length = HEADER_BYTES + u64::from(payload);
            records.push(BlockExtent::all(copy, slot.log_offset + at as u64, length).collect());
            at += length.next_multiple_of(BLOCK_BYTES) as usize;
            if at >= bytes.len() {
                break;
            }
        }
        records
    }
}
