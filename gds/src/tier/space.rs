//! Space of the tier. Any free bytes can be given out, in pieces where there is no run of them that
//! is long enough: what is free always suffices for as many bytes.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The bytes of the tier. Clones are handles of the same ones.
#[derive(Clone, Debug)]
pub(super) struct TierSpace(Arc<Mutex<Free>>);

#[derive(Debug)]
struct Free {
    /// Runs that nobody has, no two of them beside each other: their first bytes and lengths.
    runs: BTreeMap<usize, usize>,
    /// Sum of the free pieces, now and when it was least.
    bytes: usize,
    least: usize,
}

/// Bytes of the tier that somebody has, given back on drop.
#[derive(Debug)]
pub(super) struct Room {
    pieces: Vec<Range<usize>>,
    space: TierSpace,
}

impl TierSpace {
    pub(super) fn new(bytes: usize) -> Self {
        let runs = if bytes > 0 { BTreeMap::from([(0, bytes)]) } else { BTreeMap::new() };
        Self(Arc::new(Mutex::new(Free { runs, bytes, least: bytes })))
    }

    /// Takes space for `bytes` bytes: one piece where that is possible, the fewest pieces where it
    /// is not.
    pub(super) fn take(&self, bytes: usize) -> Option<Room> {
        let pieces = self.lock().take(bytes)?;
        Some(Room { pieces, space: self.clone() })
    }

    /// Bytes that nobody has: now, and at the time when there were fewest.
    pub(super) fn free(&self) -> (usize, usize) {
        let free = self.lock();
        (free.bytes, free.least)
    }

    fn lock(&self) -> MutexGuard<'_, Free> {
        // Nothing in between its changes panics, so none leaves the runs half changed.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Room {
    /// Returns the bytes, in the order in which a tensor's lie in them.
    pub(super) fn pieces(&self) -> &[Range<usize>] {
        &self.pieces
    }

    /// Returns the number of bytes.
    pub(super) fn bytes(&self) -> usize {
        self.pieces.iter().map(Range::len).sum()
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        let mut free = self.space.lock();
        for piece in self.pieces.drain(..) {
            free.release(piece);
        }
    }
}

impl Free {
    fn take(&mut self, bytes: usize) -> Option<Vec<Range<usize>>> {
        if bytes > self.bytes {
            return None;
        }
        let mut pieces = Vec::new();
        let mut left = bytes;
        while left > 0 {
            let (begin, length) = self.fitting(left)?;
            let part = length.min(left);
            self.runs.remove(&begin);
            if part < length {
                self.runs.insert(begin + part, length - part);
            }
            pieces.push(begin..begin + part);
            left -= part;
        }
        self.bytes -= bytes;
        self.least = self.least.min(self.bytes);
        Some(pieces)
    }

    /// The shortest run that is long enough; the longest where none is.
    fn fitting(&self, bytes: usize) -> Option<(usize, usize)> {
        let all = || self.runs.iter().map(|(&begin, &length)| (begin, length));
        let enough = all().filter(|(_, length)| *length >= bytes).min_by_key(|(_, length)| *length);
        enough.or_else(|| all().max_by_key(|(_, length)| *length))
    }

    fn release(&mut self, piece: Range<usize>) {
        self.bytes += piece.len();
        let (mut begin, mut end) = (piece.start, piece.end);
        if let Some((&before, &length)) = self.runs.range(..begin).next_back()
            && before + length == begin
        {
            self.runs.remove(&before);
            begin = before;
        }
        if let Some(length) = self.runs.remove(&end) {
            end += length;
        }
        self.runs.insert(begin, end - begin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the one piece that `bytes` bytes get.
    fn place_of(space: &TierSpace, bytes: usize) -> (usize, usize) {
        let room = space.take(bytes).unwrap();
        assert_eq!(room.pieces().len(), 1);
        (room.pieces()[0].start, room.pieces()[0].end)
    }

    #[test]
    fn whatever_is_free_can_be_taken_and_no_byte_twice() {
        const BYTES: usize = 1000;
        let space = TierSpace::new(BYTES);
        let mut rooms: Vec<Room> = Vec::new();
        let (mut draw, mut scattered) = (1_u64, 0);
        for _ in 0..20_000 {
            draw = draw
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            let number = (draw >> 33) as usize;
            let wanted = number % 300;
            let free = space.free().0;
            if let Some(room) = space.take(wanted) {
                assert_eq!(room.bytes(), wanted);
                scattered += usize::from(room.pieces().len() > 1);
                rooms.push(room);
            } else {
                assert!(wanted > free, "{wanted} of {free} free bytes were refused");
                drop(rooms.swap_remove(number % rooms.len()));
            }
            let mut taken: Vec<&Range<usize>> = rooms.iter().flat_map(Room::pieces).collect();
            taken.sort_by_key(|piece| piece.start);
            assert!(taken.windows(2).all(|pair| pair[0].end <= pair[1].start), "{taken:?}");
            let held: usize = taken.iter().map(|piece| piece.len()).sum();
            assert_eq!(space.free().0, BYTES - held);
        }
        assert!(scattered > 100, "only {scattered} tensors were in pieces");
        rooms.clear();
        assert_eq!(space.free(), (BYTES, 0));
        assert_eq!(place_of(&space, BYTES), (0, BYTES), "the runs have grown together");
    }

    #[test]
    fn the_shortest_run_that_is_long_enough_is_taken() {
        let space = TierSpace::new(100);
        let [short, between, long] = [10, 20, 30].map(|bytes| space.take(bytes).unwrap());
        drop((short, long));
        assert_eq!(place_of(&space, 8), (0, 8));
        drop(between);
    }
}
