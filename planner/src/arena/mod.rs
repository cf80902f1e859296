//! Memory of a GPU as one arena: where an allocation lies, what it waits for, and what is remapped
//! for it.
//!
//! There are addresses for twice the memory. An allocation is one range of them, in whole granules.
//! Memory that was given back stays mapped where it is, and carries its last use in each stream:
//! the next one to have it waits there for those of other streams, and for nothing else. Where no
//! free range is long enough, free granules from elsewhere are mapped next to each other. So what
//! is free is never in the wrong place, and the driver is asked for no memory while a step runs.
//!
//! It decides, and does nothing: whoever asks makes streams wait and maps memory. The simulator
//! asks the same code.

mod space;
#[cfg(test)]
mod tests;

use crate::units::Bytes;
use space::{AddressRange, AddressSpace, FreePlace, PartMemory};

/// The unit in which a GPU maps memory.
pub const GRANULE: Bytes = Bytes(2 << 20);

/// Size from which an allocation is the arena's: what is smaller would be rounded up by too much,
/// and stays with the framework's allocator.
pub const ALLOCATION_MIN: Bytes = Bytes(1 << 20);

/// The most memory of an arena, 128 TiB: no GPU has as much, and addresses cannot overflow.
const MEMORY_MAX: Granules = Granules(1 << 26);

/// A number of granules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Granules(pub u32);

impl Granules {
    /// Returns the least number of granules that hold these bytes, or as many as can be counted.
    pub fn holding(bytes: Bytes) -> Self {
        Self(u32::try_from(bytes.0.div_ceil(GRANULE.0)).unwrap_or(u32::MAX))
    }

    /// Returns the number of their bytes.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0 as u64 * GRANULE.0)
    }
}

/// Address in an arena: the number of granules before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ArenaAddress(pub u32);

/// A range of addresses in an arena.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ArenaRange {
    /// The first one.
    pub begin: ArenaAddress,
    /// Number of granules.
    pub length: Granules,
}

impl From<ArenaRange> for AddressRange {
    fn from(range: ArenaRange) -> Self {
        Self { begin: range.begin.0, length: range.length.0 }
    }
}

/// Number of a stream of the GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StreamNumber(pub u32);

/// Use of memory in a stream: work that was put there. Of two, that with the higher number was put
/// into its stream later, whichever streams they are in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamUse {
    /// Stream of the work.
    pub stream: StreamNumber,
    /// Number of the work.
    pub number: u64,
}

/// Granules that are to be unmapped at one address, and mapped at another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remap {
    /// Address at which they are.
    pub from: ArenaAddress,
    /// Address that they get, where nothing is mapped.
    pub to: ArenaAddress,
    /// Number of granules.
    pub length: Granules,
}

/// Placement of an allocation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArenaPlacement {
    /// Address of its first byte.
    pub address: ArenaAddress,
    /// Uses for which the stream that asked waits before it writes the memory.
    pub waits: Vec<StreamUse>,
    /// Uses that must have happened before the first of `remaps`: nothing in a stream orders these.
    pub host_waits: Vec<StreamUse>,
    /// Granules to be mapped elsewhere, in this order.
    pub remaps: Vec<Remap>,
}

/// Refusal of an allocation: there is less free memory than was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} are asked for, and {} of the arena are free", asked.bytes(), free.bytes())]
pub struct ArenaFull {
    /// Granules that were asked for.
    pub asked: Granules,
    /// Granules that are free.
    pub free: Granules,
}

/// Arena of a GPU's memory.
#[derive(Clone, Debug)]
pub struct GpuArena {
    space: AddressSpace,
    free: Granules,
}

impl GpuArena {
    /// Makes an arena of this memory, which is mapped from the first address on.
    pub fn new(memory: Granules) -> Self {
        let memory = memory.min(MEMORY_MAX);
        Self { space: AddressSpace::new(memory), free: memory }
    }

    /// Returns the number of free granules.
    pub const fn free(&self) -> Granules {
        self.free
    }

    /// Returns the number of granules that have addresses. It grows by as much as an arena begins
    /// with where blocks lie so far apart that an allocation fits nowhere between them.
    pub fn addresses(&self) -> Granules {
        Granules(self.space.end())
    }

    /// Places an allocation for a stream. `happened`: whether a use has.
    pub fn take(
        &mut self,
        asked: Granules,
        stream: StreamNumber,
        happened: impl Fn(StreamUse) -> bool,
    ) -> Result<ArenaPlacement, ArenaFull> {
        let asked = asked.max(Granules(1));
        if asked > self.free {
            return Err(ArenaFull { asked, free: self.free });
        }
        self.space.forget(&happened);
        let FreePlace { range, missing, .. } = self.space.best_place(asked, stream);
        self.free.0 -= asked.0;
        let placement = self.place(range, missing);
        self.space.give_away(range, placement.uses.clone());
        Ok(placement.for_stream(stream))
    }

    /// Takes the memory of an allocation back, which these used last, but for parts that have none.
    /// Uses for which it was to wait count as well: it may never have been written. Returns how
    /// much that is.
    ///
    /// # Panics
    /// If no allocation begins there: the memory would be somebody else's.
    pub fn give(&mut self, address: ArenaAddress, uses: &[StreamUse]) -> Granules {
        let returned = self.space.take_back(address.0, uses);
        self.free.0 += returned;
        Granules(returned)
    }

    /// Takes the memory of a part of an allocation back, which these used last. Its addresses stay
    /// the allocation's, and its memory stays mapped there until it is wanted elsewhere. Returns
    /// how much that is: none where it had none.
    ///
    /// # Panics
    /// If no allocation has the part.
    pub fn give_part(&mut self, part: ArenaRange, uses: &[StreamUse]) -> Granules {
        let returned = self.space.take_part_back(part.into(), uses);
        self.free.0 += returned;
        Granules(returned)
    }

    /// Gives a part of an allocation memory again, for a stream, as far as it has none.
    ///
    /// # Panics
    /// If no allocation has the part.
    pub fn take_part(
        &mut self,
        part: ArenaRange,
        stream: StreamNumber,
        happened: impl Fn(StreamUse) -> bool,
    ) -> Result<ArenaPlacement, ArenaFull> {
        let range = part.into();
        self.space.forget(&happened);
        let PartMemory { asked, missing } = self.space.part(range);
        if asked > self.free.0 {
            return Err(ArenaFull { asked: Granules(asked), free: self.free });
        }
        self.free.0 -= asked;
        let placement = self.place(range, missing);
        self.space.give_part_away(range);
        Ok(placement.for_stream(stream))
    }

    /// Has as much more memory as a part of an allocation lacks and the arena has not free. Returns
    /// how much that is. The part cannot get memory elsewhere, as an allocation can.
    ///
    /// # Panics
    /// If no allocation has the part.
    pub fn grow_for_part(&mut self, part: ArenaRange) -> Granules {
        let PartMemory { asked, .. } = self.space.part(part.into());
        let grown = asked.saturating_sub(self.free.0);
        self.space.grow_part(part.into(), grown);
        self.free.0 += grown;
        Granules(grown)
    }

    /// Returns the ranges of memory that is allocated, in order.
    pub fn allocated(&self) -> impl Iterator<Item = ArenaRange> + '_ {
        self.space.allocated().map(|AddressRange { begin, length }| ArenaRange {
            begin: ArenaAddress(begin),
            length: Granules(length),
        })
    }

    /// Maps what is missing of a range, which is free or a part without memory.
    fn place(&mut self, range: AddressRange, missing: u32) -> UnorderedPlacement {
        let (mut host_waits, mut remaps) = (Vec::new(), Vec::new());
        if missing > 0 {
            let moved = self.space.free_elsewhere(range, missing);
            for part in &moved {
                add_uses(&mut host_waits, &self.space.uses_in(*part));
                self.space.unmap(*part);
            }
            remaps = paired(&moved, &self.space.unmapped_in(range));
        }
        let uses = self.space.free_uses_in(range);
        UnorderedPlacement { address: ArenaAddress(range.begin), uses, host_waits, remaps }
    }
}

/// A placement whose stream is not known.
struct UnorderedPlacement {
    address: ArenaAddress,
    /// Last uses of the memory.
    uses: Vec<StreamUse>,
    host_waits: Vec<StreamUse>,
    remaps: Vec<Remap>,
}

impl UnorderedPlacement {
    /// The placement for this stream, whose own work is in order.
    fn for_stream(self, stream: StreamNumber) -> ArenaPlacement {
        let Self { address, uses, host_waits, remaps } = self;
        let waits = uses.into_iter().filter(|one| one.stream != stream).collect();
        ArenaPlacement { address, waits, host_waits, remaps }
    }
}

/// Adds uses to others, of which the last in each stream stays.
fn add_uses(uses: &mut Vec<StreamUse>, others: &[StreamUse]) {
    for other in others {
        match uses.iter_mut().find(|one| one.stream == other.stream) {
            Some(one) => one.number = one.number.max(other.number),
            None => uses.push(*other),
        }
    }
}

/// Pairs what is unmapped with where it goes; both are as long together.
fn paired(moved: &[AddressRange], holes: &[AddressRange]) -> Vec<Remap> {
    let mut remaps = Vec::new();
    let (mut sources, mut targets) = (moved.iter().copied(), holes.iter().copied());
    let (mut source, mut target) = (sources.next(), targets.next());
    while let (Some(from), Some(to)) = (source, target) {
        let length = from.length.min(to.length);
        remaps.push(Remap {
            from: ArenaAddress(from.begin),
            to: ArenaAddress(to.begin),
            length: Granules(length),
        });
        source = from.without_first(length).or_else(|| sources.next());
        target = to.without_first(length).or_else(|| targets.next());
    }
    remaps
}
