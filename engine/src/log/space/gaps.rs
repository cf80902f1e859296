//! Gaps of segments: blocks that new tensors keep clear of, because their device is missing.
//!
//! A segment has its places on all devices of the pool, whichever are there. So nothing of it has
//! to be moved once the device has been replaced.

use std::ops::Range;

use crate::layout::Copies;

/// The units of each segment that have a part on a missing device.
#[derive(Clone, Copy, Debug)]
pub struct Gaps {
    /// Devices of the pool; two at least.
    devices: u32,
    unit_blocks: u32,
    missing: u32,
}

impl Gaps {
    /// Makes the gaps where this one of several devices is missing.
    pub fn new(devices: u32, unit_blocks: u32, missing: u8) -> Self {
        Self { devices, unit_blocks, missing: missing.into() }
    }

    /// Returns the next blocks from `block` on that may be put to, in order, of a segment of
    /// `limit` blocks. Empty, and at the end, if there are none.
    pub(super) fn stretch(self, block: u32, limit: u32, copies: Copies) -> Range<u32> {
        let unit = self.unit_blocks * copies.count();
        if !self.has_gaps(copies) {
            return block..limit;
        }
        let is_gap = |block: u32| self.is_gap(block / unit, copies);
        let unit_end = |block: u32| ((block / unit + 1) * unit).min(limit);
        let mut start = block;
        while start < limit && is_gap(start) {
            start = unit_end(start);
        }
        let mut end = start;
        while end < limit && !is_gap(end) {
            end = unit_end(end);
        }
        start..end
    }

    /// Returns the number of blocks from `block` on that may be put to, of `limit`.
    pub(super) fn room(self, block: u32, limit: u32, copies: Copies) -> u32 {
        self.up_to(limit, copies) - self.up_to(block, copies)
    }

    /// Returns where the gap begins that ends at `block`; `block` itself if none does.
    pub(super) fn before(self, block: u32, limit: u32, copies: Copies) -> u32 {
        let unit = self.unit_blocks * copies.count();
        let mut start = block;
        while start > 0
            && (start == limit || start.is_multiple_of(unit))
            && self.is_gap((start - 1) / unit, copies)
        {
            start = (start - 1) / unit * unit;
        }
        start
    }

    /// Returns the number of blocks below `block` that may be put to.
    fn up_to(self, block: u32, copies: Copies) -> u32 {
        let unit = self.unit_blocks * copies.count();
        let (rows, rest) = (block / (unit * self.devices), block % (unit * self.devices));
        let gaps = (0..self.devices).filter(|it| self.is_gap(*it, copies)).count() as u32;
        let in_rows = rows * (self.devices - gaps) * unit;
        let of_unit = |index: u32| {
            let start = index * unit;
            if self.is_gap(index, copies) { 0 } else { rest.saturating_sub(start).min(unit) }
        };
        in_rows + (0..self.devices).map(of_unit).sum::<u32>()
    }

    fn has_gaps(self, copies: Copies) -> bool {
        (0..self.devices).any(|unit| self.is_gap(unit, copies))
    }

    /// Returns whether a unit is kept clear of. With two devices one copy is all that can be had,
    /// and each unit has one; the other is made on the replacement.
    fn is_gap(self, unit: u32, copies: Copies) -> bool {
        let (first, second) = (unit % self.devices, (unit + 1) % self.devices);
        match copies {
            Copies::One => first == self.missing,
            Copies::Two => self.devices > 2 && (first == self.missing || second == self.missing),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIT: u32 = 4;
    const ROWS: u32 = 6;

    /// Counts block by block.
    fn slow(gaps: Gaps, range: Range<u32>, copies: Copies) -> Vec<u32> {
        let device = |block: u32| block / (UNIT * copies.count()) % gaps.devices;
        let touches = |block: &u32| {
            let first = device(*block);
            let second = (first + 1) % gaps.devices;
            match copies {
                Copies::One => first == gaps.missing,
                Copies::Two => gaps.devices > 2 && [first, second].contains(&gaps.missing),
            }
        };
        range.filter(|block| !touches(block)).collect()
    }

    #[test]
    fn stretches_are_all_blocks_whose_copies_have_devices() {
        for devices in [2, 3, 5] {
            let limit = devices * UNIT * ROWS;
            for missing in 0..devices as u8 {
                let gaps = Gaps::new(devices, UNIT, missing);
                for copies in Copies::ALL {
                    for from in 0..=limit {
                        let expected = slow(gaps, from..limit, copies);
                        assert_eq!(gaps.room(from, limit, copies), expected.len() as u32);
                        let (mut block, mut found) = (from, Vec::new());
                        while block < limit {
                            let stretch = gaps.stretch(block, limit, copies);
                            found.extend(stretch.clone());
                            block = stretch.end;
                        }
                        assert_eq!(found, expected, "{gaps:?} from {from}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_gap_is_found_from_its_end() {
        for devices in [2, 3, 5] {
            let limit = devices * UNIT * ROWS;
            for missing in 0..devices as u8 {
                let gaps = Gaps::new(devices, UNIT, missing);
                for copies in Copies::ALL {
                    for start in (0..limit).filter(|it| it % (UNIT * copies.count()) == 0) {
                        let stretch = gaps.stretch(start, limit, copies);
                        let back = gaps.before(stretch.start, limit, copies);
                        assert!(back <= start && gaps.room(back, stretch.start, copies) == 0);
                    }
                }
            }
        }
    }
}
