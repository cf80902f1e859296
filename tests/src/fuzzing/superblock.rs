//! Superblocks and holder blocks.

use arbitrary::Unstructured;
use tidelog_engine::layout::{
    BLOCK_BYTES, Copies, Events, Geometry, GeometryRequest, Holder, METADATA_OFFSET, SHARES_MAX,
    Superblock,
};
use tidelog_engine::units::ByteCount;

use super::frame;

/// The first byte says what the others are: a block as it stands there, or one to be sealed, or the
/// words of a geometry.
pub(super) fn run(bytes: &[u8]) {
    let Some((kind, bytes)) = bytes.split_first() else { return };
    match kind % 5 {
        0 => check_superblock(bytes),
        1 => check_superblock(&sealed(bytes, b"TIDELOG\0\x01\0\0\0", frame::SUPERBLOCK_CHECKSUM)),
        2 => check_holder(bytes),
        3 => check_holder(&sealed(bytes, b"TIDEHOLD", frame::CHECKSUM)),
        _ => check_plan(&mut Unstructured::new(bytes)),
    }
}

/// A block of these bytes, with the magic in front and a right checksum.
fn sealed(bytes: &[u8], magic: &[u8], checksum_at: usize) -> Vec<u8> {
    let mut block = bytes.to_vec();
    block.resize(BLOCK_BYTES as usize, 0);
    block[..magic.len()].copy_from_slice(magic);
    frame::seal(&mut block, checksum_at);
    block
}

fn check_superblock(block: &[u8]) {
    let Ok(found) = Superblock::decode(block) else { return };
    assert_eq!(Superblock::decode(&found.encode()), Ok(found));
    assert!(found.device < found.geometry.devices);
    check_geometry(&found.geometry);
}

/// Checks a geometry that passed the checks: every structure lies where it should, and none over
/// another.
fn check_geometry(geometry: &Geometry) {
    geometry.check().expect("what was accepted is accepted again");
    let end = geometry.device_bytes;
    let (mut metadata, mut segments) = (METADATA_OFFSET, 0);
    for share in 0..geometry.shares {
        let area = geometry.share(share).expect("every share lies somewhere");
        assert_eq!(area.first_segment, segments);
        segments += area.segments;
        for slot in area.slots {
            assert_eq!(slot.checkpoint_offset, metadata);
            assert_eq!(slot.log_offset, metadata + slot.checkpoint_bytes);
            metadata = slot.log_offset + slot.log_bytes;
        }
    }
    assert_eq!(segments, geometry.segments);
    assert!(geometry.share(geometry.shares).is_none());
    assert!(metadata <= geometry.data_offset, "the data lies behind the metadata");
    let data_end = geometry.data_offset + u64::from(segments) * geometry.segment_bytes;
    assert!(data_end <= geometry.second_superblock_offset() && data_end <= end - BLOCK_BYTES);
    assert!(u32::try_from(geometry.segment_blocks()).is_ok());
}

fn check_holder(block: &[u8]) {
    for share in [0, 1, SHARES_MAX - 1] {
        let Some(found) = Holder::decode(block, share) else { continue };
        // Every byte that is not UTF-8 has become a character of three.
        assert!(found.command.len() <= 3 * 1024 && !found.to_string().is_empty());
        let again = Holder::decode(&found.encode(7, share, Events::NONE), share)
            .expect("what we write we read");
        assert_eq!((again.process, again.since), (found.process, found.since));
        assert!(found.command.starts_with(&again.command), "long commands are cut");
    }
}

fn check_plan(words: &mut Unstructured<'_>) {
    let Ok((devices, device_bytes, unit_bits, segment, shares, percent)) =
        words.arbitrary::<(u8, u64, u8, Option<u64>, u8, u8)>()
    else {
        return;
    };
    let request = GeometryRequest {
        devices: devices.into(),
        device_bytes: ByteCount(device_bytes),
        stripe_unit: ByteCount(1_u64.checked_shl(unit_bits.into()).unwrap_or(0)),
        segment_bytes: segment.map(ByteCount),
        shares: shares.into(),
        copies: Copies::One,
    };
    let Ok(geometry) = Geometry::plan(&request) else { return };
    check_geometry(&geometry);
    if let Ok(less) = geometry.leaving_unused(percent) {
        check_geometry(&less);
    }
}
