//! A link whose rates are lower when bytes go both ways at once.
//!
//! In any run the link carries nothing, one way alone, the other way alone or both, each for a part
//! of the time. So what it carries per time is a mean of four points: nothing, (W, 0), (0, R) and
//! the rates of both at once. Those means are bounded by two lines, from (W, 0) and from (0, R) to
//! the point of both at once: a byte that goes one way takes a part of the other way's rate. Where
//! that point lies below the line from (W, 0) to (0, R), taking turns is better, and that line is
//! the bound.

use super::states::{IntervalPrices, TIERS_MAX};
use crate::simulate::CopyRates;
use crate::units::Bandwidth;

/// Parts of the other way's rate are whole multiples of this.
const PART_BITS: u32 = 32;

/// Part of a byte's room on the other way of its link, at least.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SharedLink {
    /// Bytes that are not written for one that is read, times 2^32.
    read_on_writes: u64,
    /// Bytes that are not read for one that is written, times 2^32.
    written_on_reads: u64,
}

impl SharedLink {
    /// Makes the parts of a link from its rates one way at a time and both ways at once.
    pub(super) fn of(alone: CopyRates, both: CopyRates) -> Self {
        let part = |alone: Bandwidth, kept: Bandwidth, other: Bandwidth, other_alone: Bandwidth| {
            let lost = u128::from(alone.0.saturating_sub(kept.0)) << PART_BITS;
            let in_turns = (u128::from(alone.0) << PART_BITS) / u128::from(other_alone.0.max(1));
            let part = (lost / u128::from(other.0.max(1))).min(in_turns);
            u64::try_from(part).unwrap_or(u64::MAX)
        };
        Self {
            read_on_writes: part(alone.out, both.out, both.back, alone.back),
            written_on_reads: part(alone.back, both.back, both.out, alone.out),
        }
    }

    /// Returns the price of a byte read and of one written where each way has this price, both at
    /// most `most`. They are rounded down, which proves less.
    pub(super) fn of_bytes(self, read: u64, write: u64, most: u64) -> [u64; 2] {
        let with = |own: u64, other: u64, part: u64| {
            let beside = (u128::from(other) * u128::from(part)) >> PART_BITS;
            let all = u128::from(own) + beside;
            u64::try_from(all).unwrap_or(u64::MAX).min(most)
        };
        [with(read, write, self.read_on_writes), with(write, read, self.written_on_reads)]
    }

    /// Returns the parts for a search: of a byte read on writes, and of one written on reads.
    #[allow(clippy::cast_precision_loss, reason = "for the search, which may be inexact")]
    pub(super) fn parts(self) -> [f64; 2] {
        [self.read_on_writes, self.written_on_reads].map(|part| part as f64 / (1u64 << 32) as f64)
    }
}

/// Returns the prices of bytes where each way of each tier's link has its own.
pub(super) fn prices_of_bytes(
    links: [SharedLink; TIERS_MAX],
    ways: IntervalPrices<f64>,
) -> IntervalPrices<f64> {
    let mut bytes = ways;
    for (tier, [on_writes, on_reads]) in links.map(SharedLink::parts).into_iter().enumerate() {
        bytes.read[tier] += on_writes * ways.write[tier];
        bytes.write[tier] += on_reads * ways.read[tier];
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(out: u64, back: u64) -> CopyRates {
        CopyRates { out: Bandwidth(out), back: Bandwidth(back) }
    }

    /// Returns the parts of a link in whole percent.
    fn percent(link: SharedLink) -> [u64; 2] {
        [link.read_on_writes, link.written_on_reads].map(|part| (100 * part + (1 << 31)) >> 32)
    }

    #[test]
    fn a_byte_takes_what_the_other_way_loses_by_it() {
        let percent = |both| percent(SharedLink::of(rates(50, 40), both));
        assert_eq!(percent(rates(50, 40)), [0, 0]);
        // 10 of 50 bytes are not written for 20 that are read, and 20 of 40 not read for 40.
        assert_eq!(percent(rates(40, 20)), [50, 50]);
        assert_eq!(percent(rates(50, 20)), [0, 40]);
    }

    #[test]
    fn both_ways_at_once_are_no_worse_than_in_turns() {
        let turns = SharedLink::of(rates(50, 40), rates(5, 4));
        assert_eq!(percent(turns), [125, 80]);
    }

    #[test]
    fn prices_of_bytes_are_rounded_down_and_have_an_end() {
        let link = SharedLink::of(rates(50, 40), rates(40, 20));
        assert_eq!(link.of_bytes(100, 7, 1000), [103, 57]);
        assert_eq!(link.of_bytes(u64::MAX, u64::MAX, 1 << 44), [1 << 44; 2]);
    }
}
