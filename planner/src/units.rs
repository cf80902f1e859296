//! The quantities every decision is made in: whole bytes, whole nanoseconds, whole ops.

use serde::{Deserialize, Serialize};
use std::fmt;

/// A number of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bytes(pub u64);

/// A length of time.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Nanos(pub u64);

/// The place of an op in one training iteration, counted from 0.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct OpIndex(pub u32);

/// Bytes per second in one direction.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(transparent)]
pub struct Bandwidth(pub u64);

impl Bandwidth {
    /// The time `bytes` take, rounded up: a transfer is never promised earlier than it can end.
    pub fn time_for(self, bytes: Bytes) -> Nanos {
        let nanos = (u128::from(bytes.0) * 1_000_000_000).div_ceil(u128::from(self.0.max(1)));
        Nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

/// Bytes of a storage that lie together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ByteRange {
    /// The first of them, counted from the storage's beginning.
    pub begin: Bytes,
    /// Number of bytes.
    pub length: Bytes,
}

impl ByteRange {
    /// The first byte after them.
    pub const fn end(self) -> Bytes {
        Bytes(self.begin.0.saturating_add(self.length.0))
    }
}

impl fmt::Display for ByteRange {
    /// `2 to 64 MiB`. Parts begin at whole MiB; the last of a storage may end between two.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} to {} MiB", self.begin.0 >> 20, self.end().0.div_ceil(1 << 20))
    }
}

impl fmt::Display for Bytes {
    /// Binary units with one decimal: `96 B`, `1.5 KiB`, `20.0 GiB`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(out, "{} B", self.0);
        }
        let exponent = (self.0.ilog2() / 10) as usize;
        let tenths = (u128::from(self.0) * 10) >> (10 * exponent);
        write!(out, "{}.{} {}", tenths / 10, tenths % 10, UNITS[exponent - 1])
    }
}
