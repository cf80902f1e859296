//! Wear of devices, as they report it.

use crate::units::ByteCount;

/// Counters of a device over its whole life and by whomever it was used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Endurance {
    /// Bytes that hosts have written to it.
    pub written: ByteCount,
    /// Percent of its rated life that is used; may exceed 100.
    pub used_percent: u8,
    /// Spare blocks left, in percent.
    pub spare_percent: u8,
    /// Times that it could not give back what was written.
    pub media_errors: u64,
    /// Statistics of its reclaim units, where it places data by handles (FDP).
    pub fdp: Option<FdpStatistics>,
}

/// Statistics of an endurance group with Flexible Data Placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FdpStatistics {
    /// Bytes that hosts have written.
    pub host_written: ByteCount,
    /// Bytes that went to the media, those included that the device has moved by itself.
    pub media_written: ByteCount,
    /// Bytes of reclaim units that were erased.
    pub media_erased: ByteCount,
    /// The namespace's placement handles, in the order of its list.
    pub handles: Vec<ReclaimUnitHandle>,
}

/// A placement handle, and the reclaim unit that it writes now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReclaimUnitHandle {
    /// The placement identifier that writes carry.
    pub placement: u16,
    /// Bytes that can be written before the handle continues in another reclaim unit.
    pub remaining: ByteCount,
}
