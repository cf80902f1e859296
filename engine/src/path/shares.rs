//! A bounded resource that a few devices share, so that none takes all of it: one that does not
//! answer keeps what it has.

use crate::units::DeviceIndex;

/// Shares of a resource among devices.
///
/// Half is divided among the devices, the rest is for whoever comes first. So one device alone
/// works with more than half of it. Where half does not go round, each device has one as long as
/// there are more.
#[derive(Debug)]
pub struct Shares {
    total: usize,
    free: usize,
    /// Held number by device; in the last place what work on no device holds.
    held: Vec<usize>,
    /// Number that each device can always have, where there is enough.
    share: usize,
    /// Number that work on no device can always have: one or nothing.
    share_of_none: usize,
    /// Number that is kept for those below their share.
    owed: usize,
}

impl Shares {
    /// Shares all of a resource among `devices` devices.
    pub fn new(total: usize, devices: usize) -> Self {
        Self::divided(total, devices, 0)
    }

    /// Divides `total` also for work on no device. One is kept for it.
    pub fn with_none(total: usize, devices: usize) -> Self {
        Self::divided(total, devices, 1)
    }

    fn divided(total: usize, devices: usize, share_of_none: usize) -> Self {
        let held = vec![0; devices + 1];
        let mut shares = Self { total, free: total, held, share: 0, share_of_none, owed: 0 };
        shares.divide();
        shares
    }

    /// Returns the total, in use or not.
    pub fn total(&self) -> usize {
        self.total
    }

    /// Returns the number that a device may take now.
    pub fn left_for(&self, device: DeviceIndex) -> usize {
        self.free.saturating_sub(self.owed - self.own_of(device))
    }

    /// Returns the part of a device's remainder that is kept for it.
    pub fn own_of(&self, device: DeviceIndex) -> usize {
        let place = self.place(device);
        self.share_of(place).saturating_sub(self.held[place])
    }

    /// A device takes one.
    pub fn take(&mut self, device: DeviceIndex) {
        self.owed -= usize::from(self.own_of(device) > 0);
        let place = self.place(device);
        self.free -= 1;
        self.held[place] += 1;
    }

    /// A device gives one back.
    pub fn release(&mut self, device: DeviceIndex) {
        self.free += 1;
        self.let_go(device);
    }

    /// Removes one that a device has and that never comes back.
    pub fn lose(&mut self, device: DeviceIndex) {
        self.total -= 1;
        self.let_go(device);
        self.divide();
    }

    fn let_go(&mut self, device: DeviceIndex) {
        let place = self.place(device);
        self.held[place] -= 1;
        self.owed += usize::from(self.own_of(device) > 0);
    }

    fn place(&self, device: DeviceIndex) -> usize {
        usize::from(device.0).min(self.held.len() - 1)
    }

    fn share_of(&self, place: usize) -> usize {
        if place + 1 < self.held.len() { self.share } else { self.share_of_none }
    }

    fn divide(&mut self) {
        let devices = self.held.len() - 1;
        let goes_round = usize::from(self.total > devices + self.share_of_none);
        self.share = self.total.checked_div(2 * devices).unwrap_or(0).max(goes_round);
        self.share_of_none = self.share_of_none.min(goes_round);
        let lacking = |(place, held): (usize, &usize)| self.share_of(place).saturating_sub(*held);
        self.owed = self.held.iter().enumerate().map(lacking).sum();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A device takes all that it may.
    fn take_all(shares: &mut Shares, device: u8) -> usize {
        let mut taken = 0;
        while shares.left_for(DeviceIndex(device)) > 0 {
            shares.take(DeviceIndex(device));
            taken += 1;
        }
        taken
    }

    #[test]
    fn a_device_that_gives_nothing_back_leaves_each_other_its_share() {
        let mut shares = Shares::new(64, 4);
        assert_eq!(take_all(&mut shares, 0), 64 - 3 * 8);
        for device in 1..4 {
            assert_eq!(take_all(&mut shares, device), 8, "device {device}");
        }
        (0..40).for_each(|_| shares.release(DeviceIndex(0)));
        assert_eq!(take_all(&mut shares, 2), 40 - 8, "the first one's is kept for it");
        assert_eq!(take_all(&mut shares, 0), 8);
    }

    #[test]
    fn work_on_no_device_has_one_where_there_is_one_for_all() {
        let mut shares = Shares::with_none(64, 4);
        assert_eq!(take_all(&mut shares, 0), 64 - 3 * 8 - 1);
        assert_eq!(take_all(&mut shares, u8::MAX), 1);
        shares.release(DeviceIndex(u8::MAX));
        assert_eq!(take_all(&mut shares, 3), 8, "what came back is kept for it again");
        assert_eq!(take_all(&mut shares, u8::MAX), 1);
        assert_eq!(take_all(&mut Shares::with_none(2, 1), 0), 2);
    }

    #[test]
    fn each_of_many_devices_has_one_where_half_does_not_go_round() {
        let mut shares = Shares::new(16, 9);
        assert_eq!(take_all(&mut shares, 0), 16 - 8);
        for device in 1..9 {
            assert_eq!(take_all(&mut shares, device), 1, "device {device}");
        }
    }

    #[test]
    fn however_little_there_is_somebody_gets_it_and_all_of_it_comes_back() {
        for devices in 1..6 {
            for total in 1..20 {
                for device in [0, devices as u8] {
                    let mut shares = Shares::with_none(total, devices);
                    let owed = shares.owed;
                    assert!(owed <= total);
                    let taken = take_all(&mut shares, device);
                    assert!(taken > 0, "{total} for {devices} devices");
                    (0..taken).for_each(|_| shares.release(DeviceIndex(device)));
                    assert_eq!((shares.free, shares.owed), (total, owed));
                }
            }
        }
    }

    #[test]
    fn what_is_lost_makes_every_share_smaller() {
        let mut shares = Shares::new(16, 2);
        assert_eq!((take_all(&mut shares, 0), shares.share), (12, 4));
        (0..8).for_each(|_| shares.lose(DeviceIndex(0)));
        assert_eq!((shares.total(), shares.share, shares.owed), (8, 2, 2));
    }
}
