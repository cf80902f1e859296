//! Memory that devices read and write themselves, cut into one part for each piece of its transfer.

use super::transfer::Piece;
use crate::memory::{ALIGNMENT, DmaBuffer};

/// The parts of a buffer that are not on a device just now; empty where there is none.
#[derive(Default)]
pub(super) struct BufferParts {
    by_piece: Vec<Option<DmaBuffer>>,
    /// Memory behind the last piece.
    rest: Option<DmaBuffer>,
}

impl BufferParts {
    /// Cuts a buffer for these pieces; gives it back where they do not lie in it one behind the
    /// other in whole blocks, and so have to be copied.
    pub(super) fn cut(&mut self, buffer: DmaBuffer, pieces: &[Piece]) -> Result<(), DmaBuffer> {
        if !lie_in_whole_blocks(pieces, buffer.len() as u64) {
            return Err(buffer);
        }
        self.rest = Some(buffer);
        for piece in pieces {
            let length = piece.extent().length.0 as usize;
            let mut part = self.rest.take();
            self.rest =
                part.as_mut().filter(|part| length < part.len()).map(|part| part.split_off(length));
            self.by_piece.push(part);
        }
        Ok(())
    }

    /// Returns whether there is a buffer that was cut.
    pub(super) fn are_there(&self) -> bool {
        !self.by_piece.is_empty()
    }

    /// The part of a piece, for its device.
    pub(super) fn take(&mut self, piece: usize) -> Option<DmaBuffer> {
        self.by_piece[piece].take()
    }

    /// A part that no device has any more.
    pub(super) fn put_back(&mut self, piece: usize, part: DmaBuffer) {
        self.by_piece[piece] = Some(part);
    }

    /// The whole buffer again, unless a part never came back. None is there afterwards.
    pub(super) fn join(&mut self) -> Option<DmaBuffer> {
        if !self.are_there() {
            return None;
        }
        let rest = self.rest.take();
        let mut parts = self.by_piece.drain(..);
        let mut whole = parts.next()??;
        for part in parts {
            whole.join(part?);
        }
        if let Some(rest) = rest {
            whole.join(rest);
        }
        Some(whole)
    }
}

/// Returns whether the pieces cover memory from its start, each from where the one before ended to
/// the end of a block.
fn lie_in_whole_blocks(pieces: &[Piece], memory: u64) -> bool {
    let mut end = 0;
    let consecutive = pieces.iter().all(|piece| {
        let fits = piece.tensor_offset == end && piece.window.is_none();
        end += piece.extent().length.0;
        fits
    });
    debug_assert!(end.is_multiple_of(ALIGNMENT as u64), "an extent is whole blocks");
    consecutive && !pieces.is_empty() && end <= memory
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::memory::DmaPool;
    use crate::units::{ByteCount, DeviceIndex};

    fn piece(tensor_offset: u64, length: u32) -> Piece {
        Piece::new(DeviceIndex(0), ByteCount::ZERO, tensor_offset, length)
    }

    #[test]
    fn parts_make_the_same_buffer_again_in_whatever_order_they_come_back() {
        let pool = DmaPool::new(ByteCount::kib(32), false).unwrap();
        let mut buffer = pool.take(32 << 10).unwrap();
        buffer.iter_mut().zip(0..).for_each(|(byte, index): (_, u32)| *byte = (index >> 5) as u8);
        let expected = buffer.to_vec();
        let pieces = [piece(0, 8192), piece(8192, 4096), piece(12_288, 100)];
        let mut parts = BufferParts::default();
        parts.cut(buffer, &pieces).unwrap();
        let mut taken: Vec<_> = (0..3).map(|piece| (piece, parts.take(piece).unwrap())).collect();
        assert_eq!(taken[2].1.len(), 4096, "the last block is the piece's to its end");
        assert_eq!(taken[1].1[..], expected[8192..12_288]);
        assert!(parts.take(1).is_none());
        for (piece, part) in [taken.remove(1), taken.remove(1), taken.remove(0)] {
            parts.put_back(piece, part);
        }
        assert_eq!(parts.join().unwrap()[..], expected);
        assert_eq!(pool.take(32 << 10).unwrap().len(), 32 << 10, "all of it returned to the pool");
    }

    #[test]
    fn a_part_that_never_came_back_keeps_its_memory_and_the_rest_returns() {
        let pool = DmaPool::new(ByteCount::kib(8), false).unwrap();
        let mut parts = BufferParts::default();
        parts.cut(pool.take(8192).unwrap(), &[piece(0, 4096), piece(4096, 4096)]).unwrap();
        let on_a_device = parts.take(0);
        assert!(parts.join().is_none());
        assert!(pool.take(4096).is_some() && pool.take(8192).is_none());
        drop(on_a_device);
        assert!(pool.take(8192).is_some());
    }

    #[test]
    fn pieces_that_do_not_lie_in_whole_blocks_are_for_copying() {
        let pool = DmaPool::new(ByteCount::kib(8), false).unwrap();
        let windowed = piece(0, 4096).window(1, 2);
        let beyond = [piece(0, 4096), piece(4096, 4096), piece(8192, 1)];
        let apart = [piece(0, 100), piece(100, 100)];
        for pieces in [&[][..], &[windowed], &[piece(4096, 1)], &beyond, &apart] {
            let buffer = pool.take(8192).unwrap();
            let mut parts = BufferParts::default();
            assert_eq!(parts.cut(buffer, pieces).expect_err("refused").len(), 8192);
            assert!(!parts.are_there());
        }
    }
}
