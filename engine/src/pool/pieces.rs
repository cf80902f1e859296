//! Pieces of a tensor in the log, which the reactor moves.

use std::ops::Range;

use crate::layout::TensorEntry;
use crate::log::{Placement, StripeMap};
use crate::schedule::Piece;
use crate::units::{ByteCount, DeviceIndex};

/// A whole piece, where it lies in a whole tensor, with its second copy.
pub(super) fn whole(placement: Placement) -> Piece {
    let piece = Piece::new(
        DeviceIndex(placement.device),
        ByteCount(placement.device_offset),
        placement.tensor_offset,
        placement.length,
    );
    match placement.mirror {
        Some((device, offset)) => piece.mirrored(DeviceIndex(device), ByteCount(offset)),
        None => piece,
    }
}

/// The pieces of a range of a tensor, placed in memory that holds just that range.
pub(super) fn of_range<'a>(
    stripes: &'a StripeMap,
    entry: &'a TensorEntry,
    range: Range<u64>,
    checked: bool,
) -> impl Iterator<Item = Piece> + use<'a> {
    let placements = stripes.placements(&entry.runs, entry.length);
    let Range { start, end } = range;
    let wanted = placements.zip(&entry.checksums).filter(move |(placement, _)| {
        placement.tensor_offset < end
            && start < placement.tensor_offset + u64::from(placement.length)
    });
    wanted.map(move |(placement, checksum)| {
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
}

/// Consecutive pieces of a tensor, placed in memory that holds just them.
pub(super) struct PieceGroup {
    /// The bytes of the tensor.
    pub(super) range: Range<u64>,
    /// The pieces, whole.
    pub(super) pieces: Vec<Piece>,
}

impl PieceGroup {
    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.range.end - self.range.start
    }

    /// The pieces with another change.
    pub(super) fn map(&self, change: impl Fn(&Piece) -> Option<Piece>) -> Option<Self> {
        let pieces = self.pieces.iter().map(change).collect::<Option<Vec<_>>>()?;
        Some(Self { range: self.range.clone(), pieces })
    }

    /// Each piece as a group of its own.
    pub(super) fn apart(&self) -> impl Iterator<Item = Self> + '_ {
        self.pieces.iter().map(|piece| {
            let start = self.range.start + piece.tensor_offset;
            let range = start..start + u64::from(piece.length);
            Self { range, pieces: vec![Piece { tensor_offset: 0, ..*piece }] }
        })
    }
}

/// Cuts consecutive whole pieces of a tensor into groups of at most `bytes_max` bytes, but of one
/// piece at least.
pub(super) fn groups(pieces: impl IntoIterator<Item = Piece>, bytes_max: u64) -> Vec<PieceGroup> {
    let mut groups: Vec<PieceGroup> = Vec::new();
    for piece in pieces {
        let start = piece.tensor_offset;
        let end = start + u64::from(piece.length);
        let group = match groups.last_mut() {
            Some(group) if end - group.range.start <= bytes_max => group,
            _ => {
                groups.push(PieceGroup { range: start..end, pieces: Vec::new() });
                let last = groups.len() - 1;
                &mut groups[last]
            }
        };
        group.range.end = end;
        group.pieces.push(Piece { tensor_offset: start - group.range.start, ..piece });
    }
    groups
}
