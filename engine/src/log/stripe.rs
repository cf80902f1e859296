//! The stripe map: from runs of blocks in the log to bytes on devices.

use std::ops::Range;

use super::space::Gaps;
use crate::layout::{BLOCK_BYTES, Copies, Geometry, Run, Runs};
use crate::units::{DeviceIndex, DeviceSet};

/// One piece of a tensor: contiguous on one device, within one stripe unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Placement {
    /// The device's place in the pool.
    pub device: u8,
    /// Offset of the piece on the device.
    pub device_offset: u64,
    /// Device and offset of its second copy, if it has one.
    pub mirror: Option<(u8, u64)>,
    /// Offset of the piece in the tensor.
    pub tensor_offset: u64,
    /// The piece's bytes that belong to the tensor; the rest of its last block is padding.
    pub length: u32,
}

/// Map of segments to the devices.
#[derive(Clone, Copy, Debug)]
pub struct StripeMap {
    devices: u64,
    unit_blocks: u64,
    segment_bytes: u64,
    data_offset: u64,
    /// Devices of which copies are left out.
    missing: DeviceSet,
}

impl StripeMap {
    /// The map of a pool.
    pub fn new(geometry: &Geometry) -> Self {
        Self {
            devices: u64::from(geometry.devices),
            unit_blocks: geometry.stripe_unit / BLOCK_BYTES,
            segment_bytes: geometry.segment_bytes,
            data_offset: geometry.data_offset,
            missing: DeviceSet::default(),
        }
    }

    /// Leaves out the copies on these devices: what has another one is there alone. What has one
    /// copy stays where it is, and cannot be had.
    #[must_use]
    pub const fn without(self, missing: DeviceSet) -> Self {
        Self { missing, ..self }
    }

    /// Returns whether a part of these runs has no copy but on a device that is missing.
    pub fn are_lost(&self, runs: &[Run]) -> bool {
        let is_single = |run: &&Run| run.copies == Copies::One;
        let single: Runs = runs.iter().filter(is_single).copied().collect();
        !self.devices_of(&single).intersection(self.missing).is_empty()
    }

    /// Returns the gaps that a missing device leaves in segments.
    pub fn gaps(&self) -> Option<Gaps> {
        let missing = self.missing.iter().next()?;
        Some(Gaps::new(self.devices as u32, self.unit_blocks as u32, missing.0))
    }

    /// The pieces of a tensor of `length` bytes that lies in `runs`, in tensor order.
    ///
    /// The pieces depend on the runs and the length alone, so that checksums kept per piece always
    /// find theirs again.
    pub fn placements<'a>(
        &self,
        runs: &'a [Run],
        length: u64,
    ) -> impl Iterator<Item = Placement> + use<'a> {
        let map = *self;
        let mut tensor_offset = 0;
        let parts = runs.iter().flat_map(move |run| map.parts(*run));
        parts.map(move |(copies, (device, device_offset), bytes)| {
            let bytes = bytes.min(length - tensor_offset);
            let length = bytes as u32;
            let (device, device_offset, mirror) = match copies {
                Copies::One => (device, device_offset, None),
                Copies::Two => map.present(device, device_offset),
            };
            let placement = Placement { device, device_offset, mirror, tensor_offset, length };
            tensor_offset += bytes;
            placement
        })
    }

    /// The parts into which stripe unit borders cut a run: its copies, place of the first of them,
    /// and how many bytes.
    fn parts(self, run: Run) -> impl Iterator<Item = (Copies, (u8, u64), u64)> {
        let Range { start: mut block, end } = tensor_blocks(run);
        std::iter::from_fn(move || {
            let start = block;
            block = ((start / self.unit_blocks + 1) * self.unit_blocks).min(end);
            let place = self.locate(run.segment, start, run.copies);
            (start < end).then_some((run.copies, place, (block - start) * BLOCK_BYTES))
        })
    }

    /// Returns the number of pieces of the runs: as many checksums belong to the tensor.
    pub fn count(&self, runs: &[Run]) -> usize {
        let units = |run: &Run| {
            if run.blocks == 0 {
                return 0;
            }
            let Range { start, end } = tensor_blocks(*run);
            (end - 1) / self.unit_blocks - start / self.unit_blocks + 1
        };
        runs.iter().map(units).sum::<u64>() as usize
    }

    /// The devices that the runs touch, in all copies.
    pub fn devices_of(&self, runs: &[Run]) -> DeviceSet {
        let units = runs.iter().filter(|run| run.blocks > 0).flat_map(|run| {
            let Range { start, end } = tensor_blocks(*run);
            // The second copy of a unit is where the first of the next one is.
            let further = u64::from(run.copies.count() - 1);
            let (first, last) = (start / self.unit_blocks, (end - 1) / self.unit_blocks + further);
            (first..=last).take(self.devices as usize)
        });
        units.map(|unit| DeviceIndex((unit % self.devices) as u8)).collect()
    }

    /// Returns whether a run lies within its segment, and all of its copies have places there.
    pub fn has(&self, run: &Run) -> bool {
        let (copies, rows) =
            (run.copies.count().into(), self.segment_bytes / BLOCK_BYTES / self.unit_blocks);
        run.end() <= self.segment_blocks() && self.devices >= copies && rows.is_multiple_of(copies)
    }

    /// Blocks of one segment, counted over all devices.
    pub const fn segment_blocks(&self) -> u64 {
        self.segment_bytes / BLOCK_BYTES * self.devices
    }

    /// The bytes of an index checkpoint that a segment takes if each is there `copies` times.
    pub const fn index_bytes(&self, copies: u8) -> u64 {
        self.segment_bytes * self.columns(copies)
    }

    /// Returns the places of one copy of an index checkpoint in a segment, in order: device and
    /// offset of slices of [`Self::slice`]'s length. No device has a part of two copies; where the
    /// devices cannot be divided, the last ones have none.
    pub fn index_slices(
        &self,
        segment: u32,
        copy: u8,
        copies: u8,
    ) -> impl Iterator<Item = (u8, u64)> + use<> {
        let (offset, _) = self.slice(segment);
        (0..self.columns(copies) as u8).map(move |column| (column * copies + copy, offset))
    }

    const fn columns(&self, copies: u8) -> u64 {
        self.devices / copies as u64
    }

    /// Returns offset and length of a segment's slice, the same on every device.
    pub fn slice(&self, segment: u32) -> (u64, u64) {
        (self.data_offset + u64::from(segment) * self.segment_bytes, self.segment_bytes)
    }

    /// Device and byte of the first copy of a block of tensors, in a segment with these copies.
    fn locate(&self, segment: u32, block: u64, copies: Copies) -> (u8, u64) {
        let unit = block / self.unit_blocks;
        // The rows between are those of further copies.
        let row = unit / self.devices * u64::from(copies.count());
        let within = row * self.unit_blocks + block % self.unit_blocks;
        let offset =
            self.data_offset + u64::from(segment) * self.segment_bytes + within * BLOCK_BYTES;
        ((unit % self.devices) as u8, offset)
    }

    /// Device and byte of the first of two copies that are not missing, and of the second if that
    /// is there, too.
    fn present(&self, device: u8, offset: u64) -> (u8, u64, Option<(u8, u64)>) {
        let mirror = self.mirror(device, offset);
        let is_missing = |device| self.missing.contains(DeviceIndex(device));
        match (is_missing(device), is_missing(mirror.0)) {
            (true, false) => (mirror.0, mirror.1, None),
            (false, true) => (device, offset, None),
            _ => (device, offset, Some(mirror)),
        }
    }

    /// Device and byte of the second copy of what lies there: on the next device, in the next row.
    /// So what one device has lost is spread over its two neighbours.
    fn mirror(&self, device: u8, offset: u64) -> (u8, u64) {
        let next = (u64::from(device) + 1) % self.devices;
        (next as u8, offset + self.unit_blocks * BLOCK_BYTES)
    }
}

/// The blocks of tensors that a run holds, counted through its segment.
fn tensor_blocks(run: Run) -> Range<u64> {
    let start = u64::from(run.block / run.copies.count());
    start..start + run.tensor_blocks()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::layout::GeometryRequest;
    use crate::units::ByteCount;

    fn geometry(devices: usize) -> Geometry {
        Geometry::plan(&GeometryRequest {
            devices,
            device_bytes: ByteCount::mib(8),
            stripe_unit: ByteCount::kib(32),
            segment_bytes: Some(ByteCount::kib(64)),
            shares: 1,
            copies: Copies::One,
        })
        .unwrap()
    }

    #[test]
    fn every_block_of_the_log_has_its_own_place_inside_the_data() {
        for devices in [1, 2, 3, 5] {
            let geometry = geometry(devices);
            let map = StripeMap::new(&geometry);
            let mut places = HashSet::new();
            for segment in 0..geometry.segments {
                // Segments of both kinds lie between each other.
                let copies = Copies::ALL[usize::from(devices > 1 && segment % 2 == 1)];
                let blocks = geometry.segment_blocks() / u64::from(copies.count());
                for block in 0..blocks {
                    let first = map.locate(segment, block, copies);
                    let mirror = (copies == Copies::Two).then(|| map.mirror(first.0, first.1));
                    assert_ne!(
                        mirror.map(|place| place.0),
                        Some(first.0),
                        "two copies on one device"
                    );
                    for (device, offset) in std::iter::once(first).chain(mirror) {
                        assert!(usize::from(device) < devices);
                        assert!(map.slice(segment).0 <= offset);
                        assert!(
                            offset + BLOCK_BYTES <= map.slice(segment).0 + map.slice(segment).1
                        );
                        assert!(offset + BLOCK_BYTES <= geometry.second_superblock_offset());
                        assert!(
                            places.insert((device, offset)),
                            "two blocks at {offset} of {device}"
                        );
                    }
                }
            }
            let used = u64::from(geometry.segments) * geometry.segment_blocks();
            assert_eq!(places.len() as u64, used, "every block is one of a copy");
        }
    }

    #[test]
    fn second_copies_lie_on_the_next_device_and_their_pieces_are_the_tensors() {
        let map = StripeMap::new(&geometry(3));
        // Two blocks before the end of the first unit, 3 units, into another segment.
        let single = [Run::single(0, 6, 18), Run::single(4, 0, 3)];
        let two = single.map(|run| Run {
            block: 2 * run.block,
            blocks: 2 * run.blocks,
            copies: Copies::Two,
            ..run
        });
        let length = 21 * BLOCK_BYTES - 100;
        let pieces: Vec<Placement> = map.placements(&two, length).collect();
        assert_eq!(pieces.len(), map.count(&two));
        for (piece, like) in pieces.iter().zip(map.placements(&single, length)) {
            assert_eq!((piece.device, piece.length), (like.device, like.length));
            assert_eq!(piece.tensor_offset, like.tensor_offset);
            let (device, offset) = piece.mirror.unwrap();
            assert_eq!(device, (piece.device + 1) % 3);
            assert_eq!(offset, piece.device_offset + 8 * BLOCK_BYTES);
            assert_eq!(like.mirror, None);
        }
        assert!(two.iter().all(|run| map.has(run)));
        assert!(
            !map.has(&Run { block: 48 - 34, ..two[0] }) && map.has(&Run { block: 12, ..two[0] })
        );
        assert!(!StripeMap::new(&geometry(1)).has(&Run { blocks: 2, ..two[1] }));
    }

    #[test]
    fn pieces_cover_the_tensor_and_go_around_the_devices() {
        let map = StripeMap::new(&geometry(3));
        // Two blocks before the end of the first unit, 3 units, into another segment.
        let runs = [Run::single(0, 6, 18), Run::single(4, 0, 3)];
        let length = 21 * BLOCK_BYTES - 100;
        let pieces: Vec<Placement> = map.placements(&runs, length).collect();
        assert_eq!(pieces.len(), map.count(&runs));
        assert_eq!(pieces.iter().map(|piece| piece.device).collect::<Vec<_>>(), [0, 1, 2, 0]);
        let mut next = 0;
        for piece in &pieces {
            assert_eq!(piece.tensor_offset, next);
            next += u64::from(piece.length);
        }
        assert_eq!(next, length);
        assert_eq!(u64::from(pieces[0].length), 2 * BLOCK_BYTES);
        assert_eq!(u64::from(pieces[3].length), 3 * BLOCK_BYTES - 100);
    }

    #[test]
    fn the_devices_touched_are_those_that_have_a_piece() {
        for devices in [1, 2, 3, 5] {
            let map = StripeMap::new(&geometry(devices));
            for (block, blocks) in [(0, 1), (7, 1), (7, 2), (3, 20), (9, 40), (60, 1)] {
                let single = [Run::single(1, block, blocks), Run::single(2, 15, 1)];
                let two = single.map(|run| Run {
                    block: 2 * (run.block / 2),
                    blocks: 2 * run.blocks,
                    copies: Copies::Two,
                    ..run
                });
                for runs in [single, two].iter().take(devices.min(2)) {
                    let pieces = map.placements(runs, (u64::from(blocks) + 1) * BLOCK_BYTES);
                    let expected: DeviceSet = pieces
                        .flat_map(|piece| {
                            let mirror = piece.mirror.map(|(device, _)| device);
                            std::iter::once(piece.device).chain(mirror).map(DeviceIndex)
                        })
                        .collect();
                    assert_eq!(map.devices_of(runs), expected, "{runs:?} on {devices}");
                }
            }
        }
    }

    #[test]
    fn each_copy_of_an_index_has_devices_of_its_own() {
        for devices in [1, 2, 3, 4, 5] {
            let map = StripeMap::new(&geometry(devices));
            let copies = if devices == 1 { 1 } else { 2 };
            let mut seen = HashSet::new();
            for copy in 0..copies {
                let slices: Vec<_> = map.index_slices(3, copy, copies).collect();
                let bytes = slices.len() as u64 * map.slice(3).1;
                assert_eq!(bytes, map.index_bytes(copies), "{devices} devices");
                assert_eq!(slices[0].0, copy, "the first part is beside the copy's slot");
                assert!(slices.iter().all(|(device, _)| usize::from(*device) < devices));
                assert!(slices.iter().all(|slice| seen.insert(*slice)));
            }
        }
    }

    #[test]
    fn an_empty_tensor_has_no_pieces() {
        assert!(StripeMap::new(&geometry(2)).placements(&[], 0).next().is_none());
    }
}
