//! The device table: which devices a pool has had, and over which of them its segments are striped.
//!
//! A pool gets devices and gives them up. A segment stays where it is meanwhile: each run says by
//! the number of a set which devices its segment is striped over. New segments are striped over the
//! current set. A place that a device has had is never given to another one.

use super::GeometryError;
use crate::units::{DeviceIndex, DeviceSet};

/// Sets of devices over which segments of one pool may be striped at a time.
pub const DEVICE_SETS_MAX: usize = 8;

/// Number of devices that carry the metadata, where there are as many.
const METADATA_DEVICES: usize = 2;

/// The devices of a pool, and what each is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceTable {
    /// Sets by their numbers, in which runs have them. An empty one is unused.
    pub sets: [DeviceSet; DEVICE_SETS_MAX],
    /// Number of the set over which new segments are striped.
    pub current: u8,
    /// Devices that carry the metadata.
    pub metadata: DeviceSet,
    /// Places whose devices were removed.
    pub removed: DeviceSet,
}

impl DeviceTable {
    /// Makes the table of a pool that has the devices with which it was formatted.
    pub fn of_all(devices: u32) -> Self {
        let all: DeviceSet = (0..devices as u8).map(DeviceIndex).collect();
        let mut sets = [DeviceSet::default(); DEVICE_SETS_MAX];
        sets[0] = all;
        Self { sets, current: 0, metadata: carriers(all), removed: DeviceSet::default() }
    }

    /// Returns the devices of a set; none if there is no such set.
    pub fn set(&self, number: u8) -> DeviceSet {
        self.sets.get(usize::from(number)).copied().unwrap_or_default()
    }

    /// Returns the devices over which new segments are striped.
    pub fn current_set(&self) -> DeviceSet {
        self.set(self.current)
    }

    /// Returns the devices that have a part of the pool, or may have one.
    pub fn used(&self) -> DeviceSet {
        self.sets.iter().copied().fold(self.metadata, DeviceSet::union)
    }

    /// Returns this table with another current set; `None` if all numbers are taken.
    #[must_use]
    pub fn striped_over(&self, set: DeviceSet) -> Option<Self> {
        let number = |it: DeviceSet| self.sets.iter().position(|other| *other == it);
        let place = number(set).or_else(|| number(DeviceSet::default()))?;
        let mut next = *self;
        (next.sets[place], next.current) = (set, place as u8);
        Some(next)
    }

    /// Returns this table with the metadata also on the devices that carry it in the end.
    #[must_use]
    pub fn with_carriers(self) -> Self {
        Self { metadata: self.metadata.union(carriers(self.current_set())), ..self }
    }

    /// Returns this table with the metadata on these devices alone, and without sets that nothing
    /// is striped over any more: all but the current one and those that `is_used` names.
    #[must_use]
    pub fn settled(self, is_used: impl Fn(u8) -> bool) -> Self {
        let mut next = Self { metadata: carriers(self.current_set()), ..self };
        for number in (0..DEVICE_SETS_MAX as u8).filter(|it| *it != self.current && !is_used(*it)) {
            next.sets[usize::from(number)] = DeviceSet::default();
        }
        next
    }

    /// Checks that the table, which may come from a damaged device, fits a pool of that many
    /// places.
    ///
    /// # Errors
    /// The first contradiction.
    pub fn check(&self, devices: u32) -> Result<(), GeometryError> {
        let contradiction = |what| Err(GeometryError::Contradiction(what));
        let beyond = |set: DeviceSet| set.bits().checked_shr(devices).unwrap_or(0) != 0;
        if beyond(self.used().union(self.removed)) {
            return contradiction("a device that the pool does not have");
        }
        if !self.used().intersection(self.removed).is_empty() {
            return contradiction("segments on a device that was removed");
        }
        if self.current_set().is_empty() || self.metadata.is_empty() {
            return contradiction("no device for segments or for metadata");
        }
        Ok(())
    }
}

/// The devices of a set that carry the metadata.
fn carriers(set: DeviceSet) -> DeviceSet {
    set.iter().take(METADATA_DEVICES).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(devices: &[u8]) -> DeviceSet {
        devices.iter().copied().map(DeviceIndex).collect()
    }

    #[test]
    fn sets_get_numbers_and_give_them_back() {
        let all = DeviceTable::of_all(3);
        assert_eq!((all.current_set(), all.metadata), (set(&[0, 1, 2]), set(&[0, 1])));
        let less = all.striped_over(set(&[1, 2])).unwrap().with_carriers();
        assert_eq!((less.current, less.metadata), (1, set(&[0, 1, 2])));
        assert_eq!(less.striped_over(set(&[0, 1, 2])).unwrap().current, 0, "the same set");
        assert_eq!(less.check(3), Ok(()));
        let done = less.settled(|_| false);
        assert_eq!((done.used(), done.metadata), (set(&[1, 2]), set(&[1, 2])));
        let kept = less.settled(|number| number == 0);
        assert_eq!(kept.used(), set(&[0, 1, 2]));
        let removed = DeviceTable { removed: set(&[0]), ..done };
        assert_eq!(removed.check(3), Ok(()));
        assert!(DeviceTable { removed: set(&[0]), ..kept }.check(3).is_err());
        assert!(removed.check(2).is_err() && done.check(1).is_err());
        let mut full = all;
        full.sets = std::array::from_fn(|at| DeviceSet::from_bits(at as u64 + 1));
        assert_eq!(full.striped_over(set(&[6])), None);
    }

    #[test]
    fn one_device_carries_the_metadata_alone() {
        let one = DeviceTable::of_all(1);
        assert_eq!(one.metadata, set(&[0]));
        let two = one.striped_over(set(&[0, 1])).unwrap().with_carriers();
        assert_eq!(two.metadata, set(&[0, 1]));
    }
}
