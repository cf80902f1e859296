//! From a tensor in the log to the pieces that the reactor moves.

use std::ops::Range;

use crate::layout::TensorEntry;
use crate::log::{Placement, StripeMap};
use crate::schedule::Piece;
use crate::units::{ByteCount, DeviceIndex};

/// A whole piece, where it lies in a whole tensor.
pub(super) fn whole(placement: &Placement) -> Piece {
    Piece::new(
        DeviceIndex(placement.device),
        ByteCount(placement.device_offset),
        placement.tensor_offset,
        placement.length,
    )
}

/// The pieces of a range of a tensor, placed in memory that holds just that range.
pub(super) fn of_range(
    stripes: &StripeMap,
    entry: &TensorEntry,
    range: &Range<u64>,
    checked: bool,
) -> Vec<Piece> {
    let placements = stripes.placements(&entry.runs, entry.length);
    let wanted = placements.iter().zip(&entry.checksums).filter(|(placement, _)| {
        let end = placement.tensor_offset + u64::from(placement.length);
        placement.tensor_offset < range.end && range.start < end
    });
    wanted
        .map(|(placement, checksum)| {
            let end = placement.tensor_offset + u64::from(placement.length);
            let first = placement.tensor_offset.max(range.start);
            let skip = (first - placement.tensor_offset) as u32;
            let take = (end.min(range.end) - first) as u32;
            let mut piece = whole(placement);
            piece.tensor_offset = first - range.start;
            if checked {
                piece = piece.expecting(*checksum);
            }
            if take < placement.length { piece.window(skip, take) } else { piece }
        })
        .collect()
}
