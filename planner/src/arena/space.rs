//! The addresses of an arena: what is allocated, free or not mapped at each of them.

use super::{Granules, StreamNumber, StreamUse, add_uses};
use std::collections::BTreeMap;

/// Addresses that are reserved at once, in parts of the memory.
const ADDRESSES: u32 = 2;

/// A range of addresses, in granules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AddressRange {
    pub(super) begin: u32,
    pub(super) length: u32,
}

impl AddressRange {
    const fn end(self) -> u32 {
        self.begin + self.length
    }

    /// Returns what is left behind its first granules, if anything.
    pub(super) fn without_first(self, length: u32) -> Option<Self> {
        let rest = Self { begin: self.begin + length, length: self.length - length };
        (rest.length > 0).then_some(rest)
    }

    /// The part of it that lies in another one.
    fn within(self, other: Self) -> Self {
        let begin = self.begin.max(other.begin);
        Self { begin, length: self.end().min(other.end()).saturating_sub(begin) }
    }

    /// The parts of it that lie before and behind another one.
    fn outside(self, other: Self) -> impl Iterator<Item = Self> {
        let before = self.end().min(other.begin).saturating_sub(self.begin);
        let begin = self.begin.max(other.end());
        let behind = self.end().saturating_sub(begin);
        let parts = [Self { begin: self.begin, length: before }, Self { begin, length: behind }];
        parts.into_iter().filter(|part| part.length > 0)
    }
}

/// Content of addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Content {
    /// Nothing: no memory is mapped.
    Hole,
    Free,
    Allocated,
    /// Hole at addresses of an allocation: a part of it has no memory.
    PartHole,
    /// Free memory at addresses of an allocation, a part of which has given it back.
    PartFree,
}

impl Content {
    /// Returns whether an allocation has the addresses.
    const fn is_taken(self) -> bool {
        matches!(self, Self::Allocated | Self::PartHole | Self::PartFree)
    }

    /// Returns whether nobody has the memory that is mapped there.
    const fn is_free_memory(self) -> bool {
        matches!(self, Self::Free | Self::PartFree)
    }
}

/// Addresses of which the same is true. Neighbours that are alike are one piece, but for two
/// allocations and at the seams of reservations.
#[derive(Clone, Debug)]
struct Piece {
    range: AddressRange,
    content: Content,
    /// Uses of free memory that may not have happened; of an allocation, those that it waits for.
    uses: Vec<StreamUse>,
}

/// A place for an allocation, and what it costs.
#[derive(Clone, Copy, Debug)]
pub(super) struct FreePlace {
    pub(super) range: AddressRange,
    /// Granules of it that are not mapped.
    pub(super) missing: u32,
    /// Number of the last use for which its stream waits.
    last_wait: Option<u64>,
    /// Free granules of the gap between two allocations that it lies in.
    gap: u32,
}

impl FreePlace {
    /// The cost, the least one of which is the best: what has to be mapped, then the wait, as old a
    /// one as can be, then how much free memory is cut.
    const fn cost(&self) -> (u32, Option<u64>, u32) {
        (self.missing, self.last_wait, self.gap)
    }
}

#[derive(Clone, Debug)]
pub(super) struct AddressSpace {
    /// Addresses that are reserved at once. No allocation lies across the seam of two reservations.
    reservation: u32,
    /// All addresses, in order and without gaps.
    pieces: Vec<Piece>,
    /// Lengths of allocations, by where they begin.
    allocations: BTreeMap<u32, u32>,
}

/// Memory of a part of an allocation.
#[derive(Clone, Copy, Debug)]
pub(super) struct PartMemory {
    /// Granules that the part has not.
    pub(super) asked: u32,
    /// Granules of these at whose addresses no memory is mapped.
    pub(super) missing: u32,
}

impl AddressSpace {
    /// Makes the addresses of this memory, which is mapped from the first one on.
    pub(super) fn new(memory: Granules) -> Self {
        let mut space = Self {
            reservation: ADDRESSES * memory.0.max(1),
            pieces: Vec::new(),
            allocations: BTreeMap::new(),
        };
        space.reserve();
        space.set(AddressRange { begin: 0, length: memory.0 }, Content::Free, Vec::new());
        space
    }

    /// Number of addresses.
    pub(super) fn end(&self) -> u32 {
        self.pieces.last().map_or(0, |last| last.range.end())
    }

    /// Forgets uses of free memory that have happened.
    pub(super) fn forget(&mut self, happened: impl Fn(StreamUse) -> bool) {
        let mut has_forgotten = false;
        for piece in self.pieces.iter_mut().filter(|piece| piece.content.is_free_memory()) {
            let before = piece.uses.len();
            piece.uses.retain(|one| !happened(*one));
            has_forgotten |= piece.uses.len() < before;
        }
        if has_forgotten {
            let reservation = self.reservation;
            self.pieces.dedup_by(|next, piece| piece.joins(next, reservation));
        }
    }

    /// The best place for an allocation, beyond all addresses so far if it fits nowhere else.
    pub(super) fn best_place(&mut self, asked: Granules, stream: StreamNumber) -> FreePlace {
        let found = self.best_so_far(asked.0, stream);
        found.unwrap_or_else(|| {
            let range = AddressRange { begin: self.end(), length: asked.0 };
            self.reserve();
            FreePlace { range, missing: asked.0, last_wait: None, gap: 0 }
        })
    }

    fn best_so_far(&self, asked: u32, stream: StreamNumber) -> Option<FreePlace> {
        let is_one_gap = |one: &Piece, next: &Piece| {
            let is_seam = next.range.begin.is_multiple_of(self.reservation);
            !one.content.is_taken() && !next.content.is_taken() && !is_seam
        };
        let mut best: Option<FreePlace> = None;
        for gap in self.pieces.chunk_by(is_one_gap) {
            let (begin, end) = (gap[0].range.begin, gap[gap.len() - 1].range.end());
            if gap[0].content.is_taken() || end - begin < asked {
                continue;
            }
            let free = gap.iter().map(Piece::free).sum();
            let least = asked.saturating_sub(free);
            if best.is_some_and(|best| best.missing < least) {
                continue;
            }
            // The best one begins or ends where a piece does.
            for Piece { range, .. } in gap {
                let from_begin = Some(range.begin).filter(|begin| begin + asked <= end);
                let to_end = range.end().checked_sub(asked).filter(|at| *at >= begin);
                for begin in [from_begin, to_end].into_iter().flatten() {
                    let range = AddressRange { begin, length: asked };
                    let place = place_at(range, gap, free, stream);
                    if best.is_none_or(|best| place.cost() < best.cost()) {
                        best = Some(place);
                    }
                }
            }
        }
        best
    }

    /// Free memory outside a range: what was used longest ago, and then what lies alone.
    pub(super) fn free_elsewhere(&self, range: AddressRange, wanted: u32) -> Vec<AddressRange> {
        let mut parts = Vec::new();
        for piece in self.pieces.iter().filter(|piece| piece.content.is_free_memory()) {
            let last = piece.uses.iter().map(|one| one.number).max();
            for part in piece.range.outside(range) {
                parts.push((last, part.length, part));
            }
        }
        parts.sort_unstable_by_key(|(last, length, part)| (*last, *length, part.begin));
        let mut left = wanted;
        let mut found = Vec::new();
        for (_, length, part) in parts {
            if left == 0 {
                break;
            }
            let taken = length.min(left);
            left -= taken;
            found.push(AddressRange { begin: part.end() - taken, length: taken });
        }
        found
    }

    /// Uses of free memory in a range, the last of each stream.
    pub(super) fn uses_in(&self, range: AddressRange) -> Vec<StreamUse> {
        let mut uses = Vec::new();
        for piece in overlapped(&self.pieces, range) {
            add_uses(&mut uses, &piece.uses);
        }
        uses
    }

    /// Uses of free memory in a range of which others may have parts, the last of each stream.
    pub(super) fn free_uses_in(&self, range: AddressRange) -> Vec<StreamUse> {
        let mut uses = Vec::new();
        for piece in overlapped(&self.pieces, range).filter(|piece| piece.content.is_free_memory())
        {
            add_uses(&mut uses, &piece.uses);
        }
        uses
    }

    /// Parts of a range at which nothing is mapped.
    pub(super) fn unmapped_in(&self, range: AddressRange) -> Vec<AddressRange> {
        let holes = overlapped(&self.pieces, range);
        let are_holes = |piece: &&Piece| matches!(piece.content, Content::Hole | Content::PartHole);
        let holes = holes.filter(are_holes);
        holes.map(|piece| piece.range.within(range)).collect()
    }

    /// Unmaps free memory, which is of one piece.
    pub(super) fn unmap(&mut self, range: AddressRange) {
        let is_part = overlapped(&self.pieces, range).any(|piece| piece.content.is_taken());
        self.set(range, if is_part { Content::PartHole } else { Content::Hole }, Vec::new());
    }

    pub(super) fn give_away(&mut self, range: AddressRange, uses: Vec<StreamUse>) {
        self.allocations.insert(range.begin, range.length);
        self.set(range, Content::Allocated, uses);
    }

    /// Takes an allocation back, and returns how many granules it had.
    pub(super) fn take_back(&mut self, begin: u32, uses: &[StreamUse]) -> u32 {
        let Some(length) = self.allocations.remove(&begin) else {
            panic!("memory of an arena is given back that is not allocated: granule {begin}")
        };
        let mut returned = 0;
        for (range, content, mut all) in self.contents(AddressRange { begin, length }) {
            match content {
                Content::Hole | Content::PartHole => self.set(range, Content::Hole, Vec::new()),
                Content::Free | Content::PartFree => self.set(range, Content::Free, all),
                Content::Allocated => {
                    returned += range.length;
                    add_uses(&mut all, uses);
                    self.set(range, Content::Free, all);
                }
            }
        }
        returned
    }

    /// Takes the memory of a part of an allocation back, and returns how many granules it had.
    pub(super) fn take_part_back(&mut self, part: AddressRange, uses: &[StreamUse]) -> u32 {
        self.check_part(part);
        let mut returned = 0;
        for (range, content, mut all) in self.contents(part) {
            if content == Content::Allocated {
                returned += range.length;
                add_uses(&mut all, uses);
                self.set(range, Content::PartFree, all);
            }
        }
        returned
    }

    /// Returns what a part of an allocation lacks.
    pub(super) fn part(&self, part: AddressRange) -> PartMemory {
        self.check_part(part);
        let (mut asked, mut missing) = (0, 0);
        for (range, content, _) in self.contents(part) {
            asked += if content == Content::Allocated { 0 } else { range.length };
            missing += if content == Content::PartHole { range.length } else { 0 };
        }
        PartMemory { asked, missing }
    }

    /// Has new memory mapped where a part of an allocation has none: so many granules.
    pub(super) fn grow_part(&mut self, part: AddressRange, mut granules: u32) {
        for AddressRange { begin, length } in self.unmapped_in(part) {
            let length = length.min(granules);
            self.set(AddressRange { begin, length }, Content::PartFree, Vec::new());
            granules -= length;
        }
    }

    /// Gives a part of an allocation the memory that is mapped there now.
    pub(super) fn give_part_away(&mut self, part: AddressRange) {
        for (range, content, uses) in self.contents(part) {
            if content != Content::Allocated {
                self.set(range, Content::Allocated, uses);
            }
        }
    }

    /// Returns where memory is allocated, in order.
    pub(super) fn allocated(&self) -> impl Iterator<Item = AddressRange> + '_ {
        let allocated = self.pieces.iter().filter(|piece| piece.content == Content::Allocated);
        allocated.map(|piece| piece.range)
    }

    fn check_part(&self, part: AddressRange) {
        let found = self.allocations.range(..=part.begin).next_back();
        let has_it = found.is_some_and(|(begin, length)| part.end() <= begin + length);
        assert!(has_it, "granule {} is no part of an allocation of an arena", part.begin);
    }

    /// The contents of a range, each with its uses.
    fn contents(&self, range: AddressRange) -> Vec<(AddressRange, Content, Vec<StreamUse>)> {
        let piece = |it: &Piece| (it.range.within(range), it.content, it.uses.clone());
        overlapped(&self.pieces, range).map(piece).collect()
    }

    fn reserve(&mut self) {
        let range = AddressRange { begin: self.end(), length: self.reservation };
        self.pieces.push(Piece { range, content: Content::Hole, uses: Vec::new() });
    }

    fn set(&mut self, range: AddressRange, content: Content, uses: Vec<StreamUse>) {
        if range.length == 0 {
            return;
        }
        let (first, end) = (self.split(range.begin), self.split(range.end()));
        self.pieces.splice(first..end, [Piece { range, content, uses }]);
        self.join(first + 1);
        self.join(first);
    }

    /// Makes a piece begin at an address, and returns its index.
    fn split(&mut self, address: u32) -> usize {
        let at = self.pieces.partition_point(|piece| piece.range.end() <= address);
        match self.pieces.get_mut(at) {
            Some(piece) if piece.range.begin < address => {
                let mut rest = piece.clone();
                piece.range.length = address - piece.range.begin;
                rest.range.begin = address;
                rest.range.length -= piece.range.length;
                self.pieces.insert(at + 1, rest);
                at + 1
            }
            _ => at,
        }
    }

    /// Joins a piece to the one before it, if they are alike.
    fn join(&mut self, at: usize) {
        if at > 0 && at < self.pieces.len() {
            let (before, from) = self.pieces.split_at_mut(at);
            if before[at - 1].joins(&from[0], self.reservation) {
                self.pieces.remove(at);
            }
        }
    }
}

impl Piece {
    fn free(&self) -> u32 {
        if self.content == Content::Free { self.range.length } else { 0 }
    }

    /// Takes the next piece in, if both are alike. Returns whether they are.
    fn joins(&mut self, next: &Self, reservation: u32) -> bool {
        let is_alike = self.content != Content::Allocated
            && (self.content, &self.uses) == (next.content, &next.uses)
            && !next.range.begin.is_multiple_of(reservation);
        if is_alike {
            self.range.length += next.range.length;
        }
        is_alike
    }
}

/// Returns a place in a gap between two allocations, with its cost. `free`: the gap's free
/// granules.
fn place_at(range: AddressRange, gap: &[Piece], free: u32, stream: StreamNumber) -> FreePlace {
    let (mut missing, mut last_wait) = (0, None);
    for piece in overlapped(gap, range) {
        if piece.content == Content::Hole {
            missing += piece.range.within(range).length;
        }
        let others = piece.uses.iter().filter(|one| one.stream != stream);
        last_wait = others.map(|one| one.number).max().max(last_wait);
    }
    FreePlace { range, missing, last_wait, gap: free }
}

/// The pieces of which a range has parts.
fn overlapped(pieces: &[Piece], range: AddressRange) -> impl Iterator<Item = &Piece> {
    let first = pieces.partition_point(|piece| piece.range.end() <= range.begin);
    pieces[first..].iter().take_while(move |piece| piece.range.begin < range.end())
}
