//! The quantities of the engine as types, so that a length is never taken for an address.

use std::fmt;
use std::time::{Duration, Instant};

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

    /// Returns the time that this many bytes take at a rate in bytes per second; zero at a rate of
    /// zero, which stands for no limit.
    pub fn time_at(self, rate: Self) -> Duration {
        let nanoseconds = (u128::from(self.0) * 1_000_000_000).checked_div(rate.0.into());
        Duration::from_nanos(nanoseconds.unwrap_or(0) as u64)
    }

    /// Returns how long to wait until this many bytes have been moved since then at no more than
    /// that rate.
    pub fn time_left(self, rate: Self, since: Instant) -> Duration {
        self.time_at(rate).saturating_sub(since.elapsed())
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

/// Some of a pool's devices.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceSet(u64);

impl DeviceSet {
    /// Returns whether this device is one of them.
    pub const fn contains(self, device: DeviceIndex) -> bool {
        self.0 & (1 << device.0) != 0
    }

    /// The devices that are in this set, in the other, or in both.
    #[must_use]
    pub const fn union(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// The devices that are in both sets.
    #[must_use]
    pub const fn intersection(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// The devices of this set that are not in the other.
    #[must_use]
    pub const fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether no device is in the set.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Returns the number of devices.
    pub const fn len(self) -> usize {
        self.0.count_ones() as usize
    }

    /// Returns the set as bits, of which the lowest is device 0's.
    pub const fn bits(self) -> u64 {
        self.0
    }

    /// Makes the set that these bits are, of which the lowest is device 0's.
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The devices, in order.
    pub fn iter(self) -> impl Iterator<Item = DeviceIndex> {
        (0..64).map(DeviceIndex).filter(move |device| self.contains(*device))
    }
}

impl FromIterator<DeviceIndex> for DeviceSet {
    fn from_iter<I: IntoIterator<Item = DeviceIndex>>(devices: I) -> Self {
        Self(devices.into_iter().fold(0, |bits, device| bits | 1 << device.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_of_devices_has_what_was_put_in_and_no_more() {
        let set = |devices: &[u8]| devices.iter().copied().map(DeviceIndex).collect::<DeviceSet>();
        assert!(set(&[0, 63]).iter().eq([DeviceIndex(0), DeviceIndex(63)]));
        assert!(!set(&[0, 63]).contains(DeviceIndex(1)));
        assert_eq!(set(&[5, 1]).union(set(&[1, 7])), set(&[1, 5, 7]));
        assert_eq!(set(&[5, 1]).intersection(set(&[1, 7])), set(&[1]));
        assert_eq!(set(&[5, 1]).without(set(&[1, 7])), set(&[5]));
        assert_eq!(set(&[]), DeviceSet::default());
        assert!(set(&[]).is_empty() && !set(&[0]).is_empty());
        assert_eq!((set(&[0, 5, 63]).len(), set(&[0, 5]).bits()), (3, 0b10_0001));
        assert_eq!(DeviceSet::from_bits(set(&[0, 63]).bits()), set(&[0, 63]));
    }

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
