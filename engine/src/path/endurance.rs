//! What devices say of their own wear.

use crate::units::ByteCount;

/// What a device has counted itself, over its whole life and by whomever it was used.
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
    /// What it says of its reclaim units, where it places data by handles (FDP).
    pub fdp: Option<FdpStatistics>,
}

/// What an endurance group with Flexible Data Placement has counted.
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
    /// What may still be written before the handle goes on to another reclaim unit.
    pub remaining: ByteCount,
}
