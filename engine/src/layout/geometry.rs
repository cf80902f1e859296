//! Geometry of a device: the place of each structure. All devices of a pool have the same geometry.

use thiserror::Error;

use super::{BLOCK_BYTES, Copies, DEVICES_MAX, METADATA_OFFSET, SHARES_MAX};
use crate::units::ByteCount;

/// The smallest and the largest stripe unit.
const STRIPE_UNIT_MIN: u64 = BLOCK_BYTES;
const STRIPE_UNIT_MAX: u64 = 16 << 20;
/// The segment's slice of one device where the pool is large enough.
const SEGMENT_DEFAULT: u64 = 4 << 20;
/// A share aims at this many segments at least, so that freeing whole segments works well.
const SEGMENTS_WANTED: u64 = 64;
/// Least number of segments: with fewer, the lanes alone would take all.
const SEGMENTS_MIN: u64 = 8;
/// Metadata of one slot: a thousandth of the share, within these bounds.
const SLOT_MIN: u64 = 256 << 10;
const SLOT_MAX: u64 = 1 << 30;
/// Slots are multiples of this, so that their quarters are whole blocks.
const SLOT_STEP: u64 = 4 * BLOCK_BYTES;
const _: () = assert!(SLOT_MIN.is_multiple_of(SLOT_STEP) && SLOT_MAX.is_multiple_of(SLOT_STEP));

/// Sizes that `format` was asked for; `None` lets the engine choose.
#[derive(Clone, Copy, Debug)]
pub struct GeometryRequest {
    /// Devices in the pool.
    pub devices: usize,
    /// Bytes used of every device: the smallest device decides.
    pub device_bytes: ByteCount,
    /// Contiguous bytes on one device before the next takes over.
    pub stripe_unit: ByteCount,
    /// One segment's slice of one device.
    pub segment_bytes: Option<ByteCount>,
    /// Parts of the pool that one process each may own.
    pub shares: u32,
    /// Number of copies that the pool must be able to hold.
    pub copies: Copies,
}

/// The reason why a pool cannot be laid out as asked.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum GeometryError {
    /// Zero devices, or more than 64.
    #[error("a pool has 1 to 64 devices, not {0}")]
    Devices(usize),
    /// Zero shares, or more than the superblock's table holds.
    #[error("a pool has 1 to {SHARES_MAX} shares, not {0}")]
    Shares(u32),
    /// The stripe unit is not a power of two, or out of bounds.
    #[error("a stripe unit is a power of two from 4 KiB to 16 MiB, not {0}")]
    StripeUnit(ByteCount),
    /// The segment is not a multiple of the stripe unit, or so large that it cannot be addressed.
    #[error(
        "a segment ({segment} per device) is a multiple of the stripe unit ({unit}), at most 1 TiB"
    )]
    Segment {
        /// The segment asked for.
        segment: ByteCount,
        /// The stripe unit it must be a multiple of.
        unit: ByteCount,
    },
    /// The devices are too small for the metadata and a handful of segments.
    #[error(
        "a device of {device} is too small: with {shares} share(s) and segments of {segment} it needs at least {needed}"
    )]
    TooSmall {
        /// The smallest device.
        device: ByteCount,
        /// Shares asked for.
        shares: u32,
        /// Segment slice per device.
        segment: ByteCount,
        /// The smallest device that would do.
        needed: ByteCount,
    },
    /// The segments have more blocks each, over all devices, than the log counts.
    #[error("a segment of {segment} on each of {devices} devices is too large; make it smaller")]
    SegmentBlocks {
        /// The segment's slice of one device.
        segment: ByteCount,
        /// Devices in the pool.
        devices: u32,
    },
    /// No place for second copies.
    #[error(
        "two copies need two devices or more, and segments of an even number of stripe units ({unit}), not {devices} device(s) and segments of {segment}"
    )]
    Copies {
        /// Devices in the pool.
        devices: u32,
        /// The segment's slice of one device.
        segment: ByteCount,
        /// The stripe unit.
        unit: ByteCount,
    },
    /// The percentage would leave nothing, or too little.
    #[error(
        "leaving {percent} % unused leaves {segments} segments, and {shares} share(s) need {needed}"
    )]
    OverProvision {
        /// Percentage that was to stay unused.
        percent: u8,
        /// Number of segments that would be left.
        segments: u64,
        /// Shares asked for.
        shares: u32,
        /// The fewest segments that would do.
        needed: u64,
    },
    /// A superblock whose numbers contradict each other.
    #[error("the recorded geometry contradicts itself: {0}")]
    Contradiction(&'static str),
}

/// Place of each structure on each device of the pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// Devices in the pool.
    pub devices: u32,
    /// Bytes used of every device, the second superblock included.
    pub device_bytes: u64,
    /// Contiguous bytes on one device before the next takes over.
    pub stripe_unit: u64,
    /// One segment's slice of one device.
    pub segment_bytes: u64,
    /// Segments in the pool.
    pub segments: u32,
    /// Offset of the first segment's slice.
    pub data_offset: u64,
    /// Shares in the pool.
    pub shares: u32,
    /// Bytes of one metadata slot (each share has two) on each device.
    pub slot_bytes: u64,
}

/// The part of a pool that one process owns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShareArea {
    /// The first segment.
    pub first_segment: u32,
    /// Number of segments of the share.
    pub segments: u32,
    /// The two metadata slots, the same on every device that carries metadata.
    pub slots: [SlotArea; 2],
}

/// One metadata slot: an index checkpoint and the change log that continues it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotArea {
    /// Offset of the checkpoint on the device.
    pub checkpoint_offset: u64,
    /// Room for the checkpoint.
    pub checkpoint_bytes: u64,
    /// Offset of the change log on the device.
    pub log_offset: u64,
    /// Room for the change log.
    pub log_bytes: u64,
}

impl Geometry {
    /// Lays out a pool.
    ///
    /// # Errors
    /// The request is out of bounds, or the devices are too small; the error says what would do.
    pub fn plan(request: &GeometryRequest) -> Result<Self, GeometryError> {
        let unit = request.stripe_unit;
        if request.devices == 0 || request.devices > DEVICES_MAX {
            return Err(GeometryError::Devices(request.devices));
        }
        if request.shares == 0 || request.shares > SHARES_MAX {
            return Err(GeometryError::Shares(request.shares));
        }
        if !unit.0.is_power_of_two() || !(STRIPE_UNIT_MIN..=STRIPE_UNIT_MAX).contains(&unit.0) {
            return Err(GeometryError::StripeUnit(unit));
        }
        let devices = request.devices as u64;
        let shares = u64::from(request.shares);
        let device_bytes = request.device_bytes.0 / BLOCK_BYTES * BLOCK_BYTES;
        // Two slots per share; both the index and its log grow with what the share can hold.
        let share_bytes = device_bytes.saturating_mul(devices) / shares;
        let slot_bytes = (share_bytes >> 9).clamp(SLOT_MIN, SLOT_MAX) / SLOT_STEP * SLOT_STEP;
        let data_offset = (METADATA_OFFSET + 2 * shares * slot_bytes).next_multiple_of(unit.0);
        let data_end = device_bytes.saturating_sub(BLOCK_BYTES);
        let room = data_end.saturating_sub(data_offset);

        let segment = request
            .segment_bytes
            .map_or_else(|| default_segment(room / shares, request), |segment| segment.0);
        let segment_limit = 1_u64 << 40;
        if segment == 0 || !segment.is_multiple_of(unit.0) || segment > segment_limit {
            return Err(GeometryError::Segment { segment: ByteCount(segment), unit });
        }
        let segments = (room / segment).min(u64::from(u32::MAX));
        if segments < SEGMENTS_MIN * shares {
            return Err(GeometryError::TooSmall {
                device: request.device_bytes,
                shares: request.shares,
                segment: ByteCount(segment),
                needed: ByteCount(data_offset + SEGMENTS_MIN * shares * segment + BLOCK_BYTES),
            });
        }
        let geometry = Self {
            devices: request.devices as u32,
            device_bytes,
            stripe_unit: unit.0,
            segment_bytes: segment,
            segments: segments as u32,
            data_offset,
            shares: request.shares,
            slot_bytes,
        };
        geometry.check()?;
        geometry.check_copies(request.copies)?;
        Ok(geometry)
    }

    /// Checks that the copies of a tensor have places on as many devices.
    ///
    /// # Errors
    /// They have not.
    pub fn check_copies(&self, copies: Copies) -> Result<(), GeometryError> {
        let rows = self.segment_bytes / self.stripe_unit;
        if self.devices >= copies.count() && rows.is_multiple_of(copies.count().into()) {
            return Ok(());
        }
        Err(GeometryError::Copies {
            devices: self.devices,
            segment: ByteCount(self.segment_bytes),
            unit: ByteCount(self.stripe_unit),
        })
    }

    /// Removes segments: the last `percent` of every device is never written, which a drive that
    /// was deallocated before uses to move data with less wear.
    ///
    /// # Errors
    /// Too few segments are left.
    pub fn leaving_unused(self, percent: u8) -> Result<Self, GeometryError> {
        let kept = u64::from(100_u8.saturating_sub(percent));
        let segments = u64::from(self.segments) * kept / 100;
        let needed = SEGMENTS_MIN * u64::from(self.shares);
        if percent > 0 && segments < needed {
            let shares = self.shares;
            return Err(GeometryError::OverProvision { percent, segments, shares, needed });
        }
        Ok(Self { segments: segments as u32, ..self })
    }

    /// Checks that the numbers (which may come from a damaged or hostile device) fit together.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self) -> Result<(), GeometryError> {
        let aligned = |bytes: u64| bytes.is_multiple_of(BLOCK_BYTES);
        let contradiction = |what| Err(GeometryError::Contradiction(what));
        if self.devices == 0 || self.devices as usize > DEVICES_MAX {
            return Err(GeometryError::Devices(self.devices as usize));
        }
        if self.shares == 0 || self.shares > SHARES_MAX {
            return Err(GeometryError::Shares(self.shares));
        }
        if !self.stripe_unit.is_power_of_two()
            || !(STRIPE_UNIT_MIN..=STRIPE_UNIT_MAX).contains(&self.stripe_unit)
        {
            return Err(GeometryError::StripeUnit(ByteCount(self.stripe_unit)));
        }
        if self.segment_bytes == 0
            || !self.segment_bytes.is_multiple_of(self.stripe_unit)
            || self.segment_bytes > 1 << 40
        {
            return contradiction("the segment is not a multiple of the stripe unit");
        }
        // The log counts a segment's blocks, over all devices, in 32 bits.
        if self.segment_blocks() > u64::from(u32::MAX) {
            return Err(GeometryError::SegmentBlocks {
                segment: ByteCount(self.segment_bytes),
                devices: self.devices,
            });
        }
        if u64::from(self.segments) < u64::from(self.shares) {
            return contradiction("fewer segments than shares");
        }
        if !aligned(self.device_bytes) || !aligned(self.data_offset) || !aligned(self.slot_bytes) {
            return contradiction("an offset is not a multiple of 4 KiB");
        }
        if self.slot_bytes < SLOT_MIN || self.slot_bytes > SLOT_MAX {
            return contradiction("the metadata slots are out of bounds");
        }
        let metadata_end = METADATA_OFFSET + 2 * u64::from(self.shares) * self.slot_bytes;
        if self.data_offset < metadata_end {
            return contradiction("the data overlaps the metadata");
        }
        let data_end = u64::from(self.segments)
            .checked_mul(self.segment_bytes)
            .and_then(|bytes| bytes.checked_add(self.data_offset))
            .and_then(|end| end.checked_add(BLOCK_BYTES));
        if data_end.is_none_or(|end| end > self.device_bytes) {
            return contradiction("the segments reach past the device's end");
        }
        Ok(())
    }

    /// Blocks of one segment, counted over all devices.
    pub const fn segment_blocks(&self) -> u64 {
        self.segment_bytes / BLOCK_BYTES * self.devices as u64
    }

    /// Returns the offset of the second superblock.
    pub const fn second_superblock_offset(&self) -> u64 {
        self.device_bytes - BLOCK_BYTES
    }

    /// The devices that carry the metadata: two, or one where there is one.
    pub const fn metadata_devices(&self) -> u8 {
        if self.devices >= 2 { 2 } else { 1 }
    }

    /// Returns the area of a share; `None` if there is no such share.
    pub fn share(&self, share: u32) -> Option<ShareArea> {
        if share >= self.shares {
            return None;
        }
        let border = |index: u32| {
            (u64::from(self.segments) * u64::from(index) / u64::from(self.shares)) as u32
        };
        // A quarter of a slot continues the checkpoint that fills the rest.
        let log_bytes = self.slot_bytes / SLOT_STEP * BLOCK_BYTES;
        let slot = |index: u64| {
            let offset = METADATA_OFFSET + (2 * u64::from(share) + index) * self.slot_bytes;
            let checkpoint_bytes = self.slot_bytes - log_bytes;
            SlotArea {
                checkpoint_offset: offset,
                checkpoint_bytes,
                log_offset: offset + checkpoint_bytes,
                log_bytes,
            }
        };
        Some(ShareArea {
            first_segment: border(share),
            segments: border(share + 1) - border(share),
            slots: [slot(0), slot(1)],
        })
    }
}

/// The largest power-of-two number of stripe units up to 4 MiB that leaves a share enough segments;
/// at least one for each copy.
fn default_segment(room: u64, request: &GeometryRequest) -> u64 {
    let least = request.stripe_unit.0 * u64::from(request.copies.count());
    let mut segment = least.max(SEGMENT_DEFAULT);
    while segment > least && room / segment < SEGMENTS_WANTED {
        segment /= 2;
    }
    segment
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request() -> GeometryRequest {
        GeometryRequest {
            devices: 3,
            device_bytes: ByteCount::mib(16),
            stripe_unit: ByteCount::kib(32),
            segment_bytes: None,
            shares: 1,
            copies: Copies::One,
        }
    }

    #[test]
    fn two_copies_need_two_devices_and_segments_that_divide() {
        let two = GeometryRequest { copies: Copies::Two, ..request() };
        let unit = two.stripe_unit;
        let planned = Geometry::plan(&two).unwrap();
        assert!((planned.segment_bytes / unit.0).is_multiple_of(2));
        // Where one stripe unit would be enough.
        let small = GeometryRequest { device_bytes: ByteCount::mib(3), ..two };
        assert_eq!(Geometry::plan(&small).unwrap().segment_bytes, 2 * unit.0);
        let refused = |request: GeometryRequest| {
            let error = Geometry::plan(&request).unwrap_err();
            matches!(error, GeometryError::Copies { .. })
        };
        assert!(refused(GeometryRequest { devices: 1, ..two }));
        let odd = Some(ByteCount(3 * unit.0));
        assert!(refused(GeometryRequest { segment_bytes: odd, ..two }));
        assert!(Geometry::plan(&GeometryRequest { segment_bytes: odd, ..request() }).is_ok());
    }

    #[test]
    fn shares_divide_the_segments_without_gap_or_overlap() {
        for shares in 1..=8 {
            let geometry = Geometry::plan(&GeometryRequest {
                shares,
                device_bytes: ByteCount::mib(64),
                ..request()
            })
            .unwrap();
            let mut next = 0;
            let mut metadata = METADATA_OFFSET;
            for share in 0..shares {
                let area = geometry.share(share).unwrap();
                assert_eq!(area.first_segment, next);
                next += area.segments;
                for slot in area.slots {
                    assert_eq!(slot.checkpoint_offset, metadata);
                    assert_eq!(slot.log_offset, metadata + slot.checkpoint_bytes);
                    metadata = slot.log_offset + slot.log_bytes;
                }
            }
            assert_eq!(next, geometry.segments);
            assert!(metadata <= geometry.data_offset);
            assert_eq!(geometry.share(shares), None);
        }
    }

    #[test]
    fn small_pools_get_small_segments_and_large_ones_four_mebibytes() {
        let small = Geometry::plan(&request()).unwrap();
        assert!(small.segment_bytes < ByteCount::mib(1).0 && small.segments >= 32);
        let large = Geometry::plan(&GeometryRequest {
            device_bytes: ByteCount::gib(4000),
            devices: 64,
            stripe_unit: ByteCount::kib(256),
            ..request()
        })
        .unwrap();
        assert_eq!(large.segment_bytes, ByteCount::mib(4).0);
        assert_eq!(large.slot_bytes, SLOT_MAX);
    }

    #[test]
    fn impossible_requests_are_refused_with_what_would_do() {
        let plan = |change: fn(&mut GeometryRequest)| {
            let mut request = request();
            change(&mut request);
            Geometry::plan(&request)
        };
        assert_eq!(plan(|r| r.devices = 0), Err(GeometryError::Devices(0)));
        assert_eq!(plan(|r| r.devices = 65), Err(GeometryError::Devices(65)));
        assert_eq!(plan(|r| r.shares = 33), Err(GeometryError::Shares(33)));
        assert!(matches!(
            plan(|r| r.stripe_unit = ByteCount(5000)),
            Err(GeometryError::StripeUnit(_))
        ));
        assert!(matches!(
            plan(|r| r.segment_bytes = Some(ByteCount(5000))),
            Err(GeometryError::Segment { .. })
        ));
        let Err(GeometryError::TooSmall { needed, .. }) =
            plan(|r| r.device_bytes = ByteCount::kib(700))
        else {
            panic!("a device of 700 KiB must be too small");
        };
        assert!(Geometry::plan(&GeometryRequest { device_bytes: needed, ..request() }).is_ok());
    }

    #[test]
    fn recorded_numbers_that_contradict_each_other_are_named() {
        let good = Geometry::plan(&request()).unwrap();
        let bad = |change: fn(&mut Geometry)| {
            let mut geometry = good;
            change(&mut geometry);
            geometry.check()
        };
        assert!(bad(|_| ()).is_ok());
        assert!(bad(|g| g.segments = u32::MAX).is_err());
        assert!(bad(|g| g.data_offset = 0).is_err());
        assert!(bad(|g| g.slot_bytes = 1 << 63).is_err());
        assert!(bad(|g| g.stripe_unit = 0).is_err());
        assert!(bad(|g| g.device_bytes = 4096).is_err());
        assert!(bad(|g| g.segment_bytes += 1).is_err());
    }

    #[test]
    fn a_segment_whose_blocks_do_not_fit_in_32_bits_is_refused() {
        let huge = Geometry::plan(&GeometryRequest {
            devices: 64,
            device_bytes: ByteCount::gib(16 << 10),
            stripe_unit: ByteCount::kib(256),
            segment_bytes: Some(ByteCount::gib(1 << 10)),
            shares: 1,
            copies: Copies::One,
        });
        assert!(matches!(huge, Err(GeometryError::SegmentBlocks { .. })), "{huge:?}");
    }

    #[test]
    fn what_is_left_unused_is_at_the_end_and_at_most_what_leaves_enough() {
        let all = Geometry::plan(&request()).unwrap();
        assert_eq!(all.leaving_unused(0), Ok(all));
        let less = all.leaving_unused(25).unwrap();
        assert_eq!(less, Geometry { segments: all.segments * 3 / 4, ..all });
        less.check().unwrap();
        for percent in [99, 100, 255] {
            let refused = all.leaving_unused(percent);
            assert!(matches!(refused, Err(GeometryError::OverProvision { .. })), "{percent}");
        }
    }
}
