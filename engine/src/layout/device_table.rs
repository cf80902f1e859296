//! The device table: which devices a pool has had, and over which of them its segments are striped.
//!
//! A pool gets devices and gives them up. A segment stays where it is meanwhile: each run says by
//! the number of a set which devices its segment is striped over. New segments are striped over the
//! current set. A place that a device has had is never given to another one.
//!
//! Where the devices are not equally fast, some new segments are striped over the faster ones
//! alone, so that each device gets as much as its rate asks for.

use super::{DEVICES_MAX, GeometryError};
use crate::units::{ByteCount, DeviceIndex, DeviceSet};

/// Sets of devices over which segments of one pool may be striped at a time.
pub const DEVICE_SETS_MAX: usize = 8;

/// Number of devices that carry the metadata, where there are as many.
const METADATA_DEVICES: usize = 2;

/// Limit of the sets over which new segments are striped. The other numbers are for devices that
/// come and go.
const WEIGHTED_SETS_MAX: usize = 4;

/// Numbers of sets that are left free when faster devices get some.
const NUMBERS_LEFT: usize = 3;

/// Devices are equally fast as long as the fastest has less than this many thirds of the slowest's
/// rate.
const EQUAL_THIRDS: u32 = 4;

/// The rates of a pool's devices in MiB a second, by their places; zero where none was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceRates(pub [u16; DEVICES_MAX]);

impl DeviceRates {
    /// The rates of devices that were never measured.
    pub const UNKNOWN: Self = Self([0; DEVICES_MAX]);

    /// Makes the rates of devices in the order of their places, in bytes a second.
    pub fn of(rates: impl IntoIterator<Item = ByteCount>) -> Self {
        let mut all = Self::UNKNOWN;
        for (place, rate) in all.0.iter_mut().zip(rates) {
            *place = u16::try_from(rate.0 >> 20).unwrap_or(u16::MAX).max(1);
        }
        all
    }

    /// Returns the rate of a device in MiB a second; zero if it was not measured.
    pub fn of_device(&self, device: DeviceIndex) -> u32 {
        self.0.get(usize::from(device.0)).copied().unwrap_or_default().into()
    }

    /// Returns the devices of a set that have less than two thirds of the rate of most others, each
    /// with that, in MiB a second. One that was not measured is not among them.
    pub fn slow(&self, set: DeviceSet) -> Vec<(DeviceIndex, u32)> {
        let is_slow = |device: &DeviceIndex| {
            let others = set.iter().filter(|other| other != device);
            let mut others: Vec<u32> = others.map(|it| self.of_device(it)).collect();
            others.sort_unstable();
            let usual = others.get((others.len().max(1) - 1) / 2).copied().unwrap_or_default();
            let rate = self.of_device(*device);
            let usual = (rate > 0 && 3 * rate < 2 * usual).then_some(usual);
            usual.map(|usual| (*device, usual))
        };
        set.iter().filter_map(|device| is_slow(&device)).collect()
    }

    /// Returns the sets over which segments are striped, the whole one first, each with its part of
    /// all segments: every device gets segments as its rate asks for.
    ///
    /// Of devices *a*, *b* with rates 1, 3 one segment of three is striped over both, and two over
    /// *b*.
    fn weighted(&self, set: DeviceSet) -> Vec<(DeviceSet, u32)> {
        let mut devices: Vec<DeviceIndex> = set.iter().collect();
        devices.sort_by_key(|device| self.of_device(*device));
        // Each with the rate of its slowest device.
        let mut sets: Vec<(DeviceSet, u32)> = Vec::new();
        for (place, device) in devices.iter().enumerate() {
            let rate = self.of_device(*device);
            let is_faster = sets.last().is_none_or(|last| 3 * rate >= EQUAL_THIRDS * last.1.max(1));
            if is_faster && sets.len() < WEIGHTED_SETS_MAX {
                sets.push((devices[place..].iter().copied().collect(), rate));
            }
        }
        if sets.first().is_none_or(|slowest| slowest.1 == 0) {
            return vec![(set, 1)];
        }
        for place in (1..sets.len()).rev() {
            sets[place].1 -= sets[place - 1].1;
        }
        sets
    }
}

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
    /// Rates of the devices, by which new segments are shared out.
    pub rates: DeviceRates,
}

impl DeviceTable {
    /// Makes the table of a pool that has the devices with which it was formatted.
    pub fn of_all(devices: u32) -> Self {
        let all: DeviceSet = (0..devices as u8).map(DeviceIndex).collect();
        let mut sets = [DeviceSet::default(); DEVICE_SETS_MAX];
        sets[0] = all;
        let (removed, rates) = (DeviceSet::default(), DeviceRates::UNKNOWN);
        Self { sets, current: 0, metadata: carriers(all), removed, rates }
    }

    /// Returns this table with other rates of the devices.
    #[must_use]
    pub fn with_rates(self, rates: DeviceRates) -> Self {
        Self { rates, ..self }.with_faster_sets()
    }

    /// Returns this table with numbers for the sets of faster devices, as long as there are
    /// numbers.
    #[must_use]
    fn with_faster_sets(mut self) -> Self {
        for (set, _) in self.rates.weighted(self.current_set()) {
            let unused: Vec<usize> =
                (0..DEVICE_SETS_MAX).filter(|it| self.sets[*it].is_empty()).collect();
            if !self.sets.contains(&set) && unused.len() > NUMBERS_LEFT {
                self.sets[unused[0]] = set;
            }
        }
        self
    }

    /// Returns the numbers of the sets over which new segments are striped, the current one first,
    /// each with its part of them. Where faster devices have no number, the others share their
    /// part.
    pub fn weighted_sets(&self) -> Vec<(u8, u32)> {
        let number = |set: DeviceSet| self.sets.iter().position(|it| *it == set);
        let weighted = self.rates.weighted(self.current_set()).into_iter();
        let rest = weighted.filter_map(|(set, part)| Some((number(set)? as u8, part)));
        rest.collect()
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
    /// is striped over any more: all but the current one, those that `is_used` names, and those of
    /// faster devices.
    #[must_use]
    pub fn settled(self, is_used: impl Fn(u8) -> bool) -> Self {
        let mut next = Self { metadata: carriers(self.current_set()), ..self };
        for number in (0..DEVICE_SETS_MAX as u8).filter(|it| *it != self.current && !is_used(*it)) {
            next.sets[usize::from(number)] = DeviceSet::default();
        }
        next.with_faster_sets()
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

    fn rates(of: &[u64]) -> DeviceRates {
        DeviceRates::of(of.iter().map(|rate| ByteCount::mib(*rate)))
    }

    #[test]
    fn each_device_gets_segments_as_its_rate_asks_for() {
        for measured in [&[300, 100][..], &[100, 300], &[500, 480, 2000, 100], &[7, 5, 3, 2, 1]] {
            let table = DeviceTable::of_all(measured.len() as u32).with_rates(rates(measured));
            let sets = table.weighted_sets();
            assert_eq!(sets[0].0, table.current);
            let part = |device: usize| -> u32 {
                let has_it = |it: &&(u8, u32)| table.set(it.0).contains(DeviceIndex(device as u8));
                sets.iter().filter(has_it).map(|it| it.1).sum()
            };
            for (device, rate) in measured.iter().enumerate() {
                // Devices of nearly the same rate count as equal.
                let (part, rate) = (u64::from(part(device)), *rate);
                assert!(part <= rate && 4 * part > 2 * rate, "{measured:?}: {sets:?}");
            }
            assert_eq!(table.check(measured.len() as u32), Ok(()));
        }
    }

    #[test]
    fn devices_that_are_equal_or_were_not_measured_have_one_set() {
        for measured in [&[100, 120][..], &[0, 0], &[300, 0]] {
            let mut rates = rates(measured);
            for (rate, of) in rates.0.iter_mut().zip(measured) {
                *rate *= u16::from(*of > 0);
            }
            let table = DeviceTable::of_all(2).with_rates(rates);
            assert_eq!(table.weighted_sets().len(), 1, "{measured:?}");
            assert_eq!(table.sets, DeviceTable::of_all(2).sets);
        }
    }

    #[test]
    fn faster_devices_keep_their_set_when_a_device_goes() {
        let table = DeviceTable::of_all(3).with_rates(rates(&[100, 100, 300]));
        assert_eq!(table.weighted_sets(), [(0, 100), (1, 200)]);
        // Device 0 is emptied: nothing new is striped over a set with it.
        let going = table.striped_over(set(&[1, 2])).unwrap().with_carriers();
        assert_eq!(going.weighted_sets(), [(2, 100), (1, 200)]);
        let gone = going.settled(|_| false);
        assert_eq!((gone.weighted_sets(), gone.used()), (vec![(2, 100), (0, 200)], set(&[1, 2])));
        // Where numbers are short, all go over all devices.
        let mut full = table;
        full.sets = std::array::from_fn(|at| if at == 0 { set(&[0, 1, 2]) } else { set(&[0, 1]) });
        assert_eq!(full.with_rates(table.rates).weighted_sets(), [(0, 100)]);
    }

    #[test]
    fn a_device_that_is_slow_alone_is_named() {
        let all = set(&[0, 1, 2]);
        assert_eq!(rates(&[300, 310, 100]).slow(all), [(DeviceIndex(2), 300)]);
        assert_eq!(rates(&[300, 310, 250]).slow(all), []);
        assert_eq!(rates(&[300, 100]).slow(set(&[0, 1])), [(DeviceIndex(1), 300)]);
        // Of two that are slow and one that is fast, none is slow alone.
        assert_eq!(rates(&[100, 100, 300]).slow(all), []);
        assert_eq!(DeviceRates::UNKNOWN.slow(all), []);
    }
}
