//! The quantities of the engine as types, so that a length is never taken for an address.

use std::fmt;

/// A number of bytes: a length, a capacity, or an offset within a tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(pub u64);

impl ByteCount {
    /// No bytes.
    pub const ZERO: Self = Self(0);

    /// `count` times 1024 bytes.
    pub const fn kib(count: u64) -> Self {
        Self(count << 10)
    }

    /// `count` times 1024² bytes.
    pub const fn mib(count: u64) -> Self {
        Self(count << 20)
    }

    /// `count` times 1024³ bytes.
    pub const fn gib(count: u64) -> Self {
        Self(count << 30)
    }

    /// The smallest multiple of `unit` (a power of two) that holds this many bytes.
    #[must_use]
    pub const fn round_up(self, unit: Self) -> Self {
        Self((self.0 + unit.0 - 1) & !(unit.0 - 1))
    }
}

impl fmt::Display for ByteCount {
    /// Binary units as `ls -h` and fio print them: `96 B`, `1.5 KiB`, `20 GiB`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 6] = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        if self.0 < 1024 {
            return write!(out, "{} B", self.0);
        }
        let exponent = (self.0.ilog2() / 10) as usize;
        let hundredths = (u128::from(self.0) * 100) >> (10 * exponent);
        let (whole, rest) = (hundredths / 100, hundredths % 100);
        match rest {
            0 => write!(out, "{whole} {}", UNITS[exponent - 1]),
            _ if rest.is_multiple_of(10) => {
                write!(out, "{whole}.{} {}", rest / 10, UNITS[exponent - 1])
            }
            _ => write!(out, "{whole}.{rest:02} {}", UNITS[exponent - 1]),
        }
    }
}

/// A logical block address: counts the device's own blocks, never bytes (NVM Command Set, 3.2).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lba(pub u64);

impl fmt::Display for Lba {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "LBA {}", self.0)
    }
}

/// A device's place in its pool, 0 to 63.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeviceIndex(pub u8);

impl fmt::Display for DeviceIndex {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "device {}", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_counts_print_in_binary_units() {
        assert_eq!(ByteCount(0).to_string(), "0 B");
        assert_eq!(ByteCount(1023).to_string(), "1023 B");
        assert_eq!(ByteCount::kib(1).to_string(), "1 KiB");
        assert_eq!(ByteCount(1536).to_string(), "1.5 KiB");
        assert_eq!(ByteCount::gib(20).to_string(), "20 GiB");
        assert_eq!(ByteCount(u64::MAX).to_string(), "15.99 EiB");
    }

    #[test]
    fn rounding_up_keeps_multiples() {
        assert_eq!(ByteCount(0).round_up(ByteCount::kib(4)), ByteCount(0));
        assert_eq!(ByteCount(1).round_up(ByteCount::kib(4)), ByteCount::kib(4));
        assert_eq!(ByteCount::kib(4).round_up(ByteCount::kib(4)), ByteCount::kib(4));
    }
}
