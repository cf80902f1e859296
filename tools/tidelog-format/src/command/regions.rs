//! Every region of a device, from the first byte to the last.

use tidelog_engine::layout::{
    BLOCK_BYTES, Geometry, HOLDERS_OFFSET, METADATA_OFFSET, SHARES_MAX, SUPERBLOCK_OFFSET,
};

/// A run of bytes of a device with one purpose.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct DeviceRegion {
    pub(super) what: String,
    pub(super) start: u64,
    pub(super) end: u64,
    /// True if formatting writes it. (The first and the last MiB are cleared besides.)
    pub(super) written: bool,
}

/// The regions of the device at `place` with `size` bytes, in order and without gaps.
pub(super) fn regions(
    geometry: &Geometry,
    place: u32,
    size: u64,
    block: bool,
) -> Vec<DeviceRegion> {
    let mut regions = Vec::new();
    let mut at = 0;
    let mut put = |what: &str, end: u64, written: bool| {
        if end > at {
            regions.push(DeviceRegion { what: what.to_owned(), start: at, end, written });
            at = end;
        }
    };
    put(if block { "protective MBR" } else { "unused" }, SUPERBLOCK_OFFSET, block);
    put("superblock A", HOLDERS_OFFSET, true);
    put("holder blocks", HOLDERS_OFFSET + u64::from(SHARES_MAX) * BLOCK_BYTES, false);
    put("unused", METADATA_OFFSET, false);
    let carries_metadata = place < u32::from(geometry.metadata_devices());
    for share in 0..geometry.shares {
        let slots = geometry.share(share).map(|area| area.slots).into_iter().flatten();
        for (index, slot) in slots.enumerate() {
            let name = |what| {
                if carries_metadata {
                    format!("share {share}, slot {index}: {what}")
                } else {
                    "unused (metadata is on devices 0 and 1)".to_owned()
                }
            };
            // The first checkpoint goes to the first slot.
            let written = carries_metadata && index == 0;
            put(&name("index checkpoint"), slot.log_offset, written);
            put(&name("change log"), slot.log_offset + slot.log_bytes, false);
        }
    }
    put("unused", geometry.data_offset, false);
    let data = u64::from(geometry.segments) * geometry.segment_bytes;
    let segments = format!("data: {} segments", geometry.segments);
    put(&segments, geometry.data_offset + data, false);
    put("never written (over-provisioning, remainder)", geometry.second_superblock_offset(), false);
    put("superblock B", geometry.device_bytes, true);
    put("never written (the pool uses as much of each device)", size, false);
    regions
}

#[cfg(test)]
mod tests {
    use tidelog_engine::layout::{Copies, GeometryRequest};
    use tidelog_engine::units::ByteCount;

    use super::*;

    #[test]
    fn regions_cover_every_byte_once() {
        for (devices, shares, unused) in [(1, 1, 0), (2, 3, 7), (5, 32, 50)] {
            let geometry = Geometry::plan(&GeometryRequest {
                devices,
                device_bytes: ByteCount::gib(1),
                stripe_unit: ByteCount::kib(32),
                segment_bytes: None,
                shares,
                copies: Copies::One,
            });
            let geometry = geometry.unwrap().leaving_unused(unused).unwrap();
            for (place, size, block) in [(0, 1 << 30, true), (4, (1 << 30) + 12_345, false)] {
                let regions = regions(&geometry, place, size, block);
                assert_eq!(regions.first().unwrap().start, 0);
                assert_eq!(regions.last().unwrap().end, size);
                for pair in regions.windows(2) {
                    assert_eq!(pair[0].end, pair[1].start, "{pair:?}");
                }
                let superblocks = regions.iter().filter(|it| it.what.starts_with("superblock"));
                let starts: Vec<u64> = superblocks.map(|it| it.start).collect();
                assert_eq!(starts, [SUPERBLOCK_OFFSET, geometry.second_superblock_offset()]);
            }
        }
    }
}
