//! The stripe map: from runs of blocks in the log to bytes on devices.

use std::ops::Range;

use super::space::Gaps;
use crate::layout::{BLOCK_BYTES, Copies, DEVICE_SETS_MAX, DeviceTable, Geometry, Run, Runs};
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
    /// Sets of devices by their numbers.
    sets: [DeviceSet; DEVICE_SETS_MAX],
    /// The set over which new segments are striped.
    current: u8,
    unit_blocks: u64,
    segment_bytes: u64,
    data_offset: u64,
    /// Devices of which nothing is read.
    missing: DeviceSet,
    /// Devices of these to which nothing is written, because they are not there.
    absent: DeviceSet,
}

impl StripeMap {
    /// The map of a pool that has the devices with which it was formatted.
    pub fn new(geometry: &Geometry) -> Self {
        Self::over(geometry, &DeviceTable::of_all(geometry.devices))
    }

    /// The map of a pool with these devices.
    pub fn over(geometry: &Geometry, table: &DeviceTable) -> Self {
        Self {
            sets: table.sets,
            current: table.current,
            unit_blocks: geometry.stripe_unit / BLOCK_BYTES,
            segment_bytes: geometry.segment_bytes,
            data_offset: geometry.data_offset,
            missing: DeviceSet::default(),
            absent: DeviceSet::default(),
        }
    }

    /// Leaves out the copies on the devices that are `missing`: what has another one is there
    /// alone. What has one copy stays where it is, and cannot be had. Those that are not `absent`
    /// are written all the same: they are to have their copies again.
    #[must_use]
    pub const fn without(self, missing: DeviceSet, absent: DeviceSet) -> Self {
        Self { missing, absent, ..self }
    }

    /// Returns the map by which tensors are written: with all copies that devices are there for.
    #[must_use]
    pub const fn to_write(self) -> Self {
        Self { missing: self.absent, ..self }
    }

    /// Returns whether a part of these runs has no copy but on a device that is missing.
    pub fn are_lost(&self, runs: &[Run]) -> bool {
        let is_single = |run: &&Run| run.copies == Copies::One;
        let single: Runs = runs.iter().filter(is_single).copied().collect();
        !self.devices_of(&single).intersection(self.missing).is_empty()
    }

    /// Returns whether a device is missing.
    pub const fn is_degraded(&self) -> bool {
        !self.missing.is_empty()
    }

    /// Returns the gaps that a missing device leaves in new segments.
    pub fn gaps(&self) -> Option<Gaps> {
        let set = self.current_set();
        let missing = self.missing.intersection(set).iter().next()?;
        let rank = set.iter().take_while(|it| *it != missing).count() as u8;
        Some(Gaps::new(set.len() as u32, self.unit_blocks as u32, rank))
    }

    /// The pieces of a tensor of `length` bytes that lies in `runs`, in tensor order.
    ///
    /// The pieces depend on the runs and the length alone, so that checksums kept per piece always
    /// find theirs again.
    pub fn placements<'a>(
        &'a self,
        runs: &'a [Run],
        length: u64,
    ) -> impl Iterator<Item = Placement> + use<'a> {
        let mut tensor_offset = 0;
        let parts = runs.iter().flat_map(|run| self.parts(*run));
        parts.map(move |((device, device_offset), mirror, bytes)| {
            let bytes = bytes.min(length - tensor_offset);
            let length = bytes as u32;
            let (device, device_offset, mirror) = self.present((device, device_offset), mirror);
            let placement = Placement { device, device_offset, mirror, tensor_offset, length };
            tensor_offset += bytes;
            placement
        })
    }

    /// The parts into which stripe unit borders cut a run: place of the first copy, that of the
    /// second if there is one, and how many bytes.
    fn parts(&self, run: Run) -> impl Iterator<Item = (Place, Option<Place>, u64)> {
        let Range { start: mut block, end } = tensor_blocks(run);
        std::iter::from_fn(move || {
            if block >= end {
                return None;
            }
            let start = block;
            block = ((start / self.unit_blocks + 1) * self.unit_blocks).min(end);
            let (first, mirror) = self.locate(&run, start);
            Some((first, mirror, (block - start) * BLOCK_BYTES))
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
            let set = self.set(run.set);
            let devices = set.len() as u64;
            (first..=last).take(set.len()).map(move |unit| nth(set, unit % devices))
        });
        units.map(DeviceIndex).collect()
    }

    /// Returns whether a run lies within its segment, and all of its copies have places there.
    pub fn has(&self, run: &Run) -> bool {
        let (copies, rows) =
            (run.copies.count().into(), self.segment_bytes / BLOCK_BYTES / self.unit_blocks);
        run.end() <= self.blocks_over(run.set)
            && self.set(run.set).len() as u64 >= copies
            && rows.is_multiple_of(copies)
    }

    /// Blocks of a new segment, counted over all devices.
    pub fn segment_blocks(&self) -> u64 {
        self.blocks_over(self.current)
    }

    /// Blocks of a segment that is striped over this set.
    pub fn blocks_over(&self, set: u8) -> u64 {
        self.segment_bytes / BLOCK_BYTES * self.set(set).len() as u64
    }

    /// Number of the set over which new segments are striped.
    pub const fn current(&self) -> u8 {
        self.current
    }

    fn current_set(&self) -> DeviceSet {
        self.set(self.current)
    }

    /// Returns the devices of a set; none if there is no such set.
    pub fn set(&self, number: u8) -> DeviceSet {
        self.sets.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// The bytes of an index checkpoint that a segment takes which is striped over this set.
    pub fn index_bytes(&self, set: u8) -> u64 {
        let set = self.set(set);
        self.segment_bytes * columns(set)
    }

    /// Returns the places of a copy of an index checkpoint, counted from 0, in a segment that is
    /// striped over this set, in order: device and offset of slices of [`Self::slice`]'s length. Of
    /// two copies no device has a part of both; where the devices cannot be divided, the last one
    /// has none.
    pub fn index_slices(
        &self,
        segment: u32,
        set: u8,
        copy: u8,
    ) -> impl Iterator<Item = (u8, u64)> + use<> {
        let (offset, _) = self.slice(segment);
        let set = self.set(set);
        let copies = index_copies(set);
        let place = move |column| (nth(set, column * copies + u64::from(copy) % copies), offset);
        (0..columns(set)).map(place)
    }

    /// Returns whether a device has slices of this copy of an index checkpoint, counted from 0.
    pub(super) fn has_part_of_index(&self, set: u8, copy: u8, device: DeviceIndex) -> bool {
        self.index_slices(0, set, copy).any(|(of, _)| of == device.0)
    }

    /// Returns offset and length of a segment's slice, the same on every device.
    pub fn slice(&self, segment: u32) -> (u64, u64) {
        (self.data_offset + u64::from(segment) * self.segment_bytes, self.segment_bytes)
    }

    /// The places of a block of tensors in the segment of a run: that of the first copy, and that
    /// of the second if there is one, on the next device, in the next row. So what one device has
    /// lost is spread over its two neighbours.
    fn locate(&self, run: &Run, block: u64) -> (Place, Option<Place>) {
        let set = self.set(run.set);
        let (unit, devices) = (block / self.unit_blocks, set.len() as u64);
        // The rows between are those of further copies.
        let row = unit / devices * u64::from(run.copies.count());
        let within = row * self.unit_blocks + block % self.unit_blocks;
        let offset =
            self.data_offset + u64::from(run.segment) * self.segment_bytes + within * BLOCK_BYTES;
        let further = offset + self.unit_blocks * BLOCK_BYTES;
        let mirror = || (nth(set, (unit + 1) % devices), further);
        ((nth(set, unit % devices), offset), (run.copies == Copies::Two).then(mirror))
    }

    /// Device and byte of the first of two copies that are not missing, and of the second if that
    /// is there, too.
    fn present(&self, (device, offset): Place, mirror: Option<Place>) -> (u8, u64, Option<Place>) {
        let is_missing = |device| self.missing.contains(DeviceIndex(device));
        let Some(second) = mirror else { return (device, offset, None) };
        match (is_missing(device), is_missing(second.0)) {
            (true, false) => (second.0, second.1, None),
            (false, true) => (device, offset, None),
            _ => (device, offset, mirror),
        }
    }
}

/// Device and byte.
type Place = (u8, u64);

/// Returns the device of a set that has this many of it before it.
fn nth(set: DeviceSet, rank: u64) -> u8 {
    let mut bits = set.bits();
    if bits & bits.wrapping_add(1) == 0 {
        return rank as u8;
    }
    for _ in 0..rank {
        bits &= bits.wrapping_sub(1);
    }
    bits.trailing_zeros() as u8
}

/// Number of copies of the part of an index checkpoint that lies in a segment.
fn index_copies(set: DeviceSet) -> u64 {
    set.len().min(2) as u64
}

/// Slices that each copy of an index checkpoint has in a segment.
fn columns(set: DeviceSet) -> u64 {
    set.len() as u64 / index_copies(set).max(1)
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
                    let run = Run { copies, ..Run::single(segment, 0, 0) };
                    let (first, mirror) = map.locate(&run, block);
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
                let slices: Vec<_> = map.index_slices(3, 0, copy).collect();
                let bytes = slices.len() as u64 * map.slice(3).1;
                assert_eq!(bytes, map.index_bytes(0), "{devices} devices");
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
