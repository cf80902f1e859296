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
    /// Hours for which it was powered.
    pub power_on_hours: u64,
    /// True if the device asks for attention: spare blocks, temperature, reliability.
    pub is_critical: bool,
    /// Statistics of its reclaim units, where it places data by handles (FDP).
    pub fdp: Option<FdpStatistics>,
}

impl Endurance {
    /// Returns the days until its rated life is used up, if it is written as it was all its life;
    /// `None` where too little of it is used to say so.
    pub fn days_left(&self) -> Option<u64> {
        let used = u64::from(self.used_percent);
        let days = self.power_on_hours.checked_div(24)?;
        let left = 100_u64.saturating_sub(used);
        days.saturating_mul(left).checked_div(used)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_left_follow_from_what_was_used_until_now() {
        let device = |used_percent, power_on_hours| Endurance {
            written: ByteCount(0),
            used_percent,
            spare_percent: 100,
            media_errors: 0,
            power_on_hours,
            is_critical: false,
            fdp: None,
        };
        assert_eq!(device(25, 240).days_left(), Some(30));
        assert_eq!(device(0, 240).days_left(), None, "too early to say");
        assert_eq!(device(130, 240).days_left(), Some(0));
    }
}
