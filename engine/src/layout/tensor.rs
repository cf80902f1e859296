//! Tensors of the log: an id, a lifetime class, and runs of blocks.

use std::fmt;
use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher24};

use super::TensorEntry;

/// The longest name a durable tensor may carry, in bytes of UTF-8.
pub const NAME_BYTES_MAX: usize = 1024;

/// Id of a tensor in the log: 128 bits, chosen by the caller or made from a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TensorId(pub u128);

impl TensorId {
    /// The id that stands for `name`, the same on every machine and in every version: `SipHash` 2-4
    /// with 128 bits of output and a key of zeroes.
    ///
    /// Two names may in principle share an id; durable tensors store their name, and a put whose
    /// name differs from the stored one is refused.
    pub fn from_name(name: &str) -> Self {
        let mut hasher = SipHasher24::new();
        hasher.write(name.as_bytes());
        Self(hasher.finish128().as_u128())
    }
}

impl fmt::Display for TensorId {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "tensor {:032x}", self.0)
    }
}

/// Key of a tensor: an id, and the name that it was made from if there is one. Errors have it, and
/// say the name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorKey {
    /// The id.
    pub id: TensorId,
    /// The name. It is stored with durable tensors, so that two names with one id are noticed.
    pub name: Option<Box<str>>,
}

impl TensorKey {
    /// Adds the name of the index's entry, where this key has none.
    #[must_use]
    pub fn or(self, entry: &TensorEntry) -> Self {
        if self.name.is_some() { self } else { entry.key() }
    }
}

impl From<TensorId> for TensorKey {
    fn from(id: TensorId) -> Self {
        Self { id, name: None }
    }
}

impl From<&str> for TensorKey {
    fn from(name: &str) -> Self {
        Self { id: TensorId::from_name(name), name: Some(name.into()) }
    }
}

/// Writes the name, or the id where the tensor has no name.
impl fmt::Display for TensorKey {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(out, "{name:?}"),
            None => self.id.fmt(out),
        }
    }
}

/// Probable lifetime of a tensor. Each class has its own lane, because what dies together should
/// share segments: then a segment is freed whole and nothing is ever copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum LifetimeClass {
    /// Gone within the step: activations.
    Transient = 0,
    /// Rewritten every step: gradients.
    Step = 1,
    /// Lives as long as the run: weights, optimizer state.
    Persistent = 2,
}

impl LifetimeClass {
    /// Every class, in the order of their numbers on the media.
    pub const ALL: [Self; 3] = [Self::Transient, Self::Step, Self::Persistent];

    /// The next longer class: that of what has outlived the others of its own.
    #[must_use]
    pub fn longer(self) -> Self {
        Self::ALL.get(self as usize + 1).copied().unwrap_or(self)
    }

    /// The class with this number on the media, if there is one.
    pub fn from_media(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number)).copied()
    }
}

/// Number of copies of a tensor's bytes, each on a device of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Copies {
    /// One: what is lost on a device is lost.
    #[default]
    One = 1,
    /// Two, on two devices.
    Two = 2,
}

impl Copies {
    /// Every number, in order.
    pub const ALL: [Self; 2] = [Self::One, Self::Two];

    /// The number as a number.
    pub const fn count(self) -> u32 {
        self as u32
    }
}

/// Writes the digit.
impl fmt::Display for Copies {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.count().fmt(out)
    }
}

/// A run of blocks inside one segment of the log, which lies striped over all devices.
///
/// Blocks count through the segment's stripe units in order: unit 0 is on the first device, unit 1
/// on the second, and so on around. Where a segment has two copies of everything, two blocks of it
/// are one block of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Run {
    /// The segment, counted over the whole pool.
    pub segment: u32,
    /// The first block within the segment; a multiple of the copies.
    pub block: u32,
    /// Number of blocks, those of all copies; a multiple of the copies.
    pub blocks: u32,
    /// Number of copies, the same of all runs in a segment.
    pub copies: Copies,
    /// Number of the set of devices over which the segment is striped, the same of all runs in it.
    pub set: u8,
}

impl Run {
    /// A run without a second copy.
    pub const fn single(segment: u32, block: u32, blocks: u32) -> Self {
        Self { segment, block, blocks, copies: Copies::One, set: 0 }
    }

    /// One past the last block within the segment.
    pub const fn end(&self) -> u64 {
        self.block as u64 + self.blocks as u64
    }

    /// Returns the number of blocks of a tensor that lie in the run.
    pub const fn tensor_blocks(&self) -> u64 {
        (self.blocks / self.copies.count()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_give_the_same_id_for_ever() {
        // A constant of the format: durable tensors of older pools are found by it.
        let id = TensorId::from_name("layer.0.weight");
        assert_eq!(id.0, 177_062_370_162_191_877_264_695_767_073_021_731_703);
        assert_ne!(id, TensorId::from_name("layer.1.weight"));
    }

    #[test]
    fn unknown_classes_are_not_guessed() {
        assert_eq!(LifetimeClass::from_media(2), Some(LifetimeClass::Persistent));
        assert_eq!(LifetimeClass::from_media(3), None);
    }
}
